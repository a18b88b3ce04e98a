"""The dashboards' pages as text: what they say of plans and libraries whose figures are known by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_plan_example import EXAMPLE, example_plan
from dashboard_cases import WORKLOAD, dashboard_lake

from dashboards import library_data, library_view, plan_charts, plan_data, plan_view
from dashboards.frame import POLICY
from dashboards.lake import LakeReader, StatementError
from dashboards.picture import gpu_colours, gpu_of, plan_picture, replica
from warehouse.connect import Lake
from warehouse.results import result_about, write_result
from warehouse.rows import insert

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeReader]:
    root = tmp_path_factory.mktemp("dashboards") / "lake"
    dashboard_lake(root)
    reader = LakeReader(root)
    yield reader
    reader.close()


def drawn(text: str) -> list[str]:
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(text).iter() if element.tag.endswith("text")
    ]


def test_a_plan_is_drawn_with_layers_nodes_counts_and_costs() -> None:
    text = plan_picture(EXAMPLE)
    said = drawn(text)
    assert said[0] == "Plan of example, version 3: 52.50 USD/h"
    assert said[1].startswith("8 machines in 1 region, prices of 2026-07-30")
    assert {"layers 0–31", "layers 32–63", "layers 0–63"} <= set(said)
    assert {"2 nodes, 4 × L40S", "1 × H100-SXM", "prefill · 2 × 20.00 USD/h", "decode · 12.50 USD/h"} <= set(said)
    assert {"TP 4 · 50% each", "TP 2 · DP 2 · 40%"} <= set(said)
    assert "href" not in text
    assert "url(" not in text


def test_the_bar_of_layers_is_drawn_to_scale() -> None:
    """Layers 0-9 of 40 on one node, 10-39 on another: a quarter and three quarters of the width."""
    node = EXAMPLE["instances"][0]["stages"][0]["nodes"][0]
    stages = [
        {"layers": [0, 9], "position": "first", "nodes": [node]},
        {"layers": [10, 39], "position": "last", "nodes": [node]},
    ]
    root = ElementTree.fromstring(replica({**EXAMPLE["instances"][0], "stages": stages}, {"L40S": "#000000"}))
    bars = [float(r.attrib["width"]) for r in root.iter() if r.tag.endswith("rect") and r.attrib.get("height") == "8"]
    assert (bars[0] + 1.5) * 3 == pytest.approx(bars[1] + 1.5, abs=0.2)


def test_a_long_pipeline_goes_on_in_a_second_row() -> None:
    node = EXAMPLE["instances"][0]["stages"][0]["nodes"][0]
    stages = [{"layers": [i, i], "position": "mid", "nodes": [node]} for i in range(6)]
    root = ElementTree.fromstring(replica({**EXAMPLE["instances"][0], "stages": stages}, {"L40S": "#000000"}))
    assert float(root.attrib["width"]) <= 700
    tops = {float(t.attrib["y"]) for t in root.iter() if t.tag.endswith("text") and (t.text or "").startswith("layer ")}
    assert len(tops) == 2


def test_what_is_drawn_is_said_to_readers_that_see_no_pictures() -> None:
    text = replica(EXAMPLE["instances"][0], gpu_colours([EXAMPLE]))
    assert "layers 0 to 31 on 2 L40Sx4; layers 32 to 63 on 1 H100-SXMx1" in text


@pytest.mark.parametrize(("name", "gpu"), [("L40Sx4", ("L40S", 4)), ("A100-80GB-SXMx16", ("A100-80GB-SXM", 16))])
def test_the_gpu_of_a_node(name: str, gpu: tuple[str, int]) -> None:
    assert gpu_of(name) == gpu


def test_versions_and_documents(lake: LakeReader) -> None:
    assert plan_data.scenarios(lake) == ["core"]
    assert [(row["plan_version"], row["state"]) for row in plan_data.versions(lake, "core")] == [
        (2, "published"),
        (1, "superseded"),
    ]
    assert [(n, row["state"]) for n, row in plan_data.plan_documents(lake, "core").items()] == [
        (1, "superseded"),
        (2, "published"),
    ]


def test_what_changed_and_why(lake: LakeReader) -> None:
    documents = plan_data.plan_documents(lake, "core")
    prices = plan_data.prices_by_version(lake, "core")
    (row,) = plan_data.instance_changes(documents[1], documents[2])
    assert (row["add"], row["keep"], row["remove"]) == (1, 1, 0)
    (back,) = plan_data.instance_changes(documents[2], documents[1])
    assert (back["add"], back["keep"], back["remove"]) == (0, 1, 1)
    why = plan_data.input_changes(documents[1], documents[2], prices)
    assert why == ["demand of qwen3-32b: 8.0 → 16.0 req/s (+100%)"]
    page = plan_view.changes(documents[1], documents[2], why)
    assert "10.00 → 20.00 USD/h (<b>+10.00</b>)" in page
    assert "demand of qwen3-32b changed" in page
    assert plan_view.changes(None, documents[1], []).count("first version") == 1


def test_a_price_that_changed_is_a_reason() -> None:
    before, after = (example_plan(plan_version=n).model_dump() for n in (1, 2))
    rows = [
        {
            "plan_version": n,
            "region": "aws/us-east-2",
            "node_config": "L40Sx4",
            "market": "on_demand",
            "price_usd_per_h": usd,
        }
        for n, usd in ((1, 7.5), (2, 9.0))
    ]
    why = plan_data.input_changes(before, after, rows)
    assert why == ["price of L40Sx4 in aws/us-east-2: 7.50 → 9.00 USD/h (+20%)"]


def test_the_course_holds_the_last_plan_until_now(lake: LakeReader) -> None:
    documents = plan_data.plan_documents(lake, "core")
    now = datetime(2026, 7, 30, 15, 0, tzinfo=UTC)
    course = plan_data.course(documents, plan_data.prices_by_version(lake, "core"), [], [], now)
    assert [(row["time"].hour, row["value"], row["version"]) for row in course["cost"]] == [
        (12, 10.0, 1), (13, 20.0, 2), (15, 20.0, None),
    ]  # fmt: skip
    assert [row["value"] for row in course["demand"]] == [8.0, 16.0, 16.0]
    assert {(row["name"], row["value"]) for row in course["price"]} == {("L40Sx4 us-east-2", 10.0)}
    charts = plan_charts.course_charts(course, now)
    assert [name for name, _ in charts] == ["cost", "demand", "price"]
    domains = [layer["encoding"]["x"]["scale"]["domain"] for _, chart in charts for layer in chart.to_dict()["layer"]]
    assert all(domain == domains[0] for domain in domains)


def test_series_that_are_one_are_drawn_as_one_with_all_their_names() -> None:
    at = [datetime(2026, 7, 30, hour, tzinfo=UTC) for hour in (12, 13)]
    rows = [
        {"time": t, "version": 1, "value": v, "name": n} for n, v in (("a", 5.0), ("b", 5.0), ("c", 7.0)) for t in at
    ]
    course = {"cost": [], "demand": rows, "price": [], "seen": [], "told": []}
    ((_, chart),) = plan_charts.course_charts(course, at[0])
    lines = next(layer for layer in chart.to_dict()["layer"] if layer["mark"]["type"] == "line")["data"]["values"]
    assert {(row["name"], row["value"]) for row in lines} == {("a, b", 5.0), ("c", 7.0)}
    assert len(lines) == 4
    # One line for all of them is still named.
    ((_, alone),) = plan_charts.course_charts({**course, "demand": rows[:4]}, at[0])
    assert "'legend': None" not in str(alone.to_dict()["layer"][1]["encoding"]["color"])


def test_a_plan_that_is_not_launchable_says_so_outside_the_caveats() -> None:
    plan = example_plan().model_dump(mode="json")
    plan["warnings"] = [{"code": "not_launchable", "text": "1 of 4 instances is of launch class C"}]
    page = plan_view.shortfalls(plan)
    assert "1 of 4 instances is of launch class C" in page.split("<details")[0]


def test_prices_that_moved_between_versions_are_drawn(lake: LakeReader, tmp_path: Path) -> None:
    """Versions of 12 and 13 h paid 10; a feed told 10 at 11 h, 25 at half past twelve and 11 at 14 h, of which no version was
    made. Another region's and another machine's prices are none of this plan's."""
    root = tmp_path / "lake"
    dashboard_lake(root)
    with Lake.open(root) as opened, opened.write("feed") as connection:
        for number, (hour, minute, usd) in enumerate(((11, 0, 10.0), (12, 30, 25.0), (14, 0, 11.0)), start=1):
            at = datetime(2026, 7, 30, hour, minute, tzinfo=UTC)
            for region in ("aws/us-east-2", "aws/elsewhere"):
                about = {"scenario_id": "core", "region": region, "sequence": number, "observed_at": at}
                insert(connection, "price_snapshots", [about | {"set_id": f"set{number}", "ingest_id": "i"}])
            machine = {"market": "on_demand", "interrupt_per_h": None, "network_gbit_per_s": None, "as_of": None}
            machine |= {"set_id": f"set{number}", "is_list": True, "source": "feed"}
            rows = [("m", "L40Sx4", usd), ("dear", "L40Sx4", 2 * usd), ("x", "H100-SXMx1", 6.0)]
            insert(
                connection,
                "price_sets",
                [machine | {"instance_type": m, "node_config": c, "price_usd_per_h": p} for m, c, p in rows],
            )
    reader = LakeReader(root)
    try:
        told = plan_data.prices_seen(reader, "core")
        documents = plan_data.plan_documents(reader, "core")
        prices = plan_data.prices_by_version(reader, "core")
    finally:
        reader.close()
    assert plan_data.prices_seen(lake, "core") == []
    course = plan_data.course(documents, prices, [], told, datetime(2026, 7, 30, 15, 0, tzinfo=UTC))
    points = [(row["name"], row["time"].strftime("%H:%M"), row["value"]) for row in course["told"]]
    name = "L40Sx4 us-east-2"
    assert points == [(name, "11:00", 10.0), (name, "12:30", 25.0), (name, "14:00", 11.0)]
    charts = dict(plan_charts.course_charts(course, datetime(2026, 7, 30, 13, 0, tzinfo=UTC)))
    drawn_points = charts["price"].to_dict()["layer"][0]["data"]["values"]
    assert [row["value"] for row in drawn_points] == [10.0, 25.0, 11.0]
    assert "small points: as a feed told" in str(charts["price"].to_dict()["title"])
    first = charts["cost"].to_dict()["layer"][0]["encoding"]["x"]["scale"]["domain"][0]
    assert first < "2026-07-30T11:00"  # all three charts begin where the feed does


