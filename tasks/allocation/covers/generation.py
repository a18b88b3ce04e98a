"""Column generation: covers for the master LP until its value and the bound meet."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.master import Duals, Master, no_plan_costs_more
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    cheap_covers,
    dual_prices,
    excess_costs,
    lower_bound,
    side_by_side,
    supply_value,
)
from tasks.allocation.covers.tables import NodePrices, item_costs
from tasks.allocation.types import AllocationProblem, SolveLimits

_ITERATIONS = 80
_SMOOTHING = 0.6  # of the best duals so far, mixed into the master's: without it they jump between extremes
_REDUCED_COST = 1e-9
# Stop when the LP is within a quarter of the gap of the bound; or within a sixth of it of what covers of this grid can
# attain, or nothing much moves for a few rounds: the rest is the grid's rounding, which rounds do not mend.
_TO_BOUND, _TO_COVERS = 0.25, 0.15
_QUIET, _QUIET_ROUNDS = 0.01, 4
_UNTIL = 0.7  # of the time limit
# Sharpening: rounds at most; how near, in parts of the gap, the LP must come to its covers; of a column's cost, how much of it
# may be above its share; rounds over all columns, and what one must gain, in parts of the gap, for another.
_SHARPER, _TO_SHARPER, _LITTLE = 30, 0.02, 0.08
_PASSES, _GAINS = 6, 0.005


@dataclass(slots=True)
class Generated:
    """What column generation leaves: the master with its covers, the best duals, the bound they give, the LP's value, the
    models (by index) that the LP does not serve in full, how many rounds it took, and the LP's shares of the covers."""

    master: Master
    duals: Duals
    bound: float
    value: float
    unserved: list[int]
    iterations: int
    shares: NDArray[np.float64]

    def mix(self, columns: Columns) -> NDArray[np.float64]:
        """Instances per column of the LP's mix of covers."""
        mix = np.zeros(len(columns))
        # Covers that the LP has not seen yet, added by its last round or since, have no share.
        for (_, cover), share in zip(self.master.covers, self.shares.tolist(), strict=False):
            mix[cover.columns] += share * cover.instances
        return mix


def joint_bound(
    problem: AllocationProblem, models: list[ModelBlocks], duals: Duals, grid: Grid, threads: int = 1
) -> tuple[float, list[float]]:
    """A lower bound on any plan's cost: sum of the models' least costs at ``duals``, less duals x supply; and its parts."""
    prices = dual_prices(problem, duals.supply, duals.budget, duals.quota)
    parts = side_by_side(lambda model: lower_bound(model, prices, grid), models, threads)
    return float(sum(parts)) - dual_value(problem, duals), parts


def dual_value(problem: AllocationProblem, duals: Duals) -> float:
    """Duals x supply: what the models' least costs count too much."""
    return supply_value(problem, duals.supply, duals.budget, duals.quota)


def generate(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    grid: Grid,
    limits: SolveLimits,
    clock: Clock,
    iterations: int = _ITERATIONS,
) -> Generated:
    """Run the loop. Stops when the LP's value is close to the bound or to what the grid's covers can attain (see
    ``_TO_BOUND``), when no cover improves, when the bound rules out every plan, after ``iterations``, or on the wall clock as
    a last guard."""
    master = Master(problem, columns, len(models), limits)
    best: Duals | None = None
    bound, attainable, value, shares, taken = -np.inf, -np.inf, np.inf, np.zeros(0), 0
    quiet, most = 0, no_plan_costs_more(problem) * (1 + 1e-6)
    while taken < max(iterations, 1):
        taken += 1
        before = value, bound
        value, duals, shares = master.solve()
        improved = False
        for weight in (_SMOOTHING, 0.0) if best is not None else (0.0,):
            at = duals if best is None or weight == 0.0 else _mixed(best, duals, weight)
            here, _ = joint_bound(problem, models, at, grid, limits.threads)
            if here > bound:
                bound, best = here, at
            improved, least = _add_covers(problem, columns, master, models, at, duals, grid, limits.threads)
            if np.isfinite(least):
                attainable = max(attainable, least - dual_value(problem, at))
            if improved:
                break
        room = limits.gap * abs(value)
        quiet = quiet + 1 if (before[0] - value) + (bound - before[1]) <= _QUIET * room else 0
        is_close = value - bound <= _TO_BOUND * room or value - attainable <= _TO_COVERS * room
        if bound > most or not improved or is_close or quiet >= _QUIET_ROUNDS or clock.is_past(_UNTIL):
            break
    assert best is not None
    return Generated(master, best, bound, value, _unserved(master, models, shares), taken, shares)


