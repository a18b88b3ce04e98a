"""The independent check of an answer: everything is recomputed from the problem's tables, nothing is asked of a solver.

This module and :mod:`tasks.allocation.plan_checker` share no code with the solvers and import none. Each rule returns
plain sentences; an empty list means the answer stands.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from catalogs.types import Market
from tasks.allocation.checker_figures import TOLERANCE, Totals, close, figure_faults
from tasks.allocation.checker_moves import MoveRow, move_faults, sides
from tasks.allocation.types import AllocationProblem, AllocationResult, ModelDemand, SharedQuota, SolveStatus

_PLANNED = (SolveStatus.OPTIMAL, SolveStatus.GAP, SolveStatus.TIME_LIMIT, SolveStatus.SHORTFALL)


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decided row as any table states it; ``cost_usd_per_h`` is of all its instances."""

    region: str
    template_id: str
    workload_id: str
    instances: int
    new_instances: int
    cost_usd_per_h: float
    market: Market = Market.ON_DEMAND


@dataclass(frozen=True, slots=True)
class _Template:
    workload: int
    nodes: dict[str, int]
    req_per_s: float


def check_result(problem: AllocationProblem, result: AllocationResult) -> list[str]:
    """Faults of a solver's answer, as sentences; empty if it holds."""
    rows = [
        DecisionRow(r.region, r.template_id, r.workload_id, r.instances, r.new_instances, r.cost_usd_per_h, r.market)
        for r in result.instances
    ]
    totals = Totals(
        result.status,
        result.cost_usd_per_h,
        result.init_usd,
        result.lower_bound_usd,
        result.gap,
        result.theta,
        result.theta_upper,
        result.egress_usd_per_h,
    )
    moves = [MoveRow(t.model, t.source, t.target, t.req_per_s, t.gbit_per_s, t.usd_per_h) for t in result.transfers]
    faults = check_decision(problem, rows, totals, moves)
    if totals.status in _PLANNED and not close(result.objective_usd, result.cost_usd_per_h + result.init_usd):
        faults.append(
            f"objective {result.objective_usd} is not rent {result.cost_usd_per_h} + start-up {result.init_usd}"
        )
    return faults


def check_decision(
    problem: AllocationProblem, rows: Sequence[DecisionRow], totals: Totals, moves: Sequence[MoveRow] = ()
) -> list[str]:
    """All rules on decision rows, on what moves between regions, and stated totals."""
    if totals.status not in _PLANNED:
        return [f"status {totals.status} carries no plan"]
    templates = template_facts(problem, rows)
    faults = row_faults(problem, rows, templates) + move_faults(problem, moves)
    if faults:
        return faults  # the rules below would only repeat them in other words
    return [
        *capacity_faults(problem, rows, templates),
        *quota_faults(problem, rows, templates),
        *demand_faults(problem, rows, totals, templates, moves),
        *cost_faults(problem, rows, totals, moves),
        *figure_faults(totals),
    ]