def test_prices_are_those_each_version_was_planned_with(lake: LakeReader) -> None:
    sold = {("a", "L40Sx4", 10.0), ("a", "L4x4", 4.0), ("a", "H100-SXMx1", 12.0), ("b", "H100-SXMx1", 6.0)}
    sold |= {("aws/us-east-2", "L40Sx4", 10.0)}
    rows = plan_data.prices_by_version(lake, "core")
    found = {(row["plan_version"], row["region"], row["node_config"], row["price_usd_per_h"]) for row in rows}
    assert found == {(version, *offer) for version in (1, 2) for offer in sold}


def test_kv_that_crosses_regions_is_shown_with_what_it_costs() -> None:
    move = {"model": "phi-4", "from_region": "aws/us-east-2", "to_region": "gcp/us-central1", "req_per_s": 2.5,
            "gbit_per_s": 4.0, "usd_per_gb": 0.02, "usd_per_h": 36.0}  # fmt: skip
    plan = {**EXAMPLE, "kv_transfers": [move], "egress_usd_per_h": 36.0}
    text = plan_view.kv_moves(plan)
    for word in ("phi-4", "aws/us-east-2", "gcp/us-central1", "2.50", "4.00", "0.02", "36.00"):
        assert word in text
    assert "36.00 USD/h of it moves KV between regions" in plan_view.headline(plan, 3)
    assert plan_view.kv_moves(EXAMPLE) == ""
    assert "KV" not in plan_view.headline(EXAMPLE, 3)


