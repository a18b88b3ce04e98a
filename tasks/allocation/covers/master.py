"""The master LP: one cover per model, joined by the supply. Its duals price nodes for the next covers."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import Cover, cover_cost, cover_use, quota_use
from tasks.allocation.highs import QuietHighs
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Duals:
    """Prices of the coupling rows: ``supply`` [pool, configuration] USD/h per node, ``budget`` per USD/h, ``model``,
    ``quota`` per unit."""

    supply: Floats
    budget: float
    model: Floats
    quota: Floats


class Master:
    """Notation: x_j >= 0 share of cover j of model m, z_m >= 0 share of m not served, at a price above any plan's.

    min sum cost_j x_j + M z_m;  sum_j in m x_j + z_m >= 1;  sum U_jkc x_j <= A_kc;  sum rent_j x_j <= B;
    sum units_jq x_j <= Q_q.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        models: int,
        limits: SolveLimits,
        penalty: float | None = None,
    ) -> None:
        self._problem, self._columns = problem, columns
        self._lp = QuietHighs(limits.threads)
        self._lp.setOptionValue("random_seed", limits.seed)
        self.covers: list[tuple[int, Cover]] = []
        self.costs: list[float] = []
        self.rents: list[float] = []
        self.uses: list[NDArray[np.int64]] = []
        self._seen: set[bytes] = set()
        infinity = highspy.kHighsInf
        self.penalty = no_plan_costs_more(problem) + 1.0 if penalty is None else penalty
        empty_index, empty_value = np.zeros(0, dtype=np.int32), np.zeros(0)
        for a in problem.capacity_nodes.ravel():
            self._lp.addRow(-infinity, float(a), 0, empty_index, empty_value)
        budget = problem.budget_usd_per_h
        self._lp.addRow(-infinity, infinity if budget is None else budget, 0, empty_index, empty_value)
        for quota in problem.quotas:
            self._lp.addRow(-infinity, float(quota.limit), 0, empty_index, empty_value)
        self._budget_row = problem.capacity_nodes.size
        self._first_model_row = problem.capacity_nodes.size + 1 + len(problem.quotas)
        for m in range(models):
            self._lp.addRow(1.0, infinity, 0, empty_index, empty_value)
            row = np.array([self._first_model_row + m], dtype=np.int32)
            self._lp.addCol(self.penalty, 0.0, infinity, 1, row, np.ones(1))
        self._models = models

    def add(self, m: int, cover: Cover) -> bool:
        """Add a cover of model ``m``; False if it is there already."""
        key = m.to_bytes(4, "little") + cover.columns.tobytes() + cover.instances.tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        use = cover_use(self._columns, cover, self._problem.capacity_nodes.shape)
        rent, cost = cover_cost(self._columns, cover, self._problem.init_share)
        flat = use.ravel()
        rows = np.flatnonzero(flat)
        units = quota_use(self._problem, use)
        taken = np.flatnonzero(units)
        at = self._budget_row
        index = np.concatenate([rows, [at], at + 1 + taken, [self._first_model_row + m]]).astype(np.int32)
        value = np.concatenate([flat[rows], [rent], units[taken], [1.0]]).astype(np.float64)
        self._lp.addCol(cost, 0.0, highspy.kHighsInf, len(index), index, value)
        self.covers.append((m, cover))
        self.costs.append(cost)
        self.rents.append(rent)
        self.uses.append(use)
        return True

    def last_reduced_cost(self, duals: Duals) -> float:
        """Reduced cost of the cover added last: below 0 it may improve the LP."""
        use = self.uses[-1]
        cost = self.costs[-1] + float((duals.supply * use).sum()) + duals.budget * self.rents[-1]
        cost += float(duals.quota @ quota_use(self._problem, use))
        return cost - float(duals.model[self.covers[-1][0]])

    def solve(self) -> tuple[float, Duals, Floats]:
        """Objective, duals and the share of every cover. Raises RuntimeError if the LP does not solve (it always can)."""
        self._lp.run()
        status = self._lp.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"the master LP ended with {status.name}")
        solution = self._lp.getSolution()
        dual = np.asarray(solution.row_dual, dtype=np.float64)
        at, models = self._budget_row, self._first_model_row
        supply = np.maximum(-dual[:at], 0.0).reshape(self._problem.capacity_nodes.shape)
        duals = Duals(supply, max(-float(dual[at]), 0.0), dual[models:], np.maximum(-dual[at + 1 : models], 0.0))
        shares = np.asarray(solution.col_value, dtype=np.float64)[self._models :]
        return float(self._lp.getInfo().objective_function_value), duals, shares


def no_plan_costs_more(problem: AllocationProblem) -> float:
    """USD/h of every node there is, started anew: no plan can cost more."""
    price = np.nan_to_num(problem.price_usd_per_h)
    return float((price * problem.capacity_nodes).sum() * (1 + problem.init_share))
