"""Coral's own Prefect API server: one per command, on loopback only, gone with its parent."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from flows_cases import is_alive, wait_until

from catalogs.errors import CoralError, LakeError
from flows.server import ApiServer, api_server

pytestmark = pytest.mark.integration

HOLD = """
import sys, time
from pathlib import Path
from flows.server import ApiServer
server = ApiServer(Path(sys.argv[1]))
print(server.process.pid, server.port, flush=True)
if sys.argv[2] == "ready":
    server.wait_ready()
print("ready", flush=True)
time.sleep(600)
"""


def is_free(slot: Path) -> bool:
    with (slot / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_the_url_answers_and_the_environment_points_to_it(api_url: str) -> None:
    assert os.environ["PREFECT_API_URL"] == api_url
    assert api_url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(f"{api_url}/health") as answer:
        assert json.load(answer) is True


def test_it_listens_on_loopback_only(api_url: str) -> None:
    port = int(api_url.rsplit(":", 1)[1].partition("/")[0])
    listening = [
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    ]
    assert listening == [f"0100007F:{port:04X}"]


def test_a_second_command_gets_a_server_and_database_of_its_own(api_url: str, server_lake: Path) -> None:
    with ApiServer(server_lake) as other:
        assert other.wait_ready() != api_url
        assert other.home.name == "slot-1"
        assert (other.home / "prefect.db").exists()
        assert is_alive(other.process.pid)
    assert not is_alive(other.process.pid)


def test_a_configured_server_is_used_and_none_started(
    session_api_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", session_api_url)
    before = dict(os.environ)
    with api_server(tmp_path) as url:
        assert url == session_api_url
        assert os.environ["DO_NOT_TRACK"] == "1"
    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []


def test_a_configured_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with (
        pytest.raises(CoralError, match=r"no Prefect server answers .*127\.0\.0\.1:9/api .*unset PREFECT_API_URL"),
        api_server(tmp_path),
    ):
        pytest.fail("there is no server")


@pytest.mark.parametrize("moment", ["ready", "starting"])
def test_kill_9_of_the_parent_ends_the_server_and_frees_its_slot(
    tmp_path: Path, server_lake: Path, moment: str
) -> None:
    command = [sys.executable, "-P", "-c", HOLD, str(server_lake), moment]
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline().split()[0])
    assert parent.stdout.readline().strip() == "ready"
    assert is_alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: not is_alive(pid), 10)
    # slot-0 is the session's own server
    assert wait_until(lambda: is_free(server_lake / "prefect" / "slot-1"), 10)


def test_a_server_that_cannot_start_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    home = tmp_path / "prefect" / "slot-0"
    home.mkdir(parents=True)
    (home / "prefect.db").write_bytes(b"this is not a database, it only has its name" * 100)
    with pytest.raises(CoralError) as caught, ApiServer(tmp_path) as server:
        server.wait_ready(60)
    assert "\n" not in str(caught.value)
    assert "PREFECT_API_URL" in str(caught.value)
    assert not is_alive(server.process.pid)


def test_a_server_that_has_no_room_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = object.__new__(ApiServer)
    server.home = tmp_path / "lake/prefect/slot-0"
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    error = server._start_error("ended with code 3 while starting")
    assert isinstance(error, LakeError)
    assert f"the disk is full: nothing was changed in the lake in {tmp_path / 'lake'}" in str(error)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert "ended with code 3" in str(server._start_error("ended with code 3 while starting"))
