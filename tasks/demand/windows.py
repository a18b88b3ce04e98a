"""Requests of a trace counted into windows: rate, requests per minute, and lengths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from catalogs.lake_feeds import DemandObservation
from catalogs.scenario_schema import MOMENTS
from catalogs.traces import Trace
from catalogs.types import Lengths

# A window of which the trace covers less is left out: its rate would say little.
_LEAST_COVERED = 0.5
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class CountedTrace:
    """Windows of a trace, in order of time; ``left_out`` of which it covers less than half."""

    windows: tuple[DemandObservation, ...]
    left_out: tuple[datetime, ...]


def count_windows(trace: Trace, model: str, start: datetime, window_s: float, percentile: float) -> CountedTrace:
    """The demand of ``model`` as the requests of ``trace``, which began at ``start``, per window of ``window_s`` seconds.

    Windows begin at multiples of ``window_s`` since 1970 in UTC. The rate is over the part of the window that the trace
    covers; a window inside it without a request has demand 0. ``minute_counts`` are of the whole minutes covered. Lengths
    are the moments of the window's requests, at three digits, with the prompt at ``percentile``. Raises ValueError for a
    trace without times.
    """
    if trace.arrival_s is None:
        raise ValueError(f"{trace.name} has no times")
    first = start.timestamp()
    at = first + trace.arrival_s
    end = float(at[-1])
    windows, left_out = [], []
    begin = np.floor(first / window_s) * window_s
    while begin <= end:
        low, high = max(begin, first), min(begin + window_s, end)
        moment = datetime.fromtimestamp(begin, UTC)
        if high - low < _LEAST_COVERED * window_s:
            left_out.append(moment)
        else:
            inside = (at >= begin) & (at < begin + window_s)
            rate = float(inside.sum()) / (high - low)
            counts = _minute_counts(at[inside], low, high)
            lengths = _lengths(trace, inside, percentile) if inside.any() else None
            windows.append(DemandObservation(model, moment, window_s, rate, counts, lengths))
        begin += window_s
    return CountedTrace(tuple(windows), tuple(left_out))


def overlaps(
    new: Iterable[DemandObservation], known: Iterable[DemandObservation] = ()
) -> list[tuple[DemandObservation, DemandObservation]]:
    """Neighbours, the earlier first, of one model and one length of which the second begins before the first has ended, where
    either is ``new``. Of these the one that began last counts while both last (docs/feeds.md). One that begins with another
    replaces it and overlaps nothing."""
    told = {(row.model, row.window_s, row.window_start): row for row in new}
    every = {(row.model, row.window_s, row.window_start): row for row in known} | told
    return [
        (every[a], every[b])
        for a, b in pairwise(sorted(every))
        if a[:2] == b[:2] and every[b].window_start < every[a].window_end and (a in told or b in told)
    ]


def _minute_counts(at: np.ndarray, low: float, high: float) -> tuple[int, ...]:
    minutes = int((high - low) // _MINUTE_S)
    counts, _ = np.histogram(at, bins=minutes, range=(low, low + minutes * _MINUTE_S)) if minutes else ((), ())
    return tuple(int(count) for count in counts)


def _lengths(trace: Trace, inside: np.ndarray, percentile: float) -> Lengths:
    part = replace(trace, input_tokens=trace.input_tokens[inside], output_tokens=trace.output_tokens[inside])
    moments = dict(zip(MOMENTS, part.lengths(percentile).bucketed(), strict=True))
    return Lengths(**moments, source="demand feed")


def of_model(trace: Trace, index: int) -> tuple[Trace, timedelta]:
    """The requests of one of the trace's own models, and how long after the trace's start the first of them came."""
    inside = trace.model == index
    assert trace.arrival_s is not None, "a trace without times is not counted"
    arrival_s = trace.arrival_s[inside]
    later = timedelta(seconds=float(arrival_s[0]))
    tokens = trace.input_tokens[inside], trace.output_tokens[inside]
    return Trace(trace.name, arrival_s - arrival_s[0], *tokens), later
