"""Exact throughput-optimal placement of node combinations (the paper's placement problem, solved without an ILP).

For a partition of the nodes into S groups, rate t is reachable iff the groups, each in its place (first, mid, last),
can together hold at least L layers at rates >= t, every group at least one. Partitions, stage counts and cycles are
enumerated; each is tested at the best rate so far and improved only if it passes. Every node must contribute: a node
whose rate is 0 in its stage makes that placement invalid. Results are exact integers, equal whatever the thread, the
shard or the order of the rows. Ties go to fewer stages, then the lower cycle index, then the first partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.templates import kernel
from tasks.templates.partitions import MAX_NODES, partition_tables, pattern_index
from tasks.templates.types import Placement, Position, RateCurves, StagePlacement

_SLOPES = (0.0, 0.3, 0.55, 0.75, 0.9)
"""Shifts of the upper bound in parts of L/S: each bounds best where stages are about so large."""


@dataclass(frozen=True, slots=True)
class SolvedBatch:
    """Placements of N combinations as arrays; node slots are a combination's nodes in configuration order.

    ``throughput_mtok_per_s`` [N] (0 = nothing feasible), ``n_stages`` [N], ``cycle_index`` [N] (-1 = none),
    ``slot_stage`` [N, n_max] (-1 = no such slot), ``stage_layers`` [N, n_max] (0 = no such stage).
    """

    counts: NDArray[np.int8]
    throughput_mtok_per_s: NDArray[np.int64]
    n_stages: NDArray[np.int8]
    cycle_index: NDArray[np.int8]
    slot_stage: NDArray[np.int8]
    stage_layers: NDArray[np.int16]

    def placement(self, row: int) -> Placement:
        """One row as a :class:`Placement`."""
        counts = tuple(int(count) for count in self.counts[row])
        rate, stages = int(self.throughput_mtok_per_s[row]), int(self.n_stages[row])
        if rate == 0:
            return Placement(counts, 0, -1, ())
        ends = np.cumsum(self.stage_layers[row, :stages].astype(int))
        placed = tuple(
            StagePlacement(
                int(ends[s - 1]) if s else 0,
                int(ends[s]) - 1,
                stage_position(s, stages),
                tuple(int(slot) for slot in np.flatnonzero(self.slot_stage[row] == s)),
            )
            for s in range(stages)
        )
        return Placement(counts, rate, int(self.cycle_index[row]), placed)


def empty_batch(counts: NDArray[np.int8], n_max: int) -> SolvedBatch:
    """A batch in which nothing is feasible, to be filled."""
    n = len(counts)
    return SolvedBatch(
        counts,
        np.zeros(n, np.int64),
        np.zeros(n, np.int8),
        np.full(n, -1, np.int8),
        np.full((n, n_max), -1, np.int8),
        np.zeros((n, n_max), np.int16),
    )


@dataclass(frozen=True, slots=True)
class PreparedCurves:
    """Curves for at most ``n_max`` nodes as the kernel reads them: ``solo`` [K, C] is one stage of all layers, the rest
    is per pair (S >= 2, cycle).
    """

    curves: RateCurves
    n_max: int
    solo: NDArray[np.int64]
    pair_stages: NDArray[np.int64]
    pair_cycle: NDArray[np.int64]
    rate: NDArray[np.int64]
    most: NDArray[np.int64]
    weight: NDArray[np.float64]
    tail: NDArray[np.float64]
    shift: NDArray[np.int64]


def stage_position(stage: int, stages: int) -> Position:
    """The position of stage 0..stages-1 in a pipeline of ``stages``."""
    if stages == 1:
        return Position.ONLY
    if stage == 0:
        return Position.FIRST
    return Position.LAST if stage == stages - 1 else Position.MID


def check_curves(curves: RateCurves) -> None:
    """Raise ValueError unless the curves have the shape and the order in j that :class:`RateCurves` states."""
    rate = curves.rate_mtok_per_s
    stages, cycles = curves.cycle_ms.shape
    shape = (len(curves.node_configs), stages, 4, cycles, curves.layers + 1)
    if rate.shape != shape:
        raise ValueError(
            f"rates of {curves.workload_id} have shape {rate.shape}, expected [K, S, 4, C, L + 1] = {shape}"
        )
    if rate.size and (rate.min() < 0 or rate[..., 0].any()):
        raise ValueError(f"rates of {curves.workload_id} must be >= 0, and 0 at zero layers")
    if (np.diff(rate[..., 1:], axis=-1) > 0).any():
        raise ValueError(f"rates of {curves.workload_id} grow with layers: close the curves first")
    if rate[:, np.isnan(curves.cycle_ms)[:, None, :].repeat(4, 1)].any():
        raise ValueError(f"rates of {curves.workload_id} stand in a cycle slot that is not used")


def bound_weights(
    best: NDArray[np.int64], layers: int, stages: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Node weights whose sum bounds the rate of a combination from above, per pair and slope.

    With group g holding j_g layers at rate >= t, and any shift a: L - a*S = sum_g (j_g - a)
    <= sum_g (j_g - a)^+ * sum_{k in g} min(f_k(j_g), t)/t <= sum_k max_j (j - a)^+ * min(f_k(j), t)/t.
    Dropping the cap at t gives t <= sum_k weight_k, weight_k = max_j (j - a)^+ f_k(j) / (L - a*S); with the cap a node
    counts max(cap_k(t) - a, tail_k(cap_k(t) + 1)/t), where tail_k(j) = max over i >= j of (i - a)^+ f_k(i).
    Returns (weight [K, P, M], tail [K, P, M, L + 3], shift [P, M]); ``best`` is [K, P, L + 1].
    """
    shift = (layers * np.array(_SLOPES)[None, :] / stages[:, None]).astype(np.int64)
    j = np.arange(layers + 1)
    reachable = j[None, None, :] <= layers - stages[:, None, None] + 1
    lever = np.where(reachable, np.maximum(j[None, None, :] - shift[:, :, None], 0), 0)
    area = lever[None] * best[:, :, None, :].astype(np.float64)
    tail = np.zeros((*area.shape[:3], layers + 3))
    tail[..., : layers + 1] = np.maximum.accumulate(area[..., ::-1], axis=-1)[..., ::-1]
    return tail[..., 0] / (layers - shift * stages[:, None]), tail, shift


