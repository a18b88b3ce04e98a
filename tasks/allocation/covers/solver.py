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
from numpy.typing import NDArray

from catalogs.types import Market
from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.closing import close
from tasks.allocation.covers.cross_region import Effort, cross_region_goal
from tasks.allocation.covers.diving import dive
from tasks.allocation.covers.generation import Generated, generate, joint_bound, sharpen
from tasks.allocation.covers.largest_share import is_ruled_out, largest_share
from tasks.allocation.covers.least_shortage import cheapest_at_shortage, least_shortage
from tasks.allocation.covers.levels import solve_levels
from tasks.allocation.covers.listing import choose_listed
from tasks.allocation.covers.many import is_beyond_closing, plan_of_many, planned_by_parts, searched
from tasks.allocation.covers.master import no_plan_costs_more
from tasks.allocation.covers.pool import best_of_pool
from tasks.allocation.covers.pricing import Grid, ModelBlocks, model_blocks
from tasks.allocation.covers.recreate import can_recreate, has_counts, has_rules, is_capped
from tasks.allocation.covers.rounding import round_mix
from tasks.allocation.covers.task import Task
from tasks.allocation.formulation import Goal, Target
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome, allocate, solve_goal
from tasks.allocation.outcome import objective_usd, relative_gap
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits

_MANY_REGIONS = 3  # up to so many, regions are joined exactly for the bound
_COARSE, _FINE, _CELLS = 4096, 65536, 512
_SPLIT = 16384
_FINEST_OF_MANY = 4  # times finer is the grid of their bound: each model's rounding adds up
_FIXING, _FIXING_MANY = 2048, 1024
_DIVING = 2048
_ROUGH = 0.05  # gap of a plan to begin with
_SEARCH_ABOVE = 1e-3  # gap of a plan that is searched, where models are few: lists or an ILP close less
_DIVES, _DIVE_ABOVE, _DIVE_UNTIL = 6, 5e-3, 0.5
_DIVE_MODELS = 16  # of more, a dive does not come far in its rounds
_DIVE_ROUNDS = 1500  # pricings of one model over all dives
# Shortages of so few models, by common share and by weight, go by covers at levels too, which take longer than the search, and
# find more only where an ILP gets through all covers generated.
_LEVEL_MODELS, _LEVEL_MODELS_BY_WEIGHT = 8, 3
_NOTHING = 1e-9  # USD/h
_ILP_COLUMNS = 3000  # shortages of at most so many columns go to the narrowed ILP,
_ILP_WORK = 400  # each of its ILPs with so many looks at 800 columns


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
    """Minimise ``goal``: cost at a common share by covers; a shortage by covers at levels where it is too large for the
    narrowed ILP; with links for KV see :mod:`tasks.allocation.covers.cross_region`."""
    if problem.links:
        models = model_blocks(problem, columns, 1.0)
        effort = Effort(_grid(_COARSE, models), _grid(_FINE, models), _fixing(models), _ILP_COLUMNS, _ILP_WORK)
        found = cross_region_goal(problem, columns, goal, target, limits, clock, start, covers_goal, effort)
        return replace(found, nearest=None)  # it may serve by links
    if goal is not Goal.COST or target.shortage is not None or target.missing_regions > 0:
        return _shortage_goal(problem, columns, goal, target, limits, clock, start)
    return _cost_goal(problem, columns, target, limits, clock, start)


def _shortage_goal(
    problem: AllocationProblem,
    columns: Columns,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None,
) -> GoalOutcome:
    """By the narrowed ILP where that is small enough, else by a search, of few models by covers at levels as well."""
    models = model_blocks(problem, columns, 1.0)
    is_known = can_recreate([model for model in models if model.blocks])
    if len(columns) <= _ILP_COLUMNS or target.missing_regions > 0 or not is_known:
        return solve_goal(problem, columns, goal, target, limits, clock, start, work=_ILP_WORK)
    task, found = Task(problem, columns, models, limits, clock), None
    if goal is Goal.THETA:
        found = largest_share(problem, columns, models, limits, clock, start)
    elif goal is Goal.SHORTAGE:
        found = least_shortage(task, start)
    elif target.shortage is not None and start is not None:
        found = cheapest_at_shortage(task, target.shortage, start)
    if found is None:
        return solve_levels(problem, columns, models, goal, target, limits, clock, start)
    most = _LEVEL_MODELS if goal is Goal.THETA else _LEVEL_MODELS_BY_WEIGHT
    if len(models) > most or found.objective - found.bound <= limits.gap * abs(found.objective):
        return found
    best = solve_levels(problem, columns, models, goal, target, limits, clock, found.counts)
    best = best.or_better(found.counts, found.objective)
    return replace(best, bound=min(max(best.bound, found.bound), best.objective))


