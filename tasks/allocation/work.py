"""How much work an ILP may take, counted in a unit that is the same on every machine and every day.

HiGHS looks up between the steps of its search whether to stop; the number of those looks is the work. It counts the root's
cuts and heuristics as well, which a limit on nodes would not.
"""

from __future__ import annotations

import highspy

from tasks.allocation.types import SolveLimits

_COLUMNS = 800  # a look takes about 25 ms of processor with so many columns, and longer than in proportion with more


def looks(columns: int, at_800: int) -> int:
    """Looks for an ILP of ``columns`` that take about as long as ``at_800`` take with 800; no more than those."""
    return max(1, round(at_800 * min(1.0, (_COLUMNS / max(columns, 1)) ** 2)))


class Looks:
    """Counts the looks of a run and ends it after ``most`` (None: never), or once a stop is asked for. Keep it until the run
    is over. A signal's handler runs in a look too: nothing else of Python's does while HiGHS runs."""

    def __init__(self, highs: highspy.Highs, most: int | None, limits: SolveLimits) -> None:
        self.taken, self._most, self._limits = 0, most, limits
        highs.setCallback(self._look, None)
        highs.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)

    def _look(
        self, _kind: object, _text: str, _out: object, answer: highspy.cb.HighsCallbackInput, _data: object
    ) -> None:
        self.taken += 1
        if (self._most is not None and self.taken > self._most) or self._limits.is_stopped:
            answer.user_interrupt = True
