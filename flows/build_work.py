"""The work of a build, task by task: files of the lake in, files of the lake out. No Prefect here.

Every function may run in a thread of the command or on a worker elsewhere, may be repeated, and finds what was
finished before. What it is given is small: names of files, not their content.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalogs.ids import short_hash
from warehouse.keys import known_profile, remember_profile
from warehouse.land import content_hash, find_shard, read_landed, read_profiles, with_launch_rows, write_shard
from warehouse.records import LandedShard, ShardKind

if TYPE_CHECKING:
    from flows.build_inputs import ProfileInputs
    from tasks.templates.shards import ShardSpec

FRONTIER_FILTER = "all"
MEASURED_FILTER = "measured"
LAUNCHABLE_FILTER = "launchable"
FRONTIER_VERSION = "1"
# Shards of one workload are solved together until they are worth this much: reading its profiles costs about 0.3 s.
_CHUNK_S = 2.0

STOP = threading.Event()
"""Set in the command's own process when it gives up: tasks in its threads then end between two files."""


class StoppedError(Exception):
    """A task ended early because the command gave up."""


@dataclass(frozen=True)
class ProfileJob:
    """Compute the profile files of ``parts`` (of any workloads)."""

    lake_root: Path
    parts: tuple[ProfileInputs, ...]


@dataclass(frozen=True)
class SolveJob:
    """Solve ``shards`` (of any workloads); ``profiles`` holds the profile files of each workload by GPU type."""

    lake_root: Path
    shards: tuple[ShardSpec, ...]
    profiles: Mapping[str, Mapping[str, LandedShard]]
    force: bool = False


@dataclass(frozen=True)
class SolvedShards:
    """Files of a solve job, with the seconds spent per workload."""

    files: tuple[LandedShard, ...]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class FrontierJob:
    """Find the frontier of one workload. ``price_usd_per_h``: per region, per node configuration sold there."""

    lake_root: Path
    workload_id: str
    shards: tuple[LandedShard, ...]
    price_usd_per_h: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class FrontierFile:
    """A workload's frontiers: of all templates, of those on measured ground, of those that stock engines launch; and the
    template of most tokens per USD (in words)."""

    file: LandedShard
    measured: LandedShard
    launchable: LandedShard
    best_template: str

    @property
    def files(self) -> tuple[LandedShard, ...]:
        """All of them."""
        return self.file, self.measured, self.launchable


def profile(job: ProfileJob) -> tuple[LandedShard, ...]:
    """The profile files of the job's parts, in their order."""
    return tuple(_profile_file(job.lake_root, part) for part in job.parts)


def landed_profile(lake_root: Path, part: ProfileInputs) -> LandedShard | None:
    """The profile file that the same inputs gave before, or None."""
    known = known_profile(lake_root, part.key)
    return find_shard(lake_root, known, kind=ShardKind.PROFILES) if known else None


def _profile_file(lake_root: Path, part: ProfileInputs) -> LandedShard:
    """The profile file of ``part``, computed unless it is there. Its id is a hash of its rows."""
    found = landed_profile(lake_root, part)
    if found is not None:
        return found
    stop_if_asked()
    from tasks.profiling.launch import launch_profile
    from tasks.profiling.measured import with_measured
    from tasks.profiling.profile import profile_workload

    gpu, factors = part.gpu.gpu, {} if part.efficiency is None else {part.gpu.gpu: part.efficiency}
    world = (part.node_configs, {gpu: part.gpu}, factors, part.settings, part.mode, part.max_stages)
    best = profile_workload(part.workload, *world)
    best = with_measured(best, part.measured, part.workload, part.settings, part.mode, part.max_stages)
    table = with_launch_rows(best, launch_profile(best, part.workload, *world))
    file = write_shard(
        lake_root, table, content_hash(table), kind=ShardKind.PROFILES, workload_id=part.workload.workload_id
    )
    remember_profile(lake_root, part.key, file.shard_id)
    return file


def solve(job: SolveJob) -> SolvedShards:
    """Solve and land the job's shards that have no file yet."""
    from tasks.templates.shards import solve_shards

    files: list[LandedShard] = []
    seconds: dict[str, float] = {}
    for workload_id, chunk in chunks(job.shards):
        missing = []
        for spec in chunk:
            found = None if job.force else find_shard(job.lake_root, spec.shard_id)
            if found is None:
                missing.append(spec)
            else:
                files.append(found)
        if not missing:
            continue
        stop_if_asked()
        started = time.perf_counter()
        needed = sorted({gpu for spec in missing for gpu in spec.gpus})
        profiles = [job.profiles[workload_id][gpu] for gpu in needed]
        tables = solve_shards(missing, *read_profiles(job.lake_root, profiles))
        seconds[workload_id] = seconds.get(workload_id, 0.0) + time.perf_counter() - started
        for spec, table in zip(missing, tables, strict=True):
            files.append(write_shard(job.lake_root, table, spec.shard_id, workload_id=workload_id))
    return SolvedShards(tuple(files), seconds)


