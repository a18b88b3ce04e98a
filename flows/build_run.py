"""One run of a build: the steps in their order, and what is kept of them. Prefect's part is handed in as tasks."""

from __future__ import annotations

import contextvars
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from catalogs.errors import NothingFitsError
from catalogs.wording import counted
from flows import build_work
from flows.batching import batch_by_work
from flows.build_explain import nothing_fits
from flows.build_inputs import BuildInputs, WorkloadInputs
from flows.build_sample import SampledWorkload, SampleResult, all_samples, sample_jobs
from flows.fan_out import run_all
from flows.runner import code_hash
from flows.settings import BuildResult, BuildSettings, Progress, WorkloadCounts, progress_stage
from tasks.profiling.shapes import ModelShape
from tasks.templates.shards import SOLVER_VERSION, LibraryLimits, ShardSpec, plan_shards
from warehouse.connect import Lake
from warehouse.land import find_shard, read_profiles
from warehouse.publish import log_build, profile_set_id, register_library
from warehouse.records import BuildRecord, BuildStatus, LandedShard, LibraryRecord, ReferenceInputs, utc_now

# Reading the profiles of a workload, and making curves of them.
_CHUNK_OVERHEAD_S = 0.3
_SAMPLE_JOBS = 2


# Profile files by workload id and GPU type.
Profiles = Mapping[str, Mapping[str, LandedShard]]


@dataclass(frozen=True)
class BuildCall:
    """What a call in this process hands to the flow past its (plain, recorded) parameters."""

    settings: BuildSettings
    inputs: BuildInputs
    progress: Progress


# Not in the flow's own module: prefect sends the flow to workers by value, with the globals it names.
CALL: contextvars.ContextVar[BuildCall | None] = contextvars.ContextVar("coral_build_call", default=None)


