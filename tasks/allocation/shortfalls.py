"""What a shortage lacks: missing rate per workload, what binds, and the cheapest extra supply that would close it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pulp
from numpy.typing import NDArray

from catalogs.types import Market
from tasks.allocation.columns import RATE_TOLERANCE, Columns, make_columns, usable
from tasks.allocation.formulation import Formulation, Goal, formulate
from tasks.allocation.highs import MipStatus, solve_mip
from tasks.allocation.in_use import served, used_nodes
from tasks.allocation.moves import egress_usd, links_left
from tasks.allocation.outcome import served_by_region
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    ModelDemand,
    SolveLimits,
)
from tasks.allocation.work import looks

# Extra rent counts a little, so that of two supplies at equal extra price the one with the cheaper plan is named.
_RENT_WEIGHT = 1e-3
_NOTHING_MISSING = 1e-6  # as the checker sees it
_MORE = 1e-3  # a rule whose lifting serves less than this more does not bind
# More nodes than any demand takes, and far from overflow.
_AMPLE_NODES = 1 << 40
_GAP, _WORK, _TIME_S = 1e-3, 300, 60.0
_ANOTHER_SPLIT = "another split of the present supply"
_NO_SUPPLY = "no extra supply of what its regions sell would close it"


@dataclass(frozen=True, slots=True)
class ExtraNodes:
    """Nodes beyond capacity of one configuration in one region (its name with the market, as pools have), and their cost."""

    region: str
    node_config: str
    nodes: int
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class BindingSupply:
    """A configuration that the workload could use in a region (as pools are named), all of it in use."""

    region: str
    node_config: str
    nodes: int


@dataclass(frozen=True, slots=True)
class ExtraQuota:
    """Units (vCPU) of a quota over several configurations beyond its limit."""

    quota: str
    units: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A workload's missing tokens/s (requests the plan does not serve x tokens per request) and what would close it.

    ``extra``: cheapest extra nodes for its model while the plan's other models keep theirs; ``extra_rent_usd_per_h`` is
    what the plan costs more with them (KV that crosses regions included), ``extra_quotas`` and ``extra_budget_usd_per_h``
    what quotas and the budget would have to grow by, if they do. All empty with ``reason`` where nothing sold would close
    it, or nothing is needed.
    ``quotas`` are the quotas over several configurations that are spent, as texts.
    ``rules``: those of the model without each of which the same supply would serve more of it.
    ``regions`` is (served from, wanted) where a model that wants several regions is in fewer, else None.
    """

    workload_id: str
    missing_tok_per_s: float
    binding: tuple[BindingSupply, ...]
    quotas: tuple[str, ...]
    regions: tuple[int, int] | None
    rules: tuple[str, ...]
    extra: tuple[ExtraNodes, ...]
    extra_quotas: tuple[ExtraQuota, ...]
    extra_rent_usd_per_h: float
    extra_budget_usd_per_h: float
    reason: str

    @property
    def budget_binds(self) -> bool:
        """Whether the budget would have to grow."""
        return self.extra_budget_usd_per_h > 0

    def binding_text(self) -> str:
        """For people: ``L40Sx4 in aws/us-east-2 (8 of 8); budget``."""
        parts = [f"{b.node_config} in {b.region} ({b.nodes} of {b.nodes})" for b in self.binding]
        parts += self.quotas
        if self.budget_binds:
            parts.append("budget")
        if self.regions:
            parts.append(f"regions ({self.regions[0]} of {self.regions[1]})")
        parts += [f"rule {rule}" for rule in self.rules]
        return "; ".join(parts) or "no single configuration"

    def extra_text(self) -> str:
        """For people: ``+2 L40Sx4 in aws/us-east-2 (+7.20 USD/h); quota G vcpu in aws/us-east-2 +96``."""
        if self.reason:
            return self.reason
        parts = [f"+{e.nodes} {e.node_config} in {e.region} (+{e.usd_per_h:.2f} USD/h)" for e in self.extra]
        parts += [f"quota {q.quota} +{q.units}" for q in self.extra_quotas]
        if self.budget_binds:
            parts.append(f"budget +{self.extra_budget_usd_per_h:.2f} USD/h")
        return "; ".join(parts) or _ANOTHER_SPLIT


