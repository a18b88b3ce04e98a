"""What a router needs of a plan: weights per region and instance, shares per node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from catalogs.ids import parse_combination_id
from catalogs.types import Phase
from tasks.exports.supply import delivered_tok_per_s, demand_of, service_of
from tasks.exports.types import Group, Launch


def router_weights(launch: Launch) -> dict[str, Any]:
    """Weights as the plan's rates ask for, all of which sum to 1 among their like.

    A request stays in its region, so a region's weight is what the plan counts it to serve of the model, prefill and decode
    together and by the model's rules: with N+1 a region takes no more than it serves without its largest instance. Inside it,
    instances of a phase weigh by what they deliver: their rate less the time that interruptions take. Of a model whose KV
    crosses regions, a region's weight is of the requests that prefill there, and ``decode_in`` says where they decode.
    ``share`` of a node is its part of its stage's requests. What cannot be launched as planned is in it, marked.
    """
    by_model: dict[str, dict[str, list[Group]]] = defaultdict(lambda: defaultdict(list))
    for group in launch.groups:
        by_model[group.served.model][group.row.region].append(group)
    return {
        "schema": 1,
        "scenario_id": launch.plan.scenario_id,
        "plan_version": launch.plan.plan_version,
        "models": [
            {"model": model, "regions": _regions(launch, model, regions)} for model, regions in sorted(by_model.items())
        ],
    }


def _regions(launch: Launch, model: str, regions: dict[str, list[Group]]) -> list[dict[str, Any]]:
    ends = _decode_in(launch, model)
    supply = {region: math.fsum(end.values()) for region, end in ends.items()}
    whole = math.fsum(supply.values())
    crosses = any(row.model == model for row in launch.plan.kv_transfers)
    return [
        {
            "region": region,
            "weight": supply[region] / whole if whole else 0.0,
            "supplied_req_per_s": supply[region],
            **({"decode_in": _shares(ends[region])} if crosses else {}),
            "phases": [
                {"phase": phase.value, "instances": _instances([g for g in groups if g.served.phase is phase])}
                for phase in Phase
                if any(group.served.phase is phase for group in groups)
            ],
        }
        for region, groups in sorted(regions.items())
    ]


def _shares(rates: dict[str, float]) -> list[dict[str, Any]]:
    whole = math.fsum(rates.values())
    return [{"region": region, "weight": rate / whole} for region, rate in sorted(rates.items()) if rate > 0]


def _decode_in(launch: Launch, model: str) -> dict[str, dict[str, float]]:
    """Requests/s of a model by the region where they prefill and that where they decode."""
    served = service_of(launch, demand_of(launch, model)).req_per_s
    found = {region: {region: rate} for region, rate in served.items()}
    for row in launch.plan.kv_transfers:
        if row.model == model and served[row.to_region] > 0:  # it counts where it decodes
            found[row.to_region][row.to_region] -= row.req_per_s
            found[row.from_region][row.to_region] = row.req_per_s
    return found


def _instances(groups: Sequence[Group]) -> list[dict[str, Any]]:
    total = math.fsum(group.row.instances * delivered_tok_per_s(group) for group in groups)
    return [
        {
            "instance": name,
            "weight": delivered_tok_per_s(group) / total,
            "throughput_tok_per_s": group.row.throughput_tok_per_s,
            "delivered_share": group.row.delivered_share,
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


def nodes_of(groups: Iterable[Group]) -> dict[tuple[str, str], int]:
    """Nodes by (region, node configuration) that groups use, by their combinations."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for group in groups:
        for config, count in parse_combination_id(group.row.combination_id).items():
            found[group.row.region, config] += group.row.instances * count
    return dict(found)
