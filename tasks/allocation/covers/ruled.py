"""Tables under all rules of a model (:class:`tasks.allocation.types.ModelDemand`): from below for bounds, from above for covers.

A block serves less than its instances' sum: nothing below a least count, what is left without the largest instance (N+1), so
much per firm step where spot is capped. With several rules at once the largest of their tables holds from below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.covers import kernels
from tasks.allocation.covers.spare import spare_split_table, spare_table
from tasks.allocation.covers.tables import (
    Block,
    Floats,
    NodePrices,
    Plain,
    Table,
    first_costs,
    grid_steps,
    plain_table,
    split_table,
)


@dataclass(frozen=True, slots=True)
class Either:
    """The cheaper of two tables, step by step."""

    one: Table
    two: Table

    @property
    def f(self) -> Floats:
        """f[g] for g = 0..size."""
        return np.minimum(self.one.f, self.two.f)

    @property
    def presence(self) -> float:
        """The least cost of being in the region at all."""
        return min(self.one.presence, self.two.presence)

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]."""
        g = max(g, 1)
        return (self.one if self.one.f[g] <= self.two.f[g] else self.two).walk(g)


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
    if demand.survives_loss and block.is_split:
        rest = np.maximum(rest, spare_split_table(block, prices, size, up=True).f)
    f = rest
    if demand.min_replicas > 1:
        single_steps, single_cost = _singles(block, prices, steps)
        h = rest
        for _ in range(demand.min_replicas):
            h = kernels.one_more(h, single_steps, single_cost)
        h[0] = 0.0
        f = np.maximum(f, h)
    least = max(demand.min_replicas, 1 + int(demand.survives_loss))
    return Below(f, plain.presence * least, rest, steps)


def _singles(block: Block, prices: NodePrices, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
    """Steps and cost of single instances; left out are those that another one replaces: as many steps or more for no more."""
    cost = first_costs(block, prices)
    order = np.lexsort((cost, -steps))
    cheapest = np.minimum.accumulate(cost[order])
    first = np.append(True, cheapest[1:] < cheapest[:-1])[: len(order)]
    return steps[order][first], cost[order][first]


def table_above(block: Block, prices: NodePrices, size: int) -> Table:
    """A table of covers: rates rounded down, every rule kept."""
    demand = block.demand
    firm = block.parts[0] if block.is_split else block
    base: Table
    if demand.survives_loss:
        base = spare_table(firm, prices, size, up=False)
        if block.is_split:
            base = Either(base, spare_split_table(block, prices, size, up=False))
    elif block.is_split:
        base = split_table(block, prices, size, up=False)
    else:
        base = plain_table(block, prices, size, up=False)
    if demand.min_replicas <= 1 + int(demand.survives_loss):
        return base
    new, more = plain_table(firm, prices, size, up=False), demand.min_replicas
    if demand.survives_loss:
        # What serves without its largest instance has two; one more may itself be the largest, so it need serve nothing more.
        new, more = replace(new, steps=np.zeros_like(new.steps)), more - 2
    h = [base.f]
    for _ in range(more):
        h.append(kernels.one_more(h[-1], new.steps, new.cost))
    return Replicas(base, new, h)
