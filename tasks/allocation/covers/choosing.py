"""The cheapest choice of one offer per model that fits together: branch and bound over what a model uses of a kind of node.

Among thousands of covers a branch on one of them hardly moves the relaxation: without it the next one is nearly the same.
A branch on "model m uses at least t nodes of this kind" parts all its covers at once, and takes those nodes from the others.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.covers.pool import Choice, Offers, joint_limits
from tasks.allocation.highs import QuietHighs
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_FIRST = 300  # of the most promising offers, for a plan that rules most others out
_TRIED = 4  # branches whose children are solved before the best of them is taken
_WORK = 4_000_000  # relaxations x offers in them: a few seconds
_NEARLY = 0.99  # of the gap: rounding must not leave it open
_WHOLE = 1e-6


@dataclass(frozen=True, slots=True)
class Node:
    """Choices among the offers ``alive`` cost ``bound`` at least, and with each of them ``least`` [offers]; ``shares`` of
    them in the relaxation."""

    bound: float
    alive: Mask
    least: Floats
    shares: Floats


def choose(
    problem: AllocationProblem,
    offers: Offers,
    models: int,
    limits: SolveLimits,
    clock: Clock,
    enough: float = math.inf,
) -> Choice:
    """The cheapest offers, one per model, that fit together, within the gap; none of ``enough`` or more is sought.

    The bound is of all choices among the offers, or ``enough`` where it has come so far.
    """
    if len(np.unique(offers.model)) < models:
        return Choice(None, math.inf)
    root = Relaxation(problem, offers, models, limits).solve(np.ones(len(offers.cost), dtype=np.bool_))
    if root is None:
        return Choice(None, math.inf)
    rows, bound = None, math.inf
    for most in (_FIRST, len(offers.cost)):
        promising = np.flatnonzero(root.least < enough)
        kept = np.sort(promising[np.argsort(root.least[promising], kind="stable")[:most]])
        found = _search(problem, offers.take(kept), models, limits, clock, enough)
        others = float(np.delete(root.least, kept).min(initial=math.inf))
        bound = min(found.bound, others)
        if found.rows is not None:
            rows = kept[found.rows]
            enough = min(enough, _goal(offers, rows, limits))
        if found.bound <= others or others >= enough:
            break
    return Choice(rows, bound)


def _goal(offers: Offers, rows: NDArray[np.intp], limits: SolveLimits) -> float:
    return float(offers.cost[rows].sum()) * (1 - _NEARLY * limits.gap)


def _search(
    problem: AllocationProblem, offers: Offers, models: int, limits: SolveLimits, clock: Clock, enough: float
) -> Choice:
    """As :func:`choose`, of all offers at once. Goes down the better child first, then on from the least bound."""
    if len(np.unique(offers.model)) < models:
        return Choice(None, math.inf)
    relaxation = Relaxation(problem, offers, models, limits)
    root = relaxation.solve(np.ones(len(offers.cost), dtype=np.bool_))
    best, least = None, math.inf
    heap: list[tuple[float, int, Node]] = [] if root is None else [(root.bound, 0, root)]
    node: Node | None = None
    made = 0
    while heap or node is not None:
        if node is None:
            _, _, node = heapq.heappop(heap)
        if node.bound >= enough:
            node = None
            continue
        if relaxation.work > _WORK or clock.is_past():
            heap.append((node.bound, made + 1, node))
            break
        branches = _branches(offers, node.shares)
        if not branches:
            rows = _cheapest(offers, node.shares, models)
            best, least = rows, float(offers.cost[rows].sum())
            enough, node = min(enough, _goal(offers, rows, limits)), None
            continue
        children = _children(problem, offers, relaxation, node, branches, enough)
        node = min(children, key=lambda child: child.bound, default=None)
        for child in children:
            if child is not node:
                made += 1
                heapq.heappush(heap, (child.bound, made, child))
    open_bound = min((bound for bound, _, _ in heap), default=math.inf)
    return Choice(best, min(open_bound, least, enough))


def _branches(offers: Offers, shares: Floats) -> list[tuple[int, int, int]]:
    """(model, kind of node, count) such that the relaxation gives the model so many nodes in part; those nearest to half
    first. None where the model's offers in the mix use the same nodes."""
    used = np.flatnonzero(shares > _WHOLE)
    found = []
    for m in np.unique(offers.model[used]).tolist():
        own = used[offers.model[used] == m]
        for cell in np.flatnonzero(offers.use[own].any(axis=0)).tolist():
            for count in np.unique(offers.use[own, cell]).tolist():
                part = float(shares[own[offers.use[own, cell] >= count]].sum())
                if _WHOLE < part < 1 - _WHOLE:
                    found.append((abs(part - 0.5), m, cell, count))
    return [branch for _, *branch in sorted(found)]  # type: ignore[misc]


