"""The exact placement against brute force on random tables, by hand, and its properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_tables import FIRST, LAST, MID, ONLY, brute_force, random_curves

from tasks.templates.exact import prepare, solve_exact, solve_many
from tasks.templates.partitions import integer_partitions, partitions
from tasks.templates.types import Placement, Position, RateCurves

seeds = st.integers(0, 2**32 - 1)


def small_case(seed: int) -> tuple[RateCurves, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    configs, nodes = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    layers = int(rng.integers(1, 8 if nodes < 4 else 6))
    curves = random_curves(
        rng, configs=configs, layers=layers, stages=int(rng.integers(1, 5)), cycles=int(rng.integers(1, 4))
    )
    counts = np.bincount(rng.integers(0, configs, nodes), minlength=configs)
    return curves, tuple(int(count) for count in counts)


def large_case(seed: int, layers: int = 40, nodes: int = 6) -> tuple[RateCurves, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    curves = random_curves(rng, configs=5, layers=layers, stages=6, cycles=3, top=10**6)
    return curves, tuple(int(count) for count in np.bincount(rng.integers(0, 5, nodes), minlength=5))


def recomputed_rate(curves: RateCurves, placement: Placement) -> int:
    """Min over stages of the summed rates, read from the curves; checks that layers and nodes are used exactly once."""
    nodes = [k for k, count in enumerate(placement.counts) for _ in range(count)]
    stages = placement.stages
    held = [layer for stage in stages for layer in range(stage.layer_start, stage.layer_end + 1)]
    assert held == list(range(curves.layers))
    assert all(stage.layer_end >= stage.layer_start for stage in stages)
    assert sorted(slot for stage in stages for slot in stage.nodes) == list(range(len(nodes)))
    rates = []
    for i, stage in enumerate(stages):
        expected = ONLY if len(stages) == 1 else FIRST if i == 0 else LAST if i == len(stages) - 1 else MID
        assert stage.position == expected
        layers = stage.layer_end - stage.layer_start + 1
        column = curves.rate_mtok_per_s[:, len(stages) - 1, stage.position, placement.cycle_index, layers]
        members = [int(column[nodes[slot]]) for slot in stage.nodes]
        assert min(members) > 0
        rates.append(sum(members))
    return min(rates)


@pytest.mark.parametrize("block", range(6))
def test_equals_brute_force_on_random_tables(block: int) -> None:
    positive = 0
    for seed in range(block * 100, block * 100 + 100):
        curves, counts = small_case(seed)
        placement = solve_exact(curves, counts)
        assert placement.throughput_mtok_per_s == brute_force(curves, counts), f"seed {seed}"
        if placement.throughput_mtok_per_s:
            positive += 1
            assert recomputed_rate(curves, placement) == placement.throughput_mtok_per_s, f"seed {seed}"
        else:
            assert (placement.stages, placement.cycle_index) == ((), -1)
    assert positive > 40


@pytest.mark.parametrize("seed", range(6))
def test_equals_brute_force_with_five_and_six_nodes(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    nodes = 5 + seed % 2
    curves = random_curves(rng, configs=5, layers=6 if nodes == 5 else 5, stages=nodes, cycles=1, top=1000)
    counts = tuple(int(count) for count in np.bincount(rng.integers(0, 5, nodes), minlength=5))
    assert solve_exact(curves, counts).throughput_mtok_per_s == brute_force(curves, counts)


def hand_curves() -> RateCurves:
    """Three layers; A holds all of them, B at most two. The last stage also holds the head: 5 less for A, B cannot."""
    rate = np.zeros((2, 2, 4, 1, 4), np.int64)
    rate[0, 0, ONLY, 0, 1:] = [30, 20, 10]
    rate[0, 1, FIRST, 0, 1:] = [30, 20, 10]
    rate[0, 1, LAST, 0, 1:] = [25, 15, 5]
    rate[1, 0, ONLY, 0, 1:] = [12, 6, 0]
    rate[1, 1, FIRST, 0, 1:] = [12, 6, 0]
    return RateCurves("hand", 3, ("A", "B"), np.array([[50.0], [25.0]]), rate)


def test_positions_decide_the_order_of_stages() -> None:
    placement = solve_exact(hand_curves(), (1, 1))
    # B cannot be last, so it is first: one layer at 12, and A the other two at 15.
    assert placement.throughput_mtok_per_s == 12
    first, last = placement.stages
    assert (first.nodes, first.position, first.layer_start, first.layer_end) == ((1,), Position.FIRST, 0, 0)
    assert (last.nodes, last.position, last.layer_start, last.layer_end) == ((0,), Position.LAST, 1, 2)


def test_every_node_must_contribute() -> None:
    # Two A and one B: B works only in a stage of at most two layers and never last.
    placement = solve_exact(hand_curves(), (2, 1))
    assert placement.throughput_mtok_per_s == 25  # B and A first with two layers: 26; A last with one: 25
    assert solve_exact(hand_curves(), (0, 1)).throughput_mtok_per_s == 0
    assert solve_exact(hand_curves(), (0, 2)).throughput_mtok_per_s == 0
    useless = hand_curves()
    useless.rate_mtok_per_s[1] = 0
    assert solve_exact(useless, (1, 1)).throughput_mtok_per_s == 0


def test_replicas_of_one_stage_add_up() -> None:
    placement = solve_exact(hand_curves(), (3, 0))
    # One stage: 3 x 10 = 30. Two: the better of 1 + 2 and 2 + 1 nodes, at most min(2 x 20, 25) = 25.
    assert (placement.throughput_mtok_per_s, len(placement.stages)) == (30, 1)


def test_never_more_stages_than_layers() -> None:
    rng = np.random.default_rng(5)
    for layers in (1, 2, 3):
        curves = random_curves(rng, configs=2, layers=layers, stages=6, cycles=2)
        curves.rate_mtok_per_s[:, layers:] += 1000  # stage counts above L look best and must still be refused
        curves.rate_mtok_per_s[..., 0] = 0
        curves.rate_mtok_per_s[:, np.isnan(curves.cycle_ms)[:, None, :].repeat(4, 1)] = 0
        for counts in ((3, 3), (6, 0), (1, 2)):
            placement = solve_exact(curves, counts)
            assert len(placement.stages) <= layers
            if sum(counts) < 4:
                assert placement.throughput_mtok_per_s == brute_force(curves, counts)


def test_ties_go_to_fewer_stages_then_the_lower_cycle() -> None:
    rate = np.zeros((1, 2, 4, 3, 3), np.int64)
    rate[:, 0, ONLY, :, 1:] = 5
    rate[:, 1, FIRST, :, 1:] = 10
    rate[:, 1, LAST, :, 1:] = 10
    curves = RateCurves("tie", 2, ("A",), np.array([[10.0, 20.0, 30.0]] * 2), rate)
    placement = solve_exact(curves, (2,))
    assert (placement.throughput_mtok_per_s, len(placement.stages), placement.cycle_index) == (10, 1, 0)
    rate[:, 0] = 0
    placement = solve_exact(curves, (2,))
    assert (placement.throughput_mtok_per_s, len(placement.stages), placement.cycle_index) == (10, 2, 0)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_stages_reproduce_the_rate_at_full_size(seed: int) -> None:
    curves, counts = large_case(seed)
    placement = solve_exact(curves, counts)
    if placement.throughput_mtok_per_s:
        assert recomputed_rate(curves, placement) == placement.throughput_mtok_per_s


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_a_duplicate_of_a_node_type_changes_nothing(seed: int) -> None:
    curves, counts = large_case(seed)
    rng = np.random.default_rng(seed)
    k = int(rng.choice(np.flatnonzero(counts)))
    twin = replace(
        curves,
        node_configs=(*curves.node_configs, "twin"),
        rate_mtok_per_s=np.concatenate([curves.rate_mtok_per_s, curves.rate_mtok_per_s[k : k + 1]]),
    )
    moved = int(rng.integers(0, counts[k] + 1))
    split = [*counts, moved]
    split[k] -= moved
    assert solve_exact(twin, tuple(split)).throughput_mtok_per_s == solve_exact(curves, counts).throughput_mtok_per_s


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_permuting_configurations_changes_nothing(seed: int) -> None:
    curves, counts = large_case(seed)
    order = np.random.default_rng(seed).permutation(len(counts))
    shuffled = replace(
        curves,
        node_configs=tuple(curves.node_configs[k] for k in order),
        rate_mtok_per_s=curves.rate_mtok_per_s[order],
    )
    permuted = solve_exact(shuffled, tuple(counts[k] for k in order))
    assert permuted.throughput_mtok_per_s == solve_exact(curves, counts).throughput_mtok_per_s


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_scaling_rates_scales_the_answer(seed: int) -> None:
    curves, counts = large_case(seed)
    triple = replace(curves, rate_mtok_per_s=curves.rate_mtok_per_s * 3)
    assert solve_exact(triple, counts).throughput_mtok_per_s == 3 * solve_exact(curves, counts).throughput_mtok_per_s


def test_a_batch_solves_like_its_rows_in_any_order() -> None:
    curves, _ = large_case(11)
    rng = np.random.default_rng(11)
    counts = np.array([np.bincount(rng.integers(0, 5, int(n)), minlength=5) for n in rng.integers(1, 8, 60)])
    batch = solve_many(prepare(curves, 7), counts)
    backwards = solve_many(curves, counts[::-1])
    for row, nodes in enumerate(counts):
        alone = solve_exact(curves, tuple(nodes.tolist()))
        assert batch.placement(row) == alone
        assert backwards.placement(len(counts) - 1 - row) == alone


def test_empty_inputs() -> None:
    curves, _ = large_case(1)
    assert len(solve_many(curves, np.zeros((0, 5), np.int8)).throughput_mtok_per_s) == 0
    assert solve_exact(curves, (0, 0, 0, 0, 0)).throughput_mtok_per_s == 0


def test_faulty_inputs_are_refused() -> None:
    curves, _ = large_case(2)
    with pytest.raises(ValueError, match="expected"):
        solve_many(curves, np.ones((1, 4), np.int8))
    with pytest.raises(ValueError, match="0 to 8 nodes"):
        solve_exact(curves, (9, 0, 0, 0, 0))
    with pytest.raises(ValueError, match="0 to 8 nodes"):
        solve_exact(curves, (-1, 2, 0, 0, 0))
    with pytest.raises(ValueError, match="at most 2 nodes"):
        solve_many(prepare(curves, 2), np.array([[3, 0, 0, 0, 0]]))
    growing = curves.rate_mtok_per_s.copy()
    growing[0, 0, ONLY, 0, 1:] = np.arange(curves.layers) + 1
    with pytest.raises(ValueError, match="grow with layers"):
        solve_exact(replace(curves, rate_mtok_per_s=growing), (1, 0, 0, 0, 0))
    unused = replace(curves, cycle_ms=np.where(curves.cycle_ms == 20.0, np.nan, curves.cycle_ms))
    with pytest.raises(ValueError, match="not used"):
        solve_exact(unused, (1, 0, 0, 0, 0))
    with pytest.raises(ValueError, match="shape"):
        solve_exact(replace(curves, layers=41), (1, 0, 0, 0, 0))


def test_partition_tables_have_the_known_sizes() -> None:
    # Bell numbers for different nodes, partition numbers for equal ones, and OEIS A020555's neighbours by hand.
    different = {n: sum(len(partitions((1,) * n, s)) for s in range(1, n + 1)) for n in range(1, 7)}
    assert different == {1: 1, 2: 2, 3: 5, 4: 15, 5: 52, 6: 203}
    alike = {n: sum(len(partitions((n,), s)) for s in range(1, n + 1)) for n in range(1, 8)}
    assert alike == {1: 1, 2: 2, 3: 3, 4: 5, 5: 7, 6: 11, 7: 15}
    assert sum(len(partitions((2, 1), s)) for s in (1, 2, 3)) == 4  # aab; aa|b, a|ab; a|a|b
    assert sum(len(integer_partitions(n)) for n in range(1, 7)) == 29
