"""What a plan is worth when its rates turn out otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tasks.allocation.types import AllocationProblem, Instance, WorkloadCandidates

_TOLERANCE = 1e-9


def repaired_cost_usd_per_h(
    problem: AllocationProblem, instances: Sequence[Instance], rates_mtok_per_s: Mapping[str, int]
) -> tuple[float, float]:
    """(share of demand met as planned, rent once made good) of a plan's ``instances`` at true rates by template id.

    ``problem`` holds all templates at their true rates. The share is the least over workloads, at most 1. Made good means,
    per workload: instances go back, dearest first, where the rest still meets the demand; where it is short, the cheapest
    whole number of one template is added in one of the model's regions. Supply and co-location per region are not looked
    at, so the rent is what a repair costs at least.
    """
    met, rent = 1.0, 0.0
    for demand in problem.demands:
        for workload_id in demand.workload_ids:
            candidates = next(c for c in problem.candidates if c.workload_id == workload_id)
            wanted = demand.planned_req_per_s * candidates.tokens_per_request / candidates.headroom * 1000
            units = [
                (row.cost_usd_per_h / row.instances, rates_mtok_per_s[row.template_id])
                for row in instances
                if row.workload_id == workload_id
                for _ in range(row.instances)
            ]
            supplied = float(sum(rate for _, rate in units))
            if wanted > 0:
                met = min(met, supplied / wanted)
            kept, supplied = _kept(units, supplied, wanted)
            rent += kept
            if supplied < wanted * (1 - _TOLERANCE):
                rent += _cheapest_extra(problem, candidates, demand.regions, wanted - supplied)
    return met, rent


def _kept(units: list[tuple[float, int]], supplied: float, wanted: float) -> tuple[float, float]:
    """Rent and supply after giving back what is not needed, dearest first."""
    rent = 0.0
    for cost, rate in sorted(units, reverse=True):
        if supplied - rate >= wanted * (1 - _TOLERANCE):
            supplied -= rate
        else:
            rent += cost
    return rent, supplied


def _cheapest_extra(
    problem: AllocationProblem, candidates: WorkloadCandidates, regions: Sequence[str], missing: float
) -> float:
    """The least rent of whole instances of one template that supply ``missing`` milli-tok/s; inf where none is sold."""
    rows = candidates.throughput_mtok_per_s > 0
    counts, rates = candidates.counts[rows].astype(float), candidates.throughput_mtok_per_s[rows]
    if not len(rates):
        return np.inf
    best = np.inf
    for pool in (pool for region in regions for pool in problem.pools_in(region)):
        price = problem.price_usd_per_h[pool]
        sold = ~((counts > 0) & np.isnan(price)).any(axis=1)
        if sold.any():
            cost = counts[sold] @ np.nan_to_num(price)
            best = min(best, float((np.ceil(missing / rates[sold]) * cost).min()))
    return best
