"""Plans in stages: what a stage leaves to the next, when stages are worth it, and the plans they end with."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Phase
from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers import largest_share as largest_share_module
from tasks.allocation.covers import many
from tasks.allocation.covers import staged as staged_module
from tasks.allocation.covers.generation import generate, joint_bound
from tasks.allocation.covers.packing import lack_weights, packing
from tasks.allocation.covers.pricing import Grid, model_blocks
from tasks.allocation.covers.recreate import search_together
from tasks.allocation.covers.rounding import is_within
from tasks.allocation.covers.staged import _without, is_lumpy, plan_in_stages
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome, solve_ilp
from tasks.allocation.outcome import objective_usd, served_shares
from tasks.allocation.types import AllocationProblem, SharedQuota, Shortage, SolveLimits

LIMITS = SolveLimits(gap=1e-3, threads=1)
GRID = Grid(1024, 2)


def staged(p: AllocationProblem, limits: SolveLimits = LIMITS) -> np.ndarray:
    """Instances per column of a plan in stages."""
    columns = make_columns(p)
    models = model_blocks(p, columns, 1.0)
    found = generate(p, columns, models, GRID, limits, Clock(limits))
    _, parts = joint_bound(p, models, found.duals, GRID)
    return plan_in_stages(p, columns, models, found, lack_weights(parts, 5.0), GRID, limits, Clock(limits))


def mixed(seed: int) -> AllocationProblem:
    """Four models of two or three large instances and six of many small ones, of two phases in two regions; the large nodes
    suit the small models too."""
    rng = np.random.default_rng(seed)
    configs, names = ("L4x1", "A10Gx1", "L40Sx1"), "abcdefghij"
    candidates = []
    for number, name in enumerate(names):
        for phase in (Phase.PREFILL, Phase.DECODE):
            if number < 4:
                templates = {"one": ({"L40Sx1": 2}, 5.0), "two": ({"L40Sx1": 1, "A10Gx1": 2}, 4.0)}
            else:
                templates = {
                    f"{i}": ({config: 1}, float(rng.uniform(0.4, 0.6)) * (i + 1)) for i, config in enumerate(configs)
                }
            renamed = {f"{name}{phase.value}{key}": entry for key, entry in templates.items()}
            candidates.append(workload(name, phase, renamed, configs))
    keys = [(r, c) for r in (R1, R2) for c in configs]
    return problem(
        candidates,
        dict.fromkeys(names, 10.0),
        {key: {"L4x1": 1.0, "A10Gx1": 1.8, "L40Sx1": 2.6}[key[1]] * float(rng.uniform(0.95, 1.05)) for key in keys},
        {key: 60 if key[1] == "L4x1" else 24 for key in keys},
        regions=(R1, R2),
        configs=configs,
    )


def test_a_plan_in_stages_serves_all_within_supply_and_near_the_optimum() -> None:
    for seed in range(3):
        p = mixed(seed)
        columns = make_columns(p)
        counts = staged(p)
        use = np.zeros(p.capacity_nodes.shape, dtype=np.int64)
        np.add.at(use, columns.pool, columns.counts * counts[:, None])
        assert (use <= p.capacity_nodes).all(), seed
        assert min(served_shares(p, columns, counts).values()) >= 1 - 1e-9, seed
        truth = solve_ilp(p, SolveLimits(gap=5e-3, threads=1, time_s=10))
        value = objective_usd(p, columns, counts)
        assert truth.lower_bound_usd - 1e-6 <= value <= 1.02 * truth.objective_usd, seed


def test_stages_end_alike_on_any_number_of_threads() -> None:
    p = mixed(7)
    assert staged(p).tolist() == staged(p, replace(LIMITS, threads=2)).tolist()


def test_quotas_hold_over_all_stages() -> None:
    """A region's quota of nodes a fifth below what the plan without it takes: the stages together keep it, and reach it."""
    p = mixed(1)
    columns = make_columns(p)
    use = np.zeros(p.capacity_nodes.shape, dtype=np.int64)
    np.add.at(use, columns.pool, columns.counts * staged(p)[:, None])
    most = int(0.8 * use[0].sum())
    limited = replace(p, quotas=(SharedQuota("q", R1, dict.fromkeys(p.node_configs, 1), most),))
    again = staged(limited)
    assert is_within(limited, columns, again)
    assert min(served_shares(limited, columns, again).values()) > 0.9
    taken = int((columns.counts * again[:, None])[columns.pool == 0].sum())
    assert most - 4 <= taken <= most


def test_the_budget_holds_over_all_stages() -> None:
    p = mixed(2)
    columns = make_columns(p)
    rent = float((staged(p) * columns.price_usd_per_h).sum())
    limited = replace(p, budget_usd_per_h=0.9 * rent)
    again = staged(limited)
    assert is_within(limited, columns, again)
    assert float((again * columns.price_usd_per_h).sum()) > 0.8 * rent


def test_a_stop_ends_a_plan_in_stages_at_once() -> None:
    p = mixed(3)
    stopped = replace(LIMITS, time_s=0.0)
    assert staged(p, stopped).sum() == 0


