"""Checks the covers solver under every rule against the best of all plans, on small seeded instances, and fails on any fault.

    python benchmarks/rules.py                    # 600 instances, half a minute of one core
    python benchmarks/rules.py --first 5000 --instances 2000
    python benchmarks/rules.py --links --instances 2000      # KV may cross regions: some 120 of them are such

Instances have one or two models, phases and regions, spot, owned and kept nodes, outages, quotas, budgets, least regions
and replicas, N+1, spot caps, pinned configurations, shortages by both rules and empty supplies. Every plan within supply,
quotas and budget is enumerated; an instance with too many is left out and counted. For each it must hold that

    bound <= cost of the best plan <= the solver's cost, equal at the gap asked for (0), and the independent check passes,

with shortages by the narrowed ILP and, on every third instance, by covers at levels as well (there the share's bound).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
from allocation_cases import Truth, enumerate_plans, ruled_problem  # type: ignore[import-not-found]
from link_cases import enumerate_moves, linked_problem  # type: ignore[import-not-found]

from tasks.allocation.checker import check_result
from tasks.allocation.covers import solver
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus

_EXACT = SolveLimits(gap=0.0)
_SAME = 1e-6
_MOST_PLANS = 300_000


def main() -> None:
    """Run the instances; exit 3 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--instances", type=int, default=600)
    parser.add_argument("--links", action="store_true", help="only instances in which KV may cross regions")
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    began = time.process_time()
    for seed in range(options.first, options.first + options.instances):
        problem = linked_problem(seed) if options.links else ruled_problem(seed)
        if problem is None:
            continue
        truth = (enumerate_moves if options.links else enumerate_plans)(problem, limit=_MOST_PLANS)
        if truth is None:
            seen["left out, too many plans"] += 1
            continue
        seen["checked"] += 1
        seen.update(kinds(problem, truth))
        result = solve_covers(problem, _EXACT)
        faults = faults_of(problem, truth, result)
        if seed % 3 == 0 and not truth.feasible:
            faults += by_levels(problem, truth)
            seen["shortages by levels"] += 1
        seen["with KV that moves"] += bool(result.transfers)
        for fault in faults:
            print(f"DIFFERENT  seed {seed}: {fault}", flush=True)
        seen["different"] += bool(faults)
    for name, count in seen.items():
        print(f"{count:6}  {name}")
    print(f"{time.process_time() - began:.0f} s of processor")
    if seen["different"]:
        raise SystemExit(3)


def faults_of(problem: AllocationProblem, truth: Truth, result: AllocationResult) -> list[str]:
    """What is wrong with an answer, as texts."""
    faults = check_result(problem, result)
    if result.lower_bound_usd > truth.objective + _SAME:
        faults.append(f"bound {result.lower_bound_usd} above the best plan's {truth.objective}")
    if abs(result.objective_usd - truth.objective) > _SAME:
        faults.append(f"cost {result.objective_usd}, the best plan costs {truth.objective}")
    if (result.status is SolveStatus.SHORTFALL) == truth.feasible:
        faults.append(f"status {result.status}, all demand can be met: {truth.feasible}")
    return faults


def by_levels(problem: AllocationProblem, truth: Truth) -> list[str]:
    """The same for a shortage by covers at levels: heuristic in cost, its bounds must hold."""
    known, solver._ILP_COLUMNS = solver._ILP_COLUMNS, -1
    try:
        result = solve_covers(problem, _EXACT)
    finally:
        solver._ILP_COLUMNS = known
    faults = check_result(problem, result)
    if result.theta == truth.theta and result.lower_bound_usd > truth.objective + _SAME:
        faults.append(f"bound {result.lower_bound_usd} above the best plan's {truth.objective}")
    if not math.isnan(truth.theta) and not result.theta - _SAME <= truth.theta <= result.theta_upper + _SAME:
        faults.append(f"share {truth.theta} is not from {result.theta} to {result.theta_upper}")
    return faults


def kinds(problem: AllocationProblem, truth: Truth) -> list[str]:
    """What an instance has of everything that is to be checked."""
    demands = [d for d in problem.demands if d.planned_req_per_s > 0]
    has = {
        "spot": any(not pool.is_firm for pool in problem.pools),
        "owned": any(pool.market.value == "owned" for pool in problem.pools),
        "outages": problem.outage is not None and bool(problem.outage.any()),
        "kept": bool(problem.running) and problem.init_share > 0,
        "quotas": bool(problem.quotas),
        "budget": problem.budget_usd_per_h is not None,
        "N+1": any(d.survives_loss for d in demands),
        "spot capped": any(0 < d.max_spot_share < 1 for d in demands),
        "replicas": any(d.min_replicas > 1 for d in demands),
        "regions": any(d.min_regions > 1 for d in demands),
        "configurations": any(d.excluded or d.node_configs is not None for d in demands),
        "empty supply": not bool(problem.capacity_nodes.any()),
        f"shortage, {problem.shortage.value}": not truth.feasible,
    }
    return [name for name, is_there in has.items() if is_there]


if __name__ == "__main__":
    main()
