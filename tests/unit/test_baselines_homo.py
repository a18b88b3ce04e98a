"""Homogeneous baselines by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocation_cases import R1, R2, problem, random_problem, with_min_regions, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import SolveLimits, SolveStatus
from tasks.baselines.homo import homo_greedy, homo_optimal, homogeneous_only

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "L4x4", "A10Gx1")


def test_one_gpu_type_of_any_node_size_is_homogeneous() -> None:
    templates = {
        "one": ({"L4x1": 2}, 10),
        "sizes": ({"L4x1": 1, "L4x4": 1}, 10),
        "mixed": ({"L4x1": 1, "A10Gx1": 1}, 10),
    }
    a = workload("a", Phase.AGGREGATED, templates, CONFIGS)
    p = problem([a], {"a": 1.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9}, configs=CONFIGS)
    assert homogeneous_only(p).candidates[0].template_ids == ("one", "sizes")


def test_optimal_and_greedy_cost_more_than_mixing() -> None:
    # Mixed: 20 req/s for 2.00. Homogeneous: L4 pair 15 for 2.00 (7.5 per USD), A10G 8 for 1.20 (6.67 per USD).
    # For 20: greedy takes two L4 pairs = 4.00; optimal L4 pair + A10G = 3.20.
    templates = {"mix": ({"L4x1": 1, "A10Gx1": 1}, 20), "l4": ({"L4x1": 2}, 15), "a10": ({"A10Gx1": 1}, 8)}
    a = workload("a", Phase.AGGREGATED, templates, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.2}
    p = problem([a], {"a": 20.0}, price, dict.fromkeys(price, 9), configs=CONFIGS)
    assert solve_ilp(p, EXACT).cost_usd_per_h == pytest.approx(2.2)
    optimal, greedy = homo_optimal(p, EXACT), homo_greedy(p)
    assert optimal.cost_usd_per_h == pytest.approx(3.2)
    assert optimal.lower_bound_usd_per_h == pytest.approx(3.2)
    assert (greedy.cost_usd_per_h, greedy.missing) == (4.0, "")


def test_greedy_goes_on_to_the_next_template_when_nodes_run_out() -> None:
    templates = {"l4": ({"L4x1": 1}, 10), "a10": ({"A10Gx1": 1}, 10)}
    a = workload("a", Phase.AGGREGATED, templates, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 3.0}
    p = problem([a], {"a": 30.0}, price, {(R1, "L4x1"): 2, (R1, "A10Gx1"): 9}, configs=CONFIGS)
    greedy = homo_greedy(p)
    assert greedy.cost_usd_per_h == 5.0
    assert {row.template_id: row.instances for row in greedy.rows} == {"l4": 2, "a10": 1}


def test_greedy_keeps_prefill_and_decode_together() -> None:
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 10)}, CONFIGS)
    decode = workload("a", Phase.DECODE, {"d": ({"A10Gx1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.0, (R2, "L4x1"): 2.0, (R2, "A10Gx1"): 2.0}
    # R1 has nodes for one decode only: one pair there, the other in R2.
    capacity = {(R1, "L4x1"): 9, (R1, "A10Gx1"): 1, (R2, "L4x1"): 9, (R2, "A10Gx1"): 9}
    p = problem([prefill, decode], {"a": 20.0}, price, capacity, regions=(R1, R2), configs=CONFIGS)
    greedy = homo_greedy(p)
    assert greedy.cost_usd_per_h == 6.0
    assert {(row.region, row.template_id): row.instances for row in greedy.rows} == {
        (R1, "p"): 1,
        (R1, "d"): 1,
        (R2, "p"): 1,
        (R2, "d"): 1,
    }


def test_what_cannot_be_met_is_none_with_what_is_missing() -> None:
    a = workload("a", Phase.AGGREGATED, {"l4": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 30.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 2}, configs=CONFIGS)
    greedy, optimal = homo_greedy(p), homo_optimal(p, EXACT)
    assert greedy.cost_usd_per_h is None
    assert "a 10 of 30 req/s" in greedy.missing
    assert (optimal.cost_usd_per_h, optimal.lower_bound_usd_per_h) == (None, None)
    assert "cannot meet the demand" in optimal.missing


def test_no_homogeneous_template_at_all() -> None:
    a = workload("a", Phase.AGGREGATED, {"mix": ({"L4x1": 1, "A10Gx1": 1}, 20)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.2}
    p = problem([a], {"a": 20.0}, price, dict.fromkeys(price, 9), configs=CONFIGS)
    assert homo_greedy(p).cost_usd_per_h is None
    assert homo_optimal(p, EXACT).cost_usd_per_h is None


def test_no_demand_costs_nothing() -> None:
    a = workload("a", Phase.AGGREGATED, {"l4": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 0.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 2}, configs=CONFIGS)
    assert homo_greedy(p).cost_usd_per_h == 0.0
    assert homo_optimal(p, EXACT).cost_usd_per_h == 0.0


@pytest.mark.parametrize("seed", range(60))
def test_greedy_is_never_below_optimal_nor_optimal_below_mixing(seed: int) -> None:
    p = replace(random_problem(seed), init_share=0.0, running={})
    if seed % 4 == 0:
        p = with_min_regions(p, 2)
    greedy, optimal, mixed = homo_greedy(p), homo_optimal(p, EXACT), solve_ilp(p, EXACT)
    if greedy.cost_usd_per_h is not None:
        assert optimal.cost_usd_per_h is not None
        assert greedy.cost_usd_per_h >= optimal.cost_usd_per_h - 1e-9
    if optimal.cost_usd_per_h is not None:
        assert mixed.status is not SolveStatus.SHORTFALL
        assert optimal.cost_usd_per_h >= mixed.cost_usd_per_h - 1e-9
        assert check_result(homogeneous_only(p), optimal.result) == []
