"""Small online problems for tests, and their answer by enumerating every plan there is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.types import Basis, Phase
from tasks.allocation.types import AllocationProblem, ModelDemand, Shortage, WorkloadCandidates

R1, R2 = "aws/us-east-2", "gcp/us-central1"


def workload(
    model: str,
    phase: Phase,
    templates: Mapping[str, tuple[Mapping[str, int], float]],
    configs: Sequence[str],
    *,
    tokens_per_request: float = 1.0,
    headroom: float = 1.0,
) -> WorkloadCandidates:
    """Candidates from ``{template_id: ({config: nodes}, tok/s)}``."""
    counts = np.zeros((len(templates), len(configs)), dtype=np.int16)
    for i, (nodes, _) in enumerate(templates.values()):
        for config, count in nodes.items():
            counts[i, configs.index(config)] = count
    return WorkloadCandidates(
        workload_id=f"{model}-{phase.value}",
        alias=f"{model}/{phase.value}",
        model=model,
        phase=phase,
        tokens_per_request=tokens_per_request,
        headroom=headroom,
        template_ids=tuple(templates),
        counts=counts,
        throughput_mtok_per_s=np.array([round(rate * 1000) for _, rate in templates.values()], dtype=np.int64),
    )


def problem(
    candidates: Sequence[WorkloadCandidates],
    demand_req_per_s: Mapping[str, float],
    price: Mapping[tuple[str, str], float],
    capacity: Mapping[tuple[str, str], int],
    *,
    regions: Sequence[str] = (R1,),
    configs: Sequence[str] = ("L4x1", "A10Gx1"),
    allowed: Mapping[str, Sequence[str]] | None = None,
    min_regions: Mapping[str, int] | None = None,
    weight: Mapping[str, float] | None = None,
    init_share: float = 0.0,
    running: Mapping[tuple[str, str], int] | None = None,
    shortage: Shortage = Shortage.UNIFORM,
    budget_usd_per_h: float | None = None,
) -> AllocationProblem:
    """A problem from readable parts; a (region, config) without a price is not sold."""
    prices = np.array([[price.get((r, c), np.nan) for c in configs] for r in regions])
    nodes = np.array([[capacity.get((r, c), 0) for c in configs] for r in regions], dtype=np.int64)
    demands = tuple(
        ModelDemand(
            model=model,
            planned_req_per_s=rate,
            workload_ids=tuple(c.workload_id for c in candidates if c.model == model),
            regions=tuple((allowed or {}).get(model, regions)),
            min_regions=(min_regions or {}).get(model, 1),
            weight=(weight or {}).get(model, 1.0),
        )
        for model, rate in demand_req_per_s.items()
    )
    return AllocationProblem(
        regions=tuple(regions),
        node_configs=tuple(configs),
        price_usd_per_h=prices,
        capacity_nodes=nodes,
        capacity_basis={(r, c): Basis.STATED for r in regions for c in configs},
        candidates=tuple(candidates),
        demands=demands,
        init_share=init_share,
        running=dict(running or {}),
        shortage=shortage,
        budget_usd_per_h=budget_usd_per_h,
    )


def random_problem(seed: int) -> AllocationProblem:
    """A problem small enough to enumerate: 1-2 models and regions, with kept instances, budgets, holes and shortages."""
    rng = np.random.default_rng(seed)
    regions = (R1, R2)[: rng.integers(1, 3)]
    configs = ("L4x1", "A10Gx1", "L40Sx2")[: rng.integers(1, 4)]
    price = {(r, c): float(rng.integers(1, 9)) for r in regions for c in configs if rng.random() < 0.9}
    scarce = rng.random() < 0.4
    capacity = {(r, c): int(rng.integers(0, 3 if scarce else 5)) for r in regions for c in configs}
    candidates, demand = [], {}
    for model in ("a", "b")[: rng.integers(1, 3)]:
        phases = (Phase.PREFILL, Phase.DECODE) if rng.random() < 0.6 else (Phase.AGGREGATED,)
        demand[model] = float(rng.integers(0, 6 if scarce else 4))
        for phase in phases:
            templates = {}
            for i in range(rng.integers(1, 4)):
                nodes = {c: int(rng.integers(0, 3)) for c in configs}
                if not any(nodes.values()):
                    nodes[configs[0]] = 1
                templates[f"{model}{phase.value}{i}"] = (nodes, float(rng.integers(0, 7)))
            candidates.append(
                workload(
                    model, phase, templates, configs, tokens_per_request=2.0, headroom=float(rng.choice([0.5, 1.0]))
                )
            )
    running = {
        (r, t): int(rng.integers(1, 3))
        for r in regions
        for c in candidates
        for t in c.template_ids
        if rng.random() < 0.25
    }
    return problem(
        candidates,
        demand,
        price,
        capacity,
        regions=regions,
        configs=configs,
        allowed={m: regions if rng.random() < 0.8 else regions[:1] for m in demand},
        weight={m: float(rng.integers(1, 4)) for m in demand},
        init_share=float(rng.choice([0.0, 0.1, 0.5])),
        running=running if rng.random() < 0.5 else {},
        shortage=Shortage.UNIFORM if rng.random() < 0.5 else Shortage.PRIORITY,
        budget_usd_per_h=float(rng.integers(0, 40)) if rng.random() < 0.25 else None,
    )


def with_min_regions(base: AllocationProblem, k: int) -> AllocationProblem:
    """``base`` with every model wanting ``k`` regions where it is allowed so many."""
    demands = tuple(replace(d, min_regions=min(k, len(d.regions))) for d in base.demands)
    return replace(base, demands=demands)


@dataclass(frozen=True)
class Truth:
    """The best answer there is. ``theta``: least served share; ``shortage``: weighted missing share and regions."""

    objective: float
    feasible: bool
    theta: float
    shortage: float


def enumerate_plans(p: AllocationProblem, limit: int = 3_000_000) -> Truth | None:
    """Best answer over all plans within capacity and budget, by the rules as documented; None if there are too many."""
    active = [d for d in p.demands if d.planned_req_per_s > 0]
    if not active:
        return Truth(0.0, True, 1.0, 0.0)
    per_region = []
    for r in range(len(p.regions)):
        plans = _region_plans(p, r, active, limit)
        if plans is None:
            return None
        per_region.append(plans)
    if np.prod([len(plans[1]) for plans in per_region]) > limit:
        return None
    served, rent, cost, present = per_region[0]
    for q2, rent2, cost2, present2 in per_region[1:]:
        served = (served[:, None] + q2[None]).reshape(-1, len(active))
        present = (present[:, None] + present2[None]).reshape(-1, len(active))
        rent = (rent[:, None] + rent2[None]).reshape(-1)
        cost = (cost[:, None] + cost2[None]).reshape(-1)
    if p.budget_usd_per_h is not None:
        within = rent <= p.budget_usd_per_h + 1e-9
        served, present, rent, cost = served[within], present[within], rent[within], cost[within]
    want = np.array([d.planned_req_per_s for d in active])
    share = np.minimum(served / want, 1.0)
    least = np.array([d.min_regions for d in active])
    missing = np.maximum(least - present, 0) * (least > 1)
    weight = np.array([d.weight for d in active])
    shortage = (weight * (1 - share + missing / least)).sum(axis=1)
    theta = share.min(axis=1)
    met = (theta >= 1 - 1e-9) & (missing.sum(axis=1) == 0)
    if met.any():
        return Truth(float(cost[met].min()), True, 1.0, 0.0)
    if p.shortage is Shortage.UNIFORM:
        score = missing.sum(axis=1) - theta
        top = np.flatnonzero(score <= score.min() + 1e-9)
        if theta[top].max() > 1e-9:
            best_theta, d = float(theta[top].max()), missing[top[np.argmax(theta[top])]].sum()
            ok = (theta >= best_theta - 1e-9) & (missing.sum(axis=1) <= d)
            return Truth(float(cost[ok].min()), False, best_theta, float("nan"))
    ok = shortage <= shortage.min() + 1e-9
    return Truth(float(cost[ok].min()), False, float("nan"), float(shortage.min()))


def _region_plans(p: AllocationProblem, r: int, active: Sequence[ModelDemand], limit: int):
    """All instance counts that fit region r: served req/s [n, models], rent [n], cost [n], present [n, models]."""
    columns = _region_columns(p, r, active)
    states = [(np.zeros(len(p.node_configs), dtype=int), {}, 0.0, 0.0)]
    for m, phase, nodes, price, rate, running in columns:
        grown = []
        for used, rates, rent, cost in states:
            for n in itertools.count():
                now = used + n * nodes
                if (now > p.capacity_nodes[r]).any() or _over_quota(p, r, now):
                    break
                new_rates = dict(rates)
                new_rates[m, phase] = new_rates.get((m, phase), 0.0) + n * rate
                fee = max(n - running, 0) * price * p.init_share
                grown.append((now, new_rates, rent + n * price, cost + n * price + fee))
        states = grown
        if len(states) > limit // 100:
            return None
    q = np.zeros((len(states), len(active)))
    for s, (_, rates, _, _) in enumerate(states):
        for m, demand in enumerate(active):
            q[s, m] = min(rates.get((m, phase), 0.0) for phase in range(len(demand.workload_ids)))
    return q, np.array([s[2] for s in states]), np.array([s[3] for s in states]), (q > 0).astype(int)


def _over_quota(p: AllocationProblem, r: int, nodes) -> bool:
    return any(
        sum(q.units.get(c, 0) * int(n) for c, n in zip(p.node_configs, nodes, strict=True)) > q.limit
        for q in p.quotas
        if q.region == p.regions[r]
    )


def _region_columns(p: AllocationProblem, r: int, active: Sequence[ModelDemand]):
    """(model, phase, nodes, price, req/s, running) of every template region r sells."""
    columns = []
    for m, demand in enumerate(active):
        if p.regions[r] not in demand.regions:
            continue
        for c in p.candidates:
            if c.workload_id not in demand.workload_ids:
                continue
            for i, template_id in enumerate(c.template_ids):
                nodes = c.counts[i].astype(int)
                if (p.regions[r], template_id) in p.forbidden:
                    continue
                if np.isnan(p.price_usd_per_h[r][nodes > 0]).any() or c.throughput_mtok_per_s[i] == 0:
                    continue
                price = float(np.nansum(nodes * p.price_usd_per_h[r]))
                rate = c.throughput_mtok_per_s[i] / 1000 * c.headroom / c.tokens_per_request
                phase = demand.workload_ids.index(c.workload_id)
                columns.append((m, phase, nodes, price, rate, p.running.get((p.regions[r], template_id), 0)))
    return columns
