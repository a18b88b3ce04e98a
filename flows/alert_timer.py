"""Checking alerts on a timer, beside the runs: a plan that gets old because nothing runs is told by nobody else."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.alerts import check_after_run
from flows.serving import Served
from flows.settings import Progress

DEFAULT_MINUTES = 5.0
_END_S = 30.0


@contextmanager
def alerts_checked(
    lake_root: Path, items: Iterable[Served], every_minutes: float, progress: Progress
) -> Iterator[None]:
    """Inside the block the alerts of the scenarios are checked every ``every_minutes``, in a thread; 0 = not at all.

    What a check finds is a message; one that fails is told and does not end the next.
    """
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(every_minutes * 60):
            for item in items:
                try:
                    check_scenario(lake_root, item, progress)
                except Exception:  # noqa: BLE001 - a bug must be seen, and must not silence every later alert
                    progress.message(f"alerts of {item.scenario_id} were not checked:\n{traceback.format_exc()}")

    if not every_minutes:
        yield
        return
    thread = threading.Thread(target=watch, name="coral alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_END_S)


def check_scenario(lake_root: Path, item: Served, progress: Progress) -> None:
    """Check the alerts of one scenario; nothing where there is no lake yet."""
    from warehouse.connect import Lake

    if Lake.exists(lake_root):
        for line in check_after_run(lake_root, item.scenario, item.scenario_id):
            progress.message(f"{item.scenario_id}: {line}")