def test_phases_of_a_model_stand_side_by_side_unless_a_picture_is_wide() -> None:
    colours = gpu_colours([EXAMPLE])
    assert "whole" not in plan_view.replicas(EXAMPLE, colours)
    first = EXAMPLE["instances"][0]
    long = {**first, "stages": [first["stages"][0]] * 4}
    wide = plan_view.replicas({**EXAMPLE, "instances": [long, *EXAMPLE["instances"][1:]]}, colours)
    phases = sum(row["model"] == EXAMPLE["workloads"][0]["model"] for row in EXAMPLE["workloads"])
    assert wide.count("card whole") == phases == 2


def test_the_page_says_what_is_short_and_escapes_what_others_wrote(lake: LakeReader) -> None:
    plan = plan_data.plan_documents(lake, "core")[2]
    page = plan_view.headline(plan, 2) + plan_view.shortfalls(plan)
    assert "20.00" in page
    assert "95.0%" in page
    assert "1 x L40Sx4" in page
    assert "&lt;how many&gt;" in page
    assert "<how many>" not in page


def test_a_proposal_is_compared_with_what_holds_and_says_what_it_waits_for() -> None:
    plans: dict[int, dict[str, Any]] = {n: {"plan_version": n, "state": "superseded"} for n in (1, 2, 3)}
    plans[4] = {"plan_version": 4, "state": "proposed"}
    assert plan_data.version_before(plans, plans[4], 2) == plans[2]
    assert plan_data.version_before(plans, plans[3], 2) == plans[2]
    assert plan_data.version_before(plans, plans[1], 2) is None
    plan = example_plan(state="proposed").model_dump(mode="json") | {"state_note": "rent rises by <25 %>"}
    page = plan_view.headline(plan, 2)
    assert "rent rises by &lt;25 %&gt;" in page
    assert "coral plans approve 3 --scenario example" in page
    assert "version 2 holds now" in page


