"""What the groups of a plan serve, in requests/s: at the planned headroom, less interruptions, by the rules of each model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from catalogs.types import Market
from tasks.allocation.checker import counted_req_per_s
from tasks.allocation.plan import Plan
from tasks.allocation.types import ModelDemand
from tasks.exports.types import Group, Launch


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
    """Requests/s that each region counts as serving of ``demand``'s model, its phases together.

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
    return {
        region: min(counted_req_per_s(demand, here[region, workload]) for workload in demand.workload_ids)
        for region in dict.fromkeys(region for region, _ in list(here))
    }
