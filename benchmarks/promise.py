"""Does a plan keep its promise? ``python benchmarks/promise.py --lake LAKE [SCENARIO ...]``, all four shipped by default.

For each scenario, built and planned where needed: the share of requests within their SLOs under Poisson arrivals at the
planned rates; the same on the raw Azure traces (each model whose stated lengths are a trace's means gets that trace, its
clock scaled to the planned rate); and what a plan costs that keeps 99 % on them, made from a library for the traces'
lengths and headroom under the traces' arrivals. Nothing is published.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from catalogs import LoadedScenario, load_scenario
from catalogs.errors import NothingFitsError
from catalogs.scenario_files import scenario_path, shipped_scenarios
from catalogs.scenario_schema import MOMENTS
from catalogs.traces import read_trace, trace_path
from catalogs.types import Phase
from flows import planning
from flows.build import build_library, registered_library
from flows.headroom import STREAM_REQUESTS, SimulatedHeadroom
from flows.planning_inputs import planning_inputs
from flows.settings import BuildSettings, SilentProgress
from tasks.allocation.headroom import settle
from tasks.allocation.share_search import SearchLimits, Settled
from tasks.allocation.shares import uses
from tasks.simulation.engine import simulate
from tasks.simulation.headroom import WARM_UP_SHARE, RequestsAt, poisson_at
from tasks.simulation.metrics import ModelReport, Slo, report
from tasks.simulation.streams import ModelStream, moment_pairs, stream_requests
from tasks.simulation.types import Floats, Ints, Requests, SimInstance
from warehouse.connect import Lake

WARM_UP_S = 60.0
# Prompts that templates for a trace are made for: of the 1 % that may miss a quarter is longer; less where nothing serves it.
LONGEST_PERCENTILES = (99.75, 99.0, 95.0, 90.0)
# Supply is doubled up to this where a plan that keeps the traces' SLOs wants more than the scenario has.
MOST_NODES = 256
# Traces that crowd let instances be used to a few per cent: far below where the search begins.
PATIENT = SearchLimits(rounds=30, most_rounds=40, lowering_rounds=20, hopeless=0.0)
# (input, output) means that scenarios state, and the trace they are from.
TRACE_OF = {(1155.0, 211.0): "azure-conv-2023", (2048.0, 28.0): "azure-code-2023"}


def settled_plan(
    loaded: LoadedScenario,
    settings: BuildSettings,
    lake: Lake,
    streams: Mapping[str, tuple[RequestsAt, str]] | None = None,
) -> tuple[Settled, list[SimInstance]]:
    """What would be planned if nothing ran, and its instances."""
    measure = SimulatedHeadroom(loaded, lake, streams)
    inputs = planning_inputs(loaded, lake, registered_library(settings, loaded))
    settled = settle(inputs.problem, planning.solve, measure, PATIENT if streams else None)
    return settled, measure.instances(settled.result)


def attainment(
    loaded: LoadedScenario, streams: list[ModelStream], instances: list[SimInstance], minutes: float, seeds: int
) -> dict[str, ModelReport]:
    """Reports by model over all seeds; counts and shares are of the union."""
    slos = {}
    for demand in loaded.model_demands:
        limits = {w.phase: w.slo_ms for w in loaded.workloads if w.workload_id in demand.workload_ids}
        slos[demand.model] = Slo(limits[Phase.PREFILL], limits[Phase.DECODE])
    until_s = WARM_UP_S + minutes * 60
    runs = [
        report(simulate(stream_requests(streams, until_s, seed), instances), slos, from_s=WARM_UP_S)
        for seed in range(1, seeds + 1)
    ]
    pooled = {}
    for same in zip(*runs, strict=True):
        total = sum(item.requests for item in same)

        def mean(name: str, same: Any = same, total: int = total) -> float:
            return sum(getattr(item, name) * item.requests for item in same) / total

        shares = {name: mean(name) for name in ("attained", "attained_ttft", "attained_tpot")}
        pooled[same[0].model] = replace(same[0], requests=total, **shares)
    return pooled


def trace_at(model: str, arrival_s: Floats, pairs: tuple[Ints, Ints]) -> RequestsAt:
    """The trace at any rate, started over until it has the requests of a stream: its clock is scaled. The warm-up, which is
    not judged, is the trace's end: the whole of it is judged, its busiest minutes among it."""
    n = len(arrival_s)
    repeats = -(-STREAM_REQUESTS // n)
    period = (arrival_s[-1] - arrival_s[0]) * n / (n - 1)
    times = np.concatenate([arrival_s - arrival_s[0] + k * period for k in range(repeats)])
    lead = 1 + int((times >= repeats * period * (1 - WARM_UP_SHARE / (1 - WARM_UP_SHARE))).sum())
    index = np.concatenate([np.arange(len(times) - lead, len(times)), np.arange(len(times))])
    shifted = times[index] - np.where(np.arange(len(index)) < lead, repeats * period, 0.0)
    unit_s = (shifted - shifted[0]) * n / period
    inputs, outputs = (np.tile(tokens, repeats)[index] for tokens in pairs)
    number = np.zeros(len(index), dtype=np.int64)
    return lambda rate: Requests(unit_s / rate, inputs, outputs, number, (model,))


def print_attainment(title: str, found: Mapping[str, ModelReport], loaded: LoadedScenario) -> None:
    """One line per model."""
    alias = {demand.model: demand.alias for demand in loaded.model_demands}
    for model, item in found.items():
        print(
            f"  {title:28} {alias[model]:18} {item.requests:7} requests  both {item.attained:8.3%}  TTFT "
            f"{item.attained_ttft:8.3%}  TPOT {item.attained_tpot:8.3%}"
        )


def traces_of(loaded: LoadedScenario) -> dict[str, str]:
    """Trace of each model whose stated lengths are one's means."""
    found = {}
    for workload in loaded.workloads:
        key = (workload.lengths.input_mean, workload.lengths.output_mean)
        if key in TRACE_OF:
            found[workload.model.model] = TRACE_OF[key]
    return found


def with_trace_lengths(
    name: str, loaded: LoadedScenario, traces: Mapping[str, str], percentiles: Mapping[str, float], folder: Path
) -> Path:
    """The scenario with the traces' lengths, so that templates are made for them."""
    document = yaml.safe_load(scenario_path(name).read_text(encoding="utf-8"))
    document["id"] = f"{document['id']}-traces"
    for section in document["models"]:
        model = loaded.catalog.model(section["model"]).model
        if model in traces:
            lengths = read_trace(trace_path(traces[model])).lengths(percentiles[model])
            section["lengths"] = {name: float(getattr(lengths, name)) for name in MOMENTS}
    path = folder / f"{document['id']}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def trace_library(name: str, loaded: LoadedScenario, traces: Mapping[str, str], lake: Path) -> Path:
    """A scenario with a library for the traces' lengths: prompts up to the highest percentile that some template serves."""
    place = dict.fromkeys(traces, 0)
    aliases = {demand.model: demand.alias for demand in loaded.model_demands}
    while True:
        percentiles = {model: LONGEST_PERCENTILES[at] for model, at in place.items()}
        path = with_trace_lengths(name, loaded, traces, percentiles, lake)
        try:
            build_library(settings_for(path, lake), SilentProgress())
            return path
        except NothingFitsError as refusal:
            failing = [model for model in traces if f"{aliases[model]}/" in str(refusal)]
            if not failing or any(place[model] + 1 == len(LONGEST_PERCENTILES) for model in failing):
                raise
            for model in failing:
                print(
                    f"  {aliases[model]}: nothing serves the p{percentiles[model]:g} prompt of {traces[model]}: {refusal}"
                )
                place[model] += 1


def enough_supply(
    loaded: LoadedScenario, settings: BuildSettings, lake_root: Path, streams: Mapping[str, tuple[RequestsAt, str]]
) -> tuple[Settled, list[SimInstance], int]:
    """The plan at the scenario's supply; while no choice from it keeps the SLOs, at twice as much. With the nodes it took."""
    while True:
        nodes = loaded.scenario.availability.default_nodes
        with Lake.open(lake_root) as lake:
            settled, instances = settled_plan(loaded, settings, lake, streams)
        is_kept = not shortage(settled) and not settled.short
        if is_kept or nodes >= MOST_NODES:
            return settled, instances, nodes
        why = shortage(settled) or f" ({len(settled.short)} workloads used beyond what is safe)"
        print(f"    {nodes} nodes of each configuration and region{why}", flush=True)
        loaded = with_nodes(loaded, 2 * nodes)


def with_nodes(loaded: LoadedScenario, nodes: int) -> LoadedScenario:
    """The scenario with another assumed supply of every configuration and region."""
    availability = loaded.scenario.availability.model_copy(update={"default_nodes": nodes})
    scenario = loaded.scenario.model_copy(update={"availability": availability})
    return replace(loaded, scenario=scenario, supply=replace(loaded.supply, default_nodes=nodes))


def shortage(settled: Settled) -> str:
    """What is to be said where supply does not suffice to use instances only as far as is safe."""
    theta = settled.result.theta
    return "" if theta >= 1 - 1e-9 else f" (all there is: keeps its SLOs at {theta:.0%} of the planned rate)"


def settings_for(scenario: str | Path, lake: Path) -> BuildSettings:
    """A build without the ILP's sample check."""
    return BuildSettings(scenario=scenario, lake_root=lake, sample_n=0)


def print_scenario(name: str, arguments: argparse.Namespace) -> None:
    """Everything about one scenario."""
    settings = settings_for(name, arguments.lake)
    build_library(settings, SilentProgress())
    loaded = load_scenario(name)
    begin = time.perf_counter()
    with Lake.open(arguments.lake) as lake:
        settled, instances = settled_plan(loaded, settings, lake)
    cost = settled.result.cost_usd_per_h
    print(f"{name}: {cost:.2f} USD/h{shortage(settled)}, settled in {time.perf_counter() - begin:.1f} s")
    used = uses(settled.problem, settled.result)
    for c in settled.problem.candidates:
        if c.workload_id in used:
            print(f"  {c.alias:28} used {used[c.workload_id]:.2f}, safe {settled.safe[c.workload_id]:.2f}")
    poisson, raw = streams_of(loaded, {}), traces_of(loaded)
    found = attainment(loaded, poisson, instances, arguments.minutes, arguments.seeds)
    print_attainment("Poisson at the planned rate", found, loaded)
    if arguments.until == "poisson" or not raw:
        return
    found = attainment(loaded, streams_of(loaded, raw), instances, arguments.minutes, arguments.seeds)
    print_attainment("raw traces, plan as it is", {m: r for m, r in found.items() if m in raw}, loaded)
    if arguments.until == "cost":
        print_trace_plan(name, loaded, raw, cost, arguments)


def streams_of(loaded: LoadedScenario, traces: Mapping[str, str]) -> list[ModelStream]:
    """Poisson with the scenario's lengths, or a trace, for each model at its planned rate."""
    streams = []
    for demand in loaded.model_demands:
        rate = demand.planned_req_per_s or 0.0
        if demand.model in traces:
            trace = read_trace(trace_path(traces[demand.model]))
            streams.append(ModelStream(demand.model, rate, *trace.pairs(), trace.arrival_s))
        else:
            lengths = next(w.lengths for w in loaded.workloads if w.workload_id in demand.workload_ids)
            streams.append(ModelStream(demand.model, rate, *moment_pairs(lengths)))
    return streams


def print_trace_plan(
    name: str, stated: LoadedScenario, traces: Mapping[str, str], cost: float, arguments: argparse.Namespace
) -> None:
    """A plan for the traces' lengths under Poisson arrivals, then under their own: cost and attainment on them."""
    path = trace_library(name, stated, traces, arguments.lake)
    settings = settings_for(path, arguments.lake)
    loaded = load_scenario(path)
    pairs = {model: read_trace(trace_path(trace)) for model, trace in traces.items()}
    kinds: dict[str, dict[str, tuple[RequestsAt, str]]] = {"Poisson arrivals": {}, "their own arrivals": {}}
    for model, trace in pairs.items():
        assert trace.arrival_s is not None
        kinds["Poisson arrivals"][model] = (
            poisson_at(model, trace.pairs(), STREAM_REQUESTS),
            f"poisson {traces[model]}",
        )
        kinds["their own arrivals"][model] = (trace_at(model, trace.arrival_s, trace.pairs()), f"raw {traces[model]}")
    for kind, streams in kinds.items():
        settled, instances, nodes = enough_supply(loaded, settings, arguments.lake, streams)
        new = settled.result.cost_usd_per_h
        supply = f"{nodes} nodes of each configuration and region"
        print(
            f"  planned for the traces' lengths, {kind}, {supply}: {new:.2f} USD/h, {new - cost:+.2f}{shortage(settled)}"
        )
        alias = {c.workload_id: c.alias for c in settled.problem.candidates}
        for workload_id, (use, safe) in settled.short.items():
            print(f"    {alias[workload_id]}: used {use:.2f}, safe {safe:.2f}: no plan found that keeps it")
        found = attainment(loaded, streams_of(stated, traces), instances, arguments.minutes, arguments.seeds)
        print_attainment("raw traces on that plan", {m: r for m, r in found.items() if m in traces}, loaded)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=list(shipped_scenarios()))
    parser.add_argument("--lake", type=Path, required=True, help="libraries are looked for and built here")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--until",
        choices=("poisson", "raw", "cost"),
        default="cost",
        help="leave out the traces, or what 99 % on them cost",
    )
    arguments = parser.parse_args()
    for name in arguments.scenarios:
        print_scenario(name, arguments)


if __name__ == "__main__":
    main()
