"""``coral build``: decide what there is to do, and only then start a Prefect server and a flow.

Nothing heavy is imported before it is known to be needed: a library that is registered already is found from the names
that its inputs give, without prefect, Dask or a server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.errors import CoralError
from flows.build_inputs import BuildInputs, resolve_inputs
from flows.settings import BuildResult, BuildSettings, Progress, SilentProgress, progress_stage

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario


@dataclass(frozen=True, slots=True)
class LibraryNames:
    """The names that the inputs give, when all their profiles were computed before."""

    library_id: str
    profile_set_id: str


def build_library(
    settings: BuildSettings, progress: Progress | None = None, loaded: LoadedScenario | None = None
) -> BuildResult:
    """The library of a scenario, built if it is not in the lake yet, and made its current one.

    Finished work is found and skipped, so a build that was killed goes on where it stopped. Raises the catalogs' errors,
    NothingFitsError for a workload without any template, LakeError, CoralError for workers or servers that do not fit and
    for a library that is too large (see :mod:`flows.build_limits`); RuntimeError when the reference ILP disagrees with a
    sampled placement.
    """
    inputs = resolve_inputs(settings, loaded)
    if settings.library_key is not None:
        inputs = replace(inputs, library_key=settings.library_key)
    done = None if settings.force else _find_registered(settings.lake_root, inputs, verify=True)
    return done or _build(settings, inputs, progress or SilentProgress())


def registered_library(settings: BuildSettings, loaded: LoadedScenario | None = None) -> str:
    """The id of the library of the scenario as its inputs are now. Raises LakeError where there is no lake, CoralError
    where this library has not been built."""
    from warehouse.connect import Lake

    inputs = resolve_inputs(settings, loaded)
    if not Lake.exists(settings.lake_root):
        Lake.open(settings.lake_root, read_only=True)  # says what is wrong
    done = _find_registered(settings.lake_root, inputs, make_it_current=False)
    if done is None:
        raise CoralError(
            f"the template library of {inputs.library_key} is not built for its present inputs",
            remedy=f"run `coral build --scenario {settings.scenario}` first, or `coral plan`, which does both",
        )
    return done.library_id


def library_names(lake_root: Path, inputs: BuildInputs) -> LibraryNames | None:
    """The library that ``inputs`` give, or None when a profile it needs was never computed."""
    from tasks.templates.shards import SOLVER_VERSION
    from warehouse.keys import known_profile
    from warehouse.publish import profile_set_id

    parts = [part for item in inputs.workloads for part in inputs.profile_inputs(item)]
    profiles = [known_profile(lake_root, part.key) for part in parts]
    if None in profiles:
        return None
    profile_set = profile_set_id(profile for profile in profiles if profile is not None)
    return LibraryNames(inputs.library_id(profile_set, f"{inputs.solver}-{SOLVER_VERSION}"), profile_set)


def _find_registered(
    lake_root: Path, inputs: BuildInputs, *, verify: bool = False, make_it_current: bool = True
) -> BuildResult | None:
    """The answer when the library of ``inputs`` is in the lake already; unless told not to, it becomes the current one.

    ``verify``: not when a file of it is missing or damaged, so that a build makes it anew.
    """
    from warehouse.builds import damaged_files, last_build, library_shard_count
    from warehouse.connect import Lake
    from warehouse.publish import make_current
    from warehouse.read import current_library_id, library_content_hash

    started = time.perf_counter()
    names = library_names(lake_root, inputs) if Lake.exists(lake_root) else None
    if names is None:
        return None
    with Lake.open(lake_root, read_only=True) as lake:
        content = library_content_hash(lake, names.library_id)
        if content is None or (verify and damaged_files(lake, names.library_id)):
            return None
        is_current = current_library_id(lake, inputs.library_key) == names.library_id
        build = last_build(lake, names.library_id)
        shards = library_shard_count(lake, names.library_id)
    if make_it_current and not is_current:
        with Lake.open(lake_root) as lake:
            make_current(lake, inputs.library_key, names.library_id)
    return BuildResult(
        library_id=names.library_id,
        library_hash=content,
        profile_set_id=names.profile_set_id,
        is_new=False,
        combinations=build.n_combinations if build else 0,
        templates=build.n_templates if build else 0,
        shards=shards,
        shards_skipped=shards,
        solve_s=0.0,
        wall_s=time.perf_counter() - started,
        sample_n=build.sample_n if build else 0,
        sample_max_rel_diff=(build.sample_max_rel_diff or 0.0) if build else 0.0,
    )


def _build(settings: BuildSettings, inputs: BuildInputs, progress: Progress) -> BuildResult:
    from flows.build_limits import check_size
    from flows.runner import check_scheduler
    from flows.server import api_server
    from warehouse.connect import Lake
    from warehouse.land import remove_temporaries

    check_size(settings, inputs, progress)
    # A lake of another schema or without write permission must show before minutes of work, not after.
    Lake.open(settings.lake_root).close()
    remove_temporaries(settings.lake_root)
    if settings.dask_address is not None:
        with progress_stage(progress, "check workers"):
            threads = check_scheduler(settings.dask_address, settings.lake_root)
            settings = replace(settings, threads=threads)
    progress.start("start server", 1)
    with api_server(settings.lake_root, preload=_import_flow):
        progress.advance("start server", 1)
        progress.finish("start server")
        from flows.build_flow import run_build_flow

        result = run_build_flow(settings, inputs, progress)
    # What workers that were killed meanwhile have left.
    remove_temporaries(settings.lake_root)
    return result


def _import_flow() -> None:
    import flows.build_flow  # noqa: F401 - imported for its time, while the server starts
