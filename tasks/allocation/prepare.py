"""From plain inputs to an :class:`AllocationProblem`; what cannot be decided on is refused here, with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from catalogs.errors import CoralError, HeldError, NothingFitsError, UnknownNameError
from catalogs.ids import parse_combination_id
from catalogs.types import Basis, Phase
from catalogs.wording import counted
from tasks.allocation.types import (
    AllocationProblem,
    KvLink,
    ModelDemand,
    Pool,
    SharedQuota,
    Shortage,
    WorkloadCandidates,
)


@dataclass(frozen=True, slots=True)
class WorkloadInput:
    """What the online problem needs of a workload. ``headroom`` is the planned share of a template's rate (0..1]."""

    workload_id: str
    alias: str
    model: str
    phase: Phase
    tokens_per_request: float
    headroom: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Nodes to be had, those already held included, and where the figure comes from."""

    nodes: int
    basis: Basis


def build_problem(
    *,
    workloads: Sequence[WorkloadInput],
    templates: Mapping[str, pa.Table],
    regions: Sequence[str],
    node_configs: Sequence[str],
    price_usd_per_h: Mapping[tuple[str, str], float | None],
    capacity: Mapping[tuple[str, str], Capacity],
    demands: Sequence[ModelDemand],
    init_share: float = 0.0,
    running: Mapping[tuple[str, str], int] | None = None,
    shortage: Shortage = Shortage.UNIFORM,
    quotas: Sequence[SharedQuota] = (),
    budget_usd_per_h: float | None = None,
    pools: Sequence[Pool] = (),
    outage: Mapping[tuple[str, str], float] | None = None,
    links: Sequence[KvLink] = (),
) -> AllocationProblem:
    """The online problem of these inputs.

    ``templates``: per workload id a table with ``template_id``, ``throughput_mtok_per_s`` and ``nodes`` (as
    TEMPLATE_SCHEMA) or ``combination_id``; further columns are ignored. ``price_usd_per_h``: by (pool name, node
    configuration); absent, None or NaN = not sold there. ``capacity`` must hold every pair that has a price.
    ``running``: instances by (pool name, template id). ``quotas``: limits over several configurations of a region.
    ``pools``: the markets of the regions (default: on demand in each); ``outage``: hours lost per hour of service, by
    (pool name, node configuration), of what is interrupted at all. ``links``: between which regions KV may move.

    Raises HeldError where a demand is unknown (None or NaN), NothingFitsError where a workload with demand has no
    template that its regions sell, UnknownNameError for a region or workload not listed, CoralError for a value out of
    range or a price without a capacity.
    """
    _check_policy(init_share, budget_usd_per_h)
    _check_demands(demands, regions, workloads)
    pools = tuple(pools) or tuple(Pool(region) for region in regions)
    names = [pool.name for pool in pools]
    price = _price_matrix(names, node_configs, price_usd_per_h)
    nodes, basis = _capacity_matrix(names, node_configs, price, capacity)
    demand_of = {workload_id: demand for demand in demands for workload_id in demand.workload_ids}
    candidates = []
    for workload in workloads:
        _check_workload(workload)
        demand = demand_of.get(workload.workload_id)
        rows = workload_candidates(workload, templates.get(workload.workload_id), node_configs)
        if demand is not None and demand.planned_req_per_s > 0:
            allowed = [
                p
                for p, pool in enumerate(pools)
                if pool.region in demand.regions and (pool.is_firm or demand.max_spot_share > 0)
            ]
            mine = price[allowed].copy()
            mine[:, [not _may_use(demand, config) for config in node_configs]] = np.nan
            _check_something_sold(rows, mine, demand, templates.get(workload.workload_id))
        candidates.append(rows)
    for quota in quotas:
        if quota.region not in regions:
            raise UnknownNameError("region", quota.region, regions, where=f"quota {quota.name}")
        if quota.limit < 0 or any(units < 0 for units in quota.units.values()):
            raise CoralError(f"quota {quota.name} has a negative limit or unit", remedy="give 0 or more")
    for link in links:
        for region in (link.source, link.target):
            if region not in regions:
                raise UnknownNameError("region", region, regions, where="KV that crosses regions")
        if not (link.usd_per_gb >= 0 and (link.gbit_per_s is None or link.gbit_per_s >= 0)):
            raise CoralError(
                f"KV from {link.source} to {link.target} costs {link.usd_per_gb} USD/GB at {link.gbit_per_s} Gbit/s",
                remedy="give 0 or more",
            )
    for key, count in (running or {}).items():
        if count < 0:
            raise CoralError(
                f"running instances of {key[1]} in {key[0]} are {count}", remedy="give a count of 0 or more"
            )
    return AllocationProblem(
        regions=tuple(regions),
        node_configs=tuple(node_configs),
        price_usd_per_h=price,
        capacity_nodes=nodes,
        capacity_basis=basis,
        candidates=tuple(candidates),
        demands=tuple(demands),
        init_share=init_share,
        running=dict(running or {}),
        shortage=shortage,
        quotas=tuple(quotas),
        budget_usd_per_h=budget_usd_per_h,
        pools=pools,
        outage=_outage_matrix(names, node_configs, outage) if outage else None,
        links=tuple(links),
    )


def _may_use(demand: ModelDemand, config: str) -> bool:
    return config not in demand.excluded and (demand.node_configs is None or config in demand.node_configs)


def _outage_matrix(
    pools: Sequence[str], node_configs: Sequence[str], outage: Mapping[tuple[str, str], float]
) -> NDArray[np.float64]:
    matrix = np.zeros((len(pools), len(node_configs)))
    for (pool, config), lost in outage.items():
        if not (math.isfinite(lost) and lost >= 0):
            raise CoralError(f"{config} in {pool} is down for {lost} h per hour", remedy="give 0 or more")
        if pool in pools and config in node_configs:
            matrix[pools.index(pool), node_configs.index(config)] = lost
    return matrix


def _check_policy(init_share: float, budget_usd_per_h: float | None) -> None:
    if not (math.isfinite(init_share) and init_share >= 0):
        raise CoralError(f"init_share is {init_share}", remedy="give start-up minutes / interval minutes, 0 or more")
    if budget_usd_per_h is not None and not (math.isfinite(budget_usd_per_h) and budget_usd_per_h >= 0):
        raise CoralError(
            f"budget_usd_per_h is {budget_usd_per_h}", remedy="give USD per hour, 0 or more, or null for none"
        )


def _check_demands(demands: Sequence[ModelDemand], regions: Sequence[str], workloads: Sequence[WorkloadInput]) -> None:
    ids = {workload.workload_id for workload in workloads}
    seen: set[str] = set()
    for demand in demands:
        rate: float | None = demand.planned_req_per_s
        if rate is None or math.isnan(rate):
            raise HeldError(f"the demand of {demand.model} is unknown", remedy="state it, or 0 to release the model")
        if not math.isfinite(rate) or rate < 0:
            raise CoralError(f"the demand of {demand.model} is {rate} req/s", remedy="give a finite rate of 0 or more")
        if not (math.isfinite(demand.weight) and demand.weight > 0):
            raise CoralError(f"the weight of {demand.model} is {demand.weight}", remedy="give a weight above 0")
        if not demand.regions or demand.min_regions < 1 or demand.min_regions > len(demand.regions):
            raise CoralError(
                f"{demand.model} wants at least {demand.min_regions} regions of {len(demand.regions)} allowed",
                remedy="allow more regions or lower min_regions (1 or more)",
            )
        if not 0 <= demand.max_spot_share <= 1 or demand.min_replicas < 1:
            raise CoralError(
                f"{demand.model} wants {demand.min_replicas} replicas and at most {demand.max_spot_share} on spot",
                remedy="give min_replicas of 1 or more and a max_spot_share from 0 to 1",
            )
        for region in demand.regions:
            if region not in regions:
                raise UnknownNameError("region", region, regions, where=demand.model)
        for workload_id in demand.workload_ids:
            if workload_id not in ids:
                raise UnknownNameError("workload", workload_id, ids, where=demand.model)
            if workload_id in seen:
                raise CoralError(f"workload {workload_id} is listed by two demands", remedy="list each workload once")
            seen.add(workload_id)


def _check_workload(workload: WorkloadInput) -> None:
    if not 0 < workload.headroom <= 1:
        raise CoralError(
            f"the headroom of {workload.alias} is {workload.headroom}",
            remedy="give the planned share of the rate, 0..1",
        )
    if not (math.isfinite(workload.tokens_per_request) and workload.tokens_per_request > 0):
        raise CoralError(
            f"{workload.alias} has {workload.tokens_per_request} tokens per request",
            remedy="give a mean length above 0",
        )


def _price_matrix(
    regions: Sequence[str], node_configs: Sequence[str], price: Mapping[tuple[str, str], float | None]
) -> NDArray[np.float64]:
    matrix = np.full((len(regions), len(node_configs)), np.nan)
    for (region, config), value in price.items():
        if value is None or math.isnan(value):
            continue
        if not math.isfinite(value) or value < 0:
            raise CoralError(f"the price of {config} in {region} is {value} USD/h", remedy="give a price of 0 or more")
        if region in regions and config in node_configs:
            matrix[regions.index(region), node_configs.index(config)] = value
    return matrix


def _capacity_matrix(
    regions: Sequence[str],
    node_configs: Sequence[str],
    price: NDArray[np.float64],
    capacity: Mapping[tuple[str, str], Capacity],
) -> tuple[NDArray[np.int64], dict[tuple[str, str], Basis]]:
    matrix = np.zeros(price.shape, dtype=np.int64)
    basis: dict[tuple[str, str], Basis] = {}
    for r, region in enumerate(regions):
        for k, config in enumerate(node_configs):
            if np.isnan(price[r, k]):
                continue
            figure = capacity.get((region, config))
            if figure is None:
                raise CoralError(
                    f"the availability of {config} in {region} is unknown",
                    remedy="state it, or give availability.default_nodes for what no feed or quota covers",
                )
            if figure.nodes < 0:
                raise CoralError(
                    f"the availability of {config} in {region} is {figure.nodes}", remedy="give a count of 0 or more"
                )
            matrix[r, k], basis[region, config] = figure.nodes, figure.basis
    return matrix, basis


def workload_candidates(
    workload: WorkloadInput, table: pa.Table | None, node_configs: Sequence[str]
) -> WorkloadCandidates:
    """Templates whose nodes are all among ``node_configs``; others can be bought nowhere here."""
    if table is None or table.num_rows == 0:
        counts, known = np.zeros((0, len(node_configs)), dtype=np.int16), np.zeros(0, dtype=np.bool_)
        ids, rate = np.zeros(0, dtype=object), np.zeros(0, dtype=np.int64)
    else:
        counts, known = _node_counts(table, node_configs)
        ids = np.array(table["template_id"].to_pylist(), dtype=object)
        rate = table["throughput_mtok_per_s"].to_numpy().astype(np.int64)
    return WorkloadCandidates(
        workload_id=workload.workload_id,
        alias=workload.alias,
        model=workload.model,
        phase=workload.phase,
        tokens_per_request=workload.tokens_per_request,
        headroom=workload.headroom,
        template_ids=tuple(ids[known].tolist()),
        counts=counts[known],
        throughput_mtok_per_s=rate[known],
    )


def _node_counts(table: pa.Table, node_configs: Sequence[str]) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """Node counts [templates, node_configs], and a mask of templates that use no other configuration."""
    if "nodes" in table.column_names:
        column = table["nodes"].combine_chunks()
        lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
        flat = column.flatten()
        configs = flat.field("node_config").to_pylist()
        many = flat.field("nodes").to_numpy(zero_copy_only=False)
    else:
        parsed = [parse_combination_id(text) for text in table["combination_id"].to_pylist()]
        lengths = np.array([len(nodes) for nodes in parsed], dtype=np.int64)
        configs = [config for nodes in parsed for config in nodes]
        many = np.array([count for nodes in parsed for count in nodes.values()], dtype=np.int64)
    rows = np.repeat(np.arange(table.num_rows), lengths)
    position = {config: k for k, config in enumerate(node_configs)}
    columns = np.array([position.get(config, -1) for config in configs], dtype=np.int64)
    known = np.ones(table.num_rows, dtype=np.bool_)
    known[rows[columns < 0]] = False
    counts = np.zeros((table.num_rows, len(node_configs)), dtype=np.int16)
    inside = columns >= 0
    np.add.at(counts, (rows[inside], columns[inside]), many[inside].astype(np.int16))
    return counts, known


def _check_something_sold(
    candidates: WorkloadCandidates, price: NDArray[np.float64], demand: ModelDemand, table: pa.Table | None
) -> None:
    """Raise NothingFitsError unless some pool sells every node of some template that has a rate."""
    useful = candidates.counts[candidates.throughput_mtok_per_s > 0]
    if any((useful[:, np.isnan(row)] == 0).all(axis=1).any() for row in price):
        return
    total = 0 if table is None else table.num_rows
    where = ", ".join(demand.regions)
    if demand.node_configs is not None or demand.excluded:
        where += " within its node_configs"
    if total == 0:
        raise NothingFitsError(
            f"{candidates.alias} has no serving template", remedy="loosen its SLO, or allow larger or other nodes"
        )
    raise NothingFitsError(
        f"{candidates.alias}: none of its {counted(total, 'template')} can be bought whole in {where}",
        remedy="allow more regions, or rebuild the library for what these regions sell",
    )
