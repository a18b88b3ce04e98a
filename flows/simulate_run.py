"""One run of the simulation flow: what it is handed, and the waiting for its tasks. Prefect's part is handed in.

Not in the flow's own module: prefect sends the flow to workers by value, with the globals it names.
"""

from __future__ import annotations

import contextvars
import queue
from dataclasses import dataclass
from typing import Any

from catalogs.wording import counted
from flows import simulate_work
from flows.batching import batch_by_work
from flows.settings import Progress
from flows.simulate_inputs import SimulateInputs, SimulateSettings

STAGE = "simulate"
# A run takes seconds; what it takes exactly is known only afterwards, and runs of one call are alike.
_RUN_WORK_S = 5.0
_LOOK_S = 0.2


class Sealed:
    """A task's argument that prefect must hand over as it is: it would walk through and rebuild dataclasses."""

    __slots__ = ("job",)

    def __init__(self, job: simulate_work.SimulateJob) -> None:
        self.job = job


@dataclass(frozen=True)
class SimulateCall:
    """What a call in this process hands to the flow past its (plain, recorded) parameters."""

    settings: SimulateSettings
    inputs: SimulateInputs
    runs: tuple[simulate_work.Run, ...]
    done: int
    progress: Progress


CALL: contextvars.ContextVar[SimulateCall | None] = contextvars.ContextVar("coral_simulate_call", default=None)


def run_all(call: SimulateCall, task: Any) -> int:
    """Submit all runs in batches to ``task`` and wait; how many were done. The first error stops all and is raised."""
    batches = batch_by_work(call.runs, [_RUN_WORK_S] * len(call.runs), slots=call.settings.threads)
    # Workers elsewhere run in other working folders.
    root = call.settings.lake_root.resolve()
    jobs = [simulate_work.SimulateJob(root, call.inputs, batch) for batch in batches]
    call.progress.start(STAGE, len(call.runs))
    futures: list[Any] = []
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()
    total = 0
    try:
        for number, (label, job) in enumerate(zip(simulate_work.labels(call.inputs, jobs), jobs, strict=True)):
            future = task.submit(label, Sealed(job))
            future.add_done_callback(lambda _, number=number: finished.put(number))
            futures.append(future)
        for _ in futures:
            number = _next(finished)
            total += futures[number].result()
            call.progress.advance(STAGE, len(jobs[number].runs))
    except BaseException:
        simulate_work.STOP.set()
        for future in futures:
            future.wrapped_future.cancel()
        raise
    call.progress.finish(STAGE, f"{counted(call.done, 'run was', 'runs were')} done before")
    return total


def _next(finished: queue.SimpleQueue[int]) -> int:
    """The next finished job, looking for Ctrl-C while waiting."""
    while True:
        if simulate_work.STOP.is_set():
            raise KeyboardInterrupt
        try:
            return finished.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
