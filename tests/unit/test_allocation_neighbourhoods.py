"""The search for better plans of many models: what it makes of bad plans, and what it may not lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, problem, random_problem, ruled_problem, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns, make_columns
from tasks.allocation.covers import solver
from tasks.allocation.covers.fixing import bounds_if_used
from tasks.allocation.covers.generation import dual_value, generate, joint_bound
from tasks.allocation.covers.neighbourhoods import search_neighbourhoods
from tasks.allocation.covers.pricing import Grid, dual_prices, model_blocks
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome, solve_ilp
from tasks.allocation.outcome import objective_usd, served_shares
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus

EXACT, GRID = SolveLimits(gap=0.0), Grid(512, 1)


def counts_of(p: AllocationProblem, columns: Columns, result: AllocationResult) -> np.ndarray:
    rows = {(r.pool, r.template_id): r.instances for r in result.instances}
    names = [p.candidates[w].template_ids[t] for w, t in zip(columns.workload, columns.template, strict=True)]
    return np.array(
        [rows.get((p.pools[k].name, n), 0) for k, n in zip(columns.pool, names, strict=True)], dtype=np.int64
    )


def searched(p: AllocationProblem, columns: Columns, start: np.ndarray, limits: SolveLimits = EXACT) -> GoalOutcome:
    models = model_blocks(p, columns, 1.0)
    found = generate(p, columns, models, GRID, EXACT, Clock(EXACT))
    bound, parts = joint_bound(p, models, found.duals, GRID)
    prices = dual_prices(p, found.duals.supply, found.duals.budget, found.duals.quota)
    if_used = bounds_if_used(columns, models, prices, dual_value(p, found.duals), GRID.size)
    best = GoalOutcome(MipStatus.LIMIT, start, objective_usd(p, columns, start), bound)
    return search_neighbourhoods(p, columns, models, 1.0, prices, parts, if_used, GRID, best, limits, Clock(EXACT))


def test_a_dear_plan_becomes_a_cheap_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.allocation.covers import neighbourhoods

    monkeypatch.setattr(neighbourhoods, "_WORK", 40)
    worse = better = optimal = 0
    for seed in range(200):
        p = random_problem(seed)
        p = replace(p, demands=tuple(replace(d, min_regions=1) for d in p.demands))
        columns = make_columns(p)
        truth = solve_ilp(p, EXACT)
        # The plan that is best where dear nodes are cheap and nothing runs.
        dear = solve_ilp(replace(p, price_usd_per_h=1 / p.price_usd_per_h, running={}, budget_usd_per_h=None), EXACT)
        if truth.status is not SolveStatus.OPTIMAL or not truth.instances or dear.status is not SolveStatus.OPTIMAL:
            continue
        start = counts_of(p, columns, dear)
        if p.budget_usd_per_h is not None or start.sum() != sum(r.instances for r in dear.instances):
            continue
        found = searched(p, columns, start)
        assert found.counts is not None
        assert min(served_shares(p, columns, found.counts).values()) >= 1 - 1e-9, seed
        use = np.zeros(p.capacity_nodes.shape, dtype=np.int64)
        np.add.at(use, columns.pool, columns.counts * found.counts[:, None])
        assert (use <= p.capacity_nodes).all(), seed
        assert found.objective == pytest.approx(objective_usd(p, columns, found.counts)), seed
        before = objective_usd(p, columns, start)
        assert truth.objective_usd - 1e-6 <= found.objective <= before + 1e-9, seed
        again = searched(p, columns, start)
        assert again.objective == found.objective, seed
        worse += before > truth.objective_usd + 1e-6
        better += found.objective < before - 1e-6
        optimal += found.objective <= truth.objective_usd + 1e-6
    assert worse > 5
    assert better > worse // 2
    assert optimal > worse


def test_where_the_bound_is_nothing_models_are_drawn_all_the_same() -> None:
    """Three models of one node each on machines that cost nothing; one of them is on a rented machine so far."""
    configs, price = ("L4x1", "A10Gx1"), {(R1, "L4x1"): 0.0, (R1, "A10Gx1"): 1.0}
    models = [
        workload(m, Phase.AGGREGATED, {f"{m}-own": ({"L4x1": 1}, 10), f"{m}-rented": ({"A10Gx1": 1}, 10)}, configs)
        for m in "abc"
    ]
    p = problem(models, dict.fromkeys("abc", 10.0), price, dict.fromkeys(price, 5), configs=configs)
    columns = make_columns(p)
    names = [p.candidates[w].template_ids[t] for w, t in zip(columns.workload, columns.template, strict=True)]
    start = np.array([name in ("a-rented", "b-own", "c-own") for name in names], dtype=np.int64)
    for seed in range(6):
        found = searched(p, columns, start, replace(EXACT, seed=seed))
        assert (found.objective, found.bound) == (0.0, 0.0)


def test_many_models_get_plans_that_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.allocation.covers import neighbourhoods

    monkeypatch.setattr(neighbourhoods, "_WORK", 20)
    monkeypatch.setattr(solver, "_DIVE_MODELS", 0)
    served = 0
    for seed in range(60):
        p = (ruled_problem if seed % 2 else random_problem)(seed)
        truth, result = solve_ilp(p, EXACT), solver.solve_covers(p, EXACT)
        assert check_result(p, result) == [], seed
        if truth.status is SolveStatus.OPTIMAL:
            served += 1
            assert result.theta == 1.0, seed
            assert result.lower_bound_usd <= truth.objective_usd + 1e-6, seed
            assert result.objective_usd >= truth.objective_usd - 1e-6, seed
    assert served > 10
