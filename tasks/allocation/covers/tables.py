"""Cover costs of one block, a phase of a model in a region: f[g] = least cost of what serves at least g steps of the demand.

By the model's rules (:class:`tasks.allocation.types.ModelDemand`) a block serves less than its instances' sum: nothing
below a least count, what is left without the largest instance (N+1), so much per firm step where spot is capped. With
several rules at once a table from below is the largest of each rule's, and one for covers is stricter than need be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.covers import kernels
from tasks.allocation.types import ModelDemand

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NodePrices:
    """What a node costs in the subproblem, by [pool, configuration]: for new instances and for those that run."""

    new: Floats
    kept: Floats


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of one workload in one region, by falling share. ``node``/``count``: its nodes as places in the flattened
    [pool, configuration] arrays, padded with count 0."""

    columns: NDArray[np.intp]
    node: NDArray[np.int32]
    count: NDArray[np.int16]
    share: Floats
    running: NDArray[np.int64]
    firm: NDArray[np.bool_]
    most: NDArray[np.int64]
    demand: ModelDemand

    def select(self, mask: NDArray[np.bool_]) -> Block:
        """The columns of ``mask``."""
        return Block(
            self.columns[mask],
            self.node[mask],
            self.count[mask],
            self.share[mask],
            self.running[mask],
            self.firm[mask],
            self.most[mask],
            self.demand,
        )

    @property
    def is_split(self) -> bool:
        """Whether spot is capped and on offer."""
        return self.demand.max_spot_share < 1 and not self.firm.all()


class Table(Protocol):
    """``f``: least cost per steps. ``presence``: of being in the region at all. ``walk``: instances by column behind f[g], at
    g = 0 those of presence."""

    @property
    def f(self) -> Floats:
        """f[g] for g = 0..size."""

    @property
    def presence(self) -> float:
        """The least cost of being in the region at all."""

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Without rules: unbounded new instances, then each running template as bundles of 1, 2, 4, ... copies kept."""

    block: Block
    items: NDArray[np.intp]
    steps: NDArray[np.int64]
    cost: Floats
    layers: list[Floats]
    bundles: list[tuple[int, int, int, float]]  # row, copies, steps, cost

    @property
    def f(self) -> Floats:
        """f[g] for g = 0..size."""
        return self.layers[-1]

    @property
    def presence(self) -> float:
        """The cheapest instance."""
        kept = min((cost / copies for _, copies, _, cost in self.bundles), default=math.inf)
        return float(min(self.cost.min(initial=math.inf), kept))

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]; at g = 0 the single cheapest one."""
        chosen: dict[int, int] = {}

        def take(row: int, copies: int) -> None:
            column = int(self.block.columns[row])
            chosen[column] = chosen.get(column, 0) + copies

        if g == 0:
            cheapest = int(np.argmin(self.cost)) if len(self.cost) else -1
            bundle = min(self.bundles, key=lambda b: b[3] / b[1], default=None)
            if bundle is not None and (cheapest < 0 or bundle[3] / bundle[1] <= self.cost[cheapest]):
                take(bundle[0], 1)
            else:
                take(int(self.items[cheapest]), 1)
            return chosen
        for layer in range(len(self.bundles), 0, -1):
            if g > 0 and self.layers[layer][g] < self.layers[layer - 1][g]:
                row, copies, steps, _ = self.bundles[layer - 1]
                take(row, copies)
                g = max(g - steps, 0)
        taken = kernels.cover_walk(self.steps, self.cost, self.layers[0], g)
        for item in np.flatnonzero(taken).tolist():
            take(int(self.items[item]), int(taken[item]))
        return chosen


