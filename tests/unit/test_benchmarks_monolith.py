"""The monolith that the covers solver is compared with: its program against the reference ILP, and how it may end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import highspy
import pytest
from allocation_cases import R1, problem, random_problem, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.columns import make_columns
from tasks.allocation.formulation import active_demands
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, SharedQuota, Shortage, SolveLimits, SolveStatus

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import monolith

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "A10Gx1")


def two_models(capacity: int) -> AllocationProblem:
    """a wants 3 of an L4 each, b 2: five nodes at 1 USD/h serve all of both, with start-up 5.5 USD."""
    return problem(
        [
            workload("a", Phase.AGGREGATED, {"a0": ({"L4x1": 1}, 1.0)}, CONFIGS),
            workload("b", Phase.AGGREGATED, {"b0": ({"L4x1": 1}, 1.0), "b1": ({"L4x1": 2}, 1.5)}, CONFIGS),
        ],
        {"a": 3.0, "b": 2.0},
        {(R1, "L4x1"): 1.0},
        {(R1, "L4x1"): capacity},
        configs=CONFIGS,
        init_share=0.1,
    )


@pytest.mark.parametrize("seed", range(80))
def test_its_optimum_is_that_of_the_reference_ilp(seed: int) -> None:
    p = replace(random_problem(seed), budget_usd_per_h=None, shortage=Shortage.UNIFORM)
    if not active_demands(p):
        pytest.skip("nothing is wanted")
    truth = solve_ilp(p, EXACT)
    is_short = truth.status is SolveStatus.SHORTFALL
    columns = make_columns(p, prune=False)
    highs = monolith.load(monolith.formulate_monolith(p, columns, is_short=False), EXACT)
    highs.run()
    if not is_short:
        assert highs.getInfo().objective_function_value == pytest.approx(truth.objective_usd, abs=1e-6)
        return
    assert highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible
    highs = monolith.load(monolith.formulate_monolith(p, columns, is_short=True), EXACT)
    highs.run()
    assert -highs.getInfo().objective_function_value == pytest.approx(truth.theta, abs=1e-6)


def test_in_a_process_of_its_own_with_all_demand_met() -> None:
    p = two_models(capacity=5)
    found = monolith.solve_monolith(p, EXACT, is_short=False)
    assert (found.status, found.columns, found.note) == ("optimal", 3, "")
    assert found.plan is not None
    assert found.plan.objective_usd == pytest.approx(5.5)
    assert check_result(p, found.plan) == []
    assert {(row.template_id, row.instances) for row in found.plan.instances} == {("a0", 3), ("b0", 2)}
    assert found.gap(found.bound) == pytest.approx(0.0, abs=1e-6)
    assert found.gap(4.4) == pytest.approx(0.2)


def test_in_a_process_of_its_own_in_shortage() -> None:
    """Of three nodes two for a serve 2/3 of it and one half of b: the common share is 1/2."""
    found = monolith.solve_monolith(two_models(capacity=3), EXACT, is_short=True)
    assert found.plan is not None
    assert (found.status, found.plan.status) == ("optimal", SolveStatus.SHORTFALL)
    assert found.plan.theta == pytest.approx(0.5)
    assert found.bound == pytest.approx(0.5)
    assert found.gap(0.625) == pytest.approx(0.2)


def test_a_plan_that_serves_nothing_of_a_model_is_none() -> None:
    found = monolith.solve_monolith(two_models(capacity=0), EXACT, is_short=True)
    assert (found.plan, found.gap(1.0)) == (None, 1.0)


def test_what_takes_too_much_memory_or_time_brings_nobody_down(monkeypatch: pytest.MonkeyPatch) -> None:
    p = two_models(capacity=5)
    small = monolith.solve_monolith(p, EXACT, is_short=False, most_gib=0.001)
    assert (small.status, small.plan, small.bound) == ("out of memory", None, 0.0)
    monkeypatch.setattr(monolith, "_SETUP_S", 0.01)
    late = monolith.solve_monolith(p, EXACT, is_short=False)
    assert (late.status, late.plan, late.gap(5.0)) == ("killed", None, 1.0)


def test_rules_that_it_does_not_have_are_refused() -> None:
    p = replace(two_models(capacity=5), quotas=(SharedQuota("G vcpu", R1, {"L4x1": 4}, 8),), budget_usd_per_h=3.0)
    with pytest.raises(ValueError, match="the paper's program has no quotas, no a budget"):
        monolith.formulate_monolith(p, make_columns(p, prune=False), is_short=False)


def test_a_plan_that_does_not_hold_is_named_so() -> None:
    found = monolith.checked_plan(two_models(capacity=4), [(0, 0, 0, 3), (0, 1, 0, 2)], 0.0, is_short=False)
    assert found == (None, "5 nodes L4x1 in aws/us-east-2, 4 can be had")
