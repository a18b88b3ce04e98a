"""Times and gaps of the allocator: ``python benchmarks/allocation.py [core|extended|many] [--seeds N] [--monolith]``.

Per supply level: the share of seeded instances within the gap asked for, the worst gap, median and worst seconds (wall
clock and processor), over problems of :mod:`allocation_instances`. ``--monolith`` runs the paper's ILP beside
it, with as much time as the covers solver took.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # also where PYTHONSAFEPATH leaves it out

from allocation_instances import CORE, EXTENDED, Shape, make_instance

from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationResult, SolveLimits

# Supply as a multiple of what the relaxation needs, by name.
LEVELS = {"ample": 4.0, "moderate": 2.0, "scarce": 1.25, "very scarce": 1.05}
MANY = Shape(EXTENDED.models, EXTENDED.gpus, tuple(f"aws/region-{i}" for i in range(10)), 25.0, n_max=3, copies=8)
SHAPES = {"core": (CORE, 5e-4), "extended": (EXTENDED, 1e-3), "many": (MANY, 1e-2)}


@dataclass(frozen=True)
class Run:
    """One solved instance."""

    columns_before: int
    result: AllocationResult
    wall_s: float
    cpu_s: float
    monolith_gap: float | None


def solve_one(shape: Shape, seed: int, supply: float, limits: SolveLimits, *, monolith: bool) -> Run:
    """Solve one instance and check the answer; raises if the independent check refuses it."""
    problem, before = make_instance(shape, seed, supply)
    wall, cpu = time.perf_counter(), time.process_time()
    result = solve_covers(problem, limits)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    faults = check_result(problem, result)
    if faults:
        raise RuntimeError("; ".join(faults))
    gap = None
    if monolith:
        gap = solve_ilp(problem, SolveLimits(gap=limits.gap, time_s=max(wall, 1.0))).gap
    return Run(before, result, wall, cpu, gap)


def main() -> None:
    """Print one line per supply level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", nargs="?", choices=sorted(SHAPES), default="core")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--time", type=float, default=15.0, help="seconds per instance")
    parser.add_argument("--monolith", action="store_true")
    arguments = parser.parse_args()
    shape, gap = SHAPES[arguments.shape]
    limits = SolveLimits(gap=gap, time_s=arguments.time)
    solve_one(shape, 0, LEVELS["ample"], limits, monolith=False)  # compiles the kernels
    for name, supply in LEVELS.items():
        runs = [solve_one(shape, seed, supply, limits, monolith=arguments.monolith) for seed in range(arguments.seeds)]
        gaps = [run.result.gap for run in runs]
        closed = sum(value <= gap for value in gaps)
        walls, cpus = [run.wall_s for run in runs], [run.cpu_s for run in runs]
        beside = [run.monolith_gap for run in runs if run.monolith_gap is not None]
        text = (
            f"{arguments.shape} {name}: {min(r.columns_before for r in runs):,} columns or more; "
            f"gap <= {gap:.2%} in {closed} of {len(runs)}, median {statistics.median(gaps):.3%}, worst {max(gaps):.3%}; "
            f"wall median {statistics.median(walls):.2f} s, worst {max(walls):.2f} s; cpu median "
            f"{statistics.median(cpus):.2f} s; served whole {sum(r.result.theta == 1.0 for r in runs)}"
        )
        if beside:
            text += f"; monolith in the same time: median gap {statistics.median(beside):.2%}, worst {max(beside):.2%}"
        print(text, flush=True)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak_gib:.2f} GiB")


if __name__ == "__main__":
    main()
