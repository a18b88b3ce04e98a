"""Why a workload has no template: the GiB missing, the tightest SLO that could be met, or what has no profile.

Feasibility needs no batching: one node per stage, each stage on whichever configuration holds most layers there. So the
tightest SLO is found exactly, without searching over SLOs: for S stages and m passes the shortest common cycle at which
the stages' layers add up to the model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Efficiency, Gpu, NodeConfig, Phase, Workload
from tasks.profiling.cells import Cells, StageTimes
from tasks.profiling.cycles import PROMPTS_IN_LINE, Mode, prefill_passes
from tasks.profiling.layouts import legal_layouts
from tasks.profiling.memory import MemoryModel, ProfileSettings
from tasks.profiling.rates import InnerStage, LayoutSolver
from tasks.profiling.roofline import Roofline
from tasks.profiling.schema import Infeasible
from tasks.profiling.shapes import GIB, ModelShape
from tasks.templates.types import Position

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why nothing serves a workload. ``tightest_slo_ms`` is None where no SLO would help; ``missing_gib`` is 0 where
    memory is not the reason. ``largest`` names the configuration with most room (times the most stages)."""

    workload_id: str
    alias: str
    reason: Infeasible
    text: str
    needed_gib: float
    largest: str
    largest_gib: float
    missing_gib: float
    tightest_slo_ms: float | None


@dataclass(frozen=True, slots=True)
class _Reach:
    """Most layers a stage holds over all configurations, and the least time per number of layers.

    ``by_weights`` and ``by_memory`` (weights and the least KV) map (stages, position) to layers; ``time_ms`` maps
    (stages, position, passes) to the least cycle [layers + 1] of a stage, inf where memory does not allow it.
    """

    by_weights: dict[tuple[int, Position], int]
    by_memory: dict[tuple[int, Position], int]
    time_ms: dict[tuple[int, Position, float], Floats]


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
) -> float | None:
    """The smallest SLO in ms that some combination of at most ``max_stages`` nodes of these configurations could meet
    with the least batch; None where memory, layouts or factors allow none at any SLO."""
    cells = Cells(workload, settings or ProfileSettings(), Mode.CYCLE, _stages(workload, max_stages))
    reach = _reach(cells, node_configs, gpus, efficiencies)
    return _tightest(cells, reach) if reach else None


def explain_infeasible(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    max_stages: int = 6,
) -> Explanation | None:
    """The reason that no combination of at most ``max_stages`` of these nodes serves the workload; None where one does."""
    settings = settings or ProfileSettings()
    cells = Cells(workload, settings, Mode.CYCLE, _stages(workload, max_stages))
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
    reach = _reach(cells, node_configs, gpus, efficiencies)
    if reach is None:
        return answer(Infeasible.LAYOUT, "no configuration has a layout for it")
    for reason, layers, what in (
        (Infeasible.MEMORY, reach.by_weights, "weights"),
        (Infeasible.KV_CACHE, reach.by_memory, "weights and the KV of a single request"),
    ):
        unplaced = shape.spec.layers - _most_layers(layers, cells.max_stages)
        if unplaced > 0:
            missing = max(needed - largest_gib, unplaced * shape.weight_bytes / shape.spec.layers / GIB)
            text = (
                f"{what} need {needed:.1f} GiB; the largest combination, {cells.max_stages} x {largest}, has room for"
                f" {largest_gib:.1f} GiB and {unplaced} of {shape.spec.layers} layers stay out: {missing:.1f} GiB missing"
            )
            return answer(reason, text, missing)
    tightest = _tightest(cells, reach)
    if tightest is None or tightest <= workload.slo_ms:
        return None
    unit = "TTFT" if workload.phase is Phase.PREFILL else "TPOT"
    text = f"a {unit} of {workload.slo_ms:g} ms cannot be met; the tightest reachable is {np.ceil(tightest * 10) / 10:g} ms"
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


def _solvers(
    cells: Cells,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
) -> Iterator[LayoutSolver]:
    shape = ModelShape(cells.workload.model, cells.workload.weight_dtype, cells.workload.kv_dtype)
    times: dict[tuple[str, int], StageTimes] = {}
    for node in node_configs:
        eff = efficiencies.get(node.gpu)
        if eff is None:
            continue
        roofline = Roofline(gpus[node.gpu], eff, shape)
        for layout in legal_layouts(shape, node.gpu_count):
            if roofline.missing_factors(layout.tp):
                continue
            key = (node.gpu, layout.tp)
            if key not in times:
                times[key] = StageTimes.build(roofline, layout.tp, cells)
            yield LayoutSolver(node, gpus[node.gpu], shape, cells, layout, times[key])


