"""One node that serves prefill and decode together, at a fixed number of requests in flight: what serving benchmarks do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from catalogs.layer_times import StepTime
from catalogs.types import Efficiency, Gpu, Lengths, NodeConfig, Phase, Workload
from tasks.profiling.memory import ProfileSettings
from tasks.simulation.aggregated import ClusterResult, run
from tasks.simulation.build import Hardware, InstanceBuilder, Member, StagePlan
from tasks.simulation.kernel_aggregated import ClusterTables, Feeding
from tasks.simulation.pack import interpolate
from tasks.simulation.types import SimNode

# Requests per place in flight; the first half of the run is not counted.
_ROUNDS = 20
_SPREAD = 0.3


def serve_point(
    row: StepTime, node_config: NodeConfig, gpu: Gpu, efficiency: Efficiency, settings: ProfileSettings | None = None
) -> float:
    """Simulated milliseconds for a measured point: mean time to first token, or of the requests in flight per token made.

    Requests have the point's lengths and replace one another at once. A pass holds what waits: prompts and sequences add up.
    """
    hardware = Hardware(
        {node_config.node_config: replace(node_config, gpu=row.gpu, gpu_count=row.tp)},
        {row.gpu: gpu},
        {row.gpu: efficiency},
        settings or ProfileSettings(),
    )
    result, horizon_s = _serve(row, _tables(row, node_config.node_config, hardware))
    if row.phase is Phase.PREFILL:
        return float(result.prompt_s.mean()) * 1e3
    made = (len(result.decode_s) + len(result.prompt_s)) / (horizon_s / 2)
    return max(1, round(row.batch)) / made * 1e3


def _tables(row: StepTime, name: str, hardware: Hardware) -> ClusterTables:
    """Pass times at the point's lengths, from the step tables the simulator uses for plans."""
    nodes: Mapping[Phase, SimNode] = {
        phase: _node(row, name, hardware, phase) for phase in (Phase.PREFILL, Phase.DECODE)
    }
    prompt, decode = nodes[Phase.PREFILL].step, nodes[Phase.DECODE].step
    # A prompt's tokens attend half of it on average; a sequence in decode, its prompt and half of its answer.
    mean_context = Lengths.constant(row.input_tokens, row.output_tokens).decode_context_mean
    prompt_s = interpolate(prompt, prompt.tokens, np.array([row.input_tokens / 2]))[:, 0]
    decode_s = interpolate(decode, decode.tokens, np.array([mean_context]))[:, 0]
    return ClusterTables(
        np.append(0.0, prompt.tokens), np.append(0.0, prompt_s)[None, :],
        decode.tokens, decode_s[None, :], 0.0,
        np.array([max(1, hardware.settings.max_prefill_tokens // row.input_tokens)]), np.array([1 << 30]),
        np.array([nodes[Phase.DECODE].kv_capacity_tokens]), np.array([[-1], [0]]), np.ones((2, 1)),
        np.zeros(1, dtype=np.int64), np.ones((1, 1)), 0.0, 0.0,
    )  # fmt: skip


def _node(row: StepTime, name: str, hardware: Hardware, phase: Phase) -> SimNode:
    workload = Workload(
        model=row.model,
        weight_dtype=row.weight_dtype,
        kv_dtype="bf16",
        phase=phase,
        slo_ms=1e9,
        slo_percentile=99.0,
        lengths=Lengths.constant(row.input_tokens, row.output_tokens),
    )
    member = Member(name, 1.0, row.tp, 1, 1, hardware.settings.max_prefill_tokens if phase is Phase.PREFILL else 256)
    stage = StagePlan(0, row.model.layers - 1, (member,))
    return InstanceBuilder(workload, hardware).build([stage], 1.0, row.gpu, "").stages[0].nodes[0]


def _serve(row: StepTime, tables: ClusterTables) -> tuple[ClusterResult, float]:
    """A closed loop of the point's requests, long enough for each place to serve several, and its length."""
    places = max(1, round(row.batch))
    count = places * _ROUNDS
    step_s = float(np.interp(places, tables.decode_knots, tables.decode_s[0]))
    prompt_s = float(np.interp(row.input_tokens, tables.prompt_knots, tables.prompt_s[0]))
    horizon_s = _ROUNDS / 2 * (row.output_tokens * step_s + places * prompt_s)
    feeding = Feeding(places, False, 0.0, float("inf"), 1.0, float(row.output_tokens), horizon_s)
    rng = np.random.default_rng(0)
    # Lengths spread evenly around the stated ones: of equal requests all would end at once, which no benchmark shows.
    inputs, outputs = (
        np.maximum(np.rint(mean * rng.uniform(1 - _SPREAD, 1 + _SPREAD, count)), 1).astype(np.int64)
        for mean in (row.input_tokens, max(row.output_tokens - 1, 1))
    )
    result = run(tables, feeding, (np.zeros(count), inputs, outputs), warm_up_s=horizon_s / 2)
    return result, horizon_s
