"""What a build is asked for, how it reports progress, and what it answers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from catalogs.scenario_kv import CrossRegionKvSection

DEFAULT_LAKE = Path(".coral")


class Progress(Protocol):
    """Where a build reports to. Calls come from the thread that called :func:`flows.build.build_library` only."""

    def start(self, stage: str, total: float) -> None:
        """A stage of the build begins; ``total`` is its work, in a unit of the stage's own."""

    def advance(self, stage: str, amount: float) -> None:
        """``amount`` more of the stage's work is done."""

    def finish(self, stage: str, note: str = "") -> None:
        """The stage is done; ``note`` says the result in a few words."""

    def message(self, text: str) -> None:
        """A line for the user."""


class SilentProgress:
    """A :class:`Progress` that shows nothing."""

    def start(self, stage: str, total: float) -> None:
        """Ignore."""

    def advance(self, stage: str, amount: float) -> None:
        """Ignore."""

    def finish(self, stage: str, note: str = "") -> None:
        """Ignore."""

    def message(self, text: str) -> None:
        """Ignore."""


@contextlib.contextmanager
def progress_stage(progress: Progress, stage: str, total: float = 1.0) -> Iterator[None]:
    """A stage that is done at the end of the block, for work that cannot say how far it is."""
    progress.start(stage, total)
    yield
    progress.advance(stage, total)
    progress.finish(stage)


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """One call of ``coral build``.

    ``scenario`` is the name of a shipped scenario or a path. ``mode`` (``cycle`` or ``paper``) overrides the scenario's.
    ``solver`` is ``exact`` or ``ilp``. ``dask_address`` None = ``threads`` threads of this process, else ``threads`` becomes
    the number of threads that the scheduler's workers have. ``sample_n`` combinations, and a quarter as
    many for their best launchable placement, are solved again by the ILP, as many as ``sample_time_s`` allow.
    ``force`` solves finished shards again as well. ``safety_percentile``, ``measured_only``, ``launchable_only`` and
    ``cross_region_kv`` replace the scenario's policy where they are set. ``library_key`` None = the library becomes the
    scenario's current one, else that of this key. ``accept_large`` builds whatever the size.
    """

    scenario: str | Path
    lake_root: Path
    mode: str | None = None
    solver: str = "exact"
    dask_address: str | None = None
    threads: int = field(default_factory=lambda: max(1, min(os.cpu_count() or 1, 8)))
    sample_n: int = 24
    sample_time_s: float = 60.0
    force: bool = False
    safety_percentile: float | None = None
    measured_only: bool = False
    launchable_only: bool = False
    cross_region_kv: CrossRegionKvSection | None = None
    library_key: str | None = None
    accept_large: bool = False

    def with_policy(self, loaded: LoadedScenario) -> LoadedScenario:
        """The scenario with the policy that this call sets over its own."""
        update: dict[str, object] = {}
        if self.safety_percentile is not None:
            update["safety_percentile"] = self.safety_percentile
        if self.cross_region_kv is not None:
            update["cross_region_kv"] = self.cross_region_kv
        update |= {name: True for name in ("measured_only", "launchable_only") if getattr(self, name)}
        if not update:
            return loaded
        scenario = loaded.scenario
        policy = scenario.policy.model_copy(update=update)
        return replace(loaded, scenario=scenario.model_copy(update={"policy": policy}))


@dataclass(frozen=True, slots=True)
class WorkloadCounts:
    """What a build made for one workload. Counts are of this build's library, seconds of this run only."""

    workload_id: str
    alias: str
    combinations: int
    templates: int
    frontier: int
    solve_s: float
    best_template: str


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The library now in the lake. ``is_new`` False = it was registered already and nothing was done.

    ``library_hash`` is a hash of its content, equal whoever computed it, in whatever order.

    ``solve_s`` is the time spent solving summed over threads, ``shards_skipped`` how many shards were done before;
    ``combinations_solved`` are those of the other shards.
    """

    library_id: str
    library_hash: str
    profile_set_id: str
    is_new: bool
    combinations: int
    templates: int
    shards: int
    shards_skipped: int
    solve_s: float
    wall_s: float
    sample_n: int
    sample_max_rel_diff: float
    combinations_solved: int = 0
    workloads: tuple[WorkloadCounts, ...] = ()


def lake_root_of(given: str | Path | None = None) -> Path:
    """The lake's folder: as given, else environment variable CORAL_LAKE, else ``./.coral``. Raises LakeError for a URL."""
    from warehouse.faults import refuse_url

    root = given or os.environ.get("CORAL_LAKE") or DEFAULT_LAKE
    refuse_url(root)
    return Path(root)
