"""A plan for any shortage, by no search: what is served where none for the best share came to an answer.

There always is one, for the plan that rents nothing breaks no rule. All rules of the models hold in it as in any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import Grid, ModelBlocks, model_blocks
from tasks.allocation.covers.rounding import give, is_within, nodes_of
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.outcome import trim
from tasks.allocation.types import AllocationProblem

Ints = NDArray[np.int64]
# Shares of the demand that are tried, the largest first.
_LEVELS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
_GRID = Grid(1024, 8)


def some_plan(problem: AllocationProblem, columns: Columns, *, is_common: bool) -> Ints:
    """Instances per column of a plan that serves all models a common share (``is_common``, where one of ``_LEVELS`` was found
    to fit), else of one that serves them as much as fits one after the other, by falling weight. Perhaps none at all."""
    nothing = np.zeros(len(columns), dtype=np.int64)
    for level in _LEVELS if is_common else ():
        models = model_blocks(problem, columns, level)
        counts: Ints | None = nothing
        for model in _hardest_first(models):
            counts = _with_model(problem, columns, model, level, counts) if counts is not None else None
        if counts is not None:
            return counts
    counts = nothing
    by_level = [{m.demand.model: m for m in model_blocks(problem, columns, level)} for level in _LEVELS]
    for demand in sorted(problem.demands, key=lambda d: (-d.weight, d.model)):
        found = (
            _with_model(problem, columns, at[demand.model], level, counts)
            for level, at in zip(_LEVELS, by_level, strict=True)
            if demand.model in at
        )
        counts = next((more for more in found if more is not None), counts)
    return counts


def _hardest_first(models: Sequence[ModelBlocks]) -> list[ModelBlocks]:
    """Models that fit into few columns before those that fit into many."""
    return sorted(models, key=lambda m: sum(len(block.columns) for phases in m.blocks for block in phases))


def _with_model(
    problem: AllocationProblem, columns: Columns, model: ModelBlocks, level: float, counts: Ints
) -> Ints | None:
    """``counts`` and what serves one more model at a level, from as many of the regions it wants as there are; None where it
    does not fit beside them."""
    if not model.blocks:
        return None
    price = np.nan_to_num(problem.price_usd_per_h)
    prices = NodePrices(price * (1 + problem.init_share), price)
    for wanted in sorted({min(model.wanted, len(model.blocks)), 1}, reverse=True):
        more = counts.copy()
        left = problem.capacity_nodes - nodes_of(columns, more, np.flatnonzero(more), problem.capacity_nodes.shape)
        if not give(columns, replace(model, wanted=wanted), more, left, prices, _GRID):
            continue
        # Rates are rounded down to the grid: what that asked for too much goes.
        alone = replace(problem, demands=(replace(model.demand, min_regions=wanted),))
        more = trim(alone, columns, more, {model.demand.model: level})
        if is_within(problem, columns, more):
            return more
    return None
