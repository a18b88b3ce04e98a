"""Planned demand: a percentile of one-minute request counts, not the mean."""

from __future__ import annotations

import math

MINUTE_S = 60.0


def poisson_quantile(mean: float, share: float) -> int:
    """Smallest k with P(X <= k) >= share for X ~ Poisson(mean), exact up to rounding of the terms.

    Terms are summed outward from a start 12 standard deviations below the mean, where less than 1e-30 of the mass lies
    below. ``mean`` >= 0, 0 < ``share`` < 1.
    """
    if not (mean >= 0 and math.isfinite(mean)) or not 0 < share < 1:
        raise ValueError(f"mean {mean} and share {share} are not of a Poisson distribution")
    if mean == 0:
        return 0
    k = max(0, math.floor(mean - 12 * math.sqrt(mean) - 12))
    term = math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
    total = term
    while total < share and k < mean + 40 * math.sqrt(mean) + 40:
        k += 1
        term *= mean / k
        total += term
    return k


def planned_rate(mean_req_per_s: float, percentile: float | None) -> float:
    """The rate to plan for: the ``percentile`` of one-minute Poisson counts at the stated mean, in requests per second;
    the mean itself for ``percentile`` None, and 0 for 0. Never below the mean: that percentile of a rare request is 0,
    which would release what serves it."""
    if percentile is None or mean_req_per_s == 0:
        return mean_req_per_s
    return max(mean_req_per_s, poisson_quantile(mean_req_per_s * MINUTE_S, percentile / 100) / MINUTE_S)
