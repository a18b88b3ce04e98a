"""What is profiled: the grid of (stage count, position), cycles and batch sizes, and stage times over the batch sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Phase, Workload
from tasks.profiling.cycles import Mode, cycle_grid, passes_allowed
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.roofline import Roofline
from tasks.templates.types import Position

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """The (stage count, position) combos and cycles a workload is profiled at."""

    workload: Workload
    settings: ProfileSettings
    mode: Mode
    max_stages: int

    @cached_property
    def combos(self) -> tuple[tuple[int, Position], ...]:
        """(1, ONLY), (2, FIRST), (2, MID), (2, LAST), (3, FIRST), ..."""
        ends = (Position.FIRST, Position.MID, Position.LAST)
        return ((1, Position.ONLY), *((s, position) for s in range(2, self.max_stages + 1) for position in ends))

    @cached_property
    def stages(self) -> Ints:
        """Stage count of each combo."""
        return np.array([stages for stages, _ in self.combos], dtype=np.int64)

    @cached_property
    def cycle_ms(self) -> Floats:
        """[combos, cycles], longest first; NaN after a stage count's last, where others have more."""
        grids = [cycle_grid(self.workload, s, self.settings, self.mode) for s in range(1, self.max_stages + 1)]
        padded = np.full((len(grids), max(len(grid) for grid in grids)), np.nan)
        for row, grid in zip(padded, grids, strict=True):
            row[: len(grid)] = grid
        return padded[self.stages - 1]

    @property
    def lone_tokens(self) -> float:
        """Tokens to compute of a prompt of the SLO percentile's length."""
        return self.workload.lengths.input_at_percentile * (1 - self.workload.prefix_hit_rate)

    def lone_tokens_needed(self, combo: int, handover_ms: Floats) -> Ints:
        """[cycles, len(handover_ms)]: sub-batch with which a prompt of the SLO percentile's length meets the SLO though the
        hand-over of its KV takes ``handover_ms`` of it; one token more than the largest pass = impossible. Decode: 1."""
        cycle_ms = self.cycle_ms[combo][:, None]
        if self.workload.phase is not Phase.PREFILL:
            return np.ones((len(cycle_ms), len(handover_ms)), dtype=np.int64)
        passes = passes_allowed(self.workload.slo_ms - handover_ms, self.combos[combo][0], cycle_ms, self.mode)
        return self.tokens_in_passes(passes)

    def tokens_in_passes(self, passes: Floats) -> Ints:
        """Sub-batch with which a lone prompt is through in ``passes``; one token more than the largest pass = impossible."""
        impossible = float(self.batch_grid[-1] + 1)
        needed = np.full(passes.shape, impossible)
        np.divide(self.lone_tokens, passes, out=needed, where=passes > 0)
        return np.ceil(np.minimum(needed, impossible) - 1e-9).astype(np.int64)

    def entries(self, tokens: Ints) -> Ints:
        """The first entries of the batch grid, counted from 1, that hold ``tokens`` (one more than there are: none does)."""
        return np.searchsorted(self.batch_grid, tokens, side="left").astype(np.int64) + 1

    @cached_property
    def batch_grid(self) -> Ints:
        """Batches to choose from: every whole number of prompt tokens, or the sizes CUDA graphs were captured at."""
        if self.workload.phase is Phase.PREFILL:
            return np.arange(1, self.settings.max_prefill_tokens + 1, dtype=np.int64)
        return np.array(self.settings.cuda_graph_batch_sizes, dtype=np.int64)


@dataclass(frozen=True)
class StageTimes:
    """Times in ms of a ``tp`` group over the batch grid, de-rated: per layer kind [kinds, batches], embedding, head.

    ``lone`` is ``layer`` for a lone prompt of the SLO percentile's length, whose attention is longer than the mean's.
    """

    layer: Floats
    lone: Floats
    embedding: Floats
    head: Floats

    @classmethod
    def build(cls, roofline: Roofline, tp: int, cells: Cells) -> StageTimes:
        """Evaluates the roofline once per batch size; every cell is a sum of these columns."""
        workload, n = cells.workload, cells.batch_grid.astype(np.float64)
        lengths, hit = workload.lengths, workload.prefix_hit_rate
        if workload.phase is Phase.PREFILL:
            context, lone_context = lengths.prefill_context, lengths.input_at_percentile
            rows = np.maximum(1.0, n / (lengths.input_mean * (1 - hit)))
        else:
            context = lone_context = lengths.decode_context_mean
            rows = n

        def layers(length: float) -> Floats:
            kinds = roofline.shape.kinds
            return np.array([roofline.layer_ms(n, kind, tp, workload.phase, length, hit * length) for kind in kinds])

        derate = cells.settings.derate(workload.phase, roofline.gpu.gpu)
        layer = layers(context) / derate
        lone = layer if lone_context <= context else layers(lone_context) / derate
        return cls(layer, lone, roofline.embedding_ms(n, tp) / derate, roofline.lm_head_ms(rows, tp) / derate)
