"""The reference solver: the paper's online ILP in PuLP and HiGHS, over all models and regions at once.

Large problems are first narrowed exactly: the relaxation gives a bound LB and reduced costs, a small ILP over the best
columns gives an answer UB, and a column whose reduced cost exceeds UB - LB is in no better answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns, make_columns
from tasks.allocation.formulation import Goal, Target, active_demands, formulate, loosened
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.moves import Moved
from tasks.allocation.outcome import (
    OPTIMAL_GAP,
    make_result,
    no_plan,
    regions_missing,
    relative_gap,
    served_shares,
    total_usd,
    trim,
    weighted_shortage,
)
from tasks.allocation.types import AllocationProblem, AllocationResult, Shortage, SolveLimits, SolveStatus
from tasks.allocation.work import looks

_DIRECT_COLUMNS = 400  # at most so many columns go to the ILP as they are
_FIRST_COLUMNS = 300  # so many of least reduced cost make the first answer
NO_SHARE = 1e-9  # a common share below this is none
_NO_ANSWER = "stopped before an answer to the shortage was found"
_NO_SEARCH = "a quick plan, perhaps far from the best: no search for a better one came to an answer"


@dataclass(frozen=True, slots=True)
class GoalOutcome:
    """Answer for one goal: ``counts`` per column (None: none found) and the shares of demand that move, a valid lower
    ``bound`` on the goal. ``nearest``: where no plan serves what was asked for, one that serves less, if one was found."""

    status: MipStatus
    counts: NDArray[np.int64] | None
    objective: float
    bound: float
    note: str = ""
    missing_regions: int = 0
    moved: Moved = field(default_factory=dict)
    nearest: NDArray[np.int64] | None = None

    def or_better(self, counts: NDArray[np.int64] | None, value: float) -> GoalOutcome:
        """This, or with the plan ``counts`` of objective ``value`` where that is better."""
        if counts is None or value >= self.objective:
            return self
        return replace(self, counts=counts, objective=value, bound=min(self.bound, value))


GoalSolver = Callable[
    [AllocationProblem, Columns, Goal, Target, SolveLimits, Clock, "NDArray[np.int64] | None"], GoalOutcome
]


def solve_ilp(problem: AllocationProblem, limits: SolveLimits, *, allow_shortage: bool = True) -> AllocationResult:
    """Least-cost instances that meet every demand; where supply cannot, the best under the problem's shortage rule.

    The ILP is that of :func:`tasks.allocation.formulation.formulate`. The bound holds within the problem's candidates.
    ``allow_shortage=False`` answers INFEASIBLE instead of sharing out the shortage. Status: OPTIMAL (gap <= 1e-6), GAP
    (ended by ``limits.gap`` or the limit on work), TIME_LIMIT, SHORTFALL, ERROR (without shortages only: the solver failed or
    its answer did not hold; no plan).
    """
    return allocate(problem, limits, solve_goal, allow_shortage=allow_shortage)


def allocate(
    problem: AllocationProblem, limits: SolveLimits, goal_solver: GoalSolver, *, allow_shortage: bool
) -> AllocationResult:
    """The steps that all solvers share: cost with all demand met, else the shortage, then cost with it fixed."""
    clock = Clock(limits)
    columns = make_columns(problem)
    note = _released_note(problem)
    if not active_demands(problem):
        nothing = np.zeros(len(columns), dtype=np.int64)
        return make_result(
            problem, columns, nothing, status=SolveStatus.OPTIMAL, lower_bound_usd=0.0, solve_s=clock.spent(), note=note
        )
    if len(columns):
        found = goal_solver(problem, columns, Goal.COST, Target(), limits, clock, None)
    else:
        found = GoalOutcome(MipStatus.INFEASIBLE, None, math.inf, math.inf)
    if found.status is MipStatus.ERROR and not allow_shortage:
        return no_plan(SolveStatus.ERROR, clock.spent(), found.note)
    if found.counts is None and found.status is not MipStatus.INFEASIBLE and clock.is_stopped:
        return no_plan(SolveStatus.TIME_LIMIT, clock.spent(), "stopped before a plan was found")
    if found.counts is None and not allow_shortage:
        if found.status is MipStatus.INFEASIBLE:
            return no_plan(SolveStatus.INFEASIBLE, clock.spent(), "supply cannot meet the demand")
        return no_plan(
            SolveStatus.TIME_LIMIT, clock.spent(), f"no plan that meets the demand was found {_within(clock)}"
        )
    if found.counts is None:
        return _solve_shortage(problem, columns, limits, clock, note, goal_solver, found.nearest)
    needed = {demand.model: 1.0 for demand in active_demands(problem)}
    counts = trim(problem, columns, found.counts, needed, found.moved)
    gap = relative_gap(total_usd(problem, columns, counts, found.moved), found.bound)
    return make_result(
        problem,
        columns,
        counts,
        status=status_of(gap, is_cut=clock.has_cut),
        lower_bound_usd=found.bound,
        solve_s=clock.spent(),
        note=note,
        moved=found.moved,
    )


def solve_goal(
    problem: AllocationProblem,
    columns: Columns,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None = None,
    *,
    work: int | None = None,
) -> GoalOutcome:
    """Minimise ``goal`` over ``columns``; narrowed by reduced costs where there are many. ``start``: a known answer.
    ``work`` limits each ILP (:func:`tasks.allocation.work.looks` at 800 columns); None: it goes on to the gap."""
    everything = np.arange(len(columns))

    def over(rows: NDArray[np.intp], time_s: float, begin: NDArray[np.int64] | None = None) -> GoalOutcome:
        return _solve_over(problem, columns, rows, goal, target, limits, clock, time_s, begin, work)

    if len(columns) <= _DIRECT_COLUMNS:
        return over(everything, clock.left())
    relaxed_form = formulate(problem, columns, goal, target)
    relaxed = solve_mip(relaxed_form.problem, limits, relax=True, time_s=clock.left(), clock=clock)
    if relaxed.status in (MipStatus.INFEASIBLE, MipStatus.ERROR):
        return GoalOutcome(relaxed.status, None, math.inf, relaxed.bound, relaxed.note)
    if relaxed.reduced_costs is None:
        return over(everything, clock.left())
    reduced = np.array([relaxed.reduced_costs[v.name] for v in relaxed_form.instances])
    kept = columns.running > 0 if start is None else (columns.running > 0) | (start > 0)
    ranked = np.argsort(np.where(kept, -np.inf, reduced), kind="stable")
    first = np.sort(ranked[: max(_FIRST_COLUMNS, int(kept.sum()))])
    best = over(first, clock.left() / 2)
    if best.status is MipStatus.ERROR:
        return best
    room = best.objective - relaxed.bound
    margin = 1e-9 * max(1.0, abs(best.objective)) if math.isfinite(room) else 0.0
    survivors = np.flatnonzero(reduced <= room + margin)
    if best.counts is not None and np.isin(survivors, first).all():
        return replace(best, bound=max(relaxed.bound, min(best.bound, best.objective)))
    full = over(survivors, clock.left(), best.counts)
    if full.status is MipStatus.ERROR or best.counts is None:
        return full
    answer = best if full.counts is None or full.objective > best.objective else full
    bound = max(relaxed.bound, min(full.bound, best.objective))
    return replace(answer, status=full.status, bound=bound, note=full.note)


def _solve_over(
    problem: AllocationProblem,
    columns: Columns,
    rows: NDArray[np.intp],
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    time_s: float,
    start: NDArray[np.int64] | None,
    work: int | None,
) -> GoalOutcome:
    part = columns.select(rows)
    form = formulate(problem, part, goal, target)
    begin = None if start is None else form.start(start[rows])
    most = None if work is None else looks(len(part), work)
    outcome = solve_mip(form.problem, limits, time_s=time_s, start=begin, most_looks=most, clock=clock)
    if outcome.values is None:
        return GoalOutcome(outcome.status, None, math.inf, outcome.bound, outcome.note)
    counts = columns.spread(rows, form.counts(outcome.values))
    missing = sum(int(outcome.values[v.name]) for v in form.missing_regions)
    moved = form.moved(outcome.values)
    return GoalOutcome(outcome.status, counts, outcome.objective, outcome.bound, outcome.note, missing, moved)


def _solve_shortage(
    problem: AllocationProblem,
    columns: Columns,
    limits: SolveLimits,
    clock: Clock,
    note: str,
    goal_solver: GoalSolver,
    nearest: NDArray[np.int64] | None,
) -> AllocationResult:
    """Share out what there is, then do so at least cost; ``nearest``: a plan to begin with.

    Uniform: the largest common share theta, with the solver's bound on it; where there is none above 0, by weights.
    Priority: the least weighted missing share. Each is then fixed and cost minimised.
    """
    if len(columns) == 0:
        counts = np.zeros(0, dtype=np.int64)
        why = "no template fits into the capacity of any region"
        return make_result(
            problem,
            columns,
            counts,
            status=SolveStatus.SHORTFALL,
            lower_bound_usd=0.0,
            theta=0.0,
            theta_upper=0.0,
            solve_s=clock.spent(),
            note=_join(note, why),
        )
    theta_upper = 1.0
    if problem.shortage is Shortage.UNIFORM:
        first = goal_solver(problem, columns, Goal.THETA, Target(), limits, clock, nearest)
        if first.counts is None:
            if clock.is_stopped:
                return no_plan(SolveStatus.TIME_LIMIT, clock.spent(), first.note or _NO_ANSWER)
            first = _last_resort(problem, columns, Goal.THETA, first)
            note = _join(note, f"{_NO_SEARCH} {_within(clock)}")
        assert first.counts is not None
        first = _or_last_resort(problem, columns, Goal.THETA, first, clock)
        assert first.counts is not None
        shares = served_shares(problem, columns, first.counts, first.moved)
        theta = min(shares.values())
        missing = first.missing_regions
        theta_upper = min(1.0, max(theta, missing - first.bound))
        if theta > NO_SHARE:
            target = Target(share=theta, missing_regions=missing)
            needed = dict.fromkeys(shares, theta)
            return _cheapest(problem, columns, target, needed, first, theta_upper, limits, clock, note, goal_solver)
        known = "can be served to every model" if theta_upper <= NO_SHARE else f"was found {_within(clock)}"
        note = _join(note, f"no common share above 0 {known}; what there is goes by weight")
    second = goal_solver(problem, columns, Goal.SHORTAGE, Target(), limits, clock, nearest)
    if second.counts is None:
        if clock.is_stopped:
            return no_plan(SolveStatus.TIME_LIMIT, clock.spent(), second.note or _NO_ANSWER)
        second = _last_resort(problem, columns, Goal.SHORTAGE, second)
        note = _join(note, f"{_NO_SEARCH} {_within(clock)}")
    second = _or_last_resort(problem, columns, Goal.SHORTAGE, second, clock)
    note = _join(note, f"weighted missing share {second.objective:.6g}, at least {max(second.bound, 0.0):.6g}")
    target = Target(shortage=second.objective)
    return _cheapest(problem, columns, target, None, second, theta_upper, limits, clock, note, goal_solver)


def _or_last_resort(
    problem: AllocationProblem, columns: Columns, goal: Goal, found: GoalOutcome, clock: Clock
) -> GoalOutcome:
    """``found``; where the clock ended it before it served anybody anything, what :func:`_last_resort` serves."""
    assert found.counts is not None
    if found.counts.any() or not clock.has_cut:
        return found
    quick = _last_resort(problem, columns, goal, found)
    return quick if quick.objective < found.objective else found


def _last_resort(problem: AllocationProblem, columns: Columns, goal: Goal, failed: GoalOutcome) -> GoalOutcome:
    """The answer to a shortage where the search ``failed``: :func:`tasks.allocation.last_resort.some_plan`, with the bound
    that the search leaves, or what holds of every plan: no share is above 1 and none missing below 0."""
    from tasks.allocation.last_resort import some_plan

    counts = some_plan(problem, columns, is_common=goal is Goal.THETA)
    shares, missing = served_shares(problem, columns, counts), regions_missing(problem, columns, counts)
    if goal is Goal.THETA:
        objective, least = missing - min(shares.values()), -1.0
    else:
        objective, least = weighted_shortage(problem, columns, counts), 0.0
    bound = min(max(failed.bound, least), objective)
    return GoalOutcome(MipStatus.LIMIT, counts, objective, bound, missing_regions=missing)


def _cheapest(
    problem: AllocationProblem,
    columns: Columns,
    target: Target,
    needed: dict[str, float] | None,
    start: GoalOutcome,
    theta_upper: float,
    limits: SolveLimits,
    clock: Clock,
    note: str,
    goal_solver: GoalSolver,
) -> AllocationResult:
    """Least cost at an established shortage; ``start`` is what established it and the answer if time runs out."""
    assert start.counts is not None
    found = goal_solver(problem, columns, Goal.COST, loosened(target), limits, clock, start.counts)
    best = start if found.counts is None else found
    assert best.counts is not None
    shares = needed if needed is not None else served_shares(problem, columns, best.counts, best.moved)
    counts = trim(problem, columns, best.counts, shares, best.moved)
    bound = found.bound if math.isfinite(found.bound) else 0.0
    theta = min(served_shares(problem, columns, counts, best.moved).values())
    status = SolveStatus.SHORTFALL
    if theta >= 1.0 - 1e-9 and regions_missing(problem, columns, counts) == 0:
        theta = theta_upper = 1.0
        gap = relative_gap(total_usd(problem, columns, counts, best.moved), bound)
        status = status_of(gap, is_cut=clock.has_cut)
    elif clock.has_cut:
        note = _join(note, f"{'a stop' if clock.is_stopped else 'the time limit'} ended the search")
    return make_result(
        problem,
        columns,
        counts,
        status=status,
        lower_bound_usd=bound,
        theta=theta,
        theta_upper=max(theta, theta_upper),
        solve_s=clock.spent(),
        note=note,
        moved=best.moved,
    )


def status_of(gap: float, *, is_cut: bool) -> SolveStatus:
    """OPTIMAL; or what ended the search: the clock (``is_cut``), else the gap asked for or the work."""
    if gap <= OPTIMAL_GAP:
        return SolveStatus.OPTIMAL
    return SolveStatus.TIME_LIMIT if is_cut else SolveStatus.GAP


def _within(clock: Clock) -> str:
    return "in time" if clock.has_cut else "within the limit on work"


def _released_note(problem: AllocationProblem) -> str:
    known = {template_id for candidates in problem.candidates for template_id in candidates.template_ids}
    gone = sum(count for (_, template_id), count in problem.running.items() if template_id not in known)
    return f"{gone} running instances of templates that are no candidates any more are released" if gone else ""


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
