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
from tasks.templates.exact import SolvedBatch, empty_batch
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
    curves: RateCurves,
    counts: NDArray[np.integer] | tuple[int, ...],
    limits: SolveLimits | None = None,
    *,
    at_least: int = 1,
    one_node_per_stage: bool = False,
    least_layers: int = 1,
) -> IlpResult:
    """Throughput-optimal placement of one combination by the paper's ILP, for every (stage count, cycle), the best kept.

    Sets and constants
        s = 1..S stages in pipeline order; k types of node, n_k nodes of each; j = m..L-(S-1)m layers of a
        stage, m = ``least_layers`` in pipelines
        That[s,j,k] rate of a k node that holds j layers in stage s: at position first for s = 1, last for s = S, mid
        between (only for S = 1). Stages are labelled by their place, so position needs no variables of its own
        t the rate a placement must reach to be better than the best one before
    Variables
        x[s,j] in {0,1}    stage s holds j layers
        y[s,k] in 0..n_k   k nodes in stage s
        z[s,j,k] >= 0      y[s,k] where x[s,j] = 1, else 0; exists only where That[s,j,k] > 0: a node must contribute
        T >= t             throughput
    Objective
        maximise T
    Constraints
        sum_j x[s,j] = 1 for s;  sum_s y[s,k] = n_k for k;  sum_s,j j*x[s,j] = L
        sum_j z[s,j,k] = y[s,k] for s,k;  z[s,j,k] <= n_k*x[s,j]
        T <= sum_j,k That[s,j,k]*z[s,j,k] for s
        sum_j j*x[s,j] >= sum_j j*x[s+1,j] for neighbouring mid stages (they are alike)
        sum_k y[s,k] = 1 for s, with ``one_node_per_stage`` (then only S = number of nodes)
    The same with T fixed at t (a *probe*): maximise sum_s,j j*x[s,j] under
        sum_k min(That[s,j,k], t)*z[s,j,k] >= t*x[s,j] for s,j
        t is in reach iff the optimum is at least L, since rates never grow with layers. It is far easier than T's.

    Reductions that change no optimum: pairs (S, c) run by falling upper bound U (:func:`_upper_bound`) and end when U
    is below t; a pair is first probed at t, then, where t is in reach, just above the rate found, and T is maximised only
    if that is in reach too; That is capped at U, or at t, in the rows of rates; x[s,j] and its z exist only where all nodes
    together reach t with j layers in stage s, and where the other stages can hold the rest. The rate returned is recomputed
    from the integers in exact arithmetic.

    ``limits``: time per ILP and threads (ILPs run to a zero gap, whatever its gap). ``at_least`` is a rate believed to be
    reachable, so that the ILPs only have to find it and to prove that there is none above; where it is not reachable the
    search begins anew without it. Raises RuntimeError where HiGHS reports an error.
    """
    limits = limits or SolveLimits()
    search = _Search(
        curves,
        tuple(int(count) for count in counts),
        SolveLimits(gap=0.0, time_s=limits.time_s, threads=limits.threads, seed=limits.seed),
        one_node_per_stage,
        least_layers,
    )
    start = time.monotonic()
    search.run(max(at_least, 1))
    if search.best.throughput_mtok_per_s == 0 and at_least > 1:
        search.run(1)
    status = IlpStatus.TIME_LIMIT if search.hit_limit else IlpStatus.OPTIMAL
    if status is IlpStatus.OPTIMAL and search.best.throughput_mtok_per_s == 0:
        status = IlpStatus.INFEASIBLE
    return IlpResult(search.best, status, search.n_ilps, time.monotonic() - start)


def solve_ilps(
    curves: RateCurves, counts: NDArray[np.int8], *, one_node_per_stage: bool = False, least_layers: int = 1
) -> SolvedBatch:
    """The reference in place of :func:`tasks.templates.exact.solve_many`. Raises RuntimeError where an ILP hits its time
    limit."""
    batch = empty_batch(counts, int(counts.sum(axis=1).max(initial=1)))
    for row in range(len(counts)):
        result = solve_ilp(
            curves, tuple(counts[row].tolist()), one_node_per_stage=one_node_per_stage, least_layers=least_layers
        )
        if result.status is IlpStatus.TIME_LIMIT:
            raise RuntimeError(f"the placement ILP of {counts[row].tolist()} hit its time limit; use the exact solver")
        placement = result.placement
        batch.throughput_mtok_per_s[row] = placement.throughput_mtok_per_s
        batch.n_stages[row], batch.cycle_index[row] = len(placement.stages), placement.cycle_index
        for s, stage in enumerate(placement.stages):
            batch.stage_layers[row, s] = stage.layer_end - stage.layer_start + 1
            batch.slot_stage[row, list(stage.nodes)] = s
    return batch


