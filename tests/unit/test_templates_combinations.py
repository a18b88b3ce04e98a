"""Enumeration of combinations against a plain one, and its limits and messages."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import NothingFitsError
from tasks.templates.combinations import (
    enumerate_combinations,
    enumerate_skeleton,
    estimate_count,
    maximal_sets,
    memory_limit_mib,
    require_room,
)


def naive(memory: list[int], sold: list[list[int]], n_max: int, limit: int) -> set[tuple[int, ...]]:
    found = set()
    for n in range(1, n_max + 1):
        for nodes in combinations_with_replacement(range(len(memory)), n):
            if sum(memory[k] for k in nodes) <= limit and any(set(nodes) <= set(some) for some in sold):
                found.add(tuple(nodes.count(k) for k in range(len(memory))))
    return found


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 5)), min_size=0, max_size=4),
    st.integers(1, 5),
    st.integers(1, 120),
)
@settings(max_examples=150, deadline=None)
def test_equals_a_plain_enumeration(memory: list[int], sold: list[set[int]], n_max: int, limit: int) -> None:
    sets = [[k for k in sorted(some) if k < len(memory)] for some in sold]
    counts = enumerate_combinations(memory, sets, n_max, limit)
    rows = [tuple(row) for row in counts.tolist()]
    assert len(rows) == len(set(rows))
    assert set(rows) == naive(memory, sets, n_max, limit)
    assert counts.dtype == np.int8


def test_order_is_by_nodes_then_by_node_list() -> None:
    counts = enumerate_combinations([1, 1], [[0, 1]], 2, 10)
    assert counts.tolist() == [[1, 0], [0, 1], [2, 0], [1, 1], [0, 2]]


def test_a_combination_must_be_sold_whole_by_one_region() -> None:
    counts = enumerate_combinations([1, 1, 1], [[0, 1], [1, 2]], 2, 10)
    assert [1, 0, 1] not in counts.tolist()
    assert {(1, 1, 0), (0, 1, 1)} <= {tuple(row) for row in counts.tolist()}


def test_seventy_regions_need_more_than_one_mask_word() -> None:
    sold = [[2 * r, 2 * r + 1] for r in range(70)]
    counts = enumerate_combinations([1] * 140, sold, 2, 10)
    assert len(counts) == 70 * 5  # a, b, aa, ab, bb each


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 4), st.integers(5, 90), st.randoms())
@settings(max_examples=80, deadline=None)
def test_sets_of_gpu_types_partition_the_combinations(memory: list[int], n_max: int, limit: int, random) -> None:
    groups = [random.randrange(3) for _ in memory]  # neighbours need not be of one type
    everything = [list(range(len(memory)))]
    whole = enumerate_skeleton(memory, everything, n_max, limit, groups)
    seen: list[tuple[int, ...]] = []
    for mask in range(1, 8):
        members = [k for k in range(len(memory)) if mask >> groups[k] & 1]
        present = sorted({groups[k] for k in members})
        if len(present) != mask.bit_count():
            continue
        part = enumerate_skeleton(
            [memory[k] for k in members],
            [list(range(len(members)))],
            n_max,
            limit,
            [present.index(groups[k]) for k in members],
            use_all_groups=True,
        )
        expected = whole.node_lists[whole.group_mask == mask]
        back = [tuple(members[k] for k in row if k >= 0) for row in part.node_lists.tolist()]
        assert back == [tuple(k for k in row if k >= 0) for row in expected.tolist()]
        seen += back
    assert len(seen) == len(whole.node_lists)


def test_nodes_and_types_are_counted() -> None:
    skeleton = enumerate_skeleton([1, 1], [[0, 1]], 3, 10)
    counts = skeleton.counts(2)
    assert skeleton.n_nodes.tolist() == counts.sum(axis=1).tolist()
    assert skeleton.n_types.tolist() == (counts > 0).sum(axis=1).tolist()


def test_count_estimate_is_exact_where_memory_does_not_bind() -> None:
    # 20 configurations, up to 6 nodes: C(26, 6) - 1.
    assert estimate_count([1] * 20, [list(range(20))], 6, 10**6) == 230_229
    assert estimate_count([1] * 20, [[], []], 6, 100) == 0
    assert estimate_count([5, 7], [[0, 1]], 6, 4) == 0


def test_count_estimate_is_close_where_memory_binds() -> None:
    memory = [23_000 * count for count in (1, 2, 4, 8)] + [81_000 * count for count in (1, 2, 4, 8)]
    exact = len(enumerate_combinations(memory, [range(8)], 6, 800_000))
    assert estimate_count(memory, [range(8)], 6, 800_000) == pytest.approx(exact, rel=0.02)


def test_only_maximal_sold_sets_count() -> None:
    assert maximal_sets([[1, 0], [0], [], [2], [0, 1]]) == ((0, 1), (2,))


def test_memory_limit_is_rounded_down() -> None:
    assert memory_limit_mib(10 * 2**20 - 1, 1.0) == 9
    assert memory_limit_mib(2**30, 12) == 12 * 1024


GIB = 2**30


def test_message_names_the_missing_memory() -> None:
    with pytest.raises(NothingFitsError, match=r"32\.0 GiB, 68\.0 GiB too few.*n_max") as raised:
        require_room(("L4x1",), [16 * 1024], [[0]], 2, 100 * GIB, 12, "big/decode")
    assert raised.value.exit_code == 2
    assert "big/decode" in str(raised.value)


def test_message_when_rho_excludes_every_configuration() -> None:
    with pytest.raises(NothingFitsError, match=r"L4x8.*rho 2.*raise rho to at least 4\.00"):
        require_room(("L4x8",), [40 * 1024], [[0]], 6, 10 * GIB, 2, "tiny")


def test_message_when_nothing_is_sold() -> None:
    with pytest.raises(NothingFitsError, match="no region sells"):
        require_room(("L4x8",), [40 * 1024], [[]], 6, 10 * GIB, 2, "tiny")


def test_room_is_judged_within_one_region_and_within_rho() -> None:
    require_room(("a", "b"), [60 * 1024, 50 * 1024], [[0], [1]], 2, 110 * GIB, 1.1, "m")
    with pytest.raises(NothingFitsError, match="too few"):
        require_room(("a", "b"), [60 * 1024, 50 * 1024], [[0], [1]], 2, 115 * GIB, 1.02, "m")


@pytest.mark.parametrize("n_max", [0, 9])
def test_node_limit_is_checked(n_max: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        enumerate_combinations([1], [[0]], n_max, 10)


def test_more_gpu_types_than_a_mask_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 GPU types"):
        enumerate_skeleton([1] * 65, [range(65)], 1, 10, list(range(65)))