def template_facts(problem: AllocationProblem, rows: Iterable[DecisionRow]) -> dict[tuple[str, str], _Template]:
    """By (workload id, template id), of the templates in ``rows``: nodes by configuration and planned req/s of one instance.

    Of those alone: a library has hundreds of thousands, and every plan is checked.
    """
    facts = {}
    named = {row.template_id for row in rows}
    for w, candidates in enumerate(problem.candidates):
        for i, template_id in enumerate(candidates.template_ids):
            if template_id not in named:
                continue
            nodes = {config: int(candidates.counts[i][k]) for k, config in enumerate(problem.node_configs)}
            tok_per_s = int(candidates.throughput_mtok_per_s[i]) / 1000
            rate = tok_per_s * candidates.headroom / candidates.tokens_per_request
            facts[candidates.workload_id, template_id] = _Template(w, {c: n for c, n in nodes.items() if n}, rate)
    return facts


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def row_faults(
    problem: AllocationProblem, rows: Sequence[DecisionRow], templates: dict[tuple[str, str], _Template]
) -> list[str]:
    """Faults of single rows: names, whole counts, allowed regions, new instances, prices, repeats."""
    faults = []
    demand_of = {workload_id: d for d in problem.demands for workload_id in d.workload_ids}
    pools = {(pool.region, pool.market) for pool in problem.pools}
    for row in rows:
        name, demand = _name(row), demand_of.get(row.workload_id)
        if row.region not in problem.regions:
            faults.append(f"{name}: unknown region")
        elif (row.region, row.market) not in pools:
            faults.append(f"{name}: nothing is sold as {row.market} there")
        elif (row.workload_id, row.template_id) not in templates:
            faults.append(f"{name}: no such template of workload {row.workload_id}")
        elif demand is None or row.region not in demand.regions:
            faults.append(f"{name}: region not allowed for workload {row.workload_id}")
        elif row.market is Market.SPOT and demand.max_spot_share == 0:
            faults.append(f"{name}: {demand.model} may not use spot")
        elif wrong := _wrong_configs(demand, templates[row.workload_id, row.template_id]):
            faults.append(f"{name}: {demand.model} may not use {', '.join(wrong)}")
        elif _key(row) in problem.forbidden:
            faults.append(f"{name}: the template may not be used there")
        elif not _is_whole(row.instances) or row.instances < 1:
            faults.append(f"{name}: {row.instances} instances is not a whole number above 0")
        else:
            faults.extend(_amount_faults(problem, row, templates[row.workload_id, row.template_id], name))
    for (name, workload_id), times in Counter((_name(r), r.workload_id) for r in rows).items():
        if times > 1:
            faults.append(f"{name}, of {workload_id}: {times} rows")
    return faults


def _name(row: DecisionRow) -> str:
    market = "" if row.market is Market.ON_DEMAND else f" ({row.market})"
    return f"{row.template_id} in {row.region}{market}"


def place(region: str, market: Market) -> str:
    """How the problem's tables call a market in a region."""
    return region if market is Market.ON_DEMAND else f"{region} {market.value}"


def _key(row: DecisionRow) -> tuple[str, str]:
    return place(row.region, row.market), row.template_id


def pool_of(problem: AllocationProblem, region: str, market: Market) -> int | None:
    """The row of the problem's tables that a market in a region has; None where it has none."""
    found = [p for p, pool in enumerate(problem.pools) if (pool.region, pool.market) == (region, market)]
    return found[0] if found else None


def _pool(problem: AllocationProblem, row: DecisionRow) -> int:
    found = pool_of(problem, row.region, row.market)
    assert found is not None, "rows are checked first"
    return found


def _wrong_configs(demand: ModelDemand, template: _Template) -> list[str]:
    """Configurations of the template that the model may not use."""
    pinned = demand.node_configs
    return sorted(c for c in template.nodes if c in demand.excluded or (pinned is not None and c not in pinned))


def _amount_faults(problem: AllocationProblem, row: DecisionRow, template: _Template, name: str) -> list[str]:
    faults = []
    running = problem.running.get(_key(row), 0)
    new = max(row.instances - running, 0)
    if not _is_whole(row.new_instances) or row.new_instances != new:
        faults.append(f"{name}: {row.new_instances} new instances, {running} run of {row.instances}")
    price = _price(problem, row, template)
    if math.isnan(price):
        faults.append(f"{name}: the region does not sell all of its nodes")
    elif not close(row.cost_usd_per_h, row.instances * price):
        faults.append(f"{name}: costs {row.instances * price} USD/h, not {row.cost_usd_per_h}")
    return faults


def _price(problem: AllocationProblem, row: DecisionRow, template: _Template) -> float:
    """USD/h of one instance; NaN where a node is not sold."""
    prices = problem.price_usd_per_h[_pool(problem, row)]
    return math.fsum(count * float(prices[problem.node_configs.index(c)]) for c, count in template.nodes.items())


