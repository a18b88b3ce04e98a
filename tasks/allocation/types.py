"""The online problem and its answer. Everything the solvers, the checker and the explanations read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Basis, Phase


class SolveStatus(StrEnum):
    """Outcome of a solve or a plan. ``GAP``: stopped by the gap or work limit with a valid bound."""

    OPTIMAL = "optimal"
    GAP = "gap"
    TIME_LIMIT = "time_limit"
    SHORTFALL = "shortfall"
    INFEASIBLE = "infeasible"
    ERROR = "error"


class Shortage(StrEnum):
    """What to do when supply cannot meet demand."""

    UNIFORM = "uniform"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class WorkloadCandidates:
    """Templates of one workload that may be used. Row i uses ``counts[i, k]`` nodes of ``node_configs[k]``.

    ``throughput_mtok_per_s`` int64 [n]; ``tokens_per_request`` turns tok/s into req/s; ``headroom`` is the planned
    share of the throughput (0..1].
    """

    workload_id: str
    alias: str
    model: str
    phase: Phase
    tokens_per_request: float
    headroom: float
    template_ids: tuple[str, ...]
    counts: NDArray[np.int16]
    throughput_mtok_per_s: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Planned demand of one model and where it may be served. Its phases must be together per region."""

    model: str
    planned_req_per_s: float
    workload_ids: tuple[str, ...]
    regions: tuple[str, ...]
    min_regions: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SharedQuota:
    """A provider's limit over several node configurations of a region: sum of ``units[config]`` x nodes <= ``limit``.

    ``name`` is for people (``G vcpu in aws/us-east-2``). Nodes of configurations not in ``units`` take none of it.
    """

    name: str
    region: str
    units: Mapping[str, int]
    limit: int


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """Prices and capacity are [regions, node_configs] arrays; a NaN price means not sold there, and the node cannot be
    used. ``capacity_nodes`` is never infinite; ``capacity_basis`` says where each figure comes from. ``running`` counts
    instances by (region, template_id): only instances beyond them pay ``init_share`` (K) of an hour's price. Capacity
    counts nodes already held too. ``budget_usd_per_h`` caps the rent, not the start-up charge. ``forbidden``: (region,
    template_id) that may not be used there."""

    regions: tuple[str, ...]
    node_configs: tuple[str, ...]
    price_usd_per_h: NDArray[np.float64]
    capacity_nodes: NDArray[np.int64]
    capacity_basis: Mapping[tuple[str, str], Basis]
    candidates: tuple[WorkloadCandidates, ...]
    demands: tuple[ModelDemand, ...]
    init_share: float = 0.0
    running: Mapping[tuple[str, str], int] = field(default_factory=dict)
    shortage: Shortage = Shortage.UNIFORM
    quotas: tuple[SharedQuota, ...] = ()
    budget_usd_per_h: float | None = None
    forbidden: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """When to stop: relative gap, and a wall clock that is only a safety limit."""

    gap: float = 1e-4
    time_s: float = 60.0
    threads: int = 2
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Instance:
    """``instances`` of a template in a region, of them ``new_instances`` not running yet; the cost is of all of them."""

    region: str
    template_id: str
    workload_id: str
    instances: int
    new_instances: int
    cost_usd_per_h: float


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """Answer of a solver. ``cost_usd_per_h`` is rent only, ``init_usd`` the start-up charge; ``objective_usd`` their
    sum, ``lower_bound_usd`` a valid bound on it within this library and these profiles; ``gap`` = (objective - bound)
    / objective. ``theta`` is the common share of demand that is met (1 = all), ``theta_upper`` a certified upper bound."""

    status: SolveStatus
    instances: tuple[Instance, ...]
    cost_usd_per_h: float
    init_usd: float
    objective_usd: float
    lower_bound_usd: float
    gap: float
    theta: float
    theta_upper: float
    solve_s: float
    note: str = ""
