"""The exact placement against the paper's ILP, and the ILP by itself."""

from __future__ import annotations

import numpy as np
import pytest
from template_tables import brute_force, random_curves
from test_templates_exact import hand_curves, recomputed_rate

from tasks.allocation.types import SolveLimits
from tasks.templates.exact import solve_exact
from tasks.templates.ilp import IlpStatus, solve_ilp
from tasks.templates.types import RateCurves


@pytest.mark.parametrize("block", range(4))
def test_equals_the_exact_placement(block: int) -> None:
    solved = 0
    for seed in range(block * 11, block * 11 + 11):
        rng = np.random.default_rng(seed)
        nodes = 4 if seed % 3 == 0 else 3
        curves = random_curves(rng, configs=4, layers=int(rng.integers(6, 13)), stages=4, cycles=2, top=10**6)
        counts = tuple(int(count) for count in np.bincount(rng.integers(0, 4, nodes), minlength=4))
        result, exact = solve_ilp(curves, counts), solve_exact(curves, counts)
        assert result.placement.throughput_mtok_per_s == exact.throughput_mtok_per_s, f"seed {seed}"
        if exact.throughput_mtok_per_s:
            solved += 1
            assert result.status is IlpStatus.OPTIMAL
            assert recomputed_rate(curves, result.placement) == exact.throughput_mtok_per_s, f"seed {seed}"
        else:
            assert result.status is IlpStatus.INFEASIBLE
    assert solved >= 5


@pytest.mark.parametrize("seed", range(12))
def test_a_believed_rate_changes_nothing_be_it_right_or_wrong(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    curves = random_curves(rng, configs=3, layers=8, stages=3, cycles=2, top=10**6)
    counts = tuple(int(count) for count in np.bincount(rng.integers(0, 3, 3), minlength=3))
    exact = solve_exact(curves, counts).throughput_mtok_per_s
    for believed in (exact, exact + 1, exact // 2, 3 * exact + 5):
        result = solve_ilp(curves, counts, at_least=believed)
        assert result.placement.throughput_mtok_per_s == exact
        assert result.status is (IlpStatus.OPTIMAL if exact else IlpStatus.INFEASIBLE)
        if exact:
            assert recomputed_rate(curves, result.placement) == exact


@pytest.mark.parametrize("seed", range(8))
def test_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    curves = random_curves(rng, configs=3, layers=5, stages=3, cycles=2, top=12)
    counts = tuple(int(count) for count in np.bincount(rng.integers(0, 3, 3), minlength=3))
    assert solve_ilp(curves, counts).placement.throughput_mtok_per_s == brute_force(curves, counts)


def test_by_hand() -> None:
    result = solve_ilp(hand_curves(), (1, 1))
    assert (result.placement.throughput_mtok_per_s, result.status) == (12, IlpStatus.OPTIMAL)
    assert [stage.nodes for stage in result.placement.stages] == [(1,), (0,)]


def test_nothing_feasible_is_its_own_status() -> None:
    result = solve_ilp(hand_curves(), (0, 2))
    assert (result.placement.throughput_mtok_per_s, result.status) == (0, IlpStatus.INFEASIBLE)


def test_a_time_limit_is_never_called_optimal() -> None:
    layers = np.arange(1, 91)
    rate = np.zeros((6, 6, 4, 1, 91), np.int64)
    for k, speed in enumerate((1.0, 1.3, 1.7, 2.9, 5.3, 7.1)):
        rate[k, 1:, :, :, 1:] = (speed * 1e7 / (layers + 3 * k)).astype(np.int64)
    curves = RateCurves("slow", 90, tuple("abcdef"), np.full((6, 1), 50.0), rate)
    result = solve_ilp(curves, (1,) * 6, SolveLimits(time_s=0.1))
    assert result.status is IlpStatus.TIME_LIMIT
    assert result.placement.throughput_mtok_per_s <= solve_exact(curves, (1,) * 6).throughput_mtok_per_s
