"""The reading of HiGHS: every status mapped, and no answer believed that does not hold."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import highspy
import numpy as np
import pulp
import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Phase
from tasks.allocation import highs
from tasks.allocation.checker import check_result
from tasks.allocation.columns import make_columns
from tasks.allocation.formulation import Goal, formulate
from tasks.allocation.highs import MODEL_STATUS, MipStatus, QuietHighs, RawRun, solve_mip
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import Instance, KvLink, SolveLimits, WorkloadCandidates

LIMITS = SolveLimits()
_S = highspy.HighsModelStatus


def small() -> tuple[pulp.LpProblem, pulp.LpVariable]:
    """min x, 2 x >= 1, x whole: the answer is 1, its relaxation 0.5."""
    model = pulp.LpProblem("small", pulp.LpMinimize)
    x = pulp.LpVariable("x", 0, 10, cat=pulp.LpInteger)
    model += x
    model += 2 * x >= 1, "cover"
    return model, x


def stub(
    monkeypatch: pytest.MonkeyPatch, status: highspy.HighsModelStatus, values: list[float], *, has: bool = True
) -> None:
    raw = RawRun(status, has, 0.5, 0.5, np.array(values), np.zeros(len(values)))
    monkeypatch.setattr(highs, "run_highs", lambda *_, **__: raw)


def test_solves_and_bounds() -> None:
    outcome = solve_mip(small()[0], LIMITS)
    assert (outcome.status, outcome.objective, outcome.bound) == (MipStatus.OPTIMAL, 1.0, 1.0)
    assert solve_mip(small()[0], LIMITS, relax=True).bound == pytest.approx(0.5)


def test_infeasible_is_that() -> None:
    model, x = small()
    model += x <= 0, "none"
    assert solve_mip(model, LIMITS).status is MipStatus.INFEASIBLE


@pytest.mark.parametrize("member", sorted(_S.__members__))
def test_every_highs_status_has_a_meaning(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status = _S.__members__[member]
    stub(monkeypatch, status, [1.0])
    outcome = solve_mip(small()[0], LIMITS)
    expected = {
        "kOptimal": MipStatus.OPTIMAL,
        "kInfeasible": MipStatus.INFEASIBLE,
        "kUnboundedOrInfeasible": MipStatus.INFEASIBLE,
        "kTimeLimit": MipStatus.LIMIT,
        "kIterationLimit": MipStatus.LIMIT,
        "kSolutionLimit": MipStatus.LIMIT,
        "kInterrupt": MipStatus.LIMIT,
        "kHighsInterrupt": MipStatus.LIMIT,
        "kObjectiveBound": MipStatus.LIMIT,
        "kObjectiveTarget": MipStatus.LIMIT,
    }.get(member, MipStatus.ERROR)
    assert outcome.status is expected
    assert (outcome.values is None) == (expected in (MipStatus.INFEASIBLE, MipStatus.ERROR))


def test_optimal_with_half_an_instance_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, _S.kOptimal, [0.5])
    outcome = solve_mip(small()[0], LIMITS)
    assert (outcome.status, outcome.values, outcome.objective) == (MipStatus.ERROR, None, math.inf)
    assert "x = 0.5 is not whole" in outcome.note


def test_optimal_that_breaks_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, _S.kOptimal, [0.0])
    assert "row cover is missed" in solve_mip(small()[0], LIMITS).note


@pytest.mark.parametrize("value", [11.0, -1.0, math.nan])
def test_values_outside_their_bounds_are_refused(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, _S.kOptimal, [value])
    assert solve_mip(small()[0], LIMITS).status is MipStatus.ERROR


def test_optimal_without_an_answer_is_an_error_and_a_limit_without_one_is_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub(monkeypatch, _S.kOptimal, [0.0], has=False)
    assert solve_mip(small()[0], LIMITS).status is MipStatus.ERROR
    stub(monkeypatch, _S.kTimeLimit, [0.0], has=False)
    outcome = solve_mip(small()[0], LIMITS)
    assert (outcome.status, outcome.values) == (MipStatus.LIMIT, None)


def test_a_lying_solver_never_becomes_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, ("L4x1", "A10Gx1"))
    p = problem([a], {"a": 5.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 3})
    monkeypatch.setattr(
        highs, "run_highs", lambda *_, **__: RawRun(_S.kOptimal, True, 0.5, 0.5, np.array([0.5, 1.0]), np.zeros(2))
    )
    result = solve_ilp(p, LIMITS)
    # What the last resort makes without it, from whole instances.
    assert [(row.template_id, row.instances) for row in result.instances] == [("t", 1)]
    assert check_result(p, result) == []


def test_the_checker_refuses_half_an_instance() -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, ("L4x1", "A10Gx1"))
    p = problem([a], {"a": 5.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 3})
    good = solve_ilp(p, LIMITS)
    half = replace(good, instances=(Instance(R1, "t", "a-aggregated", 0.5, 0.5, 0.5),))  # type: ignore[arg-type]
    assert check_result(p, good) == []
    assert any("not a whole number" in fault for fault in check_result(p, half))


def test_five_variables_with_large_coefficients_are_feasible() -> None:
    # The shape of a public report: a feasible five-variable problem called infeasible for its big coefficients.
    model = pulp.LpProblem("big", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{i}", 0, 50, cat=pulp.LpInteger) for i in range(5)]
    rate = [1_250_000.0, 830_000.0, 2_100_000.0, 410_000.0, 95_000.0]
    model += pulp.lpSum(c * v for c, v in zip([7, 5, 12, 2.6, 0.7], x, strict=True))
    model += pulp.lpSum(r * v for r, v in zip(rate, x, strict=True)) >= 30_000_000, "demand"
    outcome = solve_mip(model, SolveLimits(gap=0.0))
    assert outcome.status is MipStatus.OPTIMAL
    assert outcome.values is not None
    assert sum(r * outcome.values[f"x{i}"] for i, r in enumerate(rate)) >= 30_000_000


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    solve_mip(small()[0], LIMITS)
    assert capfd.readouterr() == ("", "")
    assert set(MODEL_STATUS.values()) <= set(MipStatus)


def test_the_number_of_threads_may_change_from_run_to_run() -> None:
    for threads in (2, 1, 2):
        solver = QuietHighs(threads)
        solver.addVar(0.0, 1.0)
        solver.changeColCost(0, -1.0)
        solver.run()
        assert MODEL_STATUS[solver.getModelStatus()] is MipStatus.OPTIMAL, threads


def test_many_bounds_of_one_variable_are_not_probed_beyond_the_time() -> None:
    """N+1 bounds what the largest instance serves by a binary per template: probing these took HiGHS minutes of 2 seconds."""
    rng = np.random.default_rng(1)
    configs = tuple(f"L4x{count}" for count in range(1, 9))

    def many(model: str, phase: Phase) -> WorkloadCandidates:
        templates = {}
        for i in range(100):
            nodes = {configs[k]: int(n) for k, n in enumerate(rng.integers(0, 3, 8)) if n}
            rate = 1 + sum(n * int(config[3:]) for config, n in nodes.items()) * float(rng.uniform(0.8, 1.2))
            templates[f"{model}{phase.value}{i}"] = (nodes or {"L4x1": 1}, round(rate, 3))
        return workload(model, phase, templates, configs)

    price = {(r, c): float(rng.uniform(0.8, 1.2)) * (k + 1) for r in (R1, R2) for k, c in enumerate(configs)}
    phases = [many(model, phase) for model in "abc" for phase in (Phase.PREFILL, Phase.DECODE)]
    demand, nodes = dict.fromkeys("abc", 60.0), dict.fromkeys(price, 6)
    p = problem(phases, demand, price, nodes, regions=(R1, R2), configs=configs, budget_usd_per_h=60.0)
    links = (KvLink(R1, R2, 0.0), KvLink(R2, R1, 0.0))
    p = replace(
        p, demands=tuple(replace(d, survives_loss=True, kv_gb_per_request=0.01) for d in p.demands), links=links
    )
    form = formulate(p, make_columns(p), Goal.SHORTAGE)
    began = time.process_time()
    outcome = solve_mip(form.problem, LIMITS, time_s=2.0, most_looks=10)
    assert time.process_time() - began < 10
    assert outcome.status is MipStatus.LIMIT
    assert outcome.bound > 1.0  # of the three weights' sum; the relaxation is solved
