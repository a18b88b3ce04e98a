"""A first plan where no cover generated fits beside the others as a whole: the LP's mix rounded down, then repaired.

Whole instances of the mix stay; one model after the other takes what it still lacks, at the duals' prices, from the supply
that is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers.generation import Generated
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    dual_prices,
    quick_cover,
    quota_limits,
    quota_use,
    side_by_side,
)
from tasks.allocation.covers.tables import Block, NodePrices
from tasks.allocation.outcome import objective_usd
from tasks.allocation.types import AllocationProblem

Ints = NDArray[np.int64]
_REPAIRS = 12
_WHOLE = 1e-6
PARTS = (1.0, 0.97, 0.95, 0.9)  # of the mix, each rounded: with less of it there is more left to fit together
_SCARCER = 1.5  # what a node costs more once a repair wanted more of it than is left


def round_mix(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    found: Generated,
    grid: Grid,
    threads: int,
    parts: Sequence[float] = PARTS,
) -> tuple[Ints | None, float]:
    """Instances per column and their objective; (None, inf) if a model found no way.

    What the LP mixes whole stays; then each model, the dearest first, takes what it lacks. Budget and quotas only count
    through their duals: a plan beyond them is dropped.
    """
    mix = found.mix(columns)
    prices = dual_prices(problem, found.duals.supply, found.duals.budget, found.duals.quota)
    order = sorted(range(len(models)), key=lambda m: (-found.duals.model[m], m))
    best, least = None, math.inf

    def rounded(part: float) -> Ints | None:
        return complete(problem, columns, models, part * mix, order, prices, grid)[0]

    for counts in side_by_side(rounded, parts, threads, at_least=2):
        if counts is not None and objective_usd(problem, columns, counts) < least:
            best, least = counts, objective_usd(problem, columns, counts)
    return best, least


def complete(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    mix: NDArray[np.float64],
    order: Sequence[int],
    prices: NodePrices,
    grid: Grid,
) -> tuple[Ints | None, int]:
    """``mix`` rounded down, then each model in ``order`` completed from the supply left; or None, and the model that found no
    way (the first where it is budget or quotas that do not hold)."""
    counts = whole(mix)
    left = problem.capacity_nodes - nodes_of(columns, counts, np.flatnonzero(counts), problem.capacity_nodes.shape)
    for m in order:
        if not give(columns, models[m], counts, left, prices, grid):
            return None, m
    return (counts, -1) if is_within(problem, columns, counts) else (None, order[0])


def whole(mix: NDArray[np.float64]) -> Ints:
    """``mix`` rounded down."""
    return np.floor(mix + _WHOLE).astype(np.int64)


def is_within(problem: AllocationProblem, columns: Columns, counts: Ints) -> bool:
    """Whether budget and quotas, which the repair does not look at, hold."""
    rent = float((counts * columns.price_usd_per_h).sum())
    use = nodes_of(columns, counts, np.flatnonzero(counts), problem.capacity_nodes.shape)
    budget = math.inf if problem.budget_usd_per_h is None else problem.budget_usd_per_h
    return rent <= budget and bool((quota_use(problem, use) <= quota_limits(problem)).all())


def give(columns: Columns, model: ModelBlocks, counts: Ints, left: Ints, prices: NodePrices, grid: Grid) -> bool:
    """Complete the model's instances to a cover, the cheapest at ``prices`` from ``left``. Changes ``counts`` and ``left``.

    What it has counts as paid. A cover may want more of a configuration than is left: then the part that fits is kept, such
    nodes are made dearer, and the rest is asked for again.
    """
    mine = np.concatenate([block.columns for phases in model.blocks for block in phases])
    new = prices.new.copy()
    for _ in range(_REPAIRS):
        here = replace(model, blocks=with_paid(model, counts, left))
        kept = np.zeros_like(new) if counts[mine].any() else prices.kept
        cover = quick_cover(here, NodePrices(new, kept), grid)
        if cover is None:
            return False
        more = np.zeros(len(columns), dtype=np.int64)
        more[cover.columns] = cover.instances
        more[mine] = np.maximum(more[mine] - counts[mine], 0)
        use = nodes_of(columns, more, mine, left.shape)
        if (use <= left).all():
            counts[mine] += more[mine]
            left -= use
            return True
        new[use > left] *= _SCARCER
        take_what_fits(columns, mine[more[mine] > 0], more, counts, left)
    return False


def take_what_fits(columns: Columns, rows: NDArray[np.intp], more: Ints, counts: Ints, left: Ints) -> None:
    """Put as many of ``more`` instances of the columns ``rows`` as fit into ``left``. Changes ``counts`` and ``left``."""
    for i in rows[np.argsort(-columns.share[rows], kind="stable")]:
        r, nodes = columns.pool[i], columns.counts[i].astype(np.int64)
        needed = nodes > 0
        fits = min(int(more[i]), int((left[r][needed] // nodes[needed]).min()))
        if fits > 0:
            counts[i] += fits
            left[r] -= fits * nodes


def nodes_of(columns: Columns, counts: Ints, rows: NDArray[np.intp], shape: tuple[int, ...]) -> Ints:
    """Nodes that ``counts`` of the columns ``rows`` take, [pool, configuration]."""
    used = np.zeros(shape, dtype=np.int64)
    taken = rows[counts[rows] > 0]
    np.add.at(used, columns.pool[taken], columns.counts[taken] * counts[taken][:, None])
    return used


def with_paid(model: ModelBlocks, counts: Ints, left: Ints) -> tuple[tuple[Block, ...], ...]:
    """The model's columns of which one instance fits into ``left`` or that it has; what it has, if any, counts as running."""
    regions = []
    for phases in model.blocks:
        kept = []
        for block in phases:
            has = counts[block.columns]
            fits = (block.count <= left.ravel()[block.node]).all(axis=1)
            paid = replace(block, running=has) if has.any() else block
            kept.append(paid.select(np.asarray(fits | (has > 0))))
        if all(len(block.columns) for block in kept):
            regions.append(tuple(kept))
    return tuple(regions)
