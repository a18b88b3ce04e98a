"""A plan for many models in stages, those of few large instances first.

The duals of the LP over covers tell what nodes are worth only as long as all models may still mix their covers. Where single
instances cost much of the whole, a search over all models at once goes wrong early and does not come back. So a few models
are searched together at these prices, their instances are fixed, and the LP over the covers of the others, on what is left,
gives the prices of the next stage. It also tells what a stage is worth: of several searches the one stays that, with this LP,
costs least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.generation import Generated, narrowed, refine
from tasks.allocation.covers.master import Master
from tasks.allocation.covers.packing import Packing, packing
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    dual_prices,
    own_prices,
    quota_limits,
    quota_use,
    side_by_side,
)
from tasks.allocation.covers.recreate import search_together
from tasks.allocation.covers.rounding import nodes_of, whole
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.types import AllocationProblem, SolveLimits

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_LUMPY = 0.125
_PART, _LAST = 0.2, 6  # of the models left, a stage; so few are the last one
_TRIES = 2  # searches of a stage, side by side
ROUNDS = 1500  # of a search, per model
_HEAT = (0.1, 0.005)  # of what an instance costs, at the beginning and the end
_WORTH, _NO_WORTH = (1.0, 1.0), (0.8, 0.0)  # of what nodes are worth to others, of whom the last stage has none
_ROOM = 6.0  # times the gap: the LPs between stages are solved less closely than that of all models
_LITTLE = 0.2  # of a column's cost above its share, at most: others are left out


@dataclass(frozen=True, slots=True)
class Stage:
    """``counts`` of instances so far and what they cost, with what their models lack (``value``); models (by index) not planned
    yet, ``rest``; the problem with what is left to them, ``free``, and the LP over them, ``found`` (the last one where there are
    none)."""

    counts: Ints
    value: float
    rest: list[int]
    free: AllocationProblem
    found: Generated

    @property
    def promise(self) -> float:
        """What the whole costs at least, about, from here on."""
        return self.value + (self.found.value if self.rest else 0.0)


@dataclass(frozen=True, slots=True)
class Staging:
    """What all stages share: the models, and of each only the columns that cost ``little`` above their share (``few``);
    ``cost`` of nodes; what lacking a model's whole demand costs (``weights``); the LP's ``grid`` and ``room`` (USD/h);
    ``rounds`` of search per model."""

    columns: Columns
    models: Sequence[ModelBlocks]
    few: list[ModelBlocks]
    cost: NodePrices
    weights: Floats
    grid: Grid
    room: float
    rounds: int
    limits: SolveLimits
    clock: Clock

    def best_after(self, stage: Stage, seeds: Sequence[int], threads: int) -> Stage:
        """The most promising of the next stages that searches with ``seeds`` end at."""
        mix, duals = stage.found.mix(self.columns), stage.found.duals
        chosen = self._largest(stage.rest, mix)
        prices = dual_prices(stage.free, duals.supply, duals.budget, duals.quota)
        some = [self.models[m] for m in chosen]
        packed = packing(stage.free, self.columns, some, self.cost, prices, mix, self.weights[chosen])
        rest = sorted(set(stage.rest) - set(chosen))
        stages = side_by_side(
            lambda seed: self._after(stage, packed, whole(mix), rest, seed), seeds, threads, at_least=2
        )
        return min(stages, key=lambda found: found.promise)

    def _largest(self, rest: list[int], mix: Floats) -> list[int]:
        """The models of the next stage: those of fewest instances in the mix."""
        if len(rest) <= _LAST:
            return rest
        few = np.argsort(_instances([self.models[m] for m in rest], mix), kind="stable")
        return sorted(rest[at] for at in few[: math.ceil(_PART * len(rest))].tolist())

    def _after(self, stage: Stage, packed: Packing, start: Ints, rest: list[int], seed: int) -> Stage:
        """``stage`` with the models of ``packed`` planned as a search with ``seed`` from ``start`` on does it; ``rest``: the
        others."""
        bias = _WORTH if rest else _NO_WORTH
        end = search_together(packed, packed.state(start), self.rounds, _HEAT, bias, seed, self.clock)
        taken = packed.counts(end.x, len(self.columns))
        value = stage.value + packed.value(end)
        free, found = _without(stage.free, self.columns, taken), stage.found
        if rest:
            master = self._fitting(free, stage, rest)
            few = [self.few[m] for m in rest]
            duals = stage.found.duals
            found = refine(free, self.columns, few, master, duals, self.grid, self.room, self.limits, self.clock)
        return Stage(stage.counts + taken, value, rest, free, found)

    def _fitting(self, free: AllocationProblem, stage: Stage, rest: Sequence[int]) -> Master:
        """A master for the models ``rest`` with those covers of the stage's that fit into what is free."""
        master = Master(free, self.columns, len(rest), self.limits, stage.found.master.penalty)
        place = {m: at for at, m in enumerate(rest)}
        old = stage.found.master
        for (at, cover), use in zip(old.covers, old.uses, strict=True):
            m = stage.rest[at]
            if m in place and (use <= free.capacity_nodes).all():
                master.add(place[m], cover)
        return master


