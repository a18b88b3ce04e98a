"""Between which numbers of instances an autoscaler may move each group of a plan."""

from __future__ import annotations

import math
from typing import Any

from catalogs.ids import parse_combination_id
from catalogs.types import Market
from tasks.exports.supply import demand_of, service_of
from tasks.exports.types import Group, Launch

_REL = 1e-9


def replica_bounds(launch: Launch) -> list[dict[str, Any]]:
    """Per group: between which numbers of instances an autoscaler may move it, the others staying as planned.

    ``min``: the fewest, 1 at least, with which the model's planned demand is still met at the planned headroom in as many
    regions as asked for, prefill and decode together in each (where KV may cross, each phase in as many, and what crosses as
    planned), N+1, least replicas and firm shares included; where the plan falls short or its rules are not kept, as many as
    planned. ``max``: as many as free nodes of the region's market, quotas
    and the budget allow beside what the plan rents. ``target_tok_per_s``: load of one running instance at which the
    headroom is used up.
    """
    headroom = {row.workload_id: row.headroom for row in launch.plan.workloads}
    return [
        {
            "group": group.name,
            "workload": group.row.workload,
            "region": group.row.region,
            "planned": group.row.instances,
            "min": _fewest(launch, group),
            "max": group.row.instances + _more(launch, group),
            "target_tok_per_s": group.row.throughput_tok_per_s * headroom[group.row.workload_id],
        }
        for group in launch.groups
    ]


def _fewest(launch: Launch, group: Group) -> int:
    short = {row.workload_id for row in launch.plan.shortfalls}
    demand = demand_of(launch, group.served.model)
    if launch.facts.rules is None or short & {*demand.workload_ids}:
        return group.row.instances
    fewest = group.row.instances
    while fewest > 1:
        left = service_of(launch, demand, {group.name: fewest - 1})
        served = math.fsum(left.req_per_s.values())
        if served < demand.planned_req_per_s * (1 - _REL) or left.regions < demand.min_regions:
            break
        fewest -= 1
    return fewest


def _more(launch: Launch, group: Group) -> int:
    """Instances that can be had beside all that the plan rents."""
    plan, row, rules = launch.plan, group.row, launch.facts.rules
    nodes = parse_combination_id(row.combination_id)
    free = {(o.region, o.market, o.node_config): o.availability_nodes - o.nodes for o in plan.offers}
    room = [max(free.get((row.region, row.market, config), 0), 0) // count for config, count in nodes.items()]
    if rules is None:
        return min(room)
    for quota in rules.quotas:
        units = sum(quota.units.get(config, 0) * count for config, count in nodes.items())
        if quota.region == row.region and row.market is not Market.OWNED and units:
            taken = sum(
                offer.nodes * quota.units.get(offer.node_config, 0)
                for offer in plan.offers
                if offer.region == row.region and offer.market is not Market.OWNED
            )
            room.append(max(quota.limit - taken, 0) // units)
    if rules.budget_usd_per_h is not None and row.cost_usd_per_h > 0:
        room.append(max(int((rules.budget_usd_per_h - plan.cost_usd_per_h) / row.cost_usd_per_h + _REL), 0))
    return min(room)
