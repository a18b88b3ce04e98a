"""Upper bounds on a combination's rate, from sums over its nodes: which (stage count, cycle) pairs need no search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.templates.jit import kernel

_SLOPES = (0.0, 0.3, 0.55, 0.75, 0.9)
# The bounds are float sums; this covers their rounding, so that a bound never cuts off an optimum.
_SAFETY = 1.0 + 1e-11


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


@kernel
def upper_bounds(weight, types, nodes, d, pairs, bounds, slopes):  # type: ignore[no-untyped-def]
    """Relaxed rate per pair: min over slopes of the nodes' summed weights (see ``bound_weights``)."""
    n_slopes = weight.shape[2]
    sums = np.zeros((pairs, n_slopes))
    for i in range(d):
        for p in range(pairs):
            for m in range(n_slopes):
                sums[p, m] += nodes[i] * weight[types[i], p, m]
    for p in range(pairs):
        bounds[p], slopes[p] = sums[p, 0], 0
        for m in range(1, n_slopes):
            if sums[p, m] < bounds[p]:
                bounds[p], slopes[p] = sums[p, m], m
        bounds[p] *= _SAFETY


@kernel
def passes_capped(rate, most, tail, shift, types, nodes, d, p, m, S, L, t):  # type: ignore[no-untyped-def]
    """Whether t survives the bound in which a node counts at most as one whole stage (see ``bound_weights``)."""
    need = float(L - shift[p, m] * S)
    have = 0.0
    for i in range(d):
        k = types[i]
        lo, hi = 0, min(most[k, p, 3], L - S + 1)
        if hi > 0 and rate[k, p, 3, hi] < t:
            while hi - lo > 1:
                middle = (lo + hi) >> 1
                if rate[k, p, 3, middle] >= t:
                    lo = middle
                else:
                    hi = middle
            hi = lo
        have += nodes[i] * max(float(hi - shift[p, m]), tail[k, p, m, hi + 1] / t, 0.0)
    return have * _SAFETY >= need
