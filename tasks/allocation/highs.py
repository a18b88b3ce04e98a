"""One way to run HiGHS on a PuLP problem, and the only reading of its outcome.

PuLP's own status says "Optimal" after a time limit, so it is never looked at: the outcome comes from HiGHS' model
status through an explicit table, the bound from ``mip_dual_bound``, and an answer counts only once its integers are
whole and every row holds with them rounded.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from enum import StrEnum

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.types import SolveLimits
from tasks.allocation.work import Looks

FEASIBILITY_TOLERANCE = 1e-9
# An integer further than this from whole, or a row further off than this once all are rounded, is no answer.
INTEGRALITY_TOLERANCE = 1e-5
ROW_TOLERANCE = 1e-7


class MipStatus(StrEnum):
    """What a run of the solver established. ``LIMIT``: stopped early, perhaps with a feasible answer."""

    OPTIMAL = "optimal"
    LIMIT = "limit"
    INFEASIBLE = "infeasible"
    ERROR = "error"


_S = highspy.HighsModelStatus
# Every HiGHS status by name. Our objectives are bounded below, so "unbounded or infeasible" can only be infeasible.
MODEL_STATUS: dict[highspy.HighsModelStatus, MipStatus] = {
    _S.kOptimal: MipStatus.OPTIMAL,
    _S.kObjectiveBound: MipStatus.LIMIT,
    _S.kObjectiveTarget: MipStatus.LIMIT,
    _S.kTimeLimit: MipStatus.LIMIT,
    _S.kIterationLimit: MipStatus.LIMIT,
    _S.kSolutionLimit: MipStatus.LIMIT,
    _S.kInterrupt: MipStatus.LIMIT,
    _S.__members__["kHighsInterrupt"]: MipStatus.LIMIT,  # missing from the stubs
    _S.kInfeasible: MipStatus.INFEASIBLE,
    _S.kUnboundedOrInfeasible: MipStatus.INFEASIBLE,
    _S.kNotset: MipStatus.ERROR,
    _S.kLoadError: MipStatus.ERROR,
    _S.kModelError: MipStatus.ERROR,
    _S.kPresolveError: MipStatus.ERROR,
    _S.kSolveError: MipStatus.ERROR,
    _S.kPostsolveError: MipStatus.ERROR,
    _S.kModelEmpty: MipStatus.ERROR,
    _S.kUnbounded: MipStatus.ERROR,
    _S.kUnknown: MipStatus.ERROR,
    _S.kMemoryLimit: MipStatus.ERROR,
}


# HiGHS probes binaries against each other, in time that grows with the square of what they bound and without a look at the
# clock: the rows of N+1 (a variable that some thousand binaries bound) took it minutes. The bit is its presolve rule's.
_PROBING = 1 << 15
_MANY_PAIRS = 500  # rows of two variables; other problems have a few


@dataclass(frozen=True, slots=True)
class MipOutcome:
    """Outcome of one run. ``values`` (by variable name, integers already whole) is None without a verified answer;
    ``objective`` is then infinite. ``bound`` is a valid lower bound, -inf if none. ``reduced_costs`` are an LP's."""

    status: MipStatus
    values: dict[str, float] | None
    objective: float
    bound: float
    note: str = ""
    reduced_costs: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class RawRun:
    """What HiGHS reports, before anything of it is believed."""

    status: highspy.HighsModelStatus
    has_solution: bool
    objective: float
    dual_bound: float
    column_values: NDArray[np.float64]
    column_duals: NDArray[np.float64]


_scheduler = threading.local()


def _prepare_scheduler(threads: int) -> None:
    """HiGHS keeps one pool per calling thread and refuses to run with another number of threads than it was made for."""
    if getattr(_scheduler, "threads", threads) != threads:
        highspy.Highs.resetGlobalScheduler(True)
    _scheduler.threads = threads


class QuietHighs(highspy.Highs):
    """HiGHS on ``threads`` threads without its banner: the usual constructor prints it to standard output, where only
    data may go. No two may be made side by side in one thread with different ``threads`` and then both be run."""

    def __init__(self, threads: int) -> None:
        super(highspy.Highs, self).__init__()
        _prepare_scheduler(threads)
        self.setOptionValue("output_flag", False)
        self.setOptionValue("threads", threads)
        self.callbacks: list[object] = []


class QuietHiGHS(pulp.HiGHS):
    """PuLP's interface to HiGHS that writes nothing; options are set on ``lp.solverModel`` by the caller."""

    def __init__(self, threads: int, *, mip: bool = True) -> None:
        super().__init__(mip=mip, msg=False)
        self._solver_threads = threads

    def createAndConfigureSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 (PuLP's name)
        """Give ``lp`` an empty, silent solver."""
        lp.solverModel = QuietHighs(self._solver_threads)


def run_highs(
    problem: pulp.LpProblem,
    limits: SolveLimits,
    *,
    relax: bool,
    time_s: float,
    start: dict[str, float] | None = None,
    good_enough: float | None = None,
    most_looks: int | None = None,
) -> RawRun:
    """Hand ``problem`` to HiGHS (``relax``: as an LP; ``start``: a feasible answer to begin with) and read what it says.

    ``good_enough``: stop at an answer of this objective or less. ``most_looks``: stop after so much work, see
    :mod:`tasks.allocation.work`.
    """
    solver = QuietHiGHS(limits.threads, mip=not relax)
    options: dict[str, float | int] = {
        "mip_rel_gap": limits.gap,
        "time_limit": max(time_s, 0.1),
        "random_seed": limits.seed,
        "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
        "mip_feasibility_tolerance": FEASIBILITY_TOLERANCE,
    }
    if good_enough is not None:
        options["objective_target"] = good_enough
    if not relax and sum(len(row) == 2 for row in problem.constraints.values()) > _MANY_PAIRS:
        options["presolve_rule_off"] = _PROBING
    solver.createAndConfigureSolver(problem)
    for name, value in options.items():
        if problem.solverModel.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError(f"HiGHS refuses {name} = {value}")
    solver.buildSolverModel(problem)
    model = problem.solverModel
    if start and not relax:
        given = [(variable.index, start[variable.name]) for variable in problem.variables() if variable.name in start]
        model.setSolution(len(given), np.array([i for i, _ in given], np.int32), np.array([x for _, x in given]))
    is_watched = not relax and (most_looks is not None or limits.stop is not None)
    counter = Looks(model, most_looks, limits) if is_watched else None
    solver.callSolver(problem)
    if counter is not None:
        model.stopCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)
    info, solution = model.getInfo(), model.getSolution()
    return RawRun(
        status=model.getModelStatus(),
        has_solution=info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible),
        objective=float(info.objective_function_value),
        dual_bound=float(info.objective_function_value if relax else info.mip_dual_bound),
        column_values=np.asarray(solution.col_value, dtype=np.float64),
        column_duals=np.asarray(solution.col_dual, dtype=np.float64),
    )


