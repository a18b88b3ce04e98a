"""From a solver's answer to the published plan document, and the hash by which an unchanged decision is known."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from catalogs.types import Market, Offer
from tasks.allocation.plan import (
    Plan,
    PlanBaselines,
    PlanInputs,
    PlanInstance,
    PlanNode,
    PlanOffer,
    PlanShortfall,
    PlanStage,
    PlanState,
    PlanTransfer,
    PlanWarning,
    PlanWorkload,
)
from tasks.allocation.shortfalls import Shortfall
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    Instance,
    SolveStatus,
    WorkloadCandidates,
    delivered_share,
    pool_name,
)
from tasks.templates.types import LaunchClass


@dataclass(frozen=True, slots=True)
class PlanMeta:
    """What a plan says of itself beyond the decision. ``slo_ms`` by workload id; ``created_at`` UTC, ISO 8601."""

    scenario_id: str
    plan_version: int
    state: PlanState
    created_at: str
    reason: str
    inputs: PlanInputs
    slo_ms: Mapping[str, float]


def build_plan(
    problem: AllocationProblem,
    result: AllocationResult,
    *,
    templates: pa.Table,
    offers: Mapping[tuple[str, str], Offer],
    shortfalls: Sequence[Shortfall],
    baselines: PlanBaselines,
    warnings: Sequence[PlanWarning],
    meta: PlanMeta,
) -> Plan:
    """The plan document of ``result``.

    ``templates``: rows of TEMPLATE_SCHEMA holding at least the templates used. ``offers``: the offer behind each
    (pool name, node configuration) price; its price must be the problem's. Raises ValueError (a bug of the caller) for a
    result without a plan, a template without its row, or an offer at another price.
    """
    if result.status in (SolveStatus.ERROR, SolveStatus.INFEASIBLE):
        raise ValueError(f"a result with status {result.status} is no plan: {result.note}")
    rows = _template_rows(templates, {row.template_id for row in result.instances})
    return Plan(
        scenario_id=meta.scenario_id,
        plan_version=meta.plan_version,
        status=result.status,
        state=meta.state,
        cost_usd_per_h=result.cost_usd_per_h,
        init_usd=result.init_usd,
        lower_bound_usd_per_h=result.lower_bound_usd,
        gap=result.gap,
        theta=result.theta,
        theta_upper=result.theta_upper,
        solve_s=result.solve_s,
        created_at=meta.created_at,
        reason=meta.reason,
        inputs=meta.inputs,
        baselines=baselines,
        workloads=_workloads(problem, result, shortfalls, meta),
        instances=tuple(_instance(problem, row, rows[row.template_id], offers) for row in result.instances),
        offers=_offers(problem, result, offers),
        shortfalls=tuple(
            PlanShortfall(
                workload=_candidates(problem, row.workload_id).alias,
                workload_id=row.workload_id,
                missing_tok_per_s=row.missing_tok_per_s,
                binding=row.binding_text(),
                cheapest_extra=row.extra_text(),
            )
            for row in shortfalls
        ),
        warnings=tuple(warnings),
        egress_usd_per_h=result.egress_usd_per_h,
        kv_transfers=_transfers(problem, result),
    )


def _transfers(problem: AllocationProblem, result: AllocationResult) -> tuple[PlanTransfer, ...]:
    price = {(link.source, link.target): link.usd_per_gb for link in problem.links}
    return tuple(
        PlanTransfer(
            model=row.model,
            from_region=row.source,
            to_region=row.target,
            req_per_s=row.req_per_s,
            gbit_per_s=row.gbit_per_s,
            usd_per_gb=price[row.source, row.target],
            usd_per_h=row.usd_per_h,
        )
        for row in result.transfers
    )


def _candidates(problem: AllocationProblem, workload_id: str) -> WorkloadCandidates:
    return next(c for c in problem.candidates if c.workload_id == workload_id)


def _template_rows(templates: pa.Table, wanted: set[str]) -> dict[str, dict[str, Any]]:
    ids = templates["template_id"].to_pylist()
    rows = [i for i, template_id in enumerate(ids) if template_id in wanted]
    found = {row["template_id"]: row for row in templates.take(pa.array(rows, pa.int64())).to_pylist()}
    absent = sorted(wanted - found.keys())
    if absent:
        raise ValueError(f"no template rows for {', '.join(absent)}")
    return found


def _instance(
    problem: AllocationProblem, row: Instance, template: Mapping[str, Any], offers: Mapping[tuple[str, str], Offer]
) -> PlanInstance:
    return PlanInstance(
        region=row.region,
        template_id=row.template_id,
        combination_id=template["combination_id"],
        workload=_candidates(problem, row.workload_id).alias,
        workload_id=row.workload_id,
        instances=row.instances,
        new_instances=row.new_instances,
        market=row.market,
        delivered_share=_delivered(problem, row),
        throughput_tok_per_s=template["throughput_mtok_per_s"] / 1000.0,
        cost_usd_per_h=row.cost_usd_per_h / row.instances,
        launch_class=LaunchClass(template["launch_class"]),
        cycle_ms=template["cycle_ms"],
        provenance=template["provenance"],
        rel_error=template["rel_error"],
        stages=tuple(_stage(problem, row, stage, offers) for stage in template["stages"]),
    )


def _stage(
    problem: AllocationProblem, row: Instance, stage: Mapping[str, Any], offers: Mapping[tuple[str, str], Offer]
) -> PlanStage:
    return PlanStage(
        layers=(stage["layer_start"], stage["layer_end"]),
        position=stage["position"],
        nodes=tuple(
            PlanNode(
                node_config=member["node_config"],
                instance_type=_offer(problem, offers, row.region, row.market, member["node_config"]).instance_type,
                tp=member["tp"],
                pp=member["pp"],
                replicas=member["replicas"],
                batch=member["batch"],
                share=member["share"],
            )
            for member in stage["members"]
        ),
    )


def _offer(
    problem: AllocationProblem, offers: Mapping[tuple[str, str], Offer], region: str, market: Market, config: str
) -> Offer:
    """The offer of a configuration in a pool; raises ValueError where absent or not at the problem's price or market."""
    name = pool_name(region, market)
    offer = offers.get((name, config))
    if offer is None:
        raise ValueError(f"no offer for {config} in {name}")
    if (offer.region, offer.market) != (region, market):
        raise ValueError(f"offer {offer.offer_id} is of {offer.region} {offer.market}, not of {name}")
    price = problem.price_usd_per_h[problem.pool_index(region, market), problem.node_configs.index(config)]
    if not math.isclose(offer.price_usd_per_h, price, rel_tol=1e-9):
        raise ValueError(f"offer {offer.offer_id} costs {offer.price_usd_per_h}, the problem says {price}")
    return offer


