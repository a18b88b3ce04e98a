"""Checks the exact placement against two independent answers, and fails on any difference.

    python benchmarks/exactness.py                              # all parts, a few minutes of one core
    python benchmarks/exactness.py --parts ilp --size 60 --workload llama
    python benchmarks/exactness.py --parts brute --tables 2000

ilp     combinations of four to six nodes of a scenario's real profiles, all cycles, at the models' full layer counts, by
        the PuLP ILP; an ILP that ends at its time limit proves nothing and is counted apart
launch  the same for the best launchable placement: nodes of one GPU count, one to a stage, at every degree
brute   random tables with two to six nodes and two to seven layers (at most five with six nodes, where all of them can be
        tried), positions and cycles, by trying every assignment, split and cycle

Times are of the processor, of this process alone: a busy machine does not count.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from catalogs.ids import split_node_config
from catalogs.scenario import load_scenario
from catalogs.types import Workload
from tasks.allocation.types import SolveLimits
from tasks.profiling.launch import launch_profile
from tasks.profiling.profile import profile_workload
from tasks.profiling.shapes import ModelShape
from tasks.templates.combinations import enumerate_combinations, memory_limit_mib, memory_mib
from tasks.templates.curves import launch_curves, workload_curves
from tasks.templates.exact import solve_exact, solve_many
from tasks.templates.ilp import IlpResult, IlpStatus, solve_ilp
from tasks.templates.launchable import pipelines_of_equal_nodes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
from template_tables import brute_force, random_curves  # type: ignore[import-not-found]


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="brute,launch,ilp")
    parser.add_argument("--scenario", default="paper-extended")
    parser.add_argument("--workload", default="gpt-oss", help="workloads whose alias holds this")
    parser.add_argument("--size", type=int, default=24, help="combinations by the ILP, over all workloads")
    parser.add_argument("--launch-size", type=int, default=24)
    parser.add_argument("--tables", type=int, default=600, help="tables by brute force")
    parser.add_argument("--time-s", type=float, default=60.0, help="limit per ILP")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    parts = options.parts.split(",")
    verdicts: Counter[str] = Counter()
    started = time.process_time()
    if "brute" in parts:
        verdicts += tell("brute", started, Counter(brute(options)))
    if "launch" in parts or "ilp" in parts:
        loaded = [*tables(options)]
        for part, check in (("launch", launchable), ("ilp", unrestricted)):
            if part in parts:
                began = time.process_time()
                verdicts += tell(part, began, Counter(check(options, loaded)))
    if verdicts["DIFFERENT"]:
        raise SystemExit(3)


def tell(part: str, began: float, verdicts: Counter[str]) -> Counter[str]:
    """Print a part's outcome."""
    found = ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items()))
    print(f"{part}: {found} in {time.process_time() - began:.0f} s of processor", flush=True)
    return verdicts


def tables(options: argparse.Namespace) -> Iterator[tuple[Workload, np.ndarray, pa.Table, pa.Table]]:
    """Each workload's combinations of four to six nodes, its profiles and those of launchable layouts."""
    loaded = load_scenario(options.scenario)
    configs = sorted(loaded.node_configs.values(), key=lambda config: config.node_config)
    gpus = {config.gpu: loaded.catalog.gpus[config.gpu] for config in configs}
    known = {gpu: row for gpu, row in loaded.catalog.efficiencies.items() if gpu in gpus}
    for workload in loaded.workloads:
        if options.workload in workload.alias:
            best = profile_workload(workload, configs, gpus, known)
            memory = [memory_mib(config.memory_gib) for config in configs]
            weights = int(ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype).weight_bytes)
            counts = enumerate_combinations(memory, [range(len(configs))], 6, memory_limit_mib(weights, 12))
            counts = counts[counts.sum(axis=1) >= 4]
            yield workload, counts, best, launch_profile(best, workload, configs, gpus, known)


