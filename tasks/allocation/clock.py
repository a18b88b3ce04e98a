"""The wall clock of a solve: a safety limit only, never what an answer depends on while it holds."""

from __future__ import annotations

import time

from tasks.allocation.types import SolveLimits


class Clock:
    """Seconds spent and left of ``limits.time_s``, from construction on. ``has_cut`` is set by whatever ends before its
    work is done because of it: the answer may then be another one on another day, and its status says so."""

    def __init__(self, limits: SolveLimits) -> None:
        self._start, self._limit = time.perf_counter(), limits.time_s
        self.has_cut = False

    def spent(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._start

    def left(self) -> float:
        """Seconds left, at least half a second so that a last step can still answer."""
        return max(self._limit - self.spent(), 0.5)

    def is_past(self, share: float = 1.0) -> bool:
        """Whether this share of the limit is spent, which ends the step that asks: a cut."""
        if self.spent() <= share * self._limit:
            return False
        self.has_cut = True
        return True
