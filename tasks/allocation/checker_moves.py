"""The independent check of an answer: KV that crosses regions. Shares no code with the solvers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from catalogs.types import Phase
from tasks.allocation.checker_figures import TOLERANCE, close
from tasks.allocation.plan import Plan
from tasks.allocation.types import AllocationProblem, ModelDemand


@dataclass(frozen=True, slots=True)
class MoveRow:
    """KV of a model that crosses regions, as any table states it."""

    model: str
    source: str
    target: str
    req_per_s: float
    gbit_per_s: float
    usd_per_h: float


def sides(problem: AllocationProblem, demand: ModelDemand) -> tuple[str, str] | None:
    """The workload that sends KV and the one that takes it, of a model whose KV may cross regions; else None."""
    kinds = {c.phase: c.workload_id for c in problem.candidates if c.workload_id in demand.workload_ids}
    apart = [(k.source, k.target) for k in problem.links if {k.source, k.target} <= set(demand.regions)]
    if set(kinds) != {Phase.PREFILL, Phase.DECODE} or not apart or not demand.kv_gb_per_request > 0:
        return None
    return kinds[Phase.PREFILL], kinds[Phase.DECODE]


def move_faults(problem: AllocationProblem, moves: Sequence[MoveRow]) -> list[str]:
    """Faults of what crosses regions: names, amounts, prices, repeats, and the links' bandwidth."""
    faults: list[str] = []
    links = {(link.source, link.target): link for link in problem.links if link.source != link.target}
    wanted = {d.model: d for d in problem.demands if d.planned_req_per_s > 0 and sides(problem, d) is not None}
    load: dict[tuple[str, str], float] = defaultdict(float)
    for move in moves:
        name, demand = f"KV of {move.model} from {move.source} to {move.target}", wanted.get(move.model)
        link = links.get((move.source, move.target))
        if demand is None or link is None or not {move.source, move.target} <= set(demand.regions):
            faults.append(f"{name}: may not move")
            continue
        if not 0 < move.req_per_s <= demand.planned_req_per_s * (1 + TOLERANCE):
            faults.append(f"{name}: {move.req_per_s} req/s of {demand.planned_req_per_s}")
        gigabytes = move.req_per_s * demand.kv_gb_per_request
        if not close(move.gbit_per_s, 8 * gigabytes):
            faults.append(f"{name}: takes {8 * gigabytes} Gbit/s, not {move.gbit_per_s}")
        if not close(move.usd_per_h, 3600 * gigabytes * link.usd_per_gb):
            faults.append(f"{name}: costs {3600 * gigabytes * link.usd_per_gb} USD/h, not {move.usd_per_h}")
        load[move.source, move.target] += 8 * gigabytes
    for (source, target), gbit in sorted(load.items()):
        most = links[source, target].gbit_per_s
        if most is not None and gbit > most * (1 + TOLERANCE):
            faults.append(f"{gbit} Gbit/s of KV from {source} to {target}, {most} can be had")
    for (model, source, target), times in Counter((m.model, m.source, m.target) for m in moves).items():
        if times > 1:
            faults.append(f"KV of {model} from {source} to {target}: {times} rows")
    return faults


def plan_moves(plan: Plan) -> list[MoveRow]:
    """What a plan says crosses regions."""
    return [
        MoveRow(t.model, t.from_region, t.to_region, t.req_per_s, t.gbit_per_s, t.usd_per_h) for t in plan.kv_transfers
    ]


def price_faults(problem: AllocationProblem, plan: Plan) -> list[str]:
    """What moving KV is said to cost per GB."""
    price = {(link.source, link.target): link.usd_per_gb for link in problem.links}
    return [
        f"KV from {row.from_region} to {row.to_region} costs {price[row.from_region, row.to_region]} USD/GB, "
        f"stated as {row.usd_per_gb}"
        for row in plan.kv_transfers
        if not close(row.usd_per_gb, price[row.from_region, row.to_region])
    ]
