"""The rate of one given layout, on one machine or over several, whether or not the library would choose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.types import Efficiency, Gpu, NodeConfig, Workload
from tasks.profiling.cells import Cells, StageTimes
from tasks.profiling.cycles import Mode
from tasks.profiling.layouts import Layout
from tasks.profiling.left_out import UNLIMITED_GBIT_PER_S
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.rates import FEASIBLE, REASONS, LayoutSolver
from tasks.profiling.roofline import Roofline
from tasks.profiling.schema import Infeasible
from tasks.profiling.shapes import ModelShape
from tasks.templates.types import Position

_REASON_TEXTS = {
    Infeasible.UNPROFILED: "its GPU has no performance factors",
    Infeasible.LAYOUT: "no engine splits the model so",
    Infeasible.MEMORY: "the weights do not fit into memory",
    Infeasible.KV_CACHE: "no KV cache fits beside the weights",
    Infeasible.SLO: "it cannot meet the SLO",
}


@dataclass(frozen=True, slots=True)
class LayoutRate:
    """Tokens/s of one instance within the SLO; 0 with the ``reason`` where it serves none."""

    tok_per_s: float
    reason: str = ""


def layout_rate(
    workload: Workload,
    node: NodeConfig,
    gpu: Gpu,
    efficiency: Efficiency | None,
    layout: Layout,
    *,
    machines: int = 1,
    settings: ProfileSettings | None = None,
    mode: Mode | str = Mode.CYCLE,
) -> LayoutRate:
    """The best rate over cycles of one instance on ``machines`` nodes, ``layout`` on each.

    Over several nodes each is a stage of one pipeline, its layers as even as they go, as vLLM splits them. On one node the
    layout may leave GPUs idle.
    """
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    if efficiency is None:
        return LayoutRate(0.0, _REASON_TEXTS[Infeasible.UNPROFILED])
    refusal = shape.tp_refusal(layout.tp)
    if refusal or layout.pp * machines > workload.model.layers:
        return LayoutRate(0.0, refusal or _REASON_TEXTS[Infeasible.LAYOUT])
    roofline = Roofline(gpu, efficiency, shape)
    if roofline.missing_factors(layout.tp):
        return LayoutRate(0.0, _REASON_TEXTS[Infeasible.UNPROFILED])
    cells = Cells(workload, settings or ProfileSettings(), Mode(mode), machines)
    times = StageTimes.build(roofline, layout.tp, cells)
    stages = list(zip(_positions(machines), stage_layers(workload.model.layers, layout.pp, machines), strict=True))
    at = [(cells.combos.index((machines, position)), layers - 1) for position, layers in stages]

    def rate_and_reason(node: NodeConfig) -> tuple[float, Infeasible]:
        solved = LayoutSolver(node, gpu, shape, cells, layout, times).solve()
        rates = np.min([solved.rate_tok_per_s[combo, :, layer] for combo, layer in at], axis=0)
        # The cycle at which the worst stage got furthest says what is wrong.
        furthest = int(np.min([solved.outcome[combo, :, layer] for combo, layer in at], axis=0).max())
        return float(rates.max()), REASONS[min(furthest, FEASIBLE - 1)]

    rate, reason = rate_and_reason(node)
    if rate > 0:
        return LayoutRate(rate)
    if reason is Infeasible.SLO and rate_and_reason(replace(node, network_gbit_per_s=UNLIMITED_GBIT_PER_S))[0] > 0:
        speed = "unknown" if node.network_gbit_per_s is None else f"{node.network_gbit_per_s:g} Gbit/s"
        return LayoutRate(0.0, f"handing over the KV of a prompt takes too long for the SLO on its network ({speed})")
    return LayoutRate(0.0, _REASON_TEXTS[reason])


def stage_layers(layers: int, inner: int, machines: int) -> Sequence[int]:
    """Layers per machine when ``machines`` x ``inner`` stages share them as evenly as they go: the remainder to the stages
    before the last, and from there towards the front."""
    base, rest = divmod(layers, inner * machines)
    stages = inner * machines
    each = [base + (stages - 1 - rest <= i < stages - 1) for i in range(stages)]
    return [sum(each[m * inner : (m + 1) * inner]) for m in range(machines)]


def _positions(machines: int) -> list[Position]:
    if machines == 1:
        return [Position.ONLY]
    return [Position.FIRST, *[Position.MID] * (machines - 2), Position.LAST]