def _cost_goal(
    problem: AllocationProblem,
    columns: Columns,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None,
) -> GoalOutcome:
    """The least cost of a common share."""
    models = model_blocks(problem, columns, target.share)
    why_not = _why_not(problem, columns, models, target, limits, start)
    if why_not:
        return GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf, why_not)
    takes_longest = is_capped(models) and has_counts(models)  # tables of both rules at once
    if len(models) > _DIVE_MODELS and takes_longest and can_recreate(models):
        return planned_by_parts(Task(problem, columns, models, limits, clock, target.share), start)
    return _by_covers(problem, columns, models, target, limits, clock, start)


def _by_covers(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None,
) -> GoalOutcome:
    """The least cost of a common share, by covers."""
    is_many, is_ruled = len(models) > _DIVE_MODELS, has_rules(models)
    rough = found = generate(problem, columns, models, _grid(_COARSE, models), limits, clock)
    fine = _grid(_FINE, models)
    if is_many and not found.unserved and not is_ruled:
        found = sharpen(problem, columns, models, found, fine, limits, clock)
    finest = (
        Grid(fine.size * _FINEST_OF_MANY, fine.unit * _FINEST_OF_MANY)
        if is_many and not found.unserved and not is_ruled
        else fine
    )
    least, parts = joint_bound(problem, models, found.duals, finest, limits.threads)
    bound = max(least, found.bound, 0.0)
    if bound > no_plan_costs_more(problem) * (1 + 1e-6):
        return GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf, "supply cannot cover the demand")
    best = GoalOutcome(MipStatus.LIMIT, None, math.inf, bound)
    if start is not None:
        best = best.or_better(start, objective_usd(problem, columns, start))
    free = _for_nothing(problem, columns, found, best, target, limits, clock)
    if free is not None:
        return GoalOutcome(MipStatus.OPTIMAL, free, 0.0, 0.0)
    if is_many:
        grid = _grid(_DIVING, models)
        best, is_done = plan_of_many(
            problem, columns, models, target.share, rough, found, parts, grid, _fixing(models), best, limits, clock
        )
        if is_done:
            return best
    best = best.or_better(*best_of_pool(problem, columns, len(models), found.master, limits, clock))
    best = choose_listed(problem, columns, models, found.duals, least, parts, best, limits, clock)
    if best.counts is not None and relative_gap(best.objective, best.bound) <= limits.gap:
        return replace(best, status=MipStatus.OPTIMAL)
    best = _by_searching(problem, columns, models, target.share, found, least, parts, best, limits, clock)
    best = _by_diving(problem, columns, models, found, best, limits, clock)
    if best.counts is None:
        start = _on_demand_alone(problem, columns, models, target, limits, clock)
        if start is not None:
            best = best.or_better(start, objective_usd(problem, columns, start))
    if best.counts is not None and relative_gap(best.objective, best.bound) <= limits.gap:
        return replace(best, status=MipStatus.OPTIMAL)
    return _closed(problem, columns, models, target, found, fine, best, limits, clock)


def _why_not(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    target: Target,
    limits: SolveLimits,
    start: NDArray[np.int64] | None,
) -> str:
    """Why no plan serves the share, where that is known without covers: empty where it is not."""
    if any(len(model.blocks) < model.wanted for model in models):
        return "a model fits into too few regions"
    takes_long = len(models) > _DIVE_MODELS and is_capped(models)  # to find out by covers
    if takes_long and start is None and target.share >= 1 and is_ruled_out(problem, columns, models, limits):
        return "supply cannot cover the demand"
    return ""


