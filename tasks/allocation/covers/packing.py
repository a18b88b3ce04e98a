"""A problem as ruin and recreate sees it: few items per phase and region, flat arrays, limits of all kinds alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers import kernels
from tasks.allocation.covers.pricing import ModelBlocks, excess_costs, quota_limits
from tasks.allocation.covers.recreate_types import Items, Layout, State
from tasks.allocation.covers.state_kernels import WHOLE, lack, penalty_of
from tasks.allocation.covers.tables import Block, NodePrices
from tasks.allocation.types import AllocationProblem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_PER_BLOCK = 100  # items of a phase in a region: those that cost least above what the demand they serve costs at best
_JUMP = 0.02
_FREE = 0.1  # of the models' mean cost: what a model counts at least
_SMALL = 0.02  # of the demand: a smaller item costs little above its share only for being small
_LOG = 20_000
_BUDGET_UNITS = 1e4  # per USD/h: the budget is one more kind of node


@dataclass(frozen=True, slots=True)
class Packing:
    """Items and where they lie, the column of each (instances that run are an item of their own, before new ones of the
    column), and how many there are of each kind of node, units of the quotas and of the budget among them."""

    items: Items
    layout: Layout
    column: Ints
    capacity: Ints

    def state(self, counts: Ints) -> State:
        """``counts`` instances per column as a state."""
        x, rest = np.zeros(len(self.column), dtype=np.int64), counts.copy()
        for i in np.flatnonzero(counts[self.column]).tolist():
            x[i] = min(rest[self.column[i]], self.items.most[i])
            rest[self.column[i]] -= x[i]
        return self.from_items(x)

    def from_items(self, x: Ints) -> State:
        """``x`` instances per item as a state."""
        used = np.flatnonzero(x)
        left = self.capacity.copy()
        np.subtract.at(left, self.items.node[used], self.items.need[used] * x[used][:, None])
        served = np.zeros(len(self.layout.start) - 1)
        np.add.at(served, self.items.block[used], self.items.share[used] * x[used])
        firm = np.zeros(len(served))
        np.add.at(firm, self.items.block[used], (self.items.share * self.items.firm)[used] * x[used])
        many = np.zeros(len(served), dtype=np.int64)
        np.add.at(many, self.items.block[used], x[used])
        return State(x.copy(), left, served, firm, many, np.zeros((_LOG, 2), dtype=np.int64))

    def counts(self, x: Ints, columns: int) -> Ints:
        """Instances per column of ``columns`` columns."""
        counts = np.zeros(columns, dtype=np.int64)
        np.add.at(counts, self.column, x)
        return counts

    def heavier(self, times: float) -> Packing:
        """The same where what models lack costs so many times as much."""
        return replace(self, layout=self.layout._replace(weight=times * self.layout.weight))

    def penalty(self, state: State) -> float:
        """What it costs that models lack something, as in the search."""
        return float(sum(penalty_of(self.items, self.layout, state, m) for m in range(len(self.layout.weight))))

    def value(self, state: State) -> float:
        """What the state's instances cost, with what its models lack."""
        return float((state.x * self.items.cost).sum()) + self.penalty(state)

    def lacking(self, state: State) -> Floats:
        """Share of each model's demand that nothing serves."""
        lacks = np.array([lack(self.items, self.layout, state, m) for m in range(len(self.layout.weight))])
        return np.where(lacks > WHOLE, lacks, 0.0)


def lack_weights(least: Sequence[float] | Floats, times: float) -> Floats:
    """What serving nothing of each model counts: so many ``times`` its ``least`` cost; more where it needs next to nothing
    that costs anything, for lacking it is not free."""
    cost = np.asarray(least, dtype=np.float64)
    mean = float(cost.mean())
    return times * np.maximum(cost, _FREE * mean if mean > 0 else 1.0)


def packing(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    cost: NodePrices,
    prices: NodePrices,
    wanted: Floats | Ints,
    weight: Floats,
    jump: float = _JUMP,
) -> Packing:
    """Every block's items worth having at ``prices``, which hold the duals beside the ``cost`` of nodes, and all columns
    ``wanted`` (above 0 per column). ``weight``: what serving nothing of a model costs; ``jump``: see :class:`Layout`.
    All models must have blocks, of as many phases, else ValueError: compiled loops would leave their arrays."""
    if len({len(phases) for model in models for phases in model.blocks}) != 1 or not all(m.blocks for m in models):
        raise ValueError("the models of a search have no blocks, or phases of different number")
    chosen, first, region = [], [0], []
    for model in models:
        for phases, rows in zip(model.blocks, excess_costs(model, prices), strict=True):
            region.append(int(columns.region[phases[0].columns[0]]))
            chosen += [_choose(block, excess, wanted) for block, excess in zip(phases, rows, strict=True)]
        first.append(len(chosen))
    items, column = _items(chosen, cost, prices, np.array(first))
    items, capacity = _with_limits(problem, columns, items, column)
    users, user = _users(items, len(capacity))
    start = np.concatenate([[0], np.cumsum([len(rows) for _, rows, _ in chosen])]).astype(np.int64)
    layout = Layout(
        np.array(first),
        start,
        len(models[0].blocks[0]),
        len(problem.regions),
        np.array(region, dtype=np.int64),
        users,
        user,
        weight,
        jump,
        np.array([block.demand.survives_loss for block, _, _ in chosen], dtype=np.bool_),
        np.array([_replicas(block) for block, _, _ in chosen], dtype=np.int64),
        np.array([1 - block.demand.max_spot_share if block.is_split else 0.0 for block, _, _ in chosen]),
    )
    return Packing(items, layout, column, capacity)


