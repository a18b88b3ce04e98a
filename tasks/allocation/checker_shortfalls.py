"""The independent check of a plan's shortfalls: what is missing, what binds, and what is said to close it. Shares no code with
the solvers, nor with what explains a shortage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Market
from tasks.allocation.checker import (
    DecisionRow,
    nodes_used,
    place,
    quota_taken,
    served_req_per_s,
    template_facts,
)
from tasks.allocation.checker_figures import TOLERANCE, close
from tasks.allocation.checker_moves import MoveRow, plan_moves
from tasks.allocation.plan import Plan, PlanShortfall
from tasks.allocation.types import AllocationProblem, ModelDemand, WorkloadCandidates

_NODES = re.compile(r"^\+([1-9]\d*) (\S+) in (.+) \(\+(\d+\.\d\d) USD/h\)$")
_QUOTA = re.compile(r"^quota (.+) \+([1-9]\d*)$")
_BUDGET = re.compile(r"^budget \+(\d+\.\d\d) USD/h$")
# Why nothing is named: all that may stand in its place.
_REASONS = re.compile(
    r"^(another split of the present supply|no extra supply of what its regions sell would close it"
    r"|the cheapest extra supply was not found in time|none for this model alone, what is idle would serve it: .+)$"
)
_NOTHING = "no single configuration"


def missing_req_per_s(
    problem: AllocationProblem, demand: ModelDemand, rows: list[DecisionRow], moves: list[MoveRow]
) -> float:
    """Demand of a model that the rows do not serve; 0 within the tolerance."""
    own = [row for row in rows if row.workload_id in demand.workload_ids]
    missing = demand.planned_req_per_s - served_req_per_s(problem, demand, own, template_facts(problem, own), moves)[0]
    return missing if missing > demand.planned_req_per_s * TOLERANCE else 0.0


def shortfall_faults(problem: AllocationProblem, plan: Plan, rows: list[DecisionRow]) -> list[str]:
    """Every column of every shortfall, and that those and no others are stated."""
    faults = []
    expected: dict[str, float] = {}
    moves = plan_moves(plan)
    for demand in problem.demands:
        missing, regions = missing_req_per_s(problem, demand, rows, moves), _regions_of(problem, demand, rows, moves)
        if missing > 0 or (demand.planned_req_per_s > 0 and regions < demand.min_regions):
            for workload_id in demand.workload_ids:
                expected[workload_id] = missing * _candidates(problem, workload_id).tokens_per_request
    if sorted(expected) != sorted(row.workload_id for row in plan.shortfalls):
        return [f"shortfalls are stated for {len(plan.shortfalls)} workloads, {len(expected)} miss something"]
    used = nodes_used(rows, template_facts(problem, rows))
    for row in plan.shortfalls:
        name = f"shortfall of {row.workload_id}"
        if row.workload != _candidates(problem, row.workload_id).alias:
            faults.append(f"{name}: workload {row.workload!r} is not its name")
        if not close(row.missing_tok_per_s, expected[row.workload_id]):
            faults.append(f"{name}: {row.missing_tok_per_s}, not {expected[row.workload_id]}")
        demand = next(d for d in problem.demands if row.workload_id in d.workload_ids)
        regions = _regions_of(problem, demand, rows, moves)
        faults += [f"{name}: {fault}" for fault in _binding_faults(problem, row, demand, regions, used)]
        faults += [f"{name}: {fault}" for fault in _extra_faults(problem, row, demand)]
    return faults


def _candidates(problem: AllocationProblem, workload_id: str) -> WorkloadCandidates:
    return next(c for c in problem.candidates if c.workload_id == workload_id)


def _regions_of(problem: AllocationProblem, demand: ModelDemand, rows: list[DecisionRow], moves: list[MoveRow]) -> int:
    own = [row for row in rows if row.workload_id in demand.workload_ids]
    return served_req_per_s(problem, demand, own, template_facts(problem, own), moves)[1]


def _useful(problem: AllocationProblem, workload_id: str, demand: ModelDemand) -> NDArray[np.bool_]:
    """Configurations in some template of the workload that its model may use, [node_configs]."""
    uses = _candidates(problem, workload_id).counts > 0
    pinned = demand.node_configs
    wrong = [c in demand.excluded or (pinned is not None and c not in pinned) for c in problem.node_configs]
    allowed = np.array([not any(row[k] and wrong[k] for k in range(len(wrong))) for row in uses], dtype=np.bool_)
    return np.asarray(uses[allowed].any(axis=0))


def _binding_faults(
    problem: AllocationProblem,
    row: PlanShortfall,
    demand: ModelDemand,
    regions: int,
    used: Mapping[tuple[str, str], int],
) -> list[str]:
    """Exactly the supplies and quotas that have no room for what the workload can use, and the regions it lacks; rules and a
    budget only where there are such."""
    useful = _useful(problem, row.workload_id, demand)
    expected = _full_supplies(problem, demand, useful, used) + _full_quotas(problem, demand, useful, used)
    if regions < demand.min_regions > 1:
        expected.append(f"regions ({regions} of {demand.min_regions})")
    parts = [] if row.binding == _NOTHING else row.binding.split("; ")
    rules = [part for part in parts if part.startswith("rule ")]
    faults = [f"{part!r} is no rule of its model" for part in rules if part[5:] not in _rules_on(demand)]
    if "budget" in parts and problem.budget_usd_per_h is None:
        faults.append("there is no budget that could bind")
    supplies = [part for part in parts if part not in rules and part != "budget"]
    faults += [f"{part!r} does not bind" for part in sorted({*supplies} - {*expected})]
    faults += [f"{part!r} binds, but is not said to" for part in sorted({*expected} - {*supplies})]
    if len({*parts}) < len(parts):
        faults.append(f"its binding {row.binding!r} says something twice")
    return faults


def _full_supplies(
    problem: AllocationProblem, demand: ModelDemand, useful: NDArray[np.bool_], used: Mapping[tuple[str, str], int]
) -> list[str]:
    """Configurations of use, sold where the model may be, of which no node is left, as texts."""
    texts = []
    for p, pool in enumerate(problem.pools):
        where = place(pool.region, pool.market)
        for k in np.flatnonzero(useful) if pool.region in demand.regions else ():
            config, have = problem.node_configs[k], int(problem.capacity_nodes[p, k])
            if used.get((where, config), 0) >= have and not np.isnan(problem.price_usd_per_h[p, k]):
                texts.append(f"{config} in {where} ({have} of {have})")
    return texts


def _full_quotas(
    problem: AllocationProblem, demand: ModelDemand, useful: NDArray[np.bool_], used: Mapping[tuple[str, str], int]
) -> list[str]:
    """Quotas where the model may be with too little left for one more node of a configuration of use, as texts."""
    texts = []
    for quota in (q for q in problem.quotas if q.region in demand.regions):
        taken = quota_taken(quota, used)
        wanted = [quota.units.get(problem.node_configs[k], 0) for k in np.flatnonzero(useful)]
        is_rented = any(pool.region == quota.region and pool.market is not Market.OWNED for pool in problem.pools)
        if is_rented and any(units > quota.limit - taken for units in wanted):
            texts.append(f"quota {quota.name} ({taken} of {quota.limit})")
    return texts


def _rules_on(demand: ModelDemand) -> Sequence[str]:
    """The rules of a model that may hold it down, by their keys in a scenario."""
    is_on = {
        "n_plus_one": demand.survives_loss,
        "min_replicas": demand.min_replicas > 1,
        "max_spot_share": demand.max_spot_share < 1,
        "node_configs": demand.node_configs is not None or len(demand.excluded) > 0,
    }
    return [rule for rule, is_there in is_on.items() if is_there]


def _extra_faults(problem: AllocationProblem, row: PlanShortfall, demand: ModelDemand) -> list[str]:
    """What would close it: nodes sold to the model at their price, quotas there are, the budget where it binds; or a reason."""
    if _REASONS.match(row.cheapest_extra):
        return ["a budget binds, but need not grow"] if "budget" in row.binding.split("; ") else []
    prices = {
        (config, place(pool.region, pool.market)): float(problem.price_usd_per_h[p, k])
        for p, pool in enumerate(problem.pools)
        for k, config in enumerate(problem.node_configs)
        if pool.region in demand.regions and pool.market is not Market.OWNED
    }
    faults, has_budget = [], False
    for part in row.cheapest_extra.split("; "):
        if nodes := _NODES.match(part):
            price = prices.get((nodes[2], nodes[3]), float("nan"))
            if not abs(int(nodes[1]) * price - float(nodes[4])) <= 0.0051 + TOLERANCE * float(nodes[4]):
                faults.append(f"{part!r} is not sold so")
        elif quota := _QUOTA.match(part):
            if quota[1] not in {q.name for q in problem.quotas}:
                faults.append(f"{part!r} names no quota")
        elif _BUDGET.match(part):
            has_budget = True
        else:
            faults.append(f"{part!r} says nothing of what would close it")
    if has_budget != ("budget" in row.binding.split("; ")):
        faults.append(f"its binding {row.binding!r} does not fit what would close it, {row.cheapest_extra!r}")
    return faults
