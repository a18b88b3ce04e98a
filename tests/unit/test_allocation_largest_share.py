"""The largest common share of large problems: its bound and its plans against the ILP's share on small ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import random_problem, ruled_problem

from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import make_columns
from tasks.allocation.covers import solver
from tasks.allocation.covers.largest_share import largest_share, relax
from tasks.allocation.covers.pricing import model_blocks
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, SharedQuota, Shortage, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=0.0)


def short(seed: int) -> AllocationProblem | None:
    """A problem whose supply falls short; of odd seeds with the further rules."""
    base = (ruled_problem if seed % 2 else random_problem)(seed)
    demands = tuple(replace(d, planned_req_per_s=3 * d.planned_req_per_s, min_regions=1) for d in base.demands)
    p = replace(base, demands=demands, shortage=Shortage.UNIFORM)
    return p if solve_ilp(p, EXACT).status is SolveStatus.SHORTFALL else None


def test_no_plan_serves_a_larger_share_than_the_relaxation_allows() -> None:
    checked = found = 0
    for seed in range(24):
        p = short(seed)
        if p is None:
            continue
        truth, columns = solve_ilp(p, EXACT), make_columns(p)
        models = model_blocks(p, columns, 1.0)
        if not len(columns) or any(not model.blocks for model in models):
            continue
        relaxed = relax(p, columns, models, EXACT)
        assert relaxed.bound >= truth.theta - 1e-6, seed
        assert relaxed.share <= relaxed.bound + 1e-6, seed
        answer = largest_share(p, columns, models, EXACT, Clock(EXACT))
        if answer is not None:
            assert -answer.objective <= truth.theta + 1e-6, seed
            assert -answer.bound >= truth.theta - 1e-6, seed
            found += 1
        checked += 1
    assert checked > 7
    assert found > 2


def test_the_relaxation_of_one_kind_of_node_is_supply_over_need() -> None:
    # By hand: two models want 10 req/s each; a node serves 1 req/s of either; there are 5 nodes: a quarter.
    from allocation_cases import R1, problem, workload

    from catalogs.types import Phase

    names = ("a", "b")
    candidates = [workload(m, Phase.AGGREGATED, {f"{m}1": ({"L4x1": 1}, 1.0)}, ("L4x1",)) for m in names]
    p = problem(candidates, dict.fromkeys(names, 10.0), {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 5}, configs=("L4x1",))
    columns = make_columns(p)
    relaxed = relax(p, columns, model_blocks(p, columns, 1.0), EXACT)
    assert relaxed.bound == pytest.approx(0.25)
    assert relaxed.share == pytest.approx(0.25)
    assert float(relaxed.mix.sum()) == pytest.approx(5.0)
    assert np.count_nonzero(relaxed.mix) == 2


def test_many_models_in_shortage_get_a_plan_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    monkeypatch.setattr(solver, "_DIVE_MODELS", 0)
    short_ones = 0
    for seed in range(24):
        p = short(seed)
        if p is not None:
            truth, result = solve_ilp(p, EXACT), solver.solve_covers(p, EXACT)
            assert check_result(p, result) == [], seed
            assert result.theta <= truth.theta + 1e-6, seed
            assert result.theta_upper >= truth.theta - 1e-6, seed
            short_ones += 1
    assert short_ones > 10


def test_parts_of_instances_become_whole_ones_where_nothing_is_scarce() -> None:
    # By hand: an instance serves 20 of each model's 10 req/s, and there is a node for each: the relaxation takes half of each.
    from allocation_cases import R1, problem, workload

    from catalogs.types import Phase

    names = ("a", "b")
    candidates = [workload(m, Phase.AGGREGATED, {f"{m}1": ({"L4x1": 1}, 20.0)}, ("L4x1",)) for m in names]
    for price in (1.0, 0.0):
        p = problem(candidates, dict.fromkeys(names, 10.0), {(R1, "L4x1"): price}, {(R1, "L4x1"): 2}, configs=("L4x1",))
        columns = make_columns(p)
        answer = largest_share(p, columns, model_blocks(p, columns, 1.0), EXACT, Clock(EXACT))
        assert answer is not None, price
        assert answer.objective == pytest.approx(-1.0)


@pytest.mark.parametrize("min_replicas", [1, 2])
def test_a_quota_of_nothing_leaves_no_share_to_search(min_replicas: int) -> None:
    from allocation_cases import R1, problem, workload

    from catalogs.types import Phase

    candidates = [workload("a", Phase.AGGREGATED, {"a1": ({"L4x1": 1}, 1.0)}, ("L4x1",))]
    p = problem(candidates, {"a": 10.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 5}, configs=("L4x1",))
    p = replace(
        p,
        quotas=(SharedQuota("G", R1, {"L4x1": 1}, 0),),
        demands=tuple(replace(d, min_replicas=min_replicas) for d in p.demands),
    )
    columns = make_columns(p)
    with np.errstate(all="raise"):
        assert largest_share(p, columns, model_blocks(p, columns, 1.0), EXACT, Clock(EXACT)) is None
