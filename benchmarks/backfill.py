"""What a backfill costs beside the full library: one and several new configurations.

    python benchmarks/backfill.py                                # extended, then H200-SXM (one configuration)
    python benchmarks/backfill.py --gpu H200-SXM --gpu A100-40GB-SXM --scenario extended
    python benchmarks/backfill.py --scenario core --gpu H100-SXM

Target: time <= 20 s + 1.2 x (new / total) x full solve. The clock on the wall and, since the machine may be busy, the time
of the processor in this process (server not counted); the sample that the ILP solves again is left out by --sample 0.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flows.backfill import backfill_library
from flows.build import build_library
from flows.settings import BuildResult, BuildSettings, SilentProgress


class StageTimes(SilentProgress):
    """Seconds of processor per stage."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    def start(self, stage: str, total: float) -> None:
        """Remember when it began."""
        self.started[stage] = time.process_time()

    def finish(self, stage: str, note: str = "") -> None:
        """Note what it took."""
        self.seconds[stage] = time.process_time() - self.started[stage]


def measured(name: str, build: Callable[[StageTimes], BuildResult]) -> tuple[BuildResult, float, float]:
    """Build and print; (result, processor seconds in all but the server's start, those of solving)."""
    times = StageTimes()
    cpu = time.process_time()
    result = build(times)
    # result.wall_s begins in the flow, when the server is up.
    used = time.process_time() - cpu - times.seconds.get("start server", 0.0)
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in times.seconds.items())
    print(
        f"{name}: {result.combinations:,} combinations, {result.combinations_solved:,} solved now in {result.solve_s:.1f} s; "
        f"wall {result.wall_s:.1f} s, processor {used:.1f} s ({stages})",
        flush=True,
    )
    return result, used, times.seconds.get("solve", 0.0)


def hashes(lake: Path) -> dict[str, str]:
    """sha256 per file of templates."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (lake / "shards").rglob("*.parquet")}


def main() -> None:
    """Build the scenario in a new lake, add the GPUs, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="extended")
    parser.add_argument("--gpu", action="append")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sample", type=int, default=24)
    options = parser.parse_args()
    gpus = options.gpu or ["H200-SXM"]
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        settings = BuildSettings(options.scenario, lake, threads=options.threads, sample_n=options.sample)
        full, _, solve_s = measured(f"full library of {options.scenario}", lambda times: build_library(settings, times))
        before = hashes(lake)
        added, used_s, _ = measured(f"with {', '.join(gpus)}", lambda times: backfill_library(settings, gpus, times))
        after = hashes(lake)
    new = added.combinations_solved
    full_solve_s = solve_s * added.combinations / full.combinations
    target_s = 20 + 1.2 * new / added.combinations * full_solve_s
    print(
        f"old files as they were: {'yes' if before.items() <= after.items() else 'NO'}; new files {len(after) - len(before)}"
    )
    print(f"target {target_s:.1f} s (solving in processor time): wall {added.wall_s:.1f} s, processor {used_s:.1f} s")


if __name__ == "__main__":
    main()