@pytest.mark.parametrize("has_start", [False, True])
def test_many_models_of_large_instances_are_planned_in_stages(monkeypatch: pytest.MonkeyPatch, has_start: bool) -> None:
    """Also where no other way found a plan to begin with."""
    asked = []

    def spy(*arguments: object) -> np.ndarray:
        asked.append(arguments)
        return plan_in_stages(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(many, "plan_in_stages", spy)
    monkeypatch.setattr(staged_module, "_LUMPY", 0.05)
    if not has_start:
        monkeypatch.setattr(many, "round_mix", lambda *_: (None, math.inf))
    p, limits = mixed(4), replace(LIMITS, gap=1e-6)
    columns = make_columns(p)
    models = model_blocks(p, columns, 1.0)
    found = generate(p, columns, models, GRID, limits, Clock(limits))
    bound, parts = joint_bound(p, models, found.duals, GRID)
    none = GoalOutcome(MipStatus.LIMIT, None, math.inf, bound)
    best, _ = many.plan_of_many(p, columns, models, 1.0, found, found, parts, GRID, 1024, none, limits, Clock(limits))
    assert len(asked) == 1
    assert best.counts is not None
    assert bound <= best.objective == pytest.approx(objective_usd(p, columns, best.counts))
    assert min(served_shares(p, columns, best.counts).values()) >= 1 - 1e-9


def test_what_is_taken_is_left_to_no_other_stage() -> None:
    # By hand: of 9 nodes at 2 USD/h, quota 40 of 3 units each, budget 50 USD/h, two instances of two nodes take 4, 12 and 8.
    configs = ("L4x1",)
    candidates = [
        workload("m", phase, {phase.value: ({"L4x1": 2}, 5.0)}, configs) for phase in (Phase.PREFILL, Phase.DECODE)
    ]
    p = replace(
        problem(candidates, {"m": 10.0}, {(R1, "L4x1"): 2.0}, {(R1, "L4x1"): 9}, configs=configs),
        quotas=(SharedQuota("q", R1, {"L4x1": 3}, 40),),
        budget_usd_per_h=50.0,
    )
    left = _without(p, make_columns(p), np.array([1, 1]))
    assert left.capacity_nodes.tolist() == [[5]]
    assert left.quotas[0].limit == 28
    assert left.budget_usd_per_h == pytest.approx(42.0)
    assert _without(replace(p, budget_usd_per_h=7.0), make_columns(p), np.array([1, 1])).budget_usd_per_h == 0.0


def test_a_stage_takes_the_place_of_others_on_the_nodes_it_needs() -> None:
    """A model that lacks all of its demand gets the only node that serves it, from one that has another choice."""
    configs = ("L4x1", "L40Sx1")
    only = {"only": ({"L40Sx1": 1}, 10.0)}
    either = {"large": ({"L40Sx1": 1}, 10.0), "small": ({"L4x1": 1}, 5.0)}
    candidates = [workload("a", Phase.AGGREGATED, only, configs), workload("b", Phase.AGGREGATED, either, configs)]
    price = {(R1, "L4x1"): 3.0, (R1, "L40Sx1"): 2.0}
    p = problem(candidates, {"a": 10.0, "b": 10.0}, price, {(R1, "L4x1"): 2, (R1, "L40Sx1"): 1}, configs=configs)
    columns = make_columns(p)
    prices = NodePrices(p.price_usd_per_h, p.price_usd_per_h)
    packed = packing(
        p, columns, model_blocks(p, columns, 1.0), prices, prices, np.ones(len(columns)), np.full(2, 100.0)
    )
    taken = (packed.items.model == 1) & (packed.items.share > 0.9)  # b on the large node
    end = search_together(
        packed, packed.from_items(taken.astype(np.int64)), 100, (0.1, 0.01), (0.0, 0.0), 0, Clock(LIMITS)
    )
    assert not packed.lacking(end).any()
    assert packed.value(end) == pytest.approx(2.0 + 2 * 3.0)


def test_large_instances_make_a_fleet_lumpy() -> None:
    # By hand: all models cost alike and have n instances, so the measure is 1 / n: 1/4 is above the threshold, 1/40 below it.
    configs = ("L4x1",)
    for rate, expected in ((5.0, True), (0.5, False)):
        names = "abc"
        candidates = [
            workload(name, phase, {f"{name}{phase.value}": ({"L4x1": 1}, rate)}, configs)
            for name in names
            for phase in (Phase.PREFILL, Phase.DECODE)
        ]
        p = problem(candidates, dict.fromkeys(names, 10.0), {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 500}, configs=configs)
        columns = make_columns(p)
        models = model_blocks(p, columns, 1.0)
        found = generate(p, columns, models, GRID, LIMITS, Clock(LIMITS))
        _, parts = joint_bound(p, models, found.duals, GRID)
        assert is_lumpy(models, found.mix(columns), parts) is expected


def test_the_largest_share_begins_with_stages_where_instances_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(*arguments: object) -> np.ndarray:
        asked.append(arguments)
        return plan_in_stages(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(largest_share_module, "plan_in_stages", spy)
    for seed in range(2):
        p = mixed(seed)
        p = replace(p, capacity_nodes=p.capacity_nodes // 2, shortage=Shortage.UNIFORM)
        columns = make_columns(p)
        answer = largest_share_module.largest_share(p, columns, model_blocks(p, columns, 1.0), LIMITS, Clock(LIMITS))
        assert answer is not None
        assert len(asked) == seed + 1
        truth = solve_ilp(p, SolveLimits(gap=1e-2, threads=1, time_s=10))
        assert 0.9 * truth.theta <= -answer.objective <= -answer.bound + 1e-9
        assert -answer.bound >= truth.theta - 1e-6
        assert min(served_shares(p, columns, answer.counts).values()) == pytest.approx(-answer.objective)
