"""An exact search where few covers per model can be in a better plan: list them, choose among them, widen the lists.

A plan that costs less than bound + excess takes covers of at most ``excess`` above their models' least (at the duals'
prices). So the best choice among all of these is optimal unless it costs more than bound + excess, and that is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.choosing import choose
from tasks.allocation.covers.enumeration import ModelTables, Sets, TooManyError, can_list, list_covers, model_tables
from tasks.allocation.covers.enumeration_kernels import least_beside
from tasks.allocation.covers.fixing import bounds_if_used
from tasks.allocation.covers.generation import dual_value
from tasks.allocation.covers.master import Duals
from tasks.allocation.covers.pool import Offers
from tasks.allocation.covers.pricing import ModelBlocks, counts_of, dual_prices, own_prices
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import objective_usd, relative_gap
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]
_SIZE = 1024
_FIRST, _WIDER = 2.5e-3, 2.0  # the first excess, of the bound, and what it grows by
_ROUNDS = 10
_FILTERS = 4
_HALVINGS = 4
_NEARLY = 0.99  # of the gap: rounding must not leave it open
_MOST_COVERS, _MOST_PARTS = 40_000, 60_000


@dataclass(frozen=True, slots=True)
class Lister:
    """What listing needs to know: models with their tables and least costs ``parts`` at the duals' ``prices``, prices without
    duals, per column what a plan with it costs at least, and the ``bound``."""

    problem: AllocationProblem
    models: Sequence[ModelBlocks]
    tables: list[ModelTables]
    parts: list[float]
    prices: NodePrices
    true_prices: NodePrices
    if_used: Floats
    bound: float

    def covers(self, m: int, excess: float) -> Sets:
        """Model m's covers of at most ``excess`` above its least. Raises TooManyError."""
        capacity = self.problem.capacity_nodes.ravel().astype(np.int64)
        usable = self.if_used <= self.bound + excess + 1e-9 * max(1.0, abs(self.bound))
        limit = self.parts[m] + excess
        limit += 1e-9 * max(1.0, abs(limit))
        return list_covers(
            self.models[m], self.tables[m], self.prices, self.true_prices, capacity, usable, limit, _MOST_PARTS
        )


