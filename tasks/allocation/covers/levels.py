"""Shortages by covers: each model takes one cover that serves a part of its demand, its level.

Three goals, as in :mod:`tasks.allocation.formulation`: the largest common level (THETA), the least weighted missing
share (SHORTAGE), and the least cost with that share capped (COST). For problems too large for the narrowed ILP; models
that want several regions are left to that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import highspy
import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.pricing import (
    Cover,
    Grid,
    ModelBlocks,
    counts_of,
    cover_cost,
    cover_use,
    covers_at_levels,
    dual_prices,
    least_by_level,
    quota_prices,
    quota_use,
    supply_value,
)
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.formulation import Goal, Target, formulate
from tasks.allocation.highs import MipStatus, QuietHighs, solve_mip
from tasks.allocation.ilp import GoalOutcome
from tasks.allocation.outcome import objective_usd, served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits
from tasks.allocation.work import looks

Floats = NDArray[np.float64]
_ROUNDS = 60
_GRID, _FINE = Grid(4096, 8), Grid(16384, 8)
_RENT_WEIGHT = 1e-7  # so that of two covers alike to the goal the cheaper one is generated
_ILP_TIME = 0.5  # of what is left, should time run out
_WORK, _CHOICE_WORK = 300, 150  # looks at 800 columns: of the ILP over columns, of that over covers
_ALL_COLUMNS = 1000  # so few go into the ILP all together
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class LevelDuals:
    """Duals of the level master: per node, USD/h of budget, unit of capped shortage, model, level, and unit of quota."""

    supply: Floats
    budget: float
    shortage: float
    model: Floats
    level: Floats
    quota: Floats


class LevelMaster:
    """Notation: x_j >= 0 share of cover j of model m at level l_j, theta in [0, 1]; every model has an empty cover.

    min sum obj_j x_j (THETA: -theta; SHORTAGE: obj = v_m (1 - l_j); COST: obj = cost_j);  sum_j in m x_j = 1;
    sum U_jkc x_j <= A_kc;  sum units_jq x_j <= Q_q;  sum rent_j x_j <= B;  COST: sum v_m (1 - l_j) x_j <= S;
    THETA: sum_j in m l_j x_j >= theta.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        columns: Columns,
        models: list[ModelBlocks],
        goal: Goal,
        cap: float | None,
        threads: int,
    ) -> None:
        self._problem, self._columns, self._models, self._goal = problem, columns, models, goal
        self._lp = QuietHighs(threads)
        infinity, none = highspy.kHighsInf, np.zeros(0, dtype=np.int32)
        budget = problem.budget_usd_per_h
        tops = [*problem.capacity_nodes.ravel().tolist(), infinity if budget is None else budget]
        for top in [*tops, infinity if cap is None else cap]:
            self._lp.addRow(-infinity, float(top), 0, none, np.zeros(0))
        self._nodes = problem.capacity_nodes.size
        self._quota_row = self._nodes + 2 + 2 * len(models)
        for _ in models:
            self._lp.addRow(1.0, 1.0, 0, none, np.zeros(0))
        for _ in models:
            self._lp.addRow(0.0 if goal is Goal.THETA else -infinity, infinity, 0, none, np.zeros(0))
        for quota in problem.quotas:
            self._lp.addRow(-infinity, float(quota.limit), 0, none, np.zeros(0))
        level_rows = self._nodes + 2 + len(models) + np.arange(len(models), dtype=np.int32)
        is_theta = goal is Goal.THETA
        self._lp.addCol(-1.0 if is_theta else 0.0, 0.0, 1.0, len(models), level_rows, -np.ones(len(models)))
        self.covers: list[tuple[int, Cover, float]] = []
        self._seen: set[bytes] = set()
        empty = Cover(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int64))
        for m in range(len(models)):
            self.add(m, empty)

    def add(self, m: int, cover: Cover) -> bool:
        """Add a cover of model m at the level it reaches; False if it is there already."""
        key = m.to_bytes(4, "little") + cover.columns.tobytes() + cover.instances.tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        counts = np.zeros(len(self._columns), dtype=np.int64)
        counts[cover.columns] = cover.instances
        demand = self._models[m].demand
        level = _level(self._problem, self._columns, cover, demand.model)
        short = demand.weight * (1.0 - level)
        rent, cost = cover_cost(self._columns, cover, self._problem.init_share)
        nodes = cover_use(self._columns, cover, self._problem.capacity_nodes.shape)
        use, units = nodes.ravel(), quota_use(self._problem, nodes)
        rows, taken = np.flatnonzero(use), np.flatnonzero(units)
        at = self._nodes
        others = [at, at + 1, at + 2 + m, at + 2 + len(self._models) + m]
        index = np.concatenate([rows, others, self._quota_row + taken]).astype(np.int32)
        value = np.concatenate([use[rows], [rent, short, 1.0, level], units[taken]]).astype(np.float64)
        objective = {Goal.COST: cost, Goal.SHORTAGE: short, Goal.THETA: 0.0}[self._goal]
        self._lp.addCol(objective, 0.0, highspy.kHighsInf, len(index), index, value)
        self.covers.append((m, cover, level))
        return True

    def solve(self) -> tuple[float, float, LevelDuals] | None:
        """Objective, theta and duals; None where no mix of the covers meets the cap."""
        self._lp.run()
        if self._lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._lp.getSolution()
        dual = np.asarray(solution.row_dual, dtype=np.float64)
        n, m = self._nodes, len(self._models)
        duals = LevelDuals(
            supply=np.maximum(-dual[:n], 0.0).reshape(self._problem.capacity_nodes.shape),
            budget=max(-float(dual[n]), 0.0),
            shortage=max(-float(dual[n + 1]), 0.0),
            model=dual[n + 2 : n + 2 + m],
            level=np.maximum(dual[n + 2 + m : self._quota_row], 0.0),
            quota=np.maximum(-dual[self._quota_row :], 0.0),
        )
        return float(self._lp.getInfo().objective_function_value), float(solution.col_value[0]), duals


