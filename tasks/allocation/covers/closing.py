"""The integer step: the paper's ILP over the columns that a better plan can use, with the covers' bound as rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.fixing import bounds_if_used
from tasks.allocation.covers.generation import dual_value
from tasks.allocation.covers.master import Duals
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    dual_prices,
    lower_bound,
    workload_lower_bound,
)
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.formulation import Formulation, Goal, Target, formulate
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import relative_gap, total_usd
from tasks.allocation.types import AllocationProblem, SolveLimits
from tasks.allocation.work import looks

# First the most promising columns, for a good plan soon; then all that a better one can use, if they are not too many.
_FIRST_COLUMNS, _MOST_COLUMNS = 500, 6000
# Under N+1 every column has a binary of its own and two rows more.
_FIRST_UNDER_LOSS, _MOST_UNDER_LOSS = 300, 1000
_FIRST_TIME = 0.5  # of what is left, should time run out
_WORK = 300  # looks of an ILP at 800 columns
_SLACK = 1e-9
_FIXING_SLACK = 1e-7


@dataclass(frozen=True, slots=True)
class CoverRow:
    """ "What these workloads take costs at least ``least``" at ``prices``: holds for every plan."""

    workloads: tuple[int, ...]
    prices: NodePrices
    least: float


def cover_rows(problem: AllocationProblem, models: list[ModelBlocks], duals: Duals, grid: Grid) -> list[CoverRow]:
    """Rows per model and per phase of it at the best duals: they lift the relaxation to the covers' bound."""
    ids = [c.workload_id for c in problem.candidates]
    prices = dual_prices(problem, duals.supply, duals.budget, duals.quota)
    rows = []
    for model in models:
        phases = tuple(ids.index(w) for w in model.demand.workload_ids)
        rows.append(CoverRow(phases, prices, lower_bound(model, prices, grid)))
        if len(phases) > 1:
            rows += [CoverRow((w,), prices, workload_lower_bound(model, p, prices, grid)) for p, w in enumerate(phases)]
    return [row for row in rows if math.isfinite(row.least) and row.least > 0]


def close(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    target: Target,
    duals: Duals,
    grid: Grid,
    fixing_size: int,
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """Improve on ``best`` (a plan or none, with a valid bound) until the gap, the work or the time limit is reached."""
    prices = dual_prices(problem, duals.supply, duals.budget, duals.quota)
    if_used = bounds_if_used(columns, models, prices, dual_value(problem, duals), fixing_size)
    rows = cover_rows(problem, models, duals, grid)
    under_loss = any(model.demand.survives_loss for model in models)
    for most in (_FIRST_UNDER_LOSS, _MOST_UNDER_LOSS) if under_loss else (_FIRST_COLUMNS, _MOST_COLUMNS):
        survivors = _survivors(if_used, best)
        kept = survivors[np.argsort(if_used[survivors], kind="stable")[:most]]
        if best.counts is not None:
            kept = np.union1d(kept, np.flatnonzero(best.counts))
        is_last = len(kept) == len(survivors) and best.counts is not None
        time_s = clock.left() * (1.0 if is_last else _FIRST_TIME)
        # The cover rows prove, but get in the way of finding a first plan.
        with_rows = rows if best.counts is not None else []
        best, bound = _improve(problem, columns, np.sort(kept), target, with_rows, best, limits, clock, time_s)
        # A plan uses these columns alone, or another one and costs at least what that one's use implies.
        others = np.delete(if_used, kept).min(initial=np.inf)
        best = replace(best, bound=max(best.bound, min(bound, float(others), best.objective)))
        if best.status is MipStatus.ERROR or _is_closed(best, limits) or clock.is_past():
            break
    if best.counts is None and math.isinf(best.bound):
        return replace(best, status=MipStatus.INFEASIBLE)
    return replace(best, status=MipStatus.OPTIMAL) if _is_closed(best, limits) else best


def _survivors(if_used: NDArray[np.float64], best: GoalOutcome) -> NDArray[np.intp]:
    """Columns that a plan better than ``best`` can use."""
    room = best.objective + _FIXING_SLACK * max(1.0, abs(best.objective)) if best.counts is not None else math.inf
    return np.flatnonzero(np.isfinite(if_used) & (if_used <= room))


def _is_closed(best: GoalOutcome, limits: SolveLimits) -> bool:
    return best.counts is not None and relative_gap(best.objective, best.bound) <= limits.gap


def _improve(
    problem: AllocationProblem,
    columns: Columns,
    rows: NDArray[np.intp],
    target: Target,
    cover_rows: list[CoverRow],
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
    time_s: float,
) -> tuple[GoalOutcome, float]:
    """``best``, or better from the ILP over columns ``rows``; and the ILP's bound, which holds for plans of these alone."""
    part = columns.select(rows)
    form = formulate(problem, part, Goal.COST, target)
    for number, row in enumerate(cover_rows):
        _add_row(form, part, row, f"cover{number}")
    begin = None if best.counts is None else form.start(best.counts[rows])
    good_enough = best.bound / (1 - limits.gap) if best.bound > 0 and limits.gap < 1 else None
    outcome = solve_mip(
        form.problem,
        limits,
        time_s=time_s,
        start=begin,
        good_enough=good_enough,
        most_looks=looks(len(part), _WORK),
        clock=clock,
    )
    if outcome.status is MipStatus.ERROR:
        failed = replace(best, status=MipStatus.ERROR, note=outcome.note) if best.counts is None else best
        return failed, -math.inf
    if outcome.values is None:
        return best, outcome.bound
    counts = columns.spread(rows, form.counts(outcome.values))
    moved = form.moved(outcome.values)
    value = total_usd(problem, columns, counts, moved)
    if best.counts is not None and best.objective <= value:
        return best, outcome.bound
    return GoalOutcome(MipStatus.LIMIT, counts, value, min(best.bound, value), moved=moved), outcome.bound


def _add_row(form: Formulation, columns: Columns, row: CoverRow, name: str) -> None:
    mine = np.flatnonzero(np.isin(columns.workload, row.workloads))
    counts = columns.counts[mine].astype(np.float64)
    new = (counts * row.prices.new[columns.pool[mine]]).sum(axis=1)
    kept = (counts * row.prices.kept[columns.pool[mine]]).sum(axis=1)
    terms: list[tuple[pulp.LpVariable, float]] = []
    for i, if_new, if_kept in zip(mine.tolist(), new.tolist(), kept.tolist(), strict=True):
        charge = form.charges.get(i)
        terms.append((form.instances[i], (if_new if charge is None else if_kept) / row.least))
        if charge is not None:
            terms.append((charge, 1.0 / row.least))
    if terms:
        form.problem += pulp.LpAffineExpression(terms) >= 1 - _SLACK, name
