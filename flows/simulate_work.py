"""The work of a simulation, run by run: a plan and a stream in, a result file of the lake out. No Prefect here.

A run may be repeated anywhere and finds what was finished before, as in :mod:`flows.build_work`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.simulate_inputs import WARM_UP_S, SimulateInputs
from flows.simulate_streams import Stream
from warehouse.results import find_result, write_result

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan
    from tasks.simulation.types import SimInstance

RESULT_SCHEMA = 1

STOP = threading.Event()
"""Set in the command's own process when it gives up: tasks in its threads then end between two runs."""


class StoppedError(Exception):
    """A task ended early because the command gave up."""


@dataclass(frozen=True)
class Run:
    """One run: a stream by its number, a seed, and the name of its result."""

    stream: int
    seed: int
    result_id: str


@dataclass(frozen=True)
class SimulateJob:
    """Runs to do one after the other."""

    lake_root: Path
    inputs: SimulateInputs
    runs: tuple[Run, ...]


def runs_of(inputs: SimulateInputs, seeds: int) -> list[Run]:
    """Every stream with every seed, stream by stream."""
    return [
        Run(number, seed, inputs.run_id(stream, seed))
        for number, stream in enumerate(inputs.streams)
        for seed in range(seeds)
    ]


def run_job(job: SimulateJob) -> int:
    """Do the runs that have no result yet; how many those were."""
    instances: list[SimInstance] = []
    done = 0
    for run in job.runs:
        if find_result(job.lake_root, run.result_id) is not None:
            continue
        if STOP.is_set():
            raise StoppedError
        instances = instances or plan_instances_of(job.inputs)
        write_result(job.lake_root, run.result_id, simulate_run(job.inputs, instances, run))
        done += 1
    return done


def plan_instances_of(inputs: SimulateInputs) -> list[SimInstance]:
    """Instances of the whole plan, and of the one before it where there is a change; each model with its own hardware."""
    from tasks.simulation.plans import changed_instances, plan_instances

    change, workloads = inputs.change, inputs.workloads
    instances: list[SimInstance] = []
    for model, hardware in inputs.hardware.items():
        mine = {name for name, workload in workloads.items() if workload.model.model == model}

        def part(plan: Plan, mine: set[str] = mine) -> Plan:
            rows = tuple(row for row in plan.instances if row.workload_id in mine)
            return plan.model_copy(update={"instances": rows})

        if change is None:
            instances += plan_instances(part(inputs.plan), workloads, hardware)
        else:
            times = {"switch_s": change.switch_s, "startup_s": change.startup_s}
            instances += changed_instances(part(change.before), part(inputs.plan), workloads, hardware, **times)
    return instances


def simulate_run(inputs: SimulateInputs, instances: Sequence[SimInstance], run: Run) -> dict[str, Any]:
    """The tables of one run."""
    from tasks.simulation.engine import simulate
    from tasks.simulation.streams import stream_requests
    from tasks.simulation.summary import summarize

    requests = stream_requests(inputs.streams[run.stream].models, inputs.duration_s, run.seed)
    result = simulate(requests, instances)
    tables = summarize(
        result,
        {(workload.model.model, workload.phase): workload for workload in inputs.workloads.values()},
        from_s=WARM_UP_S,
        until_s=inputs.duration_s,
        counts_transfer=inputs.counts_transfer,
        change_s=None if inputs.change is None else inputs.change.window_s,
    )
    return {"schema": RESULT_SCHEMA, "seed": run.seed, **tables}


def document(lake_root: Path, inputs: SimulateInputs, runs: Sequence[Run]) -> dict[str, Any]:
    """All runs as one document: per stream the pooled tables. Raises LakeError where a run has no result."""
    from tasks.simulation.summary import CDF_GRID, pool_runs
    from warehouse.results import read_result

    plan = inputs.plan
    streams = []
    for number, stream in enumerate(inputs.streams):
        mine = [run for run in runs if run.stream == number]
        pooled = pool_runs([read_result(lake_root, run.result_id) for run in mine])
        streams.append({"name": stream.name, "text": stream.text, "seeds": len(mine)} | pooled)
    return {
        "schema": RESULT_SCHEMA,
        "scenario_id": plan.scenario_id,
        "plan_version": plan.plan_version,
        "cost_usd_per_h": plan.cost_usd_per_h,
        "price_as_of": plan.inputs.price_as_of,
        "minutes": round((inputs.duration_s - WARM_UP_S) / 60, 6),
        "warm_up_s": WARM_UP_S,
        "counts_transfer": inputs.counts_transfer,
        "change": None if inputs.change is None else inputs.change.figures(),
        "notes": list(inputs.notes),
        "cdf_grid": CDF_GRID.tolist(),
        "streams": streams,
    }


def is_kept(result: dict[str, Any]) -> bool:
    """Whether every workload that got requests meets its SLO percentile in every stream."""
    return all(row["is_met"] is not False for stream in result["streams"] for row in stream["workloads"])


def missing_runs(lake_root: Path, runs: Sequence[Run]) -> list[Run]:
    """Runs without a result, each name once."""
    todo: dict[str, Run] = {}
    for run in runs:
        if run.result_id not in todo and find_result(lake_root, run.result_id) is None:
            todo[run.result_id] = run
    return list(todo.values())


def copy_results(source: Path, target: Path, runs: Sequence[Run]) -> None:
    """Results of ``runs`` that a folder has, to another."""
    for run in runs:
        known = find_result(source, run.result_id)
        if known is not None:
            write_result(target, run.result_id, known)


def labels(inputs: SimulateInputs, jobs: Sequence[SimulateJob]) -> list[str]:
    """A job in a few words: its first run and how many more."""
    texts = []
    for job in jobs:
        first: Run = job.runs[0]
        stream: Stream = inputs.streams[first.stream]
        more = f" and {len(job.runs) - 1} more" if len(job.runs) > 1 else ""
        texts.append(f"{stream.name} seed {first.seed}{more}")
    return texts