class _Search:
    """The ILPs of one combination, pair after pair; ``best`` is the placement so far."""

    def __init__(
        self,
        curves: RateCurves,
        counts: tuple[int, ...],
        limits: SolveLimits,
        one_node_per_stage: bool,
        least_layers: int,
    ) -> None:
        self.curves, self.counts, self.limits = curves, counts, limits
        self.is_chain, self.least_layers = one_node_per_stage, least_layers
        self.kinds = [k for k, count in enumerate(counts) if count]
        self.best = Placement(counts, 0, -1, ())
        self.n_ilps, self.hit_limit = 0, False

    def run(self, rate: int) -> None:
        """Look for a placement of at least ``rate``, then for better ones."""
        self.hit_limit = False
        for bound, stages, cycle in _pairs_by_bound(self.curves, self.counts, self.kinds):
            if self.is_chain and stages != sum(self.counts):
                continue
            if bound < max(rate, self.best.throughput_mtok_per_s + 1):
                break
            self._pair(rate, bound, stages, cycle)

    def _pair(self, rate: int, bound: int, stages: int, cycle: int) -> None:
        goals = (_Goal.LAYERS, _Goal.LAYERS, _Goal.RATE)
        for goal in goals:
            target = max(rate, self.best.throughput_mtok_per_s + 1)
            if target > bound:
                return
            model = _PlacementModel(
                self.curves, self.counts, self.kinds, stages, cycle, target, bound, goal, self.least_layers
            )
            if not model.can_hold_all():
                return
            if self.is_chain:
                model.add_one_node_per_stage()
            self.n_ilps += 1
            outcome = solve_mip(model.problem, self.limits)
            if outcome.status is MipStatus.ERROR:
                raise RuntimeError(f"placement ILP of {self.counts} with {stages} stages: {outcome.note}")
            self.hit_limit |= outcome.status is MipStatus.LIMIT
            held = outcome.values is not None and model.layers_held(outcome.values) >= self.curves.layers
            if not held:
                if goal is _Goal.RATE or outcome.status is not MipStatus.LIMIT:
                    return
                continue
            assert outcome.values is not None
            placement = model.placement(outcome.values)
            if placement.throughput_mtok_per_s > self.best.throughput_mtok_per_s:
                self.best = placement


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


class _Goal(StrEnum):
    """What an ILP maximises: the throughput, or at a fixed rate the layers that can be held."""

    RATE = "rate"
    LAYERS = "layers"


