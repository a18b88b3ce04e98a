"""The columns of the online problem: one per (workload, pool, template) that could be bought and may be used there.

Dropping a column is lossless in three cases only, and only those are used: the pool does not sell one of its nodes;
its nodes exceed the pool's capacity, so not even one instance fits; another template of the workload needs no more
nodes of any configuration and serves at least as much (in large sets only sought among those that serve the whole demand
alone: of others no frontier has such pairs). The last holds because cost, start-up charge, capacity and budget all grow
with node counts, service rows are sums of rates, and a phase without its largest instance serves no less when that is
replaced by a larger one (N+1). A template that runs in the pool is never dropped for being dominated: it is cheaper than
its twin by the start-up charge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.column_kernels import price_and_fit, smallest, undominated
from tasks.allocation.moves import links_of, phases_of
from tasks.allocation.types import AllocationProblem, ModelDemand, WorkloadCandidates, delivered_share

# Comparing every pair is quadratic; larger sets come out of the template frontier already, up to the cut at the demand.
_DOMINANCE_LIMIT = 2000
# A workload is served at a demand D when its rate is at least D less this relative tolerance: sums of floats.
RATE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns in canonical order (workload id, region, pool, template id), so that input order never changes the answer.

    ``workload`` indexes ``problem.candidates``, ``template`` its rows, ``region`` ``problem.regions``, ``pool``
    ``problem.pools``. ``share`` is the planned share of the model's demand that one instance serves, cut at 1: more than
    all is no use. ``rate_req_per_s`` is uncut; both are less what interruptions take. ``max_instances``: what capacity
    admits, and no more than serve the whole demand alone, with those that the model's rules ask for besides.
    """

    workload: NDArray[np.int32]
    region: NDArray[np.int32]
    pool: NDArray[np.int32]
    template: NDArray[np.int32]
    counts: NDArray[np.int16]
    price_usd_per_h: NDArray[np.float64]
    rate_req_per_s: NDArray[np.float64]
    share: NDArray[np.float64]
    max_instances: NDArray[np.int64]
    running: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.workload)

    def is_firm(self, problem: AllocationProblem) -> NDArray[np.bool_]:
        """Which columns are on nodes that are not taken back."""
        firm = np.array([pool.is_firm for pool in problem.pools], dtype=np.bool_)
        return np.asarray(firm[self.pool], dtype=np.bool_)

    def select(self, rows: NDArray[np.intp]) -> Columns:
        """The columns at ``rows``, in that order."""
        return Columns(*(getattr(self, name)[rows] for name in self.__slots__))

    def spread(self, rows: NDArray[np.intp], counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Instances per column from those of a selection: 0 of the columns left out."""
        all_counts = np.zeros(len(self), dtype=np.int64)
        all_counts[rows] = counts
        return all_counts


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
    rows = servable(problem, columns)
    return columns if len(rows) == len(columns) else columns.select(rows)


def servable(problem: AllocationProblem, columns: Columns) -> NDArray[np.intp]:
    """Rows in regions where every phase of the model has a column (a firm one where spot may not serve all), or where the one
    in which KV comes or goes has: elsewhere an instance would serve nobody."""
    present = np.zeros((2, len(problem.candidates), len(problem.regions)), dtype=np.bool_)
    present[0, columns.workload, columns.region] = True
    firm = columns.is_firm(problem)
    present[1, columns.workload[firm], columns.region[firm]] = True
    ids = {candidates.workload_id: w for w, candidates in enumerate(problem.candidates)}
    whole = np.zeros(present.shape[1:], dtype=np.bool_)
    for demand in problem.demands:
        phases = [ids[workload_id] for workload_id in demand.workload_ids]
        there = present[int(demand.max_spot_share < 1)]
        whole[phases] = there[phases].all(axis=0)
        ends = phases_of(problem, demand)
        for link in (problem.links[at] for at in links_of(problem, demand)):
            assert ends is not None  # else it has no links
            at_source = ids[ends[0]], problem.regions.index(link.source)
            at_target = ids[ends[1]], problem.regions.index(link.target)
            if demand.min_regions > 1:  # each phase counts its regions by itself
                whole[phases] = there[phases]
            if there[at_source] and there[at_target]:
                whole[at_source] = whole[at_target] = True
    return np.flatnonzero(whole[columns.workload, columns.region])


def usable(problem: AllocationProblem, candidates: WorkloadCandidates, demand: ModelDemand) -> NDArray[np.bool_]:
    """Templates whose nodes are all of configurations that the model may use."""
    banned = [
        config in demand.excluded or (demand.node_configs is not None and config not in demand.node_configs)
        for config in problem.node_configs
    ]
    return np.asarray(~(candidates.counts[:, np.array(banned, dtype=np.bool_)] > 0).any(axis=1))


def _workload_columns(
    problem: AllocationProblem, w: int, candidates: WorkloadCandidates, demand: ModelDemand, *, prune: bool
) -> list[Columns]:
    ids = np.array(candidates.template_ids, dtype=np.str_)
    order = np.argsort(ids, kind="stable").astype(np.intp)
    usable_rows = usable(problem, candidates, demand) & (candidates.throughput_mtok_per_s > 0)
    order = order[usable_rows[order]]
    rate = planned_req_per_s(candidates)[order]
    counts = candidates.counts[order]

    def kept(allowed: NDArray[np.bool_], share: NDArray[np.float64]) -> NDArray[np.bool_]:
        mask = allowed.copy()
        if prune and len(order) <= _DOMINANCE_LIMIT:
            mask[allowed] = undominated(counts[allowed], share[allowed])
        elif prune:
            alone = np.flatnonzero(allowed & (share >= 1.0))
            mask[alone] = smallest(counts[alone], np.argsort(counts[alone].sum(axis=1), kind="stable"))
        return mask

    everything = np.ones(len(order), dtype=np.bool_)
    everywhere = kept(everything, np.minimum(rate / demand.planned_req_per_s, 1.0))
    here = {template_id for _, template_id in problem.running}
    row_of = (
        {candidates.template_ids[i]: at for at, i in enumerate(order) if candidates.template_ids[i] in here}
        if here
        else {}
    )
    parts = []
    for region in sorted(demand.regions):
        for p in problem.pools_in(region):
            pool, outage = problem.pools[p], None if problem.outage is None else problem.outage[p]
            if not pool.is_firm and demand.max_spot_share == 0:
                continue
            lasting = rate * delivered_share(counts, outage) if outage is not None and outage.any() else rate
            share = np.minimum(lasting / demand.planned_req_per_s, 1.0)
            banned = np.array([t for where, t in problem.forbidden if where == pool.name], dtype=np.str_)
            allowed = ~np.isin(ids[order], banned)
            # What a forbidden template beats may be used in its place; what outages make of rates changes which beats which.
            keep = everywhere if allowed.all() and lasting is rate else kept(allowed, share)
            running = np.zeros(len(order), dtype=np.int64)
            for (where, template_id), count in problem.running.items():
                if where == pool.name and template_id in row_of:
                    running[row_of[template_id]] = count
            price, fits = price_and_fit(counts, problem.price_usd_per_h[p], problem.capacity_nodes[p])
            rows = np.flatnonzero((keep | (allowed & (running > 0))) & ~np.isnan(price) & (fits > 0))
            parts.append(
                Columns(
                    workload=np.full(len(rows), w, dtype=np.int32),
                    region=np.full(len(rows), problem.regions.index(region), dtype=np.int32),
                    pool=np.full(len(rows), p, dtype=np.int32),
                    template=order[rows].astype(np.int32),
                    counts=counts[rows],
                    price_usd_per_h=price[rows],
                    rate_req_per_s=lasting[rows],
                    share=share[rows],
                    max_instances=np.minimum(fits[rows], _most_useful(demand, share[rows])),
                    running=running[rows],
                )
            )
    return parts


def _most_useful(demand: ModelDemand, share: NDArray[np.float64]) -> NDArray[np.int64]:
    """Instances of which one more is no use: they serve the whole demand, one of them lost where that must not matter."""
    enough = np.maximum(np.ceil((1.0 - RATE_TOLERANCE) / share), 1).astype(np.int64)
    return np.maximum(enough + int(demand.survives_loss), demand.min_replicas)


def _no_columns(n_configs: int) -> Columns:
    empty_int, empty_float = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float64)
    counts = np.zeros((0, n_configs), dtype=np.int16)
    long = np.zeros(0, dtype=np.int64)
    return Columns(
        workload=empty_int,
        region=empty_int,
        pool=empty_int,
        template=empty_int,
        counts=counts,
        price_usd_per_h=empty_float,
        rate_req_per_s=empty_float,
        share=empty_float,
        max_instances=long,
        running=long,
    )
