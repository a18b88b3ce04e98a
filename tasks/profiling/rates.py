"""Rates of one node configuration for a workload: ``That[j, k, S, position, c]`` for every layout, best layout per cell.

Notation: j layers held, S stages, c the common cycle, pp inner stages of a layout, b' the sub-batch of a replica's inner
stage (prefill: prompt tokens; decode: sequences), tau its time. An inner stage advances every c / pp, so
``tau(b') + hop <= c / pp``; S * pp sub-batches are in flight, so every GPU holds KV for all of them; the rate is
``replicas * pp * b' / c``. In a decode pipeline (S > 1) the pp sub-batches come together from the node before, and the
last leaves after ``(2 pp - 1) tau``, which must be within c. Cells are [combos, cycles, layers], a combo being a (stage
count, position).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Gpu, NodeConfig, Phase
from tasks.profiling.cells import Cells, StageTimes
from tasks.profiling.cycles import Mode
from tasks.profiling.kernels import BYTES_PER_MS_PER_GB_PER_S
from tasks.profiling.layouts import Layout
from tasks.profiling.memory import MemoryModel
from tasks.profiling.network import held_kv_bytes, network_tok_per_s, payload_gb_per_s
from tasks.profiling.schema import Infeasible
from tasks.profiling.shapes import GIB, ModelShape
from tasks.profiling.stage_kernels import lower_to_fit, stage_times
from tasks.templates.types import Position

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# How far a cell got before it failed; the layout that got furthest names the cell's reason.
REASONS = (Infeasible.UNPROFILED, Infeasible.LAYOUT, Infeasible.MEMORY, Infeasible.KV_CACHE, Infeasible.SLO)
FEASIBLE = len(REASONS)


@dataclass(frozen=True, slots=True)
class InnerStage:
    """One inner stage in all cells of a combo: layers held [layers], where its run lies, what else it does."""

    layers: Ints
    run: Position
    has_embedding: bool
    has_head: bool
    hop_gb_per_s: float
    hop_ms: float


@dataclass(frozen=True, slots=True)
class LayoutRates:
    """One layout's cells [combos, cycles, layers]: ``outcome`` FEASIBLE or an index into REASONS."""

    rate_tok_per_s: Floats
    batch: Ints
    memory_gib: Floats
    outcome: NDArray[np.int8]


