"""The paper's placement ILP in PuLP + HiGHS: the reference for the exact solver, and a solver of its own for small cases."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.types import SolveLimits
from tasks.templates.types import Placement, Position, RateCurves, StagePlacement

_LARGEST_COEFFICIENT = 1000.0


class IlpStatus(StrEnum):
    """What the ILPs of one combination established. ``TIME_LIMIT``: the placement is feasible, perhaps not the best."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"


@dataclass(frozen=True, slots=True)
class IlpResult:
    """Outcome of :func:`solve_ilp`: ``placement`` has rate 0 where nothing is feasible; ``n_ilps`` were run."""

    placement: Placement
    status: IlpStatus
    n_ilps: int
    solve_s: float


def solve_ilp(
    curves: RateCurves, counts: NDArray[np.integer] | tuple[int, ...], limits: SolveLimits | None = None
) -> IlpResult:
    """Throughput-optimal placement of one combination by the paper's ILP, one per (stage count, cycle), the best kept.

    Sets and constants
        s = 1..S stages in pipeline order; k types of node, n_k nodes of each; j = 1..L-S+1 layers of a stage
        That[s,j,k] rate of a k node that holds j layers in stage s: at position first for s = 1, last for s = S, mid
        between (only for S = 1). Stages are labelled by their place, so position needs no variables of its own
    Variables
        x[s,j] in {0,1}    stage s holds j layers
        y[s,k] in 0..n_k   k nodes in stage s
        z[s,j,k] >= 0      y[s,k] where x[s,j] = 1, else 0; exists only where That[s,j,k] > 0: a node must contribute
        T >= cutoff        throughput; the cutoff is one milli-tok/s above the best of the ILPs before
    Objective
        maximise T
    Constraints
        sum_j x[s,j] = 1 for s;  sum_s y[s,k] = n_k for k;  sum_s,j j*x[s,j] = L
        sum_j z[s,j,k] = y[s,k] for s,k;  z[s,j,k] <= n_k*x[s,j]
        T <= sum_j,k That[s,j,k]*z[s,j,k] for s
        sum_j j*x[s,j] >= sum_j j*x[s+1,j] for neighbouring mid stages (they are alike)

    Reductions that change no optimum: pairs (S, c) run by falling upper bound U (:func:`_upper_bound`) and end when U
    is below the cutoff; in the stage rows That is capped at U, since T <= U; x[s,j] and its z exist only where all nodes
    together reach the cutoff with j layers in stage s. The rate returned is recomputed from the integers in exact
    arithmetic. ``limits``: time per ILP and threads (ILPs run to a zero gap, whatever its gap). Raises RuntimeError
    where HiGHS reports an error.
    """
    limits = limits or SolveLimits()
    exact = SolveLimits(gap=0.0, time_s=limits.time_s, threads=limits.threads, seed=limits.seed)
    counts = tuple(int(count) for count in counts)
    kinds = [k for k, count in enumerate(counts) if count]
    best, status, n_ilps, start = Placement(counts, 0, -1, ()), IlpStatus.OPTIMAL, 0, time.monotonic()
    for bound, stages, cycle in _pairs_by_bound(curves, counts, kinds):
        if bound <= best.throughput_mtok_per_s:
            break
        n_ilps += 1
        model = _PlacementModel(curves, counts, kinds, stages, cycle, best.throughput_mtok_per_s + 1, bound)
        outcome = solve_mip(model.problem, exact)
        if outcome.status is MipStatus.ERROR:
            raise RuntimeError(f"placement ILP of {counts} with {stages} stages: {outcome.note}")
        if outcome.status is MipStatus.LIMIT:
            status = IlpStatus.TIME_LIMIT
        if outcome.values is not None:
            placement = model.placement(outcome.values)
            if placement.throughput_mtok_per_s > best.throughput_mtok_per_s:
                best = placement
    if status is IlpStatus.OPTIMAL and best.throughput_mtok_per_s == 0:
        status = IlpStatus.INFEASIBLE
    return IlpResult(best, status, n_ilps, time.monotonic() - start)


def _rates(curves: RateCurves, stages: int, cycle: int, k: int) -> NDArray[np.int64]:
    """That[s,j,k] of one type: [S, L + 1]."""
    places = [Position.ONLY] if stages == 1 else [Position.FIRST, *[Position.MID] * (stages - 2), Position.LAST]
    return curves.rate_mtok_per_s[k, stages - 1, places, cycle, :]


def _pairs_by_bound(curves: RateCurves, counts: tuple[int, ...], kinds: list[int]) -> list[tuple[int, int, int]]:
    """(upper bound, stages, cycle) of all pairs, highest bound first."""
    pairs = []
    for stages in range(1, min(sum(counts), curves.layers, curves.cycle_ms.shape[0]) + 1):
        for cycle in np.flatnonzero(~np.isnan(curves.cycle_ms[stages - 1])).tolist():
            best = np.stack([_rates(curves, stages, cycle, k).max(axis=0) for k in kinds])
            nodes = np.array([counts[k] for k in kinds])
            pairs.append((_upper_bound(best, nodes, curves.layers, stages), stages, cycle))
    return sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2]))


