"""What a plan's instances take and serve: nodes by pool and configuration, requests per second by model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns, planned_req_per_s
from tasks.allocation.moves import moved_of
from tasks.allocation.outcome import OPTIMAL_GAP, regions_of, relative_gap, served_by_region
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    Instance,
    ModelDemand,
    SolveStatus,
    delivered_share,
)


def used_nodes(problem: AllocationProblem, instances: Iterable[Instance]) -> NDArray[np.int64]:
    """Nodes that instances take, [pools, node configurations]."""
    used = np.zeros(problem.capacity_nodes.shape, dtype=np.int64)
    where = _template_rows(problem)
    for row in instances:
        w, i = where[row.workload_id, row.template_id]
        used[problem.pool_index(row.region, row.market)] += row.instances * problem.candidates[w].counts[i].astype(
            np.int64
        )
    return used


def served(problem: AllocationProblem, result: AllocationResult, demand: ModelDemand) -> tuple[float, int]:
    """Requests/s served with the phases together per region but for what moves, and from how many regions."""
    columns, counts = _as_columns(problem, [row for row in result.instances if row.workload_id in demand.workload_ids])
    per_region = served_by_region(problem, columns, counts, demand, moved_of(problem, result.transfers))
    return math.fsum(per_region), regions_of(problem, columns, counts, demand)


def with_start_up(problem: AllocationProblem, result: AllocationResult) -> AllocationResult:
    """``result``, found as if nothing ran and starting cost nothing, beside what runs in ``problem`` and at its start-up
    charges.

    Its bound B is one on rent. No plan starts for less than K (rent - R), R the rent of all that runs: B + K max(0, B - R) holds
    with start-ups. Where KV crosses regions its price is in B, and B alone is sure to.
    """
    rows = []
    for row in result.instances:
        running = problem.running.get((row.pool, row.template_id), 0)
        rows.append(replace(row, new_instances=max(row.instances - running, 0)))
    init = problem.init_share * math.fsum(r.cost_usd_per_h / r.instances * r.new_instances for r in rows)
    objective, bound = result.cost_usd_per_h + init, result.lower_bound_usd
    if not problem.links:
        bound += problem.init_share * max(0.0, bound - _running_rent(problem))
    bound = min(bound, objective)
    gap = relative_gap(objective, bound)
    status = result.status if result.status is SolveStatus.SHORTFALL or gap <= OPTIMAL_GAP else SolveStatus.TIME_LIMIT
    return replace(
        result,
        instances=tuple(rows),
        init_usd=init,
        objective_usd=objective,
        lower_bound_usd=bound,
        gap=gap,
        status=status,
    )


def _running_rent(problem: AllocationProblem) -> float:
    """USD/h of all that runs and could stay."""
    places = {pool.name: p for p, pool in enumerate(problem.pools)}
    at = {template_id: (w, i) for (_, template_id), (w, i) in _template_rows(problem).items()}
    total = 0.0
    for (where, template_id), instances in problem.running.items():
        if where in places and template_id in at:
            w, i = at[template_id]
            price = np.nan_to_num(problem.price_usd_per_h[places[where]])
            total += instances * float(problem.candidates[w].counts[i] @ price)
    return total


def _as_columns(problem: AllocationProblem, instances: Sequence[Instance]) -> tuple[Columns, NDArray[np.int64]]:
    """Instances as columns of their own, one each, and their counts."""
    where = _template_rows(problem)
    at = [where[row.workload_id, row.template_id] for row in instances]
    pools = [problem.pool_index(row.region, row.market) for row in instances]
    rates = [float(planned_req_per_s(problem.candidates[w])[i]) for w, i in at]
    counts = np.array([problem.candidates[w].counts[i] for w, i in at], dtype=np.int16)
    counts = counts.reshape(len(at), len(problem.node_configs))
    outage = problem.outage
    lasting = [
        rate * float(delivered_share(nodes[None, :], None if outage is None else outage[p])[0])
        for rate, nodes, p in zip(rates, counts, pools, strict=True)
    ]
    many = np.array([row.instances for row in instances], dtype=np.int64)
    columns = Columns(
        workload=np.array([w for w, _ in at], dtype=np.int32),
        region=np.array([problem.regions.index(row.region) for row in instances], dtype=np.int32),
        pool=np.array(pools, dtype=np.int32),
        template=np.array([i for _, i in at], dtype=np.int32),
        counts=counts,
        price_usd_per_h=np.array([row.cost_usd_per_h / row.instances for row in instances], dtype=np.float64),
        rate_req_per_s=np.array(lasting, dtype=np.float64),
        share=np.array(lasting, dtype=np.float64),
        max_instances=many,
        running=np.array([row.instances - row.new_instances for row in instances], dtype=np.int64),
    )
    return columns, many


def _template_rows(problem: AllocationProblem) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (candidates.workload_id, template_id): (w, i)
        for w, candidates in enumerate(problem.candidates)
        for i, template_id in enumerate(candidates.template_ids)
    }
