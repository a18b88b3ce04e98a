"""A sample of a build's placements, solved again by the reference ILP.

The sample is drawn from the library's id, so a repeated build checks the same combinations.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.build_work import stop_if_asked
from warehouse.land import read_landed, read_profiles
from warehouse.records import LandedShard

if TYPE_CHECKING:
    from tasks.templates.shards import ShardSpec

# One ILP of a combination takes seconds; one that takes longer is not compared.
_ILP_TIME_S = 10.0
REL_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SampledWorkload:
    """All shards of a workload with their files, its profile files, and how many combinations to check (at least one)."""

    alias: str
    shards: tuple[ShardSpec, ...]
    files: tuple[LandedShard, ...]
    profiles: tuple[LandedShard, ...]
    n: int


@dataclass(frozen=True)
class SampleJob:
    """Check combinations of ``workloads`` as far as ``time_s`` go (at least one of each)."""

    lake_root: Path
    library_id: str
    workloads: tuple[SampledWorkload, ...]
    time_s: float


@dataclass(frozen=True)
class SampleResult:
    """``n`` combinations were compared; the largest relative difference; those that differ, in words."""

    n: int
    max_rel_diff: float
    disagreements: tuple[str, ...]


def sample_jobs(
    lake_root: Path, library_id: str, workloads: Sequence[SampledWorkload], jobs: int, time_s: float
) -> list[SampleJob]:
    """Up to ``jobs`` jobs of ``time_s`` each that check all ``workloads``, but those of no combinations."""
    wanted = [workload for workload in workloads if workload.n]
    parts = [tuple(wanted[number::jobs]) for number in range(jobs)]
    return [SampleJob(lake_root, library_id, part, time_s) for part in parts if part]


def all_samples(results: Sequence[SampleResult]) -> SampleResult:
    """The results of all jobs as one; of none: nothing was compared."""
    return SampleResult(
        sum(result.n for result in results),
        max((result.max_rel_diff for result in results), default=0.0),
        tuple(text for result in results for text in result.disagreements),
    )


def check_sample(job: SampleJob) -> SampleResult:
    """Solve a sample's combinations again by the paper's ILP and compare the rates with the stored ones."""
    from tasks.allocation.types import SolveLimits
    from tasks.templates.sample import sample_check

    started = time.monotonic()
    n, worst, wrong = 0, 0.0, []
    for done, workload in enumerate(job.workloads):
        stop_if_asked()
        # What one workload leaves over, the next ones may use.
        share_s = job.time_s * (done + 1) / len(job.workloads) - (time.monotonic() - started)
        check = sample_check(
            workload.shards,
            read_landed(job.lake_root, workload.files, ["combination_id", "throughput_mtok_per_s", "launch_class"]),
            *read_profiles(job.lake_root, workload.profiles),
            size=workload.n,
            seed=int(job.library_id[:8], 16),
            limits=SolveLimits(time_s=_ILP_TIME_S),
            time_s=share_s,
        )
        n, worst = n + check.n, max(worst, check.max_rel_diff)
        if check.max_rel_diff > REL_TOLERANCE:
            wrong += [f"{name} of {workload.alias}" for name in check.differing]
    return SampleResult(n, worst, tuple(wrong))