def cost(low: float, high: float | None, *, impossible: bool = False) -> dict[str, Any]:
    return {"low": low, "high": high, "is_impossible": impossible}


@pytest.mark.parametrize(
    ("range_", "text"),
    [
        (None, "–"),
        (cost(51.0, 51.0), "-1.50"),
        (cost(52.5, 52.501), "0.00"),
        (cost(50.5, 53.0), "-2.00 to +0.50"),
        (cost(0.0, 53.0), "at most +0.50"),
        (cost(54.0, None), "at least +1.50"),
        (cost(52.5, None), "not known"),
        (cost(0.0, None, impossible=True), "impossible"),
    ],
)
def test_shadow_prices_are_changes_of_the_cost(range_: dict[str, Any] | None, text: str) -> None:
    row = {
        "region": "r",
        "node_config": "L4x1",
        "nodes": 3,
        "used": 3,
        "dual_usd_per_h": 0.25,
        "more": range_,
        "fewer": None,
    }
    why = {"cost_usd_per_h": 52.5, "supply": [row], "rules": []}
    assert f">{text}</td>" in plan_view.shadow_prices(why, EXAMPLE)


def test_an_explanation_is_found_by_what_it_is_about(tmp_path: Path) -> None:
    write_result(tmp_path, "aaaaaaaa", {"scenario_id": "core", "plan_version": 1}, "why")
    write_result(tmp_path, "bbbbbbbb", {"scenario_id": "core", "plan_version": 2}, "why")
    assert result_about(tmp_path, "why", scenario_id="core", plan_version=2) == {
        "scenario_id": "core",
        "plan_version": 2,
    }
    assert result_about(tmp_path, "why", scenario_id="core", plan_version=3) is None
    (damaged,) = (tmp_path / "why").glob("bbbbbbbb-*")
    damaged.write_text("{}")
    assert result_about(tmp_path, "why", scenario_id="core", plan_version=2) is None
    assert damaged.exists()
    assert "coral plans show 3 --scenario example --why" in plan_view.shadow_prices(None, EXAMPLE)


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        # Region a: 8 tok/s for 14 USD/h; 10.5 for 20; 5 for 10; 2 for 4. Region b: H100, 6 tok/s for 6 USD/h.
        ({}, ["H100-SXMx1*1", "L40Sx4*1+L4x4*1", "L40Sx4*2", "L40Sx4*1", "L4x4*1"]),
        ({"region": "a"}, ["L40Sx4*1+L4x4*1", "L40Sx4*2", "L40Sx4*1", "L4x4*1", "H100-SXMx1*1"]),
        ({"region": "b"}, ["H100-SXMx1*1"]),
        ({"mixed": "mixed"}, ["L40Sx4*1+L4x4*1"]),
        ({"mixed": "one kind", "region": "a"}, ["L40Sx4*2", "L40Sx4*1", "L4x4*1", "H100-SXMx1*1"]),
        ({"gpus": ("L40S",)}, ["L40Sx4*2", "L40Sx4*1"]),
        ({"gpus": ("L40S", "L4")}, ["L40Sx4*1+L4x4*1", "L40Sx4*2", "L40Sx4*1", "L4x4*1"]),
        ({"classes": ("B2",)}, ["L40Sx4*1+L4x4*1", "L40Sx4*2"]),
        ({"frontier_only": True, "classes": ("A",), "gpus": ("L4",)}, ["L4x4*1"]),
    ],
)
def test_filters_of_the_library(lake: LakeReader, wanted: dict[str, Any], nodes: list[str]) -> None:
    found = lake.rows(library_data.templates_sql(library_data.Filter("core", WORKLOAD.workload_id, **wanted)))
    # L40Sx4*1 and L4x4*1 are equal in tokens per USD; their order is by id.
    equal = {"L40Sx4*1", "L4x4*1"}
    assert [name for name in (row["combination_id"] for row in found) if name not in equal] == [
        n for n in nodes if n not in equal
    ]
    assert {row["combination_id"] for row in found} == set(nodes)
    assert all(row["million_tok_per_usd"] * row["usd_per_million_tok"] == pytest.approx(1) for row in found)