def _delivered(problem: AllocationProblem, row: Instance) -> float:
    """The share of its rate that an instance delivers, given interruptions."""
    if problem.outage is None:
        return 1.0
    candidates = _candidates(problem, row.workload_id)
    counts = candidates.counts[[candidates.template_ids.index(row.template_id)]]
    return float(delivered_share(counts, problem.outage[problem.pool_index(row.region, row.market)])[0])


def _offers(
    problem: AllocationProblem, result: AllocationResult, offers: Mapping[tuple[str, str], Offer]
) -> tuple[PlanOffer, ...]:
    """Nodes to rent by offer, in order of region and configuration."""
    nodes: dict[tuple[str, Market, str], int] = defaultdict(int)
    for row in result.instances:
        candidates = _candidates(problem, row.workload_id)
        counts = candidates.counts[candidates.template_ids.index(row.template_id)]
        for k in np.flatnonzero(counts):
            nodes[row.region, row.market, problem.node_configs[k]] += row.instances * int(counts[k])
    rows = []
    for (region, market, config), count in sorted(nodes.items()):
        offer = _offer(problem, offers, region, market, config)
        rows.append(
            PlanOffer(
                offer_id=offer.offer_id,
                region=region,
                node_config=config,
                instance_type=offer.instance_type,
                market=offer.market,
                nodes=count,
                price_usd_per_h=offer.price_usd_per_h,
                availability_nodes=int(
                    problem.capacity_nodes[problem.pool_index(region, market), problem.node_configs.index(config)]
                ),
                availability_basis=problem.capacity_basis[pool_name(region, market), config],
            )
        )
    return tuple(rows)


def _workloads(
    problem: AllocationProblem, result: AllocationResult, shortfalls: Sequence[Shortfall], meta: PlanMeta
) -> tuple[PlanWorkload, ...]:
    missing = {row.workload_id: row.missing_tok_per_s for row in shortfalls}
    rows = []
    for demand in problem.demands:
        for workload_id in demand.workload_ids:
            candidates = _candidates(problem, workload_id)
            own = [row for row in result.instances if row.workload_id == workload_id]
            rate = {t: int(x) for t, x in zip(candidates.template_ids, candidates.throughput_mtok_per_s, strict=True)}
            whole = math.fsum(row.instances * rate[row.template_id] * _delivered(problem, row) for row in own)
            supplied = whole / 1000.0 * candidates.headroom
            cost = math.fsum(row.cost_usd_per_h for row in own)
            planned = demand.planned_req_per_s * candidates.tokens_per_request
            served = planned - missing.get(workload_id, 0.0)
            rows.append(
                PlanWorkload(
                    workload=candidates.alias,
                    workload_id=workload_id,
                    model=candidates.model,
                    phase=candidates.phase.value,
                    slo_ms=meta.slo_ms[workload_id],
                    planned_req_per_s=demand.planned_req_per_s,
                    planned_tok_per_s=planned,
                    supplied_tok_per_s=supplied,
                    headroom=candidates.headroom,
                    cost_usd_per_h=cost,
                    usd_per_million_tok=cost / (served * 3600.0 / 1e6) if served > planned * 1e-9 else None,
                )
            )
    return tuple(rows)
