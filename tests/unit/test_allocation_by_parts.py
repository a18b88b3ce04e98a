"""Plans of many models from a mix of parts of instances, against the ILP on small problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocation_cases import ruled_problem

from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers import solver
from tasks.allocation.covers.many import planned_by_parts
from tasks.allocation.covers.pricing import model_blocks
from tasks.allocation.covers.recreate import can_recreate, has_counts, is_capped
from tasks.allocation.covers.task import Task
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.outcome import objective_usd, served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=0.0)


def capped(seed: int) -> AllocationProblem:
    """A problem with further rules, spot capped; the same rules in every region."""
    base = ruled_problem(seed)
    demands = tuple(replace(d, min_regions=1, max_spot_share=min(d.max_spot_share, 0.5)) for d in base.demands)
    return replace(base, demands=demands, links=())


def test_no_plan_costs_less_than_the_bound_and_the_plan_serves_all() -> None:
    best = checked = 0
    for seed in range(200):
        p = capped(seed)
        truth, columns = solve_ilp(p, EXACT), make_columns(p)
        models = model_blocks(p, columns, 1.0)
        if truth.status is not SolveStatus.OPTIMAL or not truth.instances or not can_recreate(models):
            continue
        if not is_capped(models):
            continue
        found = planned_by_parts(Task(p, columns, models, EXACT, Clock(EXACT)), None)
        assert found.status is not MipStatus.INFEASIBLE, seed
        assert found.bound <= truth.objective_usd + 1e-6, seed
        checked += 1
        if found.counts is not None:
            cost = objective_usd(p, columns, found.counts)
            assert found.objective == pytest.approx(cost), seed
            assert cost >= truth.objective_usd - 1e-6, seed
            assert min(served_shares(p, columns, found.counts).values()) >= 1 - 1e-9, seed
            best += cost <= truth.objective_usd + 1e-6
    assert checked > 10
    assert best >= 0.8 * checked


def test_many_models_under_both_rules_are_planned_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_DIVE_MODELS", 0)
    monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    both = 0
    for seed in range(200):
        p = capped(seed)
        columns = make_columns(p)
        models = model_blocks(p, columns, 1.0) if len(columns) else []
        if not (can_recreate(models) and is_capped(models) and has_counts(models)):
            continue
        truth, answer = solve_ilp(p, EXACT), solver.solve_covers(p, EXACT)
        assert check_result(p, answer) == [], seed
        assert answer.theta_upper >= truth.theta - 1e-6, seed
        if answer.status is not SolveStatus.SHORTFALL:
            assert answer.lower_bound_usd <= truth.objective_usd + 1e-6 <= answer.objective_usd + 2e-6, seed
        both += 1
    assert both > 5
