"""One model's cheapest cover at given node prices: a lower bound on it, and a cover that is near it.

Two roundings of rates to a grid of 1/G of the demand: up for the bound (a relaxation, always valid), down for covers
(always enough). A bound from rates rounded down would be wrong: three templates of a third each cover the demand, but
rounded down take four.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.column_kernels import used_configs
from tasks.allocation.columns import RATE_TOLERANCE, Columns
from tasks.allocation.covers import kernels
from tasks.allocation.covers.ruled import Below, table_above, table_below
from tasks.allocation.covers.tables import Block, NodePrices, Table, item_costs
from tasks.allocation.types import AllocationProblem, ModelDemand

Floats = NDArray[np.float64]
S = TypeVar("S")
T = TypeVar("T")
# A grid is fine enough where the larger templates serve so much of the demand; else it is doubled up to so often.
_LARGER, _COARSE_SHARE, _MOST_DOUBLINGS = 0.75, 0.05, 3
_MANY_MODELS = 12
_FEW_REGIONS = 3  # are joined step by step, more of them in cells


@dataclass(frozen=True, slots=True)
class ModelBlocks:
    """A model's blocks, [region][phase], and the least number of regions it wants. ``fineness``: how many times finer than
    others its grid is, where many small instances serve it and rounding each would cost too much."""

    demand: ModelDemand
    blocks: tuple[tuple[Block, ...], ...]
    wanted: int
    fineness: int = 1

    def scaled(self, grid: Grid) -> Grid:
        """``grid`` as fine as this model needs it."""
        return Grid(grid.size * self.fineness, grid.unit * self.fineness)


@dataclass(frozen=True, slots=True)
class Cover:
    """Instances per column that serve a model: parallel arrays."""

    columns: NDArray[np.intp]
    instances: NDArray[np.int64]


def counts_of(columns: Columns, covers: Iterable[Cover]) -> NDArray[np.int64]:
    """Instances per column of covers together."""
    counts = np.zeros(len(columns), dtype=np.int64)
    for cover in covers:
        counts[cover.columns] += cover.instances
    return counts


@dataclass(frozen=True, slots=True)
class Grid:
    """Steps of the demand, and how many of them make a cell where regions are joined (``size`` is whole cells)."""

    size: int
    unit: int


def model_blocks(problem: AllocationProblem, columns: Columns, share: float) -> list[ModelBlocks]:
    """The active models' blocks; shares are of ``share`` times the demand. A model without any block has none."""
    ids = {candidates.workload_id: w for w, candidates in enumerate(problem.candidates)}
    place = columns.workload.astype(np.int64) * len(problem.regions) + columns.region
    order = np.argsort(place, kind="stable")
    first = np.searchsorted(place[order], np.arange(len(problem.candidates) * len(problem.regions) + 1))
    firm = columns.is_firm(problem)

    def block(workload: int, region: int) -> Block:
        at = workload * len(problem.regions) + region
        return _block(columns, order[first[at] : first[at + 1]], firm, demand, target)

    models = []
    for demand in sorted((d for d in problem.demands if d.planned_req_per_s > 0), key=lambda d: d.model):
        target = demand.planned_req_per_s * share * (1 - RATE_TOLERANCE)
        regions = []
        for region in sorted(demand.regions):
            r = problem.regions.index(region)
            phases = [block(ids[w], r) for w in demand.workload_ids]
            if all(len(block.columns) for block in phases):
                regions.append(tuple(phases))
        models.append(ModelBlocks(demand, tuple(regions), max(demand.min_regions, 1), _fineness(regions)))
    return models


def _fineness(regions: list[tuple[Block, ...]]) -> int:
    """By the share that the larger templates of the phase with the smallest ones serve."""
    if not regions or any(block.is_split for phases in regions for block in phases):
        return 1
    larger = min(float(np.quantile(np.concatenate(phase), _LARGER)) for phase in _shares_by_phase(regions))
    return int(2 ** min(max(round(math.log2(_COARSE_SHARE / larger)), 0), _MOST_DOUBLINGS))


