"""The tightest SLO at which a workload could be served, found without trying SLOs.

Serving at all needs no batching: one node per stage. A cycle of the grid is a share of the SLO, SLO / (S + m), or a rung
that stays as it is. For each of them a node holds j layers from some SLO on, and at every longer one; so the answer is the
least SLO at which the nodes of some combination hold the model's layers, all at the same kind of cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Efficiency, Gpu, NodeConfig, Phase
from tasks.profiling.cells import Cells, StageTimes
from tasks.profiling.cycles import PROMPTS_IN_LINE, Mode, passes_allowed, prefill_rungs
from tasks.profiling.layouts import legal_layouts
from tasks.profiling.rates import InnerStage, LayoutSolver
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import ModelShape
from tasks.templates.types import Position

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_JUST_ABOVE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Combinations:
    """Which nodes may stand together: all in one of ``sold_sets`` (None: any), with ``memory_limit_mib`` of GPU memory at
    most (None: any amount)."""

    sold_sets: tuple[tuple[str, ...], ...] | None = None
    memory_limit_mib: int | None = None


ANY_COMBINATION = Combinations()


def layout_solvers(
    cells: Cells,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
) -> Iterator[tuple[NodeConfig, LayoutSolver]]:
    """A solver for every legal layout with factors of every configuration."""
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
            yield node, LayoutSolver(node, gpus[node.gpu], shape, cells, layout, times[key])


def tightest_slo_of(
    cells: Cells,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    combinations: Combinations,
) -> float | None:
    """The smallest SLO in ms that some combination meets with the least batch; None where none does at any."""
    names = sorted({node.node_config for node in node_configs})
    total = cells.workload.model.layers
    needed: dict[tuple[int, Position], Floats] = {}
    for node, solver in layout_solvers(cells, node_configs, gpus, efficiencies):
        k, first = names.index(node.node_config), solver.layout.pp
        for stages, position in cells.combos:
            of_layout = _OfLayout(solver, stages, position).slo_ms()
            table = needed.setdefault((stages, position), np.full((len(names), len(of_layout), total + 1), np.inf))
            table[k, :, first:] = np.minimum(table[k, :, first:], of_layout)
    # A profile ends at the first number of layers that does not work.
    needed = {key: np.maximum.accumulate(table[..., 1:], axis=-1) for key, table in needed.items()}
    mib = {node.node_config: round(node.memory_gib * 1024) for node in node_configs}
    search = _Search(
        total, np.array([mib[name] for name in names], np.float64), _members(names, combinations), combinations
    )
    return search.least(needed, cells.max_stages)


def _members(names: Sequence[str], combinations: Combinations) -> list[list[int]]:
    if combinations.sold_sets is None:
        return [list(range(len(names)))]
    return [[names.index(name) for name in sold if name in names] for sold in combinations.sold_sets]


@dataclass(frozen=True)
class _OfLayout:
    """One layout in one (stage count, position)."""

    solver: LayoutSolver
    stages: int
    position: Position

    @cached_property
    def _inner(self) -> list[InnerStage]:
        return self.solver.inner_stages(self.stages, self.position)

    @cached_property
    def _memory(self) -> tuple[NDArray[np.bool_], Ints]:
        holds, entries = self.solver.largest_by_memory(self._inner, self.stages * self.solver.layout.pp)
        return holds, np.minimum(entries, len(self.solver.cells.batch_grid))

    def slo_ms(self) -> Floats:
        """[kinds of cycle, layers from ``pp`` on]: the least SLO in ms at which the node holds so many; inf = none."""
        cells = self.solver.cells
        holds, _ = self._memory
        if cells.workload.phase is Phase.PREFILL and cells.mode is Mode.CYCLE:
            shares = np.array(cells.settings.prefill_passes)
            found = np.vstack([self._at_shares(shares), self._at_rungs(np.array(prefill_rungs()))])
        else:
            found = self._at_shares(np.zeros(1))
        return np.where(holds, found, np.inf)

    def _at_shares(self, m: Floats) -> Floats:
        """At c = SLO / (S + m): (S + m) x the shortest cycle at which a pass of n tokens fits and n is large enough.

        A larger pass takes longer, but spreads a prompt over fewer and so leaves more time for the hand-over of its KV, h:
        c >= h / (m - 1 - 2 isl / n), see :func:`tasks.profiling.cycles.passes_allowed`. The least of the larger of the two
        is where they cross.
        """
        cells, handover_ms = self.solver.cells, self.solver.handover_ms(self.position)
        _, most = self._memory
        slo_in_cycles = self.stages + m
        is_prefill = cells.workload.phase is Phase.PREFILL
        passes = passes_allowed(slo_in_cycles, self.stages, 1.0, cells.mode)
        least = cells.entries(cells.tokens_in_passes(passes)) if is_prefill else np.ones(len(m), np.int64)
        start, end = np.broadcast_arrays(least[:, None], most[None, :])

        def handover_cycle_ms(entries: Ints) -> Floats:
            if not handover_ms.any():
                return np.zeros(start.shape)
            share = cells.lone_tokens / cells.batch_grid[np.clip(entries, 1, len(cells.batch_grid)) - 1]
            spare = m[:, None] - 1 - PROMPTS_IN_LINE * share
            waits = np.full(start.shape, np.inf)
            np.divide(np.broadcast_to(handover_ms, spare.shape), spare, out=waits, where=spare > 0)
            return waits

        low, high = start, np.maximum(end, start)
        while np.any(low < high):
            middle = (low + high) // 2
            is_long = self._pass_ms(middle) >= handover_cycle_ms(middle)
            low, high = np.where(is_long, low, np.minimum(middle + 1, high)), np.where(is_long, middle, high)
        before = np.maximum(low - 1, start)
        best = [np.maximum(self._pass_ms(n), handover_cycle_ms(n)) for n in (low, before)]
        return slo_in_cycles[:, None] * np.where(start <= end, np.minimum(*best), np.inf)

    def _at_rungs(self, rungs_ms: Floats) -> Floats:
        """At a cycle c that stays: h + (S + 1 + 2 isl / n) c of the largest pass n that fits; no less than what makes the
        grid have the rung, which is shorter than every share of the SLO."""
        cells, solver = self.solver.cells, self.solver
        budget = rungs_ms[:, None] / solver.inner_passes(self.stages)
        size = len(cells.batch_grid)
        entries = np.minimum(solver.largest_in_time(self._inner, budget, solver.times.layer), self._memory[1][None, :])
        if solver.times.lone is not solver.times.layer:
            lone = solver.largest_in_time(self._inner, budget, solver.times.lone)
            whole_prompt = min(int(cells.entries(np.array(np.ceil(cells.lone_tokens)))), size + 1)
            entries = np.where(lone >= whole_prompt, entries, np.minimum(entries, lone))
        passes = cells.lone_tokens / cells.batch_grid[np.maximum(entries, 1) - 1]
        cycles = self.stages + 1 + PROMPTS_IN_LINE * passes
        slo_ms = solver.handover_ms(self.position)[None, :] + cycles * rungs_ms[:, None]
        shortest_share = self.stages + max(cells.settings.prefill_passes)
        slo_ms = np.maximum(slo_ms, shortest_share * rungs_ms[:, None] * _JUST_ABOVE)
        return np.where(entries > 0, slo_ms, np.inf)

    def _pass_ms(self, entries: Ints) -> Floats:
        """Time of the passes that a cycle has room for, also of a lone prompt's, at entries of the batch grid from 1."""
        cells, solver = self.solver.cells, self.solver
        index = np.clip(entries, 1, len(cells.batch_grid)) - 1
        whole_prompt = int(cells.entries(np.array(np.ceil(cells.lone_tokens))))
        alone = np.minimum(index, min(whole_prompt, len(cells.batch_grid)) - 1)
        times = [
            np.maximum(
                solver.stage_ms(stage, index, solver.times.layer), solver.stage_ms(stage, alone, solver.times.lone)
            )
            for stage in self._inner
        ]
        return np.asarray(solver.inner_passes(self.stages) * np.max(times, axis=0))


