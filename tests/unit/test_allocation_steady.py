"""Hysteresis by hand: one model, two kinds of machine; the running plan stays, or gives way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from allocation_cases import R1, problem, workload

from catalogs.types import Market, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.steady import Regret, as_result, steady_choice
from tasks.allocation.types import AllocationProblem, SolveLimits, SolveStatus

LIMITS = SolveLimits(gap=1e-6)
ON_DEMAND = Market.ON_DEMAND


def case(
    demand: float = 10.0,
    l4: float = 1.0,
    a10: float = 1.2,
    capacity: int = 20,
    running: Mapping[str, int] | None = None,
) -> AllocationProblem:
    """A request takes a token; an L4x1 serves 5 req/s, an A10Gx1 6: ``l4`` and ``a10`` USD/h."""
    one = workload("m", Phase.AGGREGATED, {"l4": ({"L4x1": 1}, 5.0), "a10": ({"A10Gx1": 1}, 6.0)}, ("L4x1", "A10Gx1"))
    return problem(
        [one],
        {"m": demand},
        {(R1, "L4x1"): l4, (R1, "A10Gx1"): a10},
        {(R1, "L4x1"): capacity, (R1, "A10Gx1"): capacity},
        init_share=0.1,
        running={(R1, name): n for name, n in (running or {"l4": 2}).items()},
    )


def choose(given: AllocationProblem, percent: float, runs: Mapping[str, int] | None = None) -> dict[str, int] | None:
    """What stays, as instances by template; None = it gives way."""
    decision = {(R1, ON_DEMAND, name, "m-aggregated"): n for name, n in (runs or {"l4": 2}).items()}
    kept = steady_choice(given, decision, solve_covers(given, LIMITS), percent)
    if kept is None:
        return None
    assert check_result(given, kept) == []
    return {row.template_id: row.instances for row in kept.instances}


@pytest.mark.parametrize(
    ("given", "percent", "stays"),
    [
        # Two L4 cost 2.00; two A10G at 0.88 cost 1.76 and 0.176 to start: 1.936, which saves 3.2 % of 2.00.
        (case(a10=0.88), 3.3, True),
        (case(a10=0.88), 3.1, False),
        (case(a10=0.95), 0.0, True),  # 1.90 + 0.19 saves nothing
        (case(demand=10.1), 50.0, False),  # the old one serves 10 req/s
        (case(demand=9.0), 0.0, True),
        (case(demand=5.0), 49.0, False),  # one would do: half is saved
        (case(demand=5.0), 50.0, True),
        (case(demand=0.0), 100.0, False),  # released
        (case(capacity=1), 100.0, False),  # one of the two machines is gone
        (case(l4=float("nan")), 100.0, False),  # not sold any more
    ],
)
def test_it_stays_or_gives_way(given: AllocationProblem, percent: float, *, stays: bool) -> None:
    assert choose(given, percent) == ({"l4": 2} if stays else None)


def test_a_template_that_is_gone_gives_way() -> None:
    assert choose(case(), 100.0, {"l4": 1, "other": 1}) is None


def test_the_bound_is_the_solvers_and_the_note_says_what_is_forgone() -> None:
    given = case(a10=0.88)
    best = solve_covers(given, LIMITS)
    kept = steady_choice(given, {(R1, ON_DEMAND, "l4", "m-aggregated"): 2}, best, 5.0)
    assert kept is not None
    assert kept.objective_usd == pytest.approx(2.0)
    assert kept.lower_bound_usd == pytest.approx(1.936, rel=1e-5)
    assert kept.gap == pytest.approx(0.032, rel=1e-3)
    assert kept.status is SolveStatus.GAP
    assert kept.note.startswith("the plan stays: another would save 3.20 %")


def test_what_does_not_run_yet_is_charged_for_its_start() -> None:
    given = case(running={"l4": 1})
    kept = as_result(given, {(R1, ON_DEMAND, "l4", "m-aggregated"): 2}, solve_covers(given, LIMITS))
    assert kept is not None
    assert (kept.cost_usd_per_h, kept.init_usd, kept.instances[0].new_instances) == (2.0, pytest.approx(0.1), 1)
    short = replace(solve_covers(given, LIMITS), status=SolveStatus.SHORTFALL)
    assert steady_choice(given, {(R1, ON_DEMAND, "l4", "m-aggregated"): 2}, short, 100.0) is None


@pytest.mark.parametrize(
    ("regret", "stays"),
    [
        # Two A10G at 0.88 cost 1.76 and save 0.24 USD/h of rent; to start them takes 0.1 h of that price: 0.176 USD.
        (Regret(0.0, window_h=0.7, init_h=0.1), True),  # 0.168 in the window ahead
        (Regret(0.0, window_h=0.74, init_h=0.1), False),
        (Regret(0.15, window_h=0.1, init_h=0.1), True),  # 0.174
        (Regret(0.153, window_h=0.1, init_h=0.1), False),
        (Regret(0.0, window_h=0.1, init_h=0.0), False),  # starts cost nothing
    ],
)
def test_a_change_waits_until_staying_has_cost_its_start_ups(regret: Regret, *, stays: bool) -> None:
    given = case(a10=0.88)
    kept = steady_choice(given, {(R1, ON_DEMAND, "l4", "m-aggregated"): 2}, solve_covers(given, LIMITS), 1.0, regret)
    assert (kept is not None) == stays
    if kept is not None:
        assert kept.note == "the plan stays: another would save 3.20 %, and has not saved its start-ups yet"


def test_what_only_ends_machines_does_not_wait_and_what_fails_does_not_stay() -> None:
    waits = Regret(0.0, window_h=0.1, init_h=0.1)
    for given in (case(demand=5.0), case(demand=10.1)):
        best = solve_covers(given, LIMITS)
        assert steady_choice(given, {(R1, ON_DEMAND, "l4", "m-aggregated"): 2}, best, 1.0, waits) is None
