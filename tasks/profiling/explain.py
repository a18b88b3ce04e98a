"""Why a workload has no template: the GiB missing, the tightest SLO that could be met, or what has no profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Efficiency, Gpu, NodeConfig, Phase, Workload
from tasks.profiling.cells import Cells
from tasks.profiling.cycles import Mode
from tasks.profiling.layouts import legal_layouts
from tasks.profiling.memory import MemoryModel, ProfileSettings
from tasks.profiling.roofline import Roofline
from tasks.profiling.schema import Infeasible
from tasks.profiling.shapes import GIB, ModelShape
from tasks.profiling.tightest import ANY_COMBINATION, Combinations, layout_solvers, tightest_slo_of
from tasks.templates.types import Position


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why nothing serves a workload. ``tightest_slo_ms`` is None where no SLO would help; ``missing_gib`` is 0 where
    memory is not the reason. ``largest`` names the configuration with most room (times the most stages).
    ``is_by_library``: the limits on combinations are the reason, not the hardware."""

    workload_id: str
    alias: str
    reason: Infeasible
    text: str
    needed_gib: float
    largest: str
    largest_gib: float
    missing_gib: float
    tightest_slo_ms: float | None
    is_by_library: bool = False


def memory_needed_gib(workload: Workload) -> float:
    """GiB of the model's weights and the least KV it can serve with: one sequence of the mean decode context, or one
    prompt of the SLO percentile's length. Activations and the engine's reserve come on top, per GPU."""
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    lengths = workload.lengths
    is_prefill = workload.phase is Phase.PREFILL
    tokens = lengths.input_at_percentile if is_prefill else lengths.decode_context_mean
    return (shape.weight_bytes + shape.kv_bytes_all_layers(tokens)) / GIB


def tightest_slo_ms(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    max_stages: int = 6,
    mode: Mode | str = Mode.CYCLE,
    combinations: Combinations = ANY_COMBINATION,
) -> float | None:
    """The smallest SLO in ms that some combination of at most ``max_stages`` nodes of these configurations could meet
    with the least batch; None where memory, layouts or factors allow none at any SLO."""
    cells = Cells(workload, settings or ProfileSettings(), Mode(mode), _stages(workload, max_stages))
    return tightest_slo_of(cells, node_configs, gpus, efficiencies, combinations)


def explain_infeasible(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    max_stages: int = 6,
    mode: Mode | str = Mode.CYCLE,
    combinations: Combinations = ANY_COMBINATION,
) -> Explanation | None:
    """The reason that no combination of at most ``max_stages`` of these nodes serves the workload; None where one does."""
    settings = settings or ProfileSettings()
    cells = Cells(workload, settings, Mode(mode), _stages(workload, max_stages))
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    needed = memory_needed_gib(workload)
    largest, usable_gib = _largest(workload, node_configs, gpus, shape, settings)
    largest_gib = usable_gib * cells.max_stages

    def answer(reason: Infeasible, text: str, missing: float = 0.0, tightest: float | None = None) -> Explanation:
        alias = workload.alias
        line = f"{alias}: {text}"
        return Explanation(workload.workload_id, alias, reason, line, needed, largest, largest_gib, missing, tightest)

    refusal = _no_layout(shape, node_configs, gpus, efficiencies)
    if refusal:
        return answer(*refusal)
    by_weights, by_memory = _reach(cells, node_configs, gpus, efficiencies)
    for reason, layers, what in (
        (Infeasible.MEMORY, by_weights, "weights"),
        (Infeasible.KV_CACHE, by_memory, "weights and the KV of a single request"),
    ):
        unplaced = shape.spec.layers - _most_layers(layers, cells.max_stages)
        if unplaced > 0:
            verb = "stays" if unplaced == 1 else "stay"
            missing = max(needed - largest_gib, unplaced * shape.weight_bytes / shape.spec.layers / GIB)
            text = (
                f"{what} need {needed:.1f} GiB; the largest combination, {cells.max_stages} x {largest}, has room for"
                f" {largest_gib:.1f} GiB and {unplaced} of {shape.spec.layers} layers {verb} out: {missing:.1f} GiB missing"
            )
            return answer(reason, text, missing)
    tightest = tightest_slo_of(cells, node_configs, gpus, efficiencies, combinations)
    unit = "TTFT" if workload.phase is Phase.PREFILL else "TPOT"
    if tightest is None:
        nodes = "one node" if cells.max_stages == 1 else f"up to {cells.max_stages} nodes"
        text = f"no combination of {nodes} that a region sells and that the limit on memory allows meets any {unit}"
        return replace(answer(Infeasible.MEMORY, text), is_by_library=True)
    if tightest <= workload.slo_ms:
        return None
    reachable = np.ceil(tightest * 10) / 10
    text = f"a {unit} of {workload.slo_ms:g} ms cannot be met; the tightest reachable is {reachable:.10g} ms"
    return answer(Infeasible.SLO, text, tightest=tightest)