def _by_searching(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    share: float,
    found: Generated,
    least: float,
    parts: list[float],
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """``best``, where that is no plan the mix rounded; or what a search makes of it, after which fewer covers may be better and
    are listed. Searched are few models (many have been before) that it knows the rules of."""
    grid = _grid(_DIVING, models)
    if best.counts is None and not found.unserved:
        best = best.or_better(*round_mix(problem, columns, models, found, grid, limits.threads))
    if len(models) > _DIVE_MODELS or found.unserved or not can_recreate(models) or clock.is_past(_DIVE_UNTIL):
        return best
    before = best.objective
    if relative_gap(before, best.bound) <= max(limits.gap, _SEARCH_ABOVE):
        return best
    best = searched(problem, columns, models, share, found, found, parts, grid, best, limits, clock)
    if best.objective < before and relative_gap(best.objective, best.bound) > limits.gap:
        best = choose_listed(problem, columns, models, found.duals, least, parts, best, limits, clock)
    return best


def _closed(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    target: Target,
    found: Generated,
    fine: Grid,
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """``best`` or what an ILP makes of it and its bound; as it is where it was searched and more columns may be in a better plan
    than an ILP gets through."""
    if can_recreate(models) and is_beyond_closing(problem, models, found, best):
        return best
    return close(problem, columns, models, target, found.duals, fine, _fixing(models), best, limits, clock)


def _for_nothing(
    problem: AllocationProblem,
    columns: Columns,
    found: Generated,
    best: GoalOutcome,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
) -> NDArray[np.int64] | None:
    """A plan on nodes that cost nothing, where the relaxation ``found`` has one and ``best`` is none: without prices it does
    not tell nodes apart, so a plan is sought that uses small parts of what there is of each kind. None if none is found."""
    rows = np.flatnonzero(columns.price_usd_per_h == 0)
    if not len(rows) or found.unserved or found.value > _NOTHING or best.objective <= _NOTHING:
        return None
    part = 1.0 / np.maximum(problem.capacity_nodes, 1)
    few = columns.select(rows)
    price = (few.counts * part[few.pool]).sum(axis=1)
    valued = replace(
        problem, price_usd_per_h=np.where(np.isnan(problem.price_usd_per_h), np.nan, part), budget_usd_per_h=None
    )
    rough = replace(limits, gap=1.0)  # any plan will do
    answer = covers_goal(valued, replace(few, price_usd_per_h=price), Goal.COST, target, rough, clock)
    return None if answer.counts is None else columns.spread(rows, answer.counts)


def _on_demand_alone(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    target: Target,
    limits: SolveLimits,
    clock: Clock,
) -> NDArray[np.int64] | None:
    """A plan on demand alone, where other markets and N+1 act together: covers that compete for a few owned nodes, or leave
    spot idle, may not fit together at all. None where there is no such plan, or it is not wanted."""
    bought = np.array([pool.market is Market.ON_DEMAND for pool in problem.pools], dtype=np.bool_)[columns.pool]
    if bought.all() or not any(model.demand.survives_loss for model in models):
        return None
    rows = np.flatnonzero(bought)
    rough = replace(limits, gap=max(limits.gap, _ROUGH))  # a start
    found = covers_goal(problem, columns.select(rows), Goal.COST, target, rough, clock)
    return None if found.counts is None else columns.spread(rows, found.counts)


def _by_diving(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    found: Generated,
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """``best``; where that is no plan, or of models under rules that a search does not know, and far from its bound: or better,
    of the covers that dives add."""
    if best.counts is not None and can_recreate(models):
        return best
    first: list[int] = []
    rounds = _DIVE_ROUNDS
    for _ in range(0 if found.unserved or (best.counts is not None and len(models) > _DIVE_MODELS) else _DIVES):
        if best.counts is not None and relative_gap(best.objective, best.bound) <= max(limits.gap, _DIVE_ABOVE):
            break
        if rounds <= 0 or clock.is_past(_DIVE_UNTIL):
            break
        covers, failed, taken = dive(
            problem,
            columns,
            models,
            _grid(_DIVING, models),
            limits,
            clock,
            first=first,
            rounds=rounds,
        )
        rounds -= taken
        for m, cover in covers:
            found.master.add(m, cover)
        before = best.objective
        best = best.or_better(*best_of_pool(problem, columns, len(models), found.master, limits, clock))
        if best.objective >= before and not failed:
            break  # it came to the end and found nothing better
        # What it failed on goes first the next time; what it went through well gives way.
        first = [*failed, *(m for m in first if m not in failed)]
    return best


def _most_regions(models: list[ModelBlocks]) -> int:
    return max((len(model.blocks) for model in models), default=1)


def _fixing(models: list[ModelBlocks]) -> int:
    return _FIXING if _most_regions(models) <= _MANY_REGIONS else _FIXING_MANY


def _grid(size: int, models: list[ModelBlocks]) -> Grid:
    """``size`` steps in cells of several where regions are joined; half and at most a quarter of the finest where regions are
    many, fewer where firm and spot are joined."""
    if is_capped(models):
        size = min(size, _SPLIT)
    if _most_regions(models) > _MANY_REGIONS:
        size = min(size // 2, _FINE // 4)
        is_spread = any(model.wanted > 1 for model in models)
        return Grid(size, max(1, size // (2 * _CELLS if is_spread else _CELLS)))
    return Grid(size, max(1, size // _CELLS))
