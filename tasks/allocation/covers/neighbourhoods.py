"""Better plans for many models: the covers of a few at a time are taken out and sought anew in what all others leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import Grid, ModelBlocks, model_blocks
from tasks.allocation.covers.rounding import give, is_within, nodes_of
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import objective_usd, relative_gap, trim
from tasks.allocation.types import AllocationProblem, SolveLimits

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_PER_BLOCK = 120  # columns that serve a phase in a region, those that cost least above the bound
_AT_ONCE = 2  # models taken out, at most
_WORK = 400  # covers sought
_LEAST_EXCESS = 1e-5  # of the bound, or of the cost where that is 0: what a model counts at least when some are drawn


@dataclass(slots=True)
class Plan:
    """Instances per column, and what they leave of the supply."""

    counts: Ints
    left: Ints


def search_neighbourhoods(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    share: float,
    prices: NodePrices,
    parts: Sequence[float],
    if_used: Floats,
    grid: Grid,
    best: GoalOutcome,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome:
    """``best``, a plan, or better. ``parts``: the models' least costs at ``prices``, which hold the duals; ``if_used``: what a
    plan with a column costs at least.

    Models are drawn by what they cost above their least; one after the other then takes the cheapest cover at ``prices`` from
    the supply left. What costs less in all stays.
    """
    assert best.counts is not None
    rows = _few(models, if_used, best.counts)
    few = columns.select(rows)
    search = _Search(problem, few, model_blocks(problem, few, share), share, prices, grid)
    plan = search.plan(best.counts[rows])
    excess = np.array([search.cost(m, plan.counts, prices) - part for m, part in enumerate(parts)])
    random, work = np.random.default_rng(limits.seed), _WORK
    objective = objective_usd(problem, few, plan.counts)
    while work > 0 and relative_gap(objective, best.bound) > limits.gap and not clock.is_past():
        weight = np.maximum(excess, _LEAST_EXCESS * (best.bound or objective))
        many = min(int(random.integers(1, _AT_ONCE + 1)), len(models))
        out = random.choice(len(models), many, replace=False, p=weight / weight.sum()).tolist()
        work -= many
        other = search.without(plan, out)
        if all(search.cover(other, m) for m in out) and is_within(problem, few, other.counts):
            value = objective_usd(problem, few, other.counts)
            if value < objective * (1 - 1e-9):
                plan, objective = other, value
                for m in out:
                    excess[m] = search.cost(m, plan.counts, prices) - parts[m]
    return best.or_better(columns.spread(rows, plan.counts), objective)


@dataclass(frozen=True, slots=True)
class _Search:
    """What the search needs to know; models are of ``share`` of their demand and of few columns."""

    problem: AllocationProblem
    columns: Columns
    models: list[ModelBlocks]
    share: float
    prices: NodePrices
    grid: Grid

    def plan(self, counts: Ints) -> Plan:
        """A plan of these instances, without those that nothing needs."""
        needed = {model.demand.model: self.share for model in self.models}
        counts = trim(self.problem, self.columns, counts, needed)
        use = nodes_of(self.columns, counts, np.flatnonzero(counts), self.problem.capacity_nodes.shape)
        return Plan(counts, self.problem.capacity_nodes - use)

    def rows(self, m: int, counts: Ints) -> NDArray[np.intp]:
        """Columns of the model in use."""
        mine = np.concatenate([block.columns for phases in self.models[m].blocks for block in phases])
        return np.sort(mine[counts[mine] > 0])

    def cost(self, m: int, counts: Ints, prices: NodePrices) -> float:
        """What the model's instances cost at prices of nodes."""
        rows = self.rows(m, counts)
        nodes, pool = self.columns.counts[rows], self.columns.pool[rows]
        new, kept = (nodes * prices.new[pool]).sum(axis=1), (nodes * prices.kept[pool]).sum(axis=1)
        stay = np.minimum(counts[rows], self.columns.running[rows])
        return float((new * (counts[rows] - stay) + kept * stay).sum())

    def without(self, plan: Plan, models: Sequence[int]) -> Plan:
        """The plan without these models."""
        rows = np.concatenate([self.rows(m, plan.counts) for m in models])
        other = Plan(plan.counts.copy(), plan.left + nodes_of(self.columns, plan.counts, rows, plan.left.shape))
        other.counts[rows] = 0
        return other

    def cover(self, plan: Plan, m: int) -> bool:
        """Let the model take a cover from what is left; False if it found none. Changes ``plan``."""
        if not give(self.columns, self.models[m], plan.counts, plan.left, self.prices, self.grid):
            return False
        rows, demand = self.rows(m, plan.counts), self.models[m].demand
        part, before = self.columns.select(rows), plan.counts[rows].copy()
        alone = replace(self.problem, demands=(demand,))
        plan.counts[rows] = trim(alone, part, plan.counts[rows], {demand.model: self.share})
        spare = before - plan.counts[rows]
        plan.left += nodes_of(part, spare, np.arange(len(rows)), plan.left.shape)
        return True


def _few(models: Sequence[ModelBlocks], if_used: Floats, counts: Ints) -> NDArray[np.intp]:
    """The columns in use, and of every block those of which a plan costs least."""
    kept = [np.flatnonzero(counts)]
    for model in models:
        for phases in model.blocks:
            for block in phases:
                many = min(_PER_BLOCK, len(block.columns))
                kept.append(block.columns[np.argpartition(if_used[block.columns], many - 1)[:many]])
    return np.unique(np.concatenate(kept))