def frontier(job: FrontierJob) -> FrontierFile:
    """Find and land the frontiers of a workload: templates that no packing of smaller ones replaces, and the same among
    those whose rates are measured or fitted to measurements, and among those that stock engines launch."""
    from tasks.allocation.safety import MEASURED_GROUND
    from tasks.templates.frontier import frontier_mask
    from tasks.templates.launch_class import LAUNCHABLE

    stop_if_asked()
    columns = ["template_id", "combination_id", "throughput_mtok_per_s", "launch_class", "provenance", "nodes"]
    templates = read_landed(job.lake_root, job.shards, columns)
    configs, counts = node_counts(templates)
    rates = templates["throughput_mtok_per_s"].to_numpy()
    kept = frontier_mask(counts, rates)

    def among(column: str, allowed: frozenset[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        mask = pc.is_in(templates[column], pa.array(sorted(allowed))).to_numpy()
        if mask.all():
            return kept
        some = np.zeros(len(rates), np.bool_)
        some[mask] = frontier_mask(counts[mask], rates[mask])
        return some

    ids = templates["template_id"].combine_chunks()
    return FrontierFile(
        _land_frontier(job, FRONTIER_FILTER, ids.filter(pa.array(kept))),
        _land_frontier(job, MEASURED_FILTER, ids.filter(pa.array(among("provenance", MEASURED_GROUND)))),
        _land_frontier(job, LAUNCHABLE_FILTER, ids.filter(pa.array(among("launch_class", LAUNCHABLE)))),
        _best_template(templates, configs, counts, job.price_usd_per_h),
    )


def _land_frontier(job: FrontierJob, filter_id: str, template_ids: pa.Array) -> LandedShard:
    """The file of a frontier, written unless it is there."""
    frontier_id = short_hash([FRONTIER_VERSION, filter_id, sorted(shard.shard_id for shard in job.shards)])
    found = find_shard(job.lake_root, frontier_id, kind=ShardKind.FRONTIER)
    if found is not None:
        return found
    return write_shard(
        job.lake_root,
        _frontier_table(frontier_id, filter_id, job.workload_id, template_ids),
        frontier_id,
        kind=ShardKind.FRONTIER,
        workload_id=job.workload_id,
        filter_id=filter_id,
    )


def node_counts(templates: pa.Table) -> tuple[tuple[str, ...], np.ndarray[Any, np.dtype[np.int8]]]:
    """Node configurations (sorted) of a template table and each row's counts of them: int8 [N, K]."""
    nodes = templates["nodes"].combine_chunks()
    flat = nodes.flatten()
    encoded = flat.field("node_config").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    column = np.argsort(np.array(order, np.int64)) if order else np.zeros(0, np.int64)
    rows = np.repeat(np.arange(len(nodes)), nodes.value_lengths().to_numpy(zero_copy_only=False))
    counts = np.zeros((len(nodes), len(names)), np.int8)
    counts[rows, column[encoded.indices.to_numpy(zero_copy_only=False)]] = flat.field("nodes").to_numpy(
        zero_copy_only=False
    )
    return tuple(names[i] for i in order), counts


def _frontier_table(frontier_id: str, filter_id: str, workload_id: str, template_ids: pa.Array) -> pa.Table:
    def same(value: str) -> pa.Array:
        return pa.repeat(pa.scalar(value, pa.string()), len(template_ids))

    return pa.table(
        {
            "frontier_id": same(frontier_id),
            "filter_id": same(filter_id),
            "workload_id": same(workload_id),
            "template_id": template_ids.cast(pa.string()),
        }
    )


def _best_template(
    templates: pa.Table,
    configs: Sequence[str],
    counts: np.ndarray[Any, np.dtype[np.int8]],
    price_usd_per_h: Mapping[str, Mapping[str, float]],
) -> str:
    """The template of most tokens per USD over all regions, in words; '' where none is sold whole anywhere."""
    tok_per_h = templates["throughput_mtok_per_s"].to_numpy() * 3.6
    best, text = 0.0, ""
    for region, prices in sorted(price_usd_per_h.items()):
        price = np.array([prices.get(config, np.inf) for config in configs])
        cost = np.where(counts > 0, counts * np.where(counts > 0, price, 0.0), 0.0).sum(axis=1)
        per_usd = np.where(cost > 0, tok_per_h / cost, 0.0)
        row = int(per_usd.argmax()) if len(per_usd) else 0
        if len(per_usd) and per_usd[row] > best:
            best = float(per_usd[row])
            combination = templates["combination_id"][row].as_py()
            text = f"{combination} in {region}: {1e6 / best:.3f} USD per million tokens"
    return text


def chunks(shards: Sequence[ShardSpec]) -> list[tuple[str, list[ShardSpec]]]:
    """Shards by workload, in order, in chunks of about ``_CHUNK_S`` of work: what is lost when a task is killed."""
    found: list[tuple[str, list[ShardSpec]]] = []
    work_s = 0.0
    for spec in sorted(shards, key=lambda spec: spec.workload_id):
        if not found or found[-1][0] != spec.workload_id or work_s + spec.work_s > _CHUNK_S:
            found.append((spec.workload_id, []))
            work_s = 0.0
        found[-1][1].append(spec)
        work_s += spec.work_s
    return found


def stop_if_asked() -> None:
    """Raise StoppedError when the command of this process has given up."""
    if STOP.is_set():
        raise StoppedError
