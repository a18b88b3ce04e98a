"""What a plan that is restricted to launchable templates costs above one that may use any, said in the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tasks.allocation.plan import PlanWarning
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from warehouse.connect import Lake

_CODE = "launchable_only"
_ASKED = "only templates that stock engines launch (classes A and B1) were considered"
_LIMITS = SolveLimits(gap=1e-4, time_s=30.0)
_NO_MORE = 2e-4  # twice the gap: differences within it say nothing


def restriction_notes(
    loaded: LoadedScenario, lake: Lake, library_id: str, problem: AllocationProblem
) -> tuple[PlanWarning, ...]:
    """The cost of ``policy.launchable_only``, by planning with it (``problem``) and without: on rent alone, with nothing
    running, so that what runs now does not speak for either, and at the headroom of ``problem``. None where the policy
    does not ask for it."""
    if not loaded.scenario.policy.launchable_only:
        return ()
    from flows.planning_inputs import planning_inputs

    policy = loaded.scenario.policy.model_copy(update={"launchable_only": False})
    free = replace(loaded, scenario=loaded.scenario.model_copy(update={"policy": policy}))
    restricted = _fresh(problem)
    headroom = {candidates.workload_id: candidates.headroom for candidates in problem.candidates}
    everything = planning_inputs(free, lake, library_id).problem
    alike = tuple(replace(c, headroom=headroom.get(c.workload_id, c.headroom)) for c in everything.candidates)
    unrestricted = _fresh(replace(everything, candidates=alike))
    return (PlanWarning(code=_CODE, text=f"{_ASKED}: {restriction_text(restricted, unrestricted)}"),)


def restriction_text(restricted: AllocationResult, unrestricted: AllocationResult) -> str:
    """The difference of two plans in words; a plan of the restricted templates is one of all templates as well."""
    broken = (SolveStatus.INFEASIBLE, SolveStatus.ERROR)
    if restricted.status in broken or unrestricted.status in broken:
        return "what that costs could not be found out"
    short = SolveStatus.SHORTFALL in (restricted.status, unrestricted.status)
    if short and abs(restricted.theta - unrestricted.theta) > 1e-6:
        return f"{restricted.theta:.1%} of the demand is met instead of {unrestricted.theta:.1%}"
    # Both are within their gap of the optimum, so the restricted one can come out a hair cheaper.
    before = min(unrestricted.cost_usd_per_h, restricted.cost_usd_per_h)
    if restricted.cost_usd_per_h <= before * (1 + _NO_MORE):
        return f"at no extra cost ({restricted.cost_usd_per_h:,.2f} USD/h)"
    more = restricted.cost_usd_per_h / before - 1
    costs = f"{restricted.cost_usd_per_h:,.2f} instead of {before:,.2f} USD/h, {more:+.1%}"
    return f"planned afresh, rent is {costs} at this plan's headroom"


def _fresh(problem: AllocationProblem) -> AllocationResult:
    from tasks.allocation.covers.solver import solve_covers

    return solve_covers(replace(problem, running={}, init_share=0.0), _LIMITS)
