"""Allocation over a built library, and publication: what `coral allocate`, `coral plan` and the scheduled flow run."""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, HeldError, finding_lines
from flows.anytime import Search, SearchEndedError, StoppedError
from flows.interrupt import interrupt_sets
from flows.plan_publish import AllocationOutcome, keep_frame_of, publish
from flows.settings import BuildSettings, Progress, progress_stage
from flows.turn import RunRequest, allocation_turn, log_undecided
from tasks.allocation.plan import NOT_COMPUTED, Plan, PlanBaselines, PlanInputs, PlanState, PlanWarning
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from flows.planning_inputs import PlanningInputs
    from warehouse.connect import Lake
    from warehouse.lock import StillHeld

# What the issue asks of `core`: a gap of 0.05 % in seconds. The wall clock is only a safety limit.
PLAN_LIMITS = SolveLimits(gap=1e-4, time_s=60.0)
BASELINE_LIMITS = SolveLimits(gap=1e-4, time_s=20.0)
_NO_BASELINES = PlanBaselines(
    homo_optimal_usd_per_h=None,
    homo_optimal_lower_bound_usd_per_h=None,
    homo_greedy_usd_per_h=None,
    note=f"{NOT_COMPUTED}: the search was interrupted",
)
_KEPT_BASELINES = _NO_BASELINES.model_copy(
    update={"note": f"{NOT_COMPUTED} anew: the version that stays says what they cost when it was made"}
)
_INTERRUPTED = "the search was interrupted: this is the best plan it had found"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, the problem it answers, and caveats. ``fresh``: the choice among the same templates at the same
    headroom on rent alone, as if nothing ran; None where none was made."""

    inputs: PlanningInputs
    result: AllocationResult
    notes: tuple[PlanWarning, ...] = ()
    fresh: AllocationResult | None = None


def plan_scenario(settings: BuildSettings, progress: Progress, request: RunRequest | None = None) -> AllocationOutcome:
    """Build the library if needed, allocate, check, publish. Raises the expected outcomes of each part.

    A scheduled run takes its turn before the build: two that are due at once must not both build.
    """
    from catalogs.scenario import load_scenario
    from flows.build import build_library

    if request is None or request.due is None:
        build_library(settings, progress)
        return allocate(settings, progress, publish=True, request=request)
    with allocation_turn(settings.lake_root, load_scenario(settings.scenario).scenario.id, request) as still_held:
        build_library(settings, progress)
        return _allocate(settings, progress, request, still_held)


def allocate(
    settings: BuildSettings, progress: Progress, *, publish: bool, request: RunRequest | None = None
) -> AllocationOutcome:
    """Choose what to rent from the library built for the scenario as it is now.

    Without ``publish`` nothing is written. With it no two allocations of a scenario overlap, whoever asks (``request``:
    who, None = a person), and a plan that a guard rail holds becomes a proposal. Raises HeldError (demand unknown or an
    input too old; the run is logged when publishing), NothingFitsError, LakeError (also when another allocation takes too
    long), SupersededError for a scheduled run that comes too late, or CoralError when the library has not been built for
    these inputs.

    Ctrl-C and SIGTERM end the search, not the call: it answers with the best plan so far, checked as any other, and
    publishes nothing. StoppedError where there is none yet; a second signal interrupts at once.
    """
    from catalogs.scenario import load_scenario
    from flows.alerts import check_after_run

    if not publish:
        return _allocate(settings, progress, None)
    request = request or RunRequest()
    # Inputs are read once it is this run's turn: here only the name is of use.
    with allocation_turn(settings.lake_root, load_scenario(settings.scenario).scenario.id, request) as still_held:
        try:
            return _allocate(settings, progress, request, still_held)
        finally:
            for line in check_after_run(settings.lake_root, settings.scenario):
                progress.message(line)


def _allocate(
    settings: BuildSettings, progress: Progress, request: RunRequest | None, still_held: StillHeld | None = None
) -> AllocationOutcome:
    """:func:`allocate` when it is this run's turn, as ``still_held`` can tell; ``request`` None = publish nothing."""
    from flows.build import registered_library
    from flows.drift import note_what_runs
    from flows.feeds import load_with_feeds
    from warehouse import read
    from warehouse.connect import Lake

    started = datetime.now(UTC)
    loaded = settings.with_policy(load_with_feeds(settings.scenario, settings.lake_root, started))
    for line in finding_lines(loaded.rejects):
        progress.message(f"set aside: {line}")
    library_id = registered_library(settings, loaded)
    with Lake.open(settings.lake_root, read_only=request is None) as lake:
        if request is not None:
            note_what_runs(lake, loaded.scenario.id)
        last = read.current_plan(lake, loaded.scenario.id)
        try:
            is_scheduled = request is not None and request.due is not None
            plan, frame, is_interrupted = _decide(loaded, lake, library_id, last, progress, started, is_scheduled)
        except HeldError as held:
            if request is not None:
                log_undecided(lake, loaded.scenario.id, request, started, held)
            raise
        if is_interrupted:
            return AllocationOutcome(plan, None, f"{_INTERRUPTED}, and is not published", is_interrupted=True)
        if request is None:
            return AllocationOutcome(plan, None, "not published: give --publish to publish it")
        outcome = publish(lake, loaded, plan, last, started, request, still_held)
        keep_frame_of(lake, outcome, frame, progress)
        return outcome


