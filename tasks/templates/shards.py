"""Shards of a template library: what is solved and stored as one file, named by everything that decides its content.

A shard is (workload, the exact set of GPU types its combinations use, slice). The sets depend on nothing else, so a new
GPU type only adds shards and every old one stays as it is, byte for byte; large sets are cut into slices by a fixed rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.errors import NothingFitsError
from catalogs.ids import short_hash, split_node_config
from tasks.templates.combinations import (
    enumerate_skeleton,
    estimate_count,
    maximal_sets,
    memory_limit_mib,
    memory_mib,
    require_room,
)
from tasks.templates.curves import WorkloadCurves, config_hashes, launch_curves, workload_curves
from tasks.templates.exact import solve_many
from tasks.templates.ilp import solve_ilps
from tasks.templates.launchable import LaunchableSolver
from tasks.templates.rows import template_table

SOLVER_VERSION = "2"
"""Part of every shard's id: raise it when the same inputs would give other rows."""
SLICE_WORK_S = 5.0
_ILP_WORK_S = 2.0
# Seconds of one core per (S, cycle) pair a combination is tried at, for one type of node.
_WORK_PER_PAIR_S = 0.12e-6
# Seconds per combination of six nodes at ten cycles; measured to double with every further node.
_WORK_OF_SIX_S = 60e-6


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One shard. ``sold_sets`` are the maximal sets of its configurations that a region sells; ``memory_limit_mib`` is
    rho x weights, but no more than the set can reach. ``n_combinations`` and ``work_s`` (an estimate) are the slice's.
    """

    shard_id: str
    workload_id: str
    layers: int
    gpus: tuple[str, ...]
    node_configs: tuple[str, ...]
    memory_mib: tuple[int, ...]
    sold_sets: tuple[tuple[str, ...], ...]
    n_max: int
    memory_limit_mib: int
    mode: str
    solver: str
    config_hashes: tuple[str, ...]
    slice_index: int
    slice_count: int
    n_combinations: int
    work_s: float


@dataclass(frozen=True, slots=True)
class LibraryLimits:
    """What bounds a library: nodes per combination, GPU memory in multiples of the weights; how it is solved."""

    n_max: int = 6
    rho: float = 12.0
    mode: str = "cycle"
    solver: str = "exact"


def plan_shards(
    profiles: pa.Table,
    launch: pa.Table | None = None,
    *,
    layers: int,
    weight_bytes: int,
    memory_gib: Mapping[str, float],
    sold_sets: Sequence[Sequence[str]],
    limits: LibraryLimits,
    what: str = "",
) -> tuple[ShardSpec, ...]:
    """Shards of one workload, in the order of their GPU sets and slices.

    ``profiles``: the workload's rows (PROFILE_SCHEMA); ``launch``: those of launchable layouts (see
    :func:`~tasks.templates.curves.launch_curves`), None = only the best placement of each combination; ``memory_gib``:
    GPU memory per node configuration; ``sold_sets``: what each region sells; ``what`` names the workload in messages.
    Configurations without a feasible rate, or that nobody sells, take no part. Raises :class:`NothingFitsError` where no
    combination can hold the model.
    """
    if limits.solver not in ("exact", "ilp"):
        raise ValueError(f"solver is {limits.solver!r}, not exact or ilp")
    workload = workload_curves(profiles, layers)
    what = what or workload.curves.workload_id
    usable = set(workload.usable())
    if not usable:
        raise NothingFitsError(f"{what}: no node configuration can hold a single layer ({_reasons(profiles)})")
    names = tuple(sorted(usable & {name for sold in sold_sets for name in sold}))
    index = {name: k for k, name in enumerate(names)}
    sold = [[index[name] for name in some if name in index] for some in sold_sets]
    memory = [memory_mib(memory_gib[name]) for name in names]
    require_room(names, memory, sold, limits.n_max, weight_bytes, limits.rho, what)
    gpus = sorted({split_node_config(name)[0] for name in names})
    gpu_of = [gpus.index(split_node_config(name)[0]) for name in names]
    limit = memory_limit_mib(weight_bytes, limits.rho)
    skeleton = enumerate_skeleton(memory, sold, limits.n_max, limit, gpu_of)
    work = estimated_work_s(skeleton.n_nodes, skeleton.n_types, workload.curves.cycle_ms, layers, limits.solver)
    masks, inverse, number = np.unique(skeleton.group_mask, return_inverse=True, return_counts=True)
    total_work = np.bincount(inverse.reshape(-1), weights=work, minlength=len(masks))
    hashes = config_hashes(workload, _launch_curves(workload, launch))
    specs = []
    for mask, count, seconds in zip(masks.tolist(), number.tolist(), total_work.tolist(), strict=True):
        members = [k for k in range(len(names)) if mask >> gpu_of[k] & 1]
        specs += _slices(
            workload,
            [names[k] for k in members],
            [memory[k] for k in members],
            sold_sets,
            limit,
            limits,
            hashes,
            count,
            seconds,
        )
    return tuple(sorted(specs, key=lambda spec: (len(spec.gpus), spec.gpus, spec.slice_index)))


def _slices(
    workload: WorkloadCurves,
    names: list[str],
    memory: list[int],
    sold_sets: Sequence[Sequence[str]],
    limit: int,
    limits: LibraryLimits,
    hashes: Mapping[str, str],
    count: int,
    work_s: float,
) -> list[ShardSpec]:
    """The shards of one GPU set: as many equal slices as bring the estimated work of each to ``SLICE_WORK_S``."""
    index = {name: k for k, name in enumerate(names)}
    sold = maximal_sets([[index[name] for name in some if name in index] for some in sold_sets])
    whole = ShardSpec(
        shard_id="",
        workload_id=workload.curves.workload_id,
        layers=workload.curves.layers,
        gpus=tuple(sorted({split_node_config(name)[0] for name in names})),
        node_configs=tuple(names),
        memory_mib=tuple(memory),
        sold_sets=tuple(tuple(names[k] for k in some) for some in sold),
        n_max=limits.n_max,
        memory_limit_mib=min(limit, limits.n_max * max(memory)),
        mode=limits.mode,
        solver=limits.solver,
        config_hashes=tuple(hashes[name] for name in names),
        slice_index=0,
        slice_count=min(count, max(1, math.ceil(work_s / SLICE_WORK_S))),
        n_combinations=count,
        work_s=work_s,
    )
    parts = []
    for i in range(whole.slice_count):
        share = len(range(i, count, whole.slice_count))
        part = replace(whole, slice_index=i, n_combinations=share, work_s=work_s * share / count)
        parts.append(replace(part, shard_id=_shard_id(part)))
    return parts


def _shard_id(spec: ShardSpec) -> str:
    """Hash of what decides the shard's rows: every field but the estimate, and the solver's version."""
    content = {name: value for name, value in asdict(spec).items() if name not in ("shard_id", "work_s")}
    return short_hash({**content, "solver_version": SOLVER_VERSION})


def estimated_work_s(
    n_nodes: NDArray[np.int64], n_types: NDArray[np.int64], cycle_ms: NDArray[np.float64], layers: int, solver: str
) -> NDArray[np.float64]:
    """Estimated seconds per combination: what slices are cut by, so a function of the combination and workload alone."""
    pairs = np.cumsum((~np.isnan(cycle_ms)).sum(axis=1)[: max(1, layers)])
    tried = pairs[np.minimum(n_nodes, len(pairs)) - 1]
    if solver == "ilp":
        return _ILP_WORK_S * n_nodes.astype(np.float64)
    return 6e-6 + _WORK_PER_PAIR_S * tried * (1.0 + n_types * n_types / 6.0)


def estimate_library(
    memory_gib: Mapping[str, float], sold_sets: Sequence[Sequence[str]], weight_bytes: int, limits: LibraryLimits
) -> tuple[int, float]:
    """About (combinations, seconds of one core) a workload's library takes, without enumerating: for a warning before
    n_max or rho makes it explode. Assumes that every sold configuration has a feasible profile, with ten cycles.
    """
    names = sorted({name for sold in sold_sets for name in sold})
    index = {name: k for k, name in enumerate(names)}
    sold = [[index[name] for name in some] for some in sold_sets]
    memory = [memory_mib(memory_gib[name]) for name in names]
    count = estimate_count(memory, sold, limits.n_max, memory_limit_mib(weight_bytes, limits.rho))
    each_s = _ILP_WORK_S * limits.n_max if limits.solver == "ilp" else _WORK_OF_SIX_S * 2.0 ** (limits.n_max - 6)
    return count, count * each_s


def _reasons(profiles: pa.Table) -> str:
    """How often each reason makes a first layer infeasible, most frequent first."""
    rows = profiles.filter(pc.is_valid(profiles["reason"]))
    counted = pc.value_counts(rows["reason"]).to_pylist()
    ordered = sorted(counted, key=lambda item: (-item["counts"], item["values"]))
    return ", ".join(f"{item['values']} in {item['counts']} cells" for item in ordered) or "no rows"


def shard_counts(spec: ShardSpec) -> NDArray[np.int8]:
    """Node counts [n_combinations, K] of a shard over ``spec.node_configs``: every slice_count-th of its GPU set's."""
    index = {name: k for k, name in enumerate(spec.node_configs)}
    groups = [spec.gpus.index(split_node_config(name)[0]) for name in spec.node_configs]
    sold = [[index[name] for name in some] for some in spec.sold_sets]
    skeleton = enumerate_skeleton(spec.memory_mib, sold, spec.n_max, spec.memory_limit_mib, groups, use_all_groups=True)
    counts = skeleton.counts(len(spec.node_configs))[spec.slice_index :: spec.slice_count]
    if len(counts) != spec.n_combinations:
        raise RuntimeError(f"shard {spec.shard_id} has {len(counts)} combinations, {spec.n_combinations} were planned")
    return counts


