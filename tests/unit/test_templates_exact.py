"""The exact placement against brute force on random tables, and its properties."""

from __future__ import annotations

import numpy as np
import pytest
from template_tables import FIRST, LAST, MID, ONLY, brute_force, random_curves

from tasks.templates.exact import solve_exact
from tasks.templates.types import Placement, RateCurves


def small_case(seed: int) -> tuple[RateCurves, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    configs, nodes = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    layers = int(rng.integers(1, 8 if nodes < 4 else 6))
    curves = random_curves(
        rng, configs=configs, layers=layers, stages=int(rng.integers(1, 5)), cycles=int(rng.integers(1, 4))
    )
    counts = np.bincount(rng.integers(0, configs, nodes), minlength=configs)
    return curves, tuple(int(count) for count in counts)


def recomputed_rate(curves: RateCurves, placement: Placement) -> int:
    """Min over stages of the summed rates, read from the curves; checks that layers and nodes are used exactly once."""
    nodes = [k for k, count in enumerate(placement.counts) for _ in range(count)]
    stages = placement.stages
    assert [layer for stage in stages for layer in range(stage.layer_start, stage.layer_end + 1)] == list(
        range(curves.layers)
    )
    assert sorted(slot for stage in stages for slot in stage.nodes) == list(range(len(nodes)))
    rates = []
    for i, stage in enumerate(stages):
        expected = ONLY if len(stages) == 1 else FIRST if i == 0 else LAST if i == len(stages) - 1 else MID
        assert stage.position == expected
        held = stage.layer_end - stage.layer_start + 1
        column = curves.rate_mtok_per_s[:, len(stages) - 1, stage.position, placement.cycle_index, held]
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
    assert positive > 40
