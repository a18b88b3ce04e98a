"""Plans for models too many to list their covers: the LP's mix rounded, or a plan in stages, searched by ruin and recreate; where
a model wants several regions, which that does not know, a few models' covers at a time are sought anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.fixing import bounds_if_used
from tasks.allocation.covers.generation import Generated, dual_value
from tasks.allocation.covers.master import no_plan_costs_more
from tasks.allocation.covers.neighbourhoods import search_neighbourhoods
from tasks.allocation.covers.packing import Packing, lack_weights, packing
from tasks.allocation.covers.parts import mixed_parts
from tasks.allocation.covers.pricing import Grid, ModelBlocks, dual_prices, excess_costs, own_prices
from tasks.allocation.covers.recreate import Found, can_recreate, has_counts, recreate
from tasks.allocation.covers.recreate_types import State
from tasks.allocation.covers.relaxation import least_costs
from tasks.allocation.covers.rounding import is_within, round_mix, whole
from tasks.allocation.covers.staged import is_lumpy, plan_in_stages
from tasks.allocation.covers.task import Task
from tasks.allocation.formulation import Goal
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import objective_usd, relative_gap, served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits

_CLOSABLE = (
    60_000  # columns that a better plan than a searched one can use: with more neither lists nor ILPs get through
)
_PARTS = (0.97, 0.9)  # of the mix, each rounded
_HALVINGS = 80  # of the search
_FEW, _OFTENER = 16, 3  # times as many of so few models under rules, which end far from the bound
_LACK = 5.0  # times a model's least cost: what serving nothing of it counts
# Where no more than a part of the models' demand lacks after a search, it goes on, lacking any counted so many times as much.
_NEARLY, _INSISTS, _HEAVIER, _MORE_HALVINGS = 0.05, 2, 3.0, 40


def plan_of_many(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    share: float,
    rough: Generated,
    found: Generated,
    parts: list[float],
    grid: Grid,
    fixing: int,
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> tuple[GoalOutcome, bool]:
    """``best``, or better, and whether to leave it at that. ``rough``: covers of a coarse grid, fewer and more often whole;
    ``found``: of the fine one, with the duals at which the models cost ``parts`` at least."""
    if can_recreate(models):
        best = searched(problem, columns, models, share, rough, found, parts, grid, best, limits, clock)
    else:
        best = _rounded(problem, columns, models, rough, grid, best, limits)
        if best.counts is not None:
            prices = dual_prices(problem, found.duals.supply, found.duals.budget, found.duals.quota)
            if_used = bounds_if_used(columns, models, prices, dual_value(problem, found.duals), fixing)
            best = search_neighbourhoods(
                problem, columns, models, share, prices, parts, if_used, grid, best, limits, clock
            )
    if best.counts is None:
        is_hopeless = bool(rough.unserved) and len(columns) > _CLOSABLE
        return replace(best, note="no mix of covers serves every model" if is_hopeless else ""), is_hopeless
    if relative_gap(best.objective, best.bound) <= limits.gap:
        return replace(best, status=MipStatus.OPTIMAL), True
    return best, is_beyond_closing(problem, models, found, best)


def _rounded(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    rough: Generated,
    grid: Grid,
    best: GoalOutcome,
    limits: SolveLimits,
) -> GoalOutcome:
    """``best``; where that is no plan, the mix rounded."""
    if best.counts is not None or rough.unserved:
        return best
    return best.or_better(*round_mix(problem, columns, models, rough, grid, limits.threads, _PARTS))


def searched(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    share: float,
    rough: Generated,
    found: Generated,
    parts: Sequence[float],
    grid: Grid,
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """``best`` or what a search finds from it, or from the mix rounded, on; ``rough``, ``found`` and ``parts`` as in
    :func:`plan_of_many`."""
    best = _rounded(problem, columns, models, rough, grid, best, limits)
    prices = dual_prices(problem, found.duals.supply, found.duals.budget, found.duals.quota)
    weights = lack_weights(parts, _LACK)
    mix = rough.mix(columns)
    starts = [whole(mix) if best.counts is None else best.counts]
    is_enough_yet = best.counts is not None and relative_gap(best.objective, best.bound) <= limits.gap
    is_short = share < 1  # then the plan to begin with was made in stages
    if not is_short and not is_enough_yet and is_lumpy(models, found.mix(columns), parts):
        starts.append(plan_in_stages(problem, columns, models, found, weights, grid, limits, clock))
    packed = packing(problem, columns, models, own_prices(problem), prices, mix + sum(starts), weights)
    start = min((packed.state(counts) for counts in starts), key=packed.value)
    return _recreated(Task(problem, columns, models, limits, clock, share), packed, start, best)


def planned_by_parts(task: Task, start: NDArray[np.int64] | None) -> GoalOutcome:
    """``start`` or what a search finds from the mix of parts of instances on, where covers take too long to find; its bound is of
    whole instances at that mix's prices."""
    problem, columns = task.problem, task.columns
    mixed = mixed_parts(task, Goal.COST, 0.0)
    if mixed.bound > no_plan_costs_more(problem) * (1 + 1e-6):
        return GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf, "supply cannot cover the demand")
    best, first = GoalOutcome(MipStatus.LIMIT, None, math.inf, max(mixed.bound, 0.0)), whole(mixed.mix)
    if start is not None:
        best, first = best.or_better(start, objective_usd(problem, columns, start)), start
    prices = dual_prices(problem, mixed.worth.supply, mixed.worth.budget, mixed.worth.quota)
    weights = lack_weights(least_costs(task.models, prices.new), _LACK)
    packed = packing(problem, columns, task.models, own_prices(problem), prices, mixed.mix + first, weights)
    return _recreated(task, packed, packed.state(first), best)


def _recreated(task: Task, packed: Packing, start: State, best: GoalOutcome) -> GoalOutcome:
    """``best`` or what a search finds from ``start`` on."""

    def is_enough(plan: Found) -> bool:
        return not plan.lacking.any() and relative_gap(plan.value, best.bound) <= task.limits.gap

    times = _OFTENER if has_counts(task.models) and len(task.models) <= _FEW else 1
    plan, _ = recreate(packed, start, times * _HALVINGS, task.limits, task.clock, is_enough)
    for _ in range(_INSISTS):
        if not 0.0 < plan.lacking.mean() <= _NEARLY:
            break
        packed = packed.heavier(_HEAVIER)
        plan, _ = recreate(packed, packed.from_items(plan.x), _MORE_HALVINGS, task.limits, task.clock, is_enough)
    counts = packed.counts(plan.x, len(task.columns))
    served = served_shares(task.problem, task.columns, counts)
    if not is_within(task.problem, task.columns, counts):
        return best
    if min(served.values()) >= task.share * (1 - 1e-9):
        return best.or_better(counts, objective_usd(task.problem, task.columns, counts))
    return best if best.counts is not None else replace(best, nearest=counts)


def is_beyond_closing(
    problem: AllocationProblem, models: Sequence[ModelBlocks], found: Generated, best: GoalOutcome
) -> bool:
    """Whether about more columns can be in a better plan than ``best`` than lists or an ILP get through."""
    prices, room = (
        dual_prices(problem, found.duals.supply, found.duals.budget, found.duals.quota),
        best.objective - best.bound,
    )
    usable = sum(
        int((excess <= room).sum()) for model in models for row in excess_costs(model, prices) for excess in row
    )
    return usable > _CLOSABLE
