"""From a loaded scenario and a library in the lake to the online problem, with everything the plan document needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from catalogs.errors import HeldError
from catalogs.ids import short_hash
from catalogs.types import Market
from flows.candidates import candidates
from flows.running import NOTHING_RUNS, Running
from tasks.allocation.prepare import Capacity, WorkloadInput, build_problem
from tasks.allocation.types import AllocationProblem, ModelDemand, SharedQuota, Shortage

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from warehouse.connect import Lake


@dataclass(frozen=True, slots=True)
class PlanningInputs:
    """The problem, what it takes to be running and where that is known from, and the hash of everything that decides the
    answer. ``set_aside``: templates by workload id that the problem lacks since they were found not to keep their SLO."""

    problem: AllocationProblem
    running: Running
    inputs_hash: str
    set_aside: Mapping[str, frozenset[str]] = field(default_factory=dict)


def planning_inputs(
    loaded: LoadedScenario, lake: Lake, library_id: str, running: Running = NOTHING_RUNS
) -> PlanningInputs:
    """The online problem of a scenario over the templates of ``library_id`` that :func:`flows.candidates.candidates` gives.

    Templates of what runs stay candidates when the library still has them and the policy allows them. Raises HeldError where
    a demand is unknown, and what that function and :func:`tasks.allocation.prepare.build_problem` raise.
    """
    check_demand_known(loaded)
    templates: dict[str, pa.Table] = {}
    for workload in loaded.workloads:
        ids = {template_id for _, template_id in running.instances.get(workload.workload_id, ())}
        templates[workload.workload_id] = candidates(lake, library_id, workload, ids, loaded.scenario.policy)
    known = {template_id for table in templates.values() for template_id in table["template_id"].to_pylist()}
    kept = {key: n for counts in running.instances.values() for key, n in counts.items() if key[1] in known}
    problem = problem_of(loaded, templates, kept)
    return PlanningInputs(problem, running, inputs_hash(problem, library_id, loaded))


def problem_of(
    loaded: LoadedScenario, templates: Mapping[str, pa.Table], running: Mapping[tuple[str, str], int]
) -> AllocationProblem:
    """The online problem of a scenario over the given templates by workload id. Raises as
    :func:`tasks.allocation.prepare.build_problem` does."""
    return build_problem(
        workloads=[
            WorkloadInput(
                workload.workload_id,
                workload.alias,
                workload.model.model,
                workload.phase,
                workload.tokens_per_request,
                loaded.headroom(workload.phase),
            )
            for workload in loaded.workloads
        ],
        templates=templates,
        regions=loaded.regions,
        node_configs=sorted(loaded.node_configs),
        price_usd_per_h={key: offer.price_usd_per_h for key, offer in loaded.best.items()},
        capacity={key: Capacity(*loaded.capacity(*key)) for key in loaded.best},
        demands=[
            ModelDemand(
                demand.model,
                demand.planned_req_per_s if demand.planned_req_per_s is not None else float("nan"),
                demand.workload_ids,
                demand.regions,
                demand.min_regions,
                demand.weight,
            )
            for demand in loaded.model_demands
        ],
        init_share=loaded.scenario.policy.init_share,
        running=running,
        shortage=Shortage(loaded.scenario.policy.shortage),
        quotas=shared_quotas(loaded),
        budget_usd_per_h=loaded.scenario.policy.budget_usd_per_h,
    )


def shared_quotas(loaded: LoadedScenario) -> tuple[SharedQuota, ...]:
    """Quotas over several configurations, which no capacity of a single one can express. Owned machines take none."""
    rows = []
    for limit in loaded.quota_limits:
        quota = limit.quota
        bought = {
            config: units
            for config, units in limit.units.items()
            if (offer := loaded.best_offer(quota.region, config)) and offer.market is not Market.OWNED
        }
        if len(bought) > 1:
            name = f"{quota.family} {quota.unit} in {quota.region}"
            rows.append(SharedQuota(name, quota.region, bought, quota.limit))
    return tuple(rows)


def check_demand_known(loaded: LoadedScenario) -> None:
    """Raise HeldError, naming the models, where a demand is unknown: the last plan stays as it is."""
    unknown = [demand.alias for demand in loaded.model_demands if demand.planned_req_per_s is None]
    if unknown:
        raise HeldError(
            f"{loaded.scenario.id}: the demand of {', '.join(unknown)} is unknown, so the last plan is held",
            remedy="state demand_req_per_s (0 releases a model), or give a demand feed that has it",
        )


def inputs_hash(problem: AllocationProblem, library_id: str, loaded: LoadedScenario) -> str:
    """Hash of what decides the answer: library, prices, capacity, demand, headroom, what runs, policy."""
    pairs = [
        (region, config, offer.offer_id, offer.price_usd_per_h, *map(str, loaded.capacity(region, config)))
        for (region, config), offer in sorted(loaded.best.items())
    ]
    return short_hash(
        {
            "library_id": library_id,
            "supply": pairs,
            "demand": [(d.model, d.planned_req_per_s, d.regions, d.min_regions, d.weight) for d in problem.demands],
            "headroom": [(c.workload_id, c.headroom, c.tokens_per_request) for c in problem.candidates],
            "quotas": [(q.name, sorted(q.units.items()), q.limit) for q in problem.quotas],
            "running": sorted((*key, count) for key, count in problem.running.items()),
            "policy": loaded.scenario.policy.model_dump(mode="json"),
        }
    )


def input_ages_s(loaded: LoadedScenario, now: datetime) -> dict[str, float]:
    """Age of the prices the plan is made from, in seconds."""
    price_time = datetime.combine(loaded.price_as_of, time(), tzinfo=UTC)
    return {"prices": (now - price_time).total_seconds()}


def reference_inputs(loaded: LoadedScenario, now: datetime) -> Mapping[str, Any]:
    """Catalog rows the plan is computed from, as the warehouse records them."""
    from catalogs.types import Availability
    from warehouse.records import DemandRow

    models = {workload.model.model: workload.model for workload in loaded.workloads}
    return {
        "node_configs": tuple(loaded.node_configs[name] for name in sorted(loaded.node_configs)),
        "offers": loaded.offers,
        "availability": tuple(
            Availability(
                region,
                config,
                offer.market,
                _observed_at(loaded, region, config, now),
                *loaded.capacity(region, config),
            )
            for (region, config), offer in sorted(loaded.best.items())
        ),
        "quotas": tuple(limit.quota for limit in loaded.quota_limits),
        "models": tuple(models[name] for name in sorted(models)),
        "workloads": loaded.workloads,
        "demand": tuple(
            DemandRow(loaded.scenario.id, demand.model, now, demand.planned_req_per_s, demand.basis)
            for demand in loaded.model_demands
        ),
    }


def _observed_at(loaded: LoadedScenario, region: str, config: str, now: datetime) -> str:
    """When the feed saw the nodes; what is assumed or follows from a quota is of now."""
    seen = loaded.supply.feed.get((region, config, loaded.best[region, config].market))
    return seen.observed_at if seen is not None and seen.nodes is not None else now.isoformat()
