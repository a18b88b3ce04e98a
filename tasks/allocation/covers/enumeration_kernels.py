"""Compiled loops of the enumeration of covers: multisets of a phase's columns, their pairs, and which of them are beaten."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WHOLE = 1.0 - 1e-12
_ROUNDING = 1e-9
_COMPARED = 4096  # sets that later ones are compared with
_ROOM = 1024  # multisets there is room for at first
# Steps of a loop, of which a second has some hundred million: it may look at far more than it finds.
_MOST_STEPS = 200_000_000


@kernel
def steps_of(share: float, size: int) -> int:
    """The least step of the grid that is at least ``share``, from below (so that a bound read there holds)."""
    return min(size, max(0, int(np.ceil(share * size - _ROUNDING))))


@kernel
def copies_on_top(stack: Ints, level: int, item: int) -> int:
    """How many of the last items of ``stack`` are ``item``."""
    many = 0
    while many < level and stack[level - 1 - many] == item:
        many += 1
    return many


@kernel
def fits(node: NDArray[np.int32], count: NDArray[np.int16], item: int, left: Ints) -> bool:
    """Whether an item's nodes are among those ``left``."""
    lacking = 0
    for k in range(node.shape[1]):
        lacking += int(count[item, k] > left[node[item, k]])
    return lacking == 0


@kernel
def take(node: NDArray[np.int32], count: NDArray[np.int16], item: int, sign: int, left: Ints) -> None:
    """Take an item's nodes from ``left``; give them back with ``sign`` -1."""
    for k in range(node.shape[1]):
        left[node[item, k]] -= sign * count[item, k]


@kernel
def longer(items: Ints, amounts: Floats, rows: int) -> tuple[Ints, Floats]:
    """Both with room for so many rows."""
    more_items = np.full((rows, items.shape[1]), -1, dtype=np.int64)
    more_items[: len(items)] = items
    more_amounts = np.zeros((rows, amounts.shape[1]))
    more_amounts[: len(amounts)] = amounts
    return more_items, more_amounts


@kernel
def multisets(
    share: Floats,
    cost: Floats,
    most: Ints,
    node: NDArray[np.int32],
    count: NDArray[np.int16],
    capacity: Ints,
    more: Floats,
    stop: Floats,
    limit: float,
    cap: int,
    depth: int,
) -> tuple[Ints, Floats, int]:
    """Multisets of items, by falling ``share``, that fit into ``capacity`` and can be a phase's part of a cover of at most
    ``limit``.

    ``node``/``count``: an item's nodes. ``more[t]``: what is missing costs at least so much with t steps taken, whatever
    comes; ``stop[t]``: the same with no more items of this phase. A multiset that serves all takes no further item. Returns
    items [n, depth] (-1: none), their cost and share [n, 2], and how many there are; -1 if more than ``cap``, longer than
    ``depth``, or not found in ``_MOST_STEPS``.
    """
    size = len(more) - 1
    items = np.full((min(cap, _ROOM), depth), -1, dtype=np.int64)
    amounts = np.zeros((len(items), 2))
    stack = np.full(depth, -1, dtype=np.int64)
    at_cost, at_share = np.zeros(depth + 1), np.zeros(depth + 1)
    left = capacity.copy()
    level, at, found, steps = 0, 0, 0, 0
    while True:
        before = at
        while at < len(share):
            total, served = at_cost[level] + cost[at], at_share[level] + share[at]
            t = steps_of(served, size)
            if total + more[t] <= limit and copies_on_top(stack, level, at) < most[at] and fits(node, count, at, left):
                break
            at += 1
        steps += at - before + 1
        if steps > _MOST_STEPS:
            return items, amounts, -1
        if at == len(share):
            if level == 0:
                return items, amounts, found
            level -= 1
            at = stack[level]
            take(node, count, at, -1, left)
            at += 1
            continue
        if level == depth or found == cap:
            return items, amounts, -1
        stack[level] = at
        if total + stop[t] <= limit:
            if found == len(items):
                items, amounts = longer(items, amounts, min(cap, 2 * found))
            items[found, : level + 1] = stack[: level + 1]
            amounts[found, 0], amounts[found, 1] = total, min(served, 1.0)
            found += 1
        if served >= _WHOLE:
            at += 1
            continue
        take(node, count, at, 1, left)
        level += 1
        at_cost[level], at_share[level] = total, served


@kernel
def pairs(
    cost_a: Floats,
    share_a: Floats,
    use_a: Ints,
    cost_b: Floats,
    share_b: Floats,
    use_b: Ints,
    capacity: Ints,
    rest: Floats,
    limit: float,
    cap: int,
    adds: bool,
) -> tuple[Ints, int]:
    """Pairs (i, j) that fit together and whose cost, with at least ``rest`` for the steps not served, is within ``limit``.

    Costs rise. ``adds``: shares add up (two regions); else the smaller one counts (two phases of a region). Count -1: more
    than ``cap``, or not found in ``_MOST_STEPS``.
    """
    size = len(rest) - 1
    out = np.empty((cap, 2), dtype=np.int64)
    found, steps = 0, 0
    for i in range(len(cost_a)):
        if steps > _MOST_STEPS:
            return out, -1
        for j in range(len(cost_b)):
            steps += 1
            total = cost_a[i] + cost_b[j]
            if total > limit:
                break
            served = share_a[i] + share_b[j] if adds else min(share_a[i], share_b[j])
            if total + rest[size - steps_of(served, size)] > limit:
                continue
            fits = True
            for k in range(len(capacity)):
                if use_a[i, k] + use_b[j, k] > capacity[k]:
                    fits = False
                    break
            if not fits:
                continue
            if found == cap:
                return out, -1
            out[found, 0], out[found, 1] = i, j
            found += 1
    return out, found


@kernel
def undominated_sets(use: Ints, price: Floats, share: Floats) -> NDArray[np.bool_]:
    """Mask of sets that no earlier one beats: as few nodes of every kind, no dearer, serving as much. Rows by rising cost at
    prices that are not negative, so that only earlier ones can; of very many, only the first that stay are compared with."""
    n, cells = use.shape
    mask = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for k in range(cells):
            if use[i, k] > 0:
                mask[i] |= np.int64(1) << np.int64(k % 62)
    keep = np.zeros(n, dtype=np.bool_)
    kept = np.empty(n, dtype=np.int64)
    many = 0
    for i in range(n):
        beaten = False
        for a in range(many):
            j = kept[a]
            if mask[j] & ~mask[i] or share[j] < share[i] or price[j] > price[i]:
                continue
            beaten = True
            for k in range(cells):
                if use[j, k] > use[i, k]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            keep[i] = True
            if many < _COMPARED:
                kept[many] = i
                many += 1
    return keep


@kernel
def least_beside(
    use: Ints, excess: Floats, other_use: Ints, other_excess: Floats, capacity: Ints, most: float
) -> Floats:
    """Per set of one model the least excess of another model's sets that fit beside it; ``most`` where none listed does.

    Other sets by rising excess. ``use`` [n, cells].
    """
    n, cells = use.shape
    out = np.empty(n)
    at = np.empty(cells, dtype=np.int64)
    for i in range(n):
        many = 0
        for k in range(cells):
            if use[i, k] > 0:
                at[many] = k
                many += 1
        out[i] = most
        for j in range(len(other_excess)):
            if other_excess[j] >= most:
                break
            fits = True
            for a in range(many):
                k = at[a]
                if use[i, k] + other_use[j, k] > capacity[k]:
                    fits = False
                    break
            if fits:
                out[i] = other_excess[j]
                break
    return out
