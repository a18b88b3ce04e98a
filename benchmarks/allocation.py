"""Times and gaps of the allocator.

    python benchmarks/allocation.py extended                          # 20 seeds at every supply level
    python benchmarks/allocation.py fleet --seeds 2 --first-seed 4 --monolith
    python benchmarks/allocation.py library --lake my-lake --scenario paper-extended
    python benchmarks/allocation.py extended --monolith 10            # ten times the time for the paper's ILP

core      a small problem of :mod:`allocation_instances`
extended  the paper's extended setup in size: six models of two phases, 20 configurations, three regions, more than three
          million columns before the frontier
fleet     46 models of two phases, 4,000 frontier templates each, 40 configurations, ten regions
          (:mod:`fleet_instances`); with --models, --regions and --demand of another size; with --priority shortages by
          weight, with --rules a third of the models with N+1 and a third with two replicas, with --spot a third of the
          nodes on spot, of which a model may be served by half
library-fleet
          a fleet of the same size of templates that ``coral build`` solves (:mod:`library_fleet`)
library   the library a lake holds of a scenario, with prices and demands drawn around the scenario's, and supply as
          multiples of what a plan without limits takes

Per supply level: the share of seeded instances within the gap asked for, median and worst gap, median and worst seconds
(wall clock and processor). Every answer is checked independently.

``--monolith`` runs the paper's ILP (:mod:`monolith`) on HiGHS beside it, with as much time (at least a second) and as many
threads as the covers solver took, or a multiple of that time. Printed of it: what ended it; its plan's distance to its own
bound and to the covers solver's; how often it had no plan at all. Where supply is short the paper scales all demand down
until a plan exists: there the ILP has the largest common share as its objective, and the distances are of that share to the
bounds on it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # also where PYTHONSAFEPATH leaves it out

from allocation_instances import CORE, EXTENDED, make_instance
from fleet_instances import REGIONS, Fleet, make_fleet
from library_fleet import library_problem, make_library_fleet
from monolith import Monolith, solve_monolith

from catalogs.types import Market
from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    Pool,
    Shortage,
    SolveLimits,
    SolveStatus,
    pool_name,
)

# Supply as a multiple of what the relaxation needs, by name.
LEVELS = {"ample": 4.0, "moderate": 2.0, "scarce": 1.25, "very scarce": 1.05}
FLEET_LEVELS = {"2 x need": 2.0, "1.2 x need": 1.2, "0.8 x need": 0.8}
LIBRARY_LEVELS = {"ample": 3.0, "moderate": 1.5, "scarce": 0.8, "very scarce": 0.5}
SHAPES = {"core": CORE, "extended": EXTENDED}
GAPS = {"core": 5e-4, "extended": 1e-3, "fleet": 1e-2, "library-fleet": 1e-2, "library": 1e-3}
ON_SPOT, SPOT_PRICE, SPOT_OUTAGE, SPOT_SHARE = 1 / 3, 0.4, 0.02, 0.5  # see with_spot
SPREAD = 0.25  # of prices and demands drawn around a scenario's


@dataclass(frozen=True)
class Run:
    """One solved instance."""

    columns_before: int
    result: AllocationResult
    wall_s: float
    cpu_s: float
    monolith: Monolith | None

    @property
    def ours(self) -> float:
        """The covers solver's bound on what the monolith seeks: the cost, or in shortage the common share."""
        is_short = self.monolith is not None and self.monolith.is_short
        return self.result.theta_upper if is_short else self.result.lower_bound_usd