def explain_shortfalls(
    problem: AllocationProblem, result: AllocationResult, limits: SolveLimits
) -> tuple[Shortfall, ...]:
    """One row per workload of every model not served in full or from too few regions; empty where nothing is missing.

    Solves one small ILP per short model (see :func:`_cheapest_extra`). A model that idle nodes could serve alone needs none:
    it is served less for the others' sake, and they are named.
    """
    used = used_nodes(problem, result.instances)
    rent = result.cost_usd_per_h
    rows: list[Shortfall] = []
    for demand in problem.demands:
        if demand.planned_req_per_s <= 0:
            continue
        got, regions = served(problem, result, demand)
        missing = max(0.0, demand.planned_req_per_s - got)
        is_short = missing > demand.planned_req_per_s * _NOTHING_MISSING
        if not is_short and regions >= demand.min_regions:
            continue
        rules = _binding_rules(problem, result, demand, got) if is_short else ()
        extra, extra_quotas, extra_rent, reason = _cheapest_extra(problem, result, demand, used, limits)
        budget = math.inf if problem.budget_usd_per_h is None or reason else problem.budget_usd_per_h
        extra_budget = rent + extra_rent - budget
        rows.extend(
            Shortfall(
                workload_id=candidates.workload_id,
                missing_tok_per_s=(missing if is_short else 0.0) * candidates.tokens_per_request,
                binding=_binding(problem, candidates.counts[usable(problem, candidates, demand)], demand, used),
                quotas=_binding_quotas(problem, candidates.counts[usable(problem, candidates, demand)], demand, used),
                regions=(regions, demand.min_regions) if regions < demand.min_regions > 1 else None,
                rules=rules,
                extra=extra,
                extra_quotas=extra_quotas,
                extra_rent_usd_per_h=extra_rent,
                extra_budget_usd_per_h=extra_budget if extra_budget > budget * RATE_TOLERANCE else 0.0,
                reason=reason,
            )
            for candidates in problem.candidates
            if candidates.workload_id in demand.workload_ids
        )
    return tuple(_with_cause(problem, result, row, rows) for row in rows)


def _binding_rules(
    problem: AllocationProblem, result: AllocationResult, demand: ModelDemand, got: float
) -> tuple[str, ...]:
    """Rules of the model's own without each of which it would be served more than ``got`` req/s, all other models keeping
    what they have: a plan of that kind is at hand."""
    from tasks.allocation.last_resort import some_plan
    from tasks.allocation.without import alone, lifting

    is_on = {
        "n_plus_one": demand.survives_loss,
        "min_replicas": demand.min_replicas > 1,
        "max_spot_share": demand.max_spot_share < 1 and not all(pool.is_firm for pool in problem.pools),
        "node_configs": bool(demand.excluded) or demand.node_configs is not None,
    }
    others = [row for row in result.instances if row.workload_id not in demand.workload_ids]
    binding = []
    for rule in (rule for rule, is_there in is_on.items() if is_there):
        freer = lifting(alone(problem, others, demand, result.transfers), rule)
        columns = make_columns(freer)
        counts = some_plan(freer, columns, is_common=True)
        share = float(served_by_region(freer, columns, counts, freer.demands[0]).sum()) / demand.planned_req_per_s
        if min(share, 1.0) > got / demand.planned_req_per_s + _MORE:
            binding.append(rule)
    return tuple(binding)


def _with_cause(
    problem: AllocationProblem, result: AllocationResult, row: Shortfall, rows: Sequence[Shortfall]
) -> Shortfall:
    """``row`` with the reason why it needs nothing by itself, where that is so."""
    if _needs_more(row):
        return row
    short = {r.workload_id for r in rows if _needs_more(r)}
    holding = sorted(d.model for d in problem.demands if short & set(d.workload_ids))
    mine = next(d.model for d in problem.demands if row.workload_id in d.workload_ids)
    others = sorted({d.model for d in problem.demands for r in rows if r.workload_id in d.workload_ids} - {mine})
    if result.theta_upper >= 1 - _NOTHING_MISSING or not (holding or others):
        return replace(row, reason=_ANOTHER_SPLIT)  # not proven impossible, or a solver's tolerance
    if holding:
        cause = f"the common share is held down by {', '.join(holding)}"
    else:
        cause = f"it does for {' or '.join(others)} as well, but not for all at once"
    return replace(row, reason=f"none for this model alone, what is idle would serve it: {cause}")


