"""`coral serve`: a Prefect server, a worker and the schedules of some scenarios, on loopback, as one thing.

The server and the worker are children that end with this process, however it ends; a flow run is a child of the worker
that ends with it. One that ends by itself is started again. Nothing is left running, and nothing is lost: the lake holds
every published plan, the server's database the schedule, and a run whose process was killed is recorded as failed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from catalogs.errors import CoralError, clipped
from catalogs.wording import counted
from flows.alert_timer import DEFAULT_MINUTES, alerts_checked
from flows.server import ApiServer, client_env, prefect_environment
from flows.serving import SLOT, Served, Serving, serving_lock
from flows.settings import Progress

DEFAULT_PORT = 4200
_LOOK_S = 0.5
_WORKER_STOP_S = 5.0
# A child that ends sooner than this after its start has something wrong that another start will not mend.
_TOO_SOON_S = 20.0
_MOST_TOO_SOON = 3
# Flow runs at a time: allocations of one scenario wait for each other anyway.
_MOST_RUNS = 4


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What to serve: scenarios by name or path, in one lake, every ``every_minutes`` (None: the scenario's interval) or at
    the times of ``cron``. ``window_minutes`` None = ``every_minutes``, with ``cron`` the scenario's interval. Alerts are
    checked after every run, and every ``alerts_minutes`` as well (0 = only then)."""

    scenarios: tuple[str, ...]
    lake_root: Path
    every_minutes: float | None = None
    cron: str | None = None
    window_minutes: float | None = None
    port: int = DEFAULT_PORT
    dask_address: str | None = None
    alerts_minutes: float = DEFAULT_MINUTES


