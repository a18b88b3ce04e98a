"""Shortages by weight in problems too large for the narrowed ILP: the least weighted missing share, then the least cost at it.

A relaxation prices nodes; its mix, rounded down, is searched by ruin and recreate, where a model may be served in part. Blocks
are of the whole demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers.packing import Packing, packing
from tasks.allocation.covers.parts import Parts, mixed_parts
from tasks.allocation.covers.pricing import dual_prices, own_prices, side_by_side
from tasks.allocation.covers.recreate import Found, recreate
from tasks.allocation.covers.rounding import is_within, whole
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.covers.task import Task
from tasks.allocation.formulation import Goal
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import objective_usd, weighted_shortage

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_HALVINGS = 56  # of a search
_HOT, _WARM, _COLD = (0.1, 0.01), (0.1, 0.0025), (0.025, 0.0025)  # for less shortage, for that at cost, for less cost
_FEW, _TRIES = 8, 4  # of so few models so many searches are made
_RENT = 1e-4  # what all rent weighs beside all weights, where the least shortage is sought
# What missing share costs, times what the relaxation pays for it: where less of it is sought, and where cost is.
_STEEPER, _STEEP = 10.0, 4.0
_MIDDLE = 0.5  # of the way from the relaxation's shortage to the one found: at that, prices tell what would lessen it
_LITTLE = 1e-9


def least_shortage(task: Task, begin: Ints | None = None) -> GoalOutcome:
    """The answer for the goal SHORTAGE, of models whose rules a search knows: a search at what nodes are worth to the shortage,
    another one at what they cost, which prices models even where no node is scarce. Models that fit nowhere miss all.
    ``begin``: a plan to begin with where that is less short than the relaxation's mix rounded down."""
    task, lost = _with_blocks(task)
    best = np.zeros(len(task.columns), dtype=np.int64)
    if not task.models:
        return GoalOutcome(MipStatus.LIMIT, best, lost, lost)
    relaxed = mixed_parts(task, Goal.SHORTAGE, 0.0)
    bound = relaxed.bound
    first = whole(relaxed.mix)
    first = first if is_within(task.problem, task.columns, first) else best
    first = first if begin is None else min(first, begin, key=lambda each: _missing(task, each))
    found = _searched(task, _at_scarcity(task, relaxed), first, _HOT, _is_little(task, bound))
    best = min([first, *found], key=lambda each: _missing(task, each))
    value = _missing(task, best) - lost
    if value > _enough(task, bound) and not task.clock.is_past():
        priced = mixed_parts(task, Goal.COST, relaxed.value + _MIDDLE * (value - relaxed.value))
        found = _searched(task, _at_cost(task, priced, best, _STEEPER), best, _WARM, _is_little(task, bound))
        best = min([best, *found], key=lambda each: _missing(task, each))
    value = _missing(task, best)
    return GoalOutcome(MipStatus.LIMIT, best, value, min(lost + bound, value))


def cheapest_at_shortage(task: Task, cap: float, start: Ints) -> GoalOutcome:
    """The answer for the goal COST, of such models, where at most ``cap`` of weighted share may be missing, as in ``start``."""
    task, lost = _with_blocks(task)
    least = objective_usd(task.problem, task.columns, start)
    if not task.models:
        return GoalOutcome(MipStatus.LIMIT, start, least, 0.0)
    relaxed = mixed_parts(task, Goal.COST, cap - lost)
    best = GoalOutcome(MipStatus.LIMIT, start, least, min(max(relaxed.bound, 0.0), least))
    for counts in _cheaper(task, relaxed, cap - lost, start):
        if _missing(task, counts) <= cap:
            fewer = _given_back(task, counts, cap)
            best = best.or_better(fewer, objective_usd(task.problem, task.columns, fewer))
    return best


def _with_blocks(task: Task) -> tuple[Task, float]:
    """The task without models that fit nowhere, and their weights together."""
    models = [model for model in task.models if model.blocks]
    lost = sum(model.demand.weight for model in task.models if not model.blocks)
    return replace(task, models=models), lost


def _cheaper(task: Task, relaxed: Parts, cap: float, start: Ints) -> Iterable[Ints]:
    packed = _at_cost(task, relaxed, start, _STEEP)

    def is_enough(plan: Found) -> bool:
        cost = plan.value - float(packed.layout.weight @ plan.lacking)
        return cost * (1 - task.limits.gap) <= relaxed.bound and float(task.weights @ plan.lacking) <= cap

    return _searched(task, packed, start, _COLD, is_enough)