def solve_mip(
    problem: pulp.LpProblem,
    limits: SolveLimits,
    *,
    relax: bool = False,
    time_s: float | None = None,
    start: dict[str, float] | None = None,
    good_enough: float | None = None,
    most_looks: int | None = None,
    clock: Clock | None = None,
) -> MipOutcome:
    """Minimise ``problem`` and return only what could be verified; an answer of ``good_enough`` or less ends the search,
    and so do ``most_looks``. ``clock`` is told if it was the time or a stop from outside.

    Returns status OPTIMAL (within ``limits.gap``), LIMIT, INFEASIBLE or ERROR. An answer that is not whole, or breaks a
    row after rounding, turns the outcome into ERROR whatever the solver called it.
    """
    time_s = limits.time_s if time_s is None else time_s
    raw = run_highs(
        problem, limits, relax=relax, time_s=time_s, start=start, good_enough=good_enough, most_looks=most_looks
    )
    if clock is not None and (raw.status == highspy.HighsModelStatus.kTimeLimit or limits.is_stopped):
        clock.has_cut = True
    status = MODEL_STATUS.get(raw.status, MipStatus.ERROR)
    if status is MipStatus.INFEASIBLE:
        return MipOutcome(status, None, math.inf, math.inf)
    if status is MipStatus.ERROR:
        return MipOutcome(status, None, math.inf, -math.inf, note=f"HiGHS ended with {raw.status.name}")
    variables = problem.variables()
    bound = raw.dual_bound if math.isfinite(raw.dual_bound) else -math.inf
    if relax:
        if status is MipStatus.LIMIT:
            return MipOutcome(status, None, math.inf, -math.inf, note="the relaxation hit the time limit")
        names = [variable.name for variable in variables]
        values = dict(zip(names, raw.column_values.tolist(), strict=True))
        duals = dict(zip(names, raw.column_duals.tolist(), strict=True))
        return MipOutcome(status, values, raw.objective, bound, reduced_costs=duals)
    if not raw.has_solution:
        if status is MipStatus.OPTIMAL:
            return MipOutcome(MipStatus.ERROR, None, math.inf, -math.inf, note="HiGHS says optimal without an answer")
        return MipOutcome(status, None, math.inf, bound, note="stopped before an answer was found")
    fault = _round_and_check(problem, variables, raw.column_values)
    if fault:
        return MipOutcome(MipStatus.ERROR, None, math.inf, bound, note=fault)
    values = {variable.name: float(variable.varValue) for variable in variables}
    objective = float(pulp.value(problem.objective))
    if start is not None and objective > raw.objective + ROW_TOLERANCE * max(1.0, abs(objective)):
        # Where presolve alone finds the optimum, HiGHS gives its objective but the values of the start.
        return solve_mip(
            problem,
            limits,
            time_s=time_s,
            good_enough=good_enough,
            most_looks=most_looks,
            clock=clock,
        )
    return MipOutcome(status, values, objective, bound)


def _round_and_check(problem: pulp.LpProblem, variables: list[pulp.LpVariable], values: NDArray[np.float64]) -> str:
    """Round integers in place; return the first fault of the answer, or an empty string."""
    if len(values) != len(variables):
        return f"HiGHS returned {len(values)} values for {len(variables)} variables"
    for variable, value in zip(variables, values.tolist(), strict=True):
        if not math.isfinite(value):
            return f"{variable.name} = {value} is no number"
        if variable.cat == pulp.LpInteger:
            whole = round(value)
            if abs(value - whole) > INTEGRALITY_TOLERANCE:
                return f"{variable.name} = {value} is not whole"
            value = float(whole)
        if variable.lowBound is not None and value < variable.lowBound - ROW_TOLERANCE:
            return f"{variable.name} = {value} is below {variable.lowBound}"
        if variable.upBound is not None and value > variable.upBound + ROW_TOLERANCE:
            return f"{variable.name} = {value} is above {variable.upBound}"
        variable.varValue = value
    for name, row in problem.constraints.items():
        # PuLP keeps a row as `terms + constant <sense> 0`.
        left = sum(c * v.varValue for v, c in row.items()) + row.constant
        scale = max(1.0, abs(row.constant))
        if row.sense <= 0 and left > ROW_TOLERANCE * scale:
            return f"row {name} is exceeded by {left:g}"
        if row.sense >= 0 and left < -ROW_TOLERANCE * scale:
            return f"row {name} is missed by {-left:g}"
    return ""
