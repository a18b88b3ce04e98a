"""Homogeneous baselines: what the same demand costs when a replica may not mix GPU types.

``homo_optimal`` is the exact optimum of that restriction, ``homo_greedy`` the paper's Homo baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from catalogs.ids import split_node_config
from tasks.allocation.columns import usable
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    ModelDemand,
    SolveLimits,
    SolveStatus,
    WorkloadCandidates,
    delivered_share,
)

_TOLERANCE = 1e-9
_BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class HomoOptimal:
    """``cost_usd_per_h`` (rent) is None where homogeneous replicas cannot meet the demand (``missing`` says why), or no
    plan was found in time; ``lower_bound_usd_per_h`` bounds rent plus start-up charge of any homogeneous plan."""

    cost_usd_per_h: float | None
    lower_bound_usd_per_h: float | None
    missing: str
    result: AllocationResult


@dataclass(frozen=True, slots=True)
class GreedyRow:
    """Instances the greedy rents of one template in one region (as pools are named), at their total cost."""

    region: str
    template_id: str
    workload_id: str
    instances: int
    cost_usd_per_h: float


@dataclass(frozen=True, slots=True)
class HomoGreedy:
    """``cost_usd_per_h`` is None where the greedy runs out of supply; ``missing`` then names the models and req/s."""

    cost_usd_per_h: float | None
    missing: str
    rows: tuple[GreedyRow, ...]


def homogeneous_only(problem: AllocationProblem) -> AllocationProblem:
    """``problem`` with only the templates whose nodes all carry one GPU type (node sizes may differ)."""
    gpus = [split_node_config(config)[0] for config in problem.node_configs]
    of_gpu = np.array([[gpu == name for name in sorted(set(gpus))] for gpu in gpus], dtype=np.int64)

    def restrict(candidates: WorkloadCandidates) -> WorkloadCandidates:
        types = ((candidates.counts > 0).astype(np.int64) @ of_gpu > 0).sum(axis=1)
        rows = np.flatnonzero(types == 1)
        return replace(
            candidates,
            template_ids=tuple(candidates.template_ids[i] for i in rows),
            counts=candidates.counts[rows],
            throughput_mtok_per_s=candidates.throughput_mtok_per_s[rows],
        )

    return replace(problem, candidates=tuple(restrict(candidates) for candidates in problem.candidates))


def homo_optimal(problem: AllocationProblem, limits: SolveLimits) -> HomoOptimal:
    """The least cost of homogeneous replicas for the same inputs and rules, with the solver's bound."""
    result = solve_covers(homogeneous_only(problem), limits, allow_shortage=False)
    if result.status in (SolveStatus.OPTIMAL, SolveStatus.GAP) or result.instances:
        return HomoOptimal(result.cost_usd_per_h, result.lower_bound_usd, "", result)
    if result.status is SolveStatus.INFEASIBLE:
        return HomoOptimal(None, None, "homogeneous replicas cannot meet the demand with this supply", result)
    return HomoOptimal(None, None, result.note, result)


def homo_greedy(problem: AllocationProblem) -> HomoGreedy:
    """The paper's Homo: per model and phase the most cost-efficient homogeneous template first, until demand is met.

    Models in the problem's order. A model's regions are tried in order of the cost per request of its best templates
    there. In a region each phase takes instances of the template with the most planned req/s per USD that still fits,
    then the next, until the rate wanted is reached; prefill and decode must reach the same rate there, so where one
    runs out of nodes the largest rate that both reach is taken (bisection) and the rest goes to the next region. With
    ``min_regions`` k the first k - 1 regions are asked for a k-th of the demand each. Start-up charges and running
    instances are ignored, as in the paper. Of a region with several markets each is tried like a region; spot is left out
    where it may not serve all. It knows no least replicas and no N+1: with those there is no such plan.
    """
    problem = homogeneous_only(problem)
    ruled = [d.model for d in problem.demands if d.planned_req_per_s > 0 and (d.survives_loss or d.min_replicas > 1)]
    if ruled:
        return HomoGreedy(None, "the paper's greedy knows neither N+1 nor least replicas", ())
    left, uses = _supply(problem)
    rows: list[GreedyRow] = []
    missing: list[str] = []
    for demand in problem.demands:
        unmet = _serve_model(problem, demand, left, uses, rows)
        if unmet > demand.planned_req_per_s * _TOLERANCE:
            missing.append(f"{demand.model} {unmet:.4g} of {demand.planned_req_per_s:.4g} req/s")
    cost = math.fsum(row.cost_usd_per_h for row in rows)
    budget = problem.budget_usd_per_h
    if not missing and budget is not None and cost > budget * (1 + _TOLERANCE):
        missing.append(f"{cost - budget:.2f} USD/h of budget")
    if missing:
        return HomoGreedy(None, "greedy homogeneous replicas miss " + ", ".join(missing), tuple(rows))
    return HomoGreedy(cost, "", tuple(rows))