def _shares_by_phase(regions: list[tuple[Block, ...]]) -> Iterator[list[Floats]]:
    for phases in zip(*regions, strict=True):
        yield [block.share for block in phases]


def _block(
    columns: Columns, rows: NDArray[np.intp], firm: NDArray[np.bool_], demand: ModelDemand, target: float
) -> Block:
    rows = rows[np.argsort(-columns.rate_req_per_s[rows], kind="stable")]
    counts = columns.counts[rows]
    node, count = used_configs(counts)
    first = columns.pool[rows].astype(np.int64)[:, None] * counts.shape[1]  # its pool's place in the flattened arrays
    return Block(
        columns=rows,
        node=np.ascontiguousarray(first + node, dtype=np.int32),
        count=count,
        share=columns.rate_req_per_s[rows] / target,
        running=np.minimum(columns.running[rows], columns.max_instances[rows]),
        firm=firm[rows],
        most=columns.max_instances[rows],
        demand=demand,
    )


def lower_bound(model: ModelBlocks, prices: NodePrices, grid: Grid) -> float:
    """No cover of the model costs less than this at ``prices``; inf if there is no cover."""
    grid = model.scaled(grid)
    tables = [[table_below(block, prices, grid.size) for block in phases] for phases in model.blocks]
    return _least(model, [_together(row) for row in tables], [_least_presence(row) for row in tables], grid)


def workload_lower_bound(model: ModelBlocks, phase: int, prices: NodePrices, grid: Grid) -> float:
    """As :func:`lower_bound` for one phase alone, wherever it runs."""
    grid = model.scaled(grid)
    f = [table_below(phases[phase], prices, grid.size).f for phases in model.blocks]
    return _least(model, f, [0.0] * len(f), grid, wanted=1)


def excess_costs(model: ModelBlocks, prices: NodePrices) -> list[list[Floats]]:
    """Per region and phase what a new instance of each column costs at ``prices`` above the least that its share can cost,
    served in the region where a share of all phases is cheapest: 0 for the best, a guide and no bound."""
    costs = [[item_costs(block, prices.new) for block in phases] for phases in model.blocks]
    slopes = [
        [float((cost / np.minimum(block.share, 1.0)).min()) for cost, block in zip(row, phases, strict=True)]
        for row, phases in zip(costs, model.blocks, strict=True)
    ]
    least = min((sum(row) for row in slopes), default=0.0)
    return [
        [
            cost - slope * least / max(sum(here), 1e-12) * np.minimum(block.share, 1.0)
            for cost, slope, block in zip(row, here, phases, strict=True)
        ]
        for row, here, phases in zip(costs, slopes, model.blocks, strict=True)
    ]


def side_by_side(work: Callable[[S], T], things: Sequence[S], threads: int, at_least: int = _MANY_MODELS) -> list[T]:
    """``work`` of every thing, in order; on so many threads where they are many (most of it is compiled code)."""
    if threads < 2 or len(things) < at_least:
        return [work(thing) for thing in things]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, things))


def _together(tables: Sequence[Table | Below]) -> Floats:
    total = tables[0].f.copy()
    for table in tables[1:]:
        total += table.f
    return total


def _least_presence(tables: Sequence[Table | Below]) -> float:
    """Cost of being in a region at all."""
    return float(sum(table.presence for table in tables))


def _least(model: ModelBlocks, f: list[Floats], presence: list[float], grid: Grid, wanted: int | None = None) -> float:
    wanted = model.wanted if wanted is None else wanted
    if len(f) < wanted or not f:
        return float("inf")
    if len(f) <= _FEW_REGIONS:
        # At least so many regions are present: one of the sets of so many is.
        sets = itertools.combinations(range(len(f)), wanted if wanted > 1 else 0)
        return min(
            _split_few([_present(row, presence[r]) if r in there else row for r, row in enumerate(f)], grid)
            for there in sets
        )
    if wanted == 1:
        return float(kernels.split_many(np.array(f), grid.unit)[0])
    cells = np.array([kernels.coarse_lower(row, grid.unit) for row in f])
    cells[:, 0] = presence
    h, _, _ = kernels.join_regions(cells, len(f), wanted)
    return float(h[-1, wanted, -1])


