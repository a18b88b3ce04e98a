"""Demand counted in traces and carried on from a feed's last window. Expected values are counted and computed by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from catalogs.lake_feeds import DemandObservation
from catalogs.length_drift import drift_notes, length_drift
from catalogs.scenario import load_scenario
from catalogs.traces import Trace, read_trace
from catalogs.types import Lengths
from tasks.demand.forecast import Forecast, ForecastMethod, forecast
from tasks.demand.windows import count_windows, of_model, overlaps

NOON = datetime(2026, 7, 30, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def trace(*arrival_s: float) -> Trace:
    n = len(arrival_s)
    return Trace("t", np.array(arrival_s), np.arange(100, 100 * (n + 1), 100), np.full(n, 10))


class TestWindows:
    def test_rates_minutes_and_lengths(self) -> None:
        # From 11:30 on: 3 requests by noon, none from 12 to 13, one each at 13:00 and 14:00.
        counted = count_windows(trace(0, 30, 90, 5400, 9000), "m", NOON - HOUR / 2, 3600, 99)
        assert [w.window_start.hour for w in counted.windows] == [11, 12, 13]
        assert [w.req_per_s for w in counted.windows] == [3 / 1800, 0.0, 1 / 3600]
        first, none, _ = counted.windows
        assert first.minute_counts == (2, 1, *[0] * 28)
        assert none.minute_counts == (0,) * 60
        assert none.lengths is None
        assert first.lengths is not None
        assert (first.lengths.input_mean, first.lengths.output_mean) == (200, 10)
        assert first.lengths.input_sq_mean == pytest.approx(46_700, rel=1e-3)  # (1 + 4 + 9) / 3 x 10^4, at 3 digits
        assert first.lengths.input_at_percentile == 300
        assert counted.left_out == (NOON + 2 * HOUR,), "the last window holds one request and is not covered"

    def test_windows_begin_at_full_hours_of_utc(self) -> None:
        (only,) = count_windows(trace(0, 3599), "m", NOON, 3600, 99).windows
        assert (only.window_start, only.window_s) == (NOON, 3600)
        assert only.req_per_s == pytest.approx(2 / 3599)

    def test_a_model_of_several(self) -> None:
        several = Trace("t", np.array([0.0, 60, 120]), np.full(3, 5), np.full(3, 5), model=np.array([0, 1, 1]))
        part, later = of_model(several, 1)
        assert part.arrival_s is not None
        assert (list(part.arrival_s), later) == ([0, 60], timedelta(seconds=60))

    @pytest.mark.parametrize(
        ("name", "text", "start"),
        [
            (
                "azure.csv",
                "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,4808,10\n2023-11-16 18:15:50,3,8\n",
                datetime(2023, 11, 16, 18, 15, 46, 680590, tzinfo=UTC),
            ),
            (
                "burst.csv",
                "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,x\n9,GPT-4,1,2,3,x\n",
                None,
            ),
            (
                "moon.jsonl",
                '{"timestamp": 0, "input_length": 6758, "output_length": 500}\n'
                '{"timestamp": 4000, "input_length": 7, "output_length": 5}\n',
                None,
            ),
        ],
    )
    def test_only_a_clock_says_when_a_trace_began(
        self, tmp_path: Path, name: str, text: str, start: datetime | None
    ) -> None:
        (tmp_path / name).write_text(text)
        found = read_trace(tmp_path / name)
        assert found.start == start
        assert found.arrival_s is not None
        assert found.arrival_s[1] == pytest.approx({"azure.csv": 3.31941}.get(name, 4.0))


def history(*rates: float | None, end: datetime = NOON) -> list[DemandObservation]:
    start = end - len(rates) * HOUR
    return [DemandObservation("m", start + i * HOUR, 3600, rate) for i, rate in enumerate(rates)]


def carried(rates: list[DemandObservation], at: datetime, method: str, season: timedelta = DAY) -> Forecast:
    return forecast(rates, at, ForecastMethod(method), season, 95)


class TestForecast:
    @pytest.mark.parametrize("method", ["last", "seasonal", "smoothing"])
    def test_a_window_that_is_told_is_not_forecast(self, method: str) -> None:
        told = carried(history(1.0, 2.0, 7.0, end=NOON + HOUR), NOON + HOUR / 2, method)
        assert (told.req_per_s, told.is_told) == (7.0, True)
        none = carried(history(1.0, 2.0, 0.0, end=NOON + HOUR), NOON, method)
        assert none.req_per_s == 0.0, "told as none: released"

    @pytest.mark.parametrize("method", ["last", "seasonal", "smoothing"])
    def test_an_unknown_last_window_is_unknown(self, method: str) -> None:
        assert carried(history(1.0, 2.0, None), NOON, method).req_per_s is None
        assert carried(history(1.0, 2.0, None, end=NOON + HOUR), NOON, method).req_per_s is None

    def test_of_windows_that_hold_the_moment_the_shortest_counts(self) -> None:
        quarter, hour = timedelta(minutes=15), DemandObservation("m", NOON, 3600, 10.0)
        short = DemandObservation("m", NOON, 900, 14.0)
        for at, rate in ((NOON, 14.0), (NOON + quarter, 10.0), (NOON + 3 * quarter, 10.0)):
            found = carried([short, hour], at, "last")
            assert (found.req_per_s, found.is_told) == (rate, True)
        unknown = DemandObservation("m", NOON, 900, None)
        assert carried([unknown, hour], NOON, "last").req_per_s is None, "told as unknown, of that quarter"
        assert carried([unknown, hour], NOON + quarter, "last").req_per_s == 10.0
        later = DemandObservation("m", NOON + HOUR / 2, 3600, 3.0)
        assert carried([hour, later], NOON + HOUR / 2, "last").req_per_s == 3.0, "of equally long ones that begun last"

    def test_demand_is_carried_on_along_windows_of_one_length(self) -> None:
        hours = history(1.0, 2.0, 3.0, end=NOON)
        short = DemandObservation("m", NOON - HOUR, 900, 50.0)
        mixed = sorted([*hours, short], key=lambda window: (window.window_start, window.window_s))
        for method in ("last", "seasonal", "smoothing"):
            assert carried(mixed, NOON + HOUR, method, 2 * HOUR) == carried(hours, NOON + HOUR, method, 2 * HOUR)
        ahead = DemandObservation("m", NOON, 900, 50.0)
        found = carried([*hours, ahead], NOON + HOUR, "last")
        assert (found.req_per_s, found.window) == (50.0, ahead), "it ended last"

    def test_last(self) -> None:
        found = carried(history(1.0, 2.0), NOON + 5 * HOUR, "last")
        assert (found.req_per_s, found.window.window_end, found.is_told) == (2.0, NOON, False)

    def test_seasonal_takes_the_same_hour_before(self) -> None:
        rates = history(*range(1, 25))  # from noon yesterday: 1 at 12, 2 at 13, ...
        assert carried(rates, NOON, "seasonal").req_per_s == 1
        assert carried(rates, NOON + 3.5 * HOUR, "seasonal").req_per_s == 4
        assert carried(rates, NOON + 25 * HOUR, "seasonal").req_per_s == 2, "two seasons before"
        short = carried(rates[-3:], NOON, "seasonal")
        assert short.req_per_s == 24
        assert "one season before" in short.note

    def test_smoothing_follows_a_season_and_is_between_what_was_seen(self) -> None:
        pattern = [10 + 8 * math.sin(2 * math.pi * hour / 6) for hour in range(6)]
        rates = history(*pattern * 6)
        for ahead in range(6):
            found = carried(rates, NOON + ahead * HOUR, "smoothing", 6 * HOUR)
            assert found.req_per_s == pytest.approx(pattern[ahead], rel=0.01)
        level = carried(history(5.0, 7.0, 5.0, 7.0, 5.0, 7.0), NOON, "smoothing").req_per_s
        assert level is not None
        assert 5 <= level <= 7

    def test_smoothing_of_nothing_much(self) -> None:
        assert carried(history(4.0, 4.0, 4.0, 4.0, 4.0), NOON, "smoothing").req_per_s == 4.0
        gap = [*history(9.0, 9.0, 9.0, 9.0, end=NOON - 5 * HOUR), *history(1.0, 2.0)]
        found = carried(gap, NOON, "smoothing")
        assert found.req_per_s == 2.0
        assert "only 2 windows" in found.note

    def test_a_computed_demand_is_no_release(self) -> None:
        falling = carried(history(8.0, 4.0, 2.0, 1.0, 0.0, 0.0), NOON, "smoothing").req_per_s
        assert falling is not None
        assert falling > 0, "only what is told as zero releases"
        assert carried(history(0.0, 0.0, 0.0, 0.0), NOON, "smoothing").req_per_s == 0

    def test_percentile_of_counted_minutes(self) -> None:
        counts = (*[60] * 19, 120)  # mean 63; 95 % of minutes have at most 60, 100 % at most 120
        window = DemandObservation("m", NOON, 3600, 63 / 60, counts)
        assert forecast([window], NOON, ForecastMethod.LAST, DAY, 95).peak_ratio == pytest.approx(60 / 63)
        assert forecast([window], NOON, ForecastMethod.LAST, DAY, 99).peak_ratio == pytest.approx(120 / 63)
        assert forecast([window], NOON, ForecastMethod.LAST, DAY, None).peak_ratio is None


class TestLengthDrift:
    PLANNED = Lengths(1000, 200, 1.5e6, 6e4, 2.2e5, 3000)

    def test_ten_percent_is_the_limit(self) -> None:
        near = Lengths(1090, 185, 1.5e6 * 1.09**2, 6e4 * 0.925**2, 2.2e5 * 1.09 * 0.925, 3000)
        assert length_drift(self.PLANNED, near) == []
        longer = Lengths(1120, 200, 1.5e6 * 1.12**2, 6e4, 2.2e5 * 1.12, 3000)
        found = length_drift(self.PLANNED, longer)
        assert found[0] == "mean prompt 1,000 -> 1,120 tokens (+12%)"
        assert not any(text.startswith("mean answer") for text in found)

    def test_the_note_proposes_what_to_write(self) -> None:
        workloads = load_scenario("core").workloads
        model = workloads[0].model.model
        (note,) = drift_notes(workloads, {model: Lengths(9000, 90, 9e7, 9e3, 9e5, 9999), "other": self.PLANNED})
        assert note[0] == "length_drift"
        assert "input_mean: 9000, output_mean: 90" in note[1]
        assert "coral build" in note[1]


def test_windows_that_overlap_are_those_of_one_model_and_length_that_begin_within_another() -> None:
    def window(model: str, minute: int, length: float = 60.0) -> DemandObservation:
        return DemandObservation(model, datetime(2026, 8, 1, 12, minute, tzinfo=UTC), length * 60, 1.0)

    a, b, c = window("a", 0), window("a", 15), window("a", 30, 15.0)
    assert overlaps([a, b, c, window("b", 15)]) == [(a, b)]
    assert overlaps([window("a", 0, 15.0), window("a", 15, 15.0), c]) == []  # one begins as the other ends
    # What was told before counts beside what is new, not by itself; the same window again replaces it.
    assert overlaps([b], [a, window("a", 45)]) == [(a, b), (b, window("a", 45))]
    assert overlaps([a], [a]) == overlaps([c], [a, b]) == []
