"""A stop from outside ends a search soon, with the best plan so far; the command line shows it and publishes nothing."""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import replace

import pytest
from allocation_cases import R1, problem, workload
from test_allocation_work import LIMITS, knapsack, scarce

from catalogs.types import Phase
from flows.anytime import Search, SearchEndedError, StoppedError
from flows.interrupt import interrupt_sets
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.covers import generation
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.in_use import with_start_up
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveStatus


def stopped() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_a_stop_asked_for_at_once_still_gives_a_checked_plan_and_a_valid_bound() -> None:
    p = scarce(1, 400)
    result = solve_covers(p, replace(LIMITS, gap=0.0, stop=stopped()))
    assert result.instances
    assert check_result(p, result) == []
    assert result.status in (SolveStatus.TIME_LIMIT, SolveStatus.OPTIMAL)
    assert result.lower_bound_usd <= solve_ilp(p, replace(LIMITS, gap=0.02)).objective_usd


def test_a_stop_before_there_is_a_plan_says_so() -> None:
    result = solve_covers(scarce(1, 6), replace(LIMITS, stop=stopped()))
    assert (result.status, result.instances) == (SolveStatus.TIME_LIMIT, ())
    assert math.isinf(result.objective_usd)
    assert "stopped before a plan was found" in result.note


def test_a_signal_ends_an_ilp_that_would_go_on() -> None:
    stop = threading.Event()
    limits = replace(LIMITS, gap=0.0, stop=stop)
    clock = Clock(limits)
    with interrupt_sets(stop, signal.SIGTERM):
        timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGTERM,))
        timer.start()
        outcome = solve_mip(knapsack(45), limits, time_s=60.0, clock=clock)
        timer.join()
    assert outcome.status is MipStatus.LIMIT
    assert clock.has_cut
    assert clock.spent() < 30


def test_generation_ends_after_the_round_in_which_the_stop_came(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, rounds = threading.Event(), []
    solve = generation.Master.solve

    def stop_in_round_two(master: generation.Master) -> object:
        rounds.append(1)
        if len(rounds) == 2:
            stop.set()
        return solve(master)

    monkeypatch.setattr(generation.Master, "solve", stop_in_round_two)
    p = scarce(1, 40)
    result = solve_covers(p, replace(LIMITS, gap=0.0, stop=stop))
    assert len(rounds) == 2
    assert check_result(p, result) == []


def test_both_signals_set_the_event_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    event = threading.Event()
    with interrupt_sets(event, signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
        assert event.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def answer(p: AllocationProblem, cost: float) -> AllocationResult:
    return AllocationResult(SolveStatus.GAP, (), cost, 0.0, cost, 0.0, 1.0, 1.0, 1.0, 0.0)


def test_a_search_over_several_problems_ends_with_its_last_answer() -> None:
    one, two = scarce(1, 3), scarce(2, 3)
    stop = threading.Event()
    search = Search(lambda p: answer(p, 1.0 if p is one else 2.0), stop)
    assert search(one).cost_usd_per_h == 1.0
    stop.set()
    with pytest.raises(SearchEndedError) as ended:
        search(two)
    assert (ended.value.problem, ended.value.result.cost_usd_per_h) == (one, 1.0)


def test_a_search_without_an_answer_passes_on_that_there_is_none() -> None:
    def none(p: AllocationProblem) -> AllocationResult:
        raise StoppedError

    with pytest.raises(StoppedError, match="before a plan was found"):
        Search(none, stopped())(scarce(1, 3))
    assert StoppedError.exit_code == 130


def test_what_a_stopped_search_has_counts_beside_what_runs() -> None:
    """Three at 1 USD/h, 0.1 of an hour to start. One runs: 0.2 for the others, and no plan starts less than 3 - 1 USD/h. The
    others of nine that run are of another template: at most they could stay, then nothing is known of what starts."""
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10), "u": ({"A10Gx1": 1}, 10)}, ("L4x1", "A10Gx1"))
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 2.0}
    p = problem([a], {"a": 30.0}, price, dict.fromkeys(price, 9), init_share=0.1, running={(R1, "t"): 1})
    found = solve_covers(replace(p, init_share=0.0, running={}), LIMITS)
    assert check_result(p, found) != []
    for running, init, bound in (
        ({}, 0.3, 3.3),
        ({(R1, "t"): 1}, 0.2, 3.2),
        ({(R1, "t"): 3}, 0.0, 3.0),
        ({(R1, "t"): 1, (R1, "u"): 8, ("gone", "t"): 5, (R1, "gone"): 5}, 0.2, 3.0),
    ):
        now = replace(p, running=running)
        told = with_start_up(now, found)
        assert check_result(now, told) == []
        assert (told.init_usd, told.lower_bound_usd) == (pytest.approx(init), pytest.approx(bound))
        assert told.lower_bound_usd <= solve_ilp(now, LIMITS).objective_usd + 1e-9
        assert told.status is (SolveStatus.TIME_LIMIT if 3 + init > bound + 0.01 else SolveStatus.OPTIMAL)
