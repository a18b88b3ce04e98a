"""The Pareto frontier of a workload's templates: those that no packing of smaller templates replaces.

A template is dominated if disjoint parts of its nodes, run as templates of their own, have throughputs that add up to
at least its own (one sub-combination, two that split it, or more). Every part costs no more than the whole wherever
costs and constraints grow with node counts, so dropping it loses nothing there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.jit import kernel
from tasks.templates.partitions import MAX_NODES


@kernel
def _slot(keys, key):  # type: ignore[no-untyped-def]
    """Where ``key`` is, or belongs, in an open-addressing table of a power-of-two size (-1 = free)."""
    mask = keys.shape[0] - 1
    at = (key * np.int64(0x9E3779B97F4A7C1)) & mask
    at ^= (key >> 17) & mask
    while keys[at] != -1 and keys[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def _node_list(row, nodes):  # type: ignore[no-untyped-def]
    """Expand counts into ``nodes``, configurations numbered from 1; how many."""
    n = 0
    for k in range(row.shape[0]):
        for _ in range(row[k]):
            nodes[n] = k + 1
            n += 1
    return n


@kernel
def _survivors(counts, throughput, keys, best, owner, base):  # type: ignore[no-untyped-def]
    """Mark the rows that no packing of their proper sub-combinations equals."""
    nodes = np.zeros(MAX_NODES, np.int64)
    for row in range(counts.shape[0]):
        n = _node_list(counts[row], nodes)
        key = 0
        for i in range(n):
            key = key * base + nodes[i]
        at = _slot(keys, key)
        if keys[at] == -1 or throughput[row] > best[at]:
            keys[at], best[at], owner[at] = key, throughput[row], row
    kept = np.zeros(counts.shape[0], np.bool_)
    packed = np.zeros(1 << MAX_NODES, np.int64)
    key_of = np.zeros(1 << MAX_NODES, np.int64)
    for row in range(counts.shape[0]):
        n = _node_list(counts[row], nodes)
        whole = (1 << n) - 1
        alone = 0
        for subset in range(1, whole + 1):
            top = 0  # highest node of the subset: its key appends to the key of the rest
            while subset >> (top + 1):
                top += 1
            key_of[subset] = key_of[subset ^ (1 << top)] * base + nodes[top]
            at = _slot(keys, key_of[subset])
            alone = best[at] if keys[at] != -1 else 0
            split = 0
            part = (subset - 1) & subset
            while part > subset ^ part:
                split = max(split, packed[part] + packed[subset ^ part])
                part = (part - 1) & subset
            packed[subset] = max(alone, split)
            if subset == whole:
                kept[row] = alone > split and throughput[row] == alone and owner[at] == row
    return kept


def frontier_mask(counts: NDArray[np.integer], throughput_mtok_per_s: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which rows survive: positive throughput, and more than any packing of proper sub-combinations in the same table.

    ``counts`` [N, K] node counts (at most 8 nodes a row), ``throughput_mtok_per_s`` [N] integers. Of rows with the same
    counts the best survives, the first of equals. Raises ValueError for too many nodes or configurations.
    """
    n_rows, n_configs = counts.shape
    nodes = counts.sum(axis=1, dtype=np.int64)
    if n_rows and (counts.min() < 0 or nodes.max() > MAX_NODES):
        raise ValueError(f"a combination holds 0 to {MAX_NODES} nodes, counts >= 0")
    base = n_configs + 1
    if base ** int(nodes.max(initial=1)) >= 1 << 62:
        raise ValueError(f"{n_configs} configurations are too many for combinations of {int(nodes.max())} nodes")
    size = 1 << max(4, int(2 * n_rows).bit_length())
    keys, best, owner = np.full(size, -1, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    rates = np.ascontiguousarray(throughput_mtok_per_s, dtype=np.int64)
    return _survivors(np.ascontiguousarray(counts, dtype=np.int8), rates, keys, best, owner, base)