def _stages(workload: Workload, max_stages: int) -> int:
    return max(1, min(max_stages, workload.model.layers))


def _largest(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    shape: ModelShape,
    settings: ProfileSettings,
) -> tuple[str, float]:
    """The configuration with most usable memory and its GiB."""
    if not node_configs:
        return "no configuration", 0.0

    def usable(node: NodeConfig) -> float:
        return node.gpu_count * MemoryModel(gpus[node.gpu], shape, workload.phase, settings).usable_bytes / GIB

    best = max(node_configs, key=lambda node: (usable(node), node.node_config))
    return best.node_config, usable(best)


def _no_layout(
    shape: ModelShape,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
) -> tuple[Infeasible, str] | None:
    """UNPROFILED or LAYOUT where no configuration has a legal layout with factors."""
    lacking: dict[str, None] = {}
    has_layout = False
    for node in node_configs:
        eff = efficiencies.get(node.gpu)
        if eff is None:
            lacking[f"{node.gpu}: no efficiency factors"] = None
            continue
        for layout in legal_layouts(shape, node.gpu_count):
            has_layout = True
            missing = Roofline(gpus[node.gpu], eff, shape).missing_factors(layout.tp)
            if not missing:
                return None
            lacking[missing] = None
    if lacking or not node_configs:
        why = "; ".join(lacking) or "there is no node configuration"
        return Infeasible.UNPROFILED, f"no configuration is profiled for it ({why})"
    return (Infeasible.LAYOUT, "no configuration has a layout for it") if not has_layout else None


def _reach(
    cells: Cells,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
) -> tuple[dict[tuple[int, Position], int], dict[tuple[int, Position], int]]:
    """Most layers the best configuration holds in every (stages, position): by weights, and with the least KV beside."""
    by_weights = {combo: 0 for combo in cells.combos}
    by_memory = dict(by_weights)
    for _, solver in layout_solvers(cells, node_configs, gpus, efficiencies):
        first = solver.layout.pp
        for i, combo in enumerate(cells.combos):
            stages, position = combo
            holds, entries = solver.largest_by_memory(solver.inner_stages(stages, position), stages * first)
            by_weights[combo] = max(by_weights[combo], _last_true(holds, first))
            needed = cells.entries(cells.lone_tokens_needed(i, np.zeros(1)))
            fits = np.any(holds & (entries >= needed), axis=0)
            by_memory[combo] = max(by_memory[combo], _last_true(np.asarray(fits), first))
    return by_weights, by_memory


def _last_true(fits: NDArray[np.bool_], first: int) -> int:
    """The most layers that fit, where entry 0 stands for ``first`` layers; 0 = none."""
    return int(np.flatnonzero(fits).max(initial=-1)) + first if fits.any() else 0


def _most_layers(layers: Mapping[tuple[int, Position], int], max_stages: int) -> int:
    """The most layers any number of stages holds, one node each."""
    best = layers[1, Position.ONLY]
    for stages in range(2, max_stages + 1):
        parts = [layers[stages, Position.FIRST], layers[stages, Position.LAST]]
        parts += [layers[stages, Position.MID]] * (stages - 2)
        if all(parts):
            best = max(best, sum(parts))
    return best