def is_lumpy(models: Sequence[ModelBlocks], mix: Floats, parts: Sequence[float] | Floats) -> bool:
    """Whether single instances weigh so much that stages find better plans than a search over all models.

    Measured by sum (p^2 / n) x models / (sum p)^2, of what the models cost at least, p (``parts``), and their instances in the
    ``mix``, n: 1 / n where all are alike, more where a few models cost most.
    """
    squares = np.square(np.asarray(parts))
    each = 1 / np.maximum(_instances(models, mix), 1.0)
    return bool((squares * each).sum() * len(models) > _LUMPY * np.sum(parts) ** 2)


def plan_in_stages(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    found: Generated,
    weights: Floats,
    grid: Grid,
    limits: SolveLimits,
    clock: Clock,
    rounds: int = ROUNDS,
) -> Ints:
    """Instances per column; where a stage found no way its models lack some of their demand. ``found``: the LP over all models;
    ``weights``: what lacking all of a model's demand costs."""
    prices = dual_prices(problem, found.duals.supply, found.duals.budget, found.duals.quota)
    few = [narrowed(model, prices, _LITTLE) for model in models]
    room = _ROOM * limits.gap * abs(found.value)
    # A search and its LP on a thread each: more threads would wait for one another.
    alone, cost = replace(limits, threads=1), own_prices(problem)
    staging = Staging(columns, models, few, cost, weights, grid, room, rounds, alone, clock)
    stage = Stage(np.zeros(len(columns), dtype=np.int64), 0.0, list(range(len(models))), problem, found)
    seed = limits.seed
    while stage.rest and not clock.is_past():
        stage = staging.best_after(stage, range(seed, seed + _TRIES), limits.threads)
        seed += _TRIES
    return stage.counts


def _instances(models: Sequence[ModelBlocks], mix: Floats) -> Floats:
    """How many instances each model has in the mix."""
    return np.array([sum(float(mix[b.columns].sum()) for phases in m.blocks for b in phases) for m in models])


def _without(problem: AllocationProblem, columns: Columns, taken: Ints) -> AllocationProblem:
    """The problem with what ``taken`` instances leave of nodes, quotas and budget."""
    use = nodes_of(columns, taken, np.flatnonzero(taken), problem.capacity_nodes.shape)
    left = (quota_limits(problem) - quota_use(problem, use)).tolist()
    budget, rent = problem.budget_usd_per_h, float((taken * columns.price_usd_per_h).sum())
    return replace(
        problem,
        capacity_nodes=problem.capacity_nodes - use,
        quotas=tuple(replace(quota, limit=int(many)) for quota, many in zip(problem.quotas, left, strict=True)),
        budget_usd_per_h=None if budget is None else max(budget - rent, 0.0),
    )