def serve(settings: ServeSettings, progress: Progress) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises the catalogs' errors for a scenario that cannot be read, CoralError for a lake
    that is served already, a port that is taken, or a child that does not stay up."""
    stop = threading.Event()
    root = settings.lake_root.resolve()
    with serving_lock(root) as state, _signals_set(stop):
        items = served(settings)
        with alerts_checked(root, items, settings.alerts_minutes, progress):
            _serve(root, items, settings.port, state, stop, progress)


def _serve(
    root: Path,
    items: list[Served],
    port: int,
    state: Callable[[Serving], None],
    stop: threading.Event,
    progress: Progress,
) -> None:
    """Run the server, and start it again where it ends by itself, until ``stop`` is set."""
    restarts = _Restarts()
    while not stop.is_set():
        with ApiServer(root, slot=SLOT, port=port) as server:
            environment = {**client_env(server.url, server.home), **_CHILD_ENV}
            with prefect_environment(environment):
                from flows import deployments

                server.wait_ready()
                deployments.close_lost_runs(root)
                if not restarts.count:
                    deployments.register(items, root)
                names = ", ".join(item.scenario_id for item in items)
                address = server.url.removesuffix("/api")
                progress.message(f"serving {names} of {root}; Prefect's pages: {address}")
                _keep_worker(root, server, state, stop, restarts, progress)
        if not stop.is_set():
            restarts.note("the Prefect server", server.home / "server.log")
            progress.message("the Prefect server has ended: starting it again")


# The five fields of a cron line: least and most of their numbers, and names that stand for some.
_CRON_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_CRON_PART = re.compile(r"(?:\*|([A-Za-z0-9]+)(?:-([A-Za-z0-9]+))?)(?:/([1-9][0-9]*))?")


def check_cron(text: str) -> None:
    """Raise CoralError for what is no cron line of five fields: here, and not once a server runs."""
    fields = text.split()
    wrong = "" if len(fields) == len(_CRON_FIELDS) else f"{counted(len(fields), 'field')} of {len(_CRON_FIELDS)}"
    for value, (name, least, most, names) in zip(fields, _CRON_FIELDS, strict=False):
        for part in value.split(","):
            found = _CRON_PART.fullmatch(part)
            ends = [end for end in (found.groups()[:2] if found else ("",)) if end is not None]
            if not all(end.lower() in names or (end.isdecimal() and least <= int(end) <= most) for end in ends):
                wrong = wrong or f"its {name} is {clipped(part, 40)!r}"
    if wrong:
        raise CoralError(
            f"--cron {clipped(text)!r} is no cron line ({wrong})",
            remedy="write minute, hour, day of month, month and day of week in UTC: '5 * * * *' is five past every hour",
        )


def served(settings: ServeSettings) -> list[Served]:
    """The scenarios to serve, read once: a fault in one must show now, not at the first run."""
    from catalogs.scenario import load_scenario

    if settings.cron is not None:
        check_cron(settings.cron)
    items: dict[str, Served] = {}
    for name in settings.scenarios:
        scenario = load_scenario(name).scenario
        interval = scenario.policy.interval_minutes
        every = interval if settings.every_minutes is None else settings.every_minutes
        window = settings.window_minutes or (interval if settings.cron else every)
        path = Path(name)
        where = str(path.resolve()) if path.exists() else name
        if scenario.id in items and items[scenario.id].scenario != where:
            raise CoralError(
                f"{items[scenario.id].scenario} and {where} are both called {scenario.id}: one lake holds one of them",
                remedy="give one of them another id",
            )
        items[scenario.id] = Served(
            scenario.id,
            where,
            every,
            window,
            settings.cron,
            settings.dask_address,
        )
    return list(items.values())


# Failures of runs are to be seen on Prefect's pages.
_CHILD_ENV = {"PREFECT_LOGGING_LEVEL": "WARNING", "PREFECT_LOGGING_TO_API_ENABLED": "true"}


class _Restarts:
    """Counts restarts; gives up on a child that does not stay up."""

    def __init__(self) -> None:
        self.count = 0
        self._too_soon = 0
        self._started = time.monotonic()

    def started(self) -> None:
        self._started = time.monotonic()

    def note(self, what: str, log: Path) -> None:
        """``what`` has ended by itself. Raises CoralError when it has done so soon after its start, again and again."""
        self.count += 1
        self._too_soon = self._too_soon + 1 if time.monotonic() - self._started < _TOO_SOON_S else 0
        self._started = time.monotonic()
        if self._too_soon >= _MOST_TOO_SOON:
            raise CoralError(f"{what} does not stay up", remedy=f"see {log}, then serve again")


def _keep_worker(
    root: Path,
    server: ApiServer,
    state: Callable[[Serving], None],
    stop: threading.Event,
    restarts: _Restarts,
    progress: Progress,
) -> None:
    """Keep a worker running until ``stop`` is set or the server has ended; then end it and record what it was doing."""
    from flows import deployments

    while not stop.is_set() and server.process.poll() is None:
        worker = _start_worker(server)
        restarts.started()
        state(Serving(os.getpid(), server.url, server.home, server.process.pid, worker.pid))
        try:
            while worker.poll() is None and server.process.poll() is None and not stop.wait(_LOOK_S):
                pass
        finally:
            has_ended = worker.poll() is not None
            _end(worker)
        if server.process.poll() is None:
            lost = deployments.close_lost_runs(root)
            if has_ended and not stop.is_set():
                restarts.note("the Prefect worker", server.home / "worker.log")
                progress.message(
                    f"the worker has ended: starting it again ({counted(lost, 'run was', 'runs were')} lost with it)"
                )


def _start_worker(server: ApiServer) -> subprocess.Popen[bytes]:
    from flows.deployments import POOL

    arguments = [
        "worker",
        "start",
        "--pool",
        POOL,
        "--type",
        "process",
        "--name",
        "coral-serve",
        "--limit",
        str(_MOST_RUNS),
    ]
    command = [sys.executable, "-P", "-m", "flows.tied", str(os.getpid()), "prefect", *arguments]
    with (server.home / "worker.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=server.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_WORKER_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextmanager
def _signals_set(stop: threading.Event) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT set ``stop``; a second one is not put off."""

    def handle(signum: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
