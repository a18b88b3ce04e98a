"""The paper's online ILP as a PuLP problem, in three readings: least cost, most common service, least shortage."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pulp

from tasks.allocation.columns import RATE_TOLERANCE, Columns
from tasks.allocation.types import AllocationProblem, ModelDemand


class Goal(StrEnum):
    """What is minimised: rent and start-up charge, minus the common share served, or the weighted share missing."""

    COST = "cost"
    THETA = "theta"
    SHORTAGE = "shortage"


@dataclass(frozen=True, slots=True)
class Target:
    """What a COST solve must reach. All demand and all regions, unless a shortage was established first.

    ``share``: of every demand (uniform). ``shortage``: cap on the weighted missing share (priority), None = none may
    miss. ``missing_regions``: how many of the wanted regions may be missing in all (uniform).
    """

    share: float = 1.0
    shortage: float | None = None
    missing_regions: int = 0


@dataclass(slots=True)
class Formulation:
    """A PuLP problem and the variables to read it by. ``instances[i]`` is that of column i; ``charges`` holds the
    start-up charge of columns that have a variable for it."""

    problem: pulp.LpProblem
    instances: list[pulp.LpVariable]
    missing_regions: list[pulp.LpVariable]
    charges: dict[int, pulp.LpVariable]


def active_demands(problem: AllocationProblem) -> list[ModelDemand]:
    """The models that want anything, by name."""
    return sorted((d for d in problem.demands if d.planned_req_per_s > 0), key=lambda d: d.model)


def formulate(problem: AllocationProblem, columns: Columns, goal: Goal, target: Target | None = None) -> Formulation:
    """Build the ILP of the paper's section on online allocation, with co-location, minimum regions and budget.

    Notation
        sets        r regions, k pools (region, market), c node configurations, m models, w workloads (phases) of m,
                    i columns: a template of a workload in a pool; F columns in firm pools; R_m the regions m may use
        constants   U_ic nodes, p_i USD/h, a_i share of m's demand one instance serves (headroom x rate less outages /
                    demand, at most 1), A_kc capacity, n'_i running, K start-up hours charged, k_m least regions, l_m
                    least replicas, h_m most share on spot, B budget, v_m weight, M_i most instances of use
        variables   n_i instances, whole, 0..M_i; I_i >= 0 start-up charge (running columns only); q_mr in [0, 1] share
                    of m served from r; b_mr m is in r at all (binary); d_m regions missing of k_m (whole, 0 unless in
                    shortage); theta in [0, 1] common share; s_m in [0, 1] share of m missing; z_i column used (binary);
                    L_wr >= 0 share of m that the largest instance of w in r serves (N+1; else 0)
        objective   cost      min  sum_i p_i n_i + I_i, where I_i = K p_i n_i for columns that do not run
                    theta     min  -theta + sum_m d_m           (a missing region outweighs any share)
                    shortage  min  sum_m v_m (s_m + d_m / k_m)  (a missing region counts as that share missing)
        constraints capacity   sum_i in k U_ic n_i <= A_kc
                    phase      sum_i in w,r a_i n_i - L_wr >= q_mr   for every phase w of m: prefill and decode together
                    firm       sum_i in w,r,F a_i n_i >= (1 - h_m) q_mr
                    loss       L_wr >= a_i z_i,  n_i <= M_i z_i      for i in w,r where m survives a loss
                    replicas   q_mr <= b_mr,  sum_i in w,r n_i >= l_m b_mr
                    demand     sum_r q_mr >= share | theta | 1 - s_m
                    start-up   I_i >= (n_i - n'_i) K p_i        removing is free
                    regions    sum_r b_mr + d_m >= k_m,  sum_i in w,r n_i >= b_mr
                    budget     sum_i p_i n_i <= B               rent only
                    quota      sum_i (sum_c u_qkc U_ic) n_i <= Q_q   u_qkc units of quota q a node of c in pool k takes

    Rows are scaled to shares of demand, so coefficients stay within a few orders of magnitude.
    """
    target = target or Target()
    model = pulp.LpProblem("allocation", pulp.LpMinimize)
    n = [pulp.LpVariable(f"n{i}", 0, int(most), cat=pulp.LpInteger) for i, most in enumerate(columns.max_instances)]
    charges = _start_up(model, problem, columns, n)
    cost_terms = [
        (v, float(price) * (1.0 if i in charges else 1.0 + problem.init_share))
        for i, (v, price) in enumerate(zip(n, columns.price_usd_per_h, strict=True))
    ]
    cost_terms += [(charge, 1.0) for charge in charges.values()]
    _capacity(model, problem, columns, n)
    _quotas(model, problem, columns, n)
    if problem.budget_usd_per_h is not None:
        rent = [(n[i], float(p)) for i, p in enumerate(columns.price_usd_per_h)]
        scale = max(1.0, problem.budget_usd_per_h)
        model += (
            pulp.LpAffineExpression([(v, p / scale) for v, p in rent]) <= problem.budget_usd_per_h / scale,
            "budget",
        )
    theta = pulp.LpVariable("theta", 0, 1) if goal is Goal.THETA else None
    may_miss = goal is Goal.SHORTAGE or target.shortage is not None
    soft_regions = goal is not Goal.COST or target.shortage is not None or target.missing_regions > 0
    shortage_terms: list[tuple[pulp.LpVariable, float]] = []
    missing: list[tuple[pulp.LpVariable, ModelDemand]] = []
    by_service: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, key in enumerate(zip(columns.workload.tolist(), columns.region.tolist(), strict=True)):
        by_service[key].append(i)
    for m, demand in enumerate(active_demands(problem)):
        shares, present = _co_location(model, problem, columns, n, m, demand, by_service)
        left = pulp.LpAffineExpression([(q, 1.0) for q in shares])
        if theta is not None:
            model += left - theta >= 0, f"demand{m}"
        elif may_miss:
            short = pulp.LpVariable(f"s{m}", 0, 1)
            shortage_terms.append((short, demand.weight))
            model += left + short >= 1, f"demand{m}"
        else:
            model += left >= target.share, f"demand{m}"
        if demand.min_regions > 1:
            slack = _min_regions(model, m, demand, present, soft=soft_regions)
            if slack is not None:
                missing.append((slack, demand))
                shortage_terms.append((slack, demand.weight / demand.min_regions))
    if goal is Goal.THETA:
        model.setObjective(pulp.LpAffineExpression([(theta, -1.0), *((d, 1.0) for d, _ in missing)]))
    elif goal is Goal.SHORTAGE:
        model.setObjective(pulp.LpAffineExpression(shortage_terms))
    else:
        model.setObjective(pulp.LpAffineExpression(cost_terms))
        if target.shortage is not None:
            model += pulp.LpAffineExpression(shortage_terms) <= target.shortage, "shortage"
        elif missing:
            model += pulp.lpSum(d for d, _ in missing) <= target.missing_regions, "missing_regions"
    return Formulation(model, n, [d for d, _ in missing], charges)


def _start_up(
    model: pulp.LpProblem, problem: AllocationProblem, columns: Columns, n: list[pulp.LpVariable]
) -> dict[int, pulp.LpVariable]:
    """Charges I_i of the columns that run, with their rows I_i >= (n_i - n'_i) K p_i."""
    K = problem.init_share
    charges: dict[int, pulp.LpVariable] = {}
    for i in np.flatnonzero(columns.running > 0).tolist() if K > 0 else []:
        fee = K * float(columns.price_usd_per_h[i])
        charges[i] = pulp.LpVariable(f"I{i}", 0)
        model += charges[i] - fee * n[i] >= -fee * int(columns.running[i]), f"start{i}"
    return charges


def _capacity(model: pulp.LpProblem, problem: AllocationProblem, columns: Columns, n: list[pulp.LpVariable]) -> None:
    for p in range(len(problem.pools)):
        here = np.flatnonzero(columns.pool == p)
        for k in range(len(problem.node_configs)):
            using = here[columns.counts[here, k] > 0]
            if len(using):
                used = pulp.LpAffineExpression([(n[i], int(columns.counts[i, k])) for i in using])
                model += used <= int(problem.capacity_nodes[p, k]), f"capacity_{p}_{k}"


def _quotas(model: pulp.LpProblem, problem: AllocationProblem, columns: Columns, n: list[pulp.LpVariable]) -> None:
    for q, quota in enumerate(problem.quotas):
        units = problem.quota_units(quota)
        taken = (columns.counts.astype(np.int64) * units[columns.pool]).sum(axis=1)
        if taken.any():
            terms = [(n[i], int(taken[i])) for i in np.flatnonzero(taken)]
            model += pulp.LpAffineExpression(terms) <= quota.limit, f"quota_{q}"


def _co_location(
    model: pulp.LpProblem,
    problem: AllocationProblem,
    columns: Columns,
    n: list[pulp.LpVariable],
    m: int,
    demand: ModelDemand,
    by_service: dict[tuple[int, int], list[int]],
) -> tuple[list[pulp.LpVariable], list[pulp.LpVariable]]:
    """The shares q_mr of a model, each held down by every phase of the model in that region and by the model's rules there,
    and the b_mr, where its rules need them."""
    workloads = _workload_rows(problem, demand)
    is_firm = columns.is_firm(problem)
    shares, present = [], []
    for region in sorted(demand.regions):
        r = problem.regions.index(region)
        if not all(by_service.get((w, r)) for w in workloads):
            continue
        q = pulp.LpVariable(f"q{m}_{r}", 0, 1)
        shares.append(q)
        b = None
        if demand.min_replicas > 1 or demand.min_regions > 1:
            b = pulp.LpVariable(f"b{m}_{r}", 0, 1, cat=pulp.LpInteger)
            present.append(b)
            if demand.min_replicas > 1:
                model += b - q >= 0, f"replicas_{m}_{r}"
        for w in workloads:
            name, mine = f"{m}_{r}_{w}", by_service[w, r]
            firm = [i for i in mine if is_firm[i]]
            terms = [(n[i], float(columns.share[i])) for i in mine]
            if demand.survives_loss:
                terms.append((_largest(model, columns, n, mine, name), -1.0))
            model += pulp.LpAffineExpression(terms) - q >= 0, f"phase_{name}"
            if demand.max_spot_share < 1:
                supply = pulp.LpAffineExpression([(n[i], float(columns.share[i])) for i in firm])
                model += supply - (1 - demand.max_spot_share) * q >= 0, f"firm_{name}"
            if b is not None:
                least = max(demand.min_replicas, 1 + int(demand.survives_loss))
                model += pulp.LpAffineExpression([(n[i], 1) for i in mine]) - least * b >= 0, f"present_{name}"
                if demand.max_spot_share < 1:
                    model += pulp.LpAffineExpression([(n[i], 1) for i in firm]) - b >= 0, f"present_firm_{name}"
    return shares, present


def _largest(
    model: pulp.LpProblem, columns: Columns, n: list[pulp.LpVariable], mine: list[int], name: str
) -> pulp.LpVariable:
    """The share L_wr that the largest instance among the columns ``mine`` serves, with its rows."""
    largest = pulp.LpVariable(f"L{name}", 0)
    for i in mine:
        most = int(columns.max_instances[i])
        is_used = n[i]
        if most > 1:
            is_used = pulp.LpVariable(f"z{i}", 0, 1, cat=pulp.LpInteger)
            model += n[i] - most * is_used <= 0, f"used{i}"
        model += largest - float(columns.share[i]) * is_used >= 0, f"loss{i}"
    return largest


def _min_regions(
    model: pulp.LpProblem, m: int, demand: ModelDemand, present: list[pulp.LpVariable], *, soft: bool
) -> pulp.LpVariable | None:
    """The row that counts regions in which the model is; returns the slack d_m where some may be missing."""
    slack = pulp.LpVariable(f"d{m}", 0, demand.min_regions, cat=pulp.LpInteger) if soft else None
    total = pulp.LpAffineExpression([(b, 1) for b in present])
    model += (total + slack if slack is not None else total) >= demand.min_regions, f"regions{m}"
    return slack


def _workload_rows(problem: AllocationProblem, demand: ModelDemand) -> list[int]:
    ids = [candidates.workload_id for candidates in problem.candidates]
    return [ids.index(workload_id) for workload_id in demand.workload_ids]


def loosened(target: Target) -> Target:
    """``target`` less the tolerance of float sums, so that the answer that established it meets it."""
    shortage = None if target.shortage is None else target.shortage + RATE_TOLERANCE
    return replace(target, share=target.share * (1 - RATE_TOLERANCE), shortage=shortage)