def _upper_bound(best: NDArray[np.int64], nodes: NDArray[np.int64], layers: int, stages: int) -> int:
    """An integer no throughput exceeds, by bisection; ``best`` [types, L + 1] is each type's rate in its best position.

    At T every stage of j layers holds nodes whose rates, each cut at T, sum to T or more. Weighing stages with
    max(j - a, 0) gives T*(L - a*S) <= sum over nodes of max_j max(j - a, 0)*min(That, T), for any a < L/S.
    """
    shifts = np.unique(np.linspace(0, layers / stages, 12, endpoint=False).astype(np.int64))
    lever = np.maximum(np.arange(layers + 1)[None, :] - shifts[:, None], 0)
    lever[:, layers - stages + 2 :] = 0

    def reachable(rate: int) -> bool:
        area = (lever[:, None, :] * np.minimum(best, rate)[None]).max(axis=2) @ nodes
        return bool((area >= rate * (layers - shifts * stages)).all())

    low, high = 0, int(nodes @ best.max(axis=1))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if reachable(middle) else (low, middle - 1)
    return low


class _PlacementModel:
    """The ILP of one (S, cycle); see :func:`solve_ilp` for the notation."""

    def __init__(
        self,
        curves: RateCurves,
        counts: tuple[int, ...],
        kinds: list[int],
        stages: int,
        cycle: int,
        cutoff: int,
        bound: int,
    ) -> None:
        self.curves, self.counts, self.kinds, self.stages, self.cycle = curves, counts, kinds, stages, cycle
        self.rate = {k: _rates(curves, stages, cycle, k) for k in kinds}
        self.bound = bound
        # Rates in thousandths of the bound: the solver's absolute tolerances then mean 1e-9 of a rate or less.
        self.unit = bound / _LARGEST_COEFFICIENT
        S = range(stages)
        most = np.sum([counts[k] * self.rate[k] for k in kinds], axis=0)
        self.layers_of = {s: [j for j in range(1, curves.layers - stages + 2) if most[s, j] >= cutoff] for s in S}
        self.x = {(s, j): pulp.LpVariable(f"x_{s}_{j}", cat="Binary") for s in S for j in self.layers_of[s]}
        self.y = {(s, k): pulp.LpVariable(f"y_{s}_{k}", 0, counts[k], "Integer") for s in S for k in kinds}
        self.z = {
            (s, j, k): pulp.LpVariable(f"z_{s}_{j}_{k}", 0) for s, j in self.x for k in kinds if self.rate[k][s, j] > 0
        }
        self.problem = self._problem(S, cutoff / self.unit)

    def _problem(self, S: range, cutoff: float) -> pulp.LpProblem:
        throughput = pulp.LpVariable("T", cutoff, _LARGEST_COEFFICIENT)
        problem = pulp.LpProblem("placement", pulp.LpMinimize)
        problem += -throughput
        layers = {s: pulp.lpSum(j * self.x[s, j] for j in self.layers_of[s]) for s in S}
        problem += pulp.lpSum(layers.values()) == self.curves.layers
        for k in self.kinds:
            problem += pulp.lpSum(self.y[s, k] for s in S) == self.counts[k]
        for s in S:
            problem += pulp.lpSum(self.x[s, j] for j in self.layers_of[s]) == 1
            terms = []
            for k in self.kinds:
                cells = [(j, self.z[s, j, k]) for j in self.layers_of[s] if (s, j, k) in self.z]
                problem += pulp.lpSum(z for _, z in cells) == self.y[s, k]
                terms += [(z, min(int(self.rate[k][s, j]), self.bound) / self.unit) for j, z in cells]
                for j, z in cells:
                    problem += z <= self.counts[k] * self.x[s, j]
            problem += throughput <= pulp.LpAffineExpression(terms)
            if 1 <= s < self.stages - 2:
                problem += layers[s] >= layers[s + 1]
        return problem

    def placement(self, values: dict[str, float]) -> Placement:
        """The placement the integers describe, its rate recomputed from the curves."""
        free = {}
        slot = 0
        for k, count in enumerate(self.counts):
            free[k] = list(range(slot, slot + count))
            slot += count
        stages, rates, start = [], [], 0
        for s in range(self.stages):
            held = next(j for (stage, j), x in self.x.items() if stage == s and round(values[x.name]) == 1)
            nodes, rate = [], 0
            for k in self.kinds:
                here = round(values[self.y[s, k].name])
                nodes += [free[k].pop(0) for _ in range(here)]
                rate += here * int(self.rate[k][s, held])
            position = Position.ONLY if self.stages == 1 else Position.MID
            if self.stages > 1 and s in (0, self.stages - 1):
                position = Position.FIRST if s == 0 else Position.LAST
            stages.append(StagePlacement(start, start + held - 1, position, tuple(sorted(nodes))))
            rates.append(rate)
            start += held
        return Placement(self.counts, min(rates), self.cycle, tuple(stages))
