"""What a router and an autoscaler need of a plan: weights per region and instance, shares per node, bounds on replicas."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from catalogs.ids import parse_combination_id
from catalogs.types import Market, Phase
from tasks.exports.types import Group, Launch

_REL = 1e-9


def router_weights(launch: Launch) -> dict[str, Any]:
    """Weights as the plan's rates ask for, all of which sum to 1 among their like.

    A request stays in its region, so a region's weight is the smaller of what its prefill and its decode instances serve,
    in requests/s, over all regions of the model; inside it, instances of a phase weigh by their rate. ``share`` of a node
    is its part of its stage's requests. What cannot be launched as planned is in it, marked.
    """
    by_model: dict[str, dict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in launch.groups:
        by_model[group.served.model][group.row.region].append(group)
    return {
        "schema": 1,
        "scenario_id": launch.plan.scenario_id,
        "plan_version": launch.plan.plan_version,
        "models": [{"model": model, "regions": _regions(regions)} for model, regions in sorted(by_model.items())],
    }


def _regions(regions: dict[str, list[Group]]) -> list[dict[str, Any]]:
    supply = {region: _end_to_end_req_per_s(groups) for region, groups in regions.items()}
    total = math.fsum(supply.values())
    return [
        {
            "region": region,
            "weight": supply[region] / total if total else 0.0,
            "planned_req_per_s": supply[region],
            "phases": [
                {"phase": phase.value, "instances": _instances([g for g in groups if g.served.phase is phase])}
                for phase in Phase
                if any(group.served.phase is phase for group in groups)
            ],
        }
        for region, groups in sorted(regions.items())
    ]


def _end_to_end_req_per_s(groups: Sequence[Group]) -> float:
    """Requests/s that pass all phases of one model in one region: 0 where prefill or decode is missing."""
    rates: dict[Phase, float] = defaultdict(float)
    for group in groups:
        rates[group.served.phase] += group.row.instances * _req_per_s(group)
    alone = rates.pop(Phase.AGGREGATED, 0.0)
    split = min(rates.get(Phase.PREFILL, 0.0), rates.get(Phase.DECODE, 0.0))
    return alone + split


def _req_per_s(group: Group) -> float:
    return group.row.throughput_tok_per_s / group.served.tokens_per_request


def _instances(groups: Sequence[Group]) -> list[dict[str, Any]]:
    total = math.fsum(group.row.instances * group.row.throughput_tok_per_s for group in groups)
    return [
        {
            "instance": name,
            "weight": group.row.throughput_tok_per_s / total,
            "throughput_tok_per_s": group.row.throughput_tok_per_s,
            "is_launchable": group.is_launchable,
            "ports": [server.port for server in group.servers],
            "max_model_len": group.max_model_len or None,
            "stages": [
                {
                    "layers": list(stage.layers),
                    "nodes": [{"node_config": node.node_config, "share": node.share} for node in stage.nodes],
                }
                for stage in group.row.stages
            ],
        }
        for group in groups
        for name in group.instance_names
    ]


def replica_bounds(launch: Launch) -> list[dict[str, Any]]:
    """Per group: between which numbers of instances an autoscaler may move it, the others staying as planned.

    ``min``: the fewest that still serve the planned demand at the planned headroom, at least 1 (all, where the plan falls
    short). ``max``: as many as the nodes that can be had in the region's market allow beside what the plan rents.
    ``target_tok_per_s``: load of one instance at which the headroom is used up.
    """
    workloads = {row.workload_id: row for row in launch.plan.workloads}
    short = {row.workload_id for row in launch.plan.shortfalls}
    spare: dict[tuple[str, Market, str], int] = {}
    for offer in launch.plan.offers:
        spare[offer.region, offer.market, offer.node_config] = max(offer.availability_nodes - offer.nodes, 0)
    bounds = []
    for group in launch.groups:
        row, workload = group.row, workloads[group.row.workload_id]
        one = row.throughput_tok_per_s * workload.headroom
        slack = 0.0 if row.workload_id in short else workload.supplied_tok_per_s - workload.planned_tok_per_s
        fewer = min(max(math.floor(slack / one + _REL), 0), row.instances - 1)
        nodes = parse_combination_id(row.combination_id)
        more = min(spare.get((row.region, row.market, config), 0) // count for config, count in nodes.items())
        bounds.append(
            {
                "group": group.name,
                "workload": row.workload,
                "region": row.region,
                "planned": row.instances,
                "min": row.instances - fewer,
                "max": row.instances + more,
                "target_tok_per_s": one,
            }
        )
    return bounds


def nodes_of(groups: Iterable[Group]) -> dict[tuple[str, str], int]:
    """Nodes by (region, node configuration) that groups use, by their combinations."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for group in groups:
        for config, count in parse_combination_id(group.row.combination_id).items():
            found[group.row.region, config] += group.row.instances * count
    return dict(found)