@dataclass(frozen=True, slots=True)
class Spare:
    """N+1: f[g] = min over shares a of the least cost of g + a from instances of at most a each. Whoever serves g without
    its largest instance, of share a, is of that kind, and whoever is of that kind serves g without any one.

    Entries by rising share: a column any number of times, or, ``once``, so many copies of it that run or fit."""

    block: Block
    row: NDArray[np.int64]
    copies: NDArray[np.int64]
    steps: NDArray[np.int64]
    cost: Floats
    once: NDArray[np.bool_]
    lost: NDArray[np.int64]  # steps of one instance
    f: Floats
    last: NDArray[np.int64]  # per g: the last entry that may be used

    @property
    def presence(self) -> float:
        """Two instances that serve a step."""
        return float(self.f[1])

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]."""
        g = max(g, 1)
        last = int(self.last[g])
        taken = kernels.spare_walk(self.steps, self.cost, self.once, last, g + int(self.lost[last]))
        chosen: dict[int, int] = {}
        for entry in np.flatnonzero(taken).tolist():
            column = int(self.block.columns[self.row[entry]])
            chosen[column] = chosen.get(column, 0) + int(taken[entry] * self.copies[entry])
        return chosen


@dataclass(frozen=True, slots=True)
class Split:
    """Spot capped: f[g] = min over x of x firm steps and g - x on spot, x at least the firm part of g."""

    firm: Plain
    spot: Plain
    f: Floats
    firm_steps: NDArray[np.int64]

    @property
    def presence(self) -> float:
        """What serves a step."""
        return float(self.f[1])

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]."""
        g = max(g, 1)
        x = int(self.firm_steps[g])
        return self.firm.walk(x) | (self.spot.walk(g - x) if g > x else {})


