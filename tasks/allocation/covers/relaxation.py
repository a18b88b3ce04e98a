"""The relaxation of a shortage: parts of instances serve parts of the models' demands. By column generation, as there are
millions of columns; its mix is what a search begins with, its duals price nodes for bounds by whole instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers.master import no_plan_costs_more
from tasks.allocation.covers.pricing import ModelBlocks, quota_limits, quota_prices, side_by_side
from tasks.allocation.covers.tables import Block, item_costs
from tasks.allocation.formulation import Goal
from tasks.allocation.highs import QuietHighs
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]
_DEAR, _LITTLE = 100.0, 1e-9
_PER_BLOCK = 1  # columns a round adds: with more there are fewer rounds, but the LPs take longer


@dataclass(frozen=True, slots=True)
class Worth:
    """Duals: of ``supply`` [pool, configuration], ``budget`` and ``quota``; of every block's share (``phase``) and of its firm
    part (``firm``); and of a unit of weighted share, of which COST asks for so much (``served``)."""

    supply: Floats
    budget: float
    quota: Floats
    phase: Floats
    firm: Floats
    served: float

    def of_nodes(self, problem: AllocationProblem) -> Floats:
        """What a node is worth [pool, configuration], with what it takes of budget and quotas."""
        rent = np.nan_to_num(problem.price_usd_per_h)
        return np.asarray(self.supply + quota_prices(problem, self.quota) + self.budget * rent)


def cheapest_parts(model: ModelBlocks, prices: Floats) -> list[list[tuple[Floats, Floats]]]:
    """Of every column its cost at prices of nodes, and that per share of the demand; by region and phase."""
    out = []
    for phases in model.blocks:
        costs = [item_costs(block, prices) for block in phases]
        out.append([(cost, cost / np.minimum(block.share, 1.0)) for cost, block in zip(costs, phases, strict=True)])
    return out


def least_of_all(block: Block, each: Floats) -> float:
    """What a block costs at least for the whole demand, where ``each`` column's parts cost so much for it."""
    if not block.is_split:
        return float(each.min())
    part = block.demand.max_spot_share
    return (1 - part) * float(each[block.firm].min(initial=np.inf)) + part * float(each.min())


def least_costs(models: Sequence[ModelBlocks], prices: Floats) -> Floats:
    """What parts of instances cost each model at least for the whole demand, at prices of nodes."""
    return np.array(
        [
            min(
                sum(least_of_all(block, each) for block, (_, each) in zip(phases, own, strict=True))
                for phases, own in zip(model.blocks, cheapest_parts(model, prices), strict=True)
            )
            for model in models
        ]
    )


