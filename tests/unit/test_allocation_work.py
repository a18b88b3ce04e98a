"""What ends a solve: the gap or the work, which are the same every time; the clock only as a guard, and then it says so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pulp
import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Phase
from tasks.allocation import clock as clock_module
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.covers import closing, listing, solver
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.ilp import solve_ilp, status_of
from tasks.allocation.types import AllocationProblem, AllocationResult, Shortage, SolveLimits, SolveStatus
from tasks.allocation.work import looks

CONFIGS = ("L4x1", "L4x4", "A10Gx1", "A10Gx4", "L40Sx1", "L40Sx4")
SPEED = (1.0, 3.3, 1.3, 4.4, 2.6, 9.0)
PRICE = (0.8, 3.6, 1.0, 4.4, 1.9, 7.9)
LIMITS = SolveLimits(gap=1e-3, time_s=1000.0)


def scarce(seed: int, nodes: int, shortage: Shortage = Shortage.UNIFORM) -> AllocationProblem:
    """Three models of two phases, 40 templates each on six configurations in two regions that have few of each."""
    rng = np.random.default_rng(seed)
    candidates, demand = [], {}
    for model in ("a", "b", "c"):
        demand[model] = float(rng.uniform(8, 14))
        for phase in (Phase.PREFILL, Phase.DECODE):
            templates = {}
            for i in range(40):
                counts = rng.multinomial(int(rng.integers(1, 5)), rng.dirichlet(np.ones(len(CONFIGS)) / 2))
                rate = float(counts @ np.array(SPEED)) * rng.uniform(0.6, 1.0)
                templates[f"{model}{phase.value}{i}"] = (dict(zip(CONFIGS, counts.tolist(), strict=True)), rate)
            candidates.append(workload(model, phase, templates, CONFIGS, headroom=0.9))
    price = {(r, c): p * rng.uniform(0.9, 1.2) for r in (R1, R2) for c, p in zip(CONFIGS, PRICE, strict=True)}
    capacity = {key: int(rng.integers(0, nodes)) for key in price}
    return problem(
        candidates, demand, price, capacity, regions=(R1, R2), configs=CONFIGS, init_share=0.1, shortage=shortage
    )


class FastClock:
    """``time`` with a performance counter that runs so many times faster."""

    def __init__(self, factor: float) -> None:
        import time

        self._counter, self._factor = time.perf_counter, factor

    def perf_counter(self) -> float:
        """Seconds."""
        return self._counter() * self._factor


def decision(result: AllocationResult) -> tuple[object, ...]:
    """All of an answer but the time it took."""
    return (replace(result, solve_s=0.0), repr(result.lower_bound_usd), repr(result.theta_upper))


@pytest.mark.parametrize(
    ("nodes", "shortage", "by_levels"),
    [(8, Shortage.UNIFORM, False), (2, Shortage.UNIFORM, True), (2, Shortage.PRIORITY, False)],
)
def test_a_slow_machine_decides_the_same(
    nodes: int, shortage: Shortage, by_levels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that runs twenty times faster every step has that much less time, and still none is cut."""
    if by_levels:
        monkeypatch.setattr(solver, "_ILP_COLUMNS", -1)
    monkeypatch.setattr(closing, "_WORK", 30)  # so that some are ended by the work
    p = scarce(1, nodes, shortage)
    solve_covers(p, LIMITS)  # loads or compiles its loops, which is no part of the times compared
    first = solve_covers(p, LIMITS)
    monkeypatch.setattr(clock_module, "time", FastClock(20.0))
    second = solve_covers(p, LIMITS)
    assert check_result(p, first) == []
    assert second.solve_s > 5 * first.solve_s  # the clock did run faster
    assert decision(first) == decision(second)
    assert first.status is not SolveStatus.TIME_LIMIT


def test_the_work_ends_a_solve_and_is_not_called_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "_WORK", 1)
    monkeypatch.setattr(listing, "_MOST_COVERS", 0)  # listed, its covers would be few
    p = scarce(2, 6)
    result = solve_covers(p, replace(LIMITS, gap=0.0))
    assert check_result(p, result) == []
    assert result.gap > 1e-3
    assert result.status is SolveStatus.GAP
    other = solve_ilp(p, replace(LIMITS, gap=0.05))  # costs no less than the optimum
    assert result.lower_bound_usd <= other.objective_usd * (1 + 1e-9)


def test_a_clock_that_cuts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    p = scarce(2, 6)
    monkeypatch.setattr(clock_module, "time", FastClock(1e5))
    result = solve_covers(p, replace(LIMITS, gap=0.0))
    assert check_result(p, result) == []
    assert result.gap > 1e-6
    assert result.status is SolveStatus.TIME_LIMIT
    short = solve_covers(scarce(6, 2), LIMITS)
    assert short.status is SolveStatus.SHORTFALL
    assert "the time limit ended the search" in short.note


def test_status_says_what_ended_the_search() -> None:
    assert status_of(0.0, is_cut=True) is SolveStatus.OPTIMAL
    assert status_of(0.3, is_cut=False) is SolveStatus.GAP
    assert status_of(1e-5, is_cut=True) is SolveStatus.TIME_LIMIT


def knapsack(size: int) -> pulp.LpProblem:
    """A market split with no easy answer: two equations over 0/1 variables, their distance to be small."""
    rng = np.random.default_rng(3)
    model = pulp.LpProblem("split", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{i}", 0, 1, cat=pulp.LpInteger) for i in range(size)]
    off = []
    for row in range(4):
        weights = rng.integers(1, 100, size)
        above, below = pulp.LpVariable(f"a{row}", 0), pulp.LpVariable(f"b{row}", 0)
        off += [above, below]
        model += pulp.lpSum(int(w) * v for w, v in zip(weights, x, strict=True)) + above - below == int(
            weights.sum() // 2
        )
    model.setObjective(pulp.lpSum(off))
    return model


def test_looks_limit_an_ilp_alike_every_time() -> None:
    limits = SolveLimits(gap=0.0, time_s=60.0)
    clock = Clock(limits)
    few = [solve_mip(knapsack(30), limits, most_looks=6, clock=clock) for _ in range(2)]
    assert few[0] == few[1]
    assert few[0].status is MipStatus.LIMIT
    assert not clock.has_cut
    more = solve_mip(knapsack(30), limits, most_looks=30, clock=clock)
    assert more.objective <= few[0].objective
    assert more.bound >= few[0].bound
    cut = solve_mip(knapsack(40), SolveLimits(gap=0.0), time_s=0.1, clock=clock)
    assert (cut.status, clock.has_cut) == (MipStatus.LIMIT, True)


def test_looks_are_fewer_where_each_takes_longer() -> None:
    assert looks(10, 300) == looks(800, 300) == 300
    assert looks(1600, 300) == 75
    assert looks(10**6, 300) == 1


def test_a_clock_is_past_only_once_its_share_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr(clock_module, "time", now)
    clock = Clock(SolveLimits(time_s=10.0))
    now.perf_counter = lambda: 5.0
    assert not clock.is_past(0.5)
    assert not clock.has_cut
    now.perf_counter = lambda: 5.1
    assert clock.is_past(0.5)
    assert clock.has_cut
    assert clock.left() == pytest.approx(4.9)
