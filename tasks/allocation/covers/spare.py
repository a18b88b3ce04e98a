"""Tables of N+1, :mod:`tasks.allocation.covers.tables`: a block serves what is left without its largest instance.

Where spot is capped too there is one table of both, on a coarser grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.covers import kernels, spare_kernels
from tasks.allocation.covers.tables import Block, Floats, NodePrices, bundles_of, firm_part, grid_steps, item_costs

_JOINT = 1024  # steps of the table of N+1 and capped spot together, which takes their square in time


@dataclass(frozen=True, slots=True)
class Entries:
    """What a table of N+1 is made of, by rising share: a column any number of times, or, ``once``, so many copies of it that
    run or fit. ``lost``: steps of one instance; ``ends``: the last of each share."""

    row: NDArray[np.int64]
    copies: NDArray[np.int64]
    steps: NDArray[np.int64]
    cost: Floats
    once: NDArray[np.bool_]
    lost: NDArray[np.int64]
    ends: NDArray[np.bool_]

    def select(self, mask: NDArray[np.bool_]) -> Entries:
        """The entries of ``mask``."""
        return Entries(*(getattr(self, name)[mask] for name in self.__slots__))

    def walk(self, block: Block, need: int) -> dict[int, int]:
        """Instances by column of the least cost of ``need`` steps."""
        if need <= 0 or not len(self.row):
            return {}
        taken = spare_kernels.spare_walk(self.steps, self.cost, self.once, len(self.row) - 1, need)
        chosen: dict[int, int] = {}
        for entry in np.flatnonzero(taken).tolist():
            column = int(block.columns[self.row[entry]])
            chosen[column] = chosen.get(column, 0) + int(taken[entry] * self.copies[entry])
        return chosen


@dataclass(frozen=True, slots=True)
class Spare:
    """N+1: f[g] = min over shares a of the least cost of g + a from instances of at most a each. Whoever serves g without
    its largest instance, of share a, is of that kind, and whoever is of that kind serves g without any one."""

    block: Block
    entries: Entries
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
        upto = self.entries.select(np.arange(len(self.entries.row)) <= last)
        return upto.walk(self.block, g + int(self.entries.lost[last]))


@dataclass(frozen=True, slots=True)
class SpareSplit:
    """N+1 where spot is capped, on a grid of ``coarse`` steps: as :class:`Spare` with so many firm steps. ``part``: the firm
    steps, of those that serve and of those that may be lost."""

    block: Block
    entries: Entries
    coarse: int
    f: Floats
    last: NDArray[np.int64]
    part: NDArray[np.int64]

    @property
    def presence(self) -> float:
        """Two instances that serve a step."""
        return float(self.f[1])

    def walk(self, g: int) -> dict[int, int]:
        """Instances by column behind f[g]."""
        size = len(self.f) - 1
        k = -(-max(g, 1) * self.coarse // size)
        last, firm_steps = int(self.last[k]), int(self.part[k])
        upto = self.entries.select(np.arange(len(self.entries.row)) <= last)
        spot_steps = k + int(self.entries.lost[last]) - firm_steps
        firm = self.block.firm[upto.row]
        parts = ((upto.select(firm), firm_steps), (upto.select(~firm), spot_steps))
        return {column: many for of, need in parts for column, many in of.walk(self.block, need).items()}


def spare_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> Spare:
    """The table of N+1: entries by rising share, the requirement raised by the largest so far."""
    it = _entries(block, prices, size, up=up)
    f, last = spare_kernels.spare_table(it.steps, it.cost, it.once, it.lost, it.ends, size)
    return Spare(block, it, f, last)


def spare_split_table(block: Block, prices: NodePrices, size: int, *, up: bool) -> SpareSplit:
    """The table of N+1 where spot is capped, on ``_JOINT`` steps at most: a step of it stands for all that need it."""
    coarse = min(size, _JOINT)
    it = _entries(block, prices, coarse, up=up)
    least = firm_part(block, coarse, up=up)
    f, last, part = spare_kernels.spare_split_table(
        it.steps, it.cost, it.once, block.firm[it.row], it.lost, it.ends, least, coarse
    )
    g = np.arange(size + 1)
    # Who serves more than g - 1 of the fine steps serves more than a coarse step less than the first that holds g - 1.
    k = np.where(g > 0, (g - 1) * coarse // size + 1, 0) if up else -(-g * coarse // size)
    return SpareSplit(block, it, coarse, f[k], last, part)


def _entries(block: Block, prices: NodePrices, size: int, *, up: bool) -> Entries:
    """Covers take what fits once only once (from below that would need what it replaces). Where spot is capped nothing
    firm is left out for something on spot."""
    share = np.minimum(block.share, 1.0)
    steps = grid_steps(share, size, up=up)
    lost = grid_steps(share, size, up=not up)
    cost = item_costs(block, prices.new)
    often = np.ones(len(share), dtype=np.bool_) if up else block.most > 1
    alike = [block.firm, ~block.firm] if block.is_split else [np.ones(len(share), dtype=np.bool_)]
    items, single = (
        np.concatenate([np.flatnonzero(m)[kernels.useful_items(steps[m], cost[m])] for m in (a & mask for a in alike)])
        for mask in (often, ~often)
    )
    bundles = bundles_of(block, prices, size, 2 * size, up=up)
    row = np.array([*items, *single, *(b[0] for b in bundles)], dtype=np.int64)
    copies = np.array([1] * (len(items) + len(single)) + [b[1] for b in bundles], dtype=np.int64)
    entry_steps = np.array([*steps[items], *steps[single], *(b[2] for b in bundles)], dtype=np.int64)
    entry_cost = np.array([*cost[items], *cost[single], *(b[3] for b in bundles)], dtype=np.float64)
    once = np.arange(len(row)) >= len(items)
    order = np.argsort(block.share[row], kind="stable").astype(np.intp)
    row, copies, once = row[order], copies[order], once[order]
    ends = np.append(np.diff(block.share[row]) > 0, True)[: len(row)]
    return Entries(row, copies, entry_steps[order], entry_cost[order], once, lost[row], ends)
