"""Coral's own Prefect API server, for when none is configured.

The server runs in one child process, bound to loopback on a free port, with its home and database under the lake, and
dies with the process that started it, also on ``kill -9``. It is started without importing prefect here: importing
prefect in the caller and starting the server can overlap.

Concurrent commands never share a database: each takes the first free *slot* (a folder with a lock file). The lock is
held by the server process itself, so a slot frees itself when its server is gone, however that came about. A slot's
database is kept, and a new one begins as a copy of an empty one (:mod:`flows.server_database`).

Run as ``python -m flows.server`` this module is that child; it then imports nothing but the standard library until it
is tied to its parent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from catalogs.errors import CoralError
from flows.server_database import begin_with_copy, is_new, keep_copy
from flows.tied import die_with_parent

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 3.0
_ANSWER_TIMEOUT_S = 10.0
_MAX_SLOTS = 64
# The server's database and its log, once; with less room than this it does not start, and cannot say why.
_SERVER_BYTES = 1 << 20
_OWN, _WHOLE = "own", "whole"

# Quiet and private. Task results stay out of Prefect's storage: the lake's own files are what makes a run resumable.
PRIVATE_ENV = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Failures reach the caller as exceptions; prefect would print each once more, with its own traceback.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PYTHONSAFEPATH": "1",
}
# Everything that serves deployments and schedules: a command's own server lives as long as it and has neither.
_SERVER_ENV = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}
# The UI's pages name the server by this path of whatever address they came from.
_WHOLE_ENV = {"PREFECT_SERVER_UI_API_URL": "/api", "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}


def configured_api_url() -> str | None:
    """The Prefect API that the environment names (``PREFECT_API_URL``), or None: then Coral starts its own."""
    return os.environ.get("PREFECT_API_URL") or None


def client_env(api_url: str, home: Path) -> dict[str, str]:
    """Environment variables under which prefect talks to ``api_url`` and keeps its files in ``home``."""
    return {**PRIVATE_ENV, "PREFECT_API_URL": api_url, "PREFECT_HOME": str(home), "NO_PROXY": _no_proxy()}


@contextlib.contextmanager
def api_server(lake_root: Path, preload: Callable[[], object] | None = None) -> Iterator[str]:
    """The URL of a Prefect API for the time of the block: the configured one, else an own server under ``lake_root``.

    The process' environment (and prefect's settings, if it is imported already) point to it inside the block, so that
    flows, tasks in threads and workers that inherit the environment all see it. ``preload`` is called while the own
    server starts, with the environment set: the place to import prefect. Raises CoralError when the server does not
    start, or the configured one does not answer.
    """
    configured = configured_api_url()
    if configured is not None:
        _require_answer(configured)
        with prefect_environment({key: value for key, value in PRIVATE_ENV.items() if key not in os.environ}):
            if preload is not None:
                preload()
            yield configured
        return
    with ApiServer(lake_root) as server, prefect_environment(client_env(server.url, server.home)):
        if preload is not None:
            preload()
        yield server.wait_ready()


def _require_answer(url: str) -> None:
    """Raise CoralError unless something answers HTTP at ``url``; whether it lets us in is prefect's business."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_ANSWER_TIMEOUT_S):  # noqa: S310
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        raise CoralError(
            f"no Prefect server answers at PREFECT_API_URL {url} ({getattr(error, 'reason', error)})",
            remedy="start it (`prefect server start`), or unset PREFECT_API_URL to have one for each command",
        ) from error


