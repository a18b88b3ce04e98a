"""The choice of one offer per model: against every choice there is."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tasks.allocation.clock import Clock
from tasks.allocation.covers import choosing
from tasks.allocation.covers.choosing import choose
from tasks.allocation.covers.pool import Offers
from tasks.allocation.types import AllocationProblem, SharedQuota, SolveLimits

EXACT = SolveLimits(gap=0.0)


MODELS, EACH = 4, 8
CHOICES = np.array(list(itertools.product(range(EACH), repeat=MODELS))) * MODELS + np.arange(MODELS)


def random_choice(seed: int) -> tuple[AllocationProblem, Offers]:
    """Offers of four models that compete for one or two nodes of eight kinds; every third problem has a budget, every fourth
    a quota."""
    rng = np.random.default_rng(seed)
    use = (rng.random((MODELS * EACH, 8)) < 0.35) * rng.integers(1, 3, (MODELS * EACH, 8))
    rent = use @ rng.uniform(1, 3, 8) + 0.1
    problem = AllocationProblem(
        regions=("east", "west"),
        node_configs=("a", "b", "c", "d"),
        price_usd_per_h=np.ones((2, 4)),
        capacity_nodes=rng.integers(1, 4, (2, 4)),
        capacity_basis={},
        candidates=(),
        demands=(),
        budget_usd_per_h=float(rng.uniform(10, 25)) if seed % 3 == 0 else None,
        quotas=(SharedQuota("q", "east", {"a": 1, "b": 2, "c": 1}, int(rng.integers(3, 7))),) if seed % 4 == 0 else (),
    )
    return problem, Offers(np.arange(MODELS * EACH) % MODELS, rent, rent * rng.uniform(1, 1.1, len(rent)), use)


def least_cost(problem: AllocationProblem, offers: Offers) -> float:
    """The least cost over every choice; inf where none fits."""
    use = offers.use[CHOICES].sum(axis=1)
    fits = (use <= problem.capacity_nodes.ravel()).all(axis=1)
    for quota in problem.quotas:
        fits &= use @ np.array([1, 2, 1, 0, 0, 0, 0, 0]) <= quota.limit
    if problem.budget_usd_per_h is not None:
        fits &= offers.rent[CHOICES].sum(axis=1) <= problem.budget_usd_per_h
    return float(offers.cost[CHOICES].sum(axis=1)[fits].min(initial=math.inf))


@pytest.mark.parametrize("first", [300, 6])
def test_the_choice_is_the_cheapest_that_fits(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(choosing, "_FIRST", first)
    none = 0
    for seed in range(120):
        problem, offers = random_choice(seed)
        least = least_cost(problem, offers)
        choice = choose(problem, offers, MODELS, EXACT, Clock(EXACT))
        if math.isinf(least):
            none += 1
            assert choice.rows is None
            assert choice.bound == math.inf
            continue
        assert choice.rows is not None
        assert offers.model[choice.rows].tolist() == [0, 1, 2, 3]
        assert offers.cost[choice.rows].sum() == pytest.approx(least, abs=1e-6)
        assert choice.bound == pytest.approx(least, abs=1e-6)
    assert 10 < none < 80


@pytest.mark.parametrize(("work", "factor"), [(1, 1.02), (10**6, 1.02), (10**6, 0.9)])
def test_the_bound_holds_where_the_search_ends_early(monkeypatch: pytest.MonkeyPatch, work: int, factor: float) -> None:
    """By its work, or at ``enough``: above the optimum the choice is sought, below it need not be."""
    monkeypatch.setattr(choosing, "_WORK", work)
    monkeypatch.setattr(choosing, "_FIRST", 6)
    limits, seen = SolveLimits(gap=1e-3), 0
    for seed in range(60):
        problem, offers = random_choice(seed)
        least = least_cost(problem, offers)
        if math.isinf(least):
            continue
        seen += 1
        choice = choose(problem, offers, MODELS, limits, Clock(limits), enough=factor * least)
        assert choice.bound <= least + 1e-6
        if work > 1 and factor > 1:
            assert choice.rows is not None
            assert offers.cost[choice.rows].sum() <= least * 1.001
        if work > 1:
            assert choice.bound >= min(factor, 0.999) * least - 1e-6
    assert seen > 10


def test_a_model_without_an_offer_leaves_no_choice() -> None:
    problem, offers = random_choice(1)
    choice = choose(problem, offers.take(np.flatnonzero(offers.model < 2)), MODELS, EXACT, Clock(EXACT))
    assert choice.rows is None
    assert choice.bound == math.inf
