"""Quotas over several configurations: kept by every solver, the greedy and the checker, and named where they bind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2, enumerate_plans, problem, random_problem, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.shortfalls import explain_shortfalls
from tasks.allocation.types import AllocationProblem, SharedQuota, SolveLimits, SolveStatus
from tasks.baselines.homo import homo_greedy

EXACT = SolveLimits(gap=0.0)


def with_quotas(seed: int) -> AllocationProblem:
    """A random small problem with one or two quotas that often bind."""
    base, rng = random_problem(seed), np.random.default_rng(seed + 10_000)
    quotas = tuple(
        SharedQuota(f"q{q}", str(rng.choice(base.regions)), units, int(rng.integers(0, 12)))
        for q in range(rng.integers(1, 3))
        for units in ({c: int(rng.integers(0, 4)) for c in base.node_configs},)
    )
    return replace(base, quotas=quotas)


@pytest.mark.parametrize("solve", [solve_ilp, solve_covers])
@pytest.mark.parametrize("seed", range(60))
def test_equals_the_best_of_all_plans_within_the_quotas(solve, seed: int) -> None:
    p = with_quotas(seed)
    truth = enumerate_plans(p, limit=400_000)
    if truth is None:
        pytest.skip("too many plans to enumerate")
    result = solve(p, EXACT)
    assert check_result(p, result) == []
    assert result.objective_usd == pytest.approx(truth.objective, abs=1e-6)
    assert result.lower_bound_usd <= truth.objective + 1e-6
    assert (result.status is SolveStatus.SHORTFALL) == (not truth.feasible)


def test_the_quotas_of_the_random_problems_matter() -> None:
    changed = 0
    for seed in range(60):
        p = with_quotas(seed)
        free, bound = enumerate_plans(replace(p, quotas=())), enumerate_plans(p)
        changed += free is not None and bound is not None and free != bound
    assert changed >= 10


def case(limit: int) -> AllocationProblem:
    """10 req/s; L4 gives 1 req/s at 1 USD and 4 vCPU, A10G 2 req/s at 3 USD and 4 vCPU: L4 alone takes 40 vCPU."""
    templates = {"l4": ({"L4x1": 1}, 1.0), "a10g": ({"A10Gx1": 1}, 2.0)}
    quota = SharedQuota("G vcpu in " + R1, R1, {"L4x1": 4, "A10Gx1": 4}, limit)
    base = problem(
        [workload("m", Phase.AGGREGATED, templates, ("L4x1", "A10Gx1"))],
        {"m": 10.0},
        {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 3.0},
        {(R1, "L4x1"): 20, (R1, "A10Gx1"): 20},
    )
    return replace(base, quotas=(quota,))


@pytest.mark.parametrize(
    ("limit", "cost"),
    [
        (40, 10.0),  # ten L4
        (36, 8 * 1.0 + 3.0),  # nine machines: eight L4 and one A10G serve 10 req/s
        (20, 5 * 3.0),  # five machines: five A10G
    ],
)
def test_a_tight_quota_buys_dearer_machines(limit: int, cost: float) -> None:
    result = solve_covers(case(limit), EXACT)
    assert result.cost_usd_per_h == pytest.approx(cost)
    assert result.status is SolveStatus.OPTIMAL


def test_a_quota_too_small_is_a_shortfall_that_names_it() -> None:
    p = case(18)  # four machines: four A10G serve 8 of 10 req/s
    result = solve_covers(p, EXACT)
    assert result.status is SolveStatus.SHORTFALL
    assert result.theta == pytest.approx(0.8)
    (row,) = explain_shortfalls(p, result, EXACT)
    assert row.binding_text() == f"quota G vcpu in {R1} (16 of 18)"
    # Idle machines would do: the cheapest are ten L4, 40 vCPU.
    assert row.extra_text() == f"quota G vcpu in {R1} +22"


def test_machines_beyond_what_is_sold_and_their_quota_are_named_together() -> None:
    p = replace(case(18), capacity_nodes=np.array([[8, 0]]))
    result = solve_covers(p, EXACT)
    assert result.theta == pytest.approx(0.4)  # four L4
    (row,) = explain_shortfalls(p, result, EXACT)
    # Two L4 more (2 USD/h) are cheaper than one A10G more (3 USD/h); ten take 40 vCPU. Four run at 1 USD/h now.
    assert row.extra_text() == f"+2 L4x1 in {R1} (+2.00 USD/h); quota G vcpu in {R1} +22"
    assert row.extra_rent_usd_per_h == pytest.approx(6.0)


def test_a_model_that_a_quota_keeps_short_holds_the_others_down() -> None:
    templates = {"t": ({"L4x1": 1}, 10.0)}, {"t2": ({"A10Gx1": 1}, 10.0)}
    a, b = (
        workload(name, Phase.AGGREGATED, found, ("L4x1", "A10Gx1")) for name, found in zip("ab", templates, strict=True)
    )
    base = problem(
        [a, b],
        {"a": 20.0, "b": 20.0},
        {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.0},
        {(R1, "L4x1"): 9, (R1, "A10Gx1"): 9},
    )
    p = replace(base, quotas=(SharedQuota("L", R1, {"L4x1": 4}, 4),))
    rows = {row.workload_id: row.extra_text() for row in explain_shortfalls(p, solve_covers(p, EXACT), EXACT)}
    assert rows == {
        "a-aggregated": "quota L +4",
        "b-aggregated": "none for this model alone, what is idle would serve it: the common share is held down by a",
    }


def test_a_quota_of_another_region_does_not_bind() -> None:
    p = replace(case(40), regions=(R1, R2), pools=())
    p = replace(
        p,
        price_usd_per_h=np.array([[1.0, 3.0], [np.nan, np.nan]]),
        capacity_nodes=np.array([[20, 20], [0, 0]]),
        quotas=(SharedQuota("G", R2, {"L4x1": 4, "A10Gx1": 4}, 0),),
    )
    assert solve_covers(p, EXACT).cost_usd_per_h == pytest.approx(10.0)


def test_the_greedy_keeps_the_quota() -> None:
    # Cheapest first: nine L4 spend all 36 vCPU and serve 9 of 10 req/s; the greedy does not look back.
    greedy = homo_greedy(case(36))
    assert greedy.cost_usd_per_h is None
    assert "1 of 10 req/s" in greedy.missing
    assert homo_greedy(case(40)).cost_usd_per_h == pytest.approx(10.0)


def test_the_checker_refuses_an_answer_beyond_a_quota() -> None:
    p = case(36)
    beyond = solve_covers(replace(p, quotas=()), EXACT)
    assert any("quota G vcpu" in fault for fault in check_result(p, beyond))
