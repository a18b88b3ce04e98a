"""Diving: fix one model's cover after the other by the master LP over what supply is left. Finds plans where supply is
scarce and no choice among the covers generated at once fits together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.generation import generate
from tasks.allocation.covers.master import Master
from tasks.allocation.covers.pricing import (
    Cover,
    Grid,
    ModelBlocks,
    cover_cost,
    cover_use,
    quota_limits,
    quota_use,
)
from tasks.allocation.types import AllocationProblem, SolveLimits

_USED = 1e-6
_DIVE_GAP, _ITERATIONS = 4e-3, 80  # the master of a dive need not be solved further
_UNTIL = 0.5


def dive(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    grid: Grid,
    limits: SolveLimits,
    clock: Clock,
    *,
    first: Sequence[int],
    rounds: int,
) -> tuple[list[tuple[int, Cover]], list[int], int]:
    """Covers found on the way, by index of their model; the models it failed on (none: it reached a plan, or its end); and
    how many pricings of one model it took, about ``rounds`` at most.

    Each round solves the master of the models not yet fixed within the supply left, then fixes the cover with the
    largest share among those that fit whole; of the models in ``first`` before others, in that order.
    """
    left, quotas = problem.capacity_nodes.copy(), problem.quotas
    budget = problem.budget_usd_per_h
    open_models = list(range(len(models)))
    found: list[tuple[int, Cover]] = []
    taken = 0
    while open_models:
        if taken >= rounds or clock.is_past(_UNTIL):
            return found, [], taken
        here = replace(
            problem,
            capacity_nodes=left,
            demands=tuple(models[m].demand for m in open_models),
            budget_usd_per_h=budget,
            quotas=quotas,
        )
        blocks = [_within(models[m], left) for m in open_models]
        stuck = [m for m, model in zip(open_models, blocks, strict=True) if len(model.blocks) < model.wanted]
        if stuck:
            return found, stuck, taken
        most = -(-(rounds - taken) // len(open_models))
        result = generate(here, columns, blocks, grid, replace(limits, gap=_DIVE_GAP), clock, min(_ITERATIONS, most))
        taken += result.iterations * len(open_models)
        found += [(open_models[m], cover) for m, cover in result.master.covers]
        if result.unserved:
            return found, [open_models[m] for m in result.unserved], taken
        order = [open_models.index(m) for m in first if m in open_models]
        choice = _choose(here, result.master, order)
        if choice is None:
            return found, open_models, taken
        m, cover = choice
        use = cover_use(columns, cover, left.shape)
        left = left - use
        quotas = tuple(
            replace(quota, limit=quota.limit - units)
            for quota, units in zip(quotas, quota_use(here, use).tolist(), strict=True)
        )
        if budget is not None:
            budget -= cover_cost(columns, cover, problem.init_share)[0]
        found.append((open_models.pop(m), cover))
    return found, [], taken


def _within(model: ModelBlocks, left: NDArray[np.int64]) -> ModelBlocks:
    """The model's columns of which one instance fits into ``left``."""
    regions = []
    for phases in model.blocks:
        kept = tuple(
            block.select(np.asarray((block.count <= left.ravel()[block.node]).all(axis=1))) for block in phases
        )
        if all(len(block.columns) for block in kept):
            regions.append(kept)
    return replace(model, blocks=tuple(regions))


def _choose(problem: AllocationProblem, master: Master, first: Sequence[int]) -> tuple[int, Cover] | None:
    """The cover to fix: of those that fit whole the one the LP uses most, models in ``first`` before others."""
    left, budget, limits = problem.capacity_nodes, problem.budget_usd_per_h, quota_limits(problem)
    _, _, shares = master.solve()
    rank = {m: len(first) - at for at, m in enumerate(first)}
    best, best_key = None, (-1.0, -1.0)
    for j, (m, cover) in enumerate(master.covers):
        fits = bool((master.uses[j] <= left).all()) and (budget is None or master.rents[j] <= budget)
        fits = fits and bool((quota_use(problem, master.uses[j]) <= limits).all())
        key = (float(rank.get(m, 0)), float(shares[j]))
        if fits and shares[j] > _USED and key > best_key:
            best, best_key = (m, cover), key
    return best
