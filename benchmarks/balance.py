"""One build on one and on two Dask worker processes over TCP: the same library, and how evenly the two worked.

    python benchmarks/balance.py                             # the shipped scenario `core`
    python benchmarks/balance.py --scenario extended --workers 2

``balance`` is the busy time of the least busy worker over that of the busiest, in seconds of tasks on the clock; beside it
the same of processor time, which other programs on the machine disturb less. The reference is built on threads. Exit code 1
for another library or a balance below --least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil
from worker_cluster import Cluster

from flows.build import build_library
from flows.settings import BuildResult, BuildSettings


def processor_s(cluster: Cluster) -> list[float]:
    """Seconds of processor that each worker has used."""
    times = [psutil.Process(worker.pid).cpu_times() for worker in cluster.workers]
    return [used.user + used.system for used in times]


def on_workers(scenario: str, folder: Path, workers: int) -> tuple[BuildResult, float, float]:
    """Build on ``workers`` processes: (result, balance of task time, balance of processor time)."""
    import distributed

    with (
        Cluster(folder / f"cluster-{workers}", workers) as cluster,
        distributed.Client(cluster.address, set_as_default=False) as client,
    ):
        client.get_task_stream()  # the scheduler records tasks from now on
        used = processor_s(cluster)
        settings = BuildSettings(scenario, folder / f"lake-{workers}", dask_address=cluster.address, sample_n=0)
        started = time.time()
        result = build_library(settings)
        used = [now - before for now, before in zip(processor_s(cluster), used, strict=True)]
        names = sorted(client.scheduler_info(n_workers=-1)["workers"])
        by_stage: dict[str, dict[str, list[float]]] = {}
        for task in client.get_task_stream(start=started):
            seconds = sum(part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute")
            stage = by_stage.setdefault(task["key"].rsplit("-", 1)[0], {name: [] for name in names})
            stage[task["worker"]].append(seconds)
    busy = [sum(sum(stage[name]) for stage in by_stage.values()) for name in names]
    for label, stage in by_stage.items():
        print(f"  {label}: " + ", ".join(f"{len(some)} tasks {sum(some):.1f} s" for some in stage.values()))
    told = "; ".join(f"busy {task_s:.1f} s, processor {own:.1f} s" for task_s, own in zip(busy, used, strict=True))
    print(f"{workers} workers: library {result.library_hash}, wall {result.wall_s:.1f} s; {told}", flush=True)
    return result, min(busy) / max(busy), min(used) / max(used)


def main() -> None:
    """Build three times and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="core")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.85)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threads = build_library(BuildSettings(options.scenario, folder / "lake-threads", sample_n=0))
        print(f"threads: library {threads.library_hash}, wall {threads.wall_s:.1f} s", flush=True)
        one, _, _ = on_workers(options.scenario, folder, 1)
        several, balance, of_processor = on_workers(options.scenario, folder, options.workers)
    same = len({threads.library_hash, one.library_hash, several.library_hash}) == 1
    print(f"equal hashes: {'yes' if same else 'NO'}; balance {balance:.2f} (processor {of_processor:.2f})")
    sys.exit(0 if same and balance >= options.least else 1)


if __name__ == "__main__":
    main()
