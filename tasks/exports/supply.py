"""What the groups of a plan serve, in requests/s: at the planned headroom, less interruptions, by the rules of each model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from catalogs.types import Market
from tasks.allocation.checker import counted_req_per_s
from tasks.allocation.plan import Plan
from tasks.allocation.types import ModelDemand
from tasks.exports.types import Group, Launch

_TOO_MUCH = 1e-6  # of the demand: what the plan's check allows


def demand_of(launch: Launch, model: str) -> ModelDemand:
    """The planned demand of a model with its rules; without any where the lake does not keep them."""
    rules = launch.facts.rules
    if rules is not None and model in rules.demands:
        return rules.demands[model]
    own = [row for row in launch.plan.workloads if row.model == model]
    regions = dict.fromkeys(group.row.region for group in launch.groups if group.served.model == model)
    return ModelDemand(model, own[0].planned_req_per_s, tuple(row.workload_id for row in own), tuple(regions))


def delivered_tok_per_s(group: Group) -> float:
    """Rate of one instance before headroom, less the time it is down for interruptions."""
    return group.row.throughput_tok_per_s * group.row.delivered_share


def meeting_places(plan: Plan) -> dict[tuple[str, str], tuple[str, ...]]:
    """By (region, model), of models whose KV crosses regions: all regions whose instances hand KV to each other, directly or
    by way of others."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in plan.kv_transfers:
        ends = (row.from_region, row.to_region)
        joined = tuple(sorted({r for end in ends for r in found.get((end, row.model), (end,))}))
        found |= {(region, row.model): joined for region in joined}
    return found


@dataclass(frozen=True, slots=True)
class Service:
    """Requests/s of a model by region, and in how many regions the model is as its rule of least regions counts them."""

    req_per_s: Mapping[str, float]
    regions: int


def service_of(launch: Launch, demand: ModelDemand, counts: Mapping[str, int] | None = None) -> Service:
    """What each region counts as serving of ``demand``'s model, its phases together; requests whose KV crosses regions count
    where they decode, and nothing at all where more crosses than a phase serves.

    Where KV may cross, least regions are asked of each phase by itself: the phase that is in fewest counts, and a model that
    nobody is served of is nowhere. ``counts``: instances by group name, where they are not the planned ones.
    """
    plan, groups = launch.plan, launch.groups
    headroom = {row.workload_id: row.headroom for row in plan.workloads}
    here: dict[tuple[str, str], list[tuple[int, Market, float]]] = defaultdict(list)
    for group in groups:
        row, served = group.row, group.served
        if served.model == demand.model:
            instances = (counts or {}).get(group.name, row.instances)
            each = delivered_tok_per_s(group) * headroom[row.workload_id] / served.tokens_per_request
            here[row.region, row.workload_id].append((instances, row.market, each))
    regions = list(dict.fromkeys(region for region, _ in list(here)))
    counted = {(r, w): counted_req_per_s(demand, here[r, w]) for r in regions for w in demand.workload_ids}
    phase = {row.workload_id: row.phase for row in plan.workloads}
    moves = [row for row in plan.kv_transfers if row.model == demand.model]
    served_here: dict[str, float] = {}
    for region in regions:
        crossing = {
            "prefill": math.fsum(move.req_per_s for move in moves if move.from_region == region),
            "decode": math.fsum(move.req_per_s for move in moves if move.to_region == region),
        }
        left = min(counted[region, w] - crossing.get(phase[w], 0.0) for w in demand.workload_ids)
        if left < -_TOO_MUCH * demand.planned_req_per_s:
            return Service(dict.fromkeys(regions, 0.0), 0)
        served_here[region] = max(left, 0.0) + crossing["decode"]
    if not moves and not _may_cross(launch, demand):
        return Service(served_here, sum(rate > 0 for rate in served_here.values()))
    if not any(served_here.values()):
        return Service(served_here, 0)
    return Service(served_here, min(sum(counted[r, w] > 0 for r in regions) for w in demand.workload_ids))


def _may_cross(launch: Launch, demand: ModelDemand) -> bool:
    """Whether the plan's rules let a model's KV cross regions, be any that does in the plan or not."""
    links = () if launch.facts.rules is None else launch.facts.rules.links
    apart = any({link.source, link.target} <= set(demand.regions) for link in links)
    return apart and len(demand.workload_ids) == 2 and demand.kv_gb_per_request > 0
