"""Shortages by hand: the common share, weights, budget, missing regions, and what would close them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.shortfalls import explain_shortfalls
from tasks.allocation.types import AllocationProblem, AllocationResult, Shortage, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "A10Gx1")


def solved(p: AllocationProblem) -> AllocationResult:
    result = solve_ilp(p, EXACT)
    assert check_result(p, result) == []
    return result


def two_models(capacity: int, **kwargs: object) -> AllocationProblem:
    """a wants 40 req/s, b 20; one L4 serves 10 of either, at 1 USD/h."""
    a = workload("a", Phase.AGGREGATED, {"ta": ({"L4x1": 1}, 10)}, CONFIGS)
    b = workload("b", Phase.AGGREGATED, {"tb": ({"L4x1": 1}, 10)}, CONFIGS)
    price, nodes = {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): capacity}
    return problem([a, b], {"a": 40.0, "b": 20.0}, price, nodes, **kwargs)  # type: ignore[arg-type]


def test_uniform_takes_the_largest_common_share_then_the_least_cost() -> None:
    # Four nodes: 3 + 1 gives min(3/4, 1/2) = 1/2; 2 + 1 gives 1/2 too, for one node less.
    result = solved(two_models(4))
    assert result.status is SolveStatus.SHORTFALL
    assert (result.theta, result.cost_usd_per_h, result.gap) == (0.5, 3.0, 0.0)
    assert 0.5 <= result.theta_upper < 0.5 + 1e-6
    assert {row.template_id: row.instances for row in result.instances} == {"ta": 2, "tb": 1}


def test_priority_serves_by_weight() -> None:
    # A node is worth 1/4 of a or 1/2 of b: b first at equal weights; with a weighed 10 times, a takes all four.
    even = solved(two_models(4, shortage=Shortage.PRIORITY))
    assert {row.template_id: row.instances for row in even.instances} == {"ta": 2, "tb": 2}
    favoured = solved(two_models(4, shortage=Shortage.PRIORITY, weight={"a": 10.0}))
    assert {row.template_id: row.instances for row in favoured.instances} == {"ta": 4}
    assert favoured.theta == 0.0


def test_no_common_share_falls_back_to_weights_and_says_so() -> None:
    result = solved(two_models(1))
    assert (result.theta, result.theta_upper) == (0.0, 0.0)
    assert {row.template_id: row.instances for row in result.instances} == {"tb": 1}
    assert "no common share above 0" in result.note


def test_empty_supply_is_a_plan_with_nothing_in_it() -> None:
    result = solved(two_models(0))
    assert (result.status, result.instances, result.theta, result.theta_upper) == (SolveStatus.SHORTFALL, (), 0.0, 0.0)
    rows = explain_shortfalls(two_models(0), result, EXACT)
    assert [(row.workload_id, row.missing_tok_per_s) for row in rows] == [
        ("a-aggregated", 40.0),
        ("b-aggregated", 20.0),
    ]
    assert rows[0].binding_text() == f"L4x1 in {R1} (0 of 0)"
    assert rows[0].extra_text() == f"+4 L4x1 in {R1} (+4.00 USD/h)"


def test_not_allowed_to_share_a_shortage_means_infeasible() -> None:
    result = solve_ilp(two_models(4), EXACT, allow_shortage=False)
    assert (result.status, result.instances) == (SolveStatus.INFEASIBLE, ())
    assert check_result(two_models(4), result) == ["status infeasible carries no plan"]


def test_the_cheapest_extra_supply_closes_each_shortfall() -> None:
    p = two_models(4)
    result = solved(p)
    rows = {row.workload_id: row for row in explain_shortfalls(p, result, EXACT)}
    # The uniform plan uses 3 of 4 nodes; a keeps 2 and lacks 2: one is free, one is extra.
    assert rows["a-aggregated"].missing_tok_per_s == 20.0
    assert [(e.node_config, e.nodes, e.usd_per_h) for e in rows["a-aggregated"].extra] == [("L4x1", 1, 1.0)]
    assert rows["b-aggregated"].extra == ()
    assert rows["b-aggregated"].extra_text() == (
        "none for this model alone, what is idle would serve it: the common share is held down by a"
    )


def test_each_of_two_could_be_served_alone_but_not_both() -> None:
    # One node each serves half of both; the third is idle, and either could have it.
    a = workload("a", Phase.AGGREGATED, {"ta": ({"L4x1": 1}, 10)}, CONFIGS)
    b = workload("b", Phase.AGGREGATED, {"tb": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a, b], {"a": 20.0, "b": 20.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 3})
    rows = {row.workload_id: row.extra_text() for row in explain_shortfalls(p, solved(p), EXACT)}
    alone = "none for this model alone, what is idle would serve it: it does for {} as well, but not for all at once"
    assert rows == {"a-aggregated": alone.format("b"), "b-aggregated": alone.format("a")}


def test_extra_supply_takes_the_cheaper_configuration() -> None:
    a = workload("a", Phase.AGGREGATED, {"t4": ({"L4x1": 1}, 10), "t10": ({"A10Gx1": 1}, 20)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.5}
    p = problem([a], {"a": 50.0}, price, {(R1, "L4x1"): 1, (R1, "A10Gx1"): 0})
    (row,) = explain_shortfalls(p, solved(p), EXACT)
    # 40 missing: 4 L4 at 4.00, 2 A10G at 3.00.
    assert [(e.node_config, e.nodes, e.usd_per_h) for e in row.extra] == [("A10Gx1", 2, 3.0)]
    assert row.binding_text() == f"L4x1 in {R1} (1 of 1); A10Gx1 in {R1} (0 of 0)"


@pytest.mark.parametrize("nodes", [9_999, 10_000, 10_001, 250_000, 30_000_000])
def test_extra_supply_is_named_however_much_it_is(nodes: int) -> None:
    """One L4 serves 10 req/s at 1 USD/h; all demand but the one node there is lacks as many nodes as it takes."""
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10), "slow": ({"A10Gx1": 3}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.0}
    p = problem([a], {"a": 10.0 * (nodes + 1)}, price, {(R1, "L4x1"): 1})
    (row,) = explain_shortfalls(p, solved(p), EXACT)
    assert row.reason == ""
    (extra,) = row.extra
    assert (extra.region, extra.node_config) == (R1, "L4x1")
    # Shares of the demand are met within the solver's 1e-6.
    assert extra.nodes == pytest.approx(nodes, rel=2e-6, abs=0)
    assert row.extra_rent_usd_per_h == pytest.approx(extra.nodes)


def test_what_no_region_sells_is_closed_by_nothing() -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1, "A10Gx1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 10.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 5})
    (row,) = explain_shortfalls(p, solved(p), EXACT)
    assert row.reason == "no extra supply of what its regions sell would close it"


def test_a_budget_can_be_what_binds() -> None:
    p = two_models(20, budget_usd_per_h=3.0)
    result = solved(p)
    assert (result.status, result.theta, result.cost_usd_per_h) == (SolveStatus.SHORTFALL, 0.5, 3.0)
    rows = explain_shortfalls(p, result, EXACT)
    assert rows[0].binding_text() == "budget"
    assert rows[0].extra_text() == "budget +2.00 USD/h"
    assert solved(replace(p, budget_usd_per_h=6.0)).status is SolveStatus.OPTIMAL


def test_a_budget_need_not_grow_by_what_is_left_of_it() -> None:
    # Rent 3 of 3.75; all of a takes 2 more (4 + 1), all of b 1 more (2 + 2): 1.25 and 0.25 are missing.
    p = two_models(20, budget_usd_per_h=3.75)
    texts = {row.workload_id: row.extra_text() for row in explain_shortfalls(p, solved(p), EXACT)}
    assert texts == {"a-aggregated": "budget +1.25 USD/h", "b-aggregated": "budget +0.25 USD/h"}


def test_co_location_counts_in_what_is_missing() -> None:
    # Prefill can only be in R1, decode only in R2: nothing is served although each phase alone would be.
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 10)}, CONFIGS, tokens_per_request=2.0)
    decode = workload("a", Phase.DECODE, {"d": ({"A10Gx1": 1}, 10)}, CONFIGS, tokens_per_request=5.0)
    price = {(r, c): 1.0 for r in (R1, R2) for c in CONFIGS}
    capacity = {(R1, "L4x1"): 9, (R2, "A10Gx1"): 9}
    p = problem([prefill, decode], {"a": 2.0}, price, capacity, regions=(R1, R2))
    result = solved(p)
    assert (result.instances, result.theta) == ((), 0.0)
    rows = explain_shortfalls(p, result, EXACT)
    assert [(row.workload_id, row.missing_tok_per_s) for row in rows] == [("a-prefill", 4.0), ("a-decode", 10.0)]
    assert [(e.region, e.node_config, e.nodes) for e in rows[0].extra] in (
        [(R1, "A10Gx1", 1)],
        [(R2, "L4x1", 1)],
    )


def test_a_wanted_region_without_supply_is_given_up_last_and_named() -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R2, "L4x1"): 3.0}
    for shortage in Shortage:
        p = problem(
            [a],
            {"a": 20.0},
            price,
            {(R1, "L4x1"): 5},
            regions=(R1, R2),
            min_regions={"a": 2},
            shortage=shortage,
        )
        result = solved(p)
        assert (result.status, result.theta) == (SolveStatus.SHORTFALL, 1.0)
        assert {row.region: row.instances for row in result.instances} == {R1: 2}
        (row,) = explain_shortfalls(p, result, EXACT)
        assert row.missing_tok_per_s == 0.0
        assert row.binding_text() == f"L4x1 in {R2} (0 of 0); regions (1 of 2)"
        assert row.extra_text() == f"+1 L4x1 in {R2} (+3.00 USD/h)"


def test_a_met_demand_has_no_shortfalls() -> None:
    p = two_models(6)
    result = solved(p)
    assert result.status is SolveStatus.OPTIMAL
    assert explain_shortfalls(p, result, EXACT) == ()


@pytest.mark.parametrize("capacity", range(7))
def test_more_supply_never_lowers_the_share(capacity: int) -> None:
    assert solved(two_models(capacity + 1)).theta >= solved(two_models(capacity)).theta
