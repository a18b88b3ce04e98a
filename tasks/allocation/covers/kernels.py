"""Compiled inner loops of the covers solver. Costs are float64, rates whole steps of a grid of 1/G of the demand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@kernel
def item_costs(node: NDArray[np.int16], count: NDArray[np.int16], weight: Floats) -> Floats:
    """Cost of every template at node prices ``weight``: rows hold (configuration, count) pairs, padded with count 0."""
    n, width = node.shape
    cost = np.zeros(n)
    for i in range(n):
        total = 0.0
        for j in range(width):
            if count[i, j] > 0:
                total += count[i, j] * weight[node[i, j]]
        cost[i] = total
    return cost


@kernel
def useful_items(steps: Ints, cost: Floats) -> Ints:
    """Rows an unbounded cover can need; ``steps`` must not increase with the row.

    Drops a row if a later or earlier one gives as many steps for no more, then one that several copies of a smaller one
    replace at no greater cost.
    """
    kept = np.empty(len(steps), dtype=np.int64)
    n = 0
    best = np.inf
    for i in range(len(steps)):
        if steps[i] > 0 and cost[i] < best:
            best = cost[i]
            if n > 0 and steps[kept[n - 1]] == steps[i]:
                n -= 1
            kept[n] = i
            n += 1
    out = np.empty(n, dtype=np.int64)
    m = 0
    for a in range(n):
        needed = True
        for b in range(a + 1, n):
            copies = (steps[kept[a]] + steps[kept[b]] - 1) // steps[kept[b]]
            if copies * cost[kept[b]] <= cost[kept[a]]:
                needed = False
                break
        if needed:
            out[m] = kept[a]
            m += 1
    return out[:m]


@kernel
def cover_table(steps: Ints, cost: Floats, size: int) -> Floats:
    """f[g] = least cost of a multiset of items with at least g steps, g = 0..size; inf where there are no items."""
    f = np.full(size + 1, np.inf)
    f[0] = 0.0
    n = len(steps)
    for g in range(1, size + 1):
        best = np.inf
        for i in range(n):
            rest = g - steps[i]
            value = cost[i] + (f[rest] if rest > 0 else 0.0)
            best = min(best, value)
        f[g] = best
    return f


@kernel
def cover_walk(steps: Ints, cost: Floats, f: Floats, g: int) -> Ints:
    """How often each item is taken for f[g] of :func:`cover_table`; of equal ones the first."""
    taken = np.zeros(len(steps), dtype=np.int64)
    while g > 0:
        best, value = 0, np.inf
        for i in range(len(steps)):
            here = cost[i] + f[max(g - steps[i], 0)]
            if here < value:
                best, value = i, here
        taken[best] += 1
        g = max(g - steps[best], 0)
    return taken


@kernel
def add_bundle(f: Floats, steps: int, cost: float) -> Floats:
    """``f`` with one more item that may be taken at most once."""
    out = f.copy()
    for g in range(1, len(f)):
        rest = g - steps
        value = cost + (f[rest] if rest > 0 else 0.0)
        out[g] = min(out[g], value)
    return out


@kernel
def min_plus(a: Floats, b: Floats) -> Floats:
    """c[k] = min over i + j = k of a[i] + b[j], cut to the length of ``a``."""
    n = len(a)
    out = np.full(n, np.inf)
    for i in range(n):
        if not np.isfinite(a[i]) or (i > 0 and i + 1 < n and a[i + 1] == a[i]):
            continue  # the next one gives more for the same: only the last of a step is worth taking
        base = a[i]
        for j in range(n - i):
            value = base + b[j]
            out[i + j] = min(out[i + j], value)
    for k in range(n - 2, -1, -1):  # at least k steps
        out[k] = min(out[k], out[k + 1])
    return out


@kernel
def split_two(a: Floats, b: Floats) -> float:
    """min over i + j = G of a[i] + b[j]."""
    n = len(a)
    best = np.inf
    for i in range(n):
        best = min(best, a[i] + b[n - 1 - i])
    return best


@kernel
def coarse_lower(f: Floats, unit: int) -> Floats:
    """Cell values from below: cell k holds steps (k-1)*unit+1 .. k*unit, and costs at least its first."""
    cells = (len(f) - 1) // unit
    out = np.empty(cells + 1)
    out[0] = f[0]
    for k in range(1, cells + 1):
        out[k] = f[(k - 1) * unit + 1]
    return out


@kernel
def split_three(a: Floats, b: Floats, c: Floats, unit: int) -> float:
    """min over i + j + k = G of a[i] + b[j] + c[k], exact: cells from below first, those that could win step by step."""
    size = len(a) - 1
    cells = size // unit
    la, lb = coarse_lower(a, unit), coarse_lower(b, unit)
    best = np.inf
    for i in range(cells + 1):  # splits at whole cells, from above
        for j in range(cells + 1 - i):
            value = a[i * unit] + b[j * unit] + c[size - (i + j) * unit]
            best = min(best, value)
    for i in range(cells + 1):
        if la[i] >= best:
            break
        # Two cells that together hold one more than all of them may each be used in part.
        for j in range(min(cells, cells + 1 - i) + 1):
            if la[i] + lb[j] >= best:
                break
            # i and j cells hold at most (i + j) * unit steps, so the third needs at least the rest.
            if la[i] + lb[j] + c[max(size - (i + j) * unit, 0)] >= best:
                continue
            low_i, low_j = (0 if i == 0 else (i - 1) * unit + 1), (0 if j == 0 else (j - 1) * unit + 1)
            for x in range(low_i, i * unit + 1):
                if x < i * unit and a[x + 1] == a[x]:
                    continue
                for y in range(low_j, j * unit + 1):
                    rest = size - x - y
                    value = a[x] + b[y] + c[max(rest, 0)]
                    best = min(best, value)
    return best


@kernel
def split_many(f: Floats, unit: int) -> tuple[float, Ints]:
    """min over k_1 + ... + k_n >= G of f[1, k_1] + ... + f[n, k_n], exact, and the k that reach it (0 where inf).

    What a split costs above the best ratio of cost to steps anywhere is at most what the best split at whole cells costs
    above it: steps, and sums of steps, that cost more above it than that are in no better split. A region's steps are taken
    by rising excess, so that the rest of them is skipped at the first that is too much.
    """
    regions, size = f.shape[0], f.shape[1] - 1
    best = _split_at_cells(f, unit)
    split = np.zeros(regions, dtype=np.int64)
    if not np.isfinite(best):
        return best, split
    ratio = best / size
    for r in range(regions):
        for k in range(1, size + 1):
            ratio = min(ratio, f[r, k] / k)
    slack = best - ratio * size
    slack += 1e-9 * max(1.0, best)
    h = np.full(size + 1, np.inf)
    h[0] = 0.0
    taken = np.zeros((regions, size + 1), dtype=np.int32)
    source = np.zeros((regions, size + 1), dtype=np.int32)
    for r in range(regions):
        source[r] = np.arange(size + 1)
        excess = f[r] - ratio * np.arange(size + 1)
        steps = _useful_steps(f[r], excess, slack)
        if len(steps) == 0:
            continue
        least = excess[steps[0]]
        out = h.copy()
        for a in range(size + 1):
            above = h[a] - ratio * a
            if not above + least <= slack:
                continue
            for k in steps:
                if above + excess[k] > slack:
                    break
                to = min(a + k, size)
                value = h[a] + f[r, k]
                if value < out[to]:
                    out[to], taken[r, to], source[r, to] = value, k, a
        h = out
    at = size
    for r in range(regions - 1, -1, -1):
        split[r] = taken[r, at]
        at = source[r, at]
    return h[size], split


@kernel
def _useful_steps(f: Floats, excess: Floats, slack: float) -> Ints:
    """Steps whose excess is within ``slack``, by rising excess; of equal costs the last, which gives the most for them."""
    size = len(f) - 1
    useful = np.zeros(size + 1, dtype=np.bool_)
    for k in range(1, size + 1):
        useful[k] = excess[k] <= slack and (k == size or f[k + 1] > f[k])
    steps = np.flatnonzero(useful)
    return steps[np.argsort(excess[steps], kind="mergesort")]


@kernel
def _split_at_cells(f: Floats, unit: int) -> float:
    """As :func:`split_many` with whole cells alone: from above."""
    cells = (f.shape[1] - 1) // unit
    h = np.full(cells + 1, np.inf)
    h[0] = 0.0
    for r in range(f.shape[0]):
        out = h.copy()
        for a in range(cells + 1):
            if np.isfinite(h[a]):
                for k in range(1, cells + 1):
                    to = min(a + k, cells)
                    out[to] = min(out[to], h[a] + f[r, k * unit])
                    if a + k >= cells:
                        break
        h = out
    return h[cells]


@kernel
def join_regions(present: Floats, regions: int, wanted: int) -> tuple[Floats, Ints, Ints]:
    """Least cost of at least k cells from all regions together, with a region counted when something runs there.

    ``present[r, k]``: cost of k cells in region r with an instance of every phase (k = 0 included). Returns
    h[r, j, k] after regions 0..r-1 with j (at most ``wanted``) counted, the cells taken in region r (-1: absent) and the
    state j * cells + k they were taken from.
    """
    cells = present.shape[1]
    h = np.full((regions + 1, wanted + 1, cells), np.inf)
    taken = np.full((regions, wanted + 1, cells), -1, dtype=np.int64)
    source = np.zeros((regions, wanted + 1, cells), dtype=np.int64)
    h[0, 0, 0] = 0.0
    for r in range(regions):
        for j in range(wanted + 1):
            for k in range(cells):
                if h[r, j, k] < h[r + 1, j, k]:
                    h[r + 1, j, k] = h[r, j, k]
                    taken[r, j, k] = -1
                    source[r, j, k] = j * cells + k
            to = min(j + 1, wanted)
            for k in range(cells):
                base = h[r, j, k]
                if not np.isfinite(base):
                    continue
                for x in range(cells):
                    if x > 0 and x + 1 < cells and present[r, x + 1] == present[r, x]:
                        continue
                    reach = min(k + x, cells - 1)
                    value = base + present[r, x]
                    if value < h[r + 1, to, reach]:
                        h[r + 1, to, reach] = value
                        taken[r, to, reach] = x
                        source[r, to, reach] = j * cells + k
    return h, taken, source


@kernel
def best_with_item(rest: Floats, f: Floats) -> Floats:
    """m[t] = min over g of rest[g] + f[max(g - t, 0)]: least cost of all else when one item gives t steps already."""
    n = len(f)
    out = np.full(n, np.inf)
    for t in range(n):
        best = np.inf
        for g in range(n):
            value = rest[g] + (f[g - t] if g > t else 0.0)
            best = min(best, value)
        out[t] = best
    return out


@kernel
def one_more(f: Floats, steps: Ints, cost: Floats) -> Floats:
    """h[g] = least cost of one item and at least the rest of g at ``f``."""
    out = np.full(len(f), np.inf)
    for g in range(len(f)):
        for i in range(len(steps)):
            value = cost[i] + (f[g - steps[i]] if g > steps[i] else f[0])
            out[g] = min(out[g], value)
    return out


@kernel
def _least_step(f: Floats) -> float:
    """What a step costs at least, hardly rounded down; 0 where no number of them is to be had."""
    least = np.inf
    for g in range(1, len(f)):
        least = min(least, f[g] / g)
    return least * (1 - 1e-12) if np.isfinite(least) else 0.0


@kernel
def split_table(firm: Floats, spot: Floats, least: Ints) -> tuple[Floats, Ints]:
    """out[g] = min over x = least[g]..g of firm[x] + spot[g - x]; and that x."""
    n = len(firm)
    out, at = np.full(n, np.inf), np.zeros(n, dtype=np.int64)
    ends = np.empty(n, dtype=np.int64)  # the last x of every step of ``firm``: more for the same
    count = 0
    for x in range(n):
        if np.isfinite(firm[x]) and (x + 1 == n or firm[x + 1] > firm[x]):
            ends[count] = x
            count += 1
    first, last, firm_step, spot_step = 0, 0, _least_step(firm), _least_step(spot)
    for g in range(n):
        while first < count and ends[first] < least[g]:
            first += 1
        while last < count - 1 and ends[last] < g:
            last += 1
        for j in range(last - first + 1):  # from as few dear steps as there may be on
            end = ends[first + j] if firm_step >= spot_step else ends[last - j]
            x = min(end, g)
            if firm_step * x + spot_step * (g - x) >= out[g]:
                break  # more of them cost no less
            value = firm[end] + spot[g - x]
            if value < out[g]:
                out[g] = value
                at[g] = x
    out[0] = 0.0
    return out, at
