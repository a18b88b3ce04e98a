"""The largest common share of large problems: its bound and its plans against the ILP's share on small ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, problem, random_problem, ruled_problem, workload

from catalogs.types import Market, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns, make_columns
from tasks.allocation.covers import solver
from tasks.allocation.covers.largest_share import is_ruled_out, largest_share, relax
from tasks.allocation.covers.pricing import model_blocks
from tasks.allocation.covers.recreate import can_recreate
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome, solve_ilp
from tasks.allocation.types import AllocationProblem, Pool, SharedQuota, Shortage, SolveLimits, SolveStatus

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
        answer = largest_share(p, columns, models, EXACT, Clock(EXACT)) if can_recreate(models) else None
        if answer is not None:
            assert -answer.objective <= truth.theta + 1e-6, seed
            assert -answer.bound >= truth.theta - 1e-6, seed
            found += 1
        checked += 1
    assert checked > 7
    assert found > 2


def test_of_one_kind_of_node_parts_serve_supply_over_need_and_whole_instances_less() -> None:
    # By hand: two models want 10 req/s each; a node serves 1 req/s of either; there are 5 nodes: a quarter of all demand. Whole
    # nodes serve a fifth: more takes three for each model.
    names = ("a", "b")
    candidates = [workload(m, Phase.AGGREGATED, {f"{m}1": ({"L4x1": 1}, 1.0)}, ("L4x1",)) for m in names]
    p = problem(candidates, dict.fromkeys(names, 10.0), {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 5}, configs=("L4x1",))
    columns = make_columns(p)
    relaxed = relax(p, columns, model_blocks(p, columns, 1.0), EXACT)
    assert 0.2 <= relaxed.bound <= 0.2 + 1 / 1024
    assert relaxed.share == relaxed.bound
    assert float(relaxed.mix.sum()) == pytest.approx(5.0 * relaxed.bound / 0.25)
    assert np.count_nonzero(relaxed.mix) == 2


CONFIGS = ("L4x1", "A10Gx1")


def two_models(**rules: object) -> AllocationProblem:
    """Two models of 10 req/s each: an L4 serves 1 of either for 1 USD/h, an A10G 2 for 10; there are 100 of both."""
    rates = {"L4": ({"L4x1": 1}, 1.0), "A10G": ({"A10Gx1": 1}, 2.0)}
    candidates = [
        workload(m, Phase.AGGREGATED, {f"{m} {name}": entry for name, entry in rates.items()}, CONFIGS) for m in "ab"
    ]
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 10.0}
    p = problem(candidates, {"a": 10.0, "b": 10.0}, price, dict.fromkeys(price, 100), configs=CONFIGS)
    return replace(p, demands=tuple(replace(d, **rules) for d in p.demands))  # type: ignore[arg-type]


def test_a_budget_alone_prices_nodes_by_their_rent() -> None:
    # By hand: 10 USD/h buy ten L4, half of all demand; one USD/h more buys a twentieth of a share.
    p = replace(two_models(), budget_usd_per_h=10.0)
    columns = make_columns(p)
    models = model_blocks(p, columns, 1.0)
    relaxed = relax(p, columns, models, EXACT)
    assert relaxed.share == pytest.approx(0.5)
    assert relaxed.nodes.tolist() == [pytest.approx([0.05, 0.5])]
    answer = largest_share(p, columns, models, EXACT, Clock(EXACT))
    assert answer is not None
    assert answer.objective == pytest.approx(-0.5)


def test_models_with_supply_to_spare_are_served_beside_those_short_of_it() -> None:
    # By hand: five A10G of 1 req/s are half of what a wants; b has L4 to spare, at no worth, and takes two of 3 req/s.
    candidates = [
        workload("a", Phase.AGGREGATED, {"a1": ({"A10Gx1": 1}, 1.0)}, CONFIGS),
        workload("b", Phase.AGGREGATED, {"b1": ({"L4x1": 1}, 3.0)}, CONFIGS),
    ]
    nodes = {(R1, "A10Gx1"): 5, (R1, "L4x1"): 100}
    p = problem(candidates, {"a": 10.0, "b": 10.0}, dict.fromkeys(nodes, 1.0), nodes, configs=CONFIGS)
    columns = make_columns(p)
    answer = largest_share(p, columns, model_blocks(p, columns, 1.0), EXACT, Clock(EXACT))
    assert answer is not None
    assert answer.objective == pytest.approx(-0.5)
    assert -answer.bound == pytest.approx(0.5, abs=5e-3)


def test_where_spot_is_capped_firm_nodes_hold_the_share_down() -> None:
    # By hand: at least half of 10 req/s must be firm; one firm L4 serves 4, on spot there are L4 enough: 8 req/s.
    p = problem(
        [workload("a", Phase.AGGREGATED, {"a1": ({"L4x1": 1}, 4.0)}, ("L4x1",))],
        {"a": 10.0},
        {(R1, "L4x1"): 1.0},
        {(R1, "L4x1"): 1},
        configs=("L4x1",),
    )
    p = replace(
        p,
        pools=(Pool(R1), Pool(R1, Market.SPOT)),
        price_usd_per_h=np.array([[1.0], [0.3]]),
        capacity_nodes=np.array([[1], [9]]),
        demands=tuple(replace(d, max_spot_share=0.5) for d in p.demands),
    )
    columns = make_columns(p)
    models = model_blocks(p, columns, 1.0)
    relaxed = relax(p, columns, models, EXACT)
    assert relaxed.share == pytest.approx(0.8)
    assert relaxed.bound == pytest.approx(0.8, abs=5e-3)
    assert is_ruled_out(p, columns, models, EXACT)
    answer = largest_share(p, columns, models, EXACT, Clock(EXACT))
    assert answer is not None
    assert answer.objective == pytest.approx(-0.8)


def with_nothing_for_b(limit: str, *, is_loss: bool) -> AllocationProblem:
    p = two_models(survives_loss=is_loss)
    if limit == "budget":
        return replace(p, budget_usd_per_h=0.0)
    only = replace(p.demands[1], node_configs=("A10Gx1",))
    return replace(p, demands=(p.demands[0], only), quotas=(SharedQuota("q", R1, {"A10Gx1": 1}, 0),))


@pytest.mark.parametrize("is_loss", [False, True])
@pytest.mark.parametrize("limit", ["budget", "quota"])
def test_where_nothing_may_be_had_of_what_a_model_needs_no_share_is_left(limit: str, is_loss: bool) -> None:
    p = with_nothing_for_b(limit, is_loss=is_loss)
    columns = make_columns(p)
    answer = largest_share(p, columns, model_blocks(p, columns, 1.0), EXACT, Clock(EXACT))
    assert answer is not None
    assert answer.counts is not None
    assert not answer.counts.any()
    assert -answer.bound == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("is_loss", [False, True])
@pytest.mark.parametrize("limit", ["budget", "quota"])
def test_what_others_can_have_they_get(monkeypatch: pytest.MonkeyPatch, limit: str, is_loss: bool) -> None:
    # By hand: without a budget nobody gets anything; where only b can have nothing, a takes ten L4 (and one more for N+1).
    monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    monkeypatch.setattr(solver, "_DIVE_MODELS", 0)
    p = with_nothing_for_b(limit, is_loss=is_loss)
    result = solver.solve_covers(p, EXACT)
    assert check_result(p, result) == []
    assert (result.status, result.theta) == (SolveStatus.SHORTFALL, 0.0)
    assert result.theta_upper == pytest.approx(0.0, abs=1e-9)
    assert result.objective_usd == pytest.approx(0.0 if limit == "budget" else 10.0 + is_loss)


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
        answer = largest_share(p, columns, model_blocks(p, columns, 1.0), EXACT, Clock(EXACT))
    assert answer is not None
    assert answer.objective == 0.0
    assert -answer.bound == pytest.approx(0.0, abs=1e-9)


def test_the_share_of_few_models_is_searched_where_levels_find_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def little(problem: AllocationProblem, columns: Columns, *_: object) -> GoalOutcome:
        return GoalOutcome(MipStatus.LIMIT, np.zeros(len(columns), dtype=np.int64), 0.0, -1.0)

    monkeypatch.setattr(solver, "solve_levels", little)
    monkeypatch.setattr(solver, "_ILP_COLUMNS", 0)
    checked = 0
    for seed in range(0, 40, 2):
        p = short(seed)
        if p is None:
            continue
        truth, answer = solve_ilp(p, EXACT), solver.solve_covers(p, EXACT)
        assert not check_result(p, answer), seed
        assert answer.theta_upper >= truth.theta - 1e-6, seed
        if truth.theta > 0 and can_recreate(model_blocks(p, make_columns(p), 1.0)):
            assert answer.theta >= 0.9 * truth.theta, seed
            checked += 1
    assert checked > 2
