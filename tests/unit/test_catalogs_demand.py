"""Planned demand against independent sums."""

from __future__ import annotations

from decimal import Decimal, getcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.demand import planned_rate, poisson_quantile


def quantile_by_decimals(mean: str, share: str) -> int:
    """The quantile by summing every term from 0 in 60 digits."""
    getcontext().prec = 60
    lam, target = Decimal(mean), Decimal(share)
    term = total = (-lam).exp()
    k = 0
    while total < target:
        k += 1
        term *= lam / k
        total += term
    return k


@pytest.mark.parametrize("mean", ["0.05", "1", "10", "37.5", "600", "1500"])
@pytest.mark.parametrize("share", ["0.5", "0.95", "0.999"])
def test_quantile_is_exact(mean: str, share: str) -> None:
    assert poisson_quantile(float(mean), float(share)) == quantile_by_decimals(mean, share)


def test_paper_rates() -> None:
    # 10 req/s: 600 a minute, 95 % of minutes have at most 641; 25 req/s: 1500 and 1564.
    assert planned_rate(10, 95) == pytest.approx(641 / 60)
    assert planned_rate(25, 95) == pytest.approx(1564 / 60)


def test_a_rare_request_is_not_planned_as_none() -> None:
    """0.0005 req/s: 97 % of minutes have no request, and no request would release what serves it."""
    assert poisson_quantile(0.0005 * 60, 0.95) == 0
    assert planned_rate(0.0005, 95) == 0.0005


def test_zero_stays_zero_and_null_is_the_mean() -> None:
    assert planned_rate(0, 95) == 0
    assert planned_rate(7.3, None) == 7.3


@settings(deadline=None, max_examples=60)
@given(st.floats(0.001, 2e5), st.floats(50, 99.9))
def test_planned_rate_is_not_below_the_median_and_near_the_normal_one(mean: float, percentile: float) -> None:
    planned = planned_rate(mean, percentile)
    deviation = (mean * 60) ** 0.5 / 60
    # The median lies within 1 of the mean; 99.9 % of a Poisson lie below mean + 3.3 deviations + 3.
    assert mean - 1 / 60 - 1e-9 <= planned <= mean + 3.3 * deviation + 3 / 60


@pytest.mark.parametrize(("mean", "share"), [(-1, 0.5), (float("nan"), 0.5), (1, 0), (1, 1)])
def test_nonsense_is_refused(mean: float, share: float) -> None:
    with pytest.raises(ValueError, match="not of a Poisson"):
        poisson_quantile(mean, share)