def solve_one(
    problem: AllocationProblem, before: int, limits: SolveLimits, *, times: float = 0.0, most_gib: float = 0.0
) -> Run:
    """Solve one instance and check the answer, then the monolith in ``times`` the time (0: without it); raises if the
    independent check refuses the answer."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = solve_covers(problem, limits)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    faults = check_result(problem, result)
    if faults:
        raise RuntimeError("; ".join(faults))
    beside = None
    if times > 0:
        allowed = replace(limits, time_s=max(wall, 1.0) * times)
        is_short = result.status is SolveStatus.SHORTFALL
        beside = solve_monolith(problem, allowed, is_short=is_short, most_gib=most_gib)
    return Run(before, result, wall, cpu, beside)


def instances(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, AllocationProblem, int]]:
    """The problems of a seed by supply level, and their columns before the frontier."""
    if options.shape in ("fleet", "library-fleet"):
        supplies = tuple(FLEET_LEVELS.values())
        is_law = options.shape == "fleet"
        fleet = Fleet(models=options.models, regions=options.regions, demand=options.demand)
        problems = make_fleet(seed, fleet, supplies) if is_law else make_library_fleet(options.lake, seed, supplies)
        problems = [with_rules(p, seed, is_weighted=options.priority, is_ruled=options.rules) for p in problems]
        problems = [with_spot(p) for p in problems] if options.spot else problems
        for name, problem in zip(FLEET_LEVELS, problems, strict=True):
            yield name, problem, sum(len(c.template_ids) for c in problem.candidates) * len(problem.regions)
    elif options.shape == "library":
        yield from library_instances(options, seed)
    else:
        for name, supply in LEVELS.items():
            yield name, *make_instance(SHAPES[options.shape], seed, supply)


def with_rules(problem: AllocationProblem, seed: int, *, is_weighted: bool, is_ruled: bool) -> AllocationProblem:
    """With weights of 1, 2 or 4 and shortages by them; with rules of the models' own."""
    weights = np.random.default_rng(seed).choice([1.0, 1.0, 2.0, 4.0], len(problem.demands)).tolist()
    demands = [
        replace(
            demand,
            weight=weight if is_weighted else 1.0,
            survives_loss=is_ruled and at % 3 == 0,
            min_replicas=2 if is_ruled and at % 3 == 1 else 1,
        )
        for at, (demand, weight) in enumerate(zip(problem.demands, weights, strict=True))
    ]
    shortage = Shortage.PRIORITY if is_weighted else Shortage.UNIFORM
    return replace(problem, demands=tuple(demands), shortage=shortage)


def with_spot(problem: AllocationProblem) -> AllocationProblem:
    """With a part of the nodes on spot instead, and a cap on the share that it serves of a model."""
    spot = (problem.capacity_nodes * ON_SPOT).astype(np.int64)
    regions = range(len(problem.regions))
    return replace(
        problem,
        pools=tuple(Pool(problem.regions[r], market) for r in regions for market in (Market.ON_DEMAND, Market.SPOT)),
        price_usd_per_h=np.concatenate([problem.price_usd_per_h[r] * [[1.0], [SPOT_PRICE]] for r in regions]),
        capacity_nodes=np.concatenate([[problem.capacity_nodes[r] - spot[r], spot[r]] for r in regions]),
        capacity_basis={
            (pool_name(r, market), c): basis
            for (r, c), basis in problem.capacity_basis.items()
            for market in (Market.ON_DEMAND, Market.SPOT)
        },
        outage=np.concatenate([np.outer([0.0, SPOT_OUTAGE], np.ones(len(problem.node_configs))) for _ in regions]),
        demands=tuple(replace(demand, max_spot_share=SPOT_SHARE) for demand in problem.demands),
    )


def library_instances(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, AllocationProblem, int]]:
    """As :func:`instances`, of a lake's library."""
    whole = library_problem(options.scenario, options.lake)
    rng = np.random.default_rng(seed)
    ample = replace(
        whole,
        price_usd_per_h=whole.price_usd_per_h * rng.uniform(1 - SPREAD, 1 + SPREAD, whole.price_usd_per_h.shape),
        capacity_nodes=np.full(whole.capacity_nodes.shape, 10_000),
        quotas=(),
        demands=tuple(
            replace(d, planned_req_per_s=d.planned_req_per_s * rng.uniform(1 - SPREAD, 1 + SPREAD))
            for d in whole.demands
        ),
    )
    nodes = sum(
        row.instances * int(c.counts[c.template_ids.index(row.template_id)].sum())
        for row in solve_covers(ample, SolveLimits(gap=1e-2)).instances
        for c in ample.candidates
        if c.workload_id == row.workload_id
    )
    mix = rng.gamma(1.5, 1.0, ample.capacity_nodes.shape)
    mix *= nodes / mix.sum()
    columns = sum(len(c.template_ids) for c in whole.candidates) * len(whole.regions)
    for name, supply in LIBRARY_LEVELS.items():
        yield name, replace(ample, capacity_nodes=np.ceil(mix * supply).astype(np.int64)), columns


def load_kernels(shape: str, limits: SolveLimits) -> None:
    """Compile or load what a solve of this shape runs, once per installation, outside the times."""
    solve_one(*make_instance(CORE, 0, 4.0), limits)
    if shape in ("fleet", "library-fleet"):
        for problem in make_fleet(0, Fleet(models=17, templates=40, regions=4), (1.2, 0.8)):
            solve_one(problem, 0, limits)


