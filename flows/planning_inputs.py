"""From a loaded scenario and a library in the lake to the online problem, with everything the plan document needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from catalogs.errors import HeldError
from catalogs.ids import short_hash
from catalogs.types import Market, Offer
from flows.candidates import candidates
from flows.feeds import check_fresh
from flows.running import NOTHING_RUNS, Running
from tasks.allocation.prepare import Capacity, WorkloadInput, build_problem
from tasks.allocation.types import AllocationProblem, KvLink, ModelDemand, Pool, SharedQuota, Shortage, pool_name

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario, ModelPlanDemand
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
    a demand is unknown or an input too old, and what that function and :func:`tasks.allocation.prepare.build_problem` raise.
    """
    check_demand_known(loaded)
    check_fresh(loaded)
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
        pools=pools_of(loaded),
        price_usd_per_h={
            (pool_name(region, market), config): offer.price_usd_per_h
            for (region, market, config), offer in loaded.by_market.items()
        },
        capacity={
            (pool_name(region, market), config): Capacity(*loaded.nodes_of(offer))
            for (region, market, config), offer in loaded.by_market.items()
        },
        outage={
            (pool_name(region, market), config): lost
            for (region, market, config), offer in loaded.by_market.items()
            if (lost := loaded.interrupt_per_h(offer) * loaded.scenario.policy.spot_recovery_h) > 0
        },
        demands=[
            ModelDemand(
                demand.model,
                demand.planned_req_per_s if demand.planned_req_per_s is not None else float("nan"),
                demand.workload_ids,
                demand.regions,
                demand.min_regions,
                demand.weight,
                demand.min_replicas,
                demand.max_spot_share if any(o.market is Market.SPOT for o in loaded.offers) else 1.0,
                demand.n_plus_one,
                demand.node_configs,
                demand.excluded,
                kv_gb_per_request(loaded, demand),
            )
            for demand in loaded.model_demands
        ],
        links=kv_links(loaded),
        init_share=loaded.scenario.policy.init_share,
        running=running,
        shortage=Shortage(loaded.scenario.policy.shortage),
        quotas=shared_quotas(loaded),
        budget_usd_per_h=loaded.scenario.policy.budget_usd_per_h,
    )


def kv_links(loaded: LoadedScenario) -> tuple[KvLink, ...]:
    """Between which regions KV may move, and on what terms."""
    section = loaded.scenario.policy.cross_region_kv
    terms = {} if section is None else section.terms(loaded.regions)
    return tuple(KvLink(*way, *of) for way, of in sorted(terms.items()))


def kv_gb_per_request(loaded: LoadedScenario, demand: ModelPlanDemand) -> float:
    """GB of KV that a request of mean length hands from prefill to decode, prefixes that prefill had cached included; 0 where
    none may cross regions."""
    if loaded.scenario.policy.cross_region_kv is None:
        return 0.0
    from tasks.profiling.shapes import ModelShape

    workload = next(w for w in loaded.workloads if w.workload_id in demand.workload_ids)
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    return shape.kv_bytes_all_layers(workload.lengths.input_mean) / 1e9


def shared_quotas(loaded: LoadedScenario) -> tuple[SharedQuota, ...]:
    """Quotas over several configurations or markets, which no single capacity can express. Owned machines take none."""
    rows = []
    for limit in loaded.quota_limits:
        quota = limit.quota
        bought = [
            config
            for region, market, config in loaded.by_market
            if region == quota.region and config in limit.units and market is not Market.OWNED
        ]
        if len(bought) > 1:
            name = f"{quota.family} {quota.unit} in {quota.region}"
            rows.append(SharedQuota(name, quota.region, dict(limit.units), quota.limit))
    return tuple(rows)


def pools_of(loaded: LoadedScenario) -> tuple[Pool, ...]:
    """The markets that sell anything, by region; one for a region where none does."""
    pools = []
    for region in loaded.regions:
        here = {market for where, market, _ in loaded.by_market if where == region} or {Market.ON_DEMAND}
        pools += [Pool(region, market) for market in Market if market in here]
    return tuple(pools)


def check_demand_known(loaded: LoadedScenario, *, has_plan: bool = True) -> None:
    """Raise HeldError, naming the models and why, where a demand is unknown: the last plan (``has_plan``) stays as it is."""
    unknown = [
        demand.alias + (f" ({why})" if (why := loaded.feeds.unknown.get(demand.model)) else "")
        for demand in loaded.model_demands
        if demand.planned_req_per_s is None
    ]
    if unknown:
        held = "the last plan is held" if has_plan else "there is no plan yet and none is made"
        remedy = "state demand_req_per_s (0 releases a model), or give a demand file that has it"
        if loaded.scenario.demand is not None and loaded.scenario.demand.feed:
            remedy = "ingest its demand with `coral ingest demand FILE` (0 releases a model)"
        raise HeldError(
            f"{loaded.scenario.id}: the demand of {', '.join(unknown)} is unknown, so {held}", remedy=remedy
        )


def inputs_hash(problem: AllocationProblem, library_id: str, loaded: LoadedScenario) -> str:
    """Hash of what decides the answer: library, prices, capacity, demand, headroom, what runs, policy."""
    pairs = [
        (
            region,
            config,
            offer.offer_id,
            offer.price_usd_per_h,
            *map(str, loaded.nodes_of(offer)),
            offer.interrupt_per_h,
        )
        for (region, _, config), offer in sorted(loaded.by_market.items())
    ]
    return short_hash(
        {
            "library_id": library_id,
            "supply": pairs,
            "demand": [asdict(d) for d in problem.demands],
            "headroom": [(c.workload_id, c.headroom, c.tokens_per_request) for c in problem.candidates],
            "quotas": [(q.name, sorted(q.units.items()), q.limit) for q in problem.quotas],
            "running": sorted((*key, count) for key, count in problem.running.items()),
            "policy": loaded.scenario.policy.model_dump(mode="json"),
        }
    )


def input_ages_s(loaded: LoadedScenario, now: datetime) -> dict[str, float]:
    """Ages of the inputs the plan is made from, in seconds: the prices' date, and of each feed the oldest part."""
    price_time = datetime.combine(loaded.price_as_of, time(), tzinfo=UTC)
    return {"prices": (now - price_time).total_seconds(), **loaded.feeds.ages_s}


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
                _observed_at(loaded, offer, now),
                *loaded.nodes_of(offer),
            )
            for (region, _, config), offer in sorted(loaded.by_market.items())
        ),
        "quotas": tuple(limit.quota for limit in loaded.quota_limits),
        "models": tuple(models[name] for name in sorted(models)),
        "workloads": loaded.workloads,
        "demand": tuple(
            DemandRow(loaded.scenario.id, demand.model, now, demand.planned_req_per_s, demand.basis)
            for demand in loaded.model_demands
        ),
    }


def _observed_at(loaded: LoadedScenario, offer: Offer, now: datetime) -> str:
    """When the feed saw the nodes; what is assumed or follows from a quota is of now."""
    seen = loaded.supply.feed.get((offer.region, offer.node_config, offer.market))
    return seen.observed_at if seen is not None and seen.nodes is not None else now.isoformat()