def _choose(block: Block, excess: Floats, wanted: Floats | Ints) -> tuple[Block, NDArray[np.intp], NDArray[np.bool_]]:
    """The block's rows worth having, by falling share, and which of them are instances that run; such rows stand twice."""
    share = np.clip(block.share, _SMALL, 1.0)
    best = _least(excess / np.sqrt(share), np.ones(len(excess), dtype=np.bool_))
    if block.is_split and block.firm.any():
        dearer = float((excess / share)[block.firm].min())  # what the best firm one costs more: so do all others
        best = np.union1d(best, _least((excess - dearer * share) / np.sqrt(share), block.firm))
    rows = np.union1d(best, np.flatnonzero((wanted[block.columns] > 1e-9) | (block.running > 0)))
    kept = rows[block.running[rows] > 0]
    both, runs = np.concatenate([kept, rows]), np.arange(len(kept) + len(rows)) < len(kept)
    order = np.lexsort((~runs, -block.share[both]))
    return block, both[order].astype(np.intp), runs[order]


def _least(excess: Floats, of: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The rows ``of`` all with the least excess."""
    rows = np.flatnonzero(of)
    many = min(_PER_BLOCK, len(rows))
    return rows[np.argpartition(excess[rows], many - 1)[:many]] if many else rows


def _items(
    chosen: Sequence[tuple[Block, NDArray[np.intp], NDArray[np.bool_]]],
    cost: NodePrices,
    prices: NodePrices,
    first: Ints,
) -> tuple[Items, Ints]:
    width = max(block.node.shape[1] for block, _, _ in chosen)
    node = np.concatenate([_wide(block.node[rows], width) for block, rows, _ in chosen])
    count = np.concatenate([_wide(block.count[rows], width) for block, rows, _ in chosen])
    runs = np.concatenate([kept for _, _, kept in chosen])

    def each(nodes: NodePrices) -> Floats:
        new, kept = (np.asarray(kernels.item_costs(node, count, part.ravel())) for part in (nodes.new, nodes.kept))
        return np.where(runs, kept, new)

    own = each(cost)
    most = [np.where(kept, b.running[rows], np.maximum(b.most[rows] - b.running[rows], 0)) for b, rows, kept in chosen]
    block_of = np.repeat(np.arange(len(chosen)), [len(rows) for _, rows, _ in chosen])
    items = Items(
        node,
        count,
        np.concatenate([block.share[rows] for block, rows, _ in chosen]),
        own,
        np.maximum(each(prices) - own, 0.0),
        np.concatenate(most).astype(np.int64),
        block_of,
        np.searchsorted(first, block_of, side="right") - 1,
        np.concatenate([block.firm[rows] for block, rows, _ in chosen]),
    )
    return items, np.concatenate([block.columns[rows] for block, rows, _ in chosen]).astype(np.int64)


def _wide(entries: NDArray[np.integer], width: int) -> Ints:
    return np.pad(entries.astype(np.int64), ((0, 0), (0, width - entries.shape[1])))


def _with_limits(problem: AllocationProblem, columns: Columns, items: Items, column: Ints) -> tuple[Items, Ints]:
    """The items with what they take of quotas and budget as further kinds of nodes, and how many there are of each kind."""
    capacity = [problem.capacity_nodes.ravel().astype(np.int64)]
    node, count = items.node, items.need
    taken = [
        (np.asarray((count * problem.quota_units(quota).ravel()[node]).sum(axis=1)), int(limit))
        for quota, limit in zip(problem.quotas, quota_limits(problem).tolist(), strict=True)
    ]
    if problem.budget_usd_per_h is not None:
        units = np.ceil(columns.price_usd_per_h[column] * _BUDGET_UNITS)
        taken.append((units, int(problem.budget_usd_per_h * _BUDGET_UNITS)))
    for units, limit in taken:
        kind = problem.capacity_nodes.size + len(capacity) - 1
        node = np.column_stack([node, np.full(len(node), kind)])
        count = np.column_stack([count, units.astype(np.int64)])
        capacity.append(np.array([limit], dtype=np.int64))
    return items._replace(node=np.ascontiguousarray(node), need=np.ascontiguousarray(count)), np.concatenate(capacity)


def _users(items: Items, kinds: int) -> tuple[Ints, Ints]:
    """Where each kind's users begin, and the items that use each kind."""
    is_used = items.need.ravel() > 0
    item = np.repeat(np.arange(len(items.node)), items.node.shape[1])[is_used]
    kind = items.node.ravel()[is_used]
    order = np.argsort(kind, kind="stable")
    return np.searchsorted(kind[order], np.arange(kinds + 1)), item[order]


def _replicas(block: Block) -> int:
    """How many instances it has at least; 0: no rule says so."""
    return block.demand.min_replicas if block.demand.min_replicas > 1 else 0
