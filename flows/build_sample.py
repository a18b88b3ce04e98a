"""A sample of a build's placements, solved again by the reference ILP.

The sample is drawn from the library's id, so a repeated build checks the same combinations.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from catalogs.ids import combination_id
from warehouse.land import read_landed
from warehouse.records import LandedShard

if TYPE_CHECKING:
    from tasks.templates.shards import ShardSpec

# Beyond three nodes the ILP takes minutes.
SAMPLE_MAX_NODES = 3
_ILP_TIME_S = 10.0
REL_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SampleCase:
    """A combination to solve again: row ``row`` of the shard's combinations, and what is stored of the shard."""

    shard: ShardSpec
    row: int
    n_nodes: int
    file: LandedShard
    profile: LandedShard


@dataclass(frozen=True)
class SampleJob:
    """Cases, small ones first, to check one after the other until ``time_s`` have passed."""

    lake_root: Path
    cases: tuple[SampleCase, ...]
    time_s: float


@dataclass(frozen=True)
class SampleResult:
    """``n`` combinations were compared; the largest relative difference; the disagreements in words."""

    n: int
    max_rel_diff: float
    disagreements: tuple[str, ...]


def sample_job(
    lake_root: Path,
    seed: str,
    shards: Sequence[ShardSpec],
    files: Sequence[LandedShard],
    profiles: Mapping[str, LandedShard],
    n: int,
    time_s: float,
) -> SampleJob:
    """Draw about ``n`` combinations of at most three nodes, evenly over the workloads."""
    by_id = {file.shard_id: file for file in files}
    workloads = sorted({spec.workload_id for spec in shards})
    cases = []
    for number, workload_id in enumerate(workloads):
        share = n // len(workloads) + (number < n % len(workloads))
        rng = random.Random(f"{seed}/{workload_id}")  # noqa: S311 - a sample, not a secret
        drawn = _draw(rng, [spec for spec in shards if spec.workload_id == workload_id], share)
        cases += [
            SampleCase(spec, row, nodes, by_id[spec.shard_id], profiles[workload_id]) for spec, row, nodes in drawn
        ]
    return SampleJob(lake_root, tuple(sorted(cases, key=lambda case: case.n_nodes)), time_s)


def check_sample(job: SampleJob) -> SampleResult:
    """Solve a sample's combinations again by the paper's ILP and compare the rates with the stored ones.

    A case that is not reached, or not solved, in time counts as not checked.
    """
    from tasks.allocation.types import SolveLimits
    from tasks.templates.curves import WorkloadCurves, workload_curves
    from tasks.templates.ilp import IlpStatus, solve_ilp
    from tasks.templates.shards import shard_counts

    deadline = time.monotonic() + job.time_s
    curves: dict[str, WorkloadCurves] = {}
    n, worst, wrong = 0, 0.0, []
    for case in job.cases:
        if n and time.monotonic() > deadline:
            break
        spec = case.shard
        if spec.workload_id not in curves:
            curves[spec.workload_id] = workload_curves(read_landed(job.lake_root, [case.profile]), spec.layers)
        counts = shard_counts(spec)[case.row]
        name = combination_id(dict(zip(spec.node_configs, counts.tolist(), strict=True)))
        workload = curves[spec.workload_id].take(spec.node_configs)
        reference = solve_ilp(workload.curves, counts, SolveLimits(time_s=_ILP_TIME_S))
        if reference.status is IlpStatus.TIME_LIMIT:
            continue
        stored, again = _stored_rate(job.lake_root, case.file, name), reference.placement.throughput_mtok_per_s
        difference = abs(stored - again) / max(stored, again, 1)
        n, worst = n + 1, max(worst, difference)
        if difference > REL_TOLERANCE:
            wrong.append(f"{name} of {spec.workload_id}: stored {stored} milli-tok/s, ILP {again}")
    return SampleResult(n, worst, tuple(wrong))


def _draw(rng: random.Random, shards: Sequence[ShardSpec], n: int) -> list[tuple[ShardSpec, int, int]]:
    """``n`` distinct combinations (shard, row, nodes) of few nodes, shards weighted by their size; fewer where there are
    not enough."""
    from tasks.templates.shards import shard_counts

    few_of: dict[str, list[tuple[int, int]]] = {}
    drawn: dict[tuple[str, int], tuple[ShardSpec, int, int]] = {}
    weights = [spec.n_combinations for spec in shards]
    for _ in range(20 * n):
        if len(drawn) == n:
            break
        spec = rng.choices(shards, weights)[0]
        if spec.shard_id not in few_of:
            nodes = shard_counts(spec).sum(axis=1)
            few = np.flatnonzero(nodes <= SAMPLE_MAX_NODES)
            few_of[spec.shard_id] = list(zip(few.tolist(), nodes[few].tolist(), strict=True))
        if few_of[spec.shard_id]:
            row, n_nodes = rng.choice(few_of[spec.shard_id])
            drawn[spec.shard_id, row] = (spec, row, n_nodes)
    return list(drawn.values())


def _stored_rate(lake_root: Path, file: LandedShard, combination: str) -> int:
    """The rate in the shard's file; 0 where it has no such row, which says that nothing is feasible."""
    table = read_landed(lake_root, [file], ["combination_id", "throughput_mtok_per_s"])
    at = table["combination_id"].to_pylist()
    return int(table["throughput_mtok_per_s"][at.index(combination)].as_py()) if combination in at else 0
