"""Shortages by weight of large problems, and shares under rules: against the best of small ones, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, problem, random_problem, ruled_problem, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers import solver
from tasks.allocation.covers.enumeration_kernels import multisets
from tasks.allocation.covers.largest_share import largest_share
from tasks.allocation.covers.least_shortage import cheapest_at_shortage, least_shortage
from tasks.allocation.covers.pricing import model_blocks
from tasks.allocation.covers.recreate import can_recreate
from tasks.allocation.covers.task import Task
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.outcome import objective_usd, weighted_shortage
from tasks.allocation.types import AllocationProblem, Shortage, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=1e-6)
NODES = ("L4x1", "A10Gx1")


def task_of(p: AllocationProblem) -> Task:
    columns = make_columns(p)
    return Task(p, columns, model_blocks(p, columns, 1.0), EXACT, Clock(EXACT))


def short(seed: int, *, ruled: bool) -> AllocationProblem | None:
    """A problem whose supply falls short by weight, models and columns in it."""
    base = (ruled_problem if ruled else random_problem)(seed)
    demands = tuple(
        replace(d, planned_req_per_s=3 * d.planned_req_per_s, min_regions=1, weight=1.0 + i)
        for i, d in enumerate(base.demands)
    )
    p = replace(base, demands=demands, shortage=Shortage.PRIORITY, links=())
    is_short = solve_ilp(p, EXACT).status is SolveStatus.SHORTFALL
    return p if is_short and len(make_columns(p)) else None


def two_models(nodes: int, **rules: object) -> AllocationProblem:
    """Two models of 10 req/s each, b of twice the weight; an L4 serves 1 of either for 1 USD/h."""
    candidates = [workload(m, Phase.AGGREGATED, {f"{m}1": ({"L4x1": 1}, 1.0)}, NODES) for m in "ab"]
    p = problem(candidates, {"a": 10.0, "b": 10.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): nodes}, configs=NODES)
    demands = tuple(replace(d, weight=2.0 if d.model == "b" else 1.0, **rules) for d in p.demands)  # type: ignore[arg-type]
    return replace(p, demands=demands, shortage=Shortage.PRIORITY)


def test_nodes_go_to_the_model_of_more_weight_and_the_rest_to_the_other() -> None:
    # By hand: 13 nodes serve b whole and three tenths of a.
    p = two_models(13)
    task = task_of(p)
    found = least_shortage(task)
    assert found.counts is not None
    assert found.objective == pytest.approx(0.7)
    assert found.bound == pytest.approx(0.7, abs=1e-3)
    assert dict(zip([c.alias[0] for c in p.candidates], found.counts.tolist(), strict=True)) == {"a": 3, "b": 10}


def test_what_is_missing_stays_and_dear_nodes_give_way_to_cheap_ones() -> None:
    # By hand: an A10G serves as much as an L4, for 3 USD/h; there are 12 of each and 20 wanted: 12 L4 and 6 A10G serve 18.
    rates = {"L4": ({"L4x1": 1}, 1.0), "A10G": ({"A10Gx1": 1}, 1.0)}
    candidates = [
        workload(m, Phase.AGGREGATED, {f"{m} {name}": entry for name, entry in rates.items()}, NODES) for m in "ab"
    ]
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 3.0}
    p = problem(candidates, {"a": 10.0, "b": 10.0}, price, dict.fromkeys(price, 12), configs=NODES)
    task = task_of(p)
    kind = np.array([task.columns.counts[i, 1] for i in range(4)])  # whether a column is of A10G
    start = np.where(kind == 1, 6, 3)
    missing = weighted_shortage(p, task.columns, start)
    assert missing == pytest.approx(0.2)
    cheaper = cheapest_at_shortage(task, missing, start)
    assert cheaper.counts is not None
    assert weighted_shortage(p, task.columns, cheaper.counts) <= missing + 1e-9
    assert cheaper.objective == pytest.approx(12 * 1 + 6 * 3)
    assert cheaper.bound <= 30.0 + 1e-9


@pytest.mark.parametrize("ruled", [False, True])
def test_it_misses_little_more_than_the_best_and_its_bound_holds(ruled: bool) -> None:
    checked, excess = 0, []
    for seed in range(18 if ruled else 40):
        p = short(seed, ruled=ruled)
        if p is None:
            continue
        task = task_of(p)
        if not can_recreate([model for model in task.models if model.blocks]):
            continue
        truth = solve_ilp(p, EXACT)
        least = float(truth.note.split("weighted missing share ")[1].split(",")[0])
        found = least_shortage(task)
        assert found.counts is not None
        assert found.objective == pytest.approx(weighted_shortage(p, task.columns, found.counts))
        assert found.bound <= least + 1e-5, seed
        assert found.objective >= least - 1e-5, seed
        excess.append(found.objective - least)
        at = cheapest_at_shortage(task, found.objective + 1e-9, found.counts)
        assert at.counts is not None
        assert at.objective <= objective_usd(p, task.columns, found.counts) + 1e-9
        if found.objective <= least + 1e-6:
            assert at.bound <= truth.objective_usd + 1e-5, seed
        assert weighted_shortage(p, task.columns, at.counts) <= found.objective + 1e-8
        checked += 1
    assert checked > 5
    assert np.mean(np.array(excess) < 0.05) >= 0.75  # most as good as the best


@pytest.mark.parametrize("ruled", [False, True])
def test_whole_plans_of_short_problems_hold(ruled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    monkeypatch.setattr(solver, "_LEVEL_MODELS_BY_WEIGHT", 0)
    checked = 0
    for seed in range(100, 130):
        p = short(seed, ruled=ruled)
        if p is None:
            continue
        truth, answer = solve_ilp(p, EXACT), solver.solve_covers(p, EXACT)
        assert check_result(p, answer) == [], seed
        assert (answer.status is SolveStatus.SHORTFALL) == (truth.status is SolveStatus.SHORTFALL), seed
        checked += 1
    assert checked > 3


def test_under_rules_the_common_share_is_searched_too() -> None:
    # By hand: with N+1 a model of 1 req/s needs two nodes; the 12 nodes serve 5 of 10 req/s of both (6 nodes each).
    p = two_models(12, survives_loss=True)
    task = task_of(p)
    assert can_recreate(task.models)
    answer = largest_share(p, task.columns, task.models, EXACT, Clock(EXACT))
    assert answer is not None
    assert -answer.objective == pytest.approx(0.5)


def test_a_model_that_fits_nowhere_misses_all_and_the_others_are_served() -> None:
    p = two_models(13)
    p = replace(p, demands=tuple(replace(d, node_configs=("A10Gx1",)) if d.model == "b" else d for d in p.demands))
    task = task_of(p)
    assert [bool(model.blocks) for model in task.models] == [True, False]
    found = least_shortage(task)
    assert found.objective == 2.0
    assert found.bound == pytest.approx(2.0)
    at = cheapest_at_shortage(task, 2.0, np.array([12]))
    assert at.counts is not None
    assert at.counts.tolist() == [10]


def test_lists_end_that_look_at_far_more_than_they_find() -> None:
    # Forty alike kinds of which any twelve serve three quarters: 10^10 multisets fit, and none serves what the limit asks.
    kinds, size = 40, 100
    share, cost = np.full(kinds, 1 / 16), np.ones(kinds)
    node = np.arange(kinds, dtype=np.int32)[:, None]
    stop = np.where(np.arange(size + 1) < 90, np.inf, 0.0)
    _, _, found = multisets(
        share,
        cost,
        np.ones(kinds, dtype=np.int64),
        node,
        np.ones((kinds, 1), dtype=np.int16),
        np.ones(kinds, dtype=np.int64),
        np.zeros(size + 1),
        stop,
        11.5,
        1000,
        12,
    )
    assert found == -1


def test_what_runs_is_bounded_at_what_keeping_it_costs() -> None:
    # By hand: 13 of 20 nodes run and cost 1 USD/h each; started anew they would cost half as much again.
    p = two_models(13)
    p = replace(p, init_share=0.5, running={(R1, "a1"): 10, (R1, "b1"): 10})
    task = task_of(p)
    at = cheapest_at_shortage(task, 0.7 + 1e-9, np.array([3, 10]))
    assert at.objective == pytest.approx(13.0)
    assert at.bound <= 13.0


def test_supply_far_below_demand_is_priced_too() -> None:
    # By hand: 8 nodes for 2,000 req/s; four of 3 USD/h serve what four of 1 USD/h do.
    rates = {"L4": ({"L4x1": 1}, 1.0), "A10G": ({"A10Gx1": 1}, 1.0)}
    candidates = [workload("a", Phase.AGGREGATED, rates, NODES)]
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 3.0}
    p = problem(candidates, {"a": 2000.0}, price, dict.fromkeys(price, 4), configs=NODES)
    task = task_of(p)
    start = np.where(task.columns.counts[:, 1] == 1, 4, 0)
    at = cheapest_at_shortage(task, weighted_shortage(p, task.columns, start), start)
    assert at.objective == pytest.approx(4.0)
    assert at.bound <= 4.0 + 1e-9


def test_small_instances_under_rules_are_not_rounded_to_nothing() -> None:
    # By hand: an instance serves a two-thousandth of a model; 2,400 nodes serve 1.2 of two models.
    p = two_models(2400, min_replicas=2)
    p = replace(p, demands=tuple(replace(d, planned_req_per_s=2000.0, weight=1.0) for d in p.demands))
    assert least_shortage(task_of(p)).objective == pytest.approx(0.8, abs=0.01)


def test_a_shortage_of_any_size_keeps_its_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    checked = 0
    for seed in range(14):
        base = ruled_problem(seed)
        if len(base.regions) < 2 or base.links:
            continue
        demands = tuple(replace(d, planned_req_per_s=2 * d.planned_req_per_s, min_regions=2) for d in base.demands)
        for shortage in Shortage:
            p = replace(base, demands=demands, shortage=shortage)
            truth = solve_ilp(p, EXACT)
            if truth.status is not SolveStatus.SHORTFALL:
                continue
            answer = solver.solve_covers(p, EXACT)
            assert check_result(p, answer) == [], seed
            assert answer.theta <= truth.theta + 1e-6 or shortage is Shortage.PRIORITY, seed
            assert answer.theta_upper >= truth.theta - 1e-6 or shortage is Shortage.PRIORITY, seed
            checked += 1
    assert checked > 5
