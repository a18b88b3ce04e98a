"""Checks the exact placement on combinations of four to six nodes against the ILP, at a model's full layer count.

    python benchmarks/exactness.py                         # 20 combinations, up to 60 s per ILP
    python benchmarks/exactness.py --size 40 --model phi-4

Made-up roofline curves with one cycle per stage count. Prints one line per combination and fails on any difference; an
ILP that ends at its time limit proves nothing and is counted apart.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from synthetic import MODELS, curves, node_configs

from tasks.allocation.types import SolveLimits
from tasks.templates.combinations import enumerate_combinations, memory_limit_mib
from tasks.templates.exact import solve_exact
from tasks.templates.ilp import IlpStatus, solve_ilp


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt-oss-120b", choices=sorted(MODELS))
    parser.add_argument("--size", type=int, default=20)
    parser.add_argument("--time-s", type=float, default=60.0, help="limit per ILP")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    names, memory = node_configs()
    limit = memory_limit_mib(int(MODELS[options.model].weight_gb * 1e9), 12)
    counts = enumerate_combinations(memory, [range(len(names))], 6, limit)
    counts = counts[counts.sum(axis=1) >= 4]
    rng = np.random.default_rng(options.seed)
    equal, limits, differ, started = 0, 0, 0, time.perf_counter()
    for row in counts[rng.permutation(len(counts))[: options.size]]:
        loaded = curves(options.model, bool(rng.integers(2)), 6, 1)
        exact = solve_exact(loaded, row).throughput_mtok_per_s
        result = solve_ilp(loaded, row, SolveLimits(time_s=options.time_s))
        rate = result.placement.throughput_mtok_per_s
        if rate == exact:
            equal += 1
            verdict = "equal"
        elif result.status is IlpStatus.TIME_LIMIT and rate < exact:
            limits += 1
            verdict = "time limit"
        else:
            differ += 1
            verdict = "DIFFERENT"
        held = "+".join(f"{names[k]}*{row[k]}" for k in np.flatnonzero(row))
        print(f"{verdict:10} exact {exact:12,} ilp {rate:12,} {result.n_ilps} ILPs {result.solve_s:6.1f} s  {held}")
    print(f"{equal} equal, {limits} at the time limit, {differ} different in {time.perf_counter() - started:.0f} s")
    if differ:
        raise SystemExit(3)


if __name__ == "__main__":
    main()