@dataclass(frozen=True, slots=True)
class Replicas:
    """A least count: h[c][g] = least cost of c instances picked one by one, the rest of g by ``base``."""

    base: Table
    new: Plain
    h: list[Floats]

    @property
    def f(self) -> Floats:
        """f[g] for g = 0..size; nothing at all costs nothing."""
        f = self.h[-1].copy()
        f[0] = 0.0
        return f

    @property
    def presence(self) -> float:
        """The least count of instances, serving a step."""
        return float(self.h[-1][min(1, len(self.h[-1]) - 1)])

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]."""
        g = max(g, 1)
        chosen: dict[int, int] = {}
        for below in self.h[-2::-1]:
            rest = np.maximum(g - self.new.steps, 0)
            best = int(np.argmin(self.new.cost + below[rest]))
            column = int(self.new.block.columns[self.new.items[best]])
            chosen[column] = chosen.get(column, 0) + 1
            g = int(rest[best])
        for column, copies in (self.base.walk(g) if g > 0 else {}).items():
            chosen[column] = chosen.get(column, 0) + copies
        return chosen


@dataclass(frozen=True, slots=True)
class Below:
    """From below, under all rules. ``rest``/``rest_steps``: what a plan without one instance of each column still costs at
    least is rest[g - rest_steps]."""

    f: Floats
    presence: float
    rest: Floats
    rest_steps: NDArray[np.int64]


def table_below(block: Block, prices: NodePrices, size: int) -> Below:
    """A table no cover of the block is cheaper than: rates rounded up."""
    demand = block.demand
    plain = plain_table(block, prices, size, up=True)
    steps = grid_steps(block.share, size, up=True)
    rest = plain.f
    if block.is_split:
        rest = split_table(block, prices, size, up=True).f
        # Without a firm step as many are served less as it lets spot serve with it.
        alone = np.where(block.firm, block.share / max(1 - demand.max_spot_share, 1e-9), block.share)
        steps = grid_steps(alone, size, up=True)
    if demand.survives_loss:
        rest = np.maximum(rest, spare_table(block, prices, size, up=True).f)
    f = rest
    if demand.min_replicas > 1:
        kept = block.running > 0
        single_steps = np.concatenate([plain.steps, grid_steps(block.share[kept], size, up=True)])
        single_cost = np.concatenate([plain.cost, item_costs(block, kept, prices.kept)])
        h = plain.f
        for _ in range(demand.min_replicas):
            h = kernels.one_more(h, single_steps, single_cost)
        h[0] = 0.0
        f = np.maximum(f, h)
    least = max(demand.min_replicas, 1 + int(demand.survives_loss))
    return Below(f, plain.presence * least, rest, steps)


def table_above(block: Block, prices: NodePrices, size: int) -> Table:
    """A table of covers: rates rounded down, every rule kept."""
    demand = block.demand
    base: Table
    if demand.survives_loss:
        block = block.select(block.firm) if block.is_split else block
        base = spare_table(block, prices, size, up=False)
    elif block.is_split:
        base = split_table(block, prices, size, up=False)
    else:
        base = plain_table(block, prices, size, up=False)
    least = demand.min_replicas - (1 if demand.survives_loss else 0)
    if least <= 1:
        return base
    new = plain_table(block.select(block.firm) if block.is_split else block, prices, size, up=False)
    h = [base.f]
    for _ in range(demand.min_replicas):
        h.append(kernels.one_more(h[-1], new.steps, new.cost))
    return Replicas(base, new, h)


def plain_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> Plain:
    """f without rules."""
    steps = grid_steps(block.share, size, up=up)
    cost = kernels.item_costs(block.node, block.count, prices.new.ravel())
    items = kernels.useful_items(steps, cost)
    layers = [kernels.cover_table(steps[items], cost[items], size)]
    bundles = _bundles(block, prices, size, size, up=up)
    for _, _, many, each in bundles:
        layers.append(kernels.add_bundle(layers[-1], many, each))
    return Plain(block, items, steps[items], cost[items], layers, bundles)


def _bundles(block: Block, prices: NodePrices, size: int, most: int, *, up: bool) -> list[tuple[int, int, int, float]]:
    """Running instances as bundles of (row, copies, steps, cost)."""
    rows = np.flatnonzero(block.running > 0)
    if not len(rows):
        return []
    bundles = []
    for row, each in zip(rows.tolist(), item_costs(block, block.running > 0, prices.kept).tolist(), strict=True):
        share = min(float(block.share[row]), 1.0) if most > size else float(block.share[row])
        for copies in _binary_split(int(block.running[row])):
            # A bundle's own rate is rounded once, not each copy's: tighter either way.
            exact = share * copies * size
            many = int(min(math.ceil(exact) if up else math.floor(exact), most))
            bundles.append((row, copies, many, each * copies))
    return bundles


def spare_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> Spare:
    """The table of N+1: entries by rising share, the requirement raised by the largest so far. Covers take what fits once
    only once (from below that would need what it replaces)."""
    share = np.minimum(block.share, 1.0)
    steps = grid_steps(share, size, up=up)
    lost = grid_steps(share, size, up=not up)
    cost = kernels.item_costs(block.node, block.count, prices.new.ravel())
    often = np.ones(len(share), dtype=np.bool_) if up else block.most > 1
    items = np.flatnonzero(often)[kernels.useful_items(steps[often], cost[often])]
    single = np.flatnonzero(~often)[kernels.useful_items(steps[~often], cost[~often])]
    bundles = _bundles(block, prices, size, 2 * size, up=up)
    row = np.array([*items, *single, *(b[0] for b in bundles)], dtype=np.int64)
    copies = np.array([1] * (len(items) + len(single)) + [b[1] for b in bundles], dtype=np.int64)
    entry_steps = np.array([*steps[items], *steps[single], *(b[2] for b in bundles)], dtype=np.int64)
    entry_cost = np.array([*cost[items], *cost[single], *(b[3] for b in bundles)], dtype=np.float64)
    once = np.arange(len(row)) >= len(items)
    order = np.argsort(block.share[row], kind="stable").astype(np.intp)
    row, copies, once = row[order], copies[order], once[order]
    entry_steps, entry_cost, one = entry_steps[order], entry_cost[order], lost[row]
    ends = np.append(np.diff(block.share[row]) > 0, True)[: len(row)]
    f, last = kernels.spare_table(entry_steps, entry_cost, once, one, ends, size)
    return Spare(block, row, copies, entry_steps, entry_cost, once, one, f, last)


def split_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> Split:
    """The table where spot is capped. From below, the steps that a region serves may be its share rounded up, so the firm
    part is that of a step less."""
    firm = plain_table(block.select(block.firm), prices, size, up=up)
    spot = plain_table(block.select(~block.firm), prices, size, up=up)
    part = 1 - block.demand.max_spot_share
    steps = np.arange(size + 1) - (1 if up else 0)
    least = np.maximum(np.ceil(part * steps - 1e-9 if up else part * steps + 1e-9), 0).astype(np.int64)
    f, firm_steps = kernels.split_table(firm.f, spot.f, np.minimum(least, np.arange(size + 1)))
    return Split(firm, spot, f, firm_steps)


def item_costs(block: Block, rows: NDArray[np.bool_], prices: Floats) -> Floats:
    """Cost of one instance of the columns ``rows`` at node prices."""
    return np.asarray(kernels.item_costs(block.node[rows], block.count[rows], prices.ravel()))


def grid_steps(share: Floats, size: int, *, up: bool) -> NDArray[np.int64]:
    """Shares of the demand as whole steps, at most ``size``."""
    exact = share * size
    return np.asarray(np.minimum(np.ceil(exact) if up else np.floor(exact), size), dtype=np.int64)


def _binary_split(n: int) -> list[int]:
    """1, 2, 4, ... and a rest that add up to n: any count up to n is a sum of some of them."""
    parts, size = [], 1
    while n > 0:
        parts.append(min(size, n))
        n -= parts[-1]
        size *= 2
    return parts
