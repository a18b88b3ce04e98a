"""A plan as simulator instances, and the headroom of each of its workloads."""

from __future__ import annotations

from collections.abc import Mapping

from catalogs.errors import UnknownNameError
from catalogs.types import Workload
from tasks.allocation.plan import Plan
from tasks.simulation.build import Hardware, InstanceBuilder
from tasks.simulation.headroom import Headroom, RequestsAt, copies_of, headroom
from tasks.simulation.types import SimInstance


def plan_instances(plan: Plan, workloads: Mapping[str, Workload], hardware: Hardware) -> list[SimInstance]:
    """Every copy of every instance of the plan. ``workloads`` by id; raises UnknownNameError for one that is missing."""
    builders: dict[str, InstanceBuilder] = {}
    instances: list[SimInstance] = []
    for planned in plan.instances:
        if planned.workload_id not in workloads:
            raise UnknownNameError("workload", planned.workload_id, workloads)
        if planned.workload_id not in builders:
            builders[planned.workload_id] = InstanceBuilder(workloads[planned.workload_id], hardware)
        name = f"{planned.workload} {planned.combination_id} {planned.region}"
        one = builders[planned.workload_id].from_plan(planned, name)
        instances += copies_of(one, planned.instances)
    return instances


def plan_headroom(
    plan: Plan,
    workloads: Mapping[str, Workload],
    hardware: Hardware,
    requests_at: Mapping[str, RequestsAt],
    *,
    counts_transfer: bool = True,
) -> dict[str, Headroom]:
    """Headroom of the plan's instances by workload id. ``requests_at`` makes the stream of a model (keyed by model)."""
    by_workload: dict[str, list[SimInstance]] = {}
    for instance, planned in zip(plan_instances(plan, workloads, hardware), _owners(plan), strict=True):
        by_workload.setdefault(planned, []).append(instance)
    return {
        name: headroom(
            instances,
            workloads[name].slo_ms,
            workloads[name].slo_percentile,
            requests_at[workloads[name].model.model],
            counts_transfer=counts_transfer,
        )
        for name, instances in by_workload.items()
    }


def _owners(plan: Plan) -> list[str]:
    return [planned.workload_id for planned in plan.instances for _ in range(planned.instances)]
