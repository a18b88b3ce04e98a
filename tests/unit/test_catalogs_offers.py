"""Choosing offers by date, discounts, and derived prices, against hand calculation."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.offers import (
    Place,
    by_price,
    choose_by_date,
    derive_grid,
    distance_km,
    per_gpu_at_count,
    with_discounts,
)
from catalogs.types import Market, Offer
from flows.rule_notes import _discounts

DAY = date(2025, 5, 1)


def offer(
    price: float,
    *,
    as_of: date = DAY,
    region: str = "aws/a",
    config: str = "L40Sx1",
    kind: str = "m",
    market: Market = Market.ON_DEMAND,
) -> Offer:
    name = f"{region}/{kind}/{market}/{as_of}"
    return Offer(name, region.split("/")[0], region, config, kind, market, price, None, False, as_of, "test")


def test_the_nearest_date_counts_for_each_machine() -> None:
    before, after = offer(1, as_of=DAY - timedelta(10)), offer(2, as_of=DAY + timedelta(9))
    other = offer(3, as_of=DAY + timedelta(32), kind="n")
    near, far = choose_by_date([before, after, other], DAY)
    assert near == [after]
    assert far == [other]
    assert choose_by_date([other], DAY, tolerance_days=32) == ([other], [])


def test_of_two_as_near_the_earlier_counts_in_any_order() -> None:
    pair = [offer(1, as_of=DAY + timedelta(5)), offer(2, as_of=DAY - timedelta(5))]
    assert choose_by_date(pair, DAY)[0] == choose_by_date(pair[::-1], DAY)[0] == [pair[1]]


def test_31_days_are_near_and_32_are_not() -> None:
    assert choose_by_date([offer(1, as_of=DAY + timedelta(31))], DAY)[0]
    assert choose_by_date([offer(1, as_of=DAY + timedelta(32))], DAY)[1]


def test_markets_and_regions_do_not_mix() -> None:
    rows = [offer(1), offer(2, market=Market.SPOT), offer(3, region="aws/b")]
    assert len(choose_by_date(rows, DAY)[0]) == 3


def test_discount_is_per_provider_and_named_in_the_source() -> None:
    aws, gcp = with_discounts([offer(10), offer(10, region="gcp/a")], {"aws": 12})
    assert aws.price_usd_per_h == pytest.approx(8.8)
    assert aws.source == "test; less 12 %"
    assert gcp.price_usd_per_h == 10


def test_cheapest_first_with_a_stable_order() -> None:
    rows = [offer(2), offer(1, kind="z"), offer(1, kind="b")]
    assert (
        [o.instance_type for o in by_price(rows)] == [o.instance_type for o in by_price(rows[::-1])] == ["b", "z", "m"]
    )


def test_price_of_a_count_between_two_that_are_sold() -> None:
    # L40S in us-east-2: 1.861 per GPU at x1, 2.62316 at x4; at x2 a third of the way: 2.115053.
    prices = {1: 1.861, 4: 10.49264, 8: 30.13118}
    assert per_gpu_at_count(prices, 2) == pytest.approx(2 * (1.861 + (2.62316 - 1.861) / 3))
    assert per_gpu_at_count(prices, 4) == 10.49264
    assert per_gpu_at_count(prices, 16) == pytest.approx(2 * 30.13118)
    assert per_gpu_at_count({8: 98.32}, 1) == pytest.approx(12.29)
    with pytest.raises(ValueError, match="no count"):
        per_gpu_at_count({}, 1)


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.1, 20), min_size=1), st.integers(1, 32))
def test_derived_price_per_gpu_lies_between_those_sold(per_gpu: dict[int, float], count: int) -> None:
    totals = {n: n * price for n, price in per_gpu.items()}
    derived = per_gpu_at_count(totals, count) / count
    assert min(per_gpu.values()) - 1e-9 <= derived <= max(per_gpu.values()) + 1e-9


PLACES = {
    "aws/seoul": Place(37.57, 126.98),
    "gcp/seoul": Place(37.57, 126.98),
    "gcp/tokyo": Place(35.68, 139.69),
    "aws/ohio": Place(39.96, -83.0),
    "aws/virginia": Place(39.04, -77.49),
    "gcp/virginia": Place(39.04, -77.49),
}


def test_distance() -> None:
    assert distance_km(PLACES["aws/seoul"], PLACES["gcp/tokyo"]) == pytest.approx(1160, rel=0.02)
    assert distance_km(PLACES["aws/ohio"], PLACES["aws/ohio"]) == 0


def derive(sold: list[Offer], regions: list[str], gpu: str = "L40S") -> dict[tuple[str, str], Offer]:
    grid = derive_grid(sold, regions, [gpu], (1, 2, 4, 8), PLACES, DAY)
    return {(o.region, o.node_config): o for o in grid}


def test_the_grid_is_completed_and_marked() -> None:
    sold = [offer(2, region="aws/ohio"), offer(12, region="aws/ohio", config="L40Sx4", kind="n")]
    grid = derive(sold, ["aws/ohio"])
    assert set(grid) == {("aws/ohio", "L40Sx2"), ("aws/ohio", "L40Sx8")}
    assert all(o.is_derived and o.market is Market.ON_DEMAND and o.as_of == DAY for o in grid.values())
    assert grid["aws/ohio", "L40Sx2"].price_usd_per_h == pytest.approx(2 * (2 + 1 / 3))
    assert grid["aws/ohio", "L40Sx8"].price_usd_per_h == pytest.approx(24)
    assert grid["aws/ohio", "L40Sx2"].source == "derived: price per GPU interpolated from x1, x4"


def test_a_gpu_not_sold_here_costs_what_the_nearest_seller_asks() -> None:
    tokyo, virginia = offer(5, region="gcp/tokyo"), offer(3, region="aws/virginia")
    grid = derive([tokyo, virginia], ["aws/seoul", "aws/ohio"])
    assert grid["aws/seoul", "L40Sx1"].price_usd_per_h == 5
    assert "not sold in aws/seoul: as in gcp/tokyo; price of x1 there" in grid["aws/seoul", "L40Sx1"].source
    assert grid["aws/ohio", "L40Sx2"].price_usd_per_h == 6


def test_of_neighbours_a_providers_own_region_comes_first() -> None:
    grid = derive([offer(3, region="gcp/virginia"), offer(4, region="aws/virginia")], ["aws/ohio"])
    assert grid["aws/ohio", "L40Sx1"].price_usd_per_h == 4


def test_neither_spot_nor_derived_prices_are_a_basis_and_nothing_comes_of_nothing() -> None:
    assert derive([offer(1, market=Market.SPOT, region="aws/ohio")], ["aws/ohio"]) == {}
    assert derive([offer(1, region="aws/ohio")], ["aws/ohio"], gpu="H100-SXM") == {}


@pytest.mark.parametrize(
    ("rented", "said"),
    [
        (["own"], ""),
        (["list"], "prices are list prices less 12 % (aws)"),
        (["list", "own"], "prices are list prices less 12 % (aws); 1 price is your own and takes none"),
        (["list", "gcp"], "prices are list prices less 12 % (aws)"),
    ],
)
def test_a_discount_is_told_of_the_prices_it_came_off(rented: list[str], said: str) -> None:
    discounts = {"aws": 12.0, "gcp": 0.0}
    listed, gcp = with_discounts([offer(10), offer(10, region="gcp/a")], discounts)
    offers = [replace(listed, offer_id="list"), replace(offer(9), offer_id="own"), replace(gcp, offer_id="gcp")]
    loaded: Any = SimpleNamespace(
        offers=offers, scenario=SimpleNamespace(offers=SimpleNamespace(discount_pct=discounts))
    )
    plan: Any = SimpleNamespace(offers=[SimpleNamespace(offer_id=name) for name in rented])
    assert _discounts(loaded, plan) == said