@dataclass(frozen=True)
class _Search:
    """Which combination holds all ``layers`` at the least SLO. ``memory_mib`` [K]; ``members`` are the sold sets."""

    layers: int
    memory_mib: Floats
    members: list[list[int]]
    combinations: Combinations

    def least(self, needed: Mapping[tuple[int, Position], Floats], max_stages: int) -> float | None:
        """``needed`` [K, kinds of cycle, layers] per (stages, position), rising in layers."""
        best = np.inf
        for stages in range(1, max_stages + 1):
            places = [Position.ONLY] if stages == 1 else [Position.FIRST, Position.LAST]
            places += [Position.MID] * (stages - 2)
            if any((stages, place) not in needed for place in places):
                continue
            for kind in range(needed[stages, places[0]].shape[1]):
                tables = {place: needed[stages, place][:, kind] for place in places}
                candidates = np.unique(np.concatenate([table.ravel() for table in tables.values()]))
                candidates = candidates[candidates < best]
                candidates = candidates[np.isfinite(candidates)]
                low, high = 0, len(candidates)
                if high and not self._holds(tables, places, candidates[-1]):
                    continue
                while low < high:
                    middle = (low + high) // 2
                    enough = self._holds(tables, places, candidates[middle])
                    low, high = (low, middle) if enough else (middle + 1, high)
                best = min(best, float(candidates[low])) if low < len(candidates) else best
        return best if np.isfinite(best) else None

    def _holds(self, tables: Mapping[Position, Floats], places: Sequence[Position], slo_ms: float) -> bool:
        """Whether a node in each of ``places`` can together hold all layers: the least memory for so many, place by place."""
        most = {place: (table <= slo_ms).sum(axis=-1) for place, table in tables.items()}
        at, limit = np.arange(self.layers + 1), self.combinations.memory_limit_mib
        for members in self.members:
            least = np.where(at == 0, 0.0, np.inf)
            for place in places:
                added = [
                    least[np.maximum(at - most[place][k], 0)] + self.memory_mib[k]
                    for k in members
                    if most[place][k] > 0
                ]
                least = np.min(added, axis=0) if added else np.full(len(at), np.inf)
            if least[-1] <= (np.inf if limit is None else limit) and np.isfinite(least[-1]):
                return True
        return False
