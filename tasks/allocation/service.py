"""The part of the paper's online ILP that is of one model: what every region serves of it, under its rules.

Notation as in :func:`tasks.allocation.formulation.formulate`: q_mr, x_ml, b_mr or b_wr, L_wr and their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulp

from tasks.allocation.columns import Columns
from tasks.allocation.moves import links_of, phases_of
from tasks.allocation.types import AllocationProblem, ModelDemand

_LEAST_SERVED = 1e-3  # of the demand, of a model that is in any region at all
_At = tuple[int, int]  # (workload, region) by index


@dataclass(frozen=True, slots=True)
class Service:
    """Variables of a model: parts of its demand ``served`` (in one region, or over a link), and ``present``, whether it is in a
    region at all: one list for all phases where they must be together, else one for each."""

    served: list[pulp.LpVariable]
    present: list[list[pulp.LpVariable]]


def build_service(
    model: pulp.LpProblem,
    problem: AllocationProblem,
    columns: Columns,
    n: list[pulp.LpVariable],
    m: int,
    demand: ModelDemand,
    by_service: dict[_At, list[int]],
    moves: dict[tuple[str, int], pulp.LpVariable],
) -> Service:
    """The shares q_mr and x_ml of a model (the latter also into ``moves``), each held down by the phases that serve it and by
    the model's rules there, and the b_mr or b_wr, where its rules need them. ``by_service``: columns by (workload, region)."""
    ids = [candidates.workload_id for candidates in problem.candidates]
    workloads = [ids.index(workload_id) for workload_id in demand.workload_ids]
    regions = {region: problem.regions.index(region) for region in sorted(demand.regions)}
    own = {(w, r): by_service[w, r] for w in workloads for r in regions.values() if by_service.get((w, r))}
    together = [r for r in regions.values() if all((w, r) in own for w in workloads)]
    served = [pulp.LpVariable(f"q{m}_{r}", 0, 1) for r in together]
    load = {(w, r): [q for q, at in zip(served, together, strict=True) if at == r] for w, r in own}
    for at, source, target in _crossings(problem, demand, ids, regions):
        if source in own and target in own:
            moves[demand.model, at] = x = pulp.LpVariable(f"x{m}_{at}", 0, 1)
            served.append(x)
            load[source].append(x)
            load[target].append(x)
    groups: list[list[tuple[_At, ...]]] = []
    if demand.min_replicas > 1 or demand.min_regions > 1:
        groups = [[tuple((w, r) for w in workloads) for r in together]]
        if links_of(problem, demand):
            groups = [[((w, r),) for r in regions.values() if (w, r) in own] for w in workloads]
    present = [[_presence(model, problem, columns, n, demand, own, load, m, at) for at in row] for row in groups]
    if links_of(problem, demand):  # a phase by itself serves nobody: without service it is nowhere
        for number, b in enumerate(b for row in present for b in row):
            terms = [(b, -_LEAST_SERVED), *((part, 1.0) for part in served)]
            model += pulp.LpAffineExpression(terms) >= 0, f"serves_{m}_{number}"
    for (w, r), mine in own.items():
        if load[w, r]:
            _phase(model, problem, columns, n, demand, mine, load[w, r], f"{m}_{r}_{w}")
    return Service(served, present)


def _crossings(
    problem: AllocationProblem, demand: ModelDemand, ids: list[str], regions: dict[str, int]
) -> list[tuple[int, _At, _At]]:
    """The links that a model's KV may take: index, and where prefill sends and decode takes it."""
    phases = phases_of(problem, demand)
    if phases is None:
        return []
    prefill, decode = ids.index(phases[0]), ids.index(phases[1])
    ends = [(at, problem.links[at]) for at in links_of(problem, demand)]
    return [(at, (prefill, regions[link.source]), (decode, regions[link.target])) for at, link in ends]


def _phase(
    model: pulp.LpProblem,
    problem: AllocationProblem,
    columns: Columns,
    n: list[pulp.LpVariable],
    demand: ModelDemand,
    mine: list[int],
    load: list[pulp.LpVariable],
    name: str,
) -> None:
    """What columns ``mine`` of a phase in a region must serve, and what of it on firm nodes."""
    is_firm = columns.is_firm(problem)
    terms = [(n[i], float(columns.share[i])) for i in mine]
    if demand.survives_loss:
        terms.append((_largest(model, columns, n, mine, name), -1.0))
    model += pulp.LpAffineExpression([*terms, *((part, -1.0) for part in load)]) >= 0, f"phase_{name}"
    if demand.max_spot_share < 1:
        supply = [(n[i], float(columns.share[i])) for i in mine if is_firm[i]]
        supply += [(part, demand.max_spot_share - 1) for part in load]
        model += pulp.LpAffineExpression(supply) >= 0, f"firm_{name}"


def _presence(
    model: pulp.LpProblem,
    problem: AllocationProblem,
    columns: Columns,
    n: list[pulp.LpVariable],
    demand: ModelDemand,
    own: dict[_At, list[int]],
    load: dict[_At, list[pulp.LpVariable]],
    m: int,
    at: tuple[_At, ...],
) -> pulp.LpVariable:
    """Whether the phases ``at`` (of one region) are there: b, and its rows. Each then has so many instances as the rules ask
    for; without it they serve nothing, where a least count makes that matter."""
    name = f"{m}_{at[0][1]}" if len(at) == len(demand.workload_ids) else f"{m}_{at[0][1]}_{at[0][0]}"
    is_firm = columns.is_firm(problem)
    least = max(demand.min_replicas, 1 + int(demand.survives_loss))
    b = pulp.LpVariable(f"b{name}", 0, 1, cat=pulp.LpInteger)
    if demand.min_replicas > 1:
        terms = [(b, 1.0), *((part, -1.0) for part in load[at[0]])]
        model += pulp.LpAffineExpression(terms) >= 0, f"replicas_{name}"
    for w, r in at:
        mine = own[w, r]
        model += pulp.LpAffineExpression([(n[i], 1) for i in mine]) - least * b >= 0, f"present_{m}_{r}_{w}"
        if demand.max_spot_share < 1:
            firm = [i for i in mine if is_firm[i]]
            model += pulp.LpAffineExpression([(n[i], 1) for i in firm]) - b >= 0, f"present_firm_{m}_{r}_{w}"
    return b


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