def _decide(
    loaded: LoadedScenario,
    lake: Lake,
    library_id: str,
    last: Plan | None,
    progress: Progress,
    now: datetime,
    is_scheduled: bool,
) -> tuple[Plan, dict[str, Any], bool]:
    """The plan, the frame it was decided on, and whether the search for it was interrupted."""
    from flows.plan_frame import frame_of
    from flows.plan_notes import left_out_notes
    from flows.planning_inputs import check_demand_known, planning_inputs
    from flows.restriction import restriction_notes, unsolved_restriction_notes
    from flows.running import what_runs
    from flows.steady import keep_current

    check_demand_known(loaded, has_plan=last is not None)
    stop = threading.Event()
    with interrupt_sets(stop, signal.SIGTERM):
        with progress_stage(progress, "allocate"):
            inputs = planning_inputs(loaded, lake, library_id, what_runs(lake, library_id, loaded, last, now))
            kept = keep_current(
                loaded, lake, library_id, inputs, last, partial(solve, stop=stop), now, is_scheduled=is_scheduled
            )
            choice = Choice(*kept) if kept else choose(loaded, lake, library_id, inputs, stop)
        everything = inputs.problem
        inputs, result, notes = choice.inputs, choice.result, choice.notes
        if kept and is_scheduled:  # its document is not stored, and nobody reads it
            baselines = _KEPT_BASELINES
            notes += unsolved_restriction_notes(loaded, lake, result)
        else:
            with progress_stage(progress, "baselines"):
                baselines = _baselines(inputs.problem, everything, result, stop)
                if not stop.is_set():
                    notes += restriction_notes(loaded, lake, library_id, inputs, result, choice.fresh, stop)
                    notes += left_out_notes(loaded)
        if stop.is_set():
            notes += (PlanWarning(code="interrupted", text=_INTERRUPTED),)
        with progress_stage(progress, "check"):
            plan = plan_document(loaded, lake, library_id, last, inputs, result, baselines, notes, now, stop)
    frame = frame_of(inputs.problem, library_id, loaded.scenario.policy, inputs.set_aside)
    return plan, frame, stop.is_set()


def choose(
    loaded: LoadedScenario,
    lake: Lake,
    library_id: str,
    inputs: PlanningInputs,
    stop: threading.Event | None = None,
) -> Choice:
    """The solver's answer; with ``headroom: auto`` that to the shares at which its own instances keep their SLOs. Once
    ``stop`` is set, the best one so far; StoppedError where there is none."""
    stop = stop or threading.Event()
    if not loaded.is_headroom_computed:
        result = solve(inputs.problem, stop)
        # Where nothing runs start-up is the same part of every rent, and KV between regions is none.
        is_fresh = not inputs.problem.running and not inputs.problem.links
        return Choice(inputs, result, fresh=result if is_fresh else None)
    from flows.headroom import SimulatedHeadroom
    from flows.planning_inputs import inputs_hash
    from tasks.allocation.headroom import settle
    from tasks.allocation.in_use import with_start_up

    search = Search(lambda problem: solve(problem, stop), stop)
    try:
        settled = settle(inputs.problem, search, SimulatedHeadroom(loaded, lake))
    except SearchEndedError as ended:
        # Headroom is searched for as if nothing ran: what does counts in the answer all the same.
        now = replace(ended.problem, init_share=inputs.problem.init_share, running=inputs.problem.running)
        hashed = inputs_hash(now, library_id, loaded)
        unsettled = PlanWarning(
            code="headroom", text="headroom is not settled: its SLOs may not hold at the planned demand"
        )
        return Choice(replace(inputs, problem=now, inputs_hash=hashed), with_start_up(now, ended.result), (unsettled,))
    alias = {workload.workload_id: workload.alias for workload in loaded.workloads}
    notes = tuple(
        PlanWarning(
            code="headroom",
            text=f"{alias[name]} is used to {used:.0%} of its rate at the planned demand; in simulation its SLO holds up to"
            f" {safe:.0%}, and no plan was found that keeps to it",
        )
        for name, (used, safe) in settled.short.items()
    )
    hashed = inputs_hash(settled.problem, library_id, loaded)
    settled_inputs = replace(inputs, problem=settled.problem, inputs_hash=hashed, set_aside=settled.set_aside)
    return Choice(settled_inputs, settled.result, notes, settled.fresh)


