"""Replays sampled templates and times the simulator: ``python benchmarks/simulation.py replay|speed [SCENARIO]``.

replay: saturated replay of templates, of random combinations or, with ``--lake``, drawn from the library that ``coral build``
left there; share that keep rate and latency, by kind. ``--failing`` prints those that do not.

speed: 30 minutes of every model at its demand on instances of the best such templates.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from catalogs import LoadedScenario, load_scenario
from catalogs.traces import read_trace
from catalogs.types import Phase, Workload
from tasks.profiling.profile import profile_workload
from tasks.profiling.shapes import GIB, ModelShape
from tasks.simulation.arrivals import constant_lengths, merge, poisson_requests
from tasks.simulation.build import Hardware, InstanceBuilder
from tasks.simulation.engine import simulate
from tasks.simulation.headroom import copies_of, headroom
from tasks.simulation.metrics import Slo, report
from tasks.simulation.replay import OFFERED_SHARE, Replay, replay
from tasks.simulation.types import Ints, Requests, SimInstance
from tasks.templates.curves import workload_curves
from tasks.templates.exact import solve_many
from tasks.templates.rows import template_table
from warehouse.connect import Lake
from warehouse.read import current_library_id, library_templates, templates_by_id

TRACES = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[1] / ".." / "shared" / "data")) / "traces"
TRACE_FILES = {"azure-conv-2023": "azure_llm_2023_conv", "azure-code-2023": "azure_llm_2023_code"}
Row = Mapping[str, Any]


def hardware_of(loaded: LoadedScenario) -> Hardware:
    """The catalogs' rows of a scenario."""
    return Hardware(loaded.node_configs, loaded.catalog.gpus, loaded.catalog.efficiencies)


def length_pairs(workload: Workload) -> tuple[Ints, Ints]:
    """Lengths of the workload's trace, or its stated means for all."""
    name = workload.lengths.source.removeprefix("trace ")
    return (
        read_trace(TRACES / f"{TRACE_FILES[name]}.parquet").pairs()
        if name in TRACE_FILES
        else constant_lengths(workload.lengths)
    )


def sampled_rows(
    loaded: LoadedScenario, workload: Workload, count: int, mode: str, rng: np.random.Generator
) -> list[Row]:
    """Templates of random combinations of at most 6 nodes, of 1 to 4 configurations, within rho = 12."""
    configs = sorted(loaded.node_configs.values(), key=lambda config: config.node_config)
    catalog = loaded.catalog
    curves = workload_curves(
        profile_workload(workload, configs, catalog.gpus, catalog.efficiencies, mode=mode), workload.model.layers
    )
    limit = 12 * ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype).weight_bytes / GIB
    memory = np.array([loaded.node_configs[name].memory_gib for name in curves.curves.node_configs])
    tries = np.zeros((40 * count, len(memory)), dtype=np.int8)
    for row in tries:
        kinds = rng.choice(len(memory), size=int(rng.integers(1, 5)), replace=False)
        np.add.at(row, rng.choice(kinds, int(rng.integers(1, 7))), 1)
    tries = np.unique(tries[tries @ memory <= limit], axis=0)
    rng.shuffle(tries)
    rows: list[Row] = template_table("sample", solve_many(curves.curves, tries), curves).to_pylist()
    index = rng.permutation(len(rows))[:count]
    return [rows[i] for i in index]


def library_rows(
    lake_root: Path, loaded: LoadedScenario, workload: Workload, count: int, rng: np.random.Generator
) -> list[Row]:
    """Templates of the scenario's library in the lake, each as likely as any."""
    with Lake.open(lake_root, read_only=True) as lake:
        library_id = current_library_id(lake, loaded.scenario.id)
        if library_id is None:
            raise SystemExit(f"no library of {loaded.scenario.id} in {lake_root}: run coral build first")
        ids = library_templates(lake, library_id, workload.workload_id)["template_id"].to_pylist()
        chosen = [ids[i] for i in rng.permutation(len(ids))[:count]]
        rows: list[Row] = templates_by_id(lake, chosen).to_pylist()
    return rows


