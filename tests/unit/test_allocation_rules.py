"""Spot, owned nodes, quotas, least replicas, N+1, spot caps and pinned configurations: by hand and against every plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2, enumerate_plans, problem, ruled_problem, workload

from catalogs.types import Basis, Market, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, AllocationResult, Pool, SolveLimits, SolveStatus
from tasks.allocation.why import explain

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "A10Gx1")


def solved(p: AllocationProblem) -> AllocationResult:
    """The covers solver's answer, checked, with the reference's cost."""
    result = solve_covers(p, EXACT)
    assert check_result(p, result) == []
    assert result.objective_usd == pytest.approx(solve_ilp(p, EXACT).objective_usd)
    return result


def counts(result: AllocationResult) -> dict[tuple[str, str], int]:
    return {(row.pool, row.template_id): row.instances for row in result.instances}


def one_model(rates: dict[str, tuple[dict[str, int], float]], demand: float, **rules: object) -> AllocationProblem:
    """An aggregated model in R1: L4 at 1 USD/h, A10G at 3 USD/h, 20 nodes of each."""
    a = workload("a", Phase.AGGREGATED, rates, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 3.0}
    p = problem([a], {"a": demand}, price, dict.fromkeys(price, 20))
    return replace(p, demands=(replace(p.demands[0], **rules),))


def with_market(p: AllocationProblem, market: Market, price: list[float], nodes: list[int], outage: float = 0.0):
    """``p`` with a second market in R1."""
    pools = (*p.pools, Pool(R1, market))
    return replace(
        p,
        pools=pools,
        price_usd_per_h=np.vstack([p.price_usd_per_h, price]),
        capacity_nodes=np.vstack([p.capacity_nodes, nodes]),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in p.node_configs},
        outage=np.vstack([np.zeros(p.price_usd_per_h.shape), np.full(len(CONFIGS), outage)]),
    )


SMALL = {"l4": ({"L4x1": 1}, 10.0)}
BOTH = {"l4": ({"L4x1": 1}, 10.0), "a10g": ({"A10Gx1": 1}, 40.0)}


@pytest.mark.parametrize("solve", [solve_ilp, solve_covers])
@pytest.mark.parametrize("seed", range(60))
def test_equals_the_best_of_all_plans(solve, seed: int) -> None:
    p = ruled_problem(seed)
    truth = enumerate_plans(p, limit=300_000)
    if truth is None:
        pytest.skip("too many plans to enumerate")
    result = solve(p, EXACT)
    assert check_result(p, result) == []
    assert result.lower_bound_usd <= truth.objective + 1e-6
    assert result.objective_usd == pytest.approx(truth.objective, abs=1e-6)
    assert (result.status is SolveStatus.SHORTFALL) == (not truth.feasible)


def test_owned_nodes_come_first_and_are_as_many_as_there_are() -> None:
    p = with_market(one_model(SMALL, 50.0), Market.OWNED, [0.0, 0.0], [3, 0])
    result = solved(p)
    assert counts(result) == {(R1, "l4"): 2, (f"{R1} owned", "l4"): 3}
    assert result.cost_usd_per_h == 2.0


def test_owned_nodes_at_their_own_price_compete() -> None:
    p = with_market(one_model(SMALL, 50.0), Market.OWNED, [1.5, 1.5], [3, 0])
    assert counts(solved(p)) == {(R1, "l4"): 5}


def test_interruptions_lower_what_spot_delivers() -> None:
    # Down for 0.25 h per hour of service: 1 / 1.25 = 80 % of 10 req/s, so 50 req/s take seven instead of five.
    p = with_market(one_model(SMALL, 50.0), Market.SPOT, [0.5, 0.5], [20, 20], outage=0.25)
    result = solved(p)
    assert counts(result) == {(f"{R1} spot", "l4"): 7}
    # 56 of 50 req/s: a plan that needs 55 keeps seven, one that needs 57 does not.
    assert counts(solved(replace(p, demands=(replace(p.demands[0], planned_req_per_s=57.0),)))) == {
        (f"{R1} spot", "l4"): 8
    }


def test_any_node_of_an_instance_stops_it() -> None:
    # Two nodes: 1 / (1 + 2 x 0.25) = 2/3 of 30 req/s.
    p = one_model({"pair": ({"L4x1": 2}, 30.0)}, 20.0)
    spot = with_market(p, Market.SPOT, [0.1, 0.1], [20, 20], outage=0.25)
    assert counts(solved(spot)) == {(f"{R1} spot", "pair"): 1}
    more = replace(spot, demands=(replace(spot.demands[0], planned_req_per_s=20.1),))
    assert counts(solved(more)) == {(f"{R1} spot", "pair"): 2}


@pytest.mark.parametrize(
    ("share", "firm", "spot"), [(0.0, 5, 0), (0.2, 4, 1), (0.5, 3, 2), (0.59, 3, 2), (0.6, 2, 3), (1.0, 0, 5)]
)
def test_so_much_of_the_demand_rests_on_spot(share: float, firm: int, spot: int) -> None:
    p = with_market(one_model(SMALL, 50.0, max_spot_share=share), Market.SPOT, [0.5, 0.5], [20, 20])
    wanted = {(R1, "l4"): firm, (f"{R1} spot", "l4"): spot}
    assert counts(solved(p)) == {key: n for key, n in wanted.items() if n}


def test_the_spot_share_is_of_each_region() -> None:
    # R2 has spot alone: it may serve nothing unless everything may rest on spot.
    a = workload("a", Phase.AGGREGATED, SMALL, CONFIGS)
    p = problem([a], {"a": 50.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9}, regions=(R1, R2))
    pools = (Pool(R1), Pool(R2, Market.SPOT))
    p = replace(
        p,
        pools=pools,
        price_usd_per_h=np.array([[1.0, np.nan], [0.1, np.nan]]),
        capacity_nodes=np.array([[9, 0], [9, 0]]),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in CONFIGS},
    )
    half = replace(p, demands=(replace(p.demands[0], max_spot_share=0.5),))
    assert counts(solved(half)) == {(R1, "l4"): 5}
    assert counts(solved(p)) == {(f"{R2} spot", "l4"): 5}


def test_least_replicas_of_each_phase() -> None:
    # One A10G (3 USD) would serve 40 req/s; three are asked for: three L4 and one A10G less than three A10G.
    assert counts(solved(one_model(BOTH, 35.0))) == {(R1, "a10g"): 1}
    three = solved(one_model(BOTH, 35.0, min_replicas=3))
    assert counts(three) == {(R1, "l4"): 4}
    assert counts(solved(one_model(BOTH, 5.0, min_replicas=3))) == {(R1, "l4"): 3}


def test_the_demand_is_met_without_the_largest_instance() -> None:
    # 35 req/s: without its largest instance. Two A10G (6 USD) or five L4 (5 USD).
    assert counts(solved(one_model(BOTH, 35.0, survives_loss=True))) == {(R1, "l4"): 5}
    # Where L4 are few: two A10G, or one with four L4 (the A10G lost: 40).
    few = one_model(BOTH, 35.0, survives_loss=True)
    few = replace(few, capacity_nodes=np.array([[4, 20]]))
    assert counts(solved(few)) == {(R1, "a10g"): 2}
    assert solved(few).cost_usd_per_h == 6.0


def test_a_kept_instance_is_cheaper_under_n_plus_one_too() -> None:
    p = one_model(BOTH, 35.0, survives_loss=True)
    p = replace(p, init_share=0.5, running={(R1, "a10g"): 2})
    # Kept: 6 USD and no start; five new L4: 5 x 1.5 = 7.5.
    assert counts(solved(p)) == {(R1, "a10g"): 2}
    assert solved(p).init_usd == 0.0


def test_pinned_and_excluded_configurations() -> None:
    assert counts(solved(one_model(BOTH, 30.0, node_configs=("A10Gx1",)))) == {(R1, "a10g"): 1}
    assert counts(solved(one_model(BOTH, 30.0, excluded=("A10Gx1",)))) == {(R1, "l4"): 3}


def test_most_goodput_for_a_budget() -> None:
    # 3 USD/h buy three L4 or one A10G: 40 req/s of 100; the bound on the share is 40 % too.
    p = replace(one_model(BOTH, 100.0), budget_usd_per_h=3.0)
    result = solved(p)
    assert (result.status, result.theta) == (SolveStatus.SHORTFALL, pytest.approx(0.4))
    assert 0.4 <= result.theta_upper <= 0.4 + 1e-6
    assert result.cost_usd_per_h == 3.0


def test_what_the_rules_cost_is_explained() -> None:
    p = one_model(BOTH, 35.0, survives_loss=True, min_replicas=2)
    why = explain(p, solved(p), time_s=5.0)
    # Five L4 (5 USD); one A10G (3 USD) without N+1 and replicas. Replicas alone: A10G and L4, or four L4: 4 USD.
    found = {row.rule: (row.cost.low, row.cost.high) for row in why.rules}
    assert found == {"n_plus_one": pytest.approx((4.0, 4.0)), "min_replicas": pytest.approx((5.0, 5.0))}
