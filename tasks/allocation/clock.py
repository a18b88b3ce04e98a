"""The wall clock of a solve: a safety limit only, never what an answer depends on while it holds. And the stop from outside,
which acts like a clock that has run out."""

from __future__ import annotations

import time

from tasks.allocation.types import SolveLimits

# What a last step gets where the time is up; a little more after a stop, which asks for the best plan so far.
_LAST_STEP_S, _AFTER_STOP_S = 0.5, 2.0


class Clock:
    """Seconds spent and left of ``limits.time_s``, from construction on. ``has_cut`` is set by whatever ends before its
    work is done because of it: the answer may then be another one on another day, and its status says so."""

    def __init__(self, limits: SolveLimits) -> None:
        self._start, self._limits = time.perf_counter(), limits
        self.has_cut = False

    def spent(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._start

    @property
    def is_stopped(self) -> bool:
        """Whether someone has asked to end now."""
        return self._limits.is_stopped

    def left(self) -> float:
        """Seconds left, at least so many that a last step can still answer."""
        if self.is_stopped:
            return _AFTER_STOP_S
        return max(self._limits.time_s - self.spent(), _LAST_STEP_S)

    def is_past(self, share: float = 1.0) -> bool:
        """Whether this share of the limit is spent or a stop was asked for, which ends the step that asks: a cut."""
        if self.spent() <= share * self._limits.time_s and not self.is_stopped:
            return False
        self.has_cut = True
        return True
