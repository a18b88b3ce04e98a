"""Problems with one thing changed: a template forbidden, a model alone, a rule left out. What explanations solve again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.allocation.in_use import served, used_nodes
from tasks.allocation.moves import links_left
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    Instance,
    KvTransfer,
    ModelDemand,
    SolveStatus,
    WorkloadCandidates,
)
from tasks.templates.frontier import frontier_mask


def forbidding(problem: AllocationProblem, pairs: Iterable[tuple[str, str]]) -> AllocationProblem:
    """The problem with (pool name, template id) ``pairs`` forbidden beside those that are."""
    return replace(problem, forbidden=problem.forbidden | frozenset(pairs))


def with_stand_ins(
    problem: AllocationProblem,
    workload_id: str,
    library: WorkloadCandidates,
    gone: Collection[str],
    left_out: Collection[str] = (),
) -> AllocationProblem:
    """The problem with the templates of ``library`` (all of the workload, in the problem's node configurations) that a
    frontier may have left out because of the templates ``gone``: those that hold all nodes of one of them.

    Without ``gone`` the frontier is not the frontier any more: a template that one of ``gone`` replaced comes back, unless
    something else replaces it (rates count up to the demand alone) or it is ``left_out`` for another reason. The answer
    without ``gone`` is then that of the whole library without them.
    """
    candidates = next(c for c in problem.candidates if c.workload_id == workload_id)
    present = {*candidates.template_ids, *left_out, *gone}
    lost = [candidates.counts[i] for i, t in enumerate(candidates.template_ids) if t in gone]
    back = np.zeros(len(library.template_ids), dtype=np.bool_)
    for nodes in lost:
        back |= (library.counts >= nodes).all(axis=1)
    back &= np.array([t not in present for t in library.template_ids], dtype=np.bool_)
    if not back.any():
        return problem
    stay = np.array([t not in gone for t in candidates.template_ids], dtype=np.bool_)
    counts = np.concatenate([candidates.counts[stay], library.counts[back]])
    rates = np.concatenate([candidates.throughput_mtok_per_s[stay], library.throughput_mtok_per_s[back]])
    demand = next(d for d in problem.demands if workload_id in d.workload_ids)
    enough = demand.planned_req_per_s * candidates.tokens_per_request / candidates.headroom * 1000
    useful = frontier_mask(counts.astype(np.int8), np.minimum(rates, math.ceil(enough)))[int(stay.sum()) :]
    rows = np.flatnonzero(back)[useful]
    wider = replace(
        candidates,
        template_ids=candidates.template_ids + tuple(library.template_ids[i] for i in rows),
        counts=np.concatenate([candidates.counts, library.counts[rows]]),
        throughput_mtok_per_s=np.concatenate([candidates.throughput_mtok_per_s, library.throughput_mtok_per_s[rows]]),
    )
    return with_candidates(problem, wider)


def only_templates(problem: AllocationProblem, stay: Mapping[str, Collection[str]]) -> AllocationProblem:
    """The problem with the templates ``stay`` alone, by workload id."""
    candidates = []
    for c in problem.candidates:
        wanted = set(stay[c.workload_id])
        keep = np.array([t in wanted for t in c.template_ids], dtype=np.bool_)
        ids = tuple(t for t in c.template_ids if t in wanted)
        rates = c.throughput_mtok_per_s[keep]
        candidates.append(replace(c, template_ids=ids, counts=c.counts[keep], throughput_mtok_per_s=rates))
    return replace(problem, candidates=tuple(candidates))


def with_candidates(problem: AllocationProblem, candidates: WorkloadCandidates) -> AllocationProblem:
    """The problem with a workload's candidates in place of those of the same workload."""
    return replace(
        problem,
        candidates=tuple(candidates if c.workload_id == candidates.workload_id else c for c in problem.candidates),
    )


def with_nodes(problem: AllocationProblem, pool: int, config: int, nodes: int) -> AllocationProblem:
    """The problem with ``nodes`` of a configuration in a pool (by index)."""
    capacity = problem.capacity_nodes.copy()
    capacity[pool, config] = nodes
    return replace(problem, capacity_nodes=capacity)


def apart(problem: AllocationProblem) -> AllocationProblem:
    """The problem without co-location: each phase of a model may be served in other regions than the others, as if KV moved
    between regions for nothing."""
    demands = tuple(
        replace(demand, model=f"{demand.model}/{workload_id}", workload_ids=(workload_id,))
        for demand in problem.demands
        for workload_id in demand.workload_ids
    )
    return replace(problem, demands=demands, links=())


def lifting(problem: AllocationProblem, rule: str) -> AllocationProblem:
    """The problem without one of the models' own rules: ``min_regions``, ``min_replicas``, ``n_plus_one``,
    ``max_spot_share`` or ``node_configs`` (pinned and excluded ones)."""
    without: dict[str, Any] = {
        "min_regions": {"min_regions": 1},
        "min_replicas": {"min_replicas": 1},
        "n_plus_one": {"survives_loss": False},
        "max_spot_share": {"max_spot_share": 1.0},
        "node_configs": {"node_configs": None, "excluded": ()},
    }
    return replace(problem, demands=tuple(replace(demand, **without[rule]) for demand in problem.demands))


def as_served(problem: AllocationProblem, result: AllocationResult) -> AllocationProblem:
    """The problem whose demand is what ``result`` serves: what an explanation of a shortage is about."""
    demands = []
    for demand in problem.demands:
        got, regions = served(problem, result, demand) if demand.planned_req_per_s > 0 else (0.0, 0)
        least = min(demand.min_regions, max(regions, 1))
        demands.append(replace(demand, planned_req_per_s=min(got, demand.planned_req_per_s), min_regions=least))
    return replace(problem, demands=tuple(demands))


def alone(
    problem: AllocationProblem,
    others: Iterable[Instance],
    demand: ModelDemand,
    transfers: Iterable[KvTransfer] = (),
) -> AllocationProblem:
    """One model's problem while ``others`` (of all other models) keep their nodes, quota units and rent, and what of
    ``transfers`` is theirs its bandwidth and price."""
    rows, carried = list(others), [row for row in transfers if row.model != demand.model]
    taken = used_nodes(problem, rows)
    quotas = []
    for quota in problem.quotas:
        left = quota.limit - int((taken * problem.quota_units(quota)).sum())
        quotas.append(replace(quota, limit=max(left, 0)))
    budget = problem.budget_usd_per_h
    paid = sum(row.cost_usd_per_h for row in rows) + sum(row.usd_per_h for row in carried)
    return replace(
        problem,
        capacity_nodes=np.maximum(problem.capacity_nodes - taken, 0),
        candidates=tuple(c for c in problem.candidates if c.workload_id in demand.workload_ids),
        demands=(demand,),
        quotas=tuple(quotas),
        links=links_left(problem, carried),
        budget_usd_per_h=None if budget is None else max(budget - paid, 0.0),
    )


def is_plan(result: AllocationResult) -> bool:
    """Whether an answer meets all demand."""
    return result.status in (SolveStatus.OPTIMAL, SolveStatus.GAP, SolveStatus.TIME_LIMIT) and result.theta >= 1 - 1e-9
