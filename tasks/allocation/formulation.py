"""The paper's online ILP as a PuLP problem, in three readings: least cost, most common service, least shortage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import pulp
from numpy.typing import NDArray

from tasks.allocation.columns import RATE_TOLERANCE, Columns
from tasks.allocation.moves import gbit_per_s, usd_per_h
from tasks.allocation.service import build_service
from tasks.allocation.types import AllocationProblem, ModelDemand

_NO_MOVE = 1e-9  # a smaller share is none


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
    start-up charge of columns that have a variable for it; ``moves`` the shares whose KV takes a link, by (model, link)."""

    problem: pulp.LpProblem
    instances: list[pulp.LpVariable]
    missing_regions: list[pulp.LpVariable]
    charges: dict[int, pulp.LpVariable]
    moves: dict[tuple[str, int], pulp.LpVariable]

    def counts(self, values: Mapping[str, float]) -> list[int]:
        """Instances per column in an answer's ``values`` by variable name."""
        return [int(values[v.name]) for v in self.instances]

    def start(self, counts: Sequence[int] | NDArray[np.int64]) -> dict[str, float]:
        """The values of ``instances`` in a known answer."""
        return {v.name: float(count) for v, count in zip(self.instances, counts, strict=True)}

    def moved(self, values: Mapping[str, float]) -> dict[tuple[str, int], float]:
        """The shares that move in an answer's ``values`` by variable name."""
        return {key: max(values[v.name], 0.0) for key, v in self.moves.items() if values[v.name] > _NO_MOVE}


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
                    L_wr >= 0 share of m that the largest instance of w in r serves (N+1; else 0); x_ml in [0, 1] share
                    of m that prefills at the source of link l and decodes at its target (none where KV may not cross)
        objective   cost      min  sum_i p_i n_i + I_i + sum_ml e_ml x_ml, where I_i = K p_i n_i for columns that do not
                                   run, and e_ml is what moving the KV of all of m over l costs
                    theta     min  -theta + sum_m d_m           (a missing region outweighs any share)
                    shortage  min  sum_m v_m (s_m + d_m / k_m)  (a missing region counts as that share missing)
        constraints capacity   sum_i in k U_ic n_i <= A_kc
                    phase      sum_i in w,r a_i n_i - L_wr >= q_mr + y_wr   for every phase w of m: together but for
                               y_wr, the sum of x_ml over links l that leave r (w prefill) or come to it (w decode)
                    firm       sum_i in w,r,F a_i n_i >= (1 - h_m) (q_mr + y_wr)
                    loss       L_wr >= a_i z_i,  n_i <= M_i z_i      for i in w,r where m survives a loss
                    replicas   q_mr + y_wr <= b_mr,  sum_i in w,r n_i >= l_m b_mr   (b_wr per phase where m has links)
                    demand     sum_r q_mr + sum_l x_ml >= share | theta | 1 - s_m
                    bandwidth  sum_m g_ml x_ml <= G_l          Gbit/s of all of m's KV
                    start-up   I_i >= (n_i - n'_i) K p_i        removing is free
                    service    0.001 b_wr <= sum_r q_mr + sum_l x_ml   where m has links
                    regions    sum_r b_mr + d_m >= k_m,  sum_i in w,r n_i >= b_mr
                    budget     sum_i p_i n_i + sum_ml e_ml x_ml <= B   rent and what moves, not start-up
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
    theta = pulp.LpVariable("theta", 0, 1) if goal is Goal.THETA else None
    may_miss = goal is Goal.SHORTAGE or target.shortage is not None
    soft_regions = goal is not Goal.COST or target.shortage is not None or target.missing_regions > 0
    shortage_terms: list[tuple[pulp.LpVariable, float]] = []
    missing: list[tuple[pulp.LpVariable, ModelDemand]] = []
    by_service: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, key in enumerate(zip(columns.workload.tolist(), columns.region.tolist(), strict=True)):
        by_service[key].append(i)
    moves: dict[tuple[str, int], pulp.LpVariable] = {}
    for m, demand in enumerate(active_demands(problem)):
        service = build_service(model, problem, columns, n, m, demand, by_service, moves)
        left = pulp.LpAffineExpression([(q, 1.0) for q in service.served])
        if theta is not None:
            model += left - theta >= 0, f"demand{m}"
        elif may_miss:
            short = pulp.LpVariable(f"s{m}", 0, 1)
            shortage_terms.append((short, demand.weight))
            model += left + short >= 1, f"demand{m}"
        else:
            model += left >= target.share, f"demand{m}"
        if demand.min_regions > 1:
            slack = _min_regions(model, m, demand, service.present, soft=soft_regions)
            if slack is not None:
                missing.append((slack, demand))
                shortage_terms.append((slack, demand.weight / demand.min_regions))
    egress = _links(model, problem, moves)
    cost_terms += egress
    if problem.budget_usd_per_h is not None:
        paid = [*((n[i], float(p)) for i, p in enumerate(columns.price_usd_per_h)), *egress]
        scale = max(1.0, problem.budget_usd_per_h)
        model += (
            pulp.LpAffineExpression([(v, p / scale) for v, p in paid]) <= problem.budget_usd_per_h / scale,
            "budget",
        )
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
    return Formulation(model, n, [d for d, _ in missing], charges, moves)


def _links(
    model: pulp.LpProblem, problem: AllocationProblem, moves: dict[tuple[str, int], pulp.LpVariable]
) -> list[tuple[pulp.LpVariable, float]]:
    """The bandwidth rows; what every x_ml costs, as terms."""
    demands = {d.model: d for d in problem.demands}
    for at, link in enumerate(problem.links):
        mine = [(x, gbit_per_s(demands[name])) for (name, of), x in moves.items() if of == at]
        if mine and link.gbit_per_s is not None:
            scale = max(1.0, *(g for _, g in mine))
            terms = [(x, g / scale) for x, g in mine]
            model += pulp.LpAffineExpression(terms) <= link.gbit_per_s / scale, f"bandwidth_{at}"
    return [(x, usd_per_h(demands[name], problem.links[at])) for (name, at), x in moves.items()]


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


def _min_regions(
    model: pulp.LpProblem, m: int, demand: ModelDemand, present: list[list[pulp.LpVariable]], *, soft: bool
) -> pulp.LpVariable | None:
    """The rows that count regions in which the model is, by phase; returns the slack d_m where some may be missing."""
    slack = pulp.LpVariable(f"d{m}", 0, demand.min_regions, cat=pulp.LpInteger) if soft else None
    for w, bs in enumerate(present or [[]]):
        total = pulp.LpAffineExpression([(b, 1) for b in bs])
        name = f"regions{m}_{w}" if w else f"regions{m}"
        model += (total + slack if slack is not None else total) >= demand.min_regions, name
    return slack


def loosened(target: Target) -> Target:
    """``target`` less the tolerance of float sums, so that the answer that established it meets it."""
    shortage = None if target.shortage is None else target.shortage + RATE_TOLERANCE
    return replace(target, share=target.share * (1 - RATE_TOLERANCE), shortage=shortage)