def solve_shards(specs: Sequence[ShardSpec], profiles: pa.Table, launch: pa.Table | None = None) -> list[pa.Table]:
    """Solve shards of one workload: a table (TEMPLATE_SCHEMA) each, with one or two rows per feasible combination.

    Raises ValueError when ``profiles`` or ``launch`` are not the tables the shards were planned with.
    """
    tables: list[pa.Table] = []
    if not specs:
        return tables
    workload = workload_curves(profiles, specs[0].layers)
    degrees = _launch_curves(workload, launch)
    hashes = config_hashes(workload, degrees)
    launchable = {solver: LaunchableSolver(degrees, by_ilp=solver == "ilp") for solver in ("exact", "ilp")}
    for spec in specs:
        stale = [
            name for name, key in zip(spec.node_configs, spec.config_hashes, strict=True) if hashes.get(name) != key
        ]
        if stale or spec.workload_id != workload.curves.workload_id:
            raise ValueError(f"shard {spec.shard_id} was planned with other profiles ({spec.workload_id}, {stale[:3]})")
        part, counts = workload.take(spec.node_configs), shard_counts(spec)
        batch = solve_many(part.curves, counts) if spec.solver == "exact" else solve_ilps(part.curves, counts)
        best = template_table(spec.shard_id, batch, part)
        tables.append(launchable[spec.solver].added_to(best, spec.shard_id, counts, spec.node_configs))
    return tables


def _launch_curves(workload: WorkloadCurves, launch: pa.Table | None) -> dict[int, WorkloadCurves]:
    return {} if launch is None else launch_curves(workload, launch)


def solve_shard(spec: ShardSpec, profiles: pa.Table, launch: pa.Table | None = None) -> pa.Table:
    """One shard; see :func:`solve_shards`."""
    return solve_shards([spec], profiles, launch)[0]
