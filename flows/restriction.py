"""What launching with stock engines alone costs, said in the plan: of one restricted to launchable templates above one that
may use any, and of one that rents what no stock engine launches below one that does not."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from catalogs.errors import NothingFitsError
from catalogs.wording import counted
from tasks.allocation.plan import PlanWarning
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus
from tasks.templates.launch_class import LAUNCHABLE

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from flows.planning_inputs import PlanningInputs
    from warehouse.connect import Lake

_RESTRICTED = "launchable_only"
_WHY = "`coral plans show --why` says what"
_ASKED = "only templates that stock engines launch (classes A and B1) were considered"
NOT_LAUNCHABLE = "not_launchable"
_LIMITS = SolveLimits(gap=1e-4, time_s=20.0)
_NO_MORE = 2e-4  # twice the gap: differences within it say nothing


def restriction_notes(
    loaded: LoadedScenario,
    lake: Lake,
    library_id: str,
    inputs: PlanningInputs,
    result: AllocationResult,
    fresh: AllocationResult | None = None,
    stop: threading.Event | None = None,
) -> tuple[PlanWarning, ...]:
    """With ``policy.launchable_only`` what it costs, by planning with it and without. Without it, where ``result`` rents what
    stock engines do not launch: how much of it, and what a plan without would cost. Else nothing.

    Both are planned afresh at the headroom of ``inputs``, without the templates that the search for it set aside: on rent
    alone, with nothing running, so that what runs now does not speak for either. ``fresh``: such an answer to the problem of
    ``inputs``, where the search for the plan has made one.
    """
    problem = inputs.problem
    if loaded.scenario.policy.launchable_only:
        unrestricted = _fresh(_other(loaded, lake, library_id, inputs), stop)
        text = restriction_text(fresh or _fresh(problem, stop), unrestricted)
        return (PlanWarning(code=_RESTRICTED, text=f"{_ASKED}: {text}"),)
    rented = not_launched(lake, result)
    if not rented:
        return ()
    try:
        restricted = _fresh(_other(loaded, lake, library_id, inputs), stop)
    except NothingFitsError as error:
        cost = f"a plan without is not possible: {error.message}"
    else:
        cost = f"without (`--launchable-only`): {restriction_text(restricted, fresh or _fresh(problem, stop))}"
    return (PlanWarning(code=NOT_LAUNCHABLE, text=f"{rented}; {cost}"),)


def unsolved_restriction_notes(loaded: LoadedScenario, lake: Lake, result: AllocationResult) -> tuple[PlanWarning, ...]:
    """The same of a plan that stays, where nobody asks: what it cost was found when the plan was decided, and nothing is
    solved for it again."""
    if loaded.scenario.policy.launchable_only:
        return (PlanWarning(code=_RESTRICTED, text=f"{_ASKED}; {_WHY} that costs"),)
    rented = not_launched(lake, result)
    text = f"{rented}; {_WHY} doing without costs"
    return (PlanWarning(code=NOT_LAUNCHABLE, text=text),) if rented else ()


def not_launched(lake: Lake, result: AllocationResult) -> str:
    """What of the instances no stock engine launches, in words; '' where all can be launched."""
    from warehouse import read

    if not result.instances:
        return ""
    table = read.templates_by_id(lake, sorted({row.template_id for row in result.instances}))
    classes = dict(zip(table["template_id"].to_pylist(), table["launch_class"].to_pylist(), strict=True))
    counts: dict[str, int] = {}
    for row in result.instances:
        if classes[row.template_id] not in LAUNCHABLE:
            counts[classes[row.template_id]] = counts.get(classes[row.template_id], 0) + row.instances
    if not counts:
        return ""
    total, all_of_them = sum(counts.values()), sum(row.instances for row in result.instances)
    kinds = " and ".join(sorted(counts))
    verb = "is" if total == 1 else "are"
    return f"{total} of {counted(all_of_them, 'instance')} {verb} of launch class {kinds}, which stock engines do not launch"


def _other(loaded: LoadedScenario, lake: Lake, library_id: str, inputs: PlanningInputs) -> AllocationProblem:
    """The problem of ``inputs`` with the templates of the policy's opposite, at the same headroom."""
    from flows.planning_inputs import planning_inputs
    from tasks.allocation.shares import without_templates

    policy = loaded.scenario.policy
    turned = policy.model_copy(update={"launchable_only": not policy.launchable_only})
    other = replace(loaded, scenario=loaded.scenario.model_copy(update={"policy": turned}))
    headroom = {candidates.workload_id: candidates.headroom for candidates in inputs.problem.candidates}
    everything = planning_inputs(other, lake, library_id).problem
    alike = tuple(replace(c, headroom=headroom.get(c.workload_id, c.headroom)) for c in everything.candidates)
    return without_templates(replace(everything, candidates=alike), inputs.set_aside)


def restriction_text(restricted: AllocationResult, unrestricted: AllocationResult) -> str:
    """The difference of two plans in words; a plan of the restricted templates is one of all templates as well."""
    broken = (SolveStatus.INFEASIBLE, SolveStatus.ERROR)
    if restricted.status in broken or unrestricted.status in broken:
        return "what that costs could not be found out"
    short = SolveStatus.SHORTFALL in (restricted.status, unrestricted.status)
    if short and abs(restricted.theta - unrestricted.theta) > 1e-6:
        return f"{restricted.theta:.1%} of the demand is met instead of {unrestricted.theta:.1%}, at equal headroom"
    # Both are within their gap of the optimum, so the restricted one can come out a hair cheaper.
    before = min(unrestricted.cost_usd_per_h, restricted.cost_usd_per_h)
    if restricted.cost_usd_per_h <= before * (1 + _NO_MORE):
        return f"at no extra cost ({restricted.cost_usd_per_h:,.2f} USD/h at equal headroom)"
    more = restricted.cost_usd_per_h / before - 1
    costs = f"{restricted.cost_usd_per_h:,.2f} instead of {before:,.2f} USD/h, {more:+.1%}"
    return f"planned afresh at equal headroom, rent is {costs}"


def _fresh(problem: AllocationProblem, stop: threading.Event | None) -> AllocationResult:
    from tasks.allocation.covers.solver import solve_covers

    return solve_covers(replace(problem, running={}, init_share=0.0), replace(_LIMITS, stop=stop))
