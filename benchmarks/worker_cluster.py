"""A Dask scheduler and worker processes over TCP on this machine, started from a working folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

_DASK = [sys.executable, "-m", "dask"]
_QUIET = ["--host", "127.0.0.1", "--no-dashboard"]
_START_S = 120.0


class Cluster:
    """The scheduler and its workers, of one thread each. A context manager: its end ends all of them."""

    def __init__(self, folder: Path, workers: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._file = folder, folder / "scheduler.json"
        self._log = (folder / "log").open("wb")
        self._scheduler = self._start("scheduler", "--port", "0")
        self.workers = [self._start_worker() for _ in range(workers)]
        self.address = self._wait()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        own = {"PYTHONSAFEPATH": "1", "DO_NOT_TRACK": "1", "PREFECT_HOME": str(self.folder / "prefect")}
        return subprocess.Popen(
            [*_DASK, *command, *_QUIET, "--scheduler-file", str(self._file)],
            cwd=self.folder,
            env={**os.environ, **own},
            stdout=self._log,
            stderr=self._log,
        )

    def _start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", "--no-nanny", "--nthreads", "1")

    def _wait(self) -> str:
        """The scheduler's address, once all workers are there."""
        deadline = time.monotonic() + _START_S
        while not (self._file.exists() and self._file.read_text().strip()):
            if time.monotonic() > deadline:
                raise TimeoutError("the Dask scheduler does not start")
            time.sleep(0.05)
        address = str(json.loads(self._file.read_text())["address"])
        self.wait_for_workers(address)
        return address

    def wait_for_workers(self, address: str) -> None:
        """Wait until as many workers are registered as run."""
        import distributed

        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=_START_S)

    def replace_worker(self, number: int) -> None:
        """Kill -9 a worker and start another one in its place."""
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self._start_worker()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()
        self._log.close()