def _given_back(task: Task, counts: Ints, cap: float) -> Ints:
    """``counts`` without instances, those first that cost most beside what is missing without them, as long as no more than
    ``cap`` is: missing share cost more in the search than it is worth."""
    used = np.flatnonzero(counts)
    part, left = task.columns.select(used), counts[used].copy()
    room = cap - weighted_shortage(task.problem, part, left)
    more = np.array([_missed_without(task, part, left, i) for i in range(len(used))])
    for i in np.argsort(-part.price_usd_per_h / np.maximum(more, _LITTLE), kind="stable").tolist():
        while left[i] > 0 and (missed := _missed_without(task, part, left, i)) <= room:
            left[i] -= 1
            room -= missed
    return task.columns.spread(used, left)


def _missed_without(task: Task, columns: Columns, counts: Ints, at: int) -> float:
    """How much weighted share more is missing without one instance of column ``at``."""
    name = task.problem.candidates[columns.workload[at]].model
    mine = [w for w, candidates in enumerate(task.problem.candidates) if candidates.model == name]
    rows = np.flatnonzero(np.isin(columns.workload, mine))
    alone = replace(task.problem, demands=tuple(d for d in task.problem.demands if d.model == name))
    own, has = columns.select(rows), counts[rows]
    return weighted_shortage(alone, own, has - (rows == at)) - weighted_shortage(alone, own, has)


def _worth_of_share(task: Task, relaxed: Parts, start: Ints) -> Floats:
    """What the relaxation pays for each model's share; where that is nothing, what ``start`` costs by weight."""
    weights = task.weights
    mean = objective_usd(task.problem, task.columns, start) / float(weights.sum())
    return weights * (relaxed.worth.served or mean or 1.0)


def _enough(task: Task, bound: float) -> float:
    """A shortage that is near enough to its bound."""
    return bound + max(task.limits.gap * bound, _LITTLE)


def _is_little(task: Task, bound: float) -> Callable[[Found], bool]:
    return lambda plan: float(task.weights @ plan.lacking) <= _enough(task, bound)


def _missing(task: Task, counts: Ints) -> float:
    return weighted_shortage(task.problem, task.columns, counts)


def _at_scarcity(task: Task, relaxed: Parts) -> Packing:
    """Instances cost next to nothing, but are worth something to others."""
    cost, weights = _tiny_rent(task), task.weights
    nodes = cost + relaxed.worth.of_nodes(task.problem)
    own, prices = NodePrices(cost, cost), NodePrices(nodes, nodes)
    return packing(task.problem, task.columns, task.models, own, prices, relaxed.mix, weights, 0.0)


def _tiny_rent(task: Task) -> Floats:
    """The rent, in a unit in which all of it is little beside all weights."""
    rent = np.nan_to_num(task.problem.price_usd_per_h)
    return rent * (_RENT * task.weights.sum() / max(float((rent * task.problem.capacity_nodes).sum()), _LITTLE))


def _at_cost(task: Task, relaxed: Parts, start: Ints, steep: float) -> Packing:
    """Instances cost what they do, and missing share ``steep`` times what the relaxation pays for it."""
    problem, worth = task.problem, relaxed.worth
    prices = dual_prices(problem, worth.supply, worth.budget, worth.quota)
    weights = steep * _worth_of_share(task, relaxed, start)
    wanted = relaxed.mix + start
    return packing(problem, task.columns, task.models, own_prices(problem), prices, wanted, weights, 0.0)


def _searched(
    task: Task, packed: Packing, start: Ints, heat: tuple[float, float], is_enough: Callable[[Found], bool]
) -> Iterable[Ints]:
    """What searches from ``start`` on end at, within budget and quotas: of few models several side by side."""
    is_few = len(task.models) <= _FEW

    def search(seed: int) -> Ints:
        limits = replace(task.limits, seed=seed, threads=1 if is_few else task.limits.threads)
        plan, _ = recreate(packed, packed.state(start), _HALVINGS, limits, task.clock, is_enough, heat)
        return packed.counts(plan.x, len(task.columns))

    seeds = [task.limits.seed + k for k in range(_TRIES if is_few else 1)]
    found = side_by_side(search, seeds, task.limits.threads, at_least=2)
    return (counts for counts in found if is_within(task.problem, task.columns, counts))
