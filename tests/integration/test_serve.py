"""A Prefect server, a process worker and deployments for real, by `coral serve` and by prefect.yaml: the schedule fires, an
ingest leads to a new version of its own scenario, an alert reaches a webhook, a killed worker and a stopped server come back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_runner import coral
from flows_cases import family, is_alive, wait_until
from hook_cases import Hook
from serve_cases import PATIENCE_S, Serve

from catalogs.errors import CoralError
from flows.feed_events import announce_feed
from flows.server import client_env, prefect_environment
from flows.serving import serving
from warehouse.alerts import AlertEvent
from warehouse.lock import allocation_lock

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    serve = Serve(tmp_path_factory.mktemp("serve"))
    serve.ingest("tiny", 1)
    serve.start()
    yield serve
    if serve.reader is not None:
        serve.reader.close()
    for process in serve.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def client(served: Serve) -> Iterator[Any]:
    """A client of the served API, and the environment that points there."""
    now = served.serving()
    with prefect_environment(client_env(now.url, now.home)):
        from prefect.client.orchestration import get_client

        with get_client(sync_client=True) as client:
            yield client


def test_the_schedule_fires_and_a_plan_is_published(served: Serve, client: Any) -> None:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId

    served.wait(lambda: served.runs("plan_version = 1"))
    deployment = client.read_deployment_by_name("allocate/tiny")
    assert deployment.entrypoint == "flows.allocate_flow.allocate_flow"

    def scheduled_done() -> bool:
        by = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))
        runs = client.read_flow_runs(flow_run_filter=by)
        done = {str(run.id) for run in runs if run.auto_scheduled and run.state and run.state.is_completed()}
        return bool(done & {row[0] for row in served.runs()})

    served.wait(scheduled_done)
    assert {row[1] for row in served.runs()} <= {"published", "unchanged", "superseded"}
    assert len(served.runs("outcome = 'published'")) == 1


def test_a_publication_leaves_an_asset_an_event_and_artifacts(served: Serve, client: Any) -> None:
    kinds = {"coral-plan-tiny": "table", "coral-diff-tiny": "markdown", "coral-prices-tiny": "image"}
    found = {a["key"]: a for a in client.request("POST", "/artifacts/latest/filter", json={}).json()}
    assert {key: found[key]["type"] for key in kinds} == kinds
    assert "g6." in found["coral-plan-tiny"]["data"] or "L4" in found["coral-plan-tiny"]["data"]
    assert found["coral-prices-tiny"]["data"].startswith("data:image/svg+xml;base64,")
    names = ["coral.allocation.published", "prefect.asset.materialization.succeeded"]

    def events() -> set[tuple[str, str]]:
        wanted = {"filter": {"event": {"name": names}, "order": "DESC"}, "limit": 50}
        found = client.request("POST", "/events/filter", json=wanted).json()["events"]
        return {(event["event"], event["resource"]["prefect.resource.id"]) for event in found}

    expected = set(zip(names, ["coral.plan.tiny", "coral://plans/tiny"], strict=True))
    served.wait(lambda: events() == expected)


def test_an_ingest_is_planned_for_before_the_next_hour(served: Serve, client: Any) -> None:
    before, file, scenario = automated(client, "tiny"), served.demand_file("tiny", 40), served.scenario("tiny")
    done = coral("ingest", "demand", file, "-s", scenario, "--lake", served.lake, cwd=served.folder)
    assert (done.returncode, "told the schedule at" in done.stderr) == (0, True), done.stderr
    served.wait(lambda: served.runs("plan_version = 2 AND outcome = 'published'"))
    # The schedule fires every minute here and may be first.
    served.wait(lambda: automated(client, "tiny") != before)


def test_prefect_yaml_deploys_and_an_ingest_sets_off_its_own_scenario_alone(served: Serve, client: Any) -> None:
    stated = {"SCENARIO": str(served.scenario("other")), "SCENARIO_ID": "other", "LAKE": str(served.lake.resolve())}
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "prefect",
            "--no-prompt",
            "deploy",
            "--all",
            "--prefect-file",
            ROOT / "prefect.yaml",
        ],
        cwd=served.folder,
        env={**os.environ, **{f"CORAL_{name}": value for name, value in stated.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    deployment = client.read_deployment_by_name("allocate/other")
    # A limit's slot stays taken when its run's worker is killed: nothing would be planned until somebody sees it.
    assert (deployment.work_pool_name, deployment.global_concurrency_limit) == ("coral", None)
    assert [schedule.schedule.cron for schedule in deployment.schedules] == ["0 * * * *"]
    before = automated(client, "tiny")
    assert [note for note in served.ingest("other", 1).notes if note.startswith("told the schedule at")]
    served.wait(lambda: served.runs("outcome = 'published'", "other"))
    served.ingest("other", 40)
    served.wait(lambda: served.runs("plan_version = 2 AND outcome = 'published'", "other"))
    versions = {version: run_id for run_id, _, version in served.runs("outcome = 'published'", "other")}
    assert (list(versions), sorted(versions.values())) == ([1, 2], automated(client, "other"))
    assert automated(client, "tiny") == before


def automated(client: Any, name: str) -> list[str]:
    """Ids of a scenario's runs that an automation has asked for."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId

    deployment = client.read_deployment_by_name(f"allocate/{name}")
    by = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))
    runs = client.read_flow_runs(flow_run_filter=by)
    return sorted(str(run.id) for run in runs if run.created_by and run.created_by.type == "AUTOMATION")


