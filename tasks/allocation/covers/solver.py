"""The covers solver: the allocator for full-size problems, with the interface and the rules of the reference ILP.

Only the supply joins the models, so each model is an integer covering knapsack at node prices that include duals on the
supply. Column generation over covers gives the duals and a bound, an ILP over the covers a first plan, the bound drops
every template that no better plan can use, and the paper's ILP over the few that stay, strengthened by the models'
least costs as rows, closes the rest.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.fixing import surviving_columns
from tasks.allocation.covers.generation import Generated, dual_value, generate, joint_bound
from tasks.allocation.covers.master import Duals, no_plan_costs_more
from tasks.allocation.covers.pricing import (
    Cover,
    Grid,
    ModelBlocks,
    counts_of,
    dual_prices,
    model_blocks,
    workload_lower_bound,
)
from tasks.allocation.formulation import Formulation, Goal, Target, formulate
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.ilp import GoalOutcome, allocate, solve_goal
from tasks.allocation.outcome import objective_usd, relative_gap
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits

_MANY_REGIONS = 3  # up to so many, regions are joined exactly for the bound
_COARSE, _FINE, _CELLS = 4096, 65536, 512
_FIXING = 2048
_CUT_SLACK = 1e-9


def solve_covers(problem: AllocationProblem, limits: SolveLimits, *, allow_shortage: bool = True) -> AllocationResult:
    """Least-cost instances by covers; same rules, statuses and shortages as :func:`tasks.allocation.ilp.solve_ilp`."""
    return allocate(problem, limits, covers_goal, allow_shortage=allow_shortage)


def covers_goal(
    problem: AllocationProblem,
    columns: Columns,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None = None,
) -> GoalOutcome:
    """Minimise ``goal``: cost at a common share by covers, what else there is by the narrowed ILP."""
    if goal is not Goal.COST or target.shortage is not None or target.missing_regions > 0:
        return solve_goal(problem, columns, goal, target, limits, clock, start)
    models = model_blocks(problem, columns, target.share)
    if any(len(model.blocks) < model.wanted for model in models):
        return GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf, "a model fits into too few regions")
    found = generate(problem, columns, models, _grid(_COARSE, models), limits, clock)
    if found.bound > no_plan_costs_more(problem) * (1 + 1e-6):
        return GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf, "supply cannot cover the demand")
    fine, parts = joint_bound(problem, models, found.duals, _grid(_FINE, models))
    bound = max(fine, found.bound, 0.0)
    counts, upper = _best_of_pool(problem, columns, models, found, limits, clock)
    if start is not None and objective_usd(problem, columns, start) < upper:
        counts, upper = start, objective_usd(problem, columns, start)
    if counts is not None and relative_gap(upper, bound) <= limits.gap:
        return GoalOutcome(MipStatus.OPTIMAL, counts, upper, min(bound, upper))
    return _close(problem, columns, models, target, found.duals, parts, bound, counts, upper, limits, clock)


def _grid(size: int, models: list[ModelBlocks]) -> Grid:
    """``size`` steps; cells of several steps where regions are joined, fewer steps where many regions are."""
    most = max(len(model.blocks) for model in models)
    if most > _MANY_REGIONS:
        size = min(size, 8192)
    return Grid(size, max(1, size // (_CELLS if most <= _MANY_REGIONS else 1024)))


def _best_of_pool(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    found: Generated,
    limits: SolveLimits,
    clock: Clock,
) -> tuple[NDArray[np.int64] | None, float]:
    """The best plan that takes one generated cover per model, by an ILP; (None, inf) if the pool holds none."""
    master = found.master
    model = pulp.LpProblem("covers", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{j}", 0, 1, cat=pulp.LpInteger) for j in range(len(master.covers))]
    model.setObjective(pulp.LpAffineExpression(list(zip(x, master.costs, strict=True))))
    for m in range(len(models)):
        model += pulp.lpSum(v for v, (own, _) in zip(x, master.covers, strict=True) if own == m) == 1, f"model{m}"
    use = np.array(master.uses) if master.uses else np.zeros((0, *problem.capacity_nodes.shape), dtype=np.int64)
    for r, k in zip(*np.nonzero(use.sum(axis=0) > problem.capacity_nodes), strict=True):
        terms = [(x[j], int(use[j, r, k])) for j in np.flatnonzero(use[:, r, k])]
        model += pulp.LpAffineExpression(terms) <= int(problem.capacity_nodes[r, k]), f"capacity{r}_{k}"
    budget = problem.budget_usd_per_h
    if budget is not None:
        model += pulp.LpAffineExpression(list(zip(x, master.rents, strict=True))) <= budget, "budget"
    outcome = solve_mip(model, limits, time_s=min(2.0, clock.left() / 4))
    if outcome.values is None:
        return None, math.inf
    chosen: dict[str, Cover] = {
        models[m].demand.model: cover for j, (m, cover) in enumerate(master.covers) if outcome.values[f"x{j}"] > 0.5
    }
    counts = counts_of(chosen, len(columns))
    return counts, objective_usd(problem, columns, counts)


def _close(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    target: Target,
    duals: Duals,
    parts: list[float],
    bound: float,
    counts: NDArray[np.int64] | None,
    upper: float,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """The ILP over the columns that a better plan can use, with rows that carry the covers' bound into it."""
    rows = np.arange(len(columns))
    if counts is not None:
        prices = dual_prices(problem, duals.supply, duals.budget)
        value = dual_value(problem, duals)
        rows = surviving_columns(problem, columns, models, prices, value, upper, _FIXING)
        rows = np.union1d(rows, np.flatnonzero(counts))
    part = columns.select(rows)
    form = formulate(problem, part, Goal.COST, target)
    free = Duals(np.zeros_like(duals.supply), 0.0, duals.model)
    _, free_parts = joint_bound(problem, models, free, _grid(_FINE, models))
    for name, at, least in (("dual", duals, parts), ("free", free, free_parts)):
        _add_cover_rows(form, problem, part, models, at, least, name)
    begin = None if counts is None else {v.name: float(counts[i]) for v, i in zip(form.instances, rows, strict=True)}
    outcome = solve_mip(form.problem, limits, time_s=clock.left(), start=begin)
    if outcome.status is MipStatus.ERROR:
        return GoalOutcome(outcome.status, None, math.inf, bound, outcome.note)
    closed = min(outcome.bound, upper) if counts is not None else outcome.bound
    status = outcome.status
    if counts is not None and status is MipStatus.INFEASIBLE:
        status, closed = MipStatus.OPTIMAL, upper  # nothing better exists among what could be better
    bound = max(bound, closed)
    if outcome.values is None:
        return GoalOutcome(status, counts, upper, min(bound, upper), outcome.note)
    better = np.zeros(len(columns), dtype=np.int64)
    better[rows] = [int(outcome.values[v.name]) for v in form.instances]
    if counts is not None and upper <= objective_usd(problem, columns, better):
        better = counts
    value = objective_usd(problem, columns, better)
    return replace(GoalOutcome(status, better, value, min(bound, value)), note=outcome.note)


