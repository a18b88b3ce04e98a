"""Nodes that cost nothing: the relaxation has no price to tell them apart by, and a plan is found all the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from catalogs.types import Basis, Market
from tasks.allocation.checker import check_result
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.types import AllocationProblem, Pool, SolveLimits, SolveStatus

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fleet_instances import Fleet, make_fleet

LIMITS = SolveLimits(gap=1e-2, threads=1)


@pytest.fixture(scope="module")
def owned() -> AllocationProblem:
    """Twelve models, and all nodes are owned and paid for: a seventh more than the relaxation needs."""
    (base,) = make_fleet(2, Fleet(models=12, templates=30, regions=2), [1.15])
    pools = tuple(Pool(region, Market.OWNED) for region in base.regions)
    return replace(
        base,
        pools=pools,
        price_usd_per_h=np.zeros_like(base.price_usd_per_h),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in base.node_configs},
    )


def test_owned_nodes_that_suffice_serve_every_model(owned: AllocationProblem) -> None:
    result = solve_covers(owned, LIMITS)
    assert check_result(owned, result) == []
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective_usd == 0.0
