"""Deployments of the allocation flow, as `coral serve` registers them; ``prefect.yaml`` states the same for other servers.

Importing this module imports prefect.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.schedules import Cron, Interval
from prefect.states import Crashed
from prefect.types.entrypoint import EntrypointType
from prefect.workers.process import ProcessWorker

from flows.allocate_flow import allocate_flow
from flows.feed_events import FEED_CHANGED, FEED_PREFIX, LAKE_LABEL, SCENARIO_LABEL
from flows.serving import Served
from flows.turn import RunRequest, log_undecided

POOL = "coral"
TAG = "coral-serve"
ENTRYPOINT = f"{allocate_flow.__module__}.{allocate_flow.fn.__name__}"
# What a flow run is started with: tied to its worker, so that none goes on when that is killed.
RUN_MODULES = ("-P", "-m", "flows.tied", "-", "prefect.engine")
# Windows begin at round times of the clock, whenever they were asked for.
_ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)
_UNFINISHED = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def feed_trigger(scenario_id: str, lake_root: Path) -> DeploymentEventTrigger:
    """Fires once for every changed feed of the scenario in this lake."""
    return DeploymentEventTrigger(
        name="a feed has changed",
        expect={FEED_CHANGED},
        match={
            "prefect.resource.id": f"{FEED_PREFIX}*",
            SCENARIO_LABEL: scenario_id,
            LAKE_LABEL: str(lake_root.resolve()),
        },
    )


def deployment(served: Served, lake_root: Path) -> RunnerDeployment:
    """The deployment of one scenario, named after it."""
    return RunnerDeployment.from_flow(
        allocate_flow,
        name=served.scenario_id,
        schedule=Cron(served.cron, timezone="UTC")
        if served.cron
        else Interval(timedelta(minutes=served.every_minutes), anchor_date=_ANCHOR),
        triggers=[feed_trigger(served.scenario_id, lake_root)],
        parameters={
            "scenario": served.scenario,
            "lake": str(lake_root),
            "window_minutes": served.window_minutes,
            "dask_address": served.dask_address,
            "scenario_id": served.scenario_id,
        },
        tags=[TAG],
        work_pool_name=POOL,
        job_variables={"command": shlex.join([sys.executable, *RUN_MODULES])},
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def register(items: Sequence[Served], lake_root: Path) -> None:
    """Make the work pool and the deployments, drop those of an earlier `coral serve`, and ask for one run of each now."""
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        names = {item.scenario_id for item in items}
        for known in client.read_deployments():
            if TAG in known.tags and known.name not in names:
                client.delete_deployment(known.id)
        for item in items:
            identity: Any = deployment(item, lake_root).apply()
            client.create_flow_run_from_deployment(identity)


def close_lost_runs(lake_root: Path) -> int:
    """Record as crashed, and in the lake as failed, the runs of our pool whose worker has ended; how many there were.

    Each of their deployments gets a new run at once: the window is not over because a worker was killed.
    """
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": _UNFINISHED}}}),
            work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [POOL]}}),
        )
        for run in runs:
            client.set_flow_run_state(run.id, Crashed(message="its worker has ended"), force=True)
            _log_lost(lake_root, run)
        for identity in {run.deployment_id for run in runs if run.deployment_id is not None}:
            client.create_flow_run_from_deployment(identity)
        return len(runs)


def _log_lost(lake_root: Path, run: FlowRun) -> None:
    from warehouse.connect import Lake
    from warehouse.runs import has_run

    scenario_id = run.parameters.get("scenario_id")
    if not scenario_id or not Lake.exists(lake_root):
        return
    with Lake.open(lake_root, create=False) as lake:
        if not has_run(lake, str(run.id)):
            began = run.start_time or run.expected_start_time or datetime.now(UTC)
            error = RuntimeError("its process has ended before it had decided")
            log_undecided(lake, str(scenario_id), RunRequest(str(run.id)), began, error)
