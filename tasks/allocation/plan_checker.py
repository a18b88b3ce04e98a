"""The independent check of a plan document, column by column, before it may be published.

Everything a plan states is held against the problem and the raw tables it came from: decision rows and totals by
:mod:`tasks.allocation.checker`, then instances and stages against the template rows, offers against the catalog,
workloads and shortfalls recomputed. Shares no code with what builds a plan.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from catalogs.types import Offer
from tasks.allocation.checker import (
    DecisionRow,
    check_decision,
    delivered,
    nodes_used,
    place,
    pool_of,
    template_facts,
)
from tasks.allocation.checker_figures import TOLERANCE, Totals, close
from tasks.allocation.checker_moves import plan_moves, price_faults
from tasks.allocation.checker_shortfalls import missing_req_per_s, shortfall_faults
from tasks.allocation.plan import HEADROOM_BASES, PLAN_SCHEMA_VERSION, Plan, PlanInstance, PlanStage
from tasks.allocation.types import AllocationProblem, WorkloadCandidates

# A plan made before engines were kept names none.
_ENGINE = re.compile(r"^([a-z]+( [0-9]+(\.[0-9]+){1,3})?)?$")
_UTC = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$")


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The raw tables: rows of TEMPLATE_SCHEMA, offers by id, SLO by workload id."""

    templates: pa.Table
    offers: Mapping[str, Offer]
    slo_ms: Mapping[str, float]


def check_plan(problem: AllocationProblem, plan: Plan, facts: PlanFacts) -> list[str]:
    """Faults of a plan, as sentences; empty if every column holds."""
    rows = [
        DecisionRow(
            r.region,
            r.template_id,
            r.workload_id,
            r.instances,
            r.new_instances,
            r.cost_usd_per_h * r.instances,
            r.market,
        )
        for r in plan.instances
    ]
    totals = Totals(
        plan.status,
        plan.cost_usd_per_h,
        plan.init_usd,
        plan.lower_bound_usd_per_h,
        plan.gap,
        plan.theta,
        plan.theta_upper,
        plan.egress_usd_per_h,
    )
    moves = plan_moves(plan)
    faults = check_decision(problem, rows, totals, moves)
    if faults:
        return faults
    templates = {row["template_id"]: row for row in _wanted(facts.templates, {r.template_id for r in rows})}
    return [
        *_header_faults(plan),
        *(fault for r in plan.instances for fault in _instance_faults(problem, r, templates.get(r.template_id), facts)),
        *_offer_faults(problem, plan, rows, facts),
        *price_faults(problem, plan),
        *_workload_faults(problem, plan, rows, facts),
        *shortfall_faults(problem, plan, rows),
    ]


def _wanted(table: pa.Table, ids: set[str]) -> list[dict[str, Any]]:
    position = [i for i, template_id in enumerate(table["template_id"].to_pylist()) if template_id in ids]
    rows: list[dict[str, Any]] = table.take(pa.array(position, pa.int64())).to_pylist()
    return rows


def _header_faults(plan: Plan) -> list[str]:
    faults = []
    if plan.schema_version != PLAN_SCHEMA_VERSION:
        faults.append(f"plan schema {plan.schema_version}, this code writes {PLAN_SCHEMA_VERSION}")
    if plan.plan_version < 1:
        faults.append(f"plan_version {plan.plan_version} is not 1 or more")
    if not (math.isfinite(plan.solve_s) and plan.solve_s >= 0):
        faults.append(f"solve_s is {plan.solve_s}")
    if not _UTC.match(plan.created_at):
        faults.append(f"created_at {plan.created_at!r} is not a UTC time")
    texts = {"scenario_id": plan.scenario_id, "reason": plan.reason, "inputs.running_basis": plan.inputs.running_basis}
    texts |= {f"inputs.{name}": getattr(plan.inputs, name) for name in ("hash", "price_as_of", "library_id")}
    faults += [f"{name} is empty" for name, text in texts.items() if not text.strip()]
    if (plan.inputs.running_plan_version is None) != (plan.inputs.running_basis in {"none", "fleet"}):
        version, basis = plan.inputs.running_plan_version, plan.inputs.running_basis
        faults.append(f"inputs.running_plan_version is {version} with running_basis {basis}")
    if not _ENGINE.match(plan.inputs.engine):
        faults.append(f"inputs.engine {plan.inputs.engine!r} is not a name and a version")
    faults += _running_faults(plan)
    for name in ("homo_optimal_usd_per_h", "homo_greedy_usd_per_h", "full_use_usd_per_h"):
        cost = getattr(plan.baselines, name)
        if cost is not None and not (math.isfinite(cost) and cost >= 0):
            faults.append(f"baselines.{name} is {cost}")
    optimal, bound = plan.baselines.homo_optimal_usd_per_h, plan.baselines.homo_optimal_lower_bound_usd_per_h
    if optimal is not None and bound is not None and bound > optimal * (1 + TOLERANCE):
        faults.append(f"the homogeneous bound {bound} exceeds its cost {optimal}")
    return faults


