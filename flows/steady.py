"""Whether the current plan stays: the hysteresis of a scenario's policy, applied before a new plan is searched for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from catalogs.types import Market
from flows.plan_frame import find_frame, set_aside_of
from flows.planning_inputs import PlanningInputs, inputs_hash
from tasks.allocation.shares import with_headroom, without_templates
from tasks.allocation.steady import Regret, steady_choice
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalogs.scenario import LoadedScenario
    from tasks.allocation.plan import Plan
    from warehouse.connect import Lake


def keep_current(
    loaded: LoadedScenario,
    lake: Lake,
    library_id: str,
    inputs: PlanningInputs,
    current: Plan | None,
    solve: Callable[[AllocationProblem], AllocationResult],
    now: datetime,
    *,
    is_scheduled: bool,
) -> tuple[PlanningInputs, AllocationResult] | None:
    """The current plan's decision as today's answer, with the problem it was judged in; None where a plan must be searched.

    With computed headroom it is judged at the shares at which its own instances were found to keep their SLOs, against the
    best other choice at these shares; only where that would save more than the hysteresis, and has by now its start-ups, is
    headroom settled anew.
    """
    percent = loaded.scenario.policy.hysteresis_pct
    if current is None or percent is None or current.status is SolveStatus.SHORTFALL:
        return None
    if current.inputs.library_id != library_id:
        return None
    problem, set_aside = inputs.problem, inputs.set_aside
    if loaded.is_headroom_computed:
        frame = find_frame(lake.root, current.scenario_id, current.plan_version)
        if frame is None or any(row.headroom_basis != "simulated" for row in current.workloads):
            return None
        share = {row.workload_id: row.headroom for row in current.workloads}
        if any(c.workload_id not in share for c in problem.candidates):
            return None  # a workload that the plan does not know
        ids = {c.workload_id for c in problem.candidates}
        set_aside = {name: gone for name, gone in set_aside_of(frame).items() if name in ids}
        problem = with_headroom(problem, share)
        problem = without_templates(problem, set_aside) if set_aside else problem
    counts = Counter[tuple[str, Market, str, str]]()
    for row in current.instances:
        counts[row.region, row.market, row.template_id, row.workload_id] += row.instances
    kept = steady_choice(problem, counts, solve(problem), percent, _regret(loaded, lake, current, now, is_scheduled))
    if kept is None:
        return None
    hashed = inputs_hash(problem, library_id, loaded)
    return replace(inputs, problem=problem, inputs_hash=hashed, set_aside=set_aside), kept


def _regret(loaded: LoadedScenario, lake: Lake, current: Plan, now: datetime, is_scheduled: bool) -> Regret:
    """What staying with the current plan has cost by the runs that kept it, and is about to until the next one: in as long as
    it is since the last where runs are scheduled, at most an interval."""
    from warehouse.plan_states import current_since
    from warehouse.runs import regret_since

    policy = loaded.scenario.policy
    since = current_since(lake, current.scenario_id, current.plan_version)
    so_far_usd, last = regret_since(lake, current.scenario_id, since, now)
    window_h = policy.interval_minutes / 60
    if is_scheduled and last is not None:
        window_h = min(window_h, max((now - last).total_seconds(), 0.0) / 3600)
    return Regret(so_far_usd, window_h, policy.init_minutes / 60)
