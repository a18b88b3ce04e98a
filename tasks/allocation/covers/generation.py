"""Column generation: covers for the master LP until its value and the bound meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.master import Duals, Master
from tasks.allocation.covers.pricing import Grid, ModelBlocks, NodePrices, cheap_covers, dual_prices, lower_bound
from tasks.allocation.types import AllocationProblem, SolveLimits

_ITERATIONS = 80
_SMOOTHING = 0.6  # of the best duals so far, mixed into the master's: without it they jump between extremes
_REDUCED_COST = 1e-9


@dataclass(slots=True)
class Generated:
    """What column generation leaves: the master with its covers, the best duals, the bound they give, the LP's value, and
    the models (by index) that the LP does not serve in full."""

    master: Master
    duals: Duals
    bound: float
    value: float
    unserved: list[int]


def joint_bound(
    problem: AllocationProblem, models: list[ModelBlocks], duals: Duals, grid: Grid
) -> tuple[float, list[float]]:
    """A lower bound on any plan's cost: sum of the models' least costs at ``duals``, less duals x supply; and its parts."""
    prices = dual_prices(problem, duals.supply, duals.budget)
    parts = [lower_bound(model, prices, grid) for model in models]
    return float(sum(parts)) - dual_value(problem, duals), parts


def dual_value(problem: AllocationProblem, duals: Duals) -> float:
    """Duals x supply: what the models' least costs count too much."""
    return float((duals.supply * problem.capacity_nodes).sum()) + duals.budget * (problem.budget_usd_per_h or 0.0)


def generate(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    grid: Grid,
    limits: SolveLimits,
    clock: Clock,
) -> Generated:
    """Run the loop. Stops when the LP's value is within a quarter of the gap of the bound, when no cover improves, after
    80 rounds, or on the wall clock."""
    master = Master(problem, columns, len(models), limits)
    best: Duals | None = None
    bound, value, shares = -np.inf, np.inf, np.zeros(0)
    for _ in range(_ITERATIONS):
        value, duals, shares = master.solve()
        improved = False
        for weight in (_SMOOTHING, 0.0) if best is not None else (0.0,):
            at = duals if best is None or weight == 0.0 else _mixed(best, duals, weight)
            here, _ = joint_bound(problem, models, at, grid)
            if here > bound:
                bound, best = here, at
            improved = _add_covers(problem, columns, master, models, at, duals, grid)
            if improved:
                break
        if not improved or value - bound <= 0.25 * limits.gap * abs(value) or clock.spent() > 0.5 * limits.time_s:
            break
    assert best is not None
    return Generated(master, best, bound, value, _unserved(master, models, shares))


def _unserved(master: Master, models: list[ModelBlocks], shares: NDArray[np.float64]) -> list[int]:
    got = np.zeros(len(models))
    for (m, _), share in zip(master.covers[: len(shares)], shares, strict=True):
        got[m] += share
    return [int(m) for m in np.flatnonzero(got < 1 - 1e-6)]


def _mixed(a: Duals, b: Duals, weight: float) -> Duals:
    return Duals(
        weight * a.supply + (1 - weight) * b.supply,
        weight * a.budget + (1 - weight) * b.budget,
        b.model,
    )


def _add_covers(
    problem: AllocationProblem,
    columns: Columns,
    master: Master,
    models: list[ModelBlocks],
    at: Duals,
    duals: Duals,
    grid: Grid,
) -> bool:
    """Add each model's cheap covers at ``at``; whether one of them improves the LP at its own ``duals``."""
    prices: NodePrices = dual_prices(problem, at.supply, at.budget)
    improved = False
    for m, model in enumerate(models):
        for cover in cheap_covers(model, prices, grid):
            if master.add(m, cover):
                improved |= master.last_reduced_cost(duals) < -_REDUCED_COST * max(1.0, abs(duals.model[m]))
    return improved
