"""kill -9 of builds and of Dask workers at random moments: whatever ends, the next run goes on and the library is the same.

    python benchmarks/kills.py                              # 50 kills, `core` with 3 nodes per template
    python benchmarks/kills.py --kills 5 --seed 7 --scenario my/scenario.yaml

Lakes take turns: in two on two worker processes over TCP the command is killed or one of the workers (another one takes its
place), and in the third the command alone. After each kill: no process of the killed command is left, and every finished file
is the very file it was (same inode, so nothing wrote it again). Each lake is built on until a run ends by itself: then its
files must be those of a build that nobody disturbed, byte for byte, with no temporary file. Exit code 1 at the first breach.
A run whose Prefect server is late, as on a machine with much else to do, says so, leaves what was finished and is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from worker_cluster import Cluster

from catalogs import data

_CORAL = Path(sys.executable).with_name("coral")
_ENDS_WITHIN_S = 15.0
_RUN_S = 900.0
_LATE_SERVER = "did not answer within"


class BreachError(Exception):
    """Something that must hold did not."""


def start(scenario: Path, lake: Path, folder: Path, address: str | None = None) -> subprocess.Popen[str]:
    """``coral build`` as a process of its own, in its own working folder and with a server of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    command = [str(_CORAL), "build", "--scenario", str(scenario), "--lake", str(lake), "--json"]
    command += [] if address is None else ["--dask-address", address]
    with (folder / "stderr").open("w") as err:
        return subprocess.Popen(
            command, cwd=folder, env={**env, "HOME": str(folder)}, stdout=subprocess.PIPE, stderr=err, text=True
        )


