"""What the groups of a plan serve, in requests/s: at the planned headroom, less interruptions, by the rules of each model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

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


def served_by_region(
    plan: Plan, groups: Sequence[Group], demand: ModelDemand, counts: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Requests/s that each region counts as serving of ``demand``'s model, its phases together; those whose KV crosses regions
    count where they decode, and nothing at all where more crosses than a phase serves.

    ``counts``: instances by group name, where they are not the planned ones.
    """
    headroom = {row.workload_id: row.headroom for row in plan.workloads}
    here: dict[tuple[str, str], list[tuple[int, Market, float]]] = defaultdict(list)
    for group in groups:
        row, served = group.row, group.served
        if served.model == demand.model:
            instances = (counts or {}).get(group.name, row.instances)
            each = delivered_tok_per_s(group) * headroom[row.workload_id] / served.tokens_per_request
            here[row.region, row.workload_id].append((instances, row.market, each))
    regions = list(dict.fromkeys(region for region, _ in list(here)))
    phase = {row.workload_id: row.phase for row in plan.workloads}
    served_here: dict[str, float] = {}
    for region in regions:
        crossing = {"prefill": 0.0, "decode": 0.0}
        for move in (t for t in plan.kv_transfers if t.model == demand.model):
            crossing["prefill"] += move.req_per_s if move.from_region == region else 0.0
            crossing["decode"] += move.req_per_s if move.to_region == region else 0.0
        left = min(
            counted_req_per_s(demand, here[region, workload]) - crossing.get(phase[workload], 0.0)
            for workload in demand.workload_ids
        )
        if left < -_TOO_MUCH * demand.planned_req_per_s:
            return dict.fromkeys(regions, 0.0)
        served_here[region] = max(left, 0.0) + crossing["decode"]
    return served_here