def _add_cover_rows(
    form: Formulation,
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    duals: Duals,
    least: list[float],
    name: str,
) -> None:
    """Rows "what a model takes costs at least its cheapest cover" at the prices of ``duals``, per model and per phase.

    They hold for every plan, and at the best duals they lift the ILP's relaxation to the covers' bound.
    """
    prices = dual_prices(problem, duals.supply, duals.budget)
    counts = columns.counts.astype(np.float64)
    new = (counts * prices.new[columns.region]).sum(axis=1)
    kept = (counts * prices.kept[columns.region]).sum(axis=1)
    ids = [c.workload_id for c in problem.candidates]
    for m, model in enumerate(models):
        phases = [ids.index(w) for w in model.demand.workload_ids]
        groups = [(phases, least[m])]
        if len(phases) > 1:
            grid = _grid(_FINE, models)
            groups += [([w], workload_lower_bound(model, p, prices, grid)) for p, w in enumerate(phases)]
        for g, (workloads, value) in enumerate(groups):
            terms: list[tuple[pulp.LpVariable, float]] = []
            for i in np.flatnonzero(np.isin(columns.workload, workloads)).tolist():
                charge = form.charges.get(i)
                terms.append((form.instances[i], float(new[i] if charge is None else kept[i])))
                if charge is not None:
                    terms.append((charge, 1.0))
            if math.isfinite(value) and value > 0 and terms:
                scaled = [(v, c / value) for v, c in terms]
                form.problem += pulp.LpAffineExpression(scaled) >= 1 - _CUT_SLACK, f"cover_{name}_{m}_{g}"
