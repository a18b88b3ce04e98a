"""``coral plans show --why``: the explanation of a published plan, computed once and kept in the lake."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from catalogs.errors import CoralError, LakeError, NothingFitsError
from catalogs.ids import combination_id, short_hash
from flows.plan_frame import library_of_frame, problem_of_frame, read_frame
from flows.runner import code_hash
from tasks.allocation.plan import Plan
from tasks.allocation.types import AllocationProblem, AllocationResult, Instance, KvTransfer, SolveStatus, pool_name
from tasks.allocation.why import Library, Rule, explain
from tasks.allocation.why_types import Range, Why
from tasks.allocation.without import as_served
from warehouse.connect import Lake
from warehouse.results import find_result, write_result

KIND = "why"
# With reading and writing, an explanation takes at most ten seconds.
TIME_S = 8.0


def plan_why(root: Path, plan: Plan, time_s: float = TIME_S) -> dict[str, Any]:
    """The explanation of a published plan as JSON types: the one in the lake, else computed in about ``time_s`` seconds and
    kept. One that time did not allow to close is computed again, and of both the one that says more is kept. Raises
    CoralError where what the plan was decided on was not kept, LakeError where its library is gone."""
    name = short_hash([KIND, plan.scenario_id, plan.plan_version, code_hash(("tasks.allocation",))])
    known = find_result(root, name, KIND)
    if not isinstance(known, dict):
        known = None
    elif not known["open_ends"]:
        return known
    try:
        document = _explained(root, plan, time_s)
    except CoralError:
        if known is None:
            raise
        return known  # what it would be computed from is gone: ranges are still true
    if known is not None and _left_open(known) <= _left_open(document):
        return known
    with contextlib.suppress(LakeError, PermissionError):  # a lake one may only read: computed anew each time
        write_result(root, name, document, KIND, instead_of=known)
    return document


def _left_open(document: Mapping[str, Any]) -> tuple[int, int, float]:
    """How much an explanation leaves open: its ranges, those of them without a plan, and the widths of the others, USD/h."""
    costs = [row["cost"] for part in ("templates", "models", "rules") for row in document[part]]
    costs += [row[side] for row in document["supply"] for side in ("more", "fewer") if row[side] is not None]
    possible = [cost for cost in costs if not cost["is_impossible"]]
    widths = [cost["high"] - cost["low"] for cost in possible if cost["high"] is not None]
    return document["open_ends"], len(possible) - len(widths), math.fsum(widths)


def result_of(problem: AllocationProblem, plan: Plan) -> AllocationResult:
    """A published plan as an answer to ``problem``: the same instances at the problem's prices and start-up charges. Its
    bound is the plan's where the costs are, else none. Raises CoralError where the problem lacks one of its templates."""
    counts = {(c.workload_id, t): c.counts[i] for c in problem.candidates for i, t in enumerate(c.template_ids)}
    rows = []
    for row in plan.instances:
        nodes = counts.get((row.workload_id, row.template_id))
        if nodes is None:
            raise CoralError(
                f"template {row.template_id} of version {plan.plan_version} is not in its library any more",
                remedy=f"run `coral plan --scenario {plan.scenario_id}`",
            )
        price = problem.price_usd_per_h[problem.pool_index(row.region, row.market)]
        one = math.fsum(float(price[k]) * int(n) for k, n in enumerate(nodes) if n)
        new = max(row.instances - problem.running.get((pool_name(row.region, row.market), row.template_id), 0), 0)
        cost = row.instances * one
        rows.append(Instance(row.region, row.template_id, row.workload_id, row.instances, new, cost, row.market))
    transfers = tuple(
        KvTransfer(t.model, t.from_region, t.to_region, t.req_per_s, t.gbit_per_s, t.usd_per_h)
        for t in plan.kv_transfers
    )
    egress = math.fsum(t.usd_per_h for t in transfers)
    rent = math.fsum(row.cost_usd_per_h for row in rows) + egress
    init = problem.init_share * math.fsum(row.cost_usd_per_h * row.new_instances / row.instances for row in rows)
    is_same = math.isclose(rent + init, plan.cost_usd_per_h + plan.init_usd, rel_tol=1e-6, abs_tol=1e-9)
    bound = plan.lower_bound_usd_per_h if is_same else 0.0
    gap = (rent + init - bound) / (rent + init) if rent else 0.0
    theta, upper = plan.theta, plan.theta_upper
    return AllocationResult(
        plan.status,
        tuple(rows),
        rent,
        init,
        rent + init,
        bound,
        gap,
        theta,
        upper,
        plan.solve_s,
        transfers=transfers,
        egress_usd_per_h=egress,
    )


