"""The online problem and its answer. Everything the solvers, the checker and the explanations read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Basis, Market, Phase


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
    """Planned demand of one model, where it may be served, and the rules of its own.

    Its phases must be together per region. What a region serves of it counts only as far as, in every phase there,

    - at least ``min_replicas`` instances are in it (else the region serves nothing),
    - firm (not spot) instances serve at least 1 - ``max_spot_share`` of it,
    - with ``survives_loss`` (N+1) it is still served when the phase's largest instance there is lost.

    ``node_configs``: the only ones its instances may use (None = any); ``excluded``: those they may not use.

    ``kv_gb_per_request``: what prefill hands to decode, GB (10^9 bytes). Where :class:`KvLink` s let it cross regions, the
    rules above hold of each phase by itself: ``min_regions`` is of regions in which a phase counts.
    """

    model: str
    planned_req_per_s: float
    workload_ids: tuple[str, ...]
    regions: tuple[str, ...]
    min_regions: int = 1
    weight: float = 1.0
    min_replicas: int = 1
    max_spot_share: float = 1.0
    survives_loss: bool = False
    node_configs: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    kv_gb_per_request: float = 0.0


@dataclass(frozen=True, slots=True)
class KvLink:
    """KV caches may move from prefill in region ``source`` to decode in ``target``, at a price for what leaves and within a
    bandwidth that all models share (None = no cap)."""

    source: str
    target: str
    usd_per_gb: float
    gbit_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """``req_per_s`` requests of a model prefill in ``source`` and decode in ``target``: what their KV takes and costs."""

    model: str
    source: str
    target: str
    req_per_s: float
    gbit_per_s: float
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes of one market in one region. All nodes of an instance are of one pool."""

    region: str
    market: Market = Market.ON_DEMAND

    @property
    def name(self) -> str:
        """The region, and the market where it is not on demand: ``aws/us-east-2 spot``."""
        return pool_name(self.region, self.market)

    @property
    def is_firm(self) -> bool:
        """Whether its nodes stay until they are given back."""
        return self.market is not Market.SPOT


def pool_name(region: str, market: Market) -> str:
    """The name of the pool of a market in a region."""
    return region if market is Market.ON_DEMAND else f"{region} {market.value}"


@dataclass(frozen=True, slots=True)
class SharedQuota:
    """A provider's limit over several node configurations of a region: sum of ``units[config]`` x nodes <= ``limit``.

    ``name`` is for people (``G vcpu in aws/us-east-2``). Nodes of configurations not in ``units`` take none of it, and
    owned nodes none at all.
    """

    name: str
    region: str
    units: Mapping[str, int]
    limit: int


@dataclass(frozen=True, slots=True)
class AllocationProblem:
    """Prices and capacity are [pools, node_configs] arrays; a NaN price means not sold there, and the node cannot be used.
    ``pools``: the markets of the regions, in order of the regions; left out = on demand in each. ``capacity_nodes`` is
    never infinite; ``capacity_basis`` says where each figure comes from, by (pool name, configuration). ``running`` counts
    instances by (pool name, template_id): only instances beyond them pay ``init_share`` (K) of an hour's price. Capacity
    counts nodes already held too. ``budget_usd_per_h`` caps the rent, not the start-up charge. ``forbidden``: (pool name,
    template_id) that may not be used there. ``outage`` [pools, node_configs]: hours lost to interruptions per hour of
    service, of one node (None: none anywhere); see :func:`delivered_share`. ``links``: between which regions KV may move; the
    budget caps its price with the rent."""

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
    pools: tuple[Pool, ...] = ()
    outage: NDArray[np.float64] | None = None
    links: tuple[KvLink, ...] = ()

    def __post_init__(self) -> None:
        if not self.pools:
            object.__setattr__(self, "pools", tuple(Pool(region) for region in self.regions))

    def pools_in(self, region: str) -> list[int]:
        """Indices of the pools of a region."""
        return [p for p, pool in enumerate(self.pools) if pool.region == region]

    def pool_index(self, region: str, market: Market) -> int:
        """The index of the pool of a market in a region. Raises ValueError where there is none."""
        return self.pools.index(Pool(region, market))

    def quota_units(self, quota: SharedQuota) -> NDArray[np.int64]:
        """Units of ``quota`` that a node takes, [pools, node_configs]."""
        units = np.array([quota.units.get(config, 0) for config in self.node_configs], dtype=np.int64)
        counts = np.array(
            [pool.region == quota.region and pool.market is not Market.OWNED for pool in self.pools], dtype=np.int64
        )
        return np.outer(counts, units)


def delivered_share(counts: NDArray[np.int16], outage: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The share of its rate that an instance delivers, [templates], given ``outage`` [node_configs] of its pool.

    An instance is down while any of its nodes is replaced: with up times of mean 1 / sum of the nodes' interruption rates
    and equal replacement times it is up for 1 / (1 + sum of outages) of the time (renewal theory).
    """
    if outage is None:
        return np.ones(len(counts))
    return np.asarray(1.0 / (1.0 + counts.astype(np.float64) @ outage))


@dataclass(frozen=True, slots=True)
class SolveLimits:
    """When to stop: relative gap, and a wall clock that is only a safety limit; or soon after ``stop`` is set from outside,
    with the best answer so far."""

    gap: float = 1e-4
    time_s: float = 60.0
    threads: int = 2
    seed: int = 1
    stop: threading.Event | None = field(default=None, compare=False, repr=False)

    @property
    def is_stopped(self) -> bool:
        """Whether someone has asked to end now."""
        return self.stop is not None and self.stop.is_set()


@dataclass(frozen=True, slots=True)
class Instance:
    """``instances`` of a template in a region on nodes of one market, of them ``new_instances`` not running yet; the cost is
    of all of them."""

    region: str
    template_id: str
    workload_id: str
    instances: int
    new_instances: int
    cost_usd_per_h: float
    market: Market = Market.ON_DEMAND

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return pool_name(self.region, self.market)


@dataclass(frozen=True, slots=True)
class AllocationResult:
    """Answer of a solver. ``cost_usd_per_h`` is rent and ``egress_usd_per_h``, what ``transfers`` of KV cost; ``init_usd`` the
    start-up charge; ``objective_usd`` their sum, ``lower_bound_usd`` a valid bound on it within this library and these
    profiles; ``gap`` = (objective - bound) / objective. ``theta`` is the common share of demand that is met (1 = all),
    ``theta_upper`` a certified upper bound."""

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
    transfers: tuple[KvTransfer, ...] = ()
    egress_usd_per_h: float = 0.0
