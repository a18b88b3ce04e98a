"""A plan as simulator instances."""

from __future__ import annotations

from collections.abc import Mapping

from catalogs.errors import UnknownNameError
from catalogs.types import Workload
from tasks.allocation.plan import Plan
from tasks.simulation.build import Hardware, InstanceBuilder
from tasks.simulation.headroom import copies_of
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