def capacity_faults(
    problem: AllocationProblem, rows: Iterable[DecisionRow], templates: dict[tuple[str, str], _Template]
) -> list[str]:
    """Pools whose nodes of a configuration are used beyond capacity."""
    faults = []
    names = [place(pool.region, pool.market) for pool in problem.pools]
    for (pool_name, config), used in sorted(nodes_used(rows, templates).items()):
        have = int(problem.capacity_nodes[names.index(pool_name), problem.node_configs.index(config)])
        if used > have:
            faults.append(f"{used} nodes {config} in {pool_name}, {have} can be had")
    return faults


def quota_faults(
    problem: AllocationProblem, rows: Iterable[DecisionRow], templates: dict[tuple[str, str], _Template]
) -> list[str]:
    """Quotas over several configurations that the nodes used exceed together."""
    used = nodes_used(rows, templates)
    faults = []
    for quota in problem.quotas:
        taken = quota_taken(quota, used)
        if taken > quota.limit:
            faults.append(f"quota {quota.name}: {taken} used, {quota.limit} allowed")
    return faults


def nodes_used(rows: Iterable[DecisionRow], templates: dict[tuple[str, str], _Template]) -> dict[tuple[str, str], int]:
    """Nodes used by (pool name, configuration)."""
    used: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        for config, count in templates[row.workload_id, row.template_id].nodes.items():
            used[place(row.region, row.market), config] += row.instances * count
    return used


def quota_taken(quota: SharedQuota, used: Mapping[tuple[str, str], int]) -> int:
    """Units of a quota that rented nodes take, on demand and spot alike."""
    places = (place(quota.region, Market.ON_DEMAND), place(quota.region, Market.SPOT))
    return sum(units * used.get((where, config), 0) for config, units in quota.units.items() for where in places)


def served_req_per_s(
    problem: AllocationProblem,
    demand: ModelDemand,
    rows: Iterable[DecisionRow],
    templates: dict[tuple[str, str], _Template],
    moves: Sequence[MoveRow] = (),
) -> tuple[float, int]:
    """What the rows serve of a model by its rules: req/s, its phases together in each region but for what ``moves``; and in how
    many regions (where KV may cross them: by the phase that is in fewest)."""
    here: dict[tuple[str, str], list[tuple[int, Market, float]]] = defaultdict(list)
    for row in rows:
        here[row.region, row.workload_id].append((row.instances, row.market, delivered(problem, row, templates)))
    counted = {(r, w): counted_req_per_s(demand, here[r, w]) for r in demand.regions for w in demand.workload_ids}
    side = sides(problem, demand)
    if side is None:
        per_region = [min(counted[r, w] for w in demand.workload_ids) for r in demand.regions]
        return math.fsum(per_region), sum(q > 0 for q in per_region)
    own = [move for move in moves if move.model == demand.model]
    total, regions = math.fsum(move.req_per_s for move in own), {w: 0 for w in demand.workload_ids}
    for r in demand.regions:
        sent = math.fsum(move.req_per_s for move in own if move.source == r)
        taken = math.fsum(move.req_per_s for move in own if move.target == r)
        spare = counted[r, side[0]] - sent, counted[r, side[1]] - taken
        if min(spare) < -TOLERANCE * demand.planned_req_per_s:
            return 0.0, 0  # more moves than is prefilled or decoded there: nothing of it is a plan
        total += max(0.0, min(spare))
        for w in demand.workload_ids:
            regions[w] += counted[r, w] > 0
    return total, min(regions.values())


def counted_req_per_s(demand: ModelDemand, rows: Sequence[tuple[int, Market, float]]) -> float:
    """What a phase in a region counts as serving by the model's rules, given its rows: (instances, market, req/s of one)."""
    if sum(instances for instances, _, _ in rows) < max(1, demand.min_replicas):
        return 0.0
    total = math.fsum(instances * each for instances, _, each in rows)
    counted = total
    if demand.survives_loss:
        largest = max(each for instances, _, each in rows if instances)
        counted = 0.0 if close(total, largest, largest) else total - largest
    if demand.max_spot_share < 1:
        firm = math.fsum(instances * each for instances, market, each in rows if market is not Market.SPOT)
        counted = min(counted, firm / (1 - demand.max_spot_share))
    return counted


