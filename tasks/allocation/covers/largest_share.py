"""The largest common share in problems too large for the narrowed ILP: a relaxation gives a certified bound and a mix, the
mix, rounded or planned in stages, is searched at shares below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.generation import generate, joint_bound
from tasks.allocation.covers.packing import Packing, lack_weights, packing
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    least_by_level,
    model_blocks,
    quota_limits,
    quota_prices,
    side_by_side,
    supply_value,
)
from tasks.allocation.covers.recreate import Found, can_recreate, recreate
from tasks.allocation.covers.rounding import complete, is_within, whole
from tasks.allocation.covers.staged import is_lumpy, plan_in_stages
from tasks.allocation.covers.tables import Block, NodePrices, item_costs
from tasks.allocation.highs import MipStatus, QuietHighs
from tasks.allocation.ilp import NO_SHARE, GoalOutcome
from tasks.allocation.outcome import served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ROUNDS, _PER_BLOCK = 14, 3
_CLOSE = 5e-3  # between the relaxation's share and its bound
_SHARES = (0.94, 0.91, 0.88, 0.84, 0.8, 0.7, 0.6, 0.45, 0.3, 0.15)  # of the relaxation's, tried in turn
_AGAIN = 2  # tries at a share, the models that found no way first
_GRID = Grid(2048, 4)
_LEVELS = Grid(16384, 16)  # of the bound by covers
_LACK = 3.0  # times a model's least cost: what serving nothing of it counts
_LACK_STAGED = 5.0  # the same, of a plan made in stages
_HALVINGS, _AT_A_SHARE = 80, 16  # of the search, in all and for one share
_HALVINGS_STAGED, _ROUNDS_STAGED = 56, 600  # of the search that goes on from stages, in all, and of these
_FIRST, _LESS = 0.88, 0.96  # of the relaxation's share; of a share that was not reached by far
_MUCH = 0.97  # of a share, reached: then more is sought from there on, by
_MORE, _LEAST_MORE = 1.01, 1.002
_RENT = 1e-3  # what rent weighs beside the prices of scarcity


@dataclass(slots=True)
class Relaxed:
    """``bound``: no plan serves a larger common share; ``share`` that the relaxation serves, by ``mix`` (instances per column);
    ``nodes``: what nodes are worth in it [pool, configuration], with what they take of budget and quotas; ``least``: what each
    model costs at least at such prices."""

    bound: float
    share: float
    mix: Floats
    nodes: Floats
    least: Floats


def largest_share(
    problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits, clock: Clock
) -> GoalOutcome | None:
    """The answer for the goal THETA (objective and bound are of minus the share); None where rounding finds no plan.
    ``models``: of the whole demand."""
    if any(not model.blocks for model in models):
        return None
    relaxed = relax(problem, columns, models, limits)
    if relaxed.share <= NO_SHARE:
        # A quota or the budget leaves some model nothing.
        nothing = np.zeros(len(columns), dtype=np.int64)
        return GoalOutcome(MipStatus.LIMIT, nothing, 0.0, -relaxed.bound) if relaxed.bound <= NO_SHARE else None
    if not relaxed.nodes.any():
        relaxed = _at_plenty(problem, models, relaxed)
    if can_recreate(models):
        return _by_recreating(problem, columns, models, relaxed, limits, clock)
    first: list[int] = []
    for part in _SHARES:
        share = part * relaxed.share
        at = model_blocks(problem, columns, share)
        for _ in range(_AGAIN):
            if clock.is_past():
                return None
            mix = relaxed.mix * part
            order = [*first, *(m for m in np.argsort(-relaxed.least, kind="stable").tolist() if m not in first)]
            prices = relaxed.nodes + _RENT * np.nan_to_num(problem.price_usd_per_h) * float(relaxed.nodes.mean())
            counts, failed = complete(problem, columns, at, mix, order, NodePrices(prices, prices), _GRID)
            if counts is not None:
                reached = min(served_shares(problem, columns, counts).values())
                return GoalOutcome(MipStatus.LIMIT, counts, -reached, -max(relaxed.bound, reached))
            first = [failed, *(m for m in first if m != failed)]
    return None


def _at_plenty(problem: AllocationProblem, models: Sequence[ModelBlocks], relaxed: Relaxed) -> Relaxed:
    """``relaxed`` at the rent, where it finds no kind of node scarce: it serves all, but in parts of instances."""
    rent = np.nan_to_num(problem.price_usd_per_h)
    nodes = rent if rent.any() else np.ones_like(rent)
    least = [
        min(sum(float(each.min()) for _, each in phases) for phases in _cheapest(model, nodes)) for model in models
    ]
    return replace(relaxed, nodes=nodes, least=np.array(least))


def _by_recreating(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    relaxed: Relaxed,
    limits: SolveLimits,
    clock: Clock,
) -> GoalOutcome | None:
    """From the mix rounded down, or a plan in stages, on a share is tried until no model lacks anything of it, then a larger one;
    from one that is not reached it goes back, by much to begin with, then to the best so far and on by less."""
    prices = NodePrices(relaxed.nodes, relaxed.nodes)
    weights = lack_weights(relaxed.least, _LACK)
    part, more, halvings = _FIRST, _MORE, _HALVINGS
    starts = [whole(part * relaxed.mix)]
    if is_lumpy(models, relaxed.mix, relaxed.least):
        starts += _in_stages(problem, columns, part * relaxed.share, limits, clock)
        halvings = _HALVINGS_STAGED if len(starts) > 1 else _HALVINGS
    packed = packing(problem, columns, models, prices, prices, relaxed.mix + sum(starts), weights)
    at = _of_share(packed, part * relaxed.share)
    counts = best = min(starts, key=lambda start: at.penalty(at.state(start)))
    reached = min(served_shares(problem, columns, best).values()) if is_within(problem, columns, best) else 0.0
    while halvings > 0 and more > _LEAST_MORE and reached < relaxed.bound * (1 - limits.gap) and not clock.is_past():
        share = min(part * relaxed.share, 1.0)
        at = _of_share(packed, share)
        plan, taken = recreate(at, at.state(counts), min(halvings, _AT_A_SHARE), limits, clock, _lacks_nothing)
        counts, halvings = at.counts(plan.x, len(columns)), halvings - max(taken, 1)
        common = min(served_shares(problem, columns, counts).values())
        if common > reached and is_within(problem, columns, counts):
            best, reached = counts, common
        if not plan.lacking.any() and share >= 1.0:
            break
        if plan.lacking.any() and reached < share * _MUCH:
            part *= _LESS
            continue
        more = math.sqrt(more) if plan.lacking.any() else more
        counts, part = best, reached / relaxed.share * more
    if reached <= 0:
        return None
    return GoalOutcome(MipStatus.LIMIT, best, -reached, -max(relaxed.bound, reached))


def _of_share(packed: Packing, share: float) -> Packing:
    """``packed`` where so much of all demand is to be served."""
    return replace(packed, items=packed.items._replace(share=packed.items.share / share))


def _in_stages(
    problem: AllocationProblem, columns: Columns, share: float, limits: SolveLimits, clock: Clock
) -> list[Ints]:
    """Instances per column of a plan in stages that is to serve ``share`` of all demands, where the LP over covers does not rule
    that out; some models may get less."""
    models = model_blocks(problem, columns, share)
    found = generate(problem, columns, models, _GRID, limits, clock)
    _, parts = joint_bound(problem, models, found.duals, _GRID, limits.threads)
    if not np.isfinite(parts).all():
        return []  # whole instances of a model do not come to that share
    weights = lack_weights(parts, _LACK_STAGED)
    return [plan_in_stages(problem, columns, models, found, weights, _GRID, limits, clock, _ROUNDS_STAGED)]


def _lacks_nothing(plan: Found) -> bool:
    return not plan.lacking.any()


def relax(problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits) -> Relaxed:
    """The relaxation by column generation.

    Notation: n_i >= 0 instances of column i, q_mr share of model m served from region r, theta <= 1 the common share;
    max theta;  sum a_i n_i >= q_mr for every phase of m in r;  sum_r q_mr >= theta;  capacity, quotas and budget as in
    :func:`tasks.allocation.formulation.formulate`. The models' own rules are left out: that only raises the bound.

    At prices of nodes, budget and quotas a plan at theta costs at least theta x the sum of the models' least costs per whole
    demand, and at most what all supply costs: a bound at any prices. Whole instances give a lower one where they are large
    (:func:`_bound_of_covers`); where that is below the share found, that and its mix are cut down to it.
    """
    master = _ShareMaster(problem, columns, models, limits)
    base = np.nan_to_num(problem.price_usd_per_h)
    prices, nodes, budget, quotas = base, base, 0.0, np.zeros(len(problem.quotas))
    phase = np.full(master.blocks, np.inf)
    bound, share = 1.0, 0.0
    least = np.zeros(len(models))
    for at in range(_ROUNDS):
        least = master.price(prices, phase)
        if at and least.sum() > 0:
            supply = supply_value(problem, nodes, budget, quotas)
            bound = min(bound, supply / float(least.sum()) * (1 + 1e-9))
        if bound - share <= _CLOSE:
            break
        share, nodes, budget, quotas, phase = master.solve()
        prices = nodes + quota_prices(problem, quotas) + budget * base
    bound = min(bound, _bound_of_covers(models, prices, supply_value(problem, nodes, budget, quotas), limits.threads))
    part = min(bound / share, 1.0) if share > 0 else 1.0
    return Relaxed(bound, part * share, part * master.mix(), prices, least)


def _bound_of_covers(models: Sequence[ModelBlocks], prices: Floats, supply: float, threads: int) -> float:
    """No plan serves a larger common share: at ``prices`` the whole instances that serve more cost more than all ``supply``."""
    nodes = NodePrices(prices, prices)
    least = sum(side_by_side(lambda model: least_by_level(model, nodes, model.scaled(_LEVELS)), models, threads))
    levels = _LEVELS.size // _LEVELS.unit
    return float(np.flatnonzero(least <= supply * (1 + 1e-9))[-1]) / levels


def _cheapest(model: ModelBlocks, prices: Floats) -> list[list[tuple[Floats, Floats]]]:
    """Of every column its cost at prices of nodes, and that per share of the demand."""
    out = []
    for phases in model.blocks:
        costs = [item_costs(block, prices) for block in phases]
        out.append([(cost, cost / np.minimum(b.share, 1.0)) for cost, b in zip(costs, phases, strict=True)])
    return out


class _ShareMaster:
    """The LP of :func:`relax` over the columns found so far."""

    def __init__(
        self, problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits
    ) -> None:
        self._problem, self._columns, self._models = problem, columns, models
        self._lp, self._threads = QuietHighs(limits.threads), limits.threads
        self._lp.setOptionValue("random_seed", limits.seed)
        # Each LP anew takes it less time than the simplex takes from the last one on.
        self._lp.setOptionValue("solver", "ipm")
        infinity, none = highspy.kHighsInf, np.zeros(0, dtype=np.int32)
        budget = problem.budget_usd_per_h
        tops = [*problem.capacity_nodes.ravel().tolist(), infinity if budget is None else budget]
        for top in [*tops, *quota_limits(problem).tolist()]:
            self._lp.addRow(-infinity, float(top), 0, none, np.zeros(0))
        self._first = len(tops) + len(problem.quotas)
        self.blocks = sum(len(phases) for model in models for phases in model.blocks)
        for _ in range(self.blocks + len(models)):
            self._lp.addRow(0.0, infinity, 0, none, np.zeros(0))
        demand = self._first + self.blocks + np.arange(len(models), dtype=np.int32)
        self._lp.addCol(-1.0, 0.0, 1.0, len(models), demand, -np.ones(len(models)))
        row = self._first
        for m, model in enumerate(models):
            for phases in model.blocks:
                rows = np.array([*range(row, row + len(phases)), demand[m]], dtype=np.int32)
                self._lp.addCol(0.0, 0.0, infinity, len(rows), rows, np.array([-1.0] * len(phases) + [1.0]))
                row += len(phases)
        self._before = 1 + sum(len(model.blocks) for model in models)
        self._added: list[int] = []
        self._seen: set[int] = set()

    def price(self, prices: Floats, phase: Floats) -> Floats:
        """Add each block's columns of least reduced cost at prices of nodes and of the phases' shares; each model's least cost
        of the whole demand at the prices of nodes."""
        least, row = np.full(len(self._models), np.inf), 0
        found = side_by_side(lambda model: _cheapest(model, prices), self._models, self._threads)
        for m, (model, costs) in enumerate(zip(self._models, found, strict=True)):
            for phases, own in zip(model.blocks, costs, strict=True):
                total = 0.0
                for block, (cost, each) in zip(phases, own, strict=True):
                    total += float(each.min())
                    worst = np.inf
                    if np.isfinite(phase[row]):
                        each, worst = cost - phase[row] * np.minimum(block.share, 1.0), -1e-12
                    best = np.argpartition(each, min(_PER_BLOCK, len(each)) - 1)[:_PER_BLOCK]
                    self._add(block, np.sort(best[each[best] < worst]), self._first + row)
                    row += 1
                least[m] = min(least[m], total)
        return least

    def _add(self, block: Block, rows: NDArray[np.intp], phase_row: int) -> None:
        for i in rows.tolist():
            column = int(block.columns[i])
            if column in self._seen:
                continue
            self._seen.add(column)
            used = block.count[i] > 0
            nodes = block.node[i][used].astype(np.int32)
            many = block.count[i][used].astype(np.float64)
            index, value = [nodes], [many]
            if self._problem.budget_usd_per_h is not None:
                index.append(np.array([self._problem.capacity_nodes.size], dtype=np.int32))
                value.append(np.array([self._columns.price_usd_per_h[column]]))
            for q, quota in enumerate(self._problem.quotas):
                units = float(many @ self._problem.quota_units(quota).ravel()[nodes])
                if units:
                    index.append(np.array([self._problem.capacity_nodes.size + 1 + q], dtype=np.int32))
                    value.append(np.array([units]))
            index.append(np.array([phase_row], dtype=np.int32))
            value.append(np.array([min(float(block.share[i]), 1.0)]))
            rows_of, values = np.concatenate(index), np.concatenate(value)
            self._lp.addCol(0.0, 0.0, highspy.kHighsInf, len(rows_of), rows_of, values)
            self._added.append(column)

    def solve(self) -> tuple[float, Floats, float, Floats, Floats]:
        """The common share, and the duals: of nodes, budget, quotas and of every block's share."""
        self._lp.run()
        # The interior point may give up, the simplex does not.
        if self._lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self._lp.setOptionValue("solver", "simplex")
            self._lp.run()
        if self._lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"the relaxation of the common share ended with {self._lp.getModelStatus().name}")
        dual = np.asarray(self._lp.getSolution().row_dual, dtype=np.float64)
        cells = self._problem.capacity_nodes.size
        return (
            float(self._lp.getSolution().col_value[0]),
            np.maximum(-dual[:cells], 0.0).reshape(self._problem.capacity_nodes.shape),
            max(-float(dual[cells]), 0.0),
            np.maximum(-dual[cells + 1 : self._first], 0.0),
            np.maximum(dual[self._first : self._first + self.blocks], 0.0),
        )

    def mix(self) -> Floats:
        """Instances per column in the last solution."""
        out = np.zeros(len(self._columns))
        values = np.asarray(self._lp.getSolution().col_value, dtype=np.float64)
        out[self._added[: len(values) - self._before]] = values[self._before :]
        return out