class BuildRun:
    """One run. The steps are methods in the order they run; ``tasks`` are Prefect tasks by stage (see ``stage``)."""

    def __init__(self, call: BuildCall, tasks: Mapping[str, Any]) -> None:
        self.settings, self.inputs, self.progress = call.settings, call.inputs, call.progress
        settings, inputs, self.tasks = call.settings, call.inputs, tasks
        # Workers elsewhere run in other working folders.
        self.lake_root = settings.lake_root.resolve()
        self.started, self.started_at = time.perf_counter(), datetime.now(UTC)
        self.by_id = {item.workload_id: item for item in inputs.workloads}
        self.slots = settings.threads

    def run(self) -> BuildResult:
        """Build and register the library."""
        profiles = self.profile()
        profile_set = profile_set_id(file.shard_id for files in profiles.values() for file in files.values())
        version = f"{self.inputs.solver}-{SOLVER_VERSION}"
        library_id = self.inputs.library_id(profile_set, version)
        with progress_stage(self.progress, "plan shards"):
            shards = self.plan(profiles)
        solved, seconds, todo = self.solve(shards, profiles)
        skipped = len(shards) - len(todo)
        files = {name: [file for file in solved if file.workload_id == name] for name in self.by_id}
        self.refuse_empty(files)
        frontiers = self.frontier(files)
        sample = self.sample(library_id, shards, solved, profiles)
        counts = self.counts(shards, files, frontiers, seconds)
        record = self.record(library_id, counts, len(shards), skipped, sample)
        content = self.register(profile_set, version, record, solved, profiles, frontiers)
        return BuildResult(
            library_id=library_id,
            library_hash=content,
            profile_set_id=profile_set,
            is_new=True,
            combinations=record.n_combinations,
            templates=record.n_templates,
            shards=len(shards),
            shards_skipped=skipped,
            solve_s=record.solve_s,
            wall_s=time.perf_counter() - self.started,
            sample_n=sample.n,
            sample_max_rel_diff=sample.max_rel_diff,
            combinations_solved=sum(spec.n_combinations for spec in todo),
            workloads=counts,
        )

    def profile(self) -> Profiles:
        """All profile files; those that the same inputs gave before are not computed again."""
        parts = [part for item in self.inputs.workloads for part in self.inputs.profile_inputs(item)]
        files = {part.key: build_work.landed_profile(self.lake_root, part) for part in parts}
        todo = [part for part in parts if files[part.key] is None]
        batches = batch_by_work(todo, [part.work_s for part in todo], slots=self.slots)
        jobs = [build_work.ProfileJob(self.lake_root, batch) for batch in batches]
        weights = [sum(part.work_s for part in batch) for batch in batches]
        labels = [f"{number + 1} of {len(jobs)}: {counted(len(job.parts), 'file')}" for number, job in enumerate(jobs)]
        done = self.stage(
            "profile",
            jobs,
            labels,
            weights,
            note=f"{counted(len(parts) - len(todo), 'file was', 'files were')} done before",
        )
        for job, made in zip(jobs, done, strict=True):
            files |= {part.key: file for part, file in zip(job.parts, made, strict=True)}
        found: dict[str, dict[str, LandedShard]] = {}
        for part in parts:
            file = files[part.key]
            assert file is not None  # done before, or just now
            found.setdefault(part.workload.workload_id, {})[part.gpu.gpu] = file
        return found

    def plan(self, profiles: Profiles) -> list[ShardSpec]:
        """Shards of all workloads. Raises NothingFitsError naming every workload that nothing can serve."""
        shards: list[ShardSpec] = []
        refused: dict[str, NothingFitsError] = {}
        for name, item in self.by_id.items():
            try:
                shards += self.plan_workload(item, profiles[name])
            except NothingFitsError as error:
                refused[name] = error
        if refused:
            raise nothing_fits(self.inputs, [self.by_id[name] for name in refused], list(refused.values()))
        return shards

    def plan_workload(self, item: WorkloadInputs, profiles: Mapping[str, LandedShard]) -> tuple[ShardSpec, ...]:
        """Shards of one workload."""
        inputs, workload = self.inputs, item.workload
        shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
        return plan_shards(
            *read_profiles(self.lake_root, list(profiles.values())),
            layers=workload.model.layers,
            weight_bytes=int(shape.weight_bytes),
            memory_gib={config.node_config: config.memory_gib for config in inputs.node_configs},
            sold_sets=item.sold_sets,
            limits=LibraryLimits(inputs.n_max, inputs.rho, inputs.mode, inputs.solver),
            what=workload.alias,
        )

    def solve(
        self, shards: Sequence[ShardSpec], profiles: Profiles
    ) -> tuple[list[LandedShard], dict[str, float], list[ShardSpec]]:
        """Files of all shards in the order of their ids, seconds per workload, and the shards that had no file yet."""
        found = {} if self.settings.force else {s.shard_id: find_shard(self.lake_root, s.shard_id) for s in shards}
        files = [file for file in found.values() if file is not None]
        todo = [spec for spec in shards if found.get(spec.shard_id) is None]
        # Whole chunks, so that few tasks read the profiles of one workload.
        parts = [tuple(chunk) for _, chunk in build_work.chunks(todo)]
        work = [_CHUNK_OVERHEAD_S + sum(spec.work_s for spec in part) for part in parts]
        batches = batch_by_work(list(zip(parts, work, strict=True)), work, slots=self.slots)
        jobs = [self.solve_job(tuple(spec for part, _ in batch for spec in part), profiles) for batch in batches]
        weights = [sum(seconds for _, seconds in batch) for batch in batches]
        labels = [
            f"{number + 1} of {len(jobs)}: {counted(len(job.shards), 'shard')}" for number, job in enumerate(jobs)
        ]
        seconds = dict.fromkeys(self.by_id, 0.0)
        for done in self.stage(
            "solve", jobs, labels, weights, note=f"{counted(len(files), 'shard was', 'shards were')} done before"
        ):
            files += done.files
            for name, spent in done.seconds.items():
                seconds[name] += spent
        return sorted(files, key=lambda file: file.shard_id), seconds, todo

    def solve_job(self, batch: tuple[ShardSpec, ...], profiles: Profiles) -> build_work.SolveJob:
        """The job of one batch, with just the profiles it needs."""
        needed = {spec.workload_id: profiles[spec.workload_id] for spec in batch}
        return build_work.SolveJob(self.lake_root, batch, needed, self.settings.force)

    def refuse_empty(self, files: dict[str, list[LandedShard]]) -> None:
        """Raise NothingFitsError for workloads none of whose combinations has a placement."""
        empty = [item for name, item in self.by_id.items() if not sum(file.rows for file in files[name])]
        if empty:
            raise nothing_fits(self.inputs, empty)

    def frontier(self, files: dict[str, list[LandedShard]]) -> dict[str, build_work.FrontierFile]:
        """Frontier files by workload id."""
        prices: dict[str, dict[str, float]] = {}
        for (region, config), offer in self.inputs.loaded.best.items():
            prices.setdefault(region, {})[config] = offer.price_usd_per_h
        jobs = [build_work.FrontierJob(self.lake_root, name, tuple(shards), prices) for name, shards in files.items()]
        labels = [self.by_id[job.workload_id].workload.alias for job in jobs]
        done: list[build_work.FrontierFile] = self.stage("frontier", jobs, labels)
        return {job.workload_id: frontier for job, frontier in zip(jobs, done, strict=True)}

    def sample(
        self,
        library_id: str,
        shards: Sequence[ShardSpec],
        files: Sequence[LandedShard],
        profiles: Profiles,
    ) -> SampleResult:
        """Solve some combinations again by the ILP. A disagreement is recorded as a failed build and raised."""
        settings, count = self.settings, len(self.by_id)
        workloads = [
            SampledWorkload(
                item.workload.alias,
                tuple(spec for spec in shards if spec.workload_id == name),
                tuple(file for file in files if file.workload_id == name),
                tuple(profiles[name].values()),
                settings.sample_n // count + (number < settings.sample_n % count),
            )
            for number, (name, item) in enumerate(self.by_id.items())
        ]
        # No more jobs than surely run side by side: each may take all the time there is.
        n_jobs = min(settings.threads, _SAMPLE_JOBS)
        jobs = sample_jobs(self.lake_root, library_id, workloads, n_jobs, settings.sample_time_s)
        labels = [f"{sum(workload.n for workload in job.workloads)} combinations" for job in jobs]
        result = all_samples(self.stage("check sample", jobs, labels))
        if result.disagreements:
            record = self.record(library_id, (), len(shards), 0, result, BuildStatus.FAILED)
            with Lake.open(self.lake_root) as lake:
                log_build(lake, record)
            raise RuntimeError("the reference ILP disagrees: " + "; ".join(result.disagreements))
        return result

    def counts(
        self,
        shards: Sequence[ShardSpec],
        files: dict[str, list[LandedShard]],
        frontiers: dict[str, build_work.FrontierFile],
        seconds: dict[str, float],
    ) -> tuple[WorkloadCounts, ...]:
        """What was made, per workload, by alias."""
        return tuple(
            WorkloadCounts(
                workload_id=name,
                alias=item.workload.alias,
                combinations=sum(spec.n_combinations for spec in shards if spec.workload_id == name),
                templates=sum(file.rows for file in files[name]),
                frontier=frontiers[name].file.rows,
                solve_s=seconds[name],
                best_template=frontiers[name].best_template,
            )
            for name, item in sorted(self.by_id.items(), key=lambda pair: pair[1].workload.alias)
        )

    def record(
        self,
        library_id: str,
        counts: Sequence[WorkloadCounts],
        n_shards: int,
        skipped: int,
        sample: SampleResult,
        status: BuildStatus = BuildStatus.COMPLETE,
    ) -> BuildRecord:
        """The row of this run in ``builds``."""
        return BuildRecord(
            build_id=uuid.uuid4().hex,
            library_id=library_id,
            started_at=self.started_at,
            status=status,
            n_combinations=sum(count.combinations for count in counts),
            n_templates=sum(count.templates for count in counts),
            n_shards_computed=n_shards - skipped,
            n_shards_reused=skipped,
            solve_s=sum(count.solve_s for count in counts),
            sample_n=sample.n,
            sample_max_rel_diff=sample.max_rel_diff if sample.n else None,
            code_version=code_hash(),
            finished_at=utc_now(),
        )

    def register(
        self,
        profile_set: str,
        version: str,
        record: BuildRecord,
        files: Sequence[LandedShard],
        profiles: Profiles,
        frontiers: dict[str, build_work.FrontierFile],
    ) -> str:
        """Register all files in one transaction; the library's content hash."""
        inputs = self.inputs
        library = LibraryRecord(
            library_id=record.library_id,
            library_key=inputs.library_key,
            profile_set_id=profile_set,
            n_max=inputs.n_max,
            rho=inputs.rho,
            mode=inputs.mode,
            solver_version=version,
            node_configs=tuple(config.node_config for config in inputs.node_configs),
        )
        workloads = [item.workload for item in inputs.workloads]
        reference = ReferenceInputs(
            node_configs=inputs.node_configs,
            offers=inputs.loaded.offers,
            models=list({workload.model.model: workload.model for workload in workloads}.values()),
            workloads=workloads,
        )
        with progress_stage(self.progress, "register"), Lake.open(self.lake_root) as lake:
            return register_library(
                lake,
                library,
                list(files),
                [file for files_of in profiles.values() for file in files_of.values()],
                [file for frontier in frontiers.values() for file in frontier.files],
                record,
                reference,
            )

    def stage(
        self,
        name: str,
        jobs: Sequence[Any],
        labels: Sequence[str],
        weights: Sequence[float] | None = None,
        note: str = "",
    ) -> list[Any]:
        """Results of the stage's task on every job, in order, with progress by ``weights``."""
        weights = weights or [1.0] * len(jobs)
        self.progress.start(name, sum(weights))
        results = run_all(self.tasks[name], jobs, labels, lambda number: self.progress.advance(name, weights[number]))
        self.progress.finish(name, note)
        return results
