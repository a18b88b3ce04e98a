"""The columns of the online problem: one per (workload, region, template) that could be bought and may be used there.

Dropping a column is lossless in three cases only, and only those are used: the region does not sell one of its nodes;
its nodes exceed the region's capacity, so not even one instance fits; another template of the workload needs no more
nodes of any configuration and serves at least as much. The last holds because cost, start-up charge, capacity and
budget all grow with node counts and service rows are sums of rates. A template that runs in the region is never dropped
for being dominated: it is cheaper than its twin by the start-up charge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.column_kernels import price_and_fit, undominated
from tasks.allocation.types import AllocationProblem, ModelDemand, WorkloadCandidates

# Comparing every pair is quadratic; larger sets come out of the template frontier already.
_DOMINANCE_LIMIT = 6000
# A workload is served at a demand D when its rate is at least D less this relative tolerance: sums of floats.
RATE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns in canonical order (workload id, region, template id), so that input order never changes the answer.

    ``workload`` indexes ``problem.candidates``, ``template`` its rows, ``region`` ``problem.regions``. ``share`` is the
    planned share of the model's demand that one instance serves, cut at 1: more than all is no use. ``rate_req_per_s``
    is uncut. ``max_instances``: what capacity admits, and no more than serve the whole demand alone.
    """

    workload: NDArray[np.int32]
    region: NDArray[np.int32]
    template: NDArray[np.int32]
    counts: NDArray[np.int16]
    price_usd_per_h: NDArray[np.float64]
    rate_req_per_s: NDArray[np.float64]
    share: NDArray[np.float64]
    max_instances: NDArray[np.int64]
    running: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.workload)

    def select(self, rows: NDArray[np.intp]) -> Columns:
        """The columns at ``rows``, in that order."""
        return Columns(*(getattr(self, name)[rows] for name in self.__slots__))


def planned_req_per_s(candidates: WorkloadCandidates) -> NDArray[np.float64]:
    """Planned request rate of one instance of each template: headroom x throughput / tokens per request."""
    tok_per_s = candidates.throughput_mtok_per_s.astype(np.float64) / 1000.0
    return candidates.headroom * tok_per_s / candidates.tokens_per_request


def make_columns(problem: AllocationProblem, *, prune: bool = True) -> Columns:
    """The columns worth having. Models with no demand get none, so that an optimum releases what runs for them.

    ``prune=False`` keeps dominated ones (for tests).
    """
    demand_of = {workload_id: demand for demand in problem.demands for workload_id in demand.workload_ids}
    parts: list[Columns] = []
    for w in sorted(range(len(problem.candidates)), key=lambda i: problem.candidates[i].workload_id):
        candidates = problem.candidates[w]
        demand = demand_of.get(candidates.workload_id)
        if demand is None or demand.planned_req_per_s <= 0:
            continue
        parts.extend(_workload_columns(problem, w, candidates, demand, prune=prune))
    if not parts:
        return _no_columns(len(problem.node_configs))
    columns = Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in Columns.__slots__))
    return columns.select(_servable(problem, columns))


def _servable(problem: AllocationProblem, columns: Columns) -> NDArray[np.intp]:
    """Rows in regions where every phase of the model has a column: elsewhere an instance would serve nobody."""
    present = np.zeros((len(problem.candidates), len(problem.regions)), dtype=np.bool_)
    present[columns.workload, columns.region] = True
    ids = {candidates.workload_id: w for w, candidates in enumerate(problem.candidates)}
    whole = np.zeros_like(present)
    for demand in problem.demands:
        phases = [ids[workload_id] for workload_id in demand.workload_ids]
        whole[phases] = present[phases].all(axis=0)
    return np.flatnonzero(whole[columns.workload, columns.region])


def _workload_columns(
    problem: AllocationProblem, w: int, candidates: WorkloadCandidates, demand: ModelDemand, *, prune: bool
) -> list[Columns]:
    ids = np.array(candidates.template_ids, dtype=np.str_)
    order = np.argsort(ids, kind="stable").astype(np.intp)
    rate = planned_req_per_s(candidates)
    order = order[candidates.throughput_mtok_per_s[order] > 0]
    share = np.minimum(rate[order] / demand.planned_req_per_s, 1.0)
    counts = candidates.counts[order]

    def kept(allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        if not prune or len(order) > _DOMINANCE_LIMIT:
            return allowed
        mask = allowed.copy()
        mask[allowed] = undominated(counts[allowed], share[allowed])
        return mask

    everywhere = kept(np.ones(len(order), dtype=np.bool_))
    here = {template_id for _, template_id in problem.running}
    row_of = {candidates.template_ids[i]: at for at, i in enumerate(order) if candidates.template_ids[i] in here}
    parts = []
    for region in sorted(demand.regions):
        r = problem.regions.index(region)
        banned = np.array([t for where, t in problem.forbidden if where == region], dtype=np.str_)
        allowed = ~np.isin(ids[order], banned)
        # What a forbidden template beats may be used in its place.
        keep = everywhere if allowed.all() else kept(allowed)
        running = np.zeros(len(order), dtype=np.int64)
        for (running_region, template_id), count in problem.running.items():
            if running_region == region and template_id in row_of:
                running[row_of[template_id]] = count
        price, fits = price_and_fit(counts, problem.price_usd_per_h[r], problem.capacity_nodes[r])
        rows = np.flatnonzero((keep | (allowed & (running > 0))) & ~np.isnan(price) & (fits > 0))
        enough = np.ceil((1.0 - RATE_TOLERANCE) / share[rows]).astype(np.int64)
        parts.append(
            Columns(
                workload=np.full(len(rows), w, dtype=np.int32),
                region=np.full(len(rows), r, dtype=np.int32),
                template=order[rows].astype(np.int32),
                counts=counts[rows],
                price_usd_per_h=price[rows],
                rate_req_per_s=rate[order][rows],
                share=share[rows],
                max_instances=np.minimum(fits[rows], np.maximum(enough, 1)),
                running=running[rows],
            )
        )
    return parts


def _no_columns(n_configs: int) -> Columns:
    empty_int, empty_float = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float64)
    counts = np.zeros((0, n_configs), dtype=np.int16)
    long = np.zeros(0, dtype=np.int64)
    return Columns(empty_int, empty_int, empty_int, counts, empty_float, empty_float, empty_float, long, long)
