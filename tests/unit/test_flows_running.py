"""What counts as running: the fleet, else what was applied, else what was published; and what a fleet says of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from warehouse_cases import QWEN, new_lake, plan, register, run, template_id, templates

from catalogs.errors import CoralError, HeldError
from catalogs.scenario_schema import PolicySection
from flows.cli_drift import drift_lines
from flows.drift import drift_report, note_what_runs
from flows.running import RunningBasis, what_runs
from tasks.allocation.plan import Plan
from warehouse.connect import Lake
from warehouse.land import write_shard
from warehouse.plan_states import mark_running
from warehouse.plans import publish_plan
from warehouse.read import current_plan, plan_version
from warehouse.rows import insert

ONE, TWO = "L40Sx4*1", "H100-SXMx1*1+L40Sx4*2"
REGION = "aws/us-east-2"
SHARD = {"old": "0" * 16, "new": "f" * 16}
NOW = datetime.now(UTC)
LOADED: Any = SimpleNamespace(scenario=SimpleNamespace(id="core", policy=PolicySection()))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Libraries `old` and `new`: both lay the workload over the same nodes the same way, under other template ids."""
    with new_lake(tmp_path) as opened:
        for name in ("old", "new"):
            table = templates(SHARD[name], QWEN, {ONE: 1_000_000, TWO: 3_000_000})
            register(opened, name, [write_shard(tmp_path, table, SHARD[name])])
        yield opened


def planned(instances: int, library: str = "old") -> Plan:
    """``instances`` of the library's template on one L40Sx4, with the stages the library gives it."""
    base = plan(instances=instances)
    node = base.instances[0].stages[0].nodes[0].model_copy(update={"tp": 1})
    stage = base.instances[0].stages[0].model_copy(update={"layers": (0, 9), "nodes": (node,)})
    update = {"template_id": template_id(SHARD[library], ONE), "stages": (stage,)}
    inputs = base.inputs.model_copy(update={"library_id": library})
    return base.model_copy(update={"instances": (base.instances[0].model_copy(update=update),), "inputs": inputs})


def observe(lake: Lake, rows: dict[tuple[str, str], int], at: datetime | None = None) -> None:
    common = {"scenario_id": "core", "observed_at": at or datetime.now(UTC), "region": REGION, "market": "on_demand"}
    common |= {"failed_nodes": 0, "ingest_id": ""}
    with lake.write("observe") as connection:
        rows_of = [common | {"node_config": c, "template_id": t, "nodes": n} for (c, t), n in rows.items()]
        insert(connection, "fleet", rows_of)


def test_nothing_is_known_to_run_before_the_first_plan(lake: Lake) -> None:
    found = what_runs(lake, "old", LOADED, None, NOW)
    assert (dict(found.instances), found.basis) == ({}, RunningBasis.NONE)


def test_published_then_applied_then_seen(lake: Lake) -> None:
    publish_plan(lake, planned(2), run("r1"))
    publish_plan(lake, planned(3), run("r2"))
    current = current_plan(lake, "core")
    old, new = template_id(SHARD["old"], ONE), template_id(SHARD["new"], ONE)
    found = what_runs(lake, "old", LOADED, current, NOW)
    assert (found.instances, found.basis, found.plan_version) == ({QWEN: {(REGION, old): 3}}, "last_published", 2)
    mark_running(lake, "core", 1, is_whole=True, by="script")
    found = what_runs(lake, "new", LOADED, current, NOW)
    assert (found.instances, found.basis, found.plan_version) == ({QWEN: {(REGION, new): 2}}, "last_applied", 1)
    # One instance of two kinds of node needs an H100 and two L40Sx4: five of them make two, and one is left over.
    two = template_id(SHARD["old"], TWO)
    seen = datetime.now(UTC)
    observe(
        lake, {("L40Sx4", old): 4, ("L40Sx4", two): 5, ("H100-SXMx1", two): 3, ("L4x1", ""): 7, ("L4x1", "x"): 1}, seen
    )
    found = what_runs(lake, "new", LOADED, current, datetime.now(UTC))
    assert found.instances == {QWEN: {(REGION, new): 4, (REGION, template_id(SHARD["new"], TWO)): 2}}
    assert (found.basis, found.plan_version, found.observed_at) == ("fleet", None, seen)
    late = seen + timedelta(minutes=121)
    assert what_runs(lake, "new", LOADED, current, late).basis is RunningBasis.LAST_APPLIED


def test_a_fleet_that_was_seen_empty_runs_nothing(lake: Lake) -> None:
    publish_plan(lake, planned(2), run("r1"))
    observe(lake, {("L40Sx4", ""): 0})
    found = what_runs(lake, "old", LOADED, current_plan(lake, "core"), datetime.now(UTC))
    assert (dict(found.instances), found.basis) == ({}, RunningBasis.FLEET)


def test_the_fleet_moves_the_plan_to_partial_and_applied_and_back(lake: Lake) -> None:
    publish_plan(lake, planned(3), run("r1"))
    same = template_id(SHARD["new"], ONE)  # labelled by another library's id of the very same layout
    observe(lake, {("L40Sx4", same): 3}, NOW - timedelta(hours=1))
    assert note_what_runs(lake, "core") is None, "seen before the plan was made"
    observe(lake, {("L4x1", ""): 2})
    assert note_what_runs(lake, "core") is None, "nothing of the plan runs"
    for nodes, state in ((2, "partial"), (2, None), (3, "applied"), (3, None), (0, "partial")):
        observe(lake, {("L40Sx4", same): nodes})
        assert note_what_runs(lake, "core") == state
    assert plan_version(lake, "core", 1).state.value == "partial"


def test_drift_says_what_is_unknown_and_what_differs(lake: Lake) -> None:
    with pytest.raises(CoralError, match="no plan of core is published"):
        drift_report(lake, "core")
    publish_plan(lake, planned(3), run("r1"))
    with pytest.raises(HeldError, match="no fleet of core was ever observed") as caught:
        drift_report(lake, "core")
    assert caught.value.exit_code == 5
    observe(lake, {("L40Sx4", template_id(SHARD["old"], ONE)): 2})
    report = drift_report(lake, "core")
    document = report.document()
    assert [(row["planned_nodes"], row["running_nodes"], row["difference_nodes"]) for row in document["rows"]] == [
        (3, 2, -1)
    ]
    text = [line.text for line in drift_lines(report)]
    assert text[0].endswith("against version 1 (published)")
    assert text[2].split() == [
        REGION,
        "L40Sx4",
        "on_demand",
        "qwen3-32b/decode",
        template_id(SHARD["old"], ONE),
        "3",
        "2",
        "-1",
    ]
    assert text[3:] == ["  2 of 3 planned nodes run"]
    assert note_what_runs(lake, "core") == "partial"
    after = drift_lines(drift_report(lake, "core"))
    assert [line.text for line in after][3:] == text[3:], "what the fleet said of the plan makes it no older"