def _needs_more(row: Shortfall) -> bool:
    """Whether more supply, quota or budget is what the row lacks, or nothing helps."""
    return bool(row.extra or row.extra_quotas or row.reason or row.budget_binds)


def _binding(
    problem: AllocationProblem, counts: NDArray[np.int16], demand: ModelDemand, used: NDArray[np.int64]
) -> tuple[BindingSupply, ...]:
    """Configurations some template of the workload uses, sold in an allowed region, with every node taken or none there."""
    useful = np.asarray((counts > 0).any(axis=0))
    rows = []
    for p in (p for region in sorted(demand.regions) for p in problem.pools_in(region)):
        for k, config in enumerate(problem.node_configs):
            full = used[p, k] >= problem.capacity_nodes[p, k]
            if useful[k] and full and not np.isnan(problem.price_usd_per_h[p, k]):
                rows.append(BindingSupply(problem.pools[p].name, config, int(problem.capacity_nodes[p, k])))
    return tuple(rows)


def _binding_quotas(
    problem: AllocationProblem, counts: NDArray[np.int16], demand: ModelDemand, used: NDArray[np.int64]
) -> tuple[str, ...]:
    """Quotas of allowed regions with too little left for one more node of a configuration the workload can use."""
    useful = (counts > 0).any(axis=0)
    texts = []
    for quota in problem.quotas:
        units = problem.quota_units(quota)
        taken = int((used * units).sum())
        if quota.region in demand.regions and (units[:, useful] > quota.limit - taken).any():
            texts.append(f"quota {quota.name} ({taken} of {quota.limit})")
    return tuple(texts)


def _cheapest_extra(
    problem: AllocationProblem,
    result: AllocationResult,
    demand: ModelDemand,
    used: NDArray[np.int64],
    limits: SolveLimits,
) -> tuple[tuple[ExtraNodes, ...], tuple[ExtraQuota, ...], float, str]:
    """Extra nodes and units of quotas that let one model be served in full while all others keep their nodes.

    Notation: e_rc >= 0 whole, extra nodes; n_i instances of the model; x_l share of it whose KV takes link l, at f_l USD/h;
    L_rc capacity left by the other models. Minimise sum p_rc e_rc + 0.001 (sum p_i n_i + sum f_l x_l) subject to
    sum U_ic n_i - e_rc <= L_rc and the model's demand, phase, region and bandwidth rows of the allocation. The budget and
    quotas are left out: what they would have to grow by is reported.
    """
    own = tuple(row for row in result.instances if row.workload_id in demand.workload_ids)
    left = problem.capacity_nodes - (used - used_nodes(problem, own))
    can_grow = ~np.isnan(problem.price_usd_per_h)
    can_grow &= np.array([pool.market is not Market.OWNED for pool in problem.pools])[:, None]  # one owns what one owns
    ample = np.where(can_grow, _AMPLE_NODES, np.maximum(left, 0))
    alone = replace(
        problem,
        capacity_nodes=ample,
        candidates=tuple(c for c in problem.candidates if c.workload_id in demand.workload_ids),
        demands=(demand,),
        init_share=0.0,
        running={},
        budget_usd_per_h=None,
        quotas=(),
        links=links_left(problem, [row for row in result.transfers if row.model != demand.model]),
    )
    columns = make_columns(alone)
    if len(columns) == 0:
        return (), (), 0.0, _NO_SUPPLY
    enough = _enough_nodes(alone, columns)
    form = formulate(replace(alone, capacity_nodes=enough), columns, Goal.COST)
    extra = _extra_nodes(form, alone, columns, left, enough)
    outcome = solve_mip(
        form.problem,
        replace(limits, gap=max(limits.gap, _GAP)),
        time_s=min(limits.time_s, _TIME_S),
        most_looks=looks(len(columns), _WORK),
    )
    if outcome.values is None:
        return (
            (),
            (),
            0.0,
            _NO_SUPPLY if outcome.status is MipStatus.INFEASIBLE else "the cheapest extra supply was not found in time",
        )
    many = {key: int(outcome.values[variable.name]) for key, variable in extra.items()}
    nodes = tuple(
        ExtraNodes(problem.pools[r].name, problem.node_configs[k], n, n * float(problem.price_usd_per_h[r, k]))
        for (r, k), n in sorted(many.items())
        if n > 0
    )
    instances = [outcome.values[variable.name] for variable in form.instances]
    rent = math.fsum(n * p for n, p in zip(instances, columns.price_usd_per_h.tolist(), strict=True))
    then = used - used_nodes(problem, own)
    for p, counts, n in zip(columns.pool.tolist(), columns.counts, instances, strict=True):
        then[p] += counts.astype(np.int64) * round(n)
    beyond = [(q.name, int((then * problem.quota_units(q)).sum()) - q.limit) for q in problem.quotas]
    quotas = tuple(ExtraQuota(name, units) for name, units in beyond if units > 0)
    now = math.fsum(row.cost_usd_per_h for row in own)
    now += math.fsum(row.usd_per_h for row in result.transfers if row.model == demand.model)
    return nodes, quotas, rent + egress_usd(alone, form.moved(outcome.values)) - now, ""


