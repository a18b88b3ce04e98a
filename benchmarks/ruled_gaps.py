"""Gaps of small scenarios with N+1, caps on spot, owned nodes and least replicas, with the limits a user has.

    python benchmarks/ruled_gaps.py --seeds 40
    python benchmarks/ruled_gaps.py --first-seed 27 --seeds 1 --ample      # supply that binds nowhere: the rules alone

One or two models of :mod:`allocation_instances`, two or three GPUs, one or two regions, some of which own or sell on spot up
to four nodes of a configuration. A line per instance, then the worst. Every answer is checked independently.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # also where PYTHONSAFEPATH leaves it out

from allocation_instances import GPUS, MODELS, REGION_PRICE, Shape, make_instance

from catalogs.types import Basis, Market
from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.types import AllocationProblem, Pool, SolveLimits

_OUTAGE = 0.02  # hours lost per hour on spot
_AMPLE_NODES = 500


def make_ruled(seed: int) -> AllocationProblem:
    """The problem of a seed."""
    rng = np.random.default_rng([seed, 7])
    models = tuple(rng.choice(list(MODELS)[:4], int(rng.integers(1, 3)), replace=False).tolist())
    gpus = tuple(sorted(rng.choice(list(GPUS), int(rng.integers(2, 4)), replace=False).tolist()))
    regions = tuple(REGION_PRICE)[: int(rng.integers(1, 3))]
    shape = Shape(models, gpus, regions, float(rng.choice([2.0, 5.0, 10.0])), n_max=int(rng.choice([2, 3, 4])))
    base, _ = make_instance(shape, seed, float(rng.choice([1.5, 2.5, 4.0])))
    pools, price, capacity, outage = [], [], [], []
    for r, region in enumerate(regions):
        for market in (Market.ON_DEMAND, Market.OWNED, Market.SPOT):
            if market is not Market.ON_DEMAND and rng.random() < 0.4:
                continue
            pools.append(Pool(region, market))
            paid = {Market.ON_DEMAND: 1.0, Market.OWNED: rng.choice([0.0, 0.3]), Market.SPOT: rng.choice([0.35, 0.6])}
            price.append(base.price_usd_per_h[r] * float(paid[market]))
            few = rng.integers(0, 5, len(base.node_configs)) if market is not Market.ON_DEMAND else None
            capacity.append(base.capacity_nodes[r] + 2 if few is None else few)
            outage.append(np.full(len(base.node_configs), _OUTAGE if market is Market.SPOT else 0.0))
    is_loss = bool(rng.random() < 0.6)
    demands = tuple(
        replace(
            d,
            survives_loss=is_loss,
            max_spot_share=float(rng.choice([0.3, 0.5, 0.8, 1.0])),
            min_replicas=int(rng.choice([1, 1, 2])),
        )
        for d in base.demands
    )
    return replace(
        base,
        pools=tuple(pools),
        price_usd_per_h=np.array(price),
        capacity_nodes=np.array(capacity, dtype=np.int64),
        capacity_basis={(pool.name, c): Basis.ASSUMED for pool in pools for c in base.node_configs},
        outage=np.array(outage),
        demands=demands,
    )


def main() -> None:
    """Solve, print a line each, then the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--time", type=float, default=60.0, help="seconds per instance")
    parser.add_argument("--ample", action="store_true", help="so much supply that none binds")
    options = parser.parse_args()
    gaps = {}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        problem = make_ruled(seed)
        if options.ample:
            problem = replace(problem, capacity_nodes=np.full_like(problem.capacity_nodes, _AMPLE_NODES))
        began = time.process_time()
        result = solve_covers(problem, SolveLimits(time_s=options.time))
        spent = time.process_time() - began
        faults = check_result(problem, result)
        if faults:
            raise RuntimeError("; ".join(faults))
        gaps[seed] = result.gap
        rules = ", ".join(
            f"{d.model}: {'N+1, ' if d.survives_loss else ''}spot {d.max_spot_share:g}, {d.min_replicas} replicas"
            for d in problem.demands
        )
        print(
            f"seed {seed}: {result.status.value}, gap {result.gap:.2%}, cost {result.objective_usd:.4f}, bound "
            f"{result.lower_bound_usd:.4f}, theta {result.theta:.3f}, cpu {spent:.1f} s; {rules}; "
            f"{', '.join(pool.name for pool in problem.pools)}",
            flush=True,
        )
    worst = sorted(gaps, key=lambda seed: -gaps[seed])[:10]
    print(f"worst: {', '.join(f'{gaps[seed]:.2%} (seed {seed})' for seed in worst)}")
    print(f"above 0.1 %: {sum(g > 1e-3 for g in gaps.values())}, above 1 %: {sum(g > 1e-2 for g in gaps.values())}")


if __name__ == "__main__":
    main()