def prepare(curves: RateCurves, n_max: int) -> PreparedCurves:
    """Rearrange checked curves for combinations of at most ``n_max`` nodes. Stage counts above L are left out."""
    check_curves(curves)
    layers, stage_counts = curves.layers, curves.cycle_ms.shape[0]
    used = ~np.isnan(curves.cycle_ms)
    solo = np.ascontiguousarray(curves.rate_mtok_per_s[:, 0, Position.ONLY, :, layers])
    top = min(stage_counts, n_max, layers)
    pairs = [(s, int(c)) for s in range(2, top + 1) for c in np.flatnonzero(used[s - 1])]
    stages = np.array([s for s, _ in pairs], np.int64)
    cycle = np.array([c for _, c in pairs], np.int64)
    placed = curves.rate_mtok_per_s[:, stages - 1, 1:, cycle, :]  # [P, K, 3, L + 1]
    placed = placed.transpose(1, 0, 2, 3)
    rate = np.concatenate([placed, placed.max(axis=2, keepdims=True)], axis=2)
    most = (rate > 0).sum(axis=-1)
    weight, tail, shift = bound_weights(rate[:, :, 3], layers, stages)
    # One memory layout for every call: another one would compile the kernel again.
    arrays = (solo, stages, cycle, rate, most, weight, tail, shift)
    return PreparedCurves(curves, n_max, *(np.ascontiguousarray(array) for array in arrays))


def solve_many(
    curves: RateCurves | PreparedCurves,
    counts: NDArray[np.integer],
    *,
    one_node_per_stage: bool = False,
    least_layers: int = 1,
) -> SolvedBatch:
    """Solve combinations ``counts`` [N, K] (node counts per configuration of ``curves``, at most 8 nodes a row).

    ``one_node_per_stage`` allows pipelines of as many stages as nodes only: no data parallelism between nodes. A stage of a
    pipeline holds at least ``least_layers``; rates of fewer count as bounds only.
    Runs in the calling thread without the GIL. Raises ValueError for counts of another width, negative or too large.
    """
    n_configs = len((curves.curves if isinstance(curves, PreparedCurves) else curves).node_configs)
    if counts.ndim != 2 or counts.shape[1] != n_configs:
        raise ValueError(f"counts have shape {counts.shape}, expected [N, {n_configs}]")
    n_max = int(counts.sum(axis=1, dtype=np.int64).max(initial=1))
    if counts.size and (counts.min() < 0 or n_max > MAX_NODES):
        raise ValueError(f"a combination holds 0 to {MAX_NODES} nodes, counts >= 0")
    ready = curves if isinstance(curves, PreparedCurves) else prepare(curves, n_max)
    if n_max > ready.n_max:
        raise ValueError(f"curves are prepared for at most {ready.n_max} nodes, a combination has {n_max}")
    tables = partition_tables(max(n_max, 1), one_node_per_stage=one_node_per_stage)
    rows = np.ascontiguousarray(counts, dtype=np.int8)
    pairs_up_to = np.searchsorted(ready.pair_stages, np.arange(max(n_max, 1) + 1), side="right")
    out = empty_batch(rows, n_max)
    kernel.solve_rows(
        rows,
        pattern_index(rows, tables),
        ready.curves.layers,
        least_layers,
        ready.solo,
        ready.pair_stages,
        ready.pair_cycle,
        pairs_up_to,
        ready.rate,
        ready.most,
        ready.weight,
        ready.tail,
        ready.shift,
        tables.group_start,
        tables.first_entry,
        tables.member,
        tables.amount,
        tables.part_start,
        tables.part_count,
        tables.parts,
        out.throughput_mtok_per_s,
        out.n_stages,
        out.cycle_index,
        out.slot_stage,
        out.stage_layers,
    )
    return out


def solve_exact(curves: RateCurves, counts: NDArray[np.integer] | tuple[int, ...]) -> Placement:
    """The throughput-optimal placement of one combination (node counts per configuration of ``curves``)."""
    return solve_many(curves, np.asarray(counts, dtype=np.int64)[None, :]).placement(0)
