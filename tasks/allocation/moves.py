"""KV caches that move between regions: which models' may, what a request's takes and costs, and how shares become rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from catalogs.types import Phase
from tasks.allocation.types import AllocationProblem, KvLink, KvTransfer, ModelDemand

Moved = Mapping[tuple[str, int], float]
"""Share of a model's demand whose KV takes a link, by (model, index of the link)."""

NOTHING_MOVES: Moved = {}
_GBIT_PER_GB, _S_PER_H = 8.0, 3600.0
_NO_SHARE = 1e-9  # less of a model's demand is none


def phases_of(problem: AllocationProblem, demand: ModelDemand) -> tuple[str, str] | None:
    """The (prefill, decode) workload ids of a model that hands KV over; None for one that does not."""
    phase = {c.workload_id: c.phase for c in problem.candidates if c.workload_id in demand.workload_ids}
    found = {phase[w]: w for w in demand.workload_ids}
    if set(found) != {Phase.PREFILL, Phase.DECODE} or len(demand.workload_ids) != 2:
        return None
    return found[Phase.PREFILL], found[Phase.DECODE]


def links_of(problem: AllocationProblem, demand: ModelDemand) -> list[int]:
    """Indices of the links that a model's KV may take: none where its phases must be together."""
    if not problem.links or demand.kv_gb_per_request <= 0 or phases_of(problem, demand) is None:
        return []
    return [
        at
        for at, link in enumerate(problem.links)
        if link.source != link.target and link.source in demand.regions and link.target in demand.regions
    ]


def gbit_per_s(demand: ModelDemand, share: float = 1.0) -> float:
    """Bandwidth that the KV of a share of the model's demand takes."""
    return share * demand.planned_req_per_s * demand.kv_gb_per_request * _GBIT_PER_GB


def usd_per_h(demand: ModelDemand, link: KvLink, share: float = 1.0) -> float:
    """What a link costs for a share of the model's demand."""
    return share * demand.planned_req_per_s * demand.kv_gb_per_request * _S_PER_H * link.usd_per_gb


def egress_usd(problem: AllocationProblem, moved: Moved) -> float:
    """USD/h of all that moves."""
    demands = {d.model: d for d in problem.demands}
    return sum(usd_per_h(demands[model], problem.links[at], share) for (model, at), share in sorted(moved.items()))


def transfers(problem: AllocationProblem, moved: Moved) -> tuple[KvTransfer, ...]:
    """What moves as rows, in order of model and link."""
    demands = {d.model: d for d in problem.demands}
    rows = []
    for (model, at), share in sorted(moved.items()):
        demand, link = demands[model], problem.links[at]
        if share > _NO_SHARE:
            rows.append(
                KvTransfer(
                    model,
                    link.source,
                    link.target,
                    share * demand.planned_req_per_s,
                    gbit_per_s(demand, share),
                    usd_per_h(demand, link, share),
                )
            )
    return tuple(rows)


def links_left(problem: AllocationProblem, rows: Iterable[KvTransfer]) -> tuple[KvLink, ...]:
    """The links with the bandwidth that ``rows`` leave of them."""
    taken: dict[tuple[str, str], float] = {}
    for row in rows:
        taken[row.source, row.target] = taken.get((row.source, row.target), 0.0) + row.gbit_per_s
    return tuple(
        link
        if link.gbit_per_s is None
        else replace(link, gbit_per_s=max(link.gbit_per_s - taken.get((link.source, link.target), 0.0), 0.0))
        for link in problem.links
    )


def moved_of(problem: AllocationProblem, rows: Iterable[KvTransfer]) -> dict[tuple[str, int], float]:
    """The shares behind rows. Raises ValueError for a row whose link the problem lacks."""
    at = {(link.source, link.target): i for i, link in enumerate(problem.links)}
    demands = {d.model: d for d in problem.demands}
    moved: dict[tuple[str, int], float] = {}
    for row in rows:
        if (row.source, row.target) not in at:
            raise ValueError(f"KV does not move from {row.source} to {row.target}")
        moved[row.model, at[row.source, row.target]] = row.req_per_s / demands[row.model].planned_req_per_s
    return moved
