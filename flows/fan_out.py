"""One Prefect task over many jobs: all submitted, results in order, the first error or Ctrl-C ends the rest."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from flows import build_work

Job = TypeVar("Job")
_LOOK_S = 0.2


class Sealed(Generic[Job]):
    """A task's argument that prefect must hand over as it is: it would walk through and rebuild dataclasses."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.job = job


def run_all(prefect_task: Any, jobs: Sequence[Any], labels: Sequence[str], on_done: Callable[[int], None]) -> list[Any]:
    """Run ``prefect_task(label, Sealed(job))`` for every job and return the results in their order.

    ``on_done`` is told each finished job's number, in this thread. The first error is raised once what has not started
    is cancelled; so is KeyboardInterrupt, when ``build_work.STOP`` is set meanwhile.
    """
    futures: list[Any] = []
    results: list[Any] = [None] * len(jobs)
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        for number, (label, job) in enumerate(zip(labels, jobs, strict=True)):
            _raise_if_stopped()
            future = prefect_task.submit(label, Sealed(job))
            future.add_done_callback(lambda _, number=number: finished.put(number))
            futures.append(future)
        for _ in futures:
            number = _next(finished)
            results[number] = futures[number].result()
            on_done(number)
    except BaseException:
        _give_up(futures)
        raise
    return results


def _next(finished: queue.SimpleQueue[int]) -> int:
    """The next finished job, looking for Ctrl-C while waiting."""
    while True:
        _raise_if_stopped()
        try:
            return finished.get(timeout=_LOOK_S)
        except queue.Empty:
            continue


def _raise_if_stopped() -> None:
    if build_work.STOP.is_set():
        raise KeyboardInterrupt


def _give_up(futures: Sequence[Any]) -> None:
    """Cancel what has not started; what runs in our threads ends between two files."""
    build_work.STOP.set()
    for future in futures:
        future.wrapped_future.cancel()