def _explained(root: Path, plan: Plan, time_s: float) -> dict[str, Any]:
    frame = read_frame(root, plan)
    with Lake.open(root, read_only=True) as lake:
        problem = problem_of_frame(lake, frame)
        result = result_of(problem, plan)
        is_short = plan.status is SolveStatus.SHORTFALL
        if is_short:
            problem = as_served(problem, result)
            result = replace(result, status=SolveStatus.GAP, theta=1.0)
        problem, result = _on_rent_alone(problem, result)
        library = cache(lambda workload_id: library_of_frame(lake, frame, workload_id))
        rules, missing = _policy_rules(lake, frame, problem)
        why = explain(
            problem,
            result,
            rules=rules,
            library=library,
            time_s=time_s,
        )
        document = _document(problem, why, library)
    document["rules"] += missing
    head = {"scenario_id": plan.scenario_id, "plan_version": plan.plan_version, "is_short": is_short}
    return head | document


def _on_rent_alone(problem: AllocationProblem, result: AllocationResult) -> tuple[AllocationProblem, AllocationResult]:
    """Where nothing ran before, everything is new and start-up charges are one part of every price: costs without them."""
    if problem.running or problem.init_share == 0:
        return problem, result
    bound = min(result.lower_bound_usd / (1 + problem.init_share), result.cost_usd_per_h)
    alone = replace(result, init_usd=0.0, objective_usd=result.cost_usd_per_h, lower_bound_usd=bound)
    return replace(problem, init_share=0.0), alone


def _policy_rules(
    lake: Lake, frame: Mapping[str, Any], problem: AllocationProblem
) -> tuple[list[Rule], list[dict[str, Any]]]:
    """Rules that decide which templates there are, turned the other way; and, as rows, those that leave none."""
    rules, missing = [], []
    policy = frame["policy"]
    turned: list[tuple[str, bool, dict[str, object]]] = [
        ("launchable_only", policy["launchable_only"], {"launchable_only": not policy["launchable_only"]})
    ]
    if policy["measured_only"]:
        turned.append(("measured_only", True, {"measured_only": False}))
    if policy["safety_percentile"] is not None:
        turned.append(("safety_percentile", True, {"safety_percentile": None}))
    for name, is_on, change in turned:
        try:
            other = problem_of_frame(lake, frame, **change)
        except NothingFitsError:
            cost = asdict(Range(0.0, None, is_impossible=True))
            missing.append({"rule": name, "is_on": is_on, "cost": cost})
            continue
        # The templates change, nothing else: demand and start-up charges are those explained.
        rules.append(Rule(name, is_on, replace(problem, candidates=other.candidates)))
    return rules, missing


def _document(problem: AllocationProblem, why: Why, library: Library) -> dict[str, Any]:
    names = {c.workload_id: c.alias for c in problem.candidates}
    alias = {c.model: c.alias.rpartition("/")[0] for c in problem.candidates}

    nodes = {t: _combination(problem, c.counts[i]) for c in problem.candidates for i, t in enumerate(c.template_ids)}

    def combination(row: Instance) -> str:
        if row.template_id not in nodes:  # came back into the choice when another was forbidden
            whole = library(row.workload_id)
            nodes[row.template_id] = _combination(problem, whole.counts[whole.template_ids.index(row.template_id)])
        return nodes[row.template_id]

    def shown(rows: Iterable[Instance]) -> list[dict[str, Any]]:
        return [
            {
                "region": row.region,
                "workload": names[row.workload_id],
                "template_id": row.template_id,
                "combination_id": combination(row),
                "instances": row.instances,
                "cost_usd_per_h": row.cost_usd_per_h,
            }
            for row in rows
        ]

    return {
        "cost_usd_per_h": why.cost_usd_per_h,
        "bound_usd_per_h": why.bound_usd_per_h,
        "has_start_up": why.has_start_up,
        "supply": [asdict(row) for row in why.supply],
        "templates": [
            {
                "region": row.region,
                "workload": names[row.workload_id],
                "template_id": row.template_id,
                "combination_id": nodes[row.template_id],
                "instances": row.instances,
                "cost": asdict(row.cost),
                "instead": shown(row.instead),
            }
            for row in why.templates
        ],
        "models": [
            {"model": alias[row.model], "cost": asdict(row.cost), "instances": shown(row.instances)}
            for row in why.models
        ],
        "rules": [asdict(row) for row in why.rules],
        "open_ends": why.open_ends,
        "solves": why.solves,
        "spent_s": why.spent_s,
    }


def _combination(problem: AllocationProblem, counts: Any) -> str:
    """The nodes of a template as a combination id."""
    return combination_id({problem.node_configs[k]: int(n) for k, n in enumerate(counts) if n})
