"""Compiled loops over the cells of a layout: how long an inner stage takes, and how much fits a budget of time.

Common notation: runs [layers, candidate runs, kinds of layer], layer [kinds, grid entries] ms, ends [grid entries] ms of
embedding and head, hop_ms [grid entries] of the way to the next stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.jit import inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@inlined
def _time(runs: Floats, layer: Floats, embedding: Floats, head: Floats, hop_ms: Floats, j: int, g: int) -> float:
    """One cell: the worst candidate run at grid entry ``g``."""
    worst = 0.0
    for r in range(runs.shape[1]):
        total = 0.0
        for k in range(runs.shape[2]):
            total += runs[j, r, k] * layer[k, g]
        worst = max(worst, total)
    return worst + embedding[g] + head[g] + hop_ms[g]


@kernel
def stage_times(runs: Floats, layer: Floats, embedding: Floats, head: Floats, hop_ms: Floats, index: Ints) -> Floats:
    """Milliseconds at the grid entries ``index`` [cells, layers]."""
    out = np.empty(index.shape)
    for c in range(index.shape[0]):
        for j in range(index.shape[1]):
            out[c, j] = _time(runs, layer, embedding, head, hop_ms, j, index[c, j])
    return out


@kernel
def lower_to_fit(
    runs: Floats, layer: Floats, embedding: Floats, head: Floats, hop_ms: Floats, budget: Floats, high: Ints
) -> None:
    """Lower ``high`` [cycles, layers], grid entries from 1, to the largest that fits ``budget`` [cycles] ms (0 = none), by
    bisection: times rise along the grid."""
    for c in range(high.shape[0]):
        for j in range(high.shape[1]):
            low, top = 0, high[c, j]
            while low < top:
                middle = (low + top + 1) // 2
                if _time(runs, layer, embedding, head, hop_ms, j, middle - 1) <= budget[c]:
                    low = middle
                else:
                    top = middle - 1
            high[c, j] = low
