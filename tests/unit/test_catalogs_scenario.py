"""Scenarios as loaded: the shipped ones, and one with a model, a region and machines that no shipped one has."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from catalogs import load_catalog, load_scenario, validate_path
from catalogs.errors import CoralError, InputError
from catalogs.init import starter_files, write_starter
from catalogs.scenario import LoadedScenario
from catalogs.scenario_files import shipped_scenarios
from catalogs.types import Basis, Market, Phase

PAPER = {  # model: (layers, TTFT ms, TPOT ms, input, output)
    "microsoft/phi-4": (40, 1200, 60, 1155, 211),
    "openai/gpt-oss-20b": (24, 900, 30, 2048, 28),
    "Qwen/Qwen3-32B": (64, 1600, 100, 621, 126),
    "meta-llama/Meta-Llama-3.1-70B": (80, 1500, 80, 621, 126),
    "openai/gpt-oss-120b": (36, 1000, 40, 1155, 211),
    "Qwen/Qwen3-235B-A22B": (94, 1800, 120, 2048, 28),
}
CORE = set(list(PAPER)[:3])


@pytest.mark.parametrize("name", ["core", "extended", "paper-core", "paper-extended"])
class TestShipped:
    def test_models_slos_and_demand_are_the_papers(self, name: str) -> None:
        loaded = load_scenario(name)
        expected = CORE if name.endswith("core") else set(PAPER)
        assert {demand.model for demand in loaded.model_demands} == expected
        assert len(loaded.workloads) == 2 * len(expected)
        for workload in loaded.workloads:
            layers, ttft, tpot, tokens_in, tokens_out = PAPER[workload.model.model]
            assert workload.model.layers == layers
            assert workload.slo_ms == (ttft if workload.phase is Phase.PREFILL else tpot)
            assert (workload.lengths.input_mean, workload.lengths.output_mean) == (tokens_in, tokens_out)
            assert workload.weight_dtype == ("mxfp4" if "gpt-oss" in workload.alias else "bf16")
            assert workload.kv_dtype == "bf16"
        rate = 10 if name.endswith("core") else 25
        planned = 641 / 60 if name.endswith("core") else 1564 / 60
        assert {d.stated_req_per_s for d in loaded.model_demands} == {rate}
        assert {round(d.planned_req_per_s or 0, 9) for d in loaded.model_demands} == {round(planned, 9)}
        assert all(d.basis is Basis.STATED for d in loaded.model_demands)

    def test_one_price_date(self, name: str) -> None:
        loaded = load_scenario(name)
        assert loaded.price_as_of == date(2025, 5, 1)
        assert {offer.as_of for offer in loaded.offers} == {date(2025, 5, 1)}
        assert "mixed_dates" not in {code for code, _ in loaded.warnings}

    def test_nothing_is_free_infinite_or_spot(self, name: str) -> None:
        loaded = load_scenario(name)
        assert all(offer.price_usd_per_h > 0 and offer.market is Market.ON_DEMAND for offer in loaded.offers)
        for region, configs in loaded.sold_sets.items():
            for config in configs:
                nodes, basis = loaded.capacity(region, config)
                assert nodes == loaded.scenario.availability.default_nodes
                assert basis is Basis.ASSUMED
        assert "assumed_availability" in {code for code, _ in loaded.warnings}

    def test_validates_and_has_profiles(self, name: str) -> None:
        loaded = load_scenario(name)
        assert validate_path(loaded.path) == []
        assert {c.gpu for c in loaded.node_configs.values()} <= set(loaded.catalog.efficiencies)
        assert loaded.scenario.library.model_dump() == {"n_max": 6, "rho": 12, "mode": "cycle"}


def test_shipped_names() -> None:
    assert shipped_scenarios() == ("core", "extended", "paper-core", "paper-extended")


def test_core_is_what_aws_sells() -> None:
    loaded = load_scenario("core")
    assert loaded.regions == ("aws/us-east-2", "aws/ap-northeast-2")
    sold = {f"{gpu}x{n}" for gpu in ("L40S", "L4", "A10G") for n in (1, 4, 8)}
    assert all(set(configs) == sold for configs in loaded.sold_sets.values())
    assert set(loaded.node_configs) == sold
    best = loaded.best_offer("aws/us-east-2", "L40Sx1")
    assert best is not None
    # g6e.xlarge at 1.861 is the cheapest of six machines with one L40S.
    assert (best.instance_type, best.price_usd_per_h) == ("g6e.xlarge", 1.861)
    assert loaded.best_offer("aws/us-east-2", "H100-SXMx8") is None
    assert loaded.capacity("aws/us-east-2", "H100-SXMx8") == (0, Basis.STATED)
    prices = [offer.price_usd_per_h for offer in loaded.offers]
    assert prices == sorted(prices)


def test_extended_is_what_aws_and_gcp_sell() -> None:
    loaded = load_scenario("extended")
    assert "A100-80GB-SXMx1" in loaded.sold_sets["gcp/us-central1"]
    assert not any("L40S" in config or "A10G" in config for config in loaded.sold_sets["gcp/us-central1"])
    assert not any("H100" in config for config in loaded.sold_sets["aws/ap-northeast-2"])
    assert not any(offer.is_derived for offer in loaded.offers)
    # p5.4xlarge came later (2025-08-25) and is left out with a note; H100x1 is not sold in us-east-2 on that day.
    assert "H100-SXMx1" not in loaded.sold_sets["aws/us-east-2"]
    notes = dict(loaded.warnings)
    assert "p5.4xlarge" in notes["other_dates_dropped"]
    assert "a3-highgpu-1g" in notes["list_price_only"]


def test_the_papers_grid_is_whole_and_marked() -> None:
    core, extended = load_scenario("paper-core"), load_scenario("paper-extended")
    assert {len(configs) for configs in core.sold_sets.values()} == {12}
    assert {len(configs) for configs in extended.sold_sets.values()} == {20}
    derived = {(o.region, o.node_config) for o in core.offers if o.is_derived}
    assert derived == {(r, f"{g}x2") for r in core.regions for g in ("L40S", "L4", "A10G")}
    best = core.best_offer("aws/us-east-2", "L40Sx2")
    assert best is not None
    assert best.price_usd_per_h == pytest.approx(2 * (1.861 + (10.49264 / 4 - 1.861) / 3), abs=1e-6)
    assert "derived_offers" in dict(core.warnings)
    # A region that sells it keeps the real price; GCP sells no A10G: Ohio, 1,200 km from Iowa, does.
    gcp = extended.best_offer("gcp/us-central1", "A10Gx1")
    assert gcp is not None
    assert gcp.is_derived
    assert "not sold in gcp/us-central1: as in aws/" in gcp.source
    real = extended.best_offer("gcp/us-central1", "A100-80GB-SXMx1")
    assert real is not None
    assert not real.is_derived
    assert core.node_configs["L40Sx2"].is_derived
    # GCP sells L4x2, so the configuration itself is real although its offers in AWS regions are derived.
    assert not core.node_configs["L4x2"].is_derived


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    write_starter(tmp_path / "mine")
    return tmp_path / "mine"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


class TestOwnInputs:
    def test_starter_is_sound_and_has_what_no_shipped_scenario_has(self, starter: Path) -> None:
        assert validate_path(starter) == []
        loaded = load_scenario(starter)
        assert loaded.rejects == ()
        shipped = [load_scenario(name) for name in shipped_scenarios()]
        assert not {d.model for d in loaded.model_demands} & {d.model for s in shipped for d in s.model_demands}
        assert not set(loaded.regions) & {region for s in shipped for region in s.regions}
        assert "my-org/my-8b-chat" in loaded.catalog.models
        assert loaded.catalog.models["my-org/my-8b-chat"].layers == 36
        assert "own/frankfurt" not in load_catalog().regions
        assert load_scenario("core").catalog.models.keys() == load_catalog().models.keys()

    def test_own_prices_replace_the_catalogs_and_take_no_discount(self, starter: Path) -> None:
        loaded = load_scenario(starter)
        mine = loaded.best_offer("aws/eu-central-1", "L40Sx1")
        assert mine is not None
        assert (mine.instance_type, mine.price_usd_per_h, mine.source) == ("g6e.xlarge", 2.10, "my contract")
        listed = loaded.best_offer("aws/eu-central-1", "L40Sx4")
        assert listed is not None
        assert listed.price_usd_per_h == pytest.approx(0.88 * 13.12002)
        owned = loaded.best_offer("own/frankfurt", "L40Sx4")
        assert owned is not None
        assert owned.market is Market.OWNED
        assert loaded.node_configs["L40Sx4"].network_gbit_per_s == 100

    def test_capacity_feed_then_quota_then_default(self, starter: Path) -> None:
        loaded = load_scenario(starter)
        assert loaded.capacity("aws/eu-central-1", "L40Sx1") == (12, Basis.FEED)
        # Unknown in the feed: 768 vCPUs / 48 of a g6e.12xlarge.
        assert loaded.capacity("aws/eu-central-1", "L40Sx4") == (16, Basis.QUOTA)
        assert loaded.capacity("aws/eu-central-1", "A100-40GB-SXMx8") == (8, Basis.ASSUMED)
        assert loaded.capacity("own/frankfurt", "L40Sx4") == (2, Basis.FEED)

    def test_quota_caps_the_feed(self, starter: Path) -> None:
        edit(starter / "quotas.csv", ",768", ",20")
        # 20 vCPUs / 4 of a g6e.xlarge, less than the 12 of the feed; none for a machine of 48 vCPUs.
        loaded = load_scenario(starter)
        assert loaded.capacity("aws/eu-central-1", "L40Sx1") == (5, Basis.QUOTA)
        assert loaded.capacity("aws/eu-central-1", "L40Sx4") == (0, Basis.QUOTA)

    @pytest.mark.parametrize(
        ("row", "config", "nodes"),
        [
            ("aws,aws/eu-central-1,L40S,gpu,10", "L40Sx4", 2),
            ("aws,aws/eu-central-1,L40Sx4,node,3", "L40Sx4", 3),
            ("aws,aws/eu-central-1,g6e.12xlarge,node,4", "L40Sx4", 4),
            ("aws,aws/eu-central-1,P,vcpu,200", "A100-40GB-SXMx8", 2),
        ],
    )
    def test_quota_units(self, starter: Path, row: str, config: str, nodes: int) -> None:
        edit(starter / "quotas.csv", "aws,aws/eu-central-1,G and VT,vcpu,768", row)
        assert load_scenario(starter).capacity("aws/eu-central-1", config) == (nodes, Basis.QUOTA)

    def test_zero_nodes_is_none_and_the_latest_row_counts(self, starter: Path) -> None:
        with (starter / "availability.csv").open("a") as handle:
            handle.write("aws/eu-central-1,L40Sx1,on_demand,2025-05-01T09:00:00Z,0\n")
            handle.write("aws/eu-central-1,L40Sx1,,2025-05-01T07:00:00Z,99\n")
        assert load_scenario(starter).capacity("aws/eu-central-1", "L40Sx1") == (0, Basis.FEED)

    def test_demand_window_zero_and_unknown(self, starter: Path) -> None:
        def demand(loaded: LoadedScenario) -> dict[str, tuple[float | None, float | None]]:
            return {d.alias: (d.stated_req_per_s, d.planned_req_per_s) for d in loaded.model_demands}

        # Poisson of 480 a minute: 95 % of minutes have at most 516.
        assert demand(load_scenario(starter))["qwen3-8b"] == (8, pytest.approx(516 / 60))
        at_half_past_8 = datetime(2025, 5, 1, 8, 30, tzinfo=UTC)
        early = demand(load_scenario(starter, at=at_half_past_8))
        assert early["qwen3-8b"][0] == 6
        assert early["my-8b-chat"] == (None, None)
        with (starter / "demand.csv").open("a") as handle:
            handle.write("qwen3-8b,2025-05-01T10:00:00Z,0\nmy-org/my-8b-chat,2025-05-01T10:00:00Z,\n")
        later = load_scenario(starter)
        assert demand(later) == {"qwen3-8b": (0, 0), "my-8b-chat": (None, None)}
        assert "my-8b-chat" in dict(later.warnings)["unknown_demand"]

    def test_a_model_goes_by_its_own_alias_and_by_the_catalogs(self, starter: Path) -> None:
        """An alias of one's own does not take the usual names away, and a served model's names come first."""
        edit(starter / "scenario.yaml", "model: qwen3-8b ", "alias: q\n    model: qwen3-8b ")
        for name in ("q", "Q", "qwen3-8b", "Qwen/Qwen3-8B"):
            edit(starter / "demand.csv", "qwen3-8b,2025-05-01T09:00:00Z,8", f"{name},2025-05-01T09:00:00Z,8")
            loaded = load_scenario(starter)
            assert loaded.rejects == ()
            assert {d.alias: d.stated_req_per_s for d in loaded.model_demands} == {"q": 8, "my-8b-chat": 4}
            edit(starter / "demand.csv", f"{name},2025-05-01T09:00:00Z,8", "qwen3-8b,2025-05-01T09:00:00Z,8")

    def test_an_own_model_named_like_one_of_the_catalog_is_meant(self, starter: Path) -> None:
        edit(starter / "scenario.yaml", "model: my-org/my-8b-chat", "model: my-org/phi-4")
        edit(starter / "demand.csv", "my-org/my-8b-chat", "phi-4")
        loaded = load_scenario(starter)
        assert {d.model: d.stated_req_per_s for d in loaded.model_demands}["my-org/phi-4"] == 4

    def test_quotas_of_regions_that_it_does_not_have_are_told(self, starter: Path) -> None:
        assert "unused_quotas" not in dict(load_scenario(starter).warnings)
        with (starter / "quotas.csv").open("a") as handle:
            handle.write("aws,aws/us-west-2,G and VT,vcpu,10\naws,aws/us-west-2,L4,gpu,10\n")
        text = dict(load_scenario(starter).warnings)["unused_quotas"]
        assert text.count("aws/us-west-2") == 1
        assert text.startswith("quotas of regions that the scenario does not have count for nothing: aws/us-west-2")

    def test_bad_rows_are_set_aside_counted_and_reported(self, starter: Path) -> None:
        with (starter / "offers.csv").open("a") as handle:
            handle.write("aws/eu-central-1,L40Sx8,g6e.48xlarge,on_demand,,,,2025-05-01,blank price\n")
            handle.write("aws/eu-central-1,L40Sx8,mine,on_demand,0,,,2025-05-01,zero price\n")
            handle.write("frankfurt,L40Sx8,mine,on_demand,5,,,2025-05-01,no provider\n")
        with (starter / "demand.csv").open("a") as handle:
            handle.write("qwen3-9b,2025-05-01T10:00:00Z,3\n")
        with (starter / "availability.csv").open("a") as handle:
            handle.write("aws/eu-central-9,L40Sx1,on_demand,2025-05-01T09:00:00Z,1\n")
            handle.write("aws/us-west-2,L40Sx1,on_demand,2025-05-01T09:00:00Z,1\n")
        with (starter / "quotas.csv").open("a") as handle:
            handle.write("aws,aws/eu-central-1,G and TV,vcpu,10\n")
        loaded = load_scenario(starter)
        assert [(f.file, f.row, f.column, f.value) for f in loaded.rejects] == [
            ("offers.csv", 3, "price_usd_per_h", ""),
            ("offers.csv", 4, "price_usd_per_h", "0"),
            ("offers.csv", 5, "region", "frankfurt"),
            ("demand.csv", 4, "model", "qwen3-9b"),
            ("availability.csv", 4, "region", "aws/eu-central-9"),
            ("quotas.csv", 2, "family", "G and TV"),
        ]
        assert all(f.remedy for f in loaded.rejects)
        assert dict(loaded.warnings)["rejected_rows"].startswith("6 rows set aside, first: offers.csv, row 3")
        # The blank price does not win: the list price still counts.
        best = loaded.best_offer("aws/eu-central-1", "L40Sx8")
        assert best is not None
        assert best.price_usd_per_h == pytest.approx(0.88 * 37.67612)
        assert validate_path(starter) == list(loaded.rejects)

    def test_price_per_gpu_is_suspected(self, starter: Path) -> None:
        with (starter / "offers.csv").open("a") as handle:
            handle.write("aws/eu-central-1,H100-SXMx8,p5.48xlarge,on_demand,11.5,,,2025-05-01,typed per GPU\n")
        assert "looks like the price of one GPU" in dict(load_scenario(starter).warnings)["price_per_gpu_suspect"]

    def test_an_own_count_of_gpus(self, starter: Path) -> None:
        with (starter / "offers.csv").open("a") as handle:
            handle.write("own/frankfurt,L40Sx3,rack-8,owned,2.5,,,2025-05-01,\n")
        config = load_scenario(starter).node_configs["L40Sx3"]
        assert (config.gpu_count, config.link, config.network_gbit_per_s) == (3, "pcie", None)
        assert config.memory_gib == pytest.approx(3 * 46068 / 1024, abs=1e-4)

    def test_missing_column_refuses_the_file(self, starter: Path) -> None:
        edit(starter / "offers.csv", "price_usd_per_h", "price")
        with pytest.raises(InputError) as caught:
            load_scenario(starter)
        assert "offers.csv, price: unknown column. To fix: rename it to price_usd_per_h" in str(caught.value)

    def test_own_config_faults(self, starter: Path) -> None:
        path = starter / "models" / "my-8b-chat.json"
        config = json.loads(path.read_text())
        del config["num_hidden_layers"]
        path.write_text(json.dumps(config))
        (finding,) = validate_path(starter)
        assert finding.file == "models/my-8b-chat.json"
        assert "'num_hidden_layers' of its config is missing" in finding.reason
        path.write_text("{")
        assert "is not JSON (line 1" in validate_path(path)[0].reason

    def test_demand_given_twice(self, starter: Path) -> None:
        edit(starter / "scenario.yaml", "    # demand_req_per_s: 10 ", "    demand_req_per_s: 10 ")
        (finding,) = validate_path(starter)
        assert (finding.column, finding.reason) == ("models[0].demand_req_per_s", "is given twice")

    def test_another_price_date_uses_what_is_near_and_says_what_is_not(self, starter: Path) -> None:
        edit(starter / "scenario.yaml", "price_as_of: 2025-05-01 ", "price_as_of: 2026-07-30 ")
        edit(starter / "scenario.yaml", "[aws/eu-central-1, own/frankfurt]", "[aws/us-east-1, aws/eu-central-1]")
        edit(starter / "scenario.yaml", "exclude_gpus: [T4, V100-16GB-SXM2]", "include_gpus: [H100-SXM]")
        edit(starter / "scenario.yaml", "[aws/us-east-1, aws/eu-central-1]", "[aws/us-east-1, aws/us-east-2]")
        edit(starter / "scenario.yaml", "regions: [aws/eu-central-1]", "regions: [aws/us-east-1]")
        loaded = load_scenario(starter)
        near = loaded.best_offer("aws/us-east-1", "H100-SXMx8")
        far = loaded.best_offer("aws/us-east-2", "H100-SXMx8")
        assert near is not None
        assert far is not None
        assert (near.as_of, far.as_of) == (date(2026, 7, 1), date(2025, 8, 25))
        assert near.price_usd_per_h == far.price_usd_per_h == pytest.approx(0.88 * 55.04)
        text = dict(loaded.warnings)["mixed_dates"]
        assert "p5.48xlarge in aws/us-east-2 (2025-08-25)" in text
        assert "us-east-1" not in text

    def test_spot_when_asked_for(self, starter: Path) -> None:
        edit(starter / "scenario.yaml", "markets: [on_demand, owned]", "markets: [on_demand, spot, owned]")
        edit(starter / "scenario.yaml", "  init_minutes: 6 ", "  max_spot_share: 1\n  init_minutes: 6 ")
        loaded = load_scenario(starter)
        best = loaded.best_offer("aws/eu-central-1", "L4x1")
        assert best is not None
        assert best.market is Market.SPOT
        offer = loaded.by_market["aws/eu-central-1", Market.ON_DEMAND, "L4x1"]
        assert offer.price_usd_per_h > best.price_usd_per_h
        assert "g5.48xlarge" not in dict(loaded.warnings).get("spot_not_cheaper", "")


class TestStarter:
    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "demand.csv").write_text("mine")
        with pytest.raises(CoralError, match=r"already holds demand\.csv"):
            write_starter(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["demand.csv"]
        with pytest.raises(CoralError, match="is a file"):
            write_starter(tmp_path / "demand.csv")

    def test_all_files_are_written(self, tmp_path: Path) -> None:
        written = write_starter(tmp_path / "a" / "b")
        assert {str(path.relative_to(tmp_path / "a" / "b")) for path in written} == set(starter_files())

    @pytest.mark.parametrize(
        "name", ["offers.csv", "availability.csv", "quotas.csv", "demand.csv", "models/my-8b-chat.json"]
    )
    def test_each_file_validates_alone(self, tmp_path: Path, name: str) -> None:
        write_starter(tmp_path / "mine")
        assert validate_path(tmp_path / "mine" / name) == []

    def test_a_csv_of_no_known_name(self, tmp_path: Path) -> None:
        (tmp_path / "stuff.csv").write_text("a\n1\n")
        (finding,) = validate_path(tmp_path / "stuff.csv")
        assert finding.reason == "cannot tell what table this is"


def test_workload_ids_depend_on_what_changes_the_templates(tmp_path: Path) -> None:
    write_starter(tmp_path / "a")
    write_starter(tmp_path / "b")
    edit(tmp_path / "b" / "scenario.yaml", "price_as_of: 2025-05-01 ", "price_as_of: 2025-05-02 ")
    first, second = load_scenario(tmp_path / "a"), load_scenario(tmp_path / "b")
    assert [w.workload_id for w in first.workloads] == [w.workload_id for w in second.workloads]
    edit(tmp_path / "b" / "scenario.yaml", "tpot_ms: 50", "tpot_ms: 51")
    third = load_scenario(tmp_path / "b")
    changed = [a.workload_id != b.workload_id for a, b in zip(first.workloads, third.workloads, strict=True)]
    assert changed == [False, True, False, False]


def test_lengths_of_an_own_trace(tmp_path: Path) -> None:
    write_starter(tmp_path)
    scenario = tmp_path / "scenario.yaml"
    text = scenario.read_text().replace("lengths: {trace: azure-conv-2023}", "lengths: {file: mine.csv}")
    scenario.write_text(text)
    assert ["the file does not exist" in f.line() or "no such file" in f.line() for f in validate_path(scenario)] == [
        True
    ]
    rows = [(100 * k, 10 * k) for k in range(1, 11)]  # prompts 100, 200, ..., 1000; answers a tenth
    body = "".join(f"{i},{i},{o}\n" for i, o in rows)
    (tmp_path / "mine.csv").write_text("timestamp_s,input_tokens,output_tokens\n" + body + "11,many,3\n")
    loaded = load_scenario(scenario)
    lengths = loaded.workloads[0].lengths
    assert (lengths.input_mean, lengths.output_mean) == (550, 55)
    assert lengths.input_sq_mean == sum(i * i for i, _ in rows) / 10
    assert lengths.cross_mean == sum(i * o for i, o in rows) / 10
    assert lengths.input_at_percentile == 1000  # the 99th of ten is the longest
    # A decode step's mean context: E[io]/E[o] + E[o^2]/(2 E[o]) = 700 + 35, not 550 + 27.5.
    assert lengths.decode_context_mean == pytest.approx(735)
    assert [finding.column for finding in loaded.rejects] == ["input_tokens"]
