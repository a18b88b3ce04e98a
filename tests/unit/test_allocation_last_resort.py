"""Every instance gets an answer: with every ILP failing, each shortage still ends in a checked plan and a valid bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, enumerate_plans, problem, ruled_problem, workload

from catalogs.types import Phase
from tasks.allocation import ilp
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers import closing, levels, pool, solver
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.formulation import Goal, Target
from tasks.allocation.highs import MipOutcome, MipStatus
from tasks.allocation.last_resort import some_plan
from tasks.allocation.shortfalls import explain_shortfalls
from tasks.allocation.types import AllocationProblem, Shortage, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "A10Gx1")


def scarce(seed: int) -> AllocationProblem:
    """A small problem with all rules, three times its demand, and the shortage rule by turns."""
    p = ruled_problem(seed)
    demands = tuple(replace(d, planned_req_per_s=3 * d.planned_req_per_s) for d in p.demands)
    p = replace(p, demands=demands, shortage=Shortage.PRIORITY if seed % 2 else Shortage.UNIFORM)
    return replace(p, capacity_nodes=np.zeros_like(p.capacity_nodes)) if seed % 11 == 0 else p


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Every ILP fails: as if its work were spent, or with an error."""

    def fail(*_args: object, **_more: object) -> MipOutcome:
        return MipOutcome(request.param, None, math.inf, -math.inf, "failed on purpose")

    for module in (ilp, closing, pool, levels):
        monkeypatch.setattr(module, "solve_mip", fail)


@pytest.mark.parametrize("failing", [MipStatus.LIMIT, MipStatus.ERROR], indirect=True)
@pytest.mark.parametrize("by_levels", [False, True])
@pytest.mark.usefixtures("failing")
def test_without_any_ilp_there_is_a_plan(monkeypatch: pytest.MonkeyPatch, by_levels: bool) -> None:
    if by_levels:
        monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    served = 0
    for seed in range(40):
        p = scarce(seed)
        result = solve_covers(p, EXACT)
        assert check_result(p, result) == [], seed
        truth = enumerate_plans(p, limit=50_000)
        if truth is not None and not math.isnan(truth.theta):
            assert result.theta - 1e-6 <= truth.theta <= result.theta_upper + 1e-6, seed
        served += bool(result.instances)
    assert served > 10


def test_the_quick_plan_takes_what_there_is_by_weight() -> None:
    # Five nodes of 10 req/s; a (weight 3) wants 30, b 40: no common share of both above 1/2, three nodes for a come first.
    a = workload("a", Phase.AGGREGATED, {"ta": ({"L4x1": 1}, 10)}, CONFIGS)
    b = workload("b", Phase.AGGREGATED, {"tb": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a, b], {"a": 30.0, "b": 40.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 5}, weight={"a": 3.0})
    columns = ilp.make_columns(p)
    assert some_plan(p, columns, is_common=False).tolist() == [3, 2]
    # At a half: two (15 of 20) and two (20 of 20). At 0.6 two and three: 18 of 20 and 24 of 30; at 0.7 three and three.
    assert some_plan(p, columns, is_common=True).tolist() == [2, 3]


def test_a_shortfall_names_the_rule_that_holds_it_down() -> None:
    # One node: it would serve all, but not without itself.
    a = workload("a", Phase.AGGREGATED, {"ta": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 10.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 1})
    p = replace(p, demands=(replace(p.demands[0], survives_loss=True),))
    result = solve_covers(p, EXACT)
    assert (result.status, result.theta, result.theta_upper) == (SolveStatus.SHORTFALL, 0.0, 0.0)
    (row,) = explain_shortfalls(p, result, EXACT)
    assert row.rules == ("n_plus_one",)
    assert row.binding_text() == "rule n_plus_one"
    assert row.extra_text() == f"+1 L4x1 in {R1} (+1.00 USD/h)"


@pytest.mark.parametrize("shortage", list(Shortage))
def test_a_search_ended_before_it_served_anybody_leaves_a_quick_plan(shortage: Shortage) -> None:
    # By hand: 10 req/s wanted, six nodes of 1 req/s. The search comes no further than renting nothing. A quick plan of half takes
    # five; of 0.6, with rates rounded down to a grid, seven.
    candidates = [workload("m", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 1.0)}, CONFIGS)]
    p = problem(candidates, {"m": 10.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 6}, shortage=shortage)

    def ended(
        problem: AllocationProblem,
        columns: Columns,
        goal: Goal,
        target: Target,
        limits: SolveLimits,
        clock: Clock,
        start: np.ndarray | None = None,
    ) -> ilp.GoalOutcome:
        assert clock.is_past()
        if goal is Goal.COST:
            return ilp.GoalOutcome(MipStatus.LIMIT, None, math.inf, 0.0)
        worst = 0.0 if goal is Goal.THETA else 1.0
        return ilp.GoalOutcome(MipStatus.LIMIT, np.zeros(len(columns), dtype=np.int64), worst, worst - 1.0)

    result = ilp.allocate(p, SolveLimits(time_s=-1.0), ended, allow_shortage=True)
    assert check_result(p, result) == []
    assert result.theta == pytest.approx(0.5)
    assert result.theta_upper == 1.0
