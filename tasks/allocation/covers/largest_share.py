"""The largest common share in problems too large for the narrowed ILP: a relaxation gives a certified bound and a mix, the
mix is rounded to a plan at shares below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    model_blocks,
    quota_limits,
    quota_prices,
)
from tasks.allocation.covers.rounding import complete
from tasks.allocation.covers.tables import Block, NodePrices, item_costs
from tasks.allocation.highs import MipStatus, QuietHighs
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ROUNDS, _PER_BLOCK = 14, 3
_CLOSE = 5e-3  # between the relaxation's share and its bound
_SHARES = (0.94, 0.91, 0.88, 0.84, 0.8, 0.7, 0.6, 0.45, 0.3, 0.15)  # of the relaxation's, tried in turn
_AGAIN = 2  # tries at a share, the models that found no way first
_GRID = Grid(2048, 4)
_RENT = 1e-3  # what rent weighs beside the prices of scarcity


@dataclass(slots=True)
class Relaxed:
    """``bound``: no plan serves a larger common share; ``share`` that the relaxation serves, by ``mix`` (instances per column)
    at prices of ``nodes`` [pool, configuration]; ``least``: each model's cost at them."""

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


def relax(problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits) -> Relaxed:
    """The relaxation by column generation.

    Notation: n_i >= 0 instances of column i, q_mr share of model m served from region r, theta <= 1 the common share;
    max theta;  sum a_i n_i >= q_mr for every phase of m in r;  sum_r q_mr >= theta;  capacity, quotas and budget as in
    :func:`tasks.allocation.formulation.formulate`. The models' own rules are left out: that only raises the bound.

    At prices of nodes, budget and quotas a plan at theta costs at least theta x the sum of the models' least costs per whole
    demand, and at most what all supply costs: a bound at any prices.
    """
    master = _ShareMaster(problem, columns, models, limits)
    base = np.nan_to_num(problem.price_usd_per_h)
    nodes, budget, quotas = base, 0.0, np.zeros(len(problem.quotas))
    phase = np.full(master.blocks, np.inf)
    bound, share = 1.0, 0.0
    least = np.zeros(len(models))
    for at in range(_ROUNDS):
        prices = nodes + quota_prices(problem, quotas) + budget * base
        least = master.price(prices, phase)
        if at and least.sum() > 0:
            supply = float((nodes * problem.capacity_nodes).sum()) + float(quotas @ quota_limits(problem))
            supply += budget * (problem.budget_usd_per_h or 0.0)
            bound = min(bound, supply / float(least.sum()) * (1 + 1e-9))
        if bound - share <= _CLOSE:
            break
        share, nodes, budget, quotas, phase = master.solve()
    return Relaxed(bound, share, master.mix(), nodes, least)


class _ShareMaster:
    """The LP of :func:`relax` over the columns found so far."""

    def __init__(
        self, problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits
    ) -> None:
        self._problem, self._columns, self._models = problem, columns, models
        self._lp = QuietHighs(limits.threads)
        self._lp.setOptionValue("random_seed", limits.seed)
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
        for m, model in enumerate(self._models):
            for phases in model.blocks:
                total = 0.0
                for block in phases:
                    cost = item_costs(block, np.ones(len(block.columns), dtype=np.bool_), prices)
                    part = np.minimum(block.share, 1.0)
                    each = cost / part
                    total += float(each.min())
                    if np.isfinite(phase[row]):
                        reduced = cost - phase[row] * part
                        best = np.argpartition(reduced, min(_PER_BLOCK, len(reduced)) - 1)[:_PER_BLOCK]
                        best = best[reduced[best] < -1e-12]
                    else:
                        best = np.argpartition(each, min(_PER_BLOCK, len(each)) - 1)[:_PER_BLOCK]
                    self._add(block, np.sort(best), self._first + row)
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
