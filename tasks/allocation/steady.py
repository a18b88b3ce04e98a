"""Hysteresis: the running decision stays unless another saves enough, or it fails.

A new plan that saves next to nothing starts machines, moves models and risks something for it; and what it saves this window
another price or demand may undo in the next. So a change is also put off until staying has cost as much as the start-ups
of the change: the rule of ski rental, by which at most twice is paid of what would have been best in hindsight (Karlin,
Manasse, Rudolph, Sleator: Competitive snoopy caching, 1988).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from catalogs.types import Market
from tasks.allocation.checker import check_result
from tasks.allocation.types import AllocationProblem, AllocationResult, Instance, Pool, SolveStatus, pool_name

Decision = Mapping[tuple[str, Market, str, str], int]
"""Instances by (region, market, template id, workload id)."""

_PROVEN = 1e-6


@dataclass(frozen=True, slots=True)
class Regret:
    """What staying costs: ``so_far_usd`` more than the best since the running decision was made, and the rent that another
    saves for ``window_h`` more, until the next run. A start takes ``init_h`` of the machine's price."""

    so_far_usd: float
    window_h: float
    init_h: float

    def covers(self, rent_usd_per_h: float, best: AllocationResult) -> bool:
        """Whether staying at a rent will have cost as much as the start-ups of changing to ``best``."""
        starts = math.fsum(row.cost_usd_per_h / row.instances * row.new_instances for row in best.instances)
        ahead_usd = (rent_usd_per_h - best.cost_usd_per_h) * self.window_h
        return self.so_far_usd + ahead_usd >= self.init_h * starts - 1e-9


def steady_choice(
    problem: AllocationProblem,
    running: Decision,
    best: AllocationResult,
    hysteresis_pct: float,
    regret: Regret | None = None,
) -> AllocationResult | None:
    """The decision ``running`` as the answer to ``problem``, if it stays; None where it must or should give way to ``best``.

    It stays if it meets all demand within every rule of today's problem (by the independent checker) and ``best``, a solver's
    answer to the same problem, saves at most ``hysteresis_pct`` % of its cost, both with the start-up charges of what is new,
    or has not saved its start-ups yet (``regret``; None = that is not asked). Its bound is that of ``best``: it holds for
    every answer.
    """
    if best.status is SolveStatus.SHORTFALL:
        return None  # then the running one falls short too
    kept = as_result(problem, running, best)
    if kept is None or check_result(problem, kept):
        return None
    saving = kept.objective_usd - best.objective_usd
    is_small = saving <= hysteresis_pct / 100 * kept.objective_usd + 1e-9
    if not is_small and (regret is None or regret.covers(kept.cost_usd_per_h, best)):
        return None
    percent = 100 * max(saving, 0.0) / kept.objective_usd if kept.objective_usd else 0.0
    why = f"at most {hysteresis_pct:g} % is not worth a change" if is_small else "and has not saved its start-ups yet"
    note = f"the plan stays: another would save {percent:.2f} %, {why}"
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