def finished(lake: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every finished file of a lake, by path."""
    found = {}
    for path in (lake / "shards").rglob("*.parquet"):
        facts = path.stat()
        found[str(path.relative_to(lake))] = (facts.st_ino, facts.st_mtime_ns)
    return found


def contents(lake: Path) -> dict[str, bytes]:
    """Every finished file of a lake."""
    return {str(path.relative_to(lake)): path.read_bytes() for path in (lake / "shards").rglob("*.parquet")}


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def must_end(family: list[psutil.Process], what: str) -> None:
    """Raise BreachError for a process that outlives the command it belongs to."""
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while left := [process.pid for process in family if is_alive(process)]:
        if time.monotonic() > deadline:
            raise BreachError(f"{what}: processes {left} go on")
        time.sleep(0.05)


class Lakes:
    """Lakes that are built under fire, one after the other."""

    def __init__(self, scenario: Path, folder: Path, kills: int, rng: random.Random) -> None:
        self.scenario, self.folder, self.left, self.rng = scenario, folder, kills, rng
        self.counts = {"command": 0, "worker": 0}
        self.lakes = self.runs = self.gave_up = self.late = self.reused = 0
        started = time.monotonic()
        lake = folder / "undisturbed"
        self.hash = self.ended(start(scenario, lake, folder))["library_hash"]
        self.typical_s = time.monotonic() - started
        self.expected = contents(lake)
        print(f"undisturbed: {len(self.expected)} files in {self.typical_s:.0f} s", flush=True)

    def ended(self, process: subprocess.Popen[str]) -> dict[str, object]:
        """What a run that ends by itself prints. Raises BreachError unless it ends well."""
        out, _ = process.communicate(timeout=_RUN_S)
        if process.returncode:
            raise BreachError(f"exit code {process.returncode}: {(self.folder / 'stderr').read_text()[-2000:]}")
        return dict(json.loads(out))

    def all_kills(self, cluster: Cluster) -> None:
        """New lakes until every kill is done."""
        while self.left:
            lake = self.folder / f"lake-{self.lakes}"
            self.one_lake(lake, None if self.lakes % 3 == 2 else cluster)
            self.lakes += 1
            print(f"{sum(self.counts.values())} kills, {self.runs} runs, {self.lakes} lakes: all well", flush=True)

    def one_lake(self, lake: Path, cluster: Cluster | None) -> None:
        """Run and kill until a run ends by itself, then compare."""
        while True:
            before, workers = finished(lake), self.counts["worker"]
            if cluster:
                cluster.wait_for_workers(cluster.address)
            process = start(self.scenario, lake, self.folder, cluster.address if cluster else None)
            self.runs += 1
            has_ended = self.fire(process, lake, cluster)
            # A command whose workers are killed while it greets them may give up; it may not do so by itself.
            if has_ended and process.wait(_RUN_S) == 0:
                break
            is_late = has_ended and _LATE_SERVER in (self.folder / "stderr").read_text()
            if has_ended and not is_late and self.counts["worker"] == workers:
                break
            self.late += is_late
            self.gave_up += has_ended and not is_late
            self.must_stay(before, lake)
        result = self.ended(process)
        self.must_stay(before, lake)
        templates = [name for name in before if "solved_templates" in name]
        self.reused += len(before)
        if int(str(result["shards_skipped"])) < len(templates):
            raise BreachError(f"{lake.name}: {len(templates)} shards were finished, {result['shards_skipped']} skipped")
        if result["library_hash"] != self.hash or contents(lake) != self.expected:
            raise BreachError(f"{lake.name}: another library")
        if left := [str(path) for path in lake.rglob("*.tmp")]:
            raise BreachError(f"{lake.name}: temporary files {left}")

    def fire(self, process: subprocess.Popen[str], lake: Path, cluster: Cluster | None) -> bool:
        """Kill at random moments while the run goes on; True = it has ended, or goes on with no kill left."""
        while self.left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.rng.uniform(0, self.typical_s))
                return True
            before = finished(lake)
            if cluster and self.rng.random() < 2 / 3:
                self.count("worker")
                cluster.replace_worker(self.rng.randrange(len(cluster.workers)))
                self.must_stay(before, lake)
                continue
            self.count("command")
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            process.send_signal(signal.SIGKILL)
            process.wait()
            must_end(family, lake.name)
            return False
        return True

    def count(self, what: str) -> None:
        """Note a kill."""
        self.left -= 1
        self.counts[what] += 1

    def must_stay(self, before: dict[str, tuple[int, int]], lake: Path) -> None:
        """Raise BreachError when a file that was finished is gone or was written again."""
        now = finished(lake)
        if changed := [name for name, facts in before.items() if now.get(name) != facts]:
            raise BreachError(f"{lake.name}: finished files changed: {changed[:3]}")


def small_core(folder: Path) -> Path:
    """The shipped ``core`` with templates of at most three nodes: seconds of work."""
    text = (Path(next(iter(data.__path__))) / "scenarios" / "core.yaml").read_text()
    path = folder / "scenario.yaml"
    path.write_text(text.replace("n_max: 6", "n_max: 3"))
    return path


@contextlib.contextmanager
def no_orphans(folder: Path) -> Iterator[None]:
    """Raise BreachError when a process that knows ``folder`` is left after the block."""
    yield
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            where = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and is_alive(process) and any(str(folder) in text for text in where):
                left.append(process.pid)
    if left:
        raise BreachError(f"processes {left} are left")


def main() -> None:
    """Kill, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", type=Path)
    options = parser.parse_args()
    # Ended from outside, it takes the scheduler and the workers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            with no_orphans(folder):
                scenario = (options.scenario or small_core(folder)).resolve()
                lakes = Lakes(scenario, folder, options.kills, random.Random(options.seed))
                with Cluster(folder / "cluster", 2) as cluster:
                    lakes.all_kills(cluster)
        except BreachError as error:
            sys.exit(f"BREACH (seed {options.seed}): {error}")
    print(
        f"{options.kills} kills ({lakes.counts['command']} of the command, {lakes.counts['worker']} of workers) in "
        f"{lakes.runs} runs of {lakes.lakes} lakes ({lakes.gave_up} runs gave up for a killed worker, {lakes.late} "
        f"for a late server): every library identical, "
        f"{lakes.reused} finished files reused by the last runs, none written again, no process and no temporary file left"
    )


if __name__ == "__main__":
    main()
