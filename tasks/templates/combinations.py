"""Which node combinations a library holds: multisets of node configurations that some region sells whole.

Limits: at most ``n_max`` nodes, and GPU memory of at most rho times the model's weights (paper, section 1). Memory is
compared in whole MiB. Configurations are indices 0..K-1 into the caller's list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.errors import NothingFitsError
from tasks.templates.partitions import MAX_NODES

MIB_PER_GIB = 1024
_BYTES_PER_MIB = 1 << 20
_BUCKETS = 2048
_MAX_GROUPS = 64


def memory_mib(memory_gib: float) -> int:
    """A node's GPU memory in whole MiB."""
    return round(memory_gib * MIB_PER_GIB)


def memory_limit_mib(weight_bytes: int, rho: float) -> int:
    """Most GPU memory a combination may have: rho x weights, rounded down to MiB."""
    return math.floor(rho * weight_bytes / _BYTES_PER_MIB)


def maximal_sets(sold_sets: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The distinct sets that are not part of another one, each sorted, in sorted order: all that enumeration needs."""
    distinct = sorted({frozenset(sold) for sold in sold_sets if sold}, key=lambda sold: (-len(sold), sorted(sold)))
    kept: list[frozenset[int]] = []
    for sold in distinct:
        if not any(sold <= other for other in kept):
            kept.append(sold)
    return tuple(sorted(tuple(sorted(sold)) for sold in kept))


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Combinations without their counts, in enumeration order: node list [N, n_max] (-1 = none), memory and group mask."""

    node_lists: NDArray[np.int16]
    memory_mib: NDArray[np.int64]
    group_mask: NDArray[np.uint64]

    @property
    def n_nodes(self) -> NDArray[np.int64]:
        """Nodes per combination."""
        return (self.node_lists >= 0).sum(axis=1)

    @property
    def n_types(self) -> NDArray[np.int64]:
        """Different configurations per combination."""
        lists = self.node_lists
        fresh = np.ones(lists.shape, bool)
        fresh[:, 1:] = lists[:, 1:] != lists[:, :-1]
        return (fresh & (lists >= 0)).sum(axis=1)

    def counts(self, n_configs: int) -> NDArray[np.int8]:
        """Node counts [N, K]."""
        out = np.zeros((len(self.node_lists), n_configs), np.int8)
        rows = np.arange(len(out))
        for column in self.node_lists.T:
            real = column >= 0
            out[rows[real], column[real]] += 1
        return out


def _region_masks(n_configs: int, sold_sets: Sequence[Sequence[int]]) -> NDArray[np.uint64]:
    """Bit masks [W, K]: bit r of word w is set where the (64 w + r)-th maximal sold set has the configuration."""
    sets = maximal_sets(sold_sets)
    masks = np.zeros((max(1, -(-len(sets) // 64)), n_configs), np.uint64)
    for r, sold in enumerate(sets):
        masks[r // 64, list(sold)] |= np.uint64(1) << np.uint64(r % 64)
    return masks


def enumerate_skeleton(
    memory: Sequence[int],
    sold_sets: Sequence[Sequence[int]],
    n_max: int,
    limit_mib: int,
    groups: Sequence[int] | None = None,
    *,
    use_all_groups: bool = False,
) -> Skeleton:
    """All combinations within the limits that some sold set holds whole.

    ``groups[k]`` (0..63, default all 0) is the GPU type of configuration k; ``group_mask`` tells which occur, and
    ``use_all_groups`` keeps only combinations in which every one occurs. Order: fewer nodes first, then the node lists
    in rising order. An empty result has shape [0, n_max].
    """
    if not 1 <= n_max <= MAX_NODES:
        raise ValueError(f"n_max is {n_max}: combinations have 1 to {MAX_NODES} nodes")
    if groups is not None and max(groups, default=0) >= _MAX_GROUPS:
        raise ValueError(f"combinations are told apart by at most {_MAX_GROUPS} GPU types, got {max(groups) + 1}")
    n_configs = len(memory)
    size = np.asarray(memory, np.int64)
    group = np.asarray(groups if groups is not None else [0] * n_configs, np.uint64)
    bit = np.uint64(1) << group
    needed = np.bitwise_or.reduce(bit) if use_all_groups and n_configs else np.uint64(0)
    passed = _passed_groups(group, n_configs)
    region = _region_masks(n_configs, sold_sets)
    lists = np.zeros((1, 0), np.int16)
    last, used, held = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64)
    regions = np.full((len(region), 1), ~np.uint64(0))
    found: list[tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.uint64]]] = []
    for level in range(1, n_max + 1):
        children = n_configs - last
        parent = np.repeat(np.arange(len(last)), children)
        start = np.repeat(np.cumsum(children) - children, children)
        k = np.arange(len(parent)) - start + last[parent]
        used_new, held_new = used[parent] + size[k], held[parent] | bit[k]
        sold = (regions[:, parent] & region[:, k]).any(axis=0)
        keep = sold & (used_new <= limit_mib)
        if use_all_groups:
            missing = needed & ~held_new
            keep &= (np.bitwise_count(missing) <= n_max - level) & ((missing & passed[k]) == 0)
        parent, k = parent[keep], k[keep]
        regions = regions[:, parent] & region[:, k]
        lists = np.concatenate([lists[parent], k[:, None].astype(np.int16)], axis=1)
        last, used, held = k, used_new[keep], held_new[keep]
        whole = (held & needed) == needed
        padded = np.full((int(whole.sum()), n_max), -1, np.int16)
        padded[:, :level] = lists[whole]
        found.append((padded, used[whole], held[whole]))
    return Skeleton(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _passed_groups(group: NDArray[np.uint64], n_configs: int) -> NDArray[np.uint64]:
    """For each k the groups all of whose configurations come before k: they can no longer be added."""
    passed = np.zeros(n_configs, np.uint64)
    for g in np.unique(group):
        passed[int(np.flatnonzero(group == g).max()) + 1 :] |= np.uint64(1) << g
    return passed


def enumerate_combinations(
    memory: Sequence[int], sold_sets: Sequence[Sequence[int]], n_max: int, limit_mib: int
) -> NDArray[np.int8]:
    """Node counts [N, K] of all combinations within the limits; see :func:`enumerate_skeleton` for the order."""
    return enumerate_skeleton(memory, sold_sets, n_max, limit_mib).counts(len(memory))


def estimate_count(memory: Sequence[int], sold_sets: Sequence[Sequence[int]], n_max: int, limit_mib: int) -> int:
    """About how many combinations there are, without making them: a warning's figure before an enumeration explodes.

    Memory is rounded down to 1/2048 of the limit. Combinations several regions sell are counted once per region, but the
    result never exceeds the count over everything sold anywhere. Exact where memory does not bind and one set is sold.
    """
    sets = maximal_sets(sold_sets)
    anywhere = sorted({k for sold in sets for k in sold})
    if not anywhere or limit_mib <= 0:
        return 0
    total = _count_multisets([memory[k] for k in anywhere], n_max, limit_mib)
    return min(total, sum(_count_multisets([memory[k] for k in sold], n_max, limit_mib) for sold in sets))


def _count_multisets(memory: Sequence[int], n_max: int, limit_mib: int) -> int:
    """Multisets of 1..n_max items within the limit, on a bucketed memory axis."""
    ways = np.zeros((n_max + 1, _BUCKETS + 1))
    ways[0, 0] = 1
    for size in memory:
        bucket = size * _BUCKETS // limit_mib  # rounded down: rather too many than too few
        if bucket > _BUCKETS:
            continue
        for n in range(1, n_max + 1):  # in place and rising: any number of this item
            ways[n, bucket:] += ways[n - 1, : _BUCKETS + 1 - bucket]
    return int(ways[1:].sum())


def require_room(
    node_configs: Sequence[str],
    memory: Sequence[int],
    sold_sets: Sequence[Sequence[int]],
    n_max: int,
    weight_bytes: int,
    rho: float,
    what: str,
) -> None:
    """Raise :class:`NothingFitsError` when no combination within the limits has the memory of the model's weights.

    ``what`` names the workload or model in the message, which says how many GiB the largest combination lacks.
    """
    limit, weights_mib = memory_limit_mib(weight_bytes, rho), weight_bytes / _BYTES_PER_MIB
    anywhere = sorted({k for sold in sold_sets for k in sold})
    if not anywhere:
        raise NothingFitsError(
            f"{what}: no region sells a node configuration that has a profile",
            remedy="add offers for a profiled configuration, or profiles for one that is offered",
        )
    if all(memory[k] > limit for k in anywhere):
        smallest = min(anywhere, key=lambda k: memory[k])
        raise NothingFitsError(
            f"{what}: even the smallest configuration {node_configs[smallest]} "
            f"({memory[smallest] / MIB_PER_GIB:.1f} GiB) has more than rho {rho:g} x {weights_mib / MIB_PER_GIB:.1f} GiB "
            "of weights",
            remedy=f"raise rho to at least {memory[smallest] / weights_mib:.2f}",
        )
    largest = max(_largest_memory([memory[k] for k in sold], n_max, limit) for sold in sold_sets if sold)
    if largest < weights_mib:
        raise NothingFitsError(
            f"{what}: the weights are {weights_mib / MIB_PER_GIB:.1f} GiB and the largest combination of up to {n_max} "
            f"nodes has {largest / MIB_PER_GIB:.1f} GiB, {(weights_mib - largest) / MIB_PER_GIB:.1f} GiB too few",
            remedy="allow more nodes (n_max), a larger rho, larger configurations, or a smaller weight_dtype",
        )


def _largest_memory(memory: Sequence[int], n_max: int, limit: int) -> int:
    """Largest sum of 1..n_max items (with repetition) within the limit; 0 if none fits."""
    within, sums = (1 << (limit + 1)) - 1, 1  # bit s of sums is set where s is a sum
    for _ in range(n_max):
        more = sums
        for size in {size for size in memory if size <= limit}:
            more |= sums << size
        sums = more & within
    return sums.bit_length() - 1


def counts_of(combination_ids: pa.ChunkedArray | pa.Array) -> tuple[tuple[str, ...], NDArray[np.int8]]:
    """Node configurations (sorted) of canonical combination ids, and each id's counts of them: int8 [N, K]."""
    ids = combination_ids.combine_chunks() if isinstance(combination_ids, pa.ChunkedArray) else combination_ids
    parts = pc.split_pattern(ids, "+")
    row = np.repeat(np.arange(len(ids)), parts.value_lengths().to_numpy(zero_copy_only=False))
    encoded = parts.flatten().dictionary_encode()
    known = [text.rsplit("*", 1) for text in encoded.dictionary.to_pylist()]
    names = tuple(sorted({name for name, _ in known}))
    config = np.array([names.index(name) for name, _ in known], np.int64)
    amount = np.array([int(count) for _, count in known], np.int8)
    code = encoded.indices.to_numpy(zero_copy_only=False)
    counts = np.zeros((len(ids), len(names)), np.int8)
    counts[row, config[code]] = amount[code]
    return names, counts