def kind_of(row: Row) -> str:
    """One stage or pipeline, inner stages alike or not, several nodes in a stage."""
    inner = {member["pp"] for stage in row["stages"] for member in stage["members"]}
    shape = "one stage" if len(row["stages"]) == 1 else "pipeline"
    inside = "" if inner == {1} else ", inner stages alike" if len(inner) == 1 else ", inner stages differ"
    return shape + inside + (", data parallel" if any(len(stage["members"]) > 1 for stage in row["stages"]) else "")


def run_replay(loaded: LoadedScenario, arguments: argparse.Namespace) -> None:
    """Prints the share of templates that keep their promise, by phase and kind."""
    rng = np.random.default_rng(arguments.seed)
    by_kind: dict[tuple[str, str], list[Replay]] = defaultdict(list)
    per_workload = -(-arguments.templates // len(loaded.workloads))
    for workload in loaded.workloads:
        builder, pairs = InstanceBuilder(workload, hardware_of(loaded)), length_pairs(workload)
        rows = (
            library_rows(arguments.lake, loaded, workload, per_workload, rng)
            if arguments.lake
            else sampled_rows(loaded, workload, per_workload, arguments.mode, rng)
        )
        for row in rows:
            result = replay(
                builder.from_row(row),
                workload.tokens_per_request,
                workload.slo_ms,
                pairs,
                offered_share=arguments.load,
                counts_transfer=arguments.mode != "paper",
            )
            by_kind[workload.phase.value, kind_of(row)].append(result)
            if arguments.failing and not result.is_kept:
                print_failing(workload, row, result)
    for (phase, kind), results in sorted(by_kind.items()):
        print_kind(f"{phase}: {kind}", results)
    for phase in ("prefill", "decode"):
        print_kind(f"{phase}: all", [r for key, results in by_kind.items() if key[0] == phase for r in results])


def print_kind(label: str, results: list[Replay]) -> None:
    """One line: how many, share kept, least and median rate, median and greatest latency."""
    rate, latency = np.array([(r.rate_share, r.latency_ms / r.slo_ms) for r in results]).T
    print(
        f"{label:58} n {len(results):4}  kept {np.mean([r.is_kept for r in results]):6.1%}  rate/stored min {rate.min():.3f} "
        f"median {np.median(rate):.3f}  p95/SLO median {np.median(latency):.3f} max {latency.max():.3f}"
    )


def print_failing(workload: Workload, row: Row, result: Replay) -> None:
    """A template that breaks its promise, with its stages."""
    print(
        f"{workload.alias} {row['combination_id']} cycle {row['cycle_ms']:.1f} ms: rate {result.rate_share:.3f}, p95 "
        f"{result.latency_ms:.1f} of {result.slo_ms:g} ms, {result.preemptions} preempted"
    )
    for stage in row["stages"]:
        nodes = ", ".join(
            f"{m['node_config']} tp{m['tp']} pp{m['pp']} x{m['replicas']} b{m['batch']} {m['share']:.1%}"
            for m in stage["members"]
        )
        print(f"    {stage['layer_start']}-{stage['layer_end']}: {nodes}")


def instances_for(
    loaded: LoadedScenario, workload: Workload, req_per_s: float, arguments: argparse.Namespace
) -> list[SimInstance]:
    """Enough copies of the cheapest sampled template, by list price, for the demand at the start headroom."""
    rng = np.random.default_rng(arguments.seed)
    price = {
        name: min(offer.price_usd_per_h for offer in loaded.offers if offer.node_config == name)
        for name in loaded.node_configs
        if any(offer.node_config == name for offer in loaded.offers)
    }
    rows = [
        row
        for row in sampled_rows(loaded, workload, 300, arguments.mode, rng)
        if all(n["node_config"] in price for n in row["nodes"])
    ]
    best = max(
        rows,
        key=lambda row: row["throughput_mtok_per_s"] / sum(price[n["node_config"]] * n["nodes"] for n in row["nodes"]),
    )
    instance = InstanceBuilder(workload, hardware_of(loaded)).from_row(best, region="region")
    count = int(np.ceil(req_per_s / loaded.headroom(workload.phase) / instance.rate_req_per_s))
    print(f"{workload.alias:28} {count:3} x {best['combination_id']} of {instance.rate_req_per_s:.2f} req/s")
    return copies_of(instance, count)


def run_speed(loaded: LoadedScenario, arguments: argparse.Namespace) -> None:
    """Times 30 minutes of all models under Poisson arrivals, and finds the headroom of each workload's instances."""
    instances: list[SimInstance] = []
    streams: list[Requests] = []
    slos: dict[str, Slo] = {}
    workloads = {workload.workload_id: workload for workload in loaded.workloads}
    for seed, demand in enumerate(loaded.model_demands):
        rate = demand.stated_req_per_s or 0.0
        phases = [workloads[name] for name in demand.workload_ids]
        pairs = length_pairs(phases[0])
        streams.append(poisson_requests(demand.model, rate, arguments.minutes * 60.0, pairs, seed))
        limits = {phase.phase: phase.slo_ms for phase in phases}
        slos[demand.model] = Slo(limits[Phase.PREFILL], limits[Phase.DECODE])
        for workload in phases:
            mine = instances_for(loaded, workload, rate, arguments)
            instances += mine
            if arguments.headroom:
                begin = time.perf_counter()
                found = headroom(
                    mine,
                    workload.slo_ms,
                    workload.slo_percentile,
                    lambda r, model=demand.model, pairs=pairs: poisson_requests(model, r, 1800.0, pairs, 7),  # type: ignore[misc]
                )
                print(f"    headroom {found.utilization:.2f} ({time.perf_counter() - begin:.1f} s)")
    requests = merge(streams)
    simulate(merge([poisson_requests(stream.models[0], 1.0, 5.0, length_one(), 0) for stream in streams]), instances)
    begin = time.perf_counter()
    result = simulate(requests, instances)
    seconds = time.perf_counter() - begin
    tokens = int(requests.output_tokens.sum())
    print(f"{len(requests)} requests, {tokens / 1e6:.1f} M output tokens, {len(instances)} instances: {seconds:.2f} s")
    for item in report(result, slos):
        print(
            f"{item.model:30} n {item.requests} attained {item.attained or 0:.4f} (ttft {item.attained_ttft or 0:.4f}, "
            f"tpot {item.attained_tpot or 0:.4f}); p99 ms: ttft {item.ttft_ms.get(99, 0):.0f}, tpot "
            f"{item.tpot_ms.get(99, 0):.1f}, decode step {item.decode_tpot_ms.get(99, 0):.1f}, transfer "
            f"{item.kv_transfer_ms.get(99, 0):.0f}; lost {dict(item.lost)}"
        )


def length_one() -> tuple[Ints, Ints]:
    """Lengths for a run that only compiles the kernels."""
    return np.array([10], dtype=np.int64), np.array([2], dtype=np.int64)


def main() -> None:
    """Reads the command line and runs one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["replay", "speed"])
    parser.add_argument("scenario", nargs="?", default="paper-extended")
    parser.add_argument("--mode", choices=["cycle", "paper"], default="cycle")
    parser.add_argument("--lake", type=Path, help="draw templates from the library in this lake")
    parser.add_argument("--templates", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--load", type=float, default=OFFERED_SHARE, help="share of the rate offered to prefill templates"
    )
    parser.add_argument("--failing", action="store_true")
    parser.add_argument("--headroom", action="store_true")
    arguments = parser.parse_args()
    loaded = load_scenario(arguments.scenario)
    {"replay": run_replay, "speed": run_speed}[arguments.what](loaded, arguments)


if __name__ == "__main__":
    main()