def _running_faults(plan: Plan) -> list[str]:
    """Where it is known from what runs: a version before this one, or when a fleet was seen, as the basis says."""
    inputs, faults = plan.inputs, []
    is_version = inputs.running_basis in ("last_applied", "last_published")
    version, seen = inputs.running_plan_version, inputs.running_observed_at
    if inputs.running_basis not in ("fleet", "last_applied", "last_published", "none"):
        faults.append(f"inputs.running_basis is {inputs.running_basis!r}")
    if (version is not None) != is_version or (version is not None and not 1 <= version < plan.plan_version):
        faults.append(f"inputs.running_plan_version is {version} by {inputs.running_basis}")
    if (seen is not None) != (inputs.running_basis == "fleet") or (seen is not None and not _UTC.match(seen)):
        faults.append(f"inputs.running_observed_at is {seen!r} by {inputs.running_basis}")
    return faults


def _instance_faults(
    problem: AllocationProblem, row: PlanInstance, template: Mapping[str, Any] | None, facts: PlanFacts
) -> list[str]:
    name = f"{row.template_id} in {row.region}"
    if template is None:
        return [f"{name}: no template row"]
    faults = []
    stated = {
        "combination_id": row.combination_id,
        "workload_id": row.workload_id,
        "launch_class": row.launch_class.value,
        "cycle_ms": row.cycle_ms,
        "provenance": row.provenance,
        "rel_error": row.rel_error,
    }
    faults += [
        f"{name}: {k} is {v!r}, the template says {template[k]!r}" for k, v in stated.items() if v != template[k]
    ]
    candidates = _candidates(problem, row.workload_id)
    if row.workload != candidates.alias:
        faults.append(f"{name}: workload {row.workload!r} is {candidates.alias!r}")
    if not close(row.delivered_share, _delivered(problem, row)):
        faults.append(f"{name}: delivers {row.delivered_share}, it is {_delivered(problem, row)}")
    rate = int(candidates.throughput_mtok_per_s[candidates.template_ids.index(row.template_id)]) / 1000
    if not (close(row.throughput_tok_per_s, rate) and close(rate, template["throughput_mtok_per_s"] / 1000)):
        faults.append(f"{name}: throughput {row.throughput_tok_per_s} tok/s, the template says {rate}")
    slo = facts.slo_ms.get(row.workload_id, math.nan)
    # How long a prompt waits before its first stage differs by mode; that S stages take S cycles does not.
    if not row.cycle_ms * len(row.stages) <= slo * (1 + TOLERANCE):
        faults.append(f"{name}: {len(row.stages)} stages of {row.cycle_ms} ms exceed the SLO of {slo} ms")
    return faults + _stage_faults(row, template, name) + _node_faults(row, facts, name)


def _stage_faults(row: PlanInstance, template: Mapping[str, Any], name: str) -> list[str]:
    faults = []
    placed: Counter[str] = Counter(node.node_config for stage in row.stages for node in stage.nodes)
    wanted = {node["node_config"]: int(node["nodes"]) for node in template["nodes"]}
    if dict(placed) != wanted:
        faults.append(f"{name}: its stages hold {dict(placed)}, the combination {wanted}")
    next_layer = 0
    for s, stage in enumerate(row.stages):
        first, last = stage.layers
        if first != next_layer or last < first:
            faults.append(f"{name}: stage {s} holds layers {first}-{last}, {next_layer} is next")
        next_layer = last + 1
        position = "only" if len(row.stages) == 1 else "first" if s == 0 else "mid"
        if s and s == len(row.stages) - 1:
            position = "last"
        if stage.position != position:
            faults.append(f"{name}: stage {s} is called {stage.position}, it is {position}")
        if not close(math.fsum(node.share for node in stage.nodes), 1.0, 1.0):
            faults.append(f"{name}: the shares of stage {s} do not add up to 1")
    if [_plain(stage) for stage in row.stages] != [_plain_row(stage) for stage in template["stages"]]:
        faults.append(f"{name}: its stages are not those of the template")
    return faults


def _plain(stage: PlanStage) -> tuple[Any, ...]:
    nodes = tuple((n.node_config, n.tp, n.pp, n.replicas, n.batch, round(n.share, 9)) for n in stage.nodes)
    return (*stage.layers, stage.position, nodes)


def _plain_row(stage: Mapping[str, Any]) -> tuple[Any, ...]:
    nodes = tuple(
        (m["node_config"], m["tp"], m["pp"], m["replicas"], m["batch"], round(m["share"], 9)) for m in stage["members"]
    )
    return (stage["layer_start"], stage["layer_end"], stage["position"], nodes)


def _node_faults(row: PlanInstance, facts: PlanFacts, name: str) -> list[str]:
    """Every node's machine must be on offer in the region, in the row's market."""
    sold = {(o.region, o.node_config, o.instance_type, o.market) for o in facts.offers.values()}
    return [
        f"{name}: {node.instance_type} with {node.node_config} is not offered there as {row.market.value}"
        for stage in row.stages
        for node in stage.nodes
        if (row.region, node.node_config, node.instance_type, row.market) not in sold
    ]


