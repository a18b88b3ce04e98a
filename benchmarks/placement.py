"""Times the exact placement over a whole library: combinations per second, per workload and in all.

    python benchmarks/placement.py                             # roofline-shaped made-up curves, positions, 10 cycles
    python benchmarks/placement.py --cycles 1                  # one cycle per stage count, as in the paper's mode
    python benchmarks/placement.py --scenario paper-extended   # real profiles, through shards to template rows
    python benchmarks/placement.py --scenario paper-extended --mode paper
    python benchmarks/placement.py --model gpt-oss --threads 2 # some workloads, spread over two threads

Solving is given in seconds of processor time per thread, so that a busy machine does not count; wall time beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from synthetic import MODELS, curves, node_configs

from catalogs.scenario import load_scenario
from tasks.profiling.launch import launch_profile
from tasks.profiling.profile import profile_workload
from tasks.profiling.shapes import ModelShape
from tasks.templates.combinations import enumerate_combinations, memory_limit_mib
from tasks.templates.exact import prepare, solve_exact, solve_many
from tasks.templates.frontier import frontier_mask
from tasks.templates.shards import LibraryLimits, plan_shards, solve_shards


@dataclass(frozen=True)
class Timing:
    """One workload's solve: combinations, templates, seconds of processor, and a line of figures."""

    name: str
    combinations: int
    templates: int
    solve_s: float
    note: str

    def line(self) -> str:
        """The timing as a row."""
        each_us = 1e6 * self.solve_s / max(self.combinations, 1)
        return (
            f"{self.name:26} {self.combinations:9,} combinations {self.solve_s:7.2f} s {each_us:7.1f} us each "
            f"{self.templates:9,} templates  {self.note}"
        )


def synthetic(options: argparse.Namespace) -> Iterator[Callable[[], Timing]]:
    """One job per made-up workload: solving alone, then the frontier."""
    names, memory = node_configs()
    for alias, shape in MODELS.items():
        for decode in (False, True):
            if options.model not in alias:
                continue
            limit = memory_limit_mib(int(shape.weight_gb * 1e9), options.rho)
            counts = enumerate_combinations(memory, [range(len(names))], options.n_max, limit)
            ready = prepare(curves(alias, decode, options.n_max, options.cycles), options.n_max)

            def job(ready=ready, counts=counts) -> Timing:  # type: ignore[no-untyped-def]
                start = time.thread_time()
                batch = solve_many(ready, counts)
                solve_s = time.thread_time() - start
                rate = batch.throughput_mtok_per_s
                start = time.thread_time()
                kept = int(frontier_mask(counts, rate).sum())
                note = f"frontier {kept:,} in {time.thread_time() - start:.2f} s"
                stages = np.bincount(batch.n_stages[rate > 0], minlength=2)[1:].tolist()
                note += f", by stages {stages}"
                return Timing(ready.curves.workload_id, len(counts), int((rate > 0).sum()), solve_s, note)

            yield job


def scenario(options: argparse.Namespace) -> Iterator[Callable[[], Timing]]:
    """One job per workload of a scenario: its shards solved to template rows, as a build does it."""
    loaded = load_scenario(options.scenario)
    configs = sorted(loaded.node_configs.values(), key=lambda config: config.node_config)
    gpus = {config.gpu for config in configs}
    limits = LibraryLimits(options.n_max, options.rho, options.mode)
    for workload in sorted({w.workload_id: w for w in loaded.workloads}.values(), key=lambda w: w.alias):
        if options.model not in workload.alias:
            continue
        start = time.thread_time()
        profiles = profile_workload(
            workload,
            configs,
            {gpu: loaded.catalog.gpus[gpu] for gpu in gpus},
            {gpu: row for gpu, row in loaded.catalog.efficiencies.items() if gpu in gpus},
            mode=options.mode,
            max_stages=options.n_max,
        )
        launch = launch_profile(
            profiles,
            workload,
            configs,
            {gpu: loaded.catalog.gpus[gpu] for gpu in gpus},
            {gpu: row for gpu, row in loaded.catalog.efficiencies.items() if gpu in gpus},
            mode=options.mode,
            max_stages=options.n_max,
        )
        profile_s = time.thread_time() - start
        shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
        start = time.thread_time()
        specs = plan_shards(
            profiles,
            launch,
            layers=workload.model.layers,
            weight_bytes=int(shape.weight_bytes),
            memory_gib={config.node_config: config.memory_gib for config in configs},
            sold_sets=[sorted(sold) for sold in loaded.sold_sets.values()],
            limits=limits,
            what=workload.alias,
        )
        note = f"profiling {profile_s:.1f} s, planning {time.thread_time() - start:.2f} s, {len(specs)} shards"
        note += f", estimate {sum(spec.work_s for spec in specs):.1f} s"

        def job(workload=workload, profiles=profiles, launch=launch, specs=specs, note=note) -> Timing:  # type: ignore[no-untyped-def]
            start = time.thread_time()
            tables = solve_shards(specs, profiles, launch)
            solve_s = time.thread_time() - start
            combinations = sum(spec.n_combinations for spec in specs)
            return Timing(workload.alias, combinations, sum(len(table) for table in tables), solve_s, note)

        yield job


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="", help="use this scenario's profiles instead of made-up curves")
    parser.add_argument("--mode", default="cycle", choices=["cycle", "paper"], help="with --scenario")
    parser.add_argument("--cycles", type=int, default=10, help="without --scenario")
    parser.add_argument("--model", default="", help="only workloads whose name holds this")
    parser.add_argument("--n-max", type=int, default=6)
    parser.add_argument("--rho", type=float, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    start = time.perf_counter()
    solve_exact(curves("gpt-oss-20b", True, 2), (1, 1) + (0,) * 18)
    print(f"kernel compiled or loaded in {time.perf_counter() - start:.1f} s")
    jobs = list(scenario(options) if options.scenario else synthetic(options))
    start = time.perf_counter()
    with ThreadPoolExecutor(options.threads) as pool:
        done = list(pool.map(lambda job: job(), jobs))
    wall_s = time.perf_counter() - start
    for timing in done:
        print(timing.line())
    total, solve_s = sum(timing.combinations for timing in done), sum(timing.solve_s for timing in done)
    print(
        f"{total:,} combinations, {sum(timing.templates for timing in done):,} templates: {solve_s:.1f} s of processor, "
        f"{wall_s:.1f} s wall on {options.threads} threads, {total / solve_s:,.0f} combinations/s"
    )


if __name__ == "__main__":
    main()
