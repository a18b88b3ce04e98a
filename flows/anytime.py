"""Ctrl-C (or SIGTERM) while a plan is searched for: the search ends, and its best plan so far is the answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from catalogs.errors import CoralError
from tasks.allocation.types import AllocationProblem, AllocationResult


class StoppedError(CoralError):
    """Interrupted before there was a plan to show."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted before a plan was found: nothing was published")


class SearchEndedError(Exception):
    """A search over several problems was ended; the last one solved, and its answer."""

    def __init__(self, problem: AllocationProblem, result: AllocationResult) -> None:
        super().__init__("the search was interrupted")
        self.problem, self.result = problem, result


class Search:
    """``solve`` for a search that solves one problem after the other: once ``stop`` is set it raises SearchEndedError with the
    last answer instead, or what ``solve`` raises where there is none yet."""

    def __init__(self, solve: Callable[[AllocationProblem], AllocationResult], stop: threading.Event) -> None:
        self._solve, self._stop = solve, stop
        self._last: SearchEndedError | None = None

    def __call__(self, problem: AllocationProblem) -> AllocationResult:
        """The answer to ``problem``, checked as ``solve`` does."""
        if self._last is not None and self._stop.is_set():
            raise self._last
        try:
            result = self._solve(problem)
        except StoppedError:
            if self._last is not None:
                raise self._last from None
            raise
        self._last = SearchEndedError(problem, result)
        if self._stop.is_set():
            raise self._last
        return result