@pytest.mark.usefixtures("client")
def test_an_automation_tells_the_blocks_webhook_once_per_event() -> None:
    from prefect.blocks.webhook import Webhook

    from flows.alerts import _tell_prefect
    from flows.automation import NAME, install_automation

    with pytest.raises(CoralError, match="there is no Prefect Webhook block 'coral-alerts'"):
        install_automation("coral-alerts")
    with Hook() as hook:

        def told() -> list[dict[str, Any]]:
            return [document for document in hook.got if document["scenario_id"] == "core"]

        Webhook(url=hook.url).save("coral-alerts")
        assert install_automation("coral-alerts") == f"made the automation {NAME!r}"
        assert install_automation("coral-alerts") == f"renewed the automation {NAME!r}"
        for event in ("fired", "cleared"):
            given = AlertEvent(event, "core", "gap", "", event, datetime.now(UTC), 'the "gap" is wide')
            assert _tell_prefect([given]) == []
            assert wait_until(lambda: told() and told()[-1]["event"].endswith(event), 120)  # noqa: B023 - used at once
        assert told() == [
            {
                "event": f"coral.alert.{event}",
                "scenario_id": "core",
                "kind": "gap",
                "subject": "",
                "text": 'the "gap" is wide',
            }
            for event in ("fired", "cleared")
        ]


def test_a_killed_worker_takes_its_run_along_and_another_goes_on(served: Serve, client: Any) -> None:
    before = served.serving()
    with allocation_lock(served.lake.resolve(), "tiny", "coral plan of a person", PATIENCE_S):
        # No run gets its turn while somebody else allocates, so one is waiting when the worker is killed.
        held = len(served.runs())
        announce_feed("demand", served.lake, "tiny")

        def waiting() -> list[psutil.Process]:
            # One that has decided, or sees that it came too late, still runs for a moment.
            found = processes_of(before.worker_pid, running(client))
            time.sleep(4)
            decided = {run[0] for run in served.runs()}
            return [each for each in found if is_alive(each.pid) and run_id_of(each) not in decided]

        lost: list[psutil.Process] = []
        served.wait(lambda: lost or lost.extend(waiting()))
        lost_id = run_id_of(lost[0])
        os.kill(before.worker_pid, signal.SIGKILL)
        served.wait(lambda: not any(is_alive(child.pid) for child in lost))
        after = served.serving(lambda now: now.worker_pid == before.worker_pid)
        assert after.server_pid == before.server_pid
        served.wait(lambda: served.runs(f"run_id = '{lost_id}'"))
        assert served.runs(f"run_id = '{lost_id}'")[0][1] == "failed"
        assert client.read_flow_run(lost_id).state.is_crashed()
        assert {row[1] for row in served.runs()[held:]} <= {"failed", "superseded"}
    decided = len(served.runs("outcome IN ('unchanged', 'published')"))
    served.wait(lambda: len(served.runs("outcome IN ('unchanged', 'published')")) > decided)


def run_id_of(process: psutil.Process) -> str:
    return process.environ()["PREFECT__FLOW_RUN_ID"]


def processes_of(worker_pid: int, runs: list[Any]) -> list[psutil.Process]:
    """Children of a worker that execute one of these runs."""
    names, found = {str(run.id) for run in runs}, []
    for child in psutil.Process(worker_pid).children(recursive=True):
        try:
            if child.environ().get("PREFECT__FLOW_RUN_ID") in names:
                found.append(child)
        except psutil.Error:
            continue  # it has just ended
    return found


def running(client: Any) -> list[Any]:
    from prefect.client.schemas.filters import FlowRunFilter

    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING"]}}})
    )


def test_it_goes_on_after_a_kill_and_when_its_server_ends_and_stops_whole(served: Serve) -> None:
    first = served.processes[-1]
    pids = family(first.pid)
    assert len(pids) >= 3
    first.kill()
    first.wait()
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 15)
    assert serving(served.lake) is None

    known = {run_id for run_id, *_ in served.runs()}
    before = served.start()
    decided = "outcome IN ('unchanged', 'published')"
    served.wait(lambda: {run_id for run_id, *_ in served.runs(decided)} - known)
    os.kill(before.server_pid, signal.SIGKILL)
    after = served.serving(lambda now: now.server_pid == before.server_pid)
    assert (after.pid, is_alive(before.worker_pid)) == (before.pid, False)
    known = {run_id for run_id, *_ in served.runs()}
    served.wait(lambda: {run_id for run_id, *_ in served.runs(decided)} - known)

    pids = family(served.processes[-1].pid)
    served.processes[-1].terminate()
    assert served.processes[-1].wait(PATIENCE_S) == 0
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids), 15)
