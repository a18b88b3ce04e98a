"""Shards into tasks of about equal work."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.batching import batch_by_work

WORK = st.lists(st.floats(0, 1000, allow_nan=False), max_size=300)


@given(WORK, st.integers(1, 16), st.integers(1, 250))
def test_every_item_is_in_one_batch_and_no_batch_is_empty(work: list[float], slots: int, max_batches: int) -> None:
    batches = batch_by_work(range(len(work)), work, slots=slots, max_batches=max_batches)
    assert sorted(item for batch in batches for item in batch) == list(range(len(work)))
    assert all(batches)
    assert len(batches) <= max_batches


@given(WORK.filter(bool), st.integers(1, 16))
def test_no_batch_exceeds_the_mean_by_more_than_one_item(work: list[float], slots: int) -> None:
    batches = batch_by_work(range(len(work)), work, slots=slots)
    mean = sum(work) / len(batches)
    for batch in batches:
        assert sum(work[i] for i in batch) <= mean + max(work) + 1e-6


def test_tasks_are_of_the_wanted_length() -> None:
    # 600 shards of 1 s are 600 s: 30 tasks of 20 s.
    batches = batch_by_work(range(600), [1.0] * 600, slots=2)
    assert [len(batch) for batch in batches] == [20] * 30


def test_a_small_build_still_fills_every_slot_several_times() -> None:
    # 16 s in all would be one task; two slots get four each.
    assert [len(batch) for batch in batch_by_work(range(80), [0.2] * 80, slots=2)] == [10] * 8


def test_no_task_is_made_for_less_than_a_second_of_work() -> None:
    # 2.5 s in all: eight tasks would be 0.3 s each; two are made.
    assert [len(batch) for batch in batch_by_work(range(50), [0.05] * 50, slots=2)] == [25, 25]
    assert len(batch_by_work(range(50), [0.0] * 50, slots=2)) == 1


def test_never_more_than_200_tasks() -> None:
    assert len(batch_by_work(range(10_000), [20.0] * 10_000, slots=64)) == 200


def test_the_heaviest_batch_comes_first() -> None:
    assert batch_by_work("abc", [1.0, 50.0, 2.0], slots=1) == [("b",), ("c",), ("a",)]


def test_nothing_to_do_is_no_batch() -> None:
    assert batch_by_work([], [], slots=2) == []


@pytest.mark.parametrize("work", [math.nan, math.inf, -1.0])
def test_an_estimate_that_is_no_amount_is_refused(work: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        batch_by_work([1], [work], slots=2)
