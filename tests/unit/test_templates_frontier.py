"""The frontier against a plain search over packings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.templates.combinations import enumerate_combinations
from tasks.templates.frontier import frontier_mask

Counts = tuple[int, ...]


def best_packing(nodes: Counts, rates: dict[Counts, int], *, proper: bool) -> int:
    """Most throughput of disjoint stored combinations within ``nodes`` (``proper``: none of them all of it)."""
    best = 0
    for part in product(*(range(count + 1) for count in nodes)):
        if not any(part) or (proper and part == nodes) or part not in rates:
            continue
        rest = tuple(a - b for a, b in zip(nodes, part, strict=True))
        best = max(best, rates[part] + best_packing(rest, rates, proper=False))
    return best


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=120, deadline=None)
def test_equals_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = enumerate_combinations([1, 1, 1], [[0, 1, 2]], 4, 10)
    counts = counts[rng.random(len(counts)) < 0.8]
    size = counts.sum(axis=1)
    throughput = rng.integers(0, 4, len(counts)) * size + rng.integers(0, 3, len(counts))
    throughput[rng.random(len(counts)) < 0.1] = 0
    rates = {tuple(row): int(rate) for row, rate in zip(counts.tolist(), throughput, strict=True)}
    expected = [rate > 0 and rate > best_packing(nodes, rates, proper=True) for nodes, rate in rates.items()]
    assert frontier_mask(counts, throughput).tolist() == expected


def test_by_hand() -> None:
    counts = np.array([[1, 0], [0, 1], [2, 0], [1, 1], [2, 1], [0, 2]])
    #     two singles make 10 + 4; [2,0] equals two of them: gone; [1,1] beats its parts; [2,1] = [1,1] + [1,0]: gone
    throughput = np.array([10, 4, 20, 15, 25, 9])
    assert frontier_mask(counts, throughput).tolist() == [True, True, False, True, False, True]


def test_one_sub_combination_dominates_a_larger_one() -> None:
    assert frontier_mask(np.array([[1, 0], [1, 1]]), np.array([10, 10])).tolist() == [True, False]


def test_exactly_one_of_equal_rows_survives() -> None:
    counts = np.array([[1, 0], [1, 0], [0, 1], [1, 0]])
    assert frontier_mask(counts, np.array([5, 7, 7, 7])).tolist() == [False, True, True, False]


def test_nothing_without_throughput_survives() -> None:
    assert not frontier_mask(np.array([[1, 0], [0, 1], [1, 1]]), np.zeros(3, np.int64)).any()
    assert frontier_mask(np.zeros((0, 3), np.int8), np.zeros(0, np.int64)).shape == (0,)


def test_order_of_rows_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    counts = enumerate_combinations([1] * 5, [range(5)], 6, 10)
    throughput = rng.integers(1, 100, len(counts)) + 80 * counts.sum(axis=1)
    order = rng.permutation(len(counts))
    assert np.array_equal(frontier_mask(counts, throughput)[order], frontier_mask(counts[order], throughput[order]))


def test_more_nodes_of_a_type_never_lower_what_the_frontier_serves() -> None:
    rng = np.random.default_rng(4)
    counts = enumerate_combinations([1] * 3, [range(3)], 5, 10)
    throughput = rng.integers(1, 30, len(counts))
    kept = frontier_mask(counts, throughput)
    rates = {tuple(row): int(rate) for row, rate in zip(counts[kept].tolist(), throughput[kept], strict=True)}
    everything = {tuple(row): int(rate) for row, rate in zip(counts.tolist(), throughput, strict=True)}
    for nodes in everything:
        assert best_packing(nodes, rates, proper=False) == best_packing(nodes, everything, proper=False)


def test_too_many_nodes_or_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="0 to 8"):
        frontier_mask(np.array([[9]]), np.array([1]))
    with pytest.raises(ValueError, match="too many"):
        frontier_mask(np.concatenate([np.full((1, 1), 8), np.zeros((1, 300), int)], axis=1), np.array([1]))
