"""Which `coral serve` serves a lake: one at most, found through a lock that ends with its process."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from catalogs.errors import CoralError

SLOT = "serve"
_FILE = "serving.json"
_LOOKED_AT_S = 1.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A running `coral serve`: its process, and what it runs for a lake. ``url`` is the Prefect API's."""

    pid: int
    url: str
    home: Path
    server_pid: int = 0
    worker_pid: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """One scenario on a schedule: every ``every_minutes``, or at the times of ``cron`` (UTC) where that is given. A run is
    worth executing for ``window_minutes`` after it was due."""

    scenario_id: str
    scenario: str
    every_minutes: float
    window_minutes: float
    cron: str | None = None
    dask_address: str | None = None


def serving(lake_root: Path) -> Serving | None:
    """The `coral serve` of a lake, or None: none runs, or it is still starting."""
    path = _home(lake_root) / _FILE
    try:
        with path.open("rb") as file:
            if _try_lock(file.fileno()):
                return None  # whoever wrote it has ended
            fields = json.loads(file.read() or b"null")
    except FileNotFoundError:
        return None
    return None if fields is None else Serving(**{**fields, "home": _home(lake_root)})


@contextmanager
def serving_lock(lake_root: Path) -> Iterator[Callable[[Serving], None]]:
    """Hold the right to serve the lake for the block; gives what to state one's processes with.

    Raises CoralError when another process serves it.
    """
    home = _home(lake_root)
    home.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(home / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+") as file:
        deadline = time.monotonic() + _LOOKED_AT_S
        while not (is_ours := _try_lock(file.fileno())) and time.monotonic() < deadline:
            time.sleep(0.05)  # somebody may only be looking
        if not is_ours:
            pid = (json.loads(file.read() or "null") or {}).get("pid", "another process")
            raise CoralError(
                f"the lake in {lake_root} is served already, by process {pid}",
                remedy="end that one first (Ctrl-C, or kill), or serve another lake",
            )

        def state(now: Serving) -> None:
            text = json.dumps({key: value for key, value in asdict(now).items() if key != "home"})
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()

        file.truncate()
        yield state
        file.truncate(0)


def _home(lake_root: Path) -> Path:
    return lake_root.resolve() / "prefect" / SLOT


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
