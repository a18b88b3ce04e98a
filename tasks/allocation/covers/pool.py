"""The best plan that takes one of the covers listed per model: a small ILP."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    choice = choose(problem, offers, models, limits, clock, _WORK)
    if choice.rows is None:
        return None, math.inf
    counts = counts_of(columns, (master.covers[j][1] for j in choice.rows.tolist()))
    return counts, objective_usd(problem, columns, counts)


def choose(
    problem: AllocationProblem,
    offers: Offers,
    models: int,
    limits: SolveLimits,
    clock: Clock,
    work: int,
    good_enough: float | None = None,
    start: Sequence[int] | None = None,
) -> Choice:
    """The cheapest offers, one per model, that fit together; ``start``: rows known to.

    Notation: x_j binary, offer j is taken; min sum cost_j x_j; one offer per model; capacity; quotas; budget.
    """
    if len(np.unique(offers.model)) < models:
        return Choice(None, math.inf)
    model = pulp.LpProblem("pool", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{j}", 0, 1, cat=pulp.LpInteger) for j in range(len(offers.cost))]
    model.setObjective(pulp.LpAffineExpression(list(zip(x, offers.cost.tolist(), strict=True))))
    for m in range(models):
        own = [(x[j], 1) for j in np.flatnonzero(offers.model == m)]
        model += pulp.LpAffineExpression(own) == 1, f"model{m}"
    most = np.zeros(offers.use.shape[1], dtype=np.int64)
    for m in range(models):
        most += offers.use[offers.model == m].max(axis=0, initial=0)
    capacity = problem.capacity_nodes.ravel()
    for cell in np.flatnonzero(most > capacity).tolist():
        terms = [(x[j], int(offers.use[j, cell])) for j in np.flatnonzero(offers.use[:, cell])]
        model += pulp.LpAffineExpression(terms) <= int(capacity[cell]), f"capacity{cell}"
    if problem.budget_usd_per_h is not None:
        rent = pulp.LpAffineExpression(list(zip(x, offers.rent.tolist(), strict=True)))
        model += rent <= problem.budget_usd_per_h, "budget"
    for q, quota in enumerate(problem.quotas):
        use = offers.use.reshape(len(offers.use), *problem.capacity_nodes.shape)
        units = (use * problem.quota_units(quota)).sum(axis=(1, 2))
        if units.sum() > quota.limit:
            terms = [(x[j], int(units[j])) for j in np.flatnonzero(units)]
            model += pulp.LpAffineExpression(terms) <= quota.limit, f"quota{q}"
    begin = None
    if start is not None:
        begin = dict.fromkeys((v.name for v in x), 0.0) | {f"x{j}": 1.0 for j in start}
    # Not stopped from outside: it is soon done, and what the covers are good for.
    limits = replace(limits, stop=None)
    outcome = solve_mip(
        model,
        limits,
        time_s=clock.left() / 2,
        start=begin,
        good_enough=good_enough,
        most_looks=looks(len(x), work),
        clock=clock,
    )
    if outcome.values is None:
        return Choice(None, -math.inf if outcome.status is MipStatus.ERROR else outcome.bound)
    rows = np.array([j for j in range(len(x)) if outcome.values[f"x{j}"] > 0], dtype=np.intp)
    return Choice(rows, outcome.bound)
