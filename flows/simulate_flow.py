"""The Prefect flow that simulates many streams and seeds. Imported only once the environment points to a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows import simulate_run, simulate_work
from flows.interrupt import interrupt_sets
from flows.runner import task_runner
from flows.settings import Progress, SilentProgress
from flows.simulate_inputs import SimulateInputs, SimulateSettings, resolve


@task(name="simulate", task_run_name="simulate {label}", cache_policy=NO_CACHE, persist_result=False)
def simulate_task(label: str, sealed: simulate_run.Sealed) -> int:
    """Do the job's runs; how many there were to do."""
    return simulate_work.run_job(sealed.job)


def run_simulate_flow(
    settings: SimulateSettings,
    inputs: SimulateInputs,
    runs: Sequence[simulate_work.Run],
    done: int,
    progress: Progress,
) -> None:
    """Run the flow in this process, its tasks on the scheduler of ``settings`` or on threads. ``done``: runs found finished.

    Raises what its tasks raise, and KeyboardInterrupt when Ctrl-C was pressed.
    """
    simulate_work.STOP.clear()
    token = simulate_run.CALL.set(simulate_run.SimulateCall(settings, inputs, tuple(runs), done, progress))
    try:
        here = simulate_flow.with_options(task_runner=task_runner(settings.dask_address, settings.threads))
        with interrupt_sets(simulate_work.STOP):
            here(
                scenario=str(settings.scenario),
                lake=str(settings.lake_root),
                plan_version=inputs.plan.plan_version,
                traces=list(settings.traces),
                seeds=settings.seeds,
                minutes=settings.minutes,
            )
        if simulate_work.STOP.is_set():
            raise KeyboardInterrupt
    finally:
        simulate_run.CALL.reset(token)


@flow(
    name="simulate-plan",
    flow_run_name="simulate {scenario} {plan_version}",
    validate_parameters=False,
    persist_result=False,
)
def simulate_flow(
    scenario: str,
    lake: str,
    plan_version: int | None = None,
    traces: Sequence[str] = (),
    seeds: int = 1,
    minutes: float = 30.0,
) -> int:
    """Simulate a published plan on every trace (none = Poisson) with every seed; how many runs were done now."""
    call = simulate_run.CALL.get()
    if call is None:
        settings = SimulateSettings(
            scenario, Path(lake), plan_version, traces=tuple(traces), seeds=seeds, minutes=minutes
        )
        inputs = resolve(settings)
        runs = simulate_work.runs_of(inputs, seeds)
        todo = simulate_work.missing_runs(settings.lake_root, runs)
        call = simulate_run.SimulateCall(settings, inputs, tuple(todo), len(runs) - len(todo), SilentProgress())
    return simulate_run.run_all(call, simulate_task)
