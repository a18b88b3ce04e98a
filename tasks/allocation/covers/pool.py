"""The best plan that takes one of the covers listed per model: a small ILP."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.master import Master
from tasks.allocation.covers.pricing import counts_of
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.outcome import objective_usd
from tasks.allocation.types import AllocationProblem, SolveLimits
from tasks.allocation.work import looks

_WORK = 100  # looks at 800 covers


@dataclass(frozen=True, slots=True)
class Offers:
    """Covers to choose from: the model of each, its rent, its rent plus start-up charge, and its nodes [n, cells]."""

    model: NDArray[np.int64]
    rent: NDArray[np.float64]
    cost: NDArray[np.float64]
    use: NDArray[np.int64]

    def take(self, rows: NDArray[np.intp]) -> Offers:
        """The offers at ``rows``."""
        return Offers(self.model[rows], self.rent[rows], self.cost[rows], self.use[rows])


@dataclass(frozen=True, slots=True)
class Choice:
    """``rows``: one offer per model (None: none found); ``bound``: no choice among these offers costs less, inf where none
    fits together."""

    rows: NDArray[np.intp] | None
    bound: float


def best_of_pool(
    problem: AllocationProblem, columns: Columns, models: int, master: Master, limits: SolveLimits, clock: Clock
) -> tuple[NDArray[np.int64] | None, float]:
    """Instances per column and objective of the best plan of the generated covers; (None, inf) if they hold none."""
    offers = Offers(
        np.array([m for m, _ in master.covers], dtype=np.int64),
        np.array(master.rents),
        np.array(master.costs),
        np.array(master.uses, dtype=np.int64).reshape(len(master.covers), problem.capacity_nodes.size),
    )
    choice = _by_ilp(problem, offers, models, limits, clock, _WORK)
    if choice.rows is None:
        return None, math.inf
    counts = counts_of(columns, (master.covers[j][1] for j in choice.rows.tolist()))
    return counts, objective_usd(problem, columns, counts)


def joint_limits(problem: AllocationProblem, offers: Offers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the offers take of every limit that they could exceed, [offers, limits], and these: nodes, budget, quotas."""
    models = np.unique(offers.model)
    units = [(problem.quota_units(quota).ravel(), float(quota.limit)) for quota in problem.quotas]
    taken = [offers.use, offers.rent[:, None], *((offers.use @ unit)[:, None] for unit, _ in units)]
    budget = math.inf if problem.budget_usd_per_h is None else problem.budget_usd_per_h
    tops = np.array([*problem.capacity_nodes.ravel(), budget, *(limit for _, limit in units)], dtype=np.float64)
    whole = np.hstack(taken).astype(np.float64)
    most = np.sum([whole[offers.model == m].max(axis=0) for m in models], axis=0)
    tight = np.flatnonzero(most > tops)
    return whole[:, tight], tops[tight]


def _by_ilp(
    problem: AllocationProblem, offers: Offers, models: int, limits: SolveLimits, clock: Clock, work: int
) -> Choice:
    """The cheapest offers, one per model, that fit together.

    Notation: x_j binary, offer j is taken; min sum cost_j x_j; one offer per model; A x <= b for capacity, quotas, budget.
    """
    if len(np.unique(offers.model)) < models:
        return Choice(None, math.inf)
    model = pulp.LpProblem("pool", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{j}", 0, 1, cat=pulp.LpInteger) for j in range(len(offers.cost))]
    model.setObjective(pulp.LpAffineExpression(list(zip(x, offers.cost.tolist(), strict=True))))
    for m in range(models):
        own = [(x[j], 1) for j in np.flatnonzero(offers.model == m)]
        model += pulp.LpAffineExpression(own) == 1, f"model{m}"
    taken, tops = joint_limits(problem, offers)
    for row, top in enumerate(tops.tolist()):
        used = np.flatnonzero(taken[:, row])
        terms = [(x[j], value) for j, value in zip(used.tolist(), taken[used, row].tolist(), strict=True)]
        model += pulp.LpAffineExpression(terms) <= top, f"limit{row}"
    # Not stopped from outside: it is soon done, and what the covers are good for.
    limits = replace(limits, stop=None)
    outcome = solve_mip(model, limits, time_s=clock.left() / 2, most_looks=looks(len(x), work), clock=clock)
    if outcome.values is None:
        return Choice(None, -math.inf if outcome.status is MipStatus.ERROR else outcome.bound)
    rows = np.array([j for j in range(len(x)) if outcome.values[f"x{j}"] > 0], dtype=np.intp)
    return Choice(rows, outcome.bound)
