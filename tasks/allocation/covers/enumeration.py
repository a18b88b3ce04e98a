"""All covers of a model that a plan within a limit can use, where they are few enough to be listed.

At given node prices (rent plus duals) every plan costs at least the bound plus the sum, over models, of what their covers
cost above the models' least. So covers beyond the bound by more than a plan in hand are in no better plan, and an integer
program over all others is exact. Instances that serve a large part of a model make such covers few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.covers import kernels
from tasks.allocation.covers.enumeration_kernels import multisets, pairs, undominated_sets
from tasks.allocation.covers.fixing import others_of
from tasks.allocation.covers.pricing import Cover, ModelBlocks
from tasks.allocation.covers.ruled import table_below
from tasks.allocation.covers.tables import Block, NodePrices, item_costs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_MULTISETS = 4  # of a phase in a region, for every part of a cover: they are soon listed, and most are beaten
_DEPTH = 12  # instances of a phase in a region, at most
_WHOLE = 1.0 - 1e-12


@dataclass(slots=True)
class Sets:
    """Parts of covers, by rising cost at the prices: ``items`` [n, columns listed] (-1: none), ``cost`` at the prices,
    ``price`` (rent plus start-up), ``share`` served, ``use`` [n, pools x configurations]."""

    items: Ints
    cost: Floats
    price: Floats
    share: Floats
    use: Ints

    def __len__(self) -> int:
        return len(self.cost)

    def take(self, rows: NDArray[np.intp]) -> Sets:
        """The sets at ``rows``."""
        return Sets(self.items[rows], self.cost[rows], self.price[rows], self.share[rows], self.use[rows])

    def sorted_and_unbeaten(self) -> Sets:
        """By rising cost, without sets that another one beats."""
        ordered = self.take(np.argsort(self.cost, kind="stable"))
        return ordered.take(np.flatnonzero(undominated_sets(ordered.use, ordered.price, ordered.share)))

    def cover(self, row: int) -> Cover:
        """One of them as a cover."""
        columns, instances = np.unique(self.items[row][self.items[row] >= 0], return_counts=True)
        return Cover(columns.astype(np.intp), instances.astype(np.int64))


class TooManyError(Exception):
    """There are more covers than can be listed."""


@dataclass(frozen=True, slots=True)
class ModelTables:
    """A model's least costs from below, on one grid: ``f`` [region][phase][steps], ``others`` [region][steps] of all other
    regions together, ``after`` [region][steps] of the regions that follow."""

    f: list[list[Floats]]
    others: list[Floats]
    after: list[Floats]


def can_list(model: ModelBlocks) -> bool:
    """Whether the model's covers are plain: at most two phases, and no rule but its demand."""
    demand = model.demand
    is_split = any(block.is_split for phases in model.blocks for block in phases)
    return (
        model.wanted == 1
        and demand.min_replicas == 1
        and not demand.survives_loss
        and not is_split
        and all(len(phases) <= 2 for phases in model.blocks)
    )


def model_tables(model: ModelBlocks, prices: NodePrices, size: int) -> ModelTables:
    """The tables of a model at ``prices``."""
    f = [[table_below(block, prices, size).f for block in phases] for phases in model.blocks]
    joined = [np.sum(rows, axis=0) for rows in f]
    others = others_of(joined)
    nothing = np.full(size + 1, np.inf)
    nothing[0] = 0.0
    after = [nothing]
    for row in joined[:0:-1]:
        after.append(kernels.min_plus(row, after[-1]))
    return ModelTables(f, others, after[::-1])


def list_covers(
    model: ModelBlocks,
    tables: ModelTables,
    prices: NodePrices,
    true_prices: NodePrices,
    capacity: Ints,
    usable: NDArray[np.bool_],
    limit: float,
    cap: int,
) -> Sets:
    """All covers that cost at most ``limit`` at ``prices``, without those that another one beats.

    ``true_prices``: without duals. ``usable`` per column: whether such a cover can use it. Raises TooManyError beyond ``cap``
    parts of covers at any step.
    """
    empty = np.zeros((1, capacity.size), dtype=np.int64)
    open_sets = Sets(np.full((1, 0), -1, dtype=np.int64), np.zeros(1), np.zeros(1), np.zeros(1), empty)
    whole = [open_sets.take(np.zeros(0, dtype=np.intp))]
    for r, phases in enumerate(model.blocks):
        here = _in_region(phases, tables, r, prices, true_prices, capacity, usable, limit, cap)
        if here is None:
            continue
        done = here.share >= _WHOLE
        whole.append(here.take(np.flatnonzero(done)))
        part = here.take(np.flatnonzero(~done))
        if not len(part):
            continue
        more = _joined(open_sets, part, capacity, tables.after[r], limit, cap, adds=True)
        done = more.share >= _WHOLE
        whole.append(more.take(np.flatnonzero(done)))
        open_sets = _together([open_sets, more.take(np.flatnonzero(~done))])
        open_sets = open_sets.take(np.argsort(open_sets.cost, kind="stable"))
    return _together(whole).sorted_and_unbeaten()


