"""Shortages of many columns where spot is capped, which ruin and recreate does not know, beside any other rules: a few models
at a time are taken out and served anew, in part where that costs less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import Grid, ModelBlocks, best_level, excess_costs, model_blocks
from tasks.allocation.covers.rounding import is_within, nodes_of, take_what_fits, with_paid
from tasks.allocation.covers.tables import Block, NodePrices
from tasks.allocation.covers.task import Task
from tasks.allocation.outcome import served_shares, trim

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_NONE = 1e-6
_SMALL = 0.02  # of the demand: a smaller instance costs little above its share only for being small
_PER_NODE = 2  # of them more for every kind of node
_PER_BLOCK = 50  # columns that serve a phase in a region, those that cost least above their share
_GRID = Grid(1024, 4)
MOST_WORK = 1200  # models served anew, at most
_AT_ONCE = 3  # models taken out, at most
# Tries at a cover that fits; what a node costs more once one wanted more of it than is left.
_REPAIRS, _SCARCER = 8, 1.5
_NOISE, _MOST_WORTH = 0.3, 1.2  # of the prices; of what nodes are worth to others, in the prices
_HEAT = (0.02, 0.0005)  # of the whole value, at the beginning and the end: what a plan may be worse and yet stay


@dataclass(frozen=True, slots=True)
class Aim:
    """What is minimised: what instances cost at ``cost`` of nodes, and ``weight`` of each model's missing share (of the blocks'
    demand). ``prices``: the cost, and what nodes are worth to other models."""

    weight: Floats
    cost: NodePrices
    prices: NodePrices

    def some_prices(self, random: np.random.Generator) -> NodePrices:
        """The cost and some of what nodes are worth to others, with noise."""
        part = _MOST_WORTH * random.random()
        noise = 1 + _NOISE * random.random() * random.random(self.cost.new.shape)
        new = noise * (self.cost.new + part * (self.prices.new - self.cost.new))
        return NodePrices(new, noise * (self.cost.kept + part * (self.prices.kept - self.cost.kept)))


@dataclass(frozen=True, slots=True)
class _Plan:
    counts: Ints
    left: Ints
    missing: Floats


def serve_anew(
    task: Task, start: Ints, mix: Floats, aim: Aim, is_enough: Callable[[Floats], bool], most: int = MOST_WORK
) -> tuple[Ints, int]:
    """A plan within all limits at which ``aim`` is less than at ``start``, or that, of the columns in ``mix`` and some more; and
    how many models were served anew for it. Ends early once ``is_enough`` of the shares that models miss."""
    rows = _few(task.models, aim.prices, (start > 0) | (mix > _NONE))
    search = _Search(task, task.columns.select(rows), aim)
    plan = search.plan(start[rows])
    value = search.value(plan)
    best, least = plan, value
    random, work = np.random.default_rng(task.limits.seed), most
    while work > 0 and not is_enough(best.missing) and not task.clock.is_past():
        out = search.drawn(plan, random)
        work -= len(out)
        other = search.anew(plan, out, random)
        if other is None:
            continue
        found = search.value(other)
        heat = least * _HEAT[0] * (_HEAT[1] / _HEAT[0]) ** (1 - work / most)
        if found < value - heat * np.log(random.random() + 1e-300):
            plan, value = other, found
        if value < least * (1 - 1e-9):
            best, least = plan, value
    return task.columns.spread(rows, best.counts), most - work


class _Search:
    """``columns``: few of the task's; models are of these alone."""

    def __init__(self, task: Task, columns: Columns, aim: Aim) -> None:
        self._task, self._columns, self._aim = task, columns, aim
        names = {model.demand.model for model in task.models}
        self._models = [m for m in model_blocks(task.problem, columns, task.share) if m.demand.model in names]
        pool = columns.pool
        self._new = (columns.counts * aim.cost.new[pool]).sum(axis=1)
        self._kept = (columns.counts * aim.cost.kept[pool]).sum(axis=1)
        self._rows = [
            np.sort(np.concatenate([block.columns for phases in model.blocks for block in phases]))
            if model.blocks
            else np.zeros(0, dtype=np.intp)
            for model in self._models
        ]

    def plan(self, counts: Ints) -> _Plan:
        """A plan of these instances."""
        use = nodes_of(self._columns, counts, np.flatnonzero(counts), self._task.problem.capacity_nodes.shape)
        missing = np.array([self._missing(m, counts) for m in range(len(self._models))])
        return _Plan(counts, self._task.problem.capacity_nodes - use, missing)

    def value(self, plan: _Plan) -> float:
        """What is minimised."""
        stay = np.minimum(plan.counts, self._columns.running)
        return float(self._new @ (plan.counts - stay) + self._kept @ stay + self._aim.weight @ plan.missing)

    def drawn(self, plan: _Plan, random: np.random.Generator) -> list[int]:
        """Models to take out: often one that misses something, others by chance."""
        many = min(int(random.integers(1, _AT_ONCE + 1)), len(self._models))
        out = random.permutation(len(self._models))[:many].tolist()
        lacking = np.flatnonzero(plan.missing > 0)
        if len(lacking) and random.random() < 0.7:
            one = int(random.choice(lacking))
            out = [one, *(m for m in out if m != one)][:many]
        return out

    def anew(self, plan: _Plan, out: Sequence[int], random: np.random.Generator) -> _Plan | None:
        """The plan with the models ``out`` served anew, one after the other; None where budget or quotas do not hold."""
        other = _Plan(plan.counts.copy(), plan.left.copy(), plan.missing.copy())
        for m in out:
            rows = self._rows[m]
            other.left[:] += nodes_of(self._columns, other.counts, rows, other.left.shape)
            other.counts[rows] = 0
        prices = self._aim.some_prices(random)
        for m in out:
            self._serve(other, m, prices)
        return other if is_within(self._task.problem, self._columns, other.counts) else None

    def _serve(self, plan: _Plan, m: int, prices: NodePrices) -> None:
        """Let the model take what costs least with what it then misses. A cover may want more nodes than are left: then what
        fits is taken, such nodes are made dearer, and it is asked again, what it has counted as paid."""
        new, rows = prices.new.copy(), self._rows[m]
        for _ in range(_REPAIRS):
            here = replace(self._models[m], blocks=with_paid(self._models[m], plan.counts, plan.left))
            kept = np.zeros_like(new) if plan.counts[rows].any() else prices.kept
            cover = best_level(here, NodePrices(new, kept), _GRID, float(self._aim.weight[m]))
            if cover is None:
                break
            more = np.zeros(len(self._columns), dtype=np.int64)
            more[cover.columns] = cover.instances
            more[rows] = np.maximum(more[rows] - plan.counts[rows], 0)
            use = nodes_of(self._columns, more, rows, plan.left.shape)
            if (use <= plan.left).all():
                plan.counts[rows] += more[rows]
                plan.left[:] -= use
                break
            new[use > plan.left] *= _SCARCER
            take_what_fits(self._columns, rows[more[rows] > 0], more, plan.counts, plan.left)
        self._trim(plan, m)
        plan.missing[m] = self._missing(m, plan.counts)

    def _trim(self, plan: _Plan, m: int) -> None:
        """Give back instances that nothing needs for what the model is served."""
        rows, demand = self._rows[m][plan.counts[self._rows[m]] > 0], self._models[m].demand
        if not len(rows):
            return
        part, before = self._columns.select(rows), plan.counts[rows].copy()
        alone = replace(self._task.problem, demands=(demand,))
        served = served_shares(alone, part, before)[demand.model]
        plan.counts[rows] = trim(alone, part, before, {demand.model: min(served, self._task.share)})
        spare = before - plan.counts[rows]
        plan.left[:] += nodes_of(part, spare, np.arange(len(rows)), plan.left.shape)

    def _missing(self, m: int, counts: Ints) -> float:
        """Share of the blocks' demand that the model misses."""
        rows, demand = self._rows[m][counts[self._rows[m]] > 0], self._models[m].demand
        if not len(rows):
            return 1.0
        part, alone = self._columns.select(rows), replace(self._task.problem, demands=(demand,))
        served = served_shares(alone, part, counts[rows])[demand.model]
        return max(1.0 - served / self._task.share, 0.0)


def _few(models: Sequence[ModelBlocks], prices: NodePrices, wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The columns ``wanted``, and of every block those that cost least above what their share costs at best, in all and of
    those that use a kind of node."""
    kept = [np.flatnonzero(wanted)]
    for model in models:
        for phases, excesses in zip(model.blocks, excess_costs(model, prices), strict=True):
            for block, excess in zip(phases, excesses, strict=True):
                order = np.argsort(excess / np.sqrt(np.clip(block.share, _SMALL, 1.0)), kind="stable")
                kept += [block.columns[order[:_PER_BLOCK]], block.columns[_first_of_each_node(block, order)]]
    return np.unique(np.concatenate(kept))


def _first_of_each_node(block: Block, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """For every kind of node the first rows in ``order`` that use it: where others are used up, something is left to try."""
    at, place = np.nonzero(block.count[order] > 0)
    found = []
    for _ in range(_PER_NODE):
        _, first = np.unique(block.node[order][at, place], return_index=True)
        found.append(order[at[first]])
        at, place = np.delete(at, first), np.delete(place, first)
    return np.concatenate(found)
