"""Publishing what an allocation decided: as the next version, as a proposal where a guard rail holds it, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from catalogs.errors import LakeError
from flows.settings import Progress
from flows.turn import RunRequest
from tasks.allocation.plan import Plan
from tasks.allocation.types import SolveStatus

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from warehouse.connect import Lake
    from warehouse.lock import StillHeld
    from warehouse.records import RunOutcome


@dataclass(frozen=True, slots=True)
class AllocationOutcome:
    """The plan that holds now, and what became of this run (None = nothing was written), in words for a person. With
    ``is_interrupted`` it is the best plan that was found until then, and not published."""

    plan: Plan
    run_outcome: RunOutcome | None
    text: str
    is_interrupted: bool = False


def publish(
    lake: Lake,
    loaded: LoadedScenario,
    plan: Plan,
    last: Plan | None,
    started: datetime,
    request: RunRequest,
    still_held: StillHeld | None,
) -> AllocationOutcome:
    """Publish, propose or confirm the plan, and say in words what became of it. Raises LakeError; nothing is published then,
    nor when ``still_held`` finds that the run has lost its turn."""
    from flows.planning_inputs import input_ages_s, reference_inputs
    from warehouse.plans import log_rejects, publish_plan
    from warehouse.records import AllocationRun, ReferenceInputs, Reject, RunOutcome

    guards = () if request.approve else _guards(lake, loaded, plan, last)
    run = AllocationRun(
        run_id=request.run_id,
        scenario_id=loaded.scenario.id,
        started_at=started,
        inputs_hash=plan.inputs.hash,
        base_plan_version=last.plan_version if last else 0,
        input_ages_s=input_ages_s(loaded, started),
    )
    reference = ReferenceInputs(**reference_inputs(loaded, started))
    published = publish_plan(lake, plan, run, reference, guards=guards, still_held=still_held)
    if loaded.rejects:
        rejects = [Reject(f.file, f.row, f.column, f.value, f.reason, f.remedy) for f in loaded.rejects]
        log_rejects(lake, run.run_id, rejects)
    text = {
        RunOutcome.PUBLISHED: f"published as version {published.plan_version} of {loaded.scenario.id}",
        RunOutcome.UNCHANGED: f"unchanged: version {published.plan_version} stays, the run is logged with today's figures",
        RunOutcome.HELD_FOR_APPROVAL: f"version {published.plan_version} of {loaded.scenario.id} waits for approval, version "
        f"{last.plan_version if last else 0} stays: {'; '.join(guards)}. To make it current: "
        f"`coral plans approve {published.plan_version} --scenario {loaded.scenario.id}`",
        RunOutcome.SUPERSEDED: f"version {published.plan_version} of {loaded.scenario.id} became current while this run was "
        "deciding against another: it stays, nothing is published",
    }[published.outcome]
    assert published.plan is not None  # whatever the outcome, a version holds after a publication
    stands = published.plan
    if published.outcome is RunOutcome.UNCHANGED and _figures(plan) != _figures(stands):
        # The same machines, at other prices or for another demand: today's figures are what a reader needs.
        keep = {"plan_version": stands.plan_version, "state": stands.state, "reason": f"unchanged; {plan.reason}"}
        return AllocationOutcome(plan.model_copy(update=keep), published.outcome, text)
    return AllocationOutcome(published.plan, published.outcome, text)


def _guards(lake: Lake, loaded: LoadedScenario, plan: Plan, last: Plan | None) -> tuple[str, ...]:
    """Why the plan waits for approval. What is current is compared again under the write lock."""
    from tasks.allocation.guards import guard_reasons
    from warehouse.plan_states import is_rolled_back

    overruled = is_rolled_back(lake, loaded.scenario.id)
    return guard_reasons(plan, last, loaded.scenario.policy.guards, is_rolled_back=overruled)


def keep_frame_of(lake: Lake, outcome: AllocationOutcome, frame: dict[str, Any], progress: Progress) -> None:
    """Keep what the version that holds was decided on. It is published already: a full disk is said, not raised."""
    from flows.plan_frame import keep_frame

    if outcome.run_outcome == "superseded":
        return  # another run's version, decided on other inputs
    try:
        keep_frame(lake.root, outcome.plan.scenario_id, outcome.plan.plan_version, frame)
    except LakeError as error:
        progress.message(f"the plan is published, but what `coral plans show --why` needs could not be kept: {error}")


def _figures(plan: Plan) -> tuple[object, ...]:
    """What may move while a decision stands. Start-up charges do so by themselves: what was new runs now."""
    return plan.cost_usd_per_h, plan.status is SolveStatus.SHORTFALL, plan.workloads, plan.offers, plan.shortfalls
