"""`coral serve` for real: server, worker, schedule, a feed that changes, a killed worker, a server that comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from flows_cases import family, is_alive, wait_until, write_demand, write_tiny_scenario

from flows.feed_events import announce_feed
from flows.server import client_env, prefect_environment
from flows.serving import Serving, serving
from warehouse.connect import Lake
from warehouse.lock import allocation_lock

pytestmark = pytest.mark.integration
# An idle machine needs a tenth of it.
PATIENCE_S = 300


@dataclass
class Serve:
    """A scenario in a folder, its lake, and the `coral serve` processes started for it."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    reader: Lake | None = (
        None  # kept open: opening one takes a quarter of a second of processor, and it is asked for often
    )

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def start(self) -> Serving:
        code = "import sys; from flows.start import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", code, "serve", "-s", str(self.folder / "scenario.yaml")]
        command += ["--lake", str(self.lake), "--every", "0.5", "--window", "30", "--port", "0"]
        with (self.folder / "serve.log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log))
        return self.serving()

    def serving(self, but: Callable[[Serving], bool] = lambda _: False) -> Serving:
        """What serves, once it does and is not what ``but`` says."""
        found: list[Serving] = []

        def look() -> bool:
            now = serving(self.lake)
            if now is not None and not but(now):
                found.append(now)
            return bool(found)

        self.wait(look)
        return found[0]

    def wait(self, condition: Callable[[], Any]) -> None:
        assert wait_until(lambda: bool(condition()) or self.processes[-1].poll() is not None, PATIENCE_S, 0.5)
        assert condition(), (self.folder / "serve.log").read_text()[-2000:]

    def runs(self, where: str = "true") -> list[tuple[Any, ...]]:
        """(run_id, outcome, plan_version) of logged runs, in the order they ended."""
        if not Lake.exists(self.lake):
            return []
        if self.reader is None:
            self.reader = Lake.open(self.lake, read_only=True)
        return self.reader.connection.execute(
            f"SELECT run_id, outcome, plan_version FROM allocation_runs WHERE {where} ORDER BY logged_at"
        ).fetchall()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    serve = Serve(tmp_path_factory.mktemp("serve"))
    write_tiny_scenario(serve.folder)
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


def test_a_feed_that_changes_leads_to_a_new_version(served: Serve, client: Any) -> None:
    makers = []
    for number, demand in enumerate((40, 80, 120)):  # the schedule may be first once, not always
        write_demand(served.folder, demand)
        assert announce_feed("demand", served.lake, {"rows": 1}).startswith("told the schedule at")
        served.wait(lambda version=2 + number: served.runs(f"plan_version = {version} AND outcome = 'published'"))
        [(run_id, *_)] = served.runs(f"plan_version = {2 + number} AND outcome = 'published'")
        makers.append(client.read_flow_run(run_id).created_by.type)
        if makers[-1] == "AUTOMATION":
            break
    assert makers[-1] == "AUTOMATION"


def test_a_killed_worker_takes_its_run_along_and_another_goes_on(served: Serve, client: Any) -> None:
    before = served.serving()
    with allocation_lock(served.lake.resolve(), "tiny", "coral plan of a person", PATIENCE_S):
        # No run gets its turn while somebody else allocates, so one is waiting when the worker is killed.
        held = len(served.runs())
        announce_feed("demand", served.lake)

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