def _present(f: Floats, presence: float) -> Floats:
    """``f`` where something runs in the region in any case."""
    out = np.maximum(f, presence)
    out[0] = presence
    return out


def _split_few(f: list[Floats], grid: Grid) -> float:
    if len(f) == 1:
        return float(f[0][-1])
    if len(f) == 2:
        return float(kernels.split_two(f[0], f[1]))
    return float(kernels.split_three(f[0], f[1], f[2], grid.unit))


def cheap_covers(model: ModelBlocks, prices: NodePrices, grid: Grid) -> tuple[list[Cover], float]:
    """Covers that are cheap at ``prices``: the best over all splits on the grid first, then the best of each region alone;
    and the cost of the first.

    Rates are rounded down, so each is a cover; none and inf if there is none.
    """
    if len(model.blocks) < model.wanted:
        return [], math.inf
    grid = model.scaled(grid)
    tables = _tables_down(model, prices, grid)
    if model.wanted > 1:
        cover, least = _at_whole_cells(model, tables, grid)
        return [] if cover is None else [cover], least
    f = np.array([_together(row) for row in tables])
    least, split = kernels.split_many(f, grid.unit)
    best = [[k or -1 for k in split.tolist()]] if math.isfinite(least) else []
    alone = [one for one in range(len(tables)) if len(tables) > 1 and np.isfinite(f[one, -1])]
    best += [[grid.size if r == one else -1 for r in range(len(tables))] for one in alone]
    return [_cover(model, tables, split, Grid(grid.size, 1)) for split in best], float(least)


def quick_cover(model: ModelBlocks, prices: NodePrices, grid: Grid) -> Cover | None:
    """A cover that is cheap at ``prices``, regions joined at whole cells; None if there is none."""
    if len(model.blocks) < model.wanted:
        return None
    grid = model.scaled(grid)
    return _at_whole_cells(model, _tables_down(model, prices, grid), grid)[0]


def _at_whole_cells(model: ModelBlocks, tables: list[list[Table]], grid: Grid) -> tuple[Cover | None, float]:
    """The cheapest cover of whole cells in every region and its cost; None and inf if there is none."""
    cells = _cells_down(model, tables, grid)
    h, taken, source = kernels.join_regions(cells, len(tables), model.wanted)
    least = float(h[-1, model.wanted, -1])
    if not math.isfinite(least):
        return None, math.inf
    split = _walk_regions(taken, source, model.wanted, cells.shape[1] - 1)
    return _cover(model, tables, split, grid), least


def covers_at_levels(model: ModelBlocks, prices: NodePrices, grid: Grid, worth: Floats, level: float) -> list[Cover]:
    """Covers of a part of the demand: at the level of least cost plus ``worth`` [cells], at ``level``, and at all of it."""
    if not model.blocks:
        return []
    tables = _tables_down(model, prices, grid)
    h, taken, source = kernels.join_regions(_cells_down(model, tables, grid), len(tables), 1)
    cost = h[-1, 1]
    last = len(cost) - 1
    levels = {int(np.argmin(cost + worth)), math.ceil(level * last), last}
    splits = [_walk_regions(taken, source, 1, k) for k in sorted(levels) if k > 0 and np.isfinite(cost[k])]
    return [_cover(model, tables, split, grid) for split in splits]


def least_by_level(model: ModelBlocks, prices: NodePrices, grid: Grid) -> Floats:
    """From below: what a model costs at least when served a share in ((k-1)/cells, k/cells], k = 0..cells; 0 for none."""
    cells = grid.size // grid.unit
    out = np.full(cells + 1, np.inf)
    out[0] = 0.0
    if not model.blocks:
        return out
    tables = [[table_below(block, prices, grid.size) for block in phases] for phases in model.blocks]
    below = np.array([kernels.coarse_lower(_together(row), grid.unit) for row in tables])
    if len(tables) == 1:
        return np.asarray(below[0])
    h, _, _ = kernels.join_regions(below, len(tables), 1)
    least = h[-1].min(axis=0)
    return np.asarray(np.minimum.accumulate(least[::-1])[::-1])


