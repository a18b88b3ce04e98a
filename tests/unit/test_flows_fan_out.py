"""Fan-out with tasks of its own making: order, errors, Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from catalogs.errors import LakeError
from flows import build_work
from flows.fan_out import Sealed, run_all


class FakeFuture:
    """A future that is done when the test says so."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.callbacks, self.is_cancelled = outcome, [], False
        self.wrapped_future = self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def finish(self) -> None:
        for callback in self.callbacks:
            callback(self)

    def result(self) -> Any:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeTask:
    """Finishes its futures in reverse order once ``size`` were submitted, except those in ``hanging``."""

    def __init__(self, outcomes: list[Any], hanging: tuple[int, ...] = ()) -> None:
        self.outcomes, self.hanging = outcomes, hanging
        self.futures: list[FakeFuture] = []
        self.labels: list[str] = []

    def submit(self, label: str, sealed: Sealed[int]) -> FakeFuture:
        future = FakeFuture(self.outcomes[sealed.job])
        self.labels.append(label)
        self.futures.append(future)
        return future

    def finish(self) -> None:
        for number in reversed(range(len(self.futures))):
            if number not in self.hanging:
                self.futures[number].finish()


class LastSubmitFinishes(FakeTask):
    """As soon as the last future has its callback, all finish."""

    def submit(self, label: str, sealed: Sealed[int]) -> FakeFuture:
        future = super().submit(label, sealed)
        if len(self.futures) == len(self.outcomes):
            add = future.add_done_callback

            def add_and_finish(callback: Callable[[Any], None]) -> None:
                add(callback)
                self.finish()

            future.add_done_callback = add_and_finish  # type: ignore[method-assign]
        return future


def test_results_are_in_the_order_of_the_jobs() -> None:
    task, told = LastSubmitFinishes(["a", "b", "c"]), []
    assert run_all(task, [0, 1, 2], ["x", "y", "z"], told.append) == ["a", "b", "c"]
    assert told == [2, 1, 0]
    assert task.labels == ["x", "y", "z"]


def test_nothing_to_do() -> None:
    assert run_all(FakeTask([]), [], [], lambda _: None) == []


def test_the_first_error_is_raised_as_itself_and_the_rest_cancelled() -> None:
    error = LakeError("the disk is full", remedy="free some space")
    task = LastSubmitFinishes(["a", "b", error], hanging=(0, 1))
    with pytest.raises(LakeError) as caught:
        run_all(task, [0, 1, 2], ["x", "y", "z"], lambda _: None)
    assert caught.value is error
    assert all(future.is_cancelled for future in task.futures)
    assert build_work.STOP.is_set(), "tasks in our threads must learn of it"


def test_ctrl_c_while_waiting_cancels_and_interrupts() -> None:
    task = LastSubmitFinishes(["a", "b"], hanging=(0,))
    with pytest.raises(KeyboardInterrupt):
        run_all(task, [0, 1], ["x", "y"], lambda _: build_work.STOP.set())
    assert task.futures[0].is_cancelled


def test_ctrl_c_before_the_stage_submits_nothing() -> None:
    build_work.STOP.set()
    task = FakeTask(["a"])
    with pytest.raises(KeyboardInterrupt):
        run_all(task, [0], ["x"], lambda _: None)
    assert task.futures == []
