"""The demand of the window that is planned, from the windows a feed told of: told, last, seasonal naive, or smoothed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from catalogs.lake_feeds import DemandObservation
from catalogs.scenario_schema import LEAST_DEMAND
from catalogs.wording import counted

_SEASONS_FOR_SMOOTHING = 2
_LEAST_FOR_SMOOTHING = 4


class ForecastMethod(StrEnum):
    """How demand is carried on from a feed's last window."""

    LAST = "last"
    SEASONAL = "seasonal"
    SMOOTHING = "smoothing"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Demand of the window that holds ``at``. ``req_per_s`` None = unknown. ``window``: the one that counts, or from which
    demand is carried on; ``is_told``: it holds ``at``. ``peak_ratio``: the planned percentile of the requests in a minute
    over their mean, where minutes were counted (else None). ``note`` says where another method had to be used."""

    req_per_s: float | None
    window: DemandObservation
    is_told: bool
    peak_ratio: float | None = None
    note: str = ""


def forecast(
    history: Sequence[DemandObservation],
    at: datetime,
    method: ForecastMethod,
    season: timedelta,
    percentile: float | None,
) -> Forecast:
    """Demand in the window that holds ``at``, by a model's windows that began by then, in order of time (at least one).

    A window that holds ``at`` is taken as told, whatever the method: of several the shortest, which says the most about that
    moment, and of equally long ones that which began last. Else demand is carried on from the window that ended last (of
    several the shortest), along the windows of its length:
    ``last`` its own rate; ``seasonal`` the rate one ``season`` (or the fewest) before; ``smoothing`` exponential smoothing
    (Holt-Winters' additive form from two seasons without a gap, else of the level alone) by statsmodels. An unknown last
    window makes the demand unknown: nothing older speaks for it. What is computed is never zero unless all windows are.
    """
    ratio = _peak_ratio(history, percentile)
    holding = [window for window in history if window.window_start <= at < window.window_end]
    if holding:
        told = min(holding, key=lambda window: (window.window_s, at - window.window_start))
        return Forecast(told.req_per_s, told, True, ratio)
    last = max(history, key=lambda window: (window.window_end, -window.window_s))
    if last.req_per_s is None:
        return Forecast(None, last, False, ratio)
    history = [w for w in history if w.window_s == last.window_s and w.window_start <= last.window_start]
    steps = math.floor((at - last.window_start) / timedelta(seconds=last.window_s))
    target = last.window_start + steps * timedelta(seconds=last.window_s)
    value, note = last.req_per_s, ""
    if method is ForecastMethod.SEASONAL:
        value, note = _seasonal(history, target, season)
    elif method is ForecastMethod.SMOOTHING:
        value, note = _smoothed(history, steps, season)
    if value < LEAST_DEMAND and any(window.req_per_s for window in history):
        value = max(value, LEAST_DEMAND) if method is ForecastMethod.SMOOTHING else value
    return Forecast(value, last, False, ratio, note)


def _seasonal(history: Sequence[DemandObservation], target: datetime, season: timedelta) -> tuple[float, str]:
    """The rate in the window at the same time of an earlier season; the last one where none is known."""
    known = {window.window_start: window.req_per_s for window in history}
    before = target - season
    while before >= history[0].window_start:
        value = known.get(before)
        if value is not None:
            return value, ""
        before -= season
    assert history[-1].req_per_s is not None, "asked for a known last window"
    return history[-1].req_per_s, "no window one season before is known: the last one is taken"


def _smoothed(history: Sequence[DemandObservation], steps: int, season: timedelta) -> tuple[float, str]:
    """Exponential smoothing of the windows since the last gap, ``steps`` windows ahead."""
    series = _without_gap(history)
    last = series[-1]
    if len(series) < _LEAST_FOR_SMOOTHING:
        return last, f"only {counted(len(series), 'window')} without a gap: too few to smooth, the last one is taken"
    if max(series) == min(series):
        return last, ""
    import warnings

    from statsmodels.tsa.holtwinters import ExponentialSmoothing, SimpleExpSmoothing

    period = round(season / timedelta(seconds=history[-1].window_s))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the optimiser's convergence; what comes of it is bounded below
        if period >= 2 and len(series) >= _SEASONS_FOR_SMOOTHING * period:
            fitted = ExponentialSmoothing(series, seasonal="add", seasonal_periods=period).fit()
        else:
            fitted = SimpleExpSmoothing(series, initialization_method="estimated").fit()
        value = float(fitted.forecast(steps)[-1])
    if not math.isfinite(value):
        return last, "smoothing found no value: the last window is taken"
    return min(max(value, min(series)), 2 * max(series)), ""


def _without_gap(history: Sequence[DemandObservation]) -> list[float]:
    """Rates of the equally long windows up to the last one, since the last gap or unknown window."""
    series: list[float] = []
    follows = history[-1].window_end
    for window in reversed(history):
        if window.req_per_s is None or window.window_end != follows:
            break
        series.append(window.req_per_s)
        follows = window.window_start
    return series[::-1]


def _peak_ratio(history: Sequence[DemandObservation], percentile: float | None) -> float | None:
    """Percentile over mean of the requests in a minute, in the last window whose minutes were counted."""
    if percentile is None:
        return None
    for window in reversed(history):
        counts = sorted(window.minute_counts)
        if counts and sum(counts):
            at = counts[min(len(counts) - 1, math.ceil(len(counts) * percentile / 100) - 1)]
            return at / (sum(counts) / len(counts))
    return None
