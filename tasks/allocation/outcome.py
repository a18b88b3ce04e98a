"""From whole instance counts to the answer that is handed out: trimming, served shares, costs, gap."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import RATE_TOLERANCE, Columns
from tasks.allocation.moves import NOTHING_MOVES, Moved, egress_usd, links_of, phases_of, transfers
from tasks.allocation.types import AllocationProblem, AllocationResult, Instance, ModelDemand, SolveStatus

# Below this relative gap an answer is called optimal: what is left is the arithmetic of floats.
OPTIMAL_GAP = 1e-6
_MOVE_TOLERANCE = 5e-7  # of the demand: what rows of an ILP may be missed by, and less than the check allows


def served_by_region(
    problem: AllocationProblem,
    columns: Columns,
    counts: NDArray[np.int64],
    demand: ModelDemand,
    moved: Moved = NOTHING_MOVES,
) -> NDArray[np.float64]:
    """Planned req/s that each region serves of a model by its rules (see :class:`ModelDemand`), [regions]; requests whose KV
    crosses regions count where they decode. Nothing at all where more moves than a phase serves."""
    counted = counted_by_phase(problem, columns, counts, demand)
    taken = {at: share for (model, at), share in moved.items() if model == demand.model and share > 0}
    phases = phases_of(problem, demand)
    if not taken or phases is None:
        return np.asarray(np.min([counted[w] for w in demand.workload_ids], axis=0))
    leaves, comes = np.zeros(len(problem.regions)), np.zeros(len(problem.regions))
    for at, share in taken.items():
        link = problem.links[at]
        leaves[problem.regions.index(link.source)] += share * demand.planned_req_per_s
        comes[problem.regions.index(link.target)] += share * demand.planned_req_per_s
    together = np.minimum(counted[phases[0]] - leaves, counted[phases[1]] - comes)
    if (together < -_MOVE_TOLERANCE * demand.planned_req_per_s).any():
        return np.zeros(len(problem.regions))
    return np.asarray(np.maximum(together, 0.0) + comes)


def counted_by_phase(
    problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], demand: ModelDemand
) -> dict[str, NDArray[np.float64]]:
    """Planned req/s that each phase of a model counts as serving in each region, by workload id, [regions]."""
    ids = [candidates.workload_id for candidates in problem.candidates]
    used = np.flatnonzero(counts > 0)  # few of perhaps millions
    columns, counts = columns.select(used), counts[used]
    is_firm = columns.is_firm(problem)
    found = {}
    for workload_id in demand.workload_ids:
        mine = columns.workload == ids.index(workload_id)
        where, rate = columns.region[mine], columns.rate_req_per_s[mine]
        total = _by_region(problem, where, rate * counts[mine])
        least = total
        if demand.survives_loss:
            largest = np.zeros(len(problem.regions))
            np.maximum.at(largest, where, rate)
            least = np.where(total <= largest * (1 + RATE_TOLERANCE), 0.0, total - largest)
        if demand.max_spot_share < 1:
            firm = _by_region(problem, where, rate * counts[mine] * is_firm[mine])
            least = np.minimum(least, firm / (1 - demand.max_spot_share))
        if demand.min_replicas > 1:
            instances = _by_region(problem, where, counts[mine].astype(np.float64))
            least = np.where(instances < demand.min_replicas, 0.0, least)
        found[workload_id] = least
    return found


def regions_of(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], demand: ModelDemand) -> int:
    """From how many regions a model is served; where its KV may cross them, in how many the phase in fewest is."""
    counted = counted_by_phase(problem, columns, counts, demand)
    if links_of(problem, demand):
        return min(int((rate > 0).sum()) for rate in counted.values())
    return int((np.min([counted[w] for w in demand.workload_ids], axis=0) > 0).sum())


def _by_region(
    problem: AllocationProblem, region: NDArray[np.int32], amount: NDArray[np.float64]
) -> NDArray[np.float64]:
    total = np.zeros(len(problem.regions))
    np.add.at(total, region, amount)
    return total


def served_shares(
    problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], moved: Moved = NOTHING_MOVES
) -> dict[str, float]:
    """Share of its demand each active model is served, its phases together per region but for what moves; at most 1."""
    return {
        demand.model: min(
            1.0, float(served_by_region(problem, columns, counts, demand, moved).sum()) / demand.planned_req_per_s
        )
        for demand in problem.demands
        if demand.planned_req_per_s > 0
    }


def regions_missing(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64]) -> int:
    """How many of the regions that models want at least, where they want several, serve nothing of them, in all."""
    return sum(
        _missing_of(problem, columns, counts, demand) for demand in problem.demands if demand.planned_req_per_s > 0
    )


def _missing_of(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], demand: ModelDemand) -> int:
    if demand.min_regions <= 1:
        return 0
    return max(0, demand.min_regions - regions_of(problem, columns, counts, demand))


def weighted_shortage(
    problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], moved: Moved = NOTHING_MOVES
) -> float:
    """The sum of weights x missing share; a missing region of the least number counts as that part of a share."""
    shares, total = served_shares(problem, columns, counts, moved), 0.0
    for demand in problem.demands:
        if demand.model in shares:
            missing = _missing_of(problem, columns, counts, demand) / demand.min_regions
            total += demand.weight * (1.0 - shares[demand.model] + missing)
    return total


def trim(
    problem: AllocationProblem,
    columns: Columns,
    counts: NDArray[np.int64],
    needed: dict[str, float],
    moved: Moved = NOTHING_MOVES,
) -> NDArray[np.int64]:
    """``counts`` without instances that nothing needs, dearest first (later column first among equals).

    ``needed`` is the share of its demand each model must keep. An optimum has none to spare unless nodes are free; an
    answer within the gap may. The number of regions a model is whole in is kept up to its ``min_regions``.
    """
    whole, used = counts, np.flatnonzero(counts > 0)
    columns, counts = columns.select(used), counts[used]
    for demand in problem.demands:
        ids = {w for w, c in enumerate(problem.candidates) if c.workload_id in demand.workload_ids}
        mine = [i for i in np.flatnonzero(counts > 0) if int(columns.workload[i]) in ids]
        goal = needed.get(demand.model, 0.0) * demand.planned_req_per_s * (1 - RATE_TOLERANCE)
        before = regions_of(problem, columns, counts, demand)
        regions = min(before, demand.min_regions) if goal > 0 else 0
        for i in sorted(mine, key=lambda i: (-columns.price_usd_per_h[i], -i)):
            while counts[i] > 0:
                counts[i] -= 1
                got = float(served_by_region(problem, columns, counts, demand, moved).sum())
                if got < goal or regions_of(problem, columns, counts, demand) < regions:
                    counts[i] += 1
                    break
    trimmed = np.zeros_like(whole)
    trimmed[used] = counts
    return trimmed


def start_up_usd(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64]) -> float:
    """Start-up charge of the instances beyond those that run."""
    new = np.maximum(counts - columns.running, 0)
    return float(problem.init_share * (new * columns.price_usd_per_h).sum())


def objective_usd(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64]) -> float:
    """Rent plus start-up charge."""
    return float((counts * columns.price_usd_per_h).sum()) + start_up_usd(problem, columns, counts)


def total_usd(problem: AllocationProblem, columns: Columns, counts: NDArray[np.int64], moved: Moved) -> float:
    """Rent, start-up charge and what moving KV costs."""
    return objective_usd(problem, columns, counts) + egress_usd(problem, moved)


def make_result(
    problem: AllocationProblem,
    columns: Columns,
    counts: NDArray[np.int64],
    *,
    status: SolveStatus,
    lower_bound_usd: float,
    theta: float = 1.0,
    theta_upper: float = 1.0,
    solve_s: float,
    note: str = "",
    moved: Moved = NOTHING_MOVES,
) -> AllocationResult:
    """The answer as rows and totals, recomputed from the whole counts and from what moves."""
    rows = []
    for i in np.flatnonzero(counts > 0):
        candidates = problem.candidates[columns.workload[i]]
        many, price = int(counts[i]), float(columns.price_usd_per_h[i])
        rows.append(
            Instance(
                region=problem.regions[columns.region[i]],
                template_id=candidates.template_ids[columns.template[i]],
                workload_id=candidates.workload_id,
                instances=many,
                new_instances=max(many - int(columns.running[i]), 0),
                cost_usd_per_h=many * price,
                market=problem.pools[columns.pool[i]].market,
            )
        )
    carried = transfers(problem, moved)
    egress = math.fsum(row.usd_per_h for row in carried)
    cost = math.fsum(row.cost_usd_per_h for row in rows) + egress
    init = start_up_usd(problem, columns, counts)
    objective = cost + init
    bound = min(max(lower_bound_usd, 0.0), objective)
    return AllocationResult(
        status=status,
        instances=tuple(rows),
        cost_usd_per_h=cost,
        init_usd=init,
        objective_usd=objective,
        lower_bound_usd=bound,
        gap=relative_gap(objective, bound),
        theta=theta,
        theta_upper=theta_upper,
        solve_s=solve_s,
        note=note,
        transfers=carried,
        egress_usd_per_h=egress,
    )


def relative_gap(objective: float, bound: float) -> float:
    """(objective - bound) / objective; 0 where nothing is paid."""
    return (objective - bound) / objective if objective > 0 else 0.0


def no_plan(status: SolveStatus, solve_s: float, note: str) -> AllocationResult:
    """An answer without a plan: infeasible (shortage not allowed) or a solver error. Nothing may be published from it."""
    return AllocationResult(status, (), 0.0, 0.0, math.inf, 0.0, math.inf, 0.0, 1.0, solve_s, note)
