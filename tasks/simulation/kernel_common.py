"""Small kernels that both phases use: table look-up, smooth weighted round-robin, links, counting integrals."""

from __future__ import annotations

import numpy as np

from tasks.jit import kernel
from tasks.simulation.types import Floats, Ints


@kernel
def find_cell(knots: Floats, at: float) -> int:
    """Index i of the segment [knots[i], knots[i + 1]] to use for ``at``; outer segments for values outside."""
    low, high = 0, len(knots) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if knots[middle] <= at:
            low = middle
        else:
            high = middle - 1
    return max(low, 0)


@kernel
def step_time(grid_tokens: Floats, grid_context: Floats, time_s: Floats, tokens: float, context: float) -> float:
    """Bilinear time of a pass: constant below the first token knot, outer segments continued elsewhere."""
    i, u, i1 = 0, 0.0, 0
    if len(grid_tokens) > 1:
        i = find_cell(grid_tokens, tokens)
        i1 = i + 1
        u = max((tokens - grid_tokens[i]) / (grid_tokens[i1] - grid_tokens[i]), 0.0)
    j, v, j1 = 0, 0.0, 0
    if len(grid_context) > 1:
        j = find_cell(grid_context, context)
        j1 = j + 1
        v = (context - grid_context[j]) / (grid_context[j1] - grid_context[j])
    low = time_s[i, j] * (1.0 - v) + time_s[i, j1] * v
    high = time_s[i1, j] * (1.0 - v) + time_s[i1, j1] * v
    return low * (1.0 - u) + high * u


@kernel
def smooth_wrr(weight: Floats, cost: Floats, credit: Floats) -> Ints:
    """Smooth weighted round-robin: item i of cost ``cost[i]`` goes to the target with most credit; [items] of indices.

    Each item gives every target its share of the cost and takes the whole cost from the chosen one, so that work is
    proportional to weight over any stretch. ``credit`` is the state, changed in place. Targets of weight 0 get nothing.
    """
    total = weight.sum()
    chosen = np.empty(len(cost), dtype=np.int64)
    for i in range(len(cost)):
        best = -1
        for k in range(len(weight)):
            if weight[k] > 0:
                credit[k] += weight[k] / total * cost[i]
                if best < 0 or credit[k] > credit[best] + 1e-12:
                    best = k
        credit[best] -= cost[i]
        chosen[i] = best
    return chosen


@kernel
def link_done(ready_s: Floats, link: Ints, transfer_s: Floats, links: int) -> Floats:
    """When each transfer is done on FIFO links: items in order of ``ready_s``, ``link[i]`` in 0..links-1."""
    free = np.zeros(links)
    done = np.empty(len(ready_s))
    for i in range(len(ready_s)):
        start = max(ready_s[i], free[link[i]])
        free[link[i]] = start + transfer_s[i]
        done[i] = free[link[i]]
    return done


@kernel
def count_integral(enter_s: Floats, leave_s: Floats) -> float:
    """Integral of the number present, stepping a counter through entries and departures (each sorted)."""
    i, j, present, area, last = 0, 0, 0, 0.0, 0.0
    while j < len(leave_s):
        is_entry = i < len(enter_s) and enter_s[i] <= leave_s[j]
        now = enter_s[i] if is_entry else leave_s[j]
        area += present * (now - last)
        last = now
        if is_entry:
            present += 1
            i += 1
        else:
            present -= 1
            j += 1
    return area
