"""A plan as simulator instances, and a change from one plan to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from catalogs.errors import UnknownNameError
from catalogs.types import Workload
from tasks.allocation.plan import Plan, PlanInstance
from tasks.allocation.types import pool_name
from tasks.simulation.build import Hardware, InstanceBuilder
from tasks.simulation.headroom import copies_of
from tasks.simulation.timeline import Epoch, Key, run_epochs
from tasks.simulation.types import SimInstance


def plan_instances(plan: Plan, workloads: Mapping[str, Workload], hardware: Hardware) -> list[SimInstance]:
    """Every copy of every instance of the plan. ``workloads`` by id; raises UnknownNameError for one that is missing."""
    made = _of_rows(plan, workloads, hardware)
    return [copy for row, one in made for copy in copies_of(one, row.instances)]


def changed_instances(
    before: Plan,
    after: Plan,
    workloads: Mapping[str, Workload],
    hardware: Hardware,
    *,
    switch_s: float,
    startup_s: float,
) -> list[SimInstance]:
    """Copies of both plans with the times in which they take work: ``before`` runs, ``after`` is asked for at ``switch_s``.

    A copy of the same template in the same region runs on. Copies that only ``after`` has are up ``startup_s`` later; until
    then those it does without go on, and drain after. Raises as :func:`plan_instances`.
    """
    epochs, prototypes = [], {}
    for start_s, plan in ((0.0, before), (switch_s, after)):
        counts: dict[Key, int] = {}
        for row, one in _of_rows(plan, workloads, hardware):
            key = (pool_name(row.region, row.market), row.template_id)
            prototypes[key] = one
            counts[key] = counts.get(key, 0) + row.instances
        epochs.append(Epoch(start_s, counts))
    return run_epochs(epochs, prototypes, startup_s)


def _of_rows(
    plan: Plan, workloads: Mapping[str, Workload], hardware: Hardware
) -> list[tuple[PlanInstance, SimInstance]]:
    builders: dict[str, InstanceBuilder] = {}
    sites = _sites(plan)
    made = []
    for planned in plan.instances:
        if planned.workload_id not in workloads:
            raise UnknownNameError("workload", planned.workload_id, workloads)
        if planned.workload_id not in builders:
            builders[planned.workload_id] = InstanceBuilder(workloads[planned.workload_id], hardware)
        name = f"{planned.workload} {planned.combination_id} {pool_name(planned.region, planned.market)}"
        one = builders[planned.workload_id].from_plan(planned, name)
        site = sites.get((one.model, one.region), one.region)
        made.append((planned, one if site == one.region else replace(one, region=site)))
    return made


def _sites(plan: Plan) -> dict[tuple[str, str], str]:
    """By (model, region) the name of all regions between which KV of the model moves: its instances there are simulated as if
    in one place. How long KV takes from one region to the other is not known, and not simulated."""
    joined: dict[tuple[str, str], frozenset[str]] = {}
    for row in plan.kv_transfers:
        ends = (row.from_region, row.to_region)
        both = frozenset(ends).union(*(joined.get((row.model, region), frozenset()) for region in ends))
        joined |= {(row.model, region): both for region in both}
    return {key: " + ".join(sorted(regions)) for key, regions in joined.items()}
