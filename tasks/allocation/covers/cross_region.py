"""Where KV may cross regions: plans that keep it together first, a bound from the phases apart, the paper's ILP between them.

A plan is one of the problem in which each phase of a model may be served anywhere and moving its KV costs nothing, so that
problem's covers bound it from below: validly, but not tightly where much is gained from moving. The ILP over the columns that
a better plan can use, with all links and their prices, then finds plans that move KV, and lifts the bound where it gets
through them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns, servable
from tasks.allocation.covers.closing import close
from tasks.allocation.covers.generation import generate, joint_bound
from tasks.allocation.covers.levels import solve_levels
from tasks.allocation.covers.master import no_plan_costs_more
from tasks.allocation.covers.pricing import Grid, model_blocks
from tasks.allocation.formulation import Goal, Target
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome, GoalSolver, solve_goal
from tasks.allocation.outcome import relative_gap
from tasks.allocation.types import AllocationProblem, SolveLimits
from tasks.allocation.without import apart

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Effort:
    """How fine the grids are, and at most how many columns a shortage may have for the narrowed ILP, with how much work."""

    coarse: Grid
    fine: Grid
    fixing: int
    ilp_columns: int
    ilp_work: int


def cross_region_goal(
    problem: AllocationProblem,
    columns: Columns,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: Ints | None,
    together: GoalSolver,
    effort: Effort,
) -> GoalOutcome:
    """Minimise ``goal`` of a problem with links; ``together`` solves the one without."""
    if goal is not Goal.COST or target.shortage is not None or target.missing_regions > 0:
        return _shortage(problem, columns, goal, target, limits, clock, start, together, effort)
    free = _apart(problem)
    models = model_blocks(free, columns, target.share)
    if any(len(model.blocks) < model.wanted for model in models):
        return GoalOutcome(
            MipStatus.INFEASIBLE, None, math.inf, math.inf, "a phase of a model fits into too few regions"
        )
    found = generate(free, columns, models, effort.coarse, limits, clock)
    if found.bound > no_plan_costs_more(free) * (1 + 1e-6):
        return GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf, "supply cannot cover the demand")
    bound = max(joint_bound(free, models, found.duals, effort.fine, limits.threads)[0], found.bound, 0.0)
    best = _together(problem, columns, goal, target, limits, clock, together)
    best = replace(best, status=MipStatus.LIMIT, bound=min(bound, best.objective))
    if best.counts is not None and relative_gap(best.objective, best.bound) <= limits.gap:
        return replace(best, status=MipStatus.OPTIMAL)
    return close(problem, columns, models, target, found.duals, effort.fine, effort.fixing, best, limits, clock)


def _apart(problem: AllocationProblem) -> AllocationProblem:
    """Every phase by itself, wherever it is served. Of a missing share each phase bears a part: a model misses at least as
    much as either."""
    parts = {w: 1 / len(d.workload_ids) for d in problem.demands for w in d.workload_ids}
    free = apart(problem)
    return replace(free, demands=tuple(replace(d, weight=d.weight * parts[d.workload_ids[0]]) for d in free.demands))


def _together(
    problem: AllocationProblem,
    columns: Columns,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    together: GoalSolver,
) -> GoalOutcome:
    """The best plan found that moves nothing; its bound is none of the problem's. A start may move something: it is none."""
    here = replace(problem, links=())
    rows = servable(here, columns)
    nothing = GoalOutcome(MipStatus.LIMIT, None, math.inf, -math.inf)
    if not len(rows):
        return nothing
    found = together(here, columns.select(rows), goal, target, limits, clock, None)
    if found.counts is None:
        return nothing
    return replace(found, counts=columns.spread(rows, found.counts), bound=-math.inf)


def _shortage(
    problem: AllocationProblem,
    columns: Columns,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: Ints | None,
    together: GoalSolver,
    effort: Effort,
) -> GoalOutcome:
    """By the narrowed ILP; for many columns the ILP over those that plans use which move nothing, and phases apart."""
    free = _apart(problem)
    models = model_blocks(free, columns, 1.0)
    is_ilp = len(columns) <= effort.ilp_columns or target.missing_regions > 0 or any(m.wanted > 1 for m in models)
    if is_ilp:
        return solve_goal(problem, columns, goal, target, limits, clock, start, work=effort.ilp_work)
    loose = solve_levels(free, columns, models, goal, target, limits, clock, None)
    best = _together(problem, columns, goal, target, limits, clock, together)
    used = np.zeros(len(columns), dtype=np.bool_)
    for counts in (loose.counts, best.counts, start):
        if counts is not None:
            used |= counts > 0
    rows = np.flatnonzero(used)
    if len(rows):
        begin = best.counts if best.counts is not None else start
        begin = None if begin is None else begin[rows]
        found = solve_goal(problem, columns.select(rows), goal, target, limits, clock, begin, work=effort.ilp_work)
        if found.counts is not None and found.objective < best.objective:
            best = replace(found, counts=columns.spread(rows, found.counts))
    return replace(best, status=MipStatus.LIMIT, bound=min(loose.bound, best.objective))