def _level(problem: AllocationProblem, columns: Columns, cover: Cover, model: str) -> float:
    part = columns.select(cover.columns)
    return served_shares(problem, part, cover.instances)[model] if len(part) else 0.0


def solve_levels(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None,
) -> GoalOutcome:
    """The goal over covers at levels: bound by column generation, an answer by the ILP over the columns they use."""
    cap = target.shortage if goal is Goal.COST else None
    master = LevelMaster(problem, columns, models, goal, cap, limits.threads)
    if start is not None:
        _add_start(problem, columns, models, master, start)
    best: LevelDuals | None = None
    bound = -math.inf
    for _ in range(_ROUNDS):
        solved = master.solve()
        if solved is None:
            break
        value, theta, duals = solved
        for at in (duals,) if best is None else (_mixed(best, duals), duals):
            here = _bound(problem, models, goal, cap, at, _GRID)
            if here > bound:
                bound, best = here, at
            if _add_covers(problem, models, master, goal, at, theta):
                break
        else:
            break
        if value - bound <= 0.25 * limits.gap * max(abs(value), 1e-6) or clock.is_past(0.5):
            break
    if best is not None:
        bound = max(bound, _bound(problem, models, goal, cap, best, _FINE))
    return _answer(problem, columns, master, goal, target, limits, clock, start, bound)


def _mixed(a: LevelDuals, b: LevelDuals) -> LevelDuals:
    mix = 0.5
    return LevelDuals(
        mix * a.supply + (1 - mix) * b.supply,
        mix * a.budget + (1 - mix) * b.budget,
        mix * a.shortage + (1 - mix) * b.shortage,
        b.model,
        mix * a.level + (1 - mix) * b.level,
        mix * a.quota + (1 - mix) * b.quota,
    )


