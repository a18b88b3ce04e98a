"""The wall clock of a solve: a safety limit only, never what an answer depends on while it holds."""

from __future__ import annotations

import time

from tasks.allocation.types import SolveLimits


class Clock:
    """Seconds spent and left of ``limits.time_s``, from construction on."""

    def __init__(self, limits: SolveLimits) -> None:
        self._start, self._limit = time.perf_counter(), limits.time_s

    def spent(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._start

    def left(self) -> float:
        """Seconds left, at least half a second so that a last step can still answer."""
        return max(self._limit - self.spent(), 0.5)