def _cheapest(offers: Offers, shares: Floats, models: int) -> NDArray[np.intp]:
    """The cheapest offer of every model in a mix of offers that use the same nodes."""
    used = np.flatnonzero(shares > _WHOLE)
    own = (used[offers.model[used] == m] for m in range(models))
    return np.array([rows[np.argmin(offers.cost[rows])] for rows in own], dtype=np.intp)


def _children(
    problem: AllocationProblem,
    offers: Offers,
    relaxation: Relaxation,
    node: Node,
    branches: list[tuple[int, int, int]],
    enough: float,
) -> list[Node]:
    """The two sides, without those that nothing below ``enough`` is in, of the branch that raises the bound most."""
    capacity = problem.capacity_nodes.ravel()
    best: list[Node] = []
    best_score = -1.0
    for m, cell, count in branches[:_TRIED]:
        use, own = offers.use[:, cell], offers.model == m
        with_it = np.where(own, use >= count, use <= capacity[cell] - count)
        children = [
            relaxation.solve(node.alive & (node.least < enough) & side) for side in (with_it, ~own | (use < count))
        ]
        kept = [child for child in children if child is not None and child.bound < enough]
        if len(kept) < 2:
            return kept
        rises = [max(child.bound - node.bound, 1e-6) for child in kept]
        if math.prod(rises) > best_score:
            best, best_score = kept, math.prod(rises)
    return best


class Relaxation:
    """Notation: x_j >= 0 share of offer j, A_j what it takes of the joint limits b (nodes, budget, quotas).

    min sum cost_j x_j; sum of x_j over the offers of a model = 1; A x <= b. At duals u >= 0 of the limits and with V_m the least
    of cost_j + u A_j of model m, any choice costs at least sum V - u b, and with offer j at least cost_j + u A_j - V_m more,
    however exact the duals are.
    """

    def __init__(self, problem: AllocationProblem, offers: Offers, models: int, limits: SolveLimits) -> None:
        self.work = 0
        self._offers, self._models = offers, models
        self._taken, self._tops = joint_limits(problem, offers)
        n = len(offers.cost)
        matrix = np.hstack([np.eye(models)[offers.model], self._taken])
        at, row = np.nonzero(matrix)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n, matrix.shape[1]
        lp.col_cost_, lp.col_lower_ = offers.cost, np.zeros(n)
        lp.col_upper_ = np.full(n, highspy.kHighsInf)
        lp.row_lower_ = np.concatenate([np.ones(models), np.full(len(self._tops), -highspy.kHighsInf)])
        lp.row_upper_ = np.concatenate([np.ones(models), self._tops])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=n))])
        lp.a_matrix_.index_, lp.a_matrix_.value_ = row, matrix[at, row]
        self._lp = QuietHighs(limits.threads)
        self._lp.setOptionValue("random_seed", limits.seed)
        self._lp.setOptionValue("presolve", "off")  # it would start anew at every node
        self._lp.passModel(lp)
        self._alive = np.ones(n, dtype=np.bool_)

    def solve(self, alive: Mask) -> Node | None:
        """The relaxation over the offers ``alive``; None where there is none."""
        changed = np.flatnonzero(alive != self._alive).astype(np.int32)
        if len(changed):
            upper = np.where(alive[changed], highspy.kHighsInf, 0.0)
            self._lp.changeColsBounds(len(changed), changed, np.zeros(len(changed)), upper)
            self._alive = alive
        self._lp.run()
        self.work += len(alive)
        status = self._lp.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            raise RuntimeError(f"the relaxation of a choice ended with {status.name}")
        solution = self._lp.getSolution()
        duals = np.maximum(-np.asarray(solution.row_dual, dtype=np.float64)[self._models :], 0.0)
        cost = np.where(alive, self._offers.cost + self._taken @ duals, math.inf)
        best = np.full(self._models, math.inf)
        np.minimum.at(best, self._offers.model, cost)
        bound = float(best.sum() - duals @ self._tops)
        return Node(bound, alive, bound + cost - best[self._offers.model], np.asarray(solution.col_value))
