"""Times the exact placement over a whole library: combinations per second, per workload and in all.

    python benchmarks/placement.py                      # roofline-shaped made-up curves, positions and 10 cycles
    python benchmarks/placement.py --cycles 1           # one cycle per stage count, as in the paper's mode
    python benchmarks/placement.py --model gpt-oss      # only workloads whose name holds this
    python benchmarks/placement.py --threads 2          # workloads spread over two threads (kernels release the GIL)

Solving is given in seconds of processor time per thread, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from synthetic import MODELS, curves, node_configs

from tasks.templates.combinations import enumerate_combinations, memory_limit_mib
from tasks.templates.exact import prepare, solve_exact, solve_many
from tasks.templates.frontier import frontier_mask
from tasks.templates.types import RateCurves


def solve(loaded: RateCurves, counts: NDArray[np.int8], n_max: int) -> tuple[float, float, str]:
    """Solve one workload; (solve seconds, frontier seconds, report line)."""
    start = time.thread_time()
    batch = solve_many(prepare(loaded, n_max), counts)
    solve_s = time.thread_time() - start
    start = time.thread_time()
    kept = frontier_mask(counts, batch.throughput_mtok_per_s)
    frontier_s = time.thread_time() - start
    rate = batch.throughput_mtok_per_s
    line = (
        f"{loaded.workload_id:22} {len(counts):8,} combinations {solve_s:7.2f} s {1e6 * solve_s / len(counts):7.1f} us each; "
        f"{int((rate > 0).sum()):8,} templates, frontier {int(kept.sum()):7,} in {frontier_s:.2f} s, "
        f"stages {np.bincount(batch.n_stages[rate > 0], minlength=n_max + 1)[1:].tolist()}, checksum {int(rate.sum())}"
    )
    return solve_s, frontier_s, line


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--model", default="")
    parser.add_argument("--n-max", type=int, default=6)
    parser.add_argument("--rho", type=float, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    names, memory = node_configs()
    start = time.perf_counter()
    solve_exact(curves("gpt-oss-20b", True, 2), (1, 1) + (0,) * (len(names) - 2))
    print(f"compile or load {time.perf_counter() - start:.1f} s")
    work = []
    for alias, shape in MODELS.items():
        for decode in (False, True):
            if options.model in alias:
                limit = memory_limit_mib(int(shape.weight_gb * 1e9), options.rho)
                counts = enumerate_combinations(memory, [range(len(names))], options.n_max, limit)
                work.append((curves(alias, decode, options.n_max, options.cycles), counts, options.n_max))
    start = time.perf_counter()
    with ThreadPoolExecutor(options.threads) as pool:
        done = list(pool.map(lambda item: solve(*item), work))
    wall_s = time.perf_counter() - start
    for _, _, line in done:
        print(line)
    total, solve_s = sum(len(counts) for _, counts, _ in work), sum(item[0] for item in done)
    print(
        f"{total:,} combinations: {solve_s:.1f} s of processor, {wall_s:.1f} s wall on {options.threads} threads, "
        f"{total / solve_s:,.0f} combinations/s; frontier {sum(item[1] for item in done):.1f} s"
    )


if __name__ == "__main__":
    main()