def main() -> None:
    """Print a line per instance, then one per supply level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?", choices=sorted(GAPS), default="core")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--time", type=float, default=60.0, help="seconds per instance, a safety limit")
    parser.add_argument(
        "--monolith",
        type=float,
        nargs="?",
        const=1.0,
        default=0.0,
        metavar="TIMES",
        help="the paper's ILP beside it, in TIMES the time that the covers solver took (1)",
    )
    parser.add_argument("--monolith-gib", type=float, default=12.0, help="memory that the monolith may take")
    parser.add_argument("--scenario", default="paper-extended")
    parser.add_argument("--lake", type=Path)
    parser.add_argument("--levels", default="", help="only levels with these words, by comma")
    parser.add_argument("--models", type=int, default=Fleet.models, help="of `fleet`")
    parser.add_argument("--regions", type=int, default=Fleet.regions, help="of `fleet`")
    parser.add_argument("--demand", type=float, default=Fleet.demand, help="of `fleet`, as a multiple")
    parser.add_argument("--priority", action="store_true", help="of `fleet`: shortages by weight")
    parser.add_argument("--rules", action="store_true", help="of `fleet`: N+1 and least replicas")
    parser.add_argument("--spot", action="store_true", help="of `fleet`: a third of the nodes on spot, which is capped")
    options = parser.parse_args()
    if options.shape.startswith("library") and options.lake is None:
        parser.error(f"{options.shape} needs --lake")
    is_sized = (options.models, options.regions, options.demand) != (Fleet.models, Fleet.regions, Fleet.demand)
    if (is_sized or options.priority or options.rules or options.spot) and options.shape != "fleet":
        parser.error("--models, --regions, --demand, --priority, --rules and --spot are for fleet alone")
    if not 1 <= options.regions <= len(REGIONS):
        parser.error(f"--regions: 1 to {len(REGIONS)}")
    limits = SolveLimits(gap=GAPS[options.shape], time_s=options.time)
    runs: dict[str, list[Run]] = {}
    load_kernels(options.shape, limits)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, problem, before in instances(options, seed):
            if options.levels and name not in options.levels.split(","):
                continue
            run = solve_one(problem, before, limits, times=options.monolith, most_gib=options.monolith_gib)
            runs.setdefault(name, []).append(run)
            print(
                f"  seed {seed}, {name}: {run.result.status.value}, gap {run.result.gap:.3%}, theta {run.result.theta:.4f} of "
                f"at most {run.result.theta_upper:.4f}, wall {run.wall_s:.1f} s, cpu {run.cpu_s:.1f} s {run.result.note}",
                flush=True,
            )
            if run.monolith is not None:
                print(f"    {told(run.monolith, run.ours)}", flush=True)
    for name, found in runs.items():
        print(summary(options.shape, name, found, limits.gap), flush=True)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def told(monolith: Monolith, ours: float) -> str:
    """A monolith's outcome in a line."""
    what = "share" if monolith.is_short else "cost"
    if monolith.plan is None:
        found = f"no plan, {what} bound {monolith.bound:.6g}"
    else:
        value = monolith.plan.theta if monolith.is_short else monolith.plan.objective_usd
        found = (
            f"{what} {value:.6g}, bound {monolith.bound:.6g}, gap {monolith.gap(monolith.bound):.3%}, to the bound above "
            f"{monolith.gap(ours):.3%}"
        )
    note = f" ({monolith.note})" if monolith.note else ""
    return (
        f"monolith of {monolith.columns:,} columns: {monolith.status}, {found}, wall {monolith.solve_s:.1f} s, "
        f"cpu {monolith.cpu_s:.1f} s, {monolith.peak_gib:.1f} GiB{note}"
    )


def summary(shape: str, level: str, runs: list[Run], gap: float) -> str:
    """One supply level in a line."""
    gaps, walls, cpus = [r.result.gap for r in runs], [r.wall_s for r in runs], [r.cpu_s for r in runs]
    text = (
        f"{shape}, {level}: {min(r.columns_before for r in runs):,} columns or more; "
        f"gap <= {gap:.2%} in {sum(value <= gap for value in gaps)} of {len(runs)}, median {statistics.median(gaps):.3%}, "
        f"worst {max(gaps):.3%}; wall median {statistics.median(walls):.2f} s, worst {max(walls):.2f} s; cpu median "
        f"{statistics.median(cpus):.2f} s, worst {max(cpus):.2f} s; served whole {sum(r.result.theta == 1.0 for r in runs)}"
    )
    beside = [(run.monolith, run.ours) for run in runs if run.monolith is not None]
    if beside:
        text += f"; monolith: no plan in {sum(m.plan is None for m, _ in beside)} of {len(beside)}"
        found = [(m, ours) for m, ours in beside if m.plan is not None]
        for whose, apart in (
            ("its own bound", [m.gap(m.bound) for m, _ in found]),
            ("the bound above", [m.gap(ours) for m, ours in found]),
        ):
            text += f", gap to {whose} median {statistics.median(apart):.2%}, worst {max(apart):.2%}" if found else ""
    return text


if __name__ == "__main__":
    main()
