"""Every way to split a multiset of nodes into pipeline stages, as flat tables for the placement kernel.

Nodes of one type are alike, so only the *pattern* of a combination matters: its node counts in falling order, e.g.
(3, 2, 1). There are 29 patterns of at most six nodes, with 1 to 203 partitions each: partitions that differ only in
which of several equal nodes goes where are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

MAX_NODES = 8
"""Largest combination the tables are made for (Bell(8) = 4,140 partitions of eight different nodes)."""


@dataclass(frozen=True, slots=True)
class PartitionTables:
    """Sub-multisets ("groups") and partitions of every pattern with at most ``n_max`` nodes.

    Group g holds ``amount[e]`` nodes of the pattern's ``member[e]``-th type for the entries e from ``first_entry[g]`` to
    ``first_entry[g + 1]``; the groups of pattern p start at ``group_start[p]``. ``parts[part_start[p, s] + q, :s]`` are
    the s groups of its q-th partition into s stages, q < ``part_count[p, s]``, the group of the highest number first.
    """

    patterns: tuple[tuple[int, ...], ...]
    group_start: NDArray[np.int64]
    first_entry: NDArray[np.int64]
    member: NDArray[np.int64]
    amount: NDArray[np.int64]
    part_start: NDArray[np.int64]
    part_count: NDArray[np.int64]
    parts: NDArray[np.int64]


def integer_partitions(n: int, largest: int | None = None) -> list[tuple[int, ...]]:
    """All tuples of positive integers in falling order that sum to ``n``."""
    if n == 0:
        return [()]
    top = n if largest is None else min(n, largest)
    return [(head, *tail) for head in range(top, 0, -1) for tail in integer_partitions(n - head, head)]


def _groups(pattern: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sub-multisets of ``pattern`` in mixed radix order, the empty one first, the whole last."""
    return [tuple(digits) for digits in product(*(range(count + 1) for count in pattern))]


def _splits(rest: tuple[int, ...], stages: int, top: int, number: dict[tuple[int, ...], int]) -> list[tuple[int, ...]]:
    """Partitions of ``rest`` into exactly ``stages`` non-empty groups, each numbered at most ``top``, falling."""
    if stages == 0:
        return [()] if not any(rest) else []
    found = []
    for group in _groups(rest):
        index = number[group]
        if index == 0 or index > top:
            continue
        left = tuple(a - b for a, b in zip(rest, group, strict=True))
        if sum(left) < stages - 1 or (stages == 1 and any(left)):
            continue
        found += [(index, *tail) for tail in _splits(left, stages - 1, index, number)]
    return found


def partitions(pattern: tuple[int, ...], stages: int) -> list[tuple[int, ...]]:
    """Partitions of a pattern into ``stages`` groups as tuples of group numbers, sorted."""
    groups = _groups(pattern)
    number = {group: index for index, group in enumerate(groups)}
    return sorted(_splits(pattern, stages, len(groups) - 1, number))


@lru_cache(maxsize=8)
def partition_tables(n_max: int, *, one_node_per_stage: bool = False) -> PartitionTables:
    """Tables for combinations of 1..``n_max`` nodes; ``one_node_per_stage`` leaves out all other partitions.

    Raises ValueError for ``n_max`` outside 1..``MAX_NODES``.
    """
    if not 1 <= n_max <= MAX_NODES:
        raise ValueError(f"n_max is {n_max}: placements are solved for 1 to {MAX_NODES} nodes")
    patterns = tuple(p for n in range(1, n_max + 1) for p in integer_partitions(n))
    group_start: list[int] = []
    entries: list[list[tuple[int, int]]] = []
    part_start = np.zeros((len(patterns), n_max + 1), np.int64)
    part_count = np.zeros((len(patterns), n_max + 1), np.int64)
    part_rows: list[tuple[int, ...]] = []
    for row, pattern in enumerate(patterns):
        zero = len(entries)
        group_start.append(zero)
        entries += [[(i, held) for i, held in enumerate(group) if held] for group in _groups(pattern)]
        for stages in range(1, sum(pattern) + 1):
            found = [] if one_node_per_stage and stages < sum(pattern) else partitions(pattern, stages)
            part_start[row, stages], part_count[row, stages] = len(part_rows), len(found)
            part_rows += [tuple(zero + g for g in part) + (0,) * (n_max - stages) for part in found]
    flat = np.array([pair for group in entries for pair in group], np.int64)
    return PartitionTables(
        patterns,
        np.array(group_start, np.int64),
        np.cumsum([0] + [len(group) for group in entries]).astype(np.int64),
        np.ascontiguousarray(flat[:, 0]),
        np.ascontiguousarray(flat[:, 1]),
        part_start,
        part_count,
        np.array(part_rows, np.int64),
    )


def pattern_index(counts: NDArray[np.integer], tables: PartitionTables) -> NDArray[np.int64]:
    """Row of ``tables.patterns`` for each row of ``counts`` [N, K]. A row of zeros gets -1."""
    n_max = tables.parts.shape[1]
    width = min(n_max, counts.shape[1])
    falling = -np.sort(-counts.astype(np.int8), axis=1)[:, :width].astype(np.int64)
    base = (MAX_NODES + 1) ** np.arange(width, dtype=np.int64)
    codes, inverse = np.unique(falling @ base, return_inverse=True)
    known = {sum(c * (MAX_NODES + 1) ** i for i, c in enumerate(p)): row for row, p in enumerate(tables.patterns)}
    known[0] = -1
    return np.array([known[int(code)] for code in codes], np.int64)[inverse.reshape(-1)]
