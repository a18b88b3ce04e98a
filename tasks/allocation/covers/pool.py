"""A first plan: the best one that takes one generated cover per model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.master import Master
from tasks.allocation.highs import solve_mip
from tasks.allocation.outcome import objective_usd
from tasks.allocation.types import AllocationProblem, SolveLimits
from tasks.allocation.work import looks

_WORK = 100  # looks at 800 covers


def best_of_pool(
    problem: AllocationProblem, columns: Columns, models: int, master: Master, limits: SolveLimits, clock: Clock
) -> tuple[NDArray[np.int64] | None, float]:
    """Instances per column and objective of the best plan within the pool; (None, inf) if it holds none.

    Notation: x_j binary, cover j is taken; min sum cost_j x_j; one cover per model; capacity; quotas; budget.
    """
    model = pulp.LpProblem("pool", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{j}", 0, 1, cat=pulp.LpInteger) for j in range(len(master.covers))]
    model.setObjective(pulp.LpAffineExpression(list(zip(x, master.costs, strict=True))))
    for m in range(models):
        own = [(v, 1) for v, (owner, _) in zip(x, master.covers, strict=True) if owner == m]
        model += pulp.LpAffineExpression(own) == 1, f"model{m}"
    use = np.array(master.uses).reshape(len(x), *problem.capacity_nodes.shape)
    for r, k in zip(*np.nonzero(use.sum(axis=0) > problem.capacity_nodes), strict=True):
        terms = [(x[j], int(use[j, r, k])) for j in np.flatnonzero(use[:, r, k])]
        model += pulp.LpAffineExpression(terms) <= int(problem.capacity_nodes[r, k]), f"capacity{r}_{k}"
    if problem.budget_usd_per_h is not None:
        rent = pulp.LpAffineExpression(list(zip(x, master.rents, strict=True)))
        model += rent <= problem.budget_usd_per_h, "budget"
    for q, quota in enumerate(problem.quotas):
        units = (use * problem.quota_units(quota)).sum(axis=(1, 2))
        if units.sum() > quota.limit:
            terms = [(x[j], int(units[j])) for j in np.flatnonzero(units)]
            model += pulp.LpAffineExpression(terms) <= quota.limit, f"quota{q}"
    # Not stopped from outside: it is soon done, and what the covers are good for.
    limits = replace(limits, stop=None)
    outcome = solve_mip(model, limits, time_s=clock.left() / 2, most_looks=looks(len(x), _WORK), clock=clock)
    if outcome.values is None:
        return None, math.inf
    counts = np.zeros(len(columns), dtype=np.int64)
    for j, (_, cover) in enumerate(master.covers):
        if outcome.values[f"x{j}"] > 0:
            counts[cover.columns] += cover.instances
    return counts, objective_usd(problem, columns, counts)