def _supply(problem: AllocationProblem) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Supply [pools, configurations + quotas] and what each workload's templates take of it: a quota over several
    configurations counts as one more column, without limit in regions that it is not of."""
    units = np.array(
        [[quota.units.get(c, 0) for quota in problem.quotas] for c in problem.node_configs], dtype=np.int64
    )
    units = units.reshape(len(problem.node_configs), len(problem.quotas))
    limits = np.full((len(problem.pools), len(problem.quotas)), np.iinfo(np.int64).max // 2)
    for q, quota in enumerate(problem.quotas):
        limits[problem.quota_units(quota).any(axis=1), q] = quota.limit
    counts = [candidates.counts.astype(np.int64) for candidates in problem.candidates]
    return np.hstack([problem.capacity_nodes, limits]), [np.hstack([rows, rows @ units]) for rows in counts]


def _serve_model(
    problem: AllocationProblem,
    demand: ModelDemand,
    left: NDArray[np.int64],
    uses: Sequence[NDArray[np.int64]],
    rows: list[GreedyRow],
) -> float:
    """Serve one model; takes nodes from ``left``, appends ``rows``; returns the req/s not served."""
    unmet = demand.planned_req_per_s
    if unmet <= 0:
        return 0.0
    workloads = [w for w, c in enumerate(problem.candidates) if c.workload_id in demand.workload_ids]
    pools = [p for region in demand.regions for p in problem.pools_in(region)]
    if demand.max_spot_share < 1:
        pools = [p for p in pools if problem.pools[p].is_firm]
    options = {p: [_ranked(problem, w, demand, p) for w in workloads] for p in pools}
    tried = [r for r, phases in options.items() if all(len(order) for order, _, _ in phases)]
    tried.sort(key=lambda r: (sum(float(per_req[order[0]]) for order, _, per_req in options[r]), problem.pools[r].name))
    served: set[str] = set()
    for r in tried:
        want = unmet
        if len(served) < demand.min_regions - 1:
            want = min(unmet, demand.planned_req_per_s / demand.min_regions)
        picks = _serve_region(uses, workloads, options[r], left[r], want)
        if picks is None:
            continue
        got, chosen = picks
        unmet -= got
        served.add(problem.pools[r].region)
        for w, i, many in chosen:
            c = problem.candidates[w]
            left[r] -= many * uses[w][i]
            price = float(c.counts[i] @ np.nan_to_num(problem.price_usd_per_h[r]))
            rows.append(GreedyRow(problem.pools[r].name, c.template_ids[i], c.workload_id, many, many * price))
        if unmet <= demand.planned_req_per_s * _TOLERANCE and len(served) >= demand.min_regions:
            return 0.0
    if unmet <= demand.planned_req_per_s * _TOLERANCE and len(served) < demand.min_regions:
        return demand.planned_req_per_s / demand.min_regions
    return unmet


def _ranked(
    problem: AllocationProblem, w: int, demand: ModelDemand, pool: int
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Templates the pool sells by cost per planned request (ties by id), all rates in req/s, all costs per req/s."""
    candidates, price = problem.candidates[w], problem.price_usd_per_h[pool]
    rate = candidates.headroom * candidates.throughput_mtok_per_s / 1000.0 / candidates.tokens_per_request
    rate = rate * delivered_share(candidates.counts, None if problem.outage is None else problem.outage[pool])
    sold = ~np.isnan(price)
    cost = candidates.counts.astype(np.float64) @ np.where(sold, price, 0.0)
    useful = (rate > 0) & ~(candidates.counts[:, ~sold] > 0).any(axis=1) & usable(problem, candidates, demand)
    per_req = np.where(useful, cost / np.where(rate > 0, rate, 1.0), np.inf)
    order = sorted(np.flatnonzero(useful), key=lambda i: (per_req[i], candidates.template_ids[i]))
    return np.array(order, dtype=np.intp), np.asarray(rate, dtype=np.float64), np.asarray(per_req, dtype=np.float64)


def _serve_region(
    uses: Sequence[NDArray[np.int64]],
    workloads: Sequence[int],
    options: Sequence[tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]],
    left: NDArray[np.int64],
    want: float,
) -> tuple[float, list[tuple[int, int, int]]] | None:
    """The rate served (at most ``want``) and the (workload, template, instances) for it; None if none can be."""
    best = _take(uses, workloads, options, left, want)
    if best is not None:
        return want, best
    low, high = 0.0, want
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        chosen = _take(uses, workloads, options, left, middle)
        low, high, best = (low, middle, best) if chosen is None else (middle, high, chosen)
    return None if best is None else (low, best)


def _take(
    uses: Sequence[NDArray[np.int64]],
    workloads: Sequence[int],
    options: Sequence[tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]],
    left: NDArray[np.int64],
    want: float,
) -> list[tuple[int, int, int]] | None:
    """Greedy choice that brings every phase to ``want`` req/s within what is ``left``; None if a phase falls short."""
    left = left.copy()
    chosen: list[tuple[int, int, int]] = []
    for w, (order, rate, _) in zip(workloads, options, strict=True):
        short = want
        for i in order:
            if short <= want * _TOLERANCE:
                break
            used = uses[w][i]
            fits = int((left[used > 0] // used[used > 0]).min())
            many = min(fits, math.ceil(short / rate[i] * (1 - _TOLERANCE)))
            if many > 0:
                left -= many * used
                short -= many * rate[i]
                chosen.append((w, int(i), many))
        if short > want * _TOLERANCE:
            return None
    return chosen
