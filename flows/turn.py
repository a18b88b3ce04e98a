"""Whose turn it is to allocate a scenario, and whether a run that was scheduled should still be executed.

Allocations of a scenario never overlap, whoever asks for them: the schedule, a feed that changed, a person. A run that a
person asked for waits for its turn as long as a writer would. A run that was *due* at a moment waits until its window has
passed, and is superseded, not executed, when that is over, or when another run that began after it was due has decided
meanwhile: that one has read inputs no older than this one would.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.errors import HeldError, StaleError

if TYPE_CHECKING:
    from warehouse.connect import Lake
    from warehouse.lock import StillHeld
    from warehouse.records import RunOutcome


class SupersededError(HeldError):
    """A scheduled run that is not executed: too late, or another one has decided in its place. The last plan stays."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One asked-for allocation: the id it is logged under, and, where it was scheduled, when it was due and for how long
    it is worth executing. ``due`` None = a person asked, now."""

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    due: datetime | None = None
    window_s: float = 0.0
    approve: bool = False

    @property
    def expires(self) -> datetime | None:
        """When the window has passed; None = never."""
        return None if self.due is None else self.due + timedelta(seconds=self.window_s)

    def refuse_late(self, scenario_id: str, now: datetime | None = None) -> None:
        """Raise SupersededError when the window has passed."""
        if self.due is None or self.expires is None:
            return
        late = (now or datetime.now(UTC)) - self.due
        if late.total_seconds() > self.window_s:
            raise SupersededError(
                f"{scenario_id}: the run due at {_minute(self.due)} comes {_span(late)} late, beyond its window of "
                f"{_span(timedelta(seconds=self.window_s))}; the next one decides"
            )


@contextmanager
def allocation_turn(lake_root: Path, scenario_id: str, request: RunRequest) -> Iterator[StillHeld]:
    """Hold the scenario's allocation lock for the block: inputs are read, decided on and published inside it. Gives what to
    ask before publishing whether the turn is still this run's.

    Raises LakeError where there is no lake (a scheduled run makes it), LockedError for a person's run whose turn does not
    come, SupersededError for a scheduled one.
    """
    from warehouse.connect import Lake, absolute_root, check_version
    from warehouse.lock import LockedError, allocation_lock

    root = absolute_root(lake_root)
    if request.due is None or Lake.exists(root):
        check_version(root)
    else:
        root.mkdir(parents=True, exist_ok=True)
    wait_s = None
    if request.expires is not None:
        wait_s = max(0.0, (request.expires - datetime.now(UTC)).total_seconds())
    with ExitStack() as turn:
        try:
            still_held = turn.enter_context(allocation_lock(root, scenario_id, f"run {request.run_id}", wait_s))
        except LockedError as error:
            if request.due is None:
                raise
            raise SupersededError(
                f"{scenario_id}: the run due at {_minute(request.due)} got no turn: {error}"
            ) from error
        _refuse_covered(root, scenario_id, request)
        yield still_held


def _refuse_covered(lake_root: Path, scenario_id: str, request: RunRequest) -> None:
    from warehouse.connect import Lake
    from warehouse.runs import answered_since

    if request.due is None or not Lake.exists(lake_root):
        return
    with Lake.open(lake_root, read_only=True) as lake:
        other = answered_since(lake, scenario_id, request.due)
    if other is not None:
        raise SupersededError(
            f"{scenario_id}: run {other} began after this one was due at {_minute(request.due)} and has decided"
        )


def undecided_outcome(error: BaseException) -> RunOutcome:
    """What a run that ended with ``error`` is logged and announced as."""
    from warehouse.records import RunOutcome

    if isinstance(error, SupersededError):
        return RunOutcome.SUPERSEDED
    if isinstance(error, StaleError):
        return RunOutcome.HELD_STALE
    return RunOutcome.HELD_UNKNOWN_DEMAND if isinstance(error, HeldError) else RunOutcome.FAILED


def log_undecided(lake: Lake, scenario_id: str, request: RunRequest, started: datetime, error: BaseException) -> str:
    """Log a run that decided nothing as held, superseded or failed, by its ``error``; the outcome. The last plan stays."""
    from warehouse.plans import log_run
    from warehouse.read import current_version
    from warehouse.records import AllocationRun, RunLog

    outcome = undecided_outcome(error)
    lines = str(error).strip().splitlines()
    note = lines[0] if lines else type(error).__name__
    run = AllocationRun(run_id=request.run_id, scenario_id=scenario_id, started_at=started, note=note)
    log_run(lake, run, RunLog(outcome, current_version(lake, scenario_id)))
    return outcome.value


def _minute(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(length: timedelta) -> str:
    seconds = length.total_seconds()
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