def test_prices_of_another_scenario_are_not_mixed_in(lake: LakeReader) -> None:
    """In the lake's other scenario everything costs a tenth."""
    (row,) = lake.rows(
        library_data.templates_sql(library_data.Filter("core", WORKLOAD.workload_id, classes=("A",), gpus=("L4",)))
    )
    assert row["price_usd_per_h"] == 4.0
    (row,) = lake.rows(library_data.templates_sql(library_data.Filter("elsewhere", WORKLOAD.workload_id)))
    assert row["price_usd_per_h"] == 1.0


def test_names_of_the_library(lake: LakeReader) -> None:
    assert {row["scenario_id"] for row in library_data.libraries(lake)} == {"core", "elsewhere"}
    assert [(row["alias"], row["templates"]) for row in library_data.workloads(lake, "core")] == [(WORKLOAD.alias, 5)]
    assert library_data.regions(lake, "core") == ["a", "aws/us-east-2", "b"]
    assert library_data.gpus(lake, "core") == ["H100-SXM", "L40S"]


def test_many_templates_are_thinned_but_the_best_stay() -> None:
    rows = [{"n": i} for i in range(20_000)]
    kept = library_data.shown(rows)
    assert len(kept) <= library_data.MAX_POINTS
    assert kept[:1500] == rows[:1500]
    assert kept[-1]["n"] > 19_900


def test_answers_tell_null_from_an_empty_text_and_say_where_they_were_cut(lake: LakeReader) -> None:
    page = library_view.answer(*lake.answer("SELECT NULL AS a, '' AS b, 1234567 AS c, '<b>' AS d"))
    assert ">NULL</td>" in page
    assert ">1,234,567</td>" in page
    assert "&lt;b&gt;" in page
    assert "the first 500 rows" in library_view.answer(*lake.answer("SELECT * FROM range(501)"))
    with pytest.raises(StatementError, match="read only"):
        lake.answer("DELETE FROM plan_rows")


def test_the_policy_names_no_other_host() -> None:
    assert "http" not in POLICY
    assert "*" not in POLICY


def test_what_has_no_figures_is_not_drawn() -> None:
    now = datetime(2026, 7, 30, tzinfo=UTC)
    course = plan_data.course({1: example_plan().model_dump(mode="json")}, [], [], [], now)
    assert [name for name, _ in plan_charts.course_charts(course, now)] == ["cost", "demand"]