def _offer_faults(problem: AllocationProblem, plan: Plan, rows: list[DecisionRow], facts: PlanFacts) -> list[str]:
    faults = []
    rented: Counter[tuple[str, str]] = Counter()
    for row in plan.offers:
        offer = facts.offers.get(row.offer_id)
        if offer is None:
            faults.append(f"offer {row.offer_id} is not in the catalog")
            continue
        faults += [
            f"offer {row.offer_id}: {column} {getattr(row, column)!r} is {getattr(offer, column)!r}"
            for column in ("region", "node_config", "instance_type", "market")
            if getattr(row, column) != getattr(offer, column)
        ]
        pool = pool_of(problem, row.region, row.market)
        if pool is not None and row.node_config in problem.node_configs:
            r, k = pool, problem.node_configs.index(row.node_config)
            price, have = float(problem.price_usd_per_h[r, k]), int(problem.capacity_nodes[r, k])
            if not (close(row.price_usd_per_h, price) and close(row.price_usd_per_h, offer.price_usd_per_h)):
                faults.append(f"offer {row.offer_id}: price {row.price_usd_per_h}, the plan was priced at {price}")
            if row.availability_nodes != have:
                faults.append(f"offer {row.offer_id}: {row.availability_nodes} nodes available, {have} are")
            basis = problem.capacity_basis.get((place(row.region, row.market), row.node_config))
            if row.availability_basis != basis:
                faults.append(f"offer {row.offer_id}: availability is {row.availability_basis.value}, not {basis}")
        rented[place(row.region, row.market), row.node_config] += row.nodes
    used = nodes_used(rows, template_facts(problem, rows))
    if {key: n for key, n in rented.items() if n} != used or any(row.nodes < 1 for row in plan.offers):
        faults.append(f"nodes rented {dict(rented)} are not the nodes used {dict(used)}")
    bill = math.fsum(row.nodes * row.price_usd_per_h for row in plan.offers)
    if not close(bill, plan.cost_usd_per_h - plan.egress_usd_per_h):
        faults.append(f"the offers cost {bill} USD/h, the plan states {plan.cost_usd_per_h - plan.egress_usd_per_h}")
    return faults


def _delivered(problem: AllocationProblem, row: PlanInstance) -> float:
    """What is left of an instance's rate after interruptions."""
    decided = DecisionRow(row.region, row.template_id, row.workload_id, 1, 0, 0.0, row.market)
    templates = template_facts(problem, [decided])
    whole = templates[row.workload_id, row.template_id].req_per_s
    return delivered(problem, decided, templates) / whole if whole else 1.0


def _candidates(problem: AllocationProblem, workload_id: str) -> WorkloadCandidates:
    return next(c for c in problem.candidates if c.workload_id == workload_id)


def _workload_faults(problem: AllocationProblem, plan: Plan, rows: list[DecisionRow], facts: PlanFacts) -> list[str]:
    faults = []
    expected = [workload_id for demand in problem.demands for workload_id in demand.workload_ids]
    if sorted(expected) != sorted(row.workload_id for row in plan.workloads):
        return ["the plan's workloads are not those of the problem, one row each"]
    demand_of = {workload_id: demand for demand in problem.demands for workload_id in demand.workload_ids}
    for row in plan.workloads:
        c, demand = _candidates(problem, row.workload_id), demand_of[row.workload_id]
        stated = (row.workload, row.model, row.phase, row.slo_ms, row.headroom, row.planned_req_per_s)
        facts_row = (c.alias, demand.model, c.phase.value, facts.slo_ms.get(row.workload_id), c.headroom)
        if stated != (*facts_row, demand.planned_req_per_s):
            faults.append(f"workload {row.workload_id}: {stated} is {(*facts_row, demand.planned_req_per_s)}")
        if row.headroom_basis not in HEADROOM_BASES:
            faults.append(f"workload {row.workload_id}: headroom_basis is {row.headroom_basis!r}")
        own = [r for r in plan.instances if r.workload_id == row.workload_id]
        planned = demand.planned_req_per_s * c.tokens_per_request
        whole = math.fsum(r.instances * r.throughput_tok_per_s * _delivered(problem, r) for r in own)
        supplied = whole * c.headroom
        cost = math.fsum(r.instances * r.cost_usd_per_h for r in own)
        served = planned - missing_req_per_s(problem, demand, rows, plan_moves(plan)) * c.tokens_per_request
        unit = cost / (served * 0.0036) if served > planned * TOLERANCE else None
        figures = (
            ("planned_tok_per_s", row.planned_tok_per_s, planned),
            ("supplied_tok_per_s", row.supplied_tok_per_s, supplied),
            ("cost_usd_per_h", row.cost_usd_per_h, cost),
            ("usd_per_million_tok", row.usd_per_million_tok, unit),
        )
        for column, value, true in figures:
            if (value is None) != (true is None) or (value is not None and true is not None and not close(value, true)):
                faults.append(f"workload {row.workload_id}: {column} is {value}, it should be {true}")
    return faults