def _in_region(
    phases: Sequence[Block],
    tables: ModelTables,
    r: int,
    prices: NodePrices,
    true_prices: NodePrices,
    capacity: Ints,
    usable: NDArray[np.bool_],
    limit: float,
    cap: int,
) -> Sets | None:
    """What the model can have in a region: every phase of it there."""
    rest = tables.others[r]
    sets: Sets | None = None
    for w, block in enumerate(phases):
        others = rest[::-1].copy()
        for p, f in enumerate(tables.f[r]):
            if p != w:
                others += f
        more = kernels.best_with_item(others, tables.f[r][w])
        stop = np.minimum.accumulate(others)
        own = _of_phase(block, prices, true_prices, capacity, usable, more, stop, limit, cap)
        if not len(own):
            return None
        sets = own if sets is None else _joined(sets, own, capacity, rest, limit, cap, adds=False)
    return sets


def _of_phase(
    block: Block,
    prices: NodePrices,
    true_prices: NodePrices,
    capacity: Ints,
    usable: NDArray[np.bool_],
    more: Floats,
    stop: Floats,
    limit: float,
    cap: int,
) -> Sets:
    rows = np.flatnonzero(usable[block.columns])
    some = np.zeros(len(block.columns), dtype=np.bool_)
    some[rows] = True
    running = rows[block.running[rows] > 0]
    kept = np.zeros(len(block.columns), dtype=np.bool_)
    kept[running] = True
    row = np.concatenate([running, rows])
    cost = np.concatenate([item_costs(block, prices.kept, kept), item_costs(block, prices.new, some)])
    price = np.concatenate([item_costs(block, true_prices.kept, kept), item_costs(block, true_prices.new, some)])
    most = np.concatenate([block.running[running], block.most[rows]])
    share = np.minimum(block.share[row], 1.0)
    order = np.lexsort((np.arange(len(row)), cost, -share))
    row, cost, price, most, share = row[order], cost[order], price[order], most[order], share[order]
    node, count = block.node[row], block.count[row]
    items, amounts, found = multisets(
        share, cost, most, node, count, capacity, more, stop, limit, _MULTISETS * cap, _DEPTH
    )
    if found < 0:
        raise TooManyError
    items, costs, shares = items[:found], amounts[:found, 0], amounts[:found, 1]
    width = int((items >= 0).sum(axis=1).max(initial=0))
    items = items[:, :width]
    use = np.zeros((found, capacity.size), dtype=np.int64)
    prices_of = np.zeros(found)
    for at in range(width):
        has = np.flatnonzero(items[:, at] >= 0)
        chosen = items[has, at]
        for j in range(node.shape[1]):
            np.add.at(use, (has, node[chosen, j]), count[chosen, j])
        prices_of[has] += price[chosen]
    columns = np.where(items >= 0, block.columns[row[items]], -1) if found else items
    return Sets(columns, costs, prices_of, shares, use).sorted_and_unbeaten()


def _joined(a: Sets, b: Sets, capacity: Ints, rest: Floats, limit: float, cap: int, *, adds: bool) -> Sets:
    found, many = pairs(a.cost, a.share, a.use, b.cost, b.share, b.use, capacity, rest, limit, cap, adds)
    if many < 0:
        raise TooManyError
    i, j = found[:many, 0], found[:many, 1]
    share = np.minimum(a.share[i] + b.share[j], 1.0) if adds else np.minimum(a.share[i], b.share[j])
    items = np.concatenate([a.items[i], b.items[j]], axis=1)
    return Sets(items, a.cost[i] + b.cost[j], a.price[i] + b.price[j], share, a.use[i] + b.use[j]).sorted_and_unbeaten()


def _together(parts: Sequence[Sets]) -> Sets:
    width = max((part.items.shape[1] for part in parts), default=0)
    items = [np.pad(p.items, ((0, 0), (0, width - p.items.shape[1])), constant_values=-1) for p in parts]
    return Sets(
        np.concatenate(items),
        np.concatenate([p.cost for p in parts]),
        np.concatenate([p.price for p in parts]),
        np.concatenate([p.share for p in parts]),
        np.concatenate([p.use for p in parts]),
    )