def _prices(problem: AllocationProblem, goal: Goal, duals: LevelDuals) -> NodePrices:
    if goal is Goal.COST:
        return dual_prices(problem, duals.supply, duals.budget, duals.quota)
    node = np.nan_to_num(problem.price_usd_per_h) * duals.budget + duals.supply + quota_prices(problem, duals.quota)
    return NodePrices(node, node)


def _worth(goal: Goal, weight: float, duals: LevelDuals, m: int, cells: int) -> Floats:
    """What being at each level adds to a cover's cost."""
    level = np.arange(cells) / (cells - 1)
    if goal is Goal.THETA:
        return np.asarray(-duals.level[m] * level)
    return np.asarray((duals.shortage if goal is Goal.COST else 1.0) * weight * (1.0 - level))


def _bound(
    problem: AllocationProblem, models: list[ModelBlocks], goal: Goal, cap: float | None, duals: LevelDuals, grid: Grid
) -> float:
    """A lower bound on the goal: every model at its cheapest level, less what the duals count too much."""
    prices = _prices(problem, goal, duals)
    supply = supply_value(problem, duals.supply, duals.budget, duals.quota)
    tables = [least_by_level(model, prices, grid) for model in models]
    parts = [
        float((table + _worth(goal, model.demand.weight, duals, m, len(table))).min())
        for m, (model, table) in enumerate(zip(models, tables, strict=True))
    ]
    bound = sum(parts) - supply - duals.shortage * (cap or 0.0)
    if goal is not Goal.THETA:
        return bound
    bound += min(0.0, float(duals.level.sum()) - 1.0)
    # A common level whose least node value exceeds the supply's cannot be reached, nor any above it.
    together = np.sum(tables, axis=0)
    possible = np.flatnonzero(together <= supply * (1 + _TOLERANCE) + _TOLERANCE)
    return max(bound, -float(possible[-1]) / (len(together) - 1))


def _add_covers(
    problem: AllocationProblem,
    models: list[ModelBlocks],
    master: LevelMaster,
    goal: Goal,
    duals: LevelDuals,
    theta: float,
) -> bool:
    """Add covers at each model's best level, at the LP's common level and at the full one; whether any is new."""
    prices = _prices(problem, goal, duals)
    rent = _RENT_WEIGHT * np.nan_to_num(problem.price_usd_per_h)
    prices = NodePrices(prices.new + rent, prices.kept + rent)
    cells = _GRID.size // _GRID.unit + 1
    added = False
    for m, model in enumerate(models):
        for cover in covers_at_levels(model, prices, _GRID, _worth(goal, model.demand.weight, duals, m, cells), theta):
            added |= master.add(m, cover)
    return added


def _add_start(
    problem: AllocationProblem,
    columns: Columns,
    models: list[ModelBlocks],
    master: LevelMaster,
    start: NDArray[np.int64],
) -> None:
    ids = [c.workload_id for c in problem.candidates]
    for m, model in enumerate(models):
        phases = [ids.index(w) for w in model.demand.workload_ids]
        rows = np.flatnonzero(np.isin(columns.workload, phases) & (start > 0))
        master.add(m, Cover(rows, start[rows]))


def _answer(
    problem: AllocationProblem,
    columns: Columns,
    master: LevelMaster,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
    start: NDArray[np.int64] | None,
    bound: float,
) -> GoalOutcome:
    """The ILP of the goal over the columns of all covers generated, begun at the best choice of one cover per model."""
    counts = _one_each(problem, columns, master, goal, target, limits, clock)
    candidates = [c for c in (counts, start) if c is not None]
    worth = {id(c): _value(problem, columns, c, goal) for c in candidates}
    best = min(candidates, key=lambda c: worth[id(c)], default=None)
    used = np.zeros(len(columns), dtype=np.bool_)
    for _, cover, _ in master.covers:
        used[cover.columns] = True
    if best is not None:
        used |= best > 0
    rows = np.arange(len(columns)) if len(columns) <= _ALL_COLUMNS else np.flatnonzero(used)
    value = math.inf if best is None else worth[id(best)]
    if len(rows) and (best is None or value - bound > limits.gap * max(abs(value), 1e-6)):
        form = formulate(problem, columns.select(rows), goal, target)
        begin = None if best is None else form.start(best[rows])
        outcome = solve_mip(
            form.problem,
            limits,
            time_s=clock.left() * _ILP_TIME,
            start=begin,
            most_looks=looks(len(rows), _WORK),
            clock=clock,
        )
        if outcome.values is not None:
            better = columns.spread(rows, form.counts(outcome.values))
            if _value(problem, columns, better, goal) < value:
                best, value = better, _value(problem, columns, better, goal)
    if best is None:
        return GoalOutcome(MipStatus.LIMIT, None, math.inf, bound, "no answer among the covers generated")
    return GoalOutcome(MipStatus.LIMIT, best, value, min(bound, value))