def solve(problem: AllocationProblem, stop: threading.Event | None = None) -> AllocationResult:
    """The solver's answer, refused unless it is a plan that the independent check accepts. Once ``stop`` is set, the best
    one so far; StoppedError where there is none."""
    from tasks.allocation.checker import check_result
    from tasks.allocation.covers.solver import solve_covers

    result = solve_covers(problem, replace(PLAN_LIMITS, stop=stop))
    if stop is not None and stop.is_set() and math.isinf(result.objective_usd):
        raise StoppedError()
    if result.status in (SolveStatus.ERROR, SolveStatus.INFEASIBLE):
        raise CoralError(
            f"no plan was found ({result.status.value}): {result.note}",
            remedy="plan fewer models at once, or report this with the scenario",
        )
    faults = check_result(problem, result)
    if faults:
        raise RuntimeError("the solver's answer fails the independent check: " + "; ".join(faults))
    return result


def _baselines(
    problem: AllocationProblem, everything: AllocationProblem, result: AllocationResult, stop: threading.Event
) -> PlanBaselines:
    """Homogeneous plans at the same demand, prices and supply, on rent alone: nothing of theirs runs yet. And the rent of a plan
    of ``everything``, with the templates that are set aside for headroom, whose instances are used to their whole rate, where
    demand is met with headroom too. None of them once ``stop`` is set: they would be worse than they need be."""
    from tasks.allocation.shares import with_headroom
    from tasks.baselines.homo import homo_greedy, homo_optimal

    try:
        full = solve(with_headroom(everything, {c.workload_id: 1.0 for c in problem.candidates}), stop)
    except StoppedError:
        return _NO_BASELINES
    problem = replace(problem, init_share=0.0, running={})
    optimal, greedy = homo_optimal(problem, replace(BASELINE_LIMITS, stop=stop)), homo_greedy(problem)
    if stop.is_set():
        return _NO_BASELINES
    return PlanBaselines(
        homo_optimal_usd_per_h=optimal.cost_usd_per_h,
        homo_optimal_lower_bound_usd_per_h=optimal.lower_bound_usd_per_h,
        homo_greedy_usd_per_h=greedy.cost_usd_per_h,
        note="; ".join(text for text in (optimal.missing, greedy.missing) if text),
        full_use_usd_per_h=full.cost_usd_per_h if result.theta >= 1 else None,
    )


def plan_document(
    loaded: LoadedScenario,
    lake: Lake,
    library_id: str,
    last: Plan | None,
    inputs: PlanningInputs,
    result: AllocationResult,
    baselines: PlanBaselines,
    notes: tuple[PlanWarning, ...],
    now: datetime,
    stop: threading.Event | None = None,
) -> Plan:
    """The plan document, checked column by column against the tables it came from. Once ``stop`` is set it does not look long
    for what would close a shortfall."""
    from flows.plan_notes import plan_reason, plan_warnings
    from tasks.allocation.plan_build import PlanMeta, build_plan
    from tasks.allocation.plan_checker import PlanFacts, check_plan
    from tasks.allocation.safety import with_safe_rates
    from tasks.allocation.shortfalls import explain_shortfalls
    from tasks.allocation.types import pool_name
    from warehouse import read

    templates = read.templates_by_id(lake, sorted({row.template_id for row in result.instances}))
    # With a safety percentile the plan states the rates it was made with, which are the lowered ones.
    templates = with_safe_rates(templates, loaded.scenario.policy.safety_percentile)
    slo_ms = {workload.workload_id: workload.slo_ms for workload in loaded.workloads}
    plan = build_plan(
        inputs.problem,
        result,
        templates=templates,
        offers={(pool_name(r, market), c): offer for (r, market, c), offer in loaded.by_market.items()},
        shortfalls=explain_shortfalls(inputs.problem, result, replace(BASELINE_LIMITS, stop=stop)),
        baselines=baselines,
        warnings=(),
        meta=PlanMeta(
            scenario_id=loaded.scenario.id,
            # After a rollback the current version is not the newest.
            plan_version=read.newest_version(lake, loaded.scenario.id) + 1,
            state=PlanState.DRAFT,
            created_at=now.isoformat(),
            reason="",
            inputs=PlanInputs(
                hash=inputs.inputs_hash,
                price_as_of=loaded.price_as_of.isoformat(),
                library_id=library_id,
                running_basis=inputs.running.basis.value,
                running_plan_version=inputs.running.plan_version,
                running_observed_at=inputs.running.observed_at.isoformat() if inputs.running.observed_at else None,
                engine=f"{loaded.scenario.engine.name} {loaded.scenario.engine.version or ''}".strip(),
            ),
            slo_ms=slo_ms,
        ),
    )
    basis = "simulated" if loaded.is_headroom_computed else "stated"
    plan = plan.model_copy(
        update={
            "warnings": (*plan_warnings(loaded, plan, result.note), *notes),
            "reason": plan_reason(loaded, plan, last),
            "workloads": tuple(row.model_copy(update={"headroom_basis": basis}) for row in plan.workloads),
        }
    )
    facts = PlanFacts(templates, {offer.offer_id: offer for offer in loaded.offers}, slo_ms)
    faults = check_plan(inputs.problem, plan, facts)
    if faults:
        raise RuntimeError("the plan fails the independent check: " + "; ".join(faults))
    return plan
