"""The covers solver: the reference ILP's answers, bounds that never exceed the truth, and its kernels by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2, enumerate_plans, problem, random_problem, ruled_problem, with_min_regions, workload
from hypothesis import example, given, settings
from hypothesis import strategies as st

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers import kernels, solver
from tasks.allocation.covers.fixing import bounds_if_used
from tasks.allocation.covers.generation import dual_value, generate
from tasks.allocation.covers.pricing import Grid, dual_prices, lower_bound, model_blocks
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.covers.tables import grid_steps
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, Shortage, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=0.0)


def case(seed: int) -> AllocationProblem:
    p = random_problem(seed)
    return with_min_regions(p, 2) if seed % 3 == 0 else p


@pytest.mark.parametrize("block", range(10))
def test_equals_the_reference_on_500_small_problems(block: int) -> None:
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        p = case(seed)
        covers, reference = solve_covers(p, EXACT), solve_ilp(p, EXACT)
        assert check_result(p, covers) == [], seed
        assert covers.objective_usd == pytest.approx(reference.objective_usd, abs=1e-6), seed
        assert covers.theta == pytest.approx(reference.theta, abs=1e-6), seed
        assert (covers.status is SolveStatus.SHORTFALL) == (reference.status is SolveStatus.SHORTFALL), seed
        assert covers.lower_bound_usd <= reference.objective_usd + 1e-6, seed


@pytest.mark.parametrize(
    ("make", "seeds", "least_short"), [(random_problem, range(2000, 2250), 9), (ruled_problem, range(100, 160), 3)]
)
def test_its_bounds_hold_when_only_column_generation_gives_them(
    make: Callable[[int], AllocationProblem], seeds: range, least_short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shortages by covers at levels even where the ILP could do them.
    monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    short = 0
    for seed in seeds:
        p = make(seed)
        truth = enumerate_plans(p, limit=300_000)
        if truth is None:
            continue
        result = solve_covers(p, EXACT)
        assert check_result(p, result) == [], seed
        assert result.lower_bound_usd <= truth.objective + 1e-6, seed
        if not truth.feasible and not math.isnan(truth.theta):
            short += 1
            assert result.theta <= truth.theta + 1e-9, seed
            assert result.theta_upper >= truth.theta - 1e-9, seed
    assert short >= least_short


@pytest.mark.parametrize("shortage", list(Shortage))
def test_empty_supply(shortage: Shortage) -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, ("L4x1", "A10Gx1"))
    p = problem([a], {"a": 5.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 0}, shortage=shortage)
    result = solve_covers(p, EXACT)
    assert (result.status, result.instances, result.theta) == (SolveStatus.SHORTFALL, (), 0.0)


def test_three_templates_of_a_third_cost_three_not_four() -> None:
    # Rates rounded down would need four: a bound from them would be 4, above the optimum.
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, ("L4x1", "A10Gx1"))
    p = problem([a], {"a": 30.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9})
    result = solve_covers(p, EXACT)
    assert (result.objective_usd, result.lower_bound_usd, result.status) == (3.0, 3.0, SolveStatus.OPTIMAL)
    model = model_blocks(p, make_columns(p), 1.0)[0]
    assert lower_bound(model, dual_prices(p, np.zeros((1, 2)), 0.0, np.zeros(0)), Grid(1000, 1)) == 3.0
    down = grid_steps(np.array([1 / 3]), 1000, up=False)
    assert kernels.cover_table(down, np.array([1.0]), 1000)[-1] == 4.0


def test_the_same_answer_every_time() -> None:
    for seed in range(1000, 1010):
        p = case(seed)
        assert len({solve_covers(p, EXACT).instances for _ in range(3)}) == 1


def _medium(seed: int, capacity: int) -> AllocationProblem:
    """Three models of two phases, 60 templates each, two regions, kept instances: enough for duals and fixing to work."""
    rng = np.random.default_rng(seed)
    configs = ("L4x1", "A10Gx1", "L40Sx1", "L40Sx4")
    base = np.array([1.0, 1.3, 2.9, 11.0])
    candidates, running = [], {}
    for model, phase in itertools.product(("a", "b", "c"), (Phase.PREFILL, Phase.DECODE)):
        templates = {}
        for i in range(60):
            nodes = {c: int(rng.integers(0, 3)) for c in configs}
            nodes[configs[int(rng.integers(4))]] += 1
            rate = 10 * sum(n * b for n, b in zip(nodes.values(), base, strict=True)) * rng.uniform(0.7, 1.0)
            templates[f"{model}{phase.value}{i}"] = (nodes, rate)
        candidates.append(workload(model, phase, templates, configs))
        running[R1, f"{model}{phase.value}{int(rng.integers(60))}"] = int(rng.integers(1, 3))
    price = {(r, c): float(b * f) for r, f in ((R1, 1.0), (R2, 1.1)) for c, b in zip(configs, base, strict=True)}
    return problem(
        candidates,
        {"a": 150.0, "b": 90.0, "c": 240.0},
        price,
        dict.fromkeys(price, capacity),
        regions=(R1, R2),
        configs=configs,
        init_share=0.1,
        running=running,
    )


@pytest.mark.parametrize("capacity", [40, 12, 9])
def test_medium_problems_agree_with_the_reference(capacity: int) -> None:
    p = _medium(capacity, capacity)
    limits = SolveLimits(gap=3e-3, time_s=60.0)
    covers = solve_covers(p, limits)
    assert check_result(p, covers) == []
    assert covers.gap <= 3e-3
    reference = solve_ilp(p, replace(limits, time_s=3.0))
    assert covers.lower_bound_usd <= reference.objective_usd * (1 + 1e-9)
    assert reference.lower_bound_usd <= covers.objective_usd * (1 + 1e-9)


def test_what_a_column_implies_is_never_above_the_truth() -> None:
    tried = 0
    for seed in range(1000, 1040):
        p = random_problem(seed)
        columns = make_columns(p)
        models = model_blocks(p, columns, 1.0)
        if (
            not models
            or any(not model.blocks for model in models)
            or solve_ilp(p, EXACT).status is SolveStatus.SHORTFALL
        ):
            continue
        found = generate(p, columns, models, Grid(512, 1), EXACT, Clock(EXACT))
        prices = dual_prices(p, found.duals.supply, found.duals.budget, found.duals.quota)
        implied = bounds_if_used(columns, models, prices, dual_value(p, found.duals), 512)
        used = solve_ilp(p, EXACT)
        ids = [
            (p.regions[r], p.candidates[w].template_ids[t])
            for w, r, t in zip(columns.workload, columns.region, columns.template, strict=True)
        ]
        for row in used.instances:
            tried += 1
            assert implied[ids.index((row.region, row.template_id))] <= used.objective_usd + 1e-6
    assert tried >= 5


items = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 20)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(items, st.integers(1, 24))
def test_cover_table_is_the_least_cost_of_enough_steps(pairs: list[tuple[int, int]], size: int) -> None:
    pairs = sorted(pairs, reverse=True)
    steps = np.array([s for s, _ in pairs], dtype=np.int64)
    cost = np.array([float(c) for _, c in pairs])
    useful = kernels.useful_items(steps, cost)
    f = kernels.cover_table(steps[useful], cost[useful], size)
    # Reference: dynamic programming over exact sums, all items, no pruning.
    best = {0: 0.0}
    for total in range(1, size + 13):
        options = [best[total - s] + c for s, c in pairs if total - s in best]
        if options:
            best[total] = min(options)
    for g in range(size + 1):
        assert f[g] == min(value for total, value in best.items() if total >= g)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=8, max_size=8), min_size=2, max_size=3))
@example([[0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]])
def test_joining_regions_finds_the_best_split(increments: list[list[int]]) -> None:
    f = [np.concatenate([[0.0], np.cumsum(row, dtype=np.float64)]) for row in increments]
    best = min(
        sum(row[k] for row, k in zip(f, split, strict=True))
        for split in itertools.product(range(9), repeat=len(f))
        if sum(split) >= 8
    )
    h, _, _ = kernels.join_regions(np.array(f), len(f), 1)
    assert h[-1, 1, 8] == best
    exact = kernels.split_two(f[0], f[1]) if len(f) == 2 else kernels.split_three(f[0], f[1], f[2], 2)
    assert exact == best


def test_a_bundle_is_taken_at_most_once() -> None:
    f = kernels.cover_table(np.array([4]), np.array([10.0]), 8)
    assert kernels.add_bundle(f, 3, 1.0).tolist() == [0, 1, 1, 1, 10, 11, 11, 11, 20]


def test_the_split_over_many_regions_is_that_of_trying_all() -> None:
    rng = np.random.default_rng(0)
    size = 48
    for number in range(40):
        regions = int(rng.integers(1, 7))
        f = np.array(
            [kernels.cover_table(rng.integers(1, 30, 5), rng.uniform(0.3, 3, 5), size) for _ in range(regions)]
        )
        if number % 7 == 0:
            f[0, 1:] = np.inf
        h = np.full(size + 1, np.inf)
        h[0] = 0.0
        for row in f:
            out = h.copy()
            for a, b in itertools.product(range(size + 1), range(1, size + 1)):
                out[min(a + b, size)] = min(out[min(a + b, size)], h[a] + row[b])
            h = out
        least, split = kernels.split_many(f, 4)
        assert least == pytest.approx(h[-1], abs=1e-12)
        if math.isfinite(least):
            assert split.sum() >= size
            assert sum(f[r, k] for r, k in enumerate(split) if k) == pytest.approx(least, abs=1e-9)


def test_a_mix_is_rounded_to_a_plan_within_the_supply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no cover fits beside the others, what the LP mixes whole is kept and the rest bought from what is left."""
    monkeypatch.setattr(solver, "best_of_pool", lambda *_: (None, math.inf))
    monkeypatch.setattr(solver, "_DIVES", 0)
    monkeypatch.setattr(solver, "close", lambda *arguments: arguments[7])
    p = _medium(12, 12)
    result = solve_covers(p, SolveLimits(gap=3e-3, time_s=60.0), allow_shortage=False)
    assert result.instances
    assert check_result(p, result) == []
    assert result.gap < 0.2


def test_an_optimum_found_before_the_search_is_not_lost_to_the_plan_it_began_with() -> None:
    """HiGHS then returns the start's values: the ILP over this problem's columns begins at 20 and its optimum is 16."""
    p = ruled_problem(1363)
    covers, reference = solve_covers(p, EXACT), solve_ilp(p, EXACT)
    assert (covers.objective_usd, reference.objective_usd) == (16.0, 16.0)
    assert covers.status is SolveStatus.OPTIMAL
