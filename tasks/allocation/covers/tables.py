"""Cover costs of one block, a phase of a model in a region: f[g] = least cost of what serves at least g steps of the demand.

Without rules, and where spot is capped (so much per firm step). N+1 is in :mod:`tasks.allocation.covers.spare`, all rules
together in :mod:`tasks.allocation.covers.ruled`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True)
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

    @cached_property
    def parts(self) -> tuple[Block, Block]:
        """The firm columns, and those on spot."""
        return self.select(self.firm), self.select(~self.firm)

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


def plain_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> Plain:
    """f without rules."""
    steps = grid_steps(block.share, size, up=up)
    cost = item_costs(block, prices.new)
    items = kernels.useful_items(steps, cost)
    layers = [kernels.cover_table(steps[items], cost[items], size)]
    bundles = bundles_of(block, prices, size, size, up=up)
    for _, _, many, each in bundles:
        layers.append(kernels.add_bundle(layers[-1], many, each))
    return Plain(block, items, steps[items], cost[items], layers, bundles)


def bundles_of(
    block: Block, prices: NodePrices, size: int, most: int, *, up: bool
) -> list[tuple[int, int, int, float]]:
    """Running instances as bundles of (row, copies, steps, cost)."""
    rows = np.flatnonzero(block.running > 0)
    if not len(rows):
        return []
    bundles = []
    for row, each in zip(rows.tolist(), item_costs(block, prices.kept, block.running > 0).tolist(), strict=True):
        share = min(float(block.share[row]), 1.0) if most > size else float(block.share[row])
        for copies in _binary_split(int(block.running[row])):
            # A bundle's own rate is rounded once, not each copy's: tighter either way.
            exact = share * copies * size
            many = int(min(math.ceil(exact) if up else math.floor(exact), most))
            bundles.append((row, copies, many, each * copies))
    return bundles


def split_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> Split:
    """The table where spot is capped. From below, the steps that a region serves may be its share rounded up, so the firm
    part is that of a step less."""
    firm, spot = (plain_table(part, prices, size, up=up) for part in block.parts)
    f, firm_steps = kernels.split_table(firm.f, spot.f, firm_part(block, size, up=up))
    return Split(firm, spot, f, firm_steps)


def firm_part(block: Block, size: int, *, up: bool) -> NDArray[np.int64]:
    """How many of 0..size steps must be firm."""
    part = 1 - block.demand.max_spot_share
    steps = np.arange(size + 1) - (1 if up else 0)
    least = np.maximum(np.ceil(part * steps - 1e-9 if up else part * steps + 1e-9), 0).astype(np.int64)
    return np.minimum(least, np.arange(size + 1))


def item_costs(block: Block, prices: Floats, rows: NDArray[np.bool_] | None = None) -> Floats:
    """Cost of one instance of every column, or of the columns ``rows``, at node prices."""
    node, count = (block.node, block.count) if rows is None else (block.node[rows], block.count[rows])
    return np.asarray(kernels.item_costs(node, count, prices.ravel()))


def first_costs(block: Block, prices: NodePrices) -> Floats:
    """Cost of a first instance of every column: the price of one that runs where there is one."""
    cost, running = item_costs(block, prices.new), block.running > 0
    if running.any():
        cost[running] = item_costs(block, prices.kept, running)
    return cost


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