class Relaxation:
    """The LP over the columns found so far.

    Notation: n_i >= 0 instances of column i, q_mr share of model m served from region r, s_m <= 1 share that counts (THETA: the
    same of all models), w_m weights, W their sum, S the cap on the weighted missing share.
    min  THETA: -s;  SHORTAGE: - sum w_m s_m;  COST: sum p_i n_i;  sum a_i n_i >= q_mr for every phase of m in r;
    where spot is capped the same of firm columns and that part of q_mr; sum_r q_mr >= s_m;  COST: sum w_m s_m >= W - S;
    capacity, quotas and budget as in :func:`tasks.allocation.formulation.formulate`. The models' other rules are left out:
    that only lowers the value.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        models: Sequence[ModelBlocks],
        goal: Goal,
        cap: float,
        limits: SolveLimits,
    ) -> None:
        self._problem, self._columns, self._models, self._goal = problem, columns, models, goal
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
        self._firm, self._demand = self._first + self.blocks, self._first + 2 * self.blocks
        for _ in range(2 * self.blocks + len(models)):
            self._lp.addRow(0.0, infinity, 0, none, np.zeros(0))
        weights = np.array([model.demand.weight for model in models])
        self._least = float(weights.sum()) - cap
        self._lp.addRow(self._least if goal is Goal.COST else -infinity, infinity, 0, none, np.zeros(0))
        self._before = self._add_shares(weights) + self._add_regions()
        self._added: list[int] = []
        self._seen: set[int] = set()

    def _add_shares(self, weights: Floats) -> int:
        """The columns s_m; how many those are."""
        demand, served = self._demand, self._demand + len(self._models)
        if self._goal is Goal.THETA:
            rows = demand + np.arange(len(self._models), dtype=np.int32)
            self._lp.addCol(-1.0, 0.0, 1.0, len(rows), rows, -np.ones(len(rows)))
            return 1
        for m, weight in enumerate(weights.tolist()):
            rows = np.array([demand + m, served], dtype=np.int32)
            cost = -weight if self._goal is Goal.SHORTAGE else 0.0
            self._lp.addCol(cost, 0.0, 1.0, 2, rows, np.array([-1.0, weight]))
        # Until its columns serve enough: what all supply costs, for far less than it serves.
        dear = _DEAR * (no_plan_costs_more(self._problem) + 1.0) / min(1.0, max(self._least, _LITTLE))
        self._lp.addCol(
            dear / float(weights.min()), 0.0, highspy.kHighsInf, 1, np.array([served], dtype=np.int32), np.ones(1)
        )
        return len(weights) + 1

    def _add_regions(self) -> int:
        """The columns q_mr; how many those are."""
        row = self._first
        for m, model in enumerate(self._models):
            for phases in model.blocks:
                own = np.arange(row, row + len(phases), dtype=np.int32)
                firm = np.array([1 - block.demand.max_spot_share if block.is_split else 0.0 for block in phases])
                capped = np.flatnonzero(firm)
                rows = np.concatenate([own, own[capped] + self.blocks, [self._demand + m]]).astype(np.int32)
                values = np.concatenate([-np.ones(len(phases)), -firm[capped], [1.0]])
                self._lp.addCol(0.0, 0.0, highspy.kHighsInf, len(rows), rows, values)
                row += len(phases)
        return sum(len(model.blocks) for model in self._models)

    @property
    def size(self) -> int:
        """How many columns there are."""
        return len(self._added)

    def price(self, prices: Floats, worth: Worth) -> Floats:
        """Add each block's columns of least reduced cost at prices of nodes and what the phases' shares are worth; each model's
        least cost of the whole demand at the prices of nodes."""
        least, row = np.full(len(self._models), np.inf), 0
        found = side_by_side(lambda model: cheapest_parts(model, prices), self._models, self._threads)
        for m, (model, costs) in enumerate(zip(self._models, found, strict=True)):
            for phases, own in zip(model.blocks, costs, strict=True):
                total = 0.0
                for block, (cost, each) in zip(phases, own, strict=True):
                    total += least_of_all(block, each)
                    worst = np.inf
                    if np.isfinite(worth.phase[row]):
                        value = worth.phase[row] + worth.firm[row] * block.firm
                        each, worst = cost - value * np.minimum(block.share, 1.0), -1e-12
                    self._add(block, _best_of(each, worst), self._first + row)
                    if block.is_split:
                        self._add(block, _best_of(np.where(block.firm, each, np.inf), worst), self._first + row)
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
            rent, index, value = float(self._columns.price_usd_per_h[column]), [nodes], [many]
            if self._problem.budget_usd_per_h is not None:
                index.append(np.array([self._problem.capacity_nodes.size], dtype=np.int32))
                value.append(np.array([rent]))
            for q, quota in enumerate(self._problem.quotas):
                units = float(many @ self._problem.quota_units(quota).ravel()[nodes])
                if units:
                    index.append(np.array([self._problem.capacity_nodes.size + 1 + q], dtype=np.int32))
                    value.append(np.array([units]))
            of = [phase_row, phase_row + self.blocks] if block.is_split and block.firm[i] else [phase_row]
            index.append(np.array(of, dtype=np.int32))
            value.append(np.full(len(of), min(float(block.share[i]), 1.0)))
            rows_of, values = np.concatenate(index), np.concatenate(value)
            cost = rent * (1 + self._problem.init_share) if self._goal is Goal.COST else 0.0
            self._lp.addCol(cost, 0.0, highspy.kHighsInf, len(rows_of), rows_of, values)
            self._added.append(column)

    def solve(self) -> tuple[float, Worth]:
        """The goal's value over the columns so far, and the duals."""
        self._lp.run()
        # The interior point may give up, the simplex does not.
        if self._lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self._lp.setOptionValue("solver", "simplex")
            self._lp.run()
        if self._lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"the relaxation of a shortage ended with {self._lp.getModelStatus().name}")
        dual = np.asarray(self._lp.getSolution().row_dual, dtype=np.float64)
        cells = self._problem.capacity_nodes.size
        worth = Worth(
            np.maximum(-dual[:cells], 0.0).reshape(self._problem.capacity_nodes.shape),
            max(-float(dual[cells]), 0.0),
            np.maximum(-dual[cells + 1 : self._first], 0.0),
            np.maximum(dual[self._first : self._firm], 0.0),
            np.maximum(dual[self._firm : self._demand], 0.0),
            max(float(dual[-1]), 0.0),
        )
        return float(self._lp.getInfo().objective_function_value), worth

    def mix(self) -> Floats:
        """Instances per column in the last solution."""
        out = np.zeros(len(self._columns))
        values = np.asarray(self._lp.getSolution().col_value, dtype=np.float64)
        out[self._added[: len(values) - self._before]] = values[self._before :]
        return out


def _best_of(each: Floats, worst: float) -> NDArray[np.intp]:
    """Those of least reduced cost that are below ``worst``."""
    best = np.argpartition(each, min(_PER_BLOCK, len(each)) - 1)[:_PER_BLOCK]
    return np.sort(best[each[best] < worst])