def delivered(problem: AllocationProblem, row: DecisionRow, templates: dict[tuple[str, str], _Template]) -> float:
    """Planned req/s of one instance, less the time it is down for interruptions: any node's stops it."""
    template = templates[row.workload_id, row.template_id]
    if problem.outage is None:
        return template.req_per_s
    down = problem.outage[_pool(problem, row)]
    lost = math.fsum(n * float(down[problem.node_configs.index(c)]) for c, n in template.nodes.items())
    return template.req_per_s / (1 + lost)


def demand_faults(
    problem: AllocationProblem,
    rows: Sequence[DecisionRow],
    totals: Totals,
    templates: dict[tuple[str, str], _Template],
    moves: Sequence[MoveRow] = (),
) -> list[str]:
    """Demand, co-location, minimum regions, released models, and the stated common share theta."""
    faults, shares = [], []
    short = totals.status is SolveStatus.SHORTFALL
    for demand in problem.demands:
        own = [row for row in rows if row.workload_id in demand.workload_ids]
        if demand.planned_req_per_s == 0:
            if own:
                faults.append(f"{demand.model} has no demand but {sum(r.instances for r in own)} instances")
            continue
        served, regions = served_req_per_s(problem, demand, own, templates, moves)
        shares.append(min(served / demand.planned_req_per_s, 1.0))
        want = totals.theta if short else 1.0
        if shares[-1] < want - TOLERANCE:
            faults.append(
                f"{demand.model}: {served:.6g} req/s served with its phases together, "
                f"{want * demand.planned_req_per_s:.6g} wanted"
            )
        if not short and regions < demand.min_regions:
            faults.append(f"{demand.model}: served from {regions} regions, {demand.min_regions} wanted")
    theta = min(shares, default=1.0)
    if not close(totals.theta, theta, 1.0):
        faults.append(f"theta is stated as {totals.theta}, the least served share is {theta}")
    if short and theta >= 1 - TOLERANCE and not _regions_missing(problem, rows, templates, moves):
        faults.append("status shortfall, but nothing is missing")
    return faults


def _regions_missing(
    problem: AllocationProblem,
    rows: Sequence[DecisionRow],
    templates: dict[tuple[str, str], _Template],
    moves: Sequence[MoveRow],
) -> bool:
    for demand in problem.demands:
        own = [row for row in rows if row.workload_id in demand.workload_ids]
        regions = served_req_per_s(problem, demand, own, templates, moves)[1]
        if demand.planned_req_per_s > 0 and regions < demand.min_regions:
            return True
    return False


def cost_faults(
    problem: AllocationProblem, rows: Sequence[DecisionRow], totals: Totals, moves: Sequence[MoveRow] = ()
) -> list[str]:
    """Rent with what KV transfers cost, start-up charge and budget."""
    faults = []
    egress = math.fsum(move.usd_per_h for move in moves)
    rent = math.fsum(row.cost_usd_per_h for row in rows) + egress
    if not close(totals.egress_usd_per_h, egress):
        faults.append(f"moving KV costs {egress} USD/h, stated as {totals.egress_usd_per_h}")
    if not close(totals.cost_usd_per_h, rent):
        faults.append(f"rent is {rent} USD/h, stated as {totals.cost_usd_per_h}")
    charge = math.fsum(row.cost_usd_per_h / row.instances * row.new_instances * problem.init_share for row in rows)
    if not close(totals.init_usd, charge):
        faults.append(f"start-up charge is {charge} USD, stated as {totals.init_usd}")
    budget = problem.budget_usd_per_h
    if budget is not None and rent > budget * (1 + TOLERANCE) + TOLERANCE:
        faults.append(f"rent {rent} USD/h exceeds the budget of {budget}")
    return faults