def choose_listed(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    duals: Duals,
    bound: float,
    parts: list[float],
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """``best``, or better, with its bound, from lists of covers as wide as the limits allow.

    ``bound`` and ``parts``: of the models' least costs at ``duals``, see :func:`joint_bound`. ``best`` as it is where covers
    cannot be listed.
    """
    if not all(can_list(model) for model in models):
        return best
    prices = dual_prices(problem, duals.supply, duals.budget, duals.quota)
    lister = Lister(
        problem,
        models,
        [model_tables(model, prices, _SIZE) for model in models],
        parts,
        prices,
        own_prices(problem),
        bounds_if_used(columns, models, prices, dual_value(problem, duals), _SIZE),
        bound,
    )
    none = np.zeros(len(models))
    search = Search(lister, none, none.copy(), none > 0, limits, clock)
    excess = np.full(len(models), _FIRST * abs(bound))
    for _ in range(_ROUNDS):
        if best.counts is not None:
            room = best.objective * (1 - _NEARLY * limits.gap) - bound
            excess = np.minimum(excess, np.maximum(room - search.beside, search.listed))
        if (excess <= search.listed * (1 + 1e-6)).all() or clock.is_past():
            break
        lists = search.lists(excess, best)
        if lists is None:
            break
        best, least = _choose(problem, columns, lists, best, limits, clock)
        others = bound + float((search.listed + search.beside).min())
        best = replace(best, bound=max(best.bound, min(others, least, best.objective)))
        if best.counts is not None and relative_gap(best.objective, best.bound) <= limits.gap:
            return replace(best, status=MipStatus.OPTIMAL)
        if least < others:
            break  # the choice itself is not closed: wider lists would not help
        if best.counts is not None:
            search.look_beside(lists)
        excess = search.listed * _WIDER
    return best


@dataclass(slots=True)
class Search:
    """How far each model is listed (its excess), and ``beside``: the least excess of all other models together, by model;
    ``settled``: where wider lists would not raise that."""

    lister: Lister
    listed: Floats
    beside: Floats
    settled: NDArray[np.bool_]
    limits: SolveLimits
    clock: Clock

    def lists(self, excess: Floats, best: GoalOutcome) -> list[Sets] | None:
        """Each model's covers up to its ``excess``, or less where they are too many; None where none gets further."""
        found, reached = [], excess.copy()
        for m in range(len(self.lister.models)):
            for _ in range(_HALVINGS):
                try:
                    found.append(self.lister.covers(m, float(reached[m])))
                    break
                except TooManyError:
                    reached[m] = (self.listed[m] + reached[m]) / 2
            else:
                return None
        self.listed = reached
        room = best.objective - self.lister.bound if best.counts is not None else math.inf
        lists = _fitting(self.lister, found, reached, room)
        return lists if sum(map(len, lists)) <= _MOST_COVERS else None

    def look_beside(self, lists: list[Sets]) -> None:
        """What all models but one cost at least above their bound, since they must fit together: so much less is left to
        that one. Where they cost less than any cover not listed, no list changes it."""
        for m in np.flatnonzero(~self.settled).tolist() if len(lists) > 1 else ():
            rest = [sets for other, sets in enumerate(lists) if other != m]
            parts = [part for other, part in enumerate(self.lister.parts) if other != m]
            above = np.concatenate([sets.cost - part for sets, part in zip(rest, parts, strict=True)])
            offers = _offers(self.lister.problem, rest, np.maximum(above, 0.0))
            others = float(np.delete(self.listed, m).min())
            choice = choose(self.lister.problem, offers, len(rest), self.limits, self.clock, others)
            self.beside[m] = max(self.beside[m], min(choice.bound, others))
            self.settled[m] = choice.rows is not None and choice.bound < others


def _offers(problem: AllocationProblem, lists: list[Sets], cost: Floats) -> Offers:
    use = np.concatenate([sets.use for sets in lists])
    return Offers(
        np.repeat(np.arange(len(lists)), [len(sets) for sets in lists]),
        use @ np.nan_to_num(problem.price_usd_per_h).ravel(),
        cost,
        use,
    )


def _fitting(lister: Lister, lists: list[Sets], listed: Floats, room: float) -> list[Sets]:
    """Without covers that no plan within ``room`` of the bound takes: their excess and the least of every other model's that
    fit beside them, at most what is ``listed``, exceed it."""
    capacity = lister.problem.capacity_nodes.ravel().astype(np.int64)
    excess = [np.maximum(sets.cost - least, 0.0) for sets, least in zip(lists, lister.parts, strict=True)]
    for _ in range(_FILTERS):
        before = sum(map(len, lists))
        for m in range(len(lists)):
            total = excess[m].copy()
            for other in range(len(lists)):
                if other != m:
                    total += least_beside(
                        lists[m].use, excess[m], lists[other].use, excess[other], capacity, float(listed[other])
                    )
            rows = np.flatnonzero(total <= room)
            lists[m], excess[m] = lists[m].take(rows), excess[m][rows]
        if sum(map(len, lists)) == before:
            break
    return lists


def _choose(
    problem: AllocationProblem,
    columns: Columns,
    lists: list[Sets],
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> tuple[GoalOutcome, float]:
    """``best`` or the better choice among ``lists``, and the bound for such choices."""
    offers = _offers(problem, lists, np.concatenate([sets.price for sets in lists]))
    first = np.cumsum([0, *(len(sets) for sets in lists)])
    enough = best.objective * (1 - _NEARLY * limits.gap)
    choice = choose(problem, offers, len(lists), limits, clock, enough)
    if choice.rows is None:
        return best, choice.bound
    taken = [(int(offers.model[j]), j) for j in choice.rows.tolist()]
    counts = counts_of(columns, (lists[m].cover(j - int(first[m])) for m, j in taken))
    value = objective_usd(problem, columns, counts)
    if best.counts is None or value < best.objective:
        best = GoalOutcome(MipStatus.LIMIT, counts, value, min(best.bound, value))
    return best, choice.bound
