"""``coral api`` as a process of its own on a free port of loopback, while another process publishes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from published_cases import SCENARIO, publish, published_lake

pytestmark = pytest.mark.integration
START_S = 120.0


@dataclass
class Server:
    url: str
    root: Path
    process: subprocess.Popen[str]

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, dict[str, str]]:
        """(status, JSON document or text, headers)."""
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, body, found = answer.status, answer.read().decode(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            status, body, found = error.code, error.read().decode(), dict(error.headers)
        is_json = found.get("content-type", "").startswith("application/json")
        return status, json.loads(body) if is_json else body, found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = published_lake(tmp_path_factory.mktemp("api-lake"))
    code = "import sys; from flows.start import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "api", "--port", "0", "--lake", str(root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        line = process.stderr.readline()
        watchdog.cancel()
        assert " at http://127.0.0.1:" in line, line
        url = line.split(" at ")[1].split("/,")[0]
        yield Server(url, root, process)
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_plans_versions_difference_and_schema(server: Server) -> None:
    status, plan, headers = server.get(f"/scenarios/{SCENARIO}/plans/2")
    assert (status, plan["plan_version"], plan["cost_usd_per_h"]) == (200, 2, 40.0)
    schema = server.get("/schema/plan.json")[1]
    jsonschema.validate(plan, schema)
    tag = headers["etag"]
    assert server.get(f"/scenarios/{SCENARIO}/plans/2", **{"If-None-Match": tag})[0] == 304
    assert [row["plan_version"] for row in server.get(f"/scenarios/{SCENARIO}/plans")[1]][-2:] == [2, 1]
    diff = server.get(f"/scenarios/{SCENARIO}/plans/1/diff/2")[1]
    decode = next(row for row in diff["rows"] if row["workload"] == "qwen3-32b/decode")
    assert (decode["add"], decode["keep"], decode["remove"], diff["cost_delta_usd_per_h"]) == (1, 2, 0, 10.0)
    assert server.get("/health")[1]["status"] == "ok"
    assert f'coral_plan_version{{scenario="{SCENARIO}"}}' in server.get("/metrics")[1]


@pytest.mark.parametrize(
    ("path", "method", "status", "said"),
    [
        (f"/scenarios/{SCENARIO}/plans/99", "GET", 404, "unknown plan version '99'. To fix: use one of: 1, 2"),
        ("/scenarios/my-prd/plan", "GET", 404, "did you mean my-prod?"),
        (f"/scenarios/{SCENARIO}/plans/two", "GET", 422, "version 'two'"),
        (f"/scenarios/{SCENARIO}/plans/1/diff/99", "GET", 404, "unknown plan version '99'"),
        ("/nothing", "GET", 404, "/ lists what there is"),
        (f"/scenarios/{SCENARIO}/plan", "POST", 405, "use GET"),
        (f"/scenarios/{SCENARIO}/plans/1", "DELETE", 405, "use GET"),
    ],
)
def test_every_error_is_one_clear_line(server: Server, path: str, method: str, status: int, said: str) -> None:
    code, document, _ = server.get(path, method)
    assert code == status
    assert list(document) == ["error"]
    assert said in document["error"]
    assert "\n" not in document["error"]


def test_nothing_can_be_written(server: Server) -> None:
    methods = {method for routes in server.get("/openapi.json")[1]["paths"].values() for method in routes}
    assert methods == {"get"}


def test_readers_are_served_whole_plans_while_plans_are_published(server: Server) -> None:
    """Each answer is one version, whole; versions never go back; the new one is seen without a restart."""
    seen: list[tuple[int, float, int]] = []
    faults: list[Any] = []
    stop = threading.Event()

    def read_on() -> None:
        while not stop.is_set():
            status, plan, _ = server.get(f"/scenarios/{SCENARIO}/plan")
            if status != 200:
                faults.append(plan)
                return
            time.sleep(0.1)
            decode = next(row for row in plan["instances"] if row["workload"].endswith("decode"))
            seen.append((plan["plan_version"], plan["cost_usd_per_h"], decode["instances"]))

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    for instances in (4, 5):
        publish(server.root, instances, 10.0 * (instances + 1), f"run-{instances}")
    time.sleep(1.0)
    stop.set()
    for reader in readers:
        reader.join(60)
    assert faults == []
    # Version v has v + 1 decode instances and costs 10 x (v + 2): published_cases and the loop above.
    assert all((cost, instances) == (10.0 * (version + 2), version + 1) for version, cost, instances in seen)
    assert server.get(f"/scenarios/{SCENARIO}/plan")[1]["plan_version"] == 4


def test_a_port_that_is_taken_and_a_lake_that_is_not_there_are_one_line(server: Server, tmp_path: Path) -> None:
    code = "import sys; from flows.start import main; sys.exit(main())"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for args, exit_code, said in (
            (["--port", port, "--lake", str(server.root)], 2, "Address already in use"),
            (["--port", "0", "--lake", str(tmp_path / "none")], 6, "there is no lake"),
        ):
            done = subprocess.run(
                [sys.executable, "-c", code, "api", *args], capture_output=True, text=True, check=False
            )
            assert done.returncode == exit_code
            assert said in done.stderr
            assert len(done.stderr.splitlines()) == 1