def sharpen(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    found: Generated,
    grid: Grid,
    limits: SolveLimits,
    clock: Clock,
) -> Generated:
    """``found`` with covers of a finer grid, added to its master. Its duals are those at which the models cost most by such
    covers, less duals x supply; they need not be those of the highest bound, and ``bound`` stays that of ``found``.

    Rounds over all columns take turns with many over those that cost little above their share at the duals so far, whose
    tables are cheap.
    """
    room = limits.gap * abs(found.value)
    now, best, highest, taken = found, found.duals, -np.inf, found.iterations
    for _ in range(_PASSES):
        prices = dual_prices(problem, now.duals.supply, now.duals.budget, now.duals.quota)
        few = [narrowed(model, prices, _LITTLE) for model in models]
        now = refine(problem, columns, few, found.master, now.duals, grid, room, limits, clock)
        taken += now.iterations
        if clock.is_past(_UNTIL):
            break
        _, least = _add_covers(problem, columns, found.master, models, now.duals, now.duals, grid, limits.threads)
        here, before = least - dual_value(problem, now.duals), highest
        if here > highest:
            highest, best = here, now.duals
        if not here - before > _GAINS * room:
            break
    value, _, shares = found.master.solve()
    return Generated(found.master, best, found.bound, value, _unserved(found.master, models, shares), taken, shares)


def refine(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    master: Master,
    duals: Duals,
    grid: Grid,
    room: float,
    limits: SolveLimits,
    clock: Clock,
) -> Generated:
    """The loop of :func:`generate` from covers and duals at hand on, of columns that are not all: nothing is bounded by it.
    ``room``: USD/h, of which the LP must come within a part of what its covers can attain. Adds to ``master``."""
    value, at_master, shares = master.solve()
    best, highest, taken, quiet = duals, -np.inf, 0, 0
    while taken < _SHARPER and quiet < _QUIET_ROUNDS and not clock.is_past(_UNTIL):
        taken += 1
        before, improved = (value, highest), False
        for weight in (_SMOOTHING, 0.0):
            at = _mixed(best, at_master, weight)
            improved, least = _add_covers(problem, columns, master, models, at, at_master, grid, limits.threads)
            here = least - dual_value(problem, at)
            if np.isfinite(here) and here > highest:
                highest, best = here, at
            if improved:
                break
        value, at_master, shares = master.solve()
        quiet = quiet + 1 if (before[0] - value) + (highest - before[1]) <= _QUIET * room else 0
        if not improved or value - highest <= _TO_SHARPER * room:
            break
    return Generated(master, best, -np.inf, value, _unserved(master, models, shares), taken, shares)


def narrowed(model: ModelBlocks, prices: NodePrices, little: float) -> ModelBlocks:
    """The model with columns alone that cost at most ``little`` of their cost above their share, or run."""
    regions = []
    for phases, rows in zip(model.blocks, excess_costs(model, prices), strict=True):
        kept = []
        for block, excess in zip(phases, rows, strict=True):
            is_cheap = excess <= little * item_costs(block, prices.new)
            kept.append(block.select(is_cheap | (block.running > 0)))
        if all(len(block.columns) for block in kept):
            regions.append(tuple(kept))
    return replace(model, blocks=tuple(regions))


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
        weight * a.quota + (1 - weight) * b.quota,
    )


def _add_covers(
    problem: AllocationProblem,
    columns: Columns,
    master: Master,
    models: list[ModelBlocks],
    at: Duals,
    duals: Duals,
    grid: Grid,
    threads: int,
) -> tuple[bool, float]:
    """Add each model's cheap covers at ``at``; whether one of them improves the LP at its own ``duals``, and the sum of the
    models' least costs at ``at`` over the grid's covers (inf where a model has none)."""
    prices = dual_prices(problem, at.supply, at.budget, at.quota)
    improved, total = False, 0.0
    priced = side_by_side(lambda model: cheap_covers(model, prices, grid), models, threads)
    for m, (covers, least) in enumerate(priced):
        total += least
        for cover in covers:
            if master.add(m, cover):
                improved |= master.last_reduced_cost(duals) < -_REDUCED_COST * max(1.0, abs(duals.model[m]))
    return improved, total