def _reach(
    cells: Cells,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
) -> _Reach | None:
    """What the best configuration reaches in every (stages, position); None where no layout exists."""
    total = cells.workload.model.layers
    by_weights = {combo: 0 for combo in cells.combos}
    by_memory = dict(by_weights)
    is_prefill = cells.workload.phase is Phase.PREFILL
    passes: dict[int, float] = (
        dict(enumerate(prefill_passes(cells.workload, cells.settings))) if is_prefill else {0: 0.0}
    )
    time_ms = {(*combo, m): np.full(total + 1, np.inf) for combo in cells.combos for m in passes.values()}
    found = False
    for solver in _solvers(cells, node_configs, gpus, efficiencies):
        found = True
        first = solver.layout.pp
        for i, (stages, position) in enumerate(cells.combos):
            inner = solver.inner_stages(stages, position)
            holds, entries = solver.largest_by_memory(inner, stages * first)
            combo = (stages, position)
            by_weights[combo] = max(by_weights[combo], _last_true(holds, first))
            needed = cells.entries(cells.lone_tokens_needed(i, np.zeros(1)))
            fits = np.any(holds & (entries >= needed), axis=0)
            by_memory[combo] = max(by_memory[combo], _last_true(np.asarray(fits), first))
            least = np.where(
                holds, _least_cycle_ms(solver, i, inner, np.minimum(entries, len(cells.batch_grid))), np.inf
            )
            for cycle, m in passes.items():
                row = time_ms[stages, position, m]
                row[first:] = np.minimum(row[first:], least[cycle])
    return _Reach(by_weights, by_memory, time_ms) if found else None


def _least_cycle_ms(solver: LayoutSolver, i: int, inner: Sequence[InnerStage], most: Ints) -> Floats:
    """[cycles, layers]: the shortest cycle c at which a prompt's pass of n tokens fits and n is large enough for an SLO of
    (S + m) c; inf where memory, ``most`` entries of the batch grid [layers], allows none.

    A larger pass takes longer, but spreads a prompt over fewer and so leaves more time for the hand-over of its KV, h:
    c >= h / (m - 1 - 2 isl / n), see :func:`tasks.profiling.cycles.passes_allowed`. The least of the larger of the two is
    where they cross.
    """
    cells, (stages, position) = solver.cells, solver.cells.combos[i]
    least = cells.entries(cells.lone_tokens_needed(i, np.zeros(1)))
    start, end = np.broadcast_arrays(least, most[None, :])
    lone = np.ceil(cells.lone_tokens).astype(np.int64)
    handover_ms = solver.handover_ms(position)
    is_prefill = cells.workload.phase is Phase.PREFILL
    passes = np.array(prefill_passes(cells.workload, cells.settings))[:, None] if is_prefill else None

    def pass_ms(entries: Ints) -> Floats:
        index = np.clip(entries, 1, len(cells.batch_grid)) - 1
        alone = np.minimum(index, np.minimum(int(cells.entries(np.array(lone))), len(cells.batch_grid)) - 1)
        times = [
            np.maximum(
                solver.stage_ms(stage, index, solver.times.layer), solver.stage_ms(stage, alone, solver.times.lone)
            )
            for stage in inner
        ]
        return solver.inner_passes(stages) * np.max(times, axis=0)

    def handover_cycle_ms(entries: Ints) -> Floats:
        if passes is None or not handover_ms.any():
            return np.zeros(start.shape)
        share = cells.lone_tokens / cells.batch_grid[np.clip(entries, 1, len(cells.batch_grid)) - 1]
        spare = passes - 1 - PROMPTS_IN_LINE * share
        waits = np.full(start.shape, np.inf)
        np.divide(np.broadcast_to(handover_ms, spare.shape), spare, out=waits, where=spare > 0)
        return waits

    low, high = start, np.maximum(end, start)
    while np.any(low < high):
        middle = (low + high) // 2
        is_long = pass_ms(middle) >= handover_cycle_ms(middle)
        low, high = np.where(is_long, low, np.minimum(middle + 1, high)), np.where(is_long, middle, high)
    before = np.maximum(low - 1, start)
    best = [np.maximum(pass_ms(n), handover_cycle_ms(n)) for n in (low, before)]
    return np.where(start <= end, np.minimum(*best), np.inf)


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


def _tightest(cells: Cells, reach: _Reach) -> float | None:
    """The smallest (stages + passes) * cycle at which the stages' layers add up to the model's."""
    total, best = cells.workload.model.layers, np.inf
    for stages in range(1, cells.max_stages + 1):
        for m in {m for s, _, m in reach.time_ms if s == stages}:
            names = [Position.ONLY] if stages == 1 else [Position.FIRST, Position.LAST]
            curves = [(reach.time_ms[stages, name, m], 1) for name in names]
            if stages > 2:
                curves.append((reach.time_ms[stages, Position.MID, m], stages - 2))
            best = min(best, (stages + m) * _shortest_cycle(curves, total))
    return float(best) if np.isfinite(best) else None


def _shortest_cycle(curves: Sequence[tuple[Floats, int]], total: int) -> float:
    """The least cycle at which sum over (curve, nodes) of nodes x most layers within the cycle reaches ``total``."""
    # Times need not rise with layers where a wider layout opens up: the most layers within c is what counts.
    tails = [(np.minimum.accumulate(times[::-1])[::-1], nodes) for times, nodes in curves]
    candidates = np.unique(np.concatenate([times[np.isfinite(times)] for times, _ in tails]))
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        held = [np.searchsorted(times[1:], candidates[middle], side="right") for times, _ in tails]
        enough = all(held) and sum(h * nodes for h, (_, nodes) in zip(held, tails, strict=True)) >= total
        low, high = (low, middle) if enough else (middle + 1, high)
    return float(candidates[low]) if low < len(candidates) else np.inf
