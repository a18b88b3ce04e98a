"""Small online problems for tests, and their answer by enumerating every plan there is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.types import Basis, Market, Phase
from tasks.allocation.types import (
    AllocationProblem,
    ModelDemand,
    Pool,
    SharedQuota,
    Shortage,
    WorkloadCandidates,
)

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


def ruled_problem(seed: int) -> AllocationProblem:
    """A random small problem with what :func:`random_problem` lacks: spot, owned nodes, quotas, and rules of the models."""
    base, rng = random_problem(seed), np.random.default_rng([seed, 1])
    pools, rows, nodes, outage = [], [], [], []
    more = int(rng.choice([0, 2, 4]))
    for r, region in enumerate(base.regions):
        for market, factor in ((Market.ON_DEMAND, 1.0), (Market.OWNED, 0.3), (Market.SPOT, 0.5)):
            if market is not Market.ON_DEMAND and rng.random() < 0.5:
                continue
            pools.append(Pool(region, market))
            sunk = market is Market.OWNED and rng.random() < 0.5
            rows.append(base.price_usd_per_h[r] * (0.0 if sunk else factor))
            few = np.minimum(base.capacity_nodes[r], 2)
            few = base.capacity_nodes[r] + more if market is Market.ON_DEMAND else few
            nodes.append(few)
            outage.append(rng.choice([0.0, 0.1, 0.4], len(base.node_configs)) if market is Market.SPOT else 0 * rows[0])
    quotas = tuple(
        SharedQuota(f"q{q}", str(rng.choice(base.regions)), units, int(rng.integers(0, 12)))
        for q in range(rng.integers(0, 2))
        for units in ({c: int(rng.integers(0, 4)) for c in base.node_configs},)
    )
    demands = tuple(
        replace(
            demand,
            planned_req_per_s=demand.planned_req_per_s * float(rng.choice([0.2, 0.5, 1.0])),
            min_regions=min(int(rng.choice([1, 1, 2])), len(demand.regions)),
            min_replicas=int(rng.choice([1, 1, 1, 2, 3])),
            max_spot_share=float(rng.choice([0.0, 0.3, 0.5, 0.8, 1.0])),
            survives_loss=bool(rng.random() < 0.3),
            excluded=base.node_configs[1:2] if rng.random() < 0.1 else (),
            node_configs=base.node_configs[:2] if rng.random() < 0.1 else None,
        )
        for demand in base.demands
    )
    running = {
        (str(rng.choice([pool.name for pool in pools if pool.region == key[0]])), key[1]): count
        for key, count in base.running.items()
    }
    return replace(
        base,
        pools=tuple(pools),
        price_usd_per_h=np.array(rows),
        capacity_nodes=np.array(nodes),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in base.node_configs},
        outage=np.nan_to_num(np.array(outage)),
        quotas=quotas,
        demands=demands,
        running=running,
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
    states = region_states(p, r, active, limit)
    if states is None:
        return None
    n, columns, rent, cost = states
    q = np.zeros((len(n), len(active)))
    for m, demand in enumerate(active):
        phases = range(len(demand.workload_ids))
        q[:, m] = np.min([counted(n, columns, m, phase, demand) for phase in phases], axis=0)
    return q, rent, cost, (q > 0).astype(int)


def region_states(p: AllocationProblem, r: int, active: Sequence[ModelDemand], limit: int):
    """All instance counts [n, columns] that fit region r, its columns, rent [n] and cost [n]."""
    columns = _region_columns(p, r, active)
    states = [((), np.zeros(p.capacity_nodes.shape, dtype=int))]
    for column in columns:
        grown = []
        for counts, used in states:
            for n in itertools.count():
                now = used.copy()
                now[column.pool] += n * column.nodes
                if (now > p.capacity_nodes).any() or _over_quota(p, r, now):
                    break
                grown.append(((*counts, n), now))
        states = grown
        if len(states) > limit // 100:
            return None
    n = np.array([counts for counts, _ in states]).reshape(len(states), len(columns))
    price, running = np.array([c.price for c in columns]), np.array([c.running for c in columns])
    rent = (n * price).sum(axis=1)
    return n, columns, rent, rent + (np.maximum(n - running, 0) * price).sum(axis=1) * p.init_share


def counted(n, columns: Sequence[_Column], m: int, phase: int, demand: ModelDemand):
    """What the instances ``n`` [states, columns] of a phase count as serving, by the model's rules, [states]."""
    mine = [i for i, c in enumerate(columns) if (c.model, c.phase) == (m, phase)]
    rate = np.array([columns[i].rate for i in mine])
    own = n[:, mine]
    total = (own * rate).sum(axis=1)
    counted = total.copy()
    if demand.survives_loss:
        counted -= ((own > 0) * rate).max(axis=1, initial=0.0)
        counted[counted < 1e-9] = 0.0
    if demand.max_spot_share < 1:
        firm = np.array([columns[i].firm for i in mine], dtype=bool)
        counted = np.minimum(counted, (own * rate * firm).sum(axis=1) / (1 - demand.max_spot_share))
    counted[own.sum(axis=1) < demand.min_replicas] = 0.0
    return counted


def _over_quota(p: AllocationProblem, r: int, used) -> bool:
    rented = [i for i, pool in enumerate(p.pools) if pool.region == p.regions[r] and pool.market is not Market.OWNED]
    nodes = used[rented].sum(axis=0)
    return any(
        sum(q.units.get(c, 0) * int(n) for c, n in zip(p.node_configs, nodes, strict=True)) > q.limit
        for q in p.quotas
        if q.region == p.regions[r]
    )


@dataclass(frozen=True)
class _Column:
    model: int
    phase: int
    pool: int
    nodes: np.ndarray
    price: float
    rate: float
    running: int
    firm: bool


def _region_columns(p: AllocationProblem, r: int, active: Sequence[ModelDemand]) -> list[_Column]:
    """Every template that a pool of region r sells and its model may use."""
    columns = []
    for m, demand in enumerate(active):
        if p.regions[r] not in demand.regions:
            continue
        wrong = [c in demand.excluded or (demand.node_configs or (c,)).count(c) == 0 for c in p.node_configs]
        for pool_at, c in itertools.product(range(len(p.pools)), p.candidates):
            pool = p.pools[pool_at]
            if c.workload_id not in demand.workload_ids or pool.region != p.regions[r]:
                continue
            if pool.market is Market.SPOT and demand.max_spot_share == 0:
                continue
            prices = p.price_usd_per_h[pool_at]
            for i, template_id in enumerate(c.template_ids):
                nodes = c.counts[i].astype(int)
                if (pool.name, template_id) in p.forbidden or nodes[wrong].any():
                    continue
                if np.isnan(prices[nodes > 0]).any() or c.throughput_mtok_per_s[i] == 0:
                    continue
                rate = c.throughput_mtok_per_s[i] / 1000 * c.headroom / c.tokens_per_request
                if p.outage is not None:
                    rate /= 1 + sum(n * float(o) for n, o in zip(nodes, p.outage[pool_at], strict=True))
                columns.append(
                    _Column(
                        model=m,
                        phase=demand.workload_ids.index(c.workload_id),
                        pool=pool_at,
                        nodes=nodes,
                        price=float(np.nansum(nodes * prices)),
                        rate=rate,
                        running=p.running.get((pool.name, template_id), 0),
                        firm=pool.market is not Market.SPOT,
                    )
                )
    return columns