def _enough_nodes(problem: AllocationProblem, columns: Columns) -> NDArray[np.int64]:
    """Nodes [pool, configuration] that no least-cost answer exceeds, whatever the demand.

    Without its last instance a workload serves less than the demand D, so sum n_i a_i < 1 + max a_i <= 2 with a_i the
    share of D that one serves; hence sum U_ic n_i <= 2 max_i U_ic / a_i, and U_ic / a_i <= U_ic max_instances_i. One that
    must survive a loss has one instance more, one of a least count those.
    """
    enough = np.zeros(problem.capacity_nodes.shape, dtype=np.int64)
    for w in np.unique(columns.workload):
        for p in np.unique(columns.pool):
            here = (columns.workload == w) & (columns.pool == p)
            most = columns.counts[here].astype(np.int64) * columns.max_instances[here, None]
            enough[p] += 2 * most.max(axis=0, initial=0)
    return enough


def _extra_nodes(
    form: Formulation,
    problem: AllocationProblem,
    columns: Columns,
    left: NDArray[np.int64],
    enough: NDArray[np.int64],
) -> dict[tuple[int, int], pulp.LpVariable]:
    """Add e_rc, its rows and the objective of :func:`_cheapest_extra`; returns e by (region, configuration) index."""
    objective: list[tuple[pulp.LpVariable, float]] = [
        (n, _RENT_WEIGHT * float(price)) for n, price in zip(form.instances, columns.price_usd_per_h, strict=True)
    ]
    objective += [(x, _RENT_WEIGHT * egress_usd(problem, {key: 1.0})) for key, x in form.moves.items()]
    extra: dict[tuple[int, int], pulp.LpVariable] = {}
    for r, pool in enumerate(problem.pools):
        here = np.flatnonzero(columns.pool == r)
        for k in range(len(problem.node_configs)):
            using = here[columns.counts[here, k] > 0]
            if len(using) == 0:
                continue
            most = 0 if pool.market is Market.OWNED else int(enough[r, k] + max(0, -left[r, k]))
            extra[r, k] = pulp.LpVariable(f"e{r}_{k}", 0, most, cat=pulp.LpInteger)
            used = pulp.LpAffineExpression([(form.instances[i], int(columns.counts[i, k])) for i in using])
            form.problem += used - extra[r, k] <= int(left[r, k]), f"extra{r}_{k}"
            objective.append((extra[r, k], float(problem.price_usd_per_h[r, k])))
    form.problem.setObjective(pulp.LpAffineExpression(objective))
    return extra
