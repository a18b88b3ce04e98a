"""The Prefect flow that plans a scenario on a schedule or when a feed changes: build if needed, allocate, publish.

Deployed by ``prefect.yaml`` and by `coral serve` as ``flows.allocate_flow.allocate_flow``. Importing this module imports
prefect, which reads its settings from the environment at that moment.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from catalogs.errors import CoralError, HeldError
from catalogs.scenario import load_scenario
from flows.alerts import check_after_run
from flows.cli_progress import LineProgress
from flows.planning import plan_scenario
from flows.publication import announce, announce_undecided
from flows.secrets import load_secrets
from flows.settings import BuildSettings, lake_root_of
from flows.turn import RunRequest, SupersededError, log_undecided, undecided_outcome

FLOW_NAME = "allocate"
_STATE_NAMES = {
    "published": "Published",
    "unchanged": "Unchanged",
    "superseded": "Superseded",
    "held_unknown_demand": "Held",
    "held_stale": "HeldStale",
    "held_for_approval": "HeldForApproval",
}


@flow(name=FLOW_NAME, flow_run_name="allocate {scenario}", persist_result=False)
def allocate_flow(
    scenario: str = "core",
    lake: str | None = None,
    window_minutes: float | None = None,
    dask_address: str | None = None,
    scenario_id: str | None = None,
) -> State[Any]:
    """Plan ``scenario`` (a shipped name or a path) in ``lake`` and publish the plan, unless nothing changes.

    A run that starts more than ``window_minutes`` (None: the scenario's interval) after it was due is superseded, not
    executed. ``scenario_id`` is what a failure is logged under where the scenario itself cannot be read. A run that decides
    nothing leaves the last plan current; every run is logged in ``allocation_runs``, under its id in Prefect, and is
    followed by a check of the alerts.
    """
    load_secrets()
    settings = BuildSettings(scenario=scenario, lake_root=lake_root_of(lake), dask_address=dask_address)
    try:
        return _run(settings, window_minutes, scenario_id)
    finally:
        for line in check_after_run(settings.lake_root, scenario, scenario_id):
            LineProgress().message(line)


def _run(settings: BuildSettings, window_minutes: float | None, scenario_id: str | None) -> State[Any]:
    """Plan and publish, log and announce what became of it; the flow's final state."""
    started = datetime.now(UTC)
    request = RunRequest(run_id=str(flow_run.id), due=flow_run.scheduled_start_time, window_s=0.0)
    try:
        loaded = load_scenario(settings.scenario).scenario
        scenario_id = loaded.id
        minutes = loaded.policy.interval_minutes if window_minutes is None else window_minutes
        request = RunRequest(request.run_id, request.due, minutes * 60)
        request.refuse_late(scenario_id)
        outcome = plan_scenario(settings, LineProgress(), request)
        if outcome.is_interrupted:
            raise CoralError(outcome.text)
    except HeldError as error:
        if isinstance(error, SupersededError):  # others were logged where the lake was open
            _log(settings.lake_root, scenario_id, request, started, error)
        kind = undecided_outcome(error).value
        announce_undecided(kind, scenario_id, str(error))
        return Completed(name=_STATE_NAMES[kind], message=str(error))
    except BaseException as error:
        _log(settings.lake_root, scenario_id, request, started, error)
        announce_undecided("failed", scenario_id, str(error) or type(error).__name__)
        raise
    announce(outcome, settings.lake_root)
    return Completed(name=_STATE_NAMES[outcome.run_outcome or "unchanged"], message=outcome.text)


def _log(
    lake_root: Path, scenario_id: str | None, request: RunRequest, started: datetime, error: BaseException
) -> None:
    """Log a run that decided nothing. What keeps it from being logged must not hide why it decided nothing."""
    from warehouse.connect import Lake

    try:
        if scenario_id is not None and Lake.exists(lake_root):
            with Lake.open(lake_root, create=False) as lake:
                log_undecided(lake, scenario_id, request, started, error)
    except CoralError as unlogged:
        LineProgress().message(f"the run could not be logged in the lake: {unlogged}")
