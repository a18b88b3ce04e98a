"""Progress on stderr: a bar per stage on a terminal; elsewhere one line when a stage is done and for every message."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flows.cli_common import say
from flows.settings import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class LineProgress:
    """For logs: says what is done and how long it took. A log wants no bars."""

    def __init__(self) -> None:
        self._started_at: dict[str, float] = {}

    def start(self, stage: str, total: float) -> None:
        """Remember when ``stage`` began."""
        self._started_at[stage] = time.perf_counter()

    def advance(self, stage: str, amount: float) -> None:
        """Nothing to say until the stage is done."""

    def finish(self, stage: str, note: str = "") -> None:
        """One line: the stage, its seconds, its result."""
        seconds = time.perf_counter() - self._started_at.pop(stage, time.perf_counter())
        say(f"{stage}: {seconds:.1f} s" + (f", {note}" if note else ""))

    def message(self, text: str) -> None:
        """One line."""
        say(text)


class BarProgress:
    """For a terminal: a bar per running stage, left standing with its result when done."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def start(self, stage: str, total: float) -> None:
        """A new bar; a total of 0 is one that is full."""
        self._tasks[stage] = self._bars.add_task(stage, total=total, note="")

    def advance(self, stage: str, amount: float) -> None:
        """Move the bar of ``stage``."""
        if stage in self._tasks:
            self._bars.advance(self._tasks[stage], amount)

    def finish(self, stage: str, note: str = "") -> None:
        """Fill the bar of ``stage`` and write its result beside it."""
        if stage in self._tasks:
            task = self._tasks.pop(stage)
            self._bars.update(task, completed=self._bars.tasks[task].total, note=note)

    def message(self, text: str) -> None:
        """A line above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Progress for the block: bars when stderr is a terminal, lines otherwise."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    with RichProgress(*columns, console=Console(stderr=True), transient=False) as bars:
        yield BarProgress(bars)
