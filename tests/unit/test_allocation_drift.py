"""Drift by hand: the example's five L40Sx4 and three H100-SXMx1 against what was seen."""

from __future__ import annotations

from cli_plan_example import example_plan

from catalogs.lake_feeds import FleetNodes
from catalogs.types import Market
from tasks.allocation.drift import DriftRow, find_drift

REGION, PREFILL, DECODE = "aws/us-east-2", "a" * 16, "b" * 16
PLAN = example_plan()  # prefill: 2 x (H100 + 2 L40Sx4); decode: H100 + L40Sx4


def seen(config: str, template_id: str, nodes: int, market: Market = Market.ON_DEMAND) -> FleetNodes:
    return FleetNodes(REGION, config, market, template_id, nodes)


WHOLE = [
    seen("H100-SXMx1", PREFILL, 2),
    seen("L40Sx4", PREFILL, 4),
    seen("H100-SXMx1", DECODE, 1),
    seen("L40Sx4", DECODE, 1),
]


def test_a_fleet_as_planned_has_none() -> None:
    found = find_drift(PLAN, WHOLE)
    assert (found.is_empty, found.planned_nodes, found.matched_nodes) == (True, 8, 8)
    assert find_drift(PLAN, [*WHOLE, seen("L4x1", "", 0)]).is_empty, "no node of a kind is none"


def test_missing_surplus_and_misused_nodes() -> None:
    fleet = [*WHOLE[:1], seen("L40Sx4", PREFILL, 3), *WHOLE[2:], seen("L40Sx4", "", 1), seen("L4x1", "c" * 16, 2)]
    found = find_drift(PLAN, fleet)
    key = (REGION, "L40Sx4", "on_demand")
    assert found.rows == (
        DriftRow(*key, "", "", 0, 1),
        DriftRow(*key, PREFILL, "qwen3-32b/prefill", 4, 3),
        DriftRow(REGION, "L4x1", "on_demand", "c" * 16, "", 0, 2),
    )
    assert [row.difference_nodes for row in found.rows] == [1, -1, 2]
    assert (found.planned_nodes, found.matched_nodes) == (8, 7)


def test_another_market_is_another_machine() -> None:
    found = find_drift(PLAN, [*WHOLE[:3], seen("L40Sx4", DECODE, 1, Market.SPOT)])
    assert [(row.market, row.difference_nodes) for row in found.rows] == [("on_demand", -1), ("spot", 1)]


def test_a_fleet_without_labels_is_compared_by_machines() -> None:
    found = find_drift(PLAN, [seen("H100-SXMx1", "", 3), seen("L40Sx4", "", 4)])
    assert not found.is_labelled
    assert found.rows == (DriftRow(REGION, "L40Sx4", "on_demand", "", "", 5, 4),)


def test_nothing_that_runs_is_all_that_is_planned() -> None:
    found = find_drift(PLAN, [])
    assert sum(row.difference_nodes for row in found.rows) == -8
    assert {row.workload for row in found.rows} == {"qwen3-32b/prefill", "qwen3-32b/decode"}
    assert find_drift(example_plan(instances=[], offers=[]), []).is_empty
