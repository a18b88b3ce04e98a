"""Hysteresis: the running decision stays unless another saves enough, or it fails.

A new plan that saves next to nothing starts machines, moves models and risks something for it; and what it saves this window
another price or demand may undo in the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from catalogs.types import Market
from tasks.allocation.checker import check_result
from tasks.allocation.types import AllocationProblem, AllocationResult, Instance, Pool, SolveStatus, pool_name

Decision = Mapping[tuple[str, Market, str, str], int]
"""Instances by (region, market, template id, workload id)."""

_PROVEN = 1e-6


def steady_choice(
    problem: AllocationProblem, running: Decision, best: AllocationResult, hysteresis_pct: float
) -> AllocationResult | None:
    """The decision ``running`` as the answer to ``problem``, if it stays; None where it must or should give way to ``best``.

    It stays if it meets all demand within every rule of today's problem (by the independent checker) and ``best``, a solver's
    answer to the same problem, saves at most ``hysteresis_pct`` % of its cost, both with the start-up charges of what is new.
    Its bound is that of ``best``: it holds for every answer.
    """
    if best.status is SolveStatus.SHORTFALL:
        return None  # then the running one falls short too
    kept = as_result(problem, running, best)
    if kept is None or check_result(problem, kept):
        return None
    saving = kept.objective_usd - best.objective_usd
    if saving > hysteresis_pct / 100 * kept.objective_usd + 1e-9:
        return None
    percent = 100 * max(saving, 0.0) / kept.objective_usd if kept.objective_usd else 0.0
    note = f"the plan stays: another would save {percent:.2f} %, at most {hysteresis_pct:g} % is not worth a change"
    return replace(kept, note=note if saving > _PROVEN * kept.objective_usd else best.note)


def as_result(problem: AllocationProblem, running: Decision, best: AllocationResult) -> AllocationResult | None:
    """``running`` at the problem's prices and start-up charges, with the bound of ``best``; None where a template is not
    among the problem's candidates or one of its nodes is not sold in its region."""
    counts = {(c.workload_id, t): c.counts[i] for c in problem.candidates for i, t in enumerate(c.template_ids)}
    rows = []
    for (region, market, template_id, workload_id), instances in sorted(running.items()):
        nodes = counts.get((workload_id, template_id))
        if nodes is None or Pool(region, market) not in problem.pools:
            return None
        price = problem.price_usd_per_h[problem.pool_index(region, market)]
        one = math.fsum(float(price[k]) * int(n) for k, n in enumerate(nodes) if n)
        if math.isnan(one):
            return None
        new = max(instances - problem.running.get((pool_name(region, market), template_id), 0), 0)
        rows.append(Instance(region, template_id, workload_id, instances, new, instances * one, market))
    rent = math.fsum(row.cost_usd_per_h for row in rows)
    init = problem.init_share * math.fsum(row.cost_usd_per_h / row.instances * row.new_instances for row in rows)
    bound = min(best.lower_bound_usd, rent + init)
    gap = (rent + init - bound) / (rent + init) if rent + init > 0 else 0.0
    status = SolveStatus.OPTIMAL if gap <= _PROVEN else SolveStatus.GAP
    return AllocationResult(status, tuple(rows), rent, init, rent + init, bound, gap, 1.0, 1.0, best.solve_s)