@dataclass(frozen=True)
class LayoutSolver:
    """Sizes one layout of one node configuration."""

    node: NodeConfig
    gpu: Gpu
    shape: ModelShape
    cells: Cells
    layout: Layout
    times: StageTimes

    @cached_property
    def _memory(self) -> MemoryModel:
        return MemoryModel(self.gpu, self.shape, self.cells.workload.phase, self.cells.settings)

    @cached_property
    def network_gb_per_s(self) -> float:
        """Payload bandwidth of the node, each way."""
        return payload_gb_per_s(self.node, self.cells.settings)

    def solve(self) -> LayoutRates:
        """Batch, rate and outcome of every cell."""
        shape = (*self.cells.cycle_ms.shape, self.shape.spec.layers)
        rate, memory = np.zeros(shape), np.zeros(shape)
        batch, outcome = (
            np.zeros(shape, dtype=np.int64),
            np.full(shape, REASONS.index(Infeasible.LAYOUT), dtype=np.int8),
        )
        first = self.layout.pp - 1  # fewer layers than inner stages: not a layout for this node
        for i, (stages, position) in enumerate(self.cells.combos):
            solved = self._solve_combo(i, stages, position)
            for target, values in zip((rate, batch, memory, outcome), solved, strict=True):
                target[i, :, first:] = values
        return LayoutRates(rate, batch, memory, outcome)

    def _solve_combo(self, i: int, stages: int, position: Position) -> tuple[Floats, Ints, Floats, NDArray[np.int8]]:
        cells, pp = self.cells, self.layout.pp
        inner = self.inner_stages(stages, position)
        budget = cells.cycle_ms[i][:, None] / self.inner_passes(stages)
        holds, by_memory = self.largest_by_memory(inner, stages * pp)
        in_time = self.largest_in_time(inner, budget, self.times.layer)
        index = np.minimum(in_time, by_memory[None, :])
        if self._chooses_cycle(stages):
            index = self._fastest_up_to(inner, index)
        batch = np.where(index > 0, cells.batch_grid[np.maximum(index, 1) - 1], 0)
        tokens = cells.lone_tokens_needed(i, self.handover_ms(position))
        needed = cells.entries(tokens)
        outcome = np.full(index.shape, FEASIBLE, dtype=np.int8)
        in_slo = (in_time >= needed) & self._lone_fits(inner, budget, tokens) & (index > 0)
        outcome[~in_slo] = REASONS.index(Infeasible.SLO)
        # A chunk beyond the largest pass is a matter of time, not of memory.
        within_reach = np.minimum(needed, len(cells.batch_grid))
        outcome[by_memory[None, :] < within_reach] = REASONS.index(Infeasible.KV_CACHE)
        outcome[:, ~holds] = REASONS.index(Infeasible.MEMORY)
        rate = self._rate(inner, i, index, batch)
        if cells.mode is Mode.CYCLE:
            world = (cells.workload, self.shape, cells.settings, self.node)
            rate = np.minimum(rate, network_tok_per_s(*world, position, self._layer_counts())[None, :])
        rate[outcome != FEASIBLE] = 0.0
        return rate, batch, self._memory_gib(inner, stages * pp, batch), outcome

    def _chooses_cycle(self, stages: int) -> bool:
        """Whether the node runs at a cycle of its own: it decodes and no other stage has to keep pace. For prefill the
        cycle decides how long prompts wait as well, so there the grid's are what is looked at."""
        return stages == 1 and self.cells.workload.phase is not Phase.PREFILL and self.cells.mode is Mode.CYCLE

    def _fastest_up_to(self, inner: Sequence[InnerStage], index: Ints) -> Ints:
        """The grid entry of at most ``index`` [cycles, layers] (0 = none) whose batch is done at the highest rate."""
        entries = np.broadcast_to(
            np.arange(len(self.cells.batch_grid))[:, None], (len(self.cells.batch_grid), index.shape[1])
        )
        tau = np.max([self.stage_ms(stage, entries, self.times.layer) for stage in inner], axis=0)
        rate = self.cells.batch_grid[:, None] / tau
        is_best = rate >= np.maximum.accumulate(rate, axis=0)
        fastest = np.maximum.accumulate(np.where(is_best, entries, 0), axis=0) + 1
        chosen = np.take_along_axis(fastest, np.maximum(index, 1) - 1, axis=0)
        return np.where(index > 0, chosen, 0)

    def inner_passes(self, stages: int) -> int:
        """Passes of an inner stage that a cycle must have room for."""
        comes_together = stages > 1 and self.cells.workload.phase is not Phase.PREFILL
        return 2 * self.layout.pp - 1 if comes_together and self.cells.mode is Mode.CYCLE else self.layout.pp

    def handover_ms(self, position: Position) -> Floats:
        """Time in which the KV of a lone prompt of the SLO percentile's length leaves the node, of the layers it holds:
        [layers]; 0 where the time to first token does not wait for it."""
        workload, settings = self.cells.workload, self.cells.settings
        layers = self._layer_counts()
        if workload.phase is not Phase.PREFILL or self.cells.mode is Mode.PAPER or not settings.charge_kv_handover:
            return np.zeros(len(layers))
        kv_bytes = held_kv_bytes(self.shape, position, layers, workload.lengths.input_at_percentile)
        return kv_bytes / (self.network_gb_per_s * BYTES_PER_MS_PER_GB_PER_S)

    def _layer_counts(self) -> Ints:
        return np.arange(self.layout.pp, self.shape.spec.layers + 1, dtype=np.int64)

    # ---- inner stages -------------------------------------------------------------------------------------------

    def inner_stages(self, stages: int, position: Position) -> list[InnerStage]:
        """The inner stages that can be the slowest or fullest: the first, the one with most layers, the last."""
        settings, layout, counts = self.cells.settings, self.layout, self._layer_counts()
        if self.cells.mode is Mode.PAPER:
            # The paper's profile knows neither positions nor hops: the fullest inner stage, anywhere in the model.
            fullest = -(-counts // layout.pp)
            return [InnerStage(fullest, Position.ONLY, False, False, np.inf, 0.0)]
        is_first, is_last = position in (Position.ONLY, Position.FIRST), position in (Position.ONLY, Position.LAST)
        sends_on = stages > 1 and not is_last
        out_gb_per_s = self.network_gb_per_s / layout.replicas if sends_on else np.inf
        out_ms = settings.network_hop_ms if stages > 1 else 0.0
        if layout.pp == 1:
            return [InnerStage(counts, position, is_first, is_last, out_gb_per_s, out_ms)]
        split = np.array([layout.inner_layers(int(j)) for j in counts], dtype=np.int64)
        link = (self.gpu.link_gb_per_s or self.gpu.pcie_gb_per_s) / 2  # catalogs count both directions
        head_run = Position.FIRST if is_first else Position.MID
        tail_run = Position.LAST if is_last else Position.MID
        return [
            InnerStage(split[:, 0], head_run, is_first, False, link, settings.link_hop_ms),
            InnerStage(split[:, 1], Position.MID, False, False, link, settings.link_hop_ms),
            InnerStage(split[:, 2], tail_run, False, is_last, out_gb_per_s, out_ms),
        ]

    def stage_ms(self, stage: InnerStage, index: Ints, layer: Floats) -> Floats:
        """Time of an inner stage at batch ``batch_grid[index]``, worst run; ``index`` is [..., layers]."""
        cells = np.ascontiguousarray(index).reshape(-1, len(stage.layers))
        return stage_times(*self._stage_arrays(stage, layer), cells).reshape(index.shape)

    def _stage_arrays(self, stage: InnerStage, layer: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """What the kernels take of an inner stage (:mod:`tasks.profiling.stage_kernels`)."""
        none = np.zeros(len(self.cells.batch_grid))
        hop = 2 * self.shape.spec.hidden / (stage.hop_gb_per_s * BYTES_PER_MS_PER_GB_PER_S)
        hop_ms: Floats = np.float64(hop) * self.cells.batch_grid + stage.hop_ms
        return (
            self.shape.run_tables[stage.run][stage.layers],
            layer,
            self.times.embedding if stage.has_embedding else none,
            self.times.head if stage.has_head else none,
            hop_ms,
        )

    def largest_in_time(self, inner: Sequence[InnerStage], budget: Floats, layer: Floats) -> Ints:
        """Grid entries (0 = none) that fit the budget [cycles, 1] in every inner stage."""
        entries = np.full((len(budget), len(inner[0].layers)), len(self.cells.batch_grid), dtype=np.int64)
        for stage in inner:
            lower_to_fit(*self._stage_arrays(stage, layer), budget[:, 0], entries)
        return entries

    def _lone_fits(self, inner: Sequence[InnerStage], budget: Floats, tokens: Ints) -> NDArray[np.bool_]:
        """[cycles, layers]: passes of a lone prompt, of ``tokens`` or all of it, fit the budget though its attention is
        longer than the mean's."""
        if self.times.lone is self.times.layer:
            return np.ones(tokens.shape, dtype=np.bool_)
        entries = self.cells.entries(np.minimum(tokens, np.ceil(self.cells.lone_tokens).astype(np.int64)))
        last = len(self.cells.batch_grid)
        index = np.minimum(entries, last) - 1
        fits = [self.stage_ms(stage, index, self.times.lone) <= budget for stage in inner]
        return np.all(fits, axis=0) & (entries <= last)

    # ---- memory -------------------------------------------------------------------------------------------------

    def _weights(self, stage: InnerStage) -> Floats:
        """Weights [layers, candidate runs]."""
        tp = self.layout.tp
        ends = self.shape.end_bytes(stage.has_embedding, stage.has_head, tp)
        return self.shape.run_tables[stage.run][stage.layers] @ self._memory.layer_bytes(tp) + ends

    def _kv(self, stage: InnerStage, in_flight: int) -> tuple[Floats, Floats, Floats]:
        """KV bytes as (per batch unit, per token of a prompt's earlier chunks, constant), each [layers, candidate runs].

        Decode: every sequence of the ``in_flight`` sub-batches, whole: what prefill found in its cache was sent too.
        Prefill, per token that is computed: every token of them, and the earlier chunks of a prompt that is longer than a
        sub-batch; a windowed layer keeps no more of those than its window. With each comes its share of the prefix that
        the cache holds; prefixes that prompts have in common are counted once for each, which is the safe side.
        """
        lengths, tp = self.cells.workload.lengths, self.layout.tp
        runs = self.shape.run_tables[stage.run][stage.layers]
        if self.cells.workload.phase is not Phase.PREFILL:
            unit = runs @ self.shape.kv_bytes_per_sequence(lengths.decode_context_mean, tp) * in_flight
            return unit, np.zeros_like(unit), np.zeros_like(unit)
        token = self.shape.kv_bytes_per_token_layer(tp)
        windows = np.array([kind.window for kind in self.shape.kinds], dtype=np.float64)
        is_full = windows == 0
        resident = 1 / (1 - self.cells.workload.prefix_hit_rate)
        history = runs @ np.where(is_full, token * resident, 0.0)
        constant = runs @ np.where(is_full, 0.0, np.minimum(windows, lengths.input_at_percentile) * token)
        return runs.sum(axis=-1) * token * resident * in_flight, history, constant

    def largest_by_memory(self, inner: Sequence[InnerStage], in_flight: int) -> tuple[NDArray[np.bool_], Ints]:
        """([layers] weights and a pass of a batch of one fit without KV, [layers] grid entries that fit with all KV)."""
        memory, tp, prompt = self._memory, self.layout.tp, self.cells.lone_tokens
        activation = memory.activation_bytes_per_token(tp)
        holds, largest = np.True_, np.inf
        for stage in inner:
            free = memory.usable_bytes - self._weights(stage)
            least = memory.pass_bytes(np.ones(1), in_flight, tp, has_head=stage.has_head)
            holds = holds & np.all(free >= least, axis=-1)
            unit, history, constant = self._kv(stage, in_flight)
            if self.cells.workload.phase is not Phase.PREFILL:
                fits = memory.largest_decode_batch(free, unit, in_flight, tp, has_head=stage.has_head)
            else:
                free = free - constant
                whole = free / (unit + activation)
                chunked = (free - history * prompt) / np.maximum(unit - history + activation, 1.0)
                fits = np.where((whole >= prompt) | (history == 0), whole, np.minimum(chunked, prompt))
            largest = np.minimum(largest, fits.min(axis=-1))
        entries = np.searchsorted(self.cells.batch_grid, np.floor(np.maximum(largest, 0) + 1e-9), side="right")
        return np.asarray(holds), entries.astype(np.int64)

    def _memory_gib(self, inner: Sequence[InnerStage], in_flight: int, batch: Ints) -> Floats:
        """GiB filled on the fullest GPU at ``batch`` [cycles, layers], the engine's reserve included."""
        memory, tp, prompt = self._memory, self.layout.tp, self.cells.lone_tokens
        used = np.zeros(batch.shape)
        for stage in inner:
            unit, history, constant = self._kv(stage, in_flight)
            n = batch[:, :, None]
            total = self._weights(stage) + constant + n * unit + history * np.maximum(prompt - n, 0)
            total = total + memory.pass_bytes(n.astype(np.float64), in_flight, tp, has_head=stage.has_head)
            used = np.maximum(used, total.max(axis=-1))
        reserve = self.gpu.memory_gib * self.cells.settings.gpu_memory_utilization * GIB - memory.usable_bytes
        return (used + reserve) / GIB

    # ---- rates --------------------------------------------------------------------------------------------------

    def _rate(self, inner: Sequence[InnerStage], i: int, index: Ints, batch: Ints) -> Floats:
        """Tokens per second of the node: replicas * pp * b' / c; over the time it takes instead of the cycle where it waits
        for no one, and by the paper."""
        layout, hit = self.layout, self.cells.workload.prefix_hit_rate
        served = layout.replicas * layout.pp * batch * 1000.0
        if self.cells.workload.phase is Phase.PREFILL:
            served = served / (1 - hit)  # prompt tokens found in the cache are served too
        if self.cells.mode is Mode.CYCLE and not self._chooses_cycle(self.cells.combos[i][0]):
            return served / self.cells.cycle_ms[i][:, None]
        clipped = np.maximum(index, 1) - 1
        tau = np.max([self.stage_ms(stage, clipped, self.times.layer) for stage in inner], axis=0)
        return served / (layout.pp * tau)