class _PlacementModel:
    """The ILP of one (S, cycle); see :func:`solve_ilp` for the notation."""

    def __init__(
        self,
        curves: RateCurves,
        counts: tuple[int, ...],
        kinds: list[int],
        stages: int,
        cycle: int,
        rate: int,
        bound: int,
        goal: _Goal,
        least_layers: int,
    ) -> None:
        self.curves, self.counts, self.kinds, self.stages, self.cycle = curves, counts, kinds, stages, cycle
        self.rates = {k: _rates(curves, stages, cycle, k) for k in kinds}
        S = range(stages)
        most = np.sum([counts[k] * self.rates[k] for k in kinds], axis=0)
        self.least = least_layers if stages > 1 else 1
        allowed = range(self.least, curves.layers - (stages - 1) * self.least + 1)
        self.layers_of = _within_reach({s: [j for j in allowed if most[s, j] >= rate] for s in S}, curves.layers)
        self.x = {(s, j): pulp.LpVariable(f"x_{s}_{j}", cat="Binary") for s in S for j in self.layers_of[s]}
        self.y = {(s, k): pulp.LpVariable(f"y_{s}_{k}", 0, counts[k], "Integer") for s in S for k in kinds}
        self.z = {
            (s, j, k): pulp.LpVariable(f"z_{s}_{j}_{k}", 0) for s, j in self.x for k in kinds if self.rates[k][s, j] > 0
        }
        self.held = {s: pulp.lpSum(j * self.x[s, j] for j in self.layers_of[s]) for s in S}
        self.problem = pulp.LpProblem("placement", pulp.LpMinimize)
        if goal is _Goal.RATE:
            self._maximise_rate(rate, bound)
        else:
            self._maximise_layers(rate)
        self._add_placement()

    def can_hold_all(self) -> bool:
        """Whether every stage can hold a layer at the rate, and all together the model, as far as sums over all nodes
        tell."""
        most = [layers[-1] for layers in self.layers_of.values() if layers]
        return len(most) == self.stages and sum(most) >= self.curves.layers

    def add_one_node_per_stage(self) -> None:
        """Forbid data parallelism between the nodes of a stage."""
        for s in range(self.stages):
            self.problem += pulp.lpSum(self.y[s, k] for k in self.kinds) == 1

    def layers_held(self, values: dict[str, float]) -> int:
        """Layers of all stages together."""
        return sum(j for (_, j), x in self.x.items() if round(values[x.name]) == 1)

    def _maximise_rate(self, rate: int, bound: int) -> None:
        # Rates in thousandths of the bound: the solver's absolute tolerances then mean 1e-9 of a rate or less.
        unit = bound / _LARGEST_COEFFICIENT
        throughput = pulp.LpVariable("T", rate / unit, _LARGEST_COEFFICIENT)
        self.problem += -throughput
        self.problem += pulp.lpSum(self.held.values()) == self.curves.layers
        for s in range(self.stages):
            terms = [(z, min(int(self.rates[k][s, j]), bound) / unit) for (at, j, k), z in self.z.items() if at == s]
            self.problem += throughput <= pulp.LpAffineExpression(terms)

    def _maximise_layers(self, rate: int) -> None:
        self.problem += -pulp.lpSum(self.held.values())
        for (s, j), x in self.x.items():
            terms = [
                (self.z[s, j, k], min(int(self.rates[k][s, j]), rate) / rate) for k in self.kinds if (s, j, k) in self.z
            ]
            self.problem += pulp.LpAffineExpression(terms) >= x

    def _add_placement(self) -> None:
        """Nodes and layers, each in one place."""
        for k in self.kinds:
            self.problem += pulp.lpSum(self.y[s, k] for s in range(self.stages)) == self.counts[k]
        for s in range(self.stages):
            self.problem += pulp.lpSum(self.x[s, j] for j in self.layers_of[s]) == 1
            for k in self.kinds:
                cells = [(j, self.z[s, j, k]) for j in self.layers_of[s] if (s, j, k) in self.z]
                self.problem += pulp.lpSum(z for _, z in cells) == self.y[s, k]
                for j, z in cells:
                    self.problem += z <= self.counts[k] * self.x[s, j]
            if 1 <= s < self.stages - 2:
                self.problem += self.held[s] >= self.held[s + 1]

    def placement(self, values: dict[str, float]) -> Placement:
        """The placement the integers describe, without the layers beyond L, its rate recomputed from the curves."""
        held = {s: j for (s, j), x in self.x.items() if round(values[x.name]) == 1}
        nodes = {(s, k): round(values[y.name]) for (s, k), y in self.y.items()}

        def rate(s: int) -> int:
            return sum(nodes[s, k] * int(self.rates[k][s, held[s]]) for k in self.kinds)

        while sum(held.values()) > self.curves.layers:  # fewer layers never lower a rate: relieve the slowest
            held[min((s for s in held if held[s] > self.least), key=rate)] -= 1
        free = _slots(self.counts)
        stages, start = [], 0
        for s in range(self.stages):
            slots = [free[k].pop(0) for k in self.kinds for _ in range(nodes[s, k])]
            position = Position.ONLY if self.stages == 1 else Position.MID
            if self.stages > 1 and s in (0, self.stages - 1):
                position = Position.FIRST if s == 0 else Position.LAST
            stages.append(StagePlacement(start, start + held[s] - 1, position, tuple(sorted(slots))))
            start += held[s]
        return Placement(self.counts, min(rate(s) for s in range(self.stages)), self.cycle, tuple(stages))


def _within_reach(layers_of: dict[int, list[int]], layers: int) -> dict[int, list[int]]:
    """Only numbers of layers with which the other stages, each holding its most, still make up the model."""
    most = sum(held[-1] for held in layers_of.values() if held)
    return {s: [j for j in held if most - held[-1] + j >= layers] for s, held in layers_of.items()}


def _slots(counts: tuple[int, ...]) -> dict[int, list[int]]:
    """The node slots of each type."""
    ends = np.cumsum(counts)
    return {k: list(range(int(end) - count, int(end))) for k, (end, count) in enumerate(zip(ends, counts, strict=True))}