class ApiServer:
    """An own server, starting from the moment of construction; :meth:`wait_ready` gives its URL.

    Must be used as a context manager (or be :meth:`stop` ped), by the thread that made it: the child is tied to it.
    ``slot`` None = a command's own, in the first free slot, with the API alone. A named slot is that of `coral serve`: the
    whole server, with schedules, triggers and the UI. ``port`` 0 = any that is free.
    """

    def __init__(self, lake_root: Path, *, slot: str | None = None, port: int = 0) -> None:
        root = lake_root.resolve() / "prefect"
        self.home, lock = _take_slot(root) if slot is None else _take_named(root / slot)
        with lock, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
            # Bound but not listening: the port is ours from now on, and connecting fails until the server answers.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(bound, port)
            self.port: int = bound.getsockname()[1]
            begin_with_copy(self.home)
            self._has_new_database = is_new(self.home)
            self.process = _spawn(self.home, bound, lock, _OWN if slot is None else _WHOLE)

    @property
    def url(self) -> str:
        """The API's URL (it answers once :meth:`wait_ready` has returned)."""
        return f"http://{LOOPBACK}:{self.port}/api"

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Wait until the API answers; its URL. Raises CoralError when the server ends or does not answer in time."""
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self.process.poll() is not None:
                raise self._start_error(f"ended with code {self.process.returncode} while starting")
            if time.monotonic() > deadline:
                raise self._start_error(f"did not answer within {timeout_s:.0f} s")
            time.sleep(0.05)
        if self._has_new_database:
            keep_copy(self.home)
            self._has_new_database = False
        return self.url

    def stop(self) -> None:
        """End the server and wait for it; safe to call twice."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=5)
        try:
            connection.request("GET", "/api/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _start_error(self, what: str) -> CoralError:
        if shutil.disk_usage(self.home).free < _SERVER_BYTES:
            from warehouse.faults import disk_full

            return disk_full(self.home.parents[1])
        log = self.home / "server.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        detail = f": {lines[-1].strip()}" if lines else ""
        return CoralError(
            f"the Prefect API server of this command {what}{detail}",
            remedy=f"see {log}, or set PREFECT_API_URL to a running Prefect server",
        )


def _take_slot(root: Path) -> tuple[Path, IO[bytes]]:
    """The first slot folder under ``root`` that no running server holds, and its lock file, locked."""
    for number in range(_MAX_SLOTS):
        home = root / f"slot-{number}"
        lock = _try_lock(home)
        if lock is not None:
            return home, lock
    raise CoralError(
        f"{_MAX_SLOTS} commands with a Prefect API server of their own already run in {root}",
        remedy="wait for some to end, or set PREFECT_API_URL to a running Prefect server",
    )


def _take_named(home: Path) -> tuple[Path, IO[bytes]]:
    lock = _try_lock(home)
    if lock is None:
        raise CoralError(
            f"a Prefect server already runs in {home}", remedy="end the `coral serve` it belongs to, or use that one"
        )
    return home, lock


def _try_lock(home: Path) -> IO[bytes] | None:
    """The slot's lock file, locked; None where another holds it."""
    home.mkdir(parents=True, exist_ok=True)
    lock = (home / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _bind(bound: socket.socket, port: int) -> None:
    try:
        bound.bind((LOOPBACK, port))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise CoralError(
            f"port {port} of {LOOPBACK} cannot be had: {error.strerror}",
            remedy="end what uses it, or name another port",
        ) from error


def _spawn(home: Path, bound: socket.socket, lock: IO[bytes], kind: str) -> subprocess.Popen[bytes]:
    descriptors = (bound.fileno(), lock.fileno())
    arguments = [sys.executable, "-P", "-m", "flows.server", str(os.getpid()), str(descriptors[0]), kind]
    # How to run a server that lasts is its owner's to set; a command's own takes nothing from outside.
    kept = ("PREFECT_SERVER_",) if kind == _WHOLE else ()
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("PREFECT_") or key.startswith(kept)
    }
    settings = {**PRIVATE_ENV, **(_SERVER_ENV if kind == _OWN else _WHOLE_ENV)}
    with (home / "server.log").open("wb") as log:
        return subprocess.Popen(
            arguments,
            # Its own folder: prefect reads .env, prefect.toml and pyproject.toml of the working folder.
            cwd=home,
            env={**inherited, **settings, "PREFECT_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            # Ctrl-C in the terminal must reach the flow only: it stops the server once it has said its last word.
            start_new_session=True,
        )


def _no_proxy() -> str:
    """``NO_PROXY`` with loopback in it: a configured proxy must not get between us and our own server."""
    known = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = [host for host in known.split(",") if host]
    return ",".join([*hosts, *(host for host in (LOOPBACK, "localhost") if host not in hosts)])


@contextlib.contextmanager
def prefect_environment(updates: dict[str, str]) -> Iterator[None]:
    """Set environment variables inside the block, telling prefect (when imported), and put them back after it."""
    before = {key: os.environ.get(key) for key in updates}
    os.environ.update(updates)
    _refresh_prefect()
    try:
        yield
    finally:
        _drain_prefect()
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        # Without a home of ours, prefect would make one in the user's folder just by reading its settings. It then keeps
        # the old ones until the next block.
        if "PREFECT_HOME" in os.environ:
            _refresh_prefect()


def _refresh_prefect() -> None:
    if "prefect.context" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


def _drain_prefect() -> None:
    """Send queued events before the server goes: prefect would go on trying to reach it at exit."""
    if "prefect.events.worker" in sys.modules:
        from prefect.events.worker import EventsWorker

        EventsWorker.drain_all(timeout=2)


def _serve(bound: socket.socket, *, is_whole: bool) -> None:
    """Serve the API on an already bound socket, in this process, until SIGTERM."""
    import uvicorn
    from prefect.server.api.server import create_app

    # "ephemeral": only the services that record runs and events, no UI. Whole: also schedules, triggers, automations.
    app = create_app(ephemeral=not is_whole, final=True)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[bound])


def _main(arguments: list[str]) -> None:
    parent, descriptor, kind = arguments
    die_with_parent(int(parent))
    _serve(socket.socket(fileno=int(descriptor)), is_whole=kind == _WHOLE)


if __name__ == "__main__":
    _main(sys.argv[1:])