def _tables_down(model: ModelBlocks, prices: NodePrices, grid: Grid) -> list[list[Table]]:
    return [[table_above(block, prices, grid.size) for block in phases] for phases in model.blocks]


def _cells_down(model: ModelBlocks, tables: list[list[Table]], grid: Grid) -> Floats:
    """Costs of whole cells per region; cell 0 is mere presence where several regions are wanted."""
    cells = np.array([_together(row)[:: grid.unit] for row in tables])
    cells[:, 0] = [_least_presence(row) for row in tables] if model.wanted > 1 else 0.0
    return cells


def _walk_regions(taken: NDArray[np.int64], source: NDArray[np.int64], j: int, k: int) -> list[int]:
    """Cells per region (-1: absent) behind state (j, k) of :func:`kernels.join_regions`."""
    regions, _, size = taken.shape
    split = [-1] * regions
    for r in range(regions - 1, -1, -1):
        split[r] = int(taken[r, j, k])
        j, k = divmod(int(source[r, j, k]), size)
    return split


def _cover(model: ModelBlocks, tables: list[list[Table]], split: list[int], grid: Grid) -> Cover:
    chosen: dict[int, int] = {}
    for r, cell in enumerate(split):
        if cell > 0 or (cell == 0 and model.wanted > 1):
            for table in tables[r]:
                chosen.update(table.walk(cell * grid.unit))
    rows = np.array(sorted(chosen), dtype=np.intp)
    return Cover(rows, np.array([chosen[i] for i in rows], dtype=np.int64))


def dual_prices(problem: AllocationProblem, supply: Floats, budget: float, quota: Floats) -> NodePrices:
    """Node prices with duals added: (1 + K + budget) p + supply + units x quota for new ones, without K for those that run."""
    base = np.nan_to_num(problem.price_usd_per_h)
    supply = supply + quota_prices(problem, quota)
    return NodePrices(base * (1 + problem.init_share + budget) + supply, base * (1 + budget) + supply)


def own_prices(problem: AllocationProblem) -> NodePrices:
    """Node prices without duals: what nodes cost."""
    return dual_prices(problem, np.zeros(problem.price_usd_per_h.shape), 0.0, np.zeros(len(problem.quotas)))


def supply_value(problem: AllocationProblem, supply: Floats, budget: float, quota: Floats) -> float:
    """What all supply, budget and quotas come to at their duals."""
    nodes = float((supply * problem.capacity_nodes).sum()) + float(quota @ quota_limits(problem))
    return nodes + budget * (problem.budget_usd_per_h or 0.0)


def quota_prices(problem: AllocationProblem, quota: Floats) -> Floats:
    """What a node costs at duals of the quotas, [pool, configuration]."""
    total = np.zeros(problem.price_usd_per_h.shape)
    for dual, row in zip(quota.tolist(), problem.quotas, strict=True):
        if dual > 0:
            total += dual * problem.quota_units(row)
    return total


def quota_use(problem: AllocationProblem, use: NDArray[np.int64]) -> NDArray[np.int64]:
    """Units of every quota that ``use`` [pool, configuration] nodes take."""
    return np.array([int((use * problem.quota_units(quota)).sum()) for quota in problem.quotas], dtype=np.int64)


def quota_limits(problem: AllocationProblem) -> NDArray[np.int64]:
    """The quotas' limits."""
    return np.array([quota.limit for quota in problem.quotas], dtype=np.int64)


def cover_use(columns: Columns, cover: Cover, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Nodes a cover uses, [pool, configuration]."""
    used = np.zeros(shape, dtype=np.int64)
    np.add.at(used, columns.pool[cover.columns], columns.counts[cover.columns] * cover.instances[:, None])
    return used


def cover_cost(columns: Columns, cover: Cover, init_share: float) -> tuple[float, float]:
    """Rent and rent plus start-up charge of a cover."""
    price = columns.price_usd_per_h[cover.columns]
    new = np.maximum(cover.instances - columns.running[cover.columns], 0)
    rent = float((cover.instances * price).sum())
    return rent, rent + float(init_share * (new * price).sum())