def unrestricted(options: argparse.Namespace, loaded: list) -> Iterator[str]:
    """Verdicts on best placements."""
    for number, (workload, counts, best, _) in enumerate(loaded):
        curves = workload_curves(best, workload.model.layers).curves
        rng = np.random.default_rng([options.seed, number])
        taken = 0
        for row in rng.permutation(counts):
            exact = solve_exact(curves, row).throughput_mtok_per_s
            if not exact:
                continue  # nothing fits the SLO: the ILPs have nothing to search
            began = time.process_time()
            result = solve_ilp(curves, row, limits(options), at_least=exact)
            yield line(workload, curves.node_configs, row, exact, [result], time.process_time() - began)
            taken += 1
            if taken >= -(-options.size // len(loaded)):
                break


def launchable(options: argparse.Namespace, loaded: list) -> Iterator[str]:
    """Verdicts on best launchable placements, per degree."""
    for number, (workload, counts, best, launch) in enumerate(loaded):
        whole = workload_curves(best, workload.model.layers)
        names = whole.curves.node_configs
        rng = np.random.default_rng([options.seed, number, 1])
        rows = rng.permutation(counts[pipelines_of_equal_nodes(counts, names)])[
            : -(-options.launch_size // len(loaded))
        ]
        for row in rows:
            gpus = next(split_node_config(name)[1] for name, n in zip(names, row, strict=True) if n)
            began = time.process_time()
            exact, results = 0, []
            for tp, own in launch_curves(whole, launch).items():
                if gpus % tp == 0:
                    least = gpus // tp
                    batch = solve_many(own.curves, row[None, :], one_node_per_stage=True, least_layers=least)
                    found = batch.throughput_mtok_per_s[0]
                    exact = max(exact, int(found))
                    believed = max(int(found), 1)
                    results.append(
                        solve_ilp(
                            own.curves,
                            row,
                            limits(options),
                            at_least=believed,
                            one_node_per_stage=True,
                            least_layers=least,
                        )
                    )
            yield line(workload, names, row, exact, results, time.process_time() - began)


def brute(options: argparse.Namespace) -> Iterator[str]:
    """Verdicts on random tables."""
    for seed in range(options.tables):
        rng = np.random.default_rng([options.seed, seed])
        nodes = int(rng.choice([2, 3, 4, 5, 6], p=[0.15, 0.25, 0.35, 0.15, 0.1]))
        layers = int(rng.integers(2, {6: 6, 5: 7}.get(nodes, 8)))
        curves = random_curves(
            rng, configs=int(rng.integers(1, 6)), layers=layers, stages=nodes, cycles=1 if nodes > 4 else 2, top=10**6
        )
        row = np.bincount(rng.integers(0, len(curves.node_configs), nodes), minlength=len(curves.node_configs))
        counts = tuple(int(count) for count in row)
        exact, expected = solve_exact(curves, counts).throughput_mtok_per_s, brute_force(curves, counts)
        if exact != expected:
            print(f"DIFFERENT  exact {exact:,} brute force {expected:,}  table {seed}, nodes {counts}")
        yield ("equal" if expected else "equal, nothing feasible") if exact == expected else "DIFFERENT"


def limits(options: argparse.Namespace) -> SolveLimits:
    """Of one ILP; one thread, so that the processor's time is the ILP's own."""
    return SolveLimits(time_s=options.time_s, threads=1)


def line(
    workload: Workload, names: tuple[str, ...], row: np.ndarray, exact: int, results: list[IlpResult], cpu_s: float
) -> str:
    """Print and return the verdict on one combination."""
    rate = max((result.placement.throughput_mtok_per_s for result in results), default=0)
    timed_out = any(result.status is IlpStatus.TIME_LIMIT for result in results)
    verdict = "DIFFERENT" if rate != exact else "equal"
    if timed_out and rate <= exact:
        verdict = "time limit"
    held = "+".join(f"{names[k]}*{row[k]}" for k in np.flatnonzero(row))
    ilps = sum(result.n_ilps for result in results)
    print(f"{verdict:10} {rate:12,} mtok/s, {ilps:3} ILPs {cpu_s:6.1f} s  {workload.alias} {held}", flush=True)
    return verdict


if __name__ == "__main__":
    main()