def _value(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], goal: Goal) -> float:
    if goal is Goal.COST:
        return objective_usd(problem, columns, counts)
    shares = served_shares(problem, columns, counts)
    if goal is Goal.THETA:
        return -min(shares.values())
    return sum(d.weight * (1.0 - shares[d.model]) for d in problem.demands if d.planned_req_per_s > 0)


def _one_each(
    problem: AllocationProblem,
    columns: Columns,
    master: LevelMaster,
    goal: Goal,
    target: Target,
    limits: SolveLimits,
    clock: Clock,
) -> NDArray[np.int64] | None:
    """The best choice of one generated cover per model, by an ILP; None if none fits."""
    model = pulp.LpProblem("levels", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x{j}", 0, 1, cat=pulp.LpInteger) for j in range(len(master.covers))]
    theta = pulp.LpVariable("theta", 0, 1)
    demands = sorted((d for d in problem.demands if d.planned_req_per_s > 0), key=lambda d: d.model)
    short = [demands[m].weight * (1 - level) for m, _, level in master.covers]
    costs = [cover_cost(columns, cover, problem.init_share) for _, cover, _ in master.covers]
    for m in range(len(demands)):
        own = [j for j, (owner, _, _) in enumerate(master.covers) if owner == m]
        model += pulp.LpAffineExpression([(x[j], 1) for j in own]) == 1
        if goal is Goal.THETA:
            model += pulp.LpAffineExpression([(x[j], master.covers[j][2]) for j in own]) - theta >= 0
    use = np.array([cover_use(columns, cover, problem.capacity_nodes.shape) for _, cover, _ in master.covers])
    for r, k in zip(*np.nonzero(use.sum(axis=0) > problem.capacity_nodes), strict=True):
        terms = [(x[j], int(use[j, r, k])) for j in np.flatnonzero(use[:, r, k])]
        model += pulp.LpAffineExpression(terms) <= int(problem.capacity_nodes[r, k])
    for quota in problem.quotas:
        units = (use * problem.quota_units(quota)).sum(axis=(1, 2))
        if units.sum() > quota.limit:
            terms = [(x[j], int(units[j])) for j in np.flatnonzero(units)]
            model += pulp.LpAffineExpression(terms) <= quota.limit
    if problem.budget_usd_per_h is not None:
        rents = pulp.LpAffineExpression([(v, rent) for v, (rent, _) in zip(x, costs, strict=True)])
        model += rents <= problem.budget_usd_per_h
    if goal is Goal.COST and target.shortage is not None:
        model += pulp.LpAffineExpression(list(zip(x, short, strict=True))) <= target.shortage
    if goal is Goal.THETA:
        model.setObjective(-theta)
    else:
        values = short if goal is Goal.SHORTAGE else [cost for _, cost in costs]
        model.setObjective(pulp.LpAffineExpression(list(zip(x, values, strict=True))))
    limits = replace(limits, stop=None)  # soon done, and what the covers are good for
    outcome = solve_mip(model, limits, time_s=clock.left() / 2, most_looks=looks(len(x), _CHOICE_WORK), clock=clock)
    if outcome.values is None:
        return None
    return counts_of(columns, (cover for j, (_, cover, _) in enumerate(master.covers) if outcome.values[f"x{j}"] > 0))
