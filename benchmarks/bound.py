"""Checks on small random problems that the covers solver's bound is never above the true optimum, and its optimum the ILP's.

    python benchmarks/bound.py                     # 500 problems, about twenty seconds of one core
    python benchmarks/bound.py --problems 2000 --first-seed 5000

Problems have kept instances, budgets, quotas, several regions, supplies from none to ample; half of them the further rules
(spot, replicas, N+1, allowed configurations, KV between regions). The truth is the paper's ILP solved to gap 0, and, where
that is quick, the best of all plans. The solver answers twice: as it is, and with shortages by covers at levels alone, as at
full size.
Exits with 3 on any violation.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from pathlib import Path

from tasks.allocation.checker import check_result
from tasks.allocation.covers import solver
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
from allocation_cases import (  # type: ignore[import-not-found]
    enumerate_plans,
    random_problem,
    ruled_problem,
    with_min_regions,
)
from link_cases import linked_problem  # type: ignore[import-not-found]

EXACT = SolveLimits(gap=0.0, time_s=120.0)
TOLERANCE = 1e-6
PLANS = 100_000  # at most so many are tried one by one


def main() -> None:
    """Solve the problems and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=1000)
    options = parser.parse_args()
    began, seen, faults = time.process_time(), Counter[str](), 0
    for seed in range(options.first_seed, options.first_seed + options.problems):
        problem = ruled_problem(seed) if seed % 2 else random_problem(seed)
        problem = with_min_regions(problem, 2) if seed % 6 == 0 else problem
        problem = linked_problem(seed, models=1 + seed % 2) or problem  # KV may cross regions
        for fault in violations(problem, seen):
            faults += 1
            print(f"seed {seed}: {fault}", flush=True)
    found = ", ".join(f"{count} {name}" for name, count in sorted(seen.items()))
    print(f"{faults} violations; {found}; {time.process_time() - began:.0f} s of processor")
    if faults:
        raise SystemExit(3)


def violations(problem: AllocationProblem, seen: Counter[str]) -> list[str]:
    """What is wrong with the solver's answers to one problem."""
    exact = solve_ilp(problem, EXACT)
    if exact.status in (SolveStatus.ERROR, SolveStatus.TIME_LIMIT):
        seen["without a truth"] += 1
        return []
    seen["problems"] += 1
    seen["in shortage"] += exact.status is SolveStatus.SHORTFALL
    seen["with kept instances"] += bool(problem.running)
    seen["with quotas"] += bool(problem.quotas)
    seen["with a budget"] += problem.budget_usd_per_h is not None
    seen["with empty supply"] += not problem.capacity_nodes.any()
    seen["with KV that may cross regions"] += bool(problem.links)
    seen["with spot"] += any(not pool.is_firm for pool in problem.pools)
    usual, at_levels = solver.solve_covers(problem, EXACT), by_levels(problem)
    found = [*against(problem, exact, usual, "the solver"), *against(problem, exact, at_levels, "by levels")]
    if abs(usual.objective_usd - exact.objective_usd) > TOLERANCE * max(1.0, exact.objective_usd):
        found.append(f"costs {usual.objective_usd}, the ILP {exact.objective_usd}")
    truth = None if seed_has_rules(problem) else enumerate_plans(problem, limit=PLANS)
    if truth is not None:
        seen["tried one by one"] += 1
        if truth.feasible and usual.lower_bound_usd > truth.objective + TOLERANCE:
            found.append(f"bound {usual.lower_bound_usd} above the optimum {truth.objective}")
        if not math.isnan(truth.theta) and at_levels.theta_upper < truth.theta - TOLERANCE:
            found.append(f"theta at most {at_levels.theta_upper}, but {truth.theta} is reached")
    return found


def seed_has_rules(problem: AllocationProblem) -> bool:
    """Whether trying all plans, which knows the base rules only, may not be used."""
    return (
        bool(problem.links)
        or any(not pool.is_firm for pool in problem.pools)
        or any(demand.survives_loss or demand.min_replicas > 1 for demand in problem.demands)
    )


def by_levels(problem: AllocationProblem) -> AllocationResult:
    """The answer with every shortage by covers at levels."""
    usual = solver._ILP_COLUMNS
    solver._ILP_COLUMNS = -1
    try:
        return solver.solve_covers(problem, EXACT)
    finally:
        solver._ILP_COLUMNS = usual


def against(problem: AllocationProblem, exact: AllocationResult, result: AllocationResult, who: str) -> list[str]:
    """An answer's faults beside the exact one: refused by the checker, or a bound beyond the truth."""
    found = [f"{who}: {fault}" for fault in check_result(problem, result)]
    at_same_share = abs(result.theta - exact.theta) <= TOLERANCE
    if at_same_share and result.lower_bound_usd > exact.objective_usd + TOLERANCE * max(1.0, exact.objective_usd):
        found.append(f"{who}: bound {result.lower_bound_usd} above the optimum {exact.objective_usd}")
    if result.theta_upper < exact.theta - TOLERANCE:
        found.append(f"{who}: theta at most {result.theta_upper}, but {exact.theta} is reached")
    return found


if __name__ == "__main__":
    main()
