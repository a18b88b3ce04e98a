"""The Prefect flow that builds a library, and its tasks.

Importing this module imports prefect, which reads its settings from the environment at that moment: only
:mod:`flows.build` imports it, once the environment points to a server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows import build_run, build_work
from flows.build_inputs import BuildInputs, resolve_inputs
from flows.build_report import publish_artifacts
from flows.build_sample import check_sample
from flows.fan_out import Sealed
from flows.interrupt import interrupt_sets
from flows.runner import task_runner
from flows.settings import BuildResult, BuildSettings, Progress, SilentProgress


def _task(name: str, work: Callable[[Any], Any]) -> Any:
    """A Prefect task of ``work``. Results live in the lake, not in Prefect's storage; a lost worker's tasks are Dask's."""

    def run(label: str, sealed: Sealed[Any]) -> Any:
        return work(sealed.job)

    run.__doc__ = work.__doc__
    return task(name=name, task_run_name=f"{name} {{label}}", cache_policy=NO_CACHE, persist_result=False)(run)


TASKS = {
    "profile": _task("profile", build_work.profile),
    "solve": _task("solve", build_work.solve),
    "frontier": _task("frontier", build_work.frontier),
    "check sample": _task("check sample", check_sample),
}


def run_build_flow(settings: BuildSettings, inputs: BuildInputs, progress: Progress) -> BuildResult:
    """Run the flow in this process, its tasks on the scheduler of ``settings`` or on threads.

    Raises what its tasks raise, and KeyboardInterrupt when Ctrl-C was pressed.
    """
    build_work.STOP.clear()
    token = build_run.CALL.set(build_run.BuildCall(settings, inputs, progress))
    try:
        runner = task_runner(settings.dask_address, settings.threads)
        flow_here = build_flow.with_options(task_runner=runner)
        with interrupt_sets(build_work.STOP):
            result: BuildResult = flow_here(
                scenario=str(settings.scenario),
                lake=str(settings.lake_root),
                mode=settings.mode,
                solver=settings.solver,
            )
        if build_work.STOP.is_set():
            raise KeyboardInterrupt
        return result
    finally:
        build_run.CALL.reset(token)


@flow(name="build-library", flow_run_name="build {scenario}", validate_parameters=False, persist_result=False)
def build_flow(scenario: str, lake: str, mode: str | None = None, solver: str = "exact") -> BuildResult:
    """Build the template library of ``scenario`` (a shipped name or a path) in ``lake`` and make it the current one."""
    call = build_run.CALL.get()
    if call is None:
        settings = BuildSettings(scenario=scenario, lake_root=Path(lake), mode=mode, solver=solver)
        call = build_run.BuildCall(settings, resolve_inputs(settings), SilentProgress())
    result = build_run.BuildRun(call, TASKS).run()
    publish_artifacts(result)
    return result
