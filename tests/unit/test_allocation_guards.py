"""Guard rails by hand: what waits for a person, just inside and just outside of each rail."""

from __future__ import annotations

import copy

import pytest
from cli_plan_example import EXAMPLE, example_plan

from catalogs.scenario_schema import GuardsSection
from tasks.allocation.guards import guard_reasons
from tasks.allocation.plan import Plan

RAILS = GuardsSection()
OLD = example_plan()  # 52.50 USD/h; Qwen3-32B at 10 req/s: prefill 6210 of 6914.4 tok/s, decode 1260 of 1350 tok/s


def changed(cost: float = 52.5, req: float = 10.0, prefill: float = 6914.4, decode: float = 1350.0) -> Plan:
    workloads = copy.deepcopy(EXAMPLE["workloads"])
    for row, supplied, tokens in zip(workloads, (prefill, decode), (621, 126), strict=True):
        row.update(planned_req_per_s=req, planned_tok_per_s=req * tokens, supplied_tok_per_s=supplied)
    return example_plan(cost_usd_per_h=cost, workloads=workloads)


def test_the_first_plan_and_the_same_plan_pass() -> None:
    assert guard_reasons(changed(cost=1e6, req=1e3), None, RAILS) == ()
    assert guard_reasons(OLD, OLD, RAILS) == ()


@pytest.mark.parametrize(
    ("new", "reasons"),
    [
        (changed(cost=63.0), []),  # 52.50 x 1.2
        (changed(cost=63.01), ["cost rises by 20%, more than 20 %: 52.50 -> 63.01 USD/h"]),
        (changed(cost=10.0), []),
        (changed(prefill=4840.08), []),  # 6914.4 x 0.7
        (changed(prefill=4840.0), ["capacity of qwen3-32b/prefill falls by 30%, more than 30 % beyond its demand: "
                                   "6,914 -> 4,840 tok/s"]),
        # Demand halves: half the capacity is due, 30 % less than that is 35 % of it.
        (changed(req=5, prefill=2420.04, decode=472.5), []),
        (changed(req=5, prefill=2420.04, decode=472.4), ["capacity of qwen3-32b/decode falls by 65%, more than 30 % beyond "
                                                         "its demand: 1,350 -> 472 tok/s"]),
        (changed(req=50, prefill=34572.0, decode=6750.0), []),
        (changed(req=50.1, prefill=34572.0, decode=6800.0), ["demand of Qwen/Qwen3-32B moves more than 5x: 10 -> 50.1 req/s"]),
        (changed(req=2, prefill=1400.0, decode=300.0), []),
        (changed(req=1.9, prefill=1400.0, decode=300.0), ["demand of Qwen/Qwen3-32B moves more than 5x: 10 -> 1.9 req/s"]),
        (changed(req=0, prefill=0.0, decode=0.0), ["demand of Qwen/Qwen3-32B moves more than 5x: 10 -> 0 req/s"]),
    ],
)  # fmt: skip
def test_each_rail(new: Plan, reasons: list[str]) -> None:
    assert list(guard_reasons(new, OLD, RAILS)) == reasons


def test_a_rail_that_is_null_holds_nothing() -> None:
    off = GuardsSection(cost_rise_pct=None, capacity_fall_pct=None, demand_factor=None)
    assert guard_reasons(changed(cost=1e6, req=0, prefill=0, decode=0), OLD, off) == ()


def test_from_nothing_to_something() -> None:
    nothing = changed(cost=0, req=0, prefill=0, decode=0)
    assert guard_reasons(OLD, nothing, RAILS) == ("cost rises from nothing: 0.00 -> 52.50 USD/h",)
    assert guard_reasons(nothing, nothing, RAILS) == ()


def test_a_model_that_is_new_or_gone_is_a_change_of_the_scenario() -> None:
    other = [{**row, "workload": "phi-4/" + row["phase"], "model": "microsoft/phi-4"} for row in EXAMPLE["workloads"]]
    assert guard_reasons(example_plan(workloads=other), OLD, RAILS) == ()


def test_after_a_rollback_everything_waits() -> None:
    assert guard_reasons(OLD, OLD, RAILS, is_rolled_back=True) == ("version 3 is current by a rollback",)
