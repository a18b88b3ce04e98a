"""Choosing offers for a date and market, and deriving prices for counts that nobody sells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from catalogs.ids import node_config_id, split_node_config
from catalogs.types import Market, Offer

DATE_TOLERANCE_DAYS = 31
# Regions nearer to each other than this count as one place: then a provider's own region comes first.
_SAME_PLACE_KM = 500.0
_EARTH_RADIUS_KM = 6371.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a region is."""

    latitude_deg: float
    longitude_deg: float


def choose_by_date(
    offers: Iterable[Offer], price_as_of: date, *, tolerance_days: int = DATE_TOLERANCE_DAYS
) -> tuple[list[Offer], list[Offer]]:
    """One offer per (region, instance type, node configuration, market): the one whose date is nearest to
    ``price_as_of`` (of two as near, the earlier). Returns (those within the tolerance, those farther away)."""
    nearest: dict[tuple[str, str, str, Market], Offer] = {}
    for offer in offers:
        key = (offer.region, offer.instance_type, offer.node_config, offer.market)
        held = nearest.get(key)
        if held is None or _distance(offer, price_as_of) < _distance(held, price_as_of):
            nearest[key] = offer
    near = [offer for offer in nearest.values() if abs((offer.as_of - price_as_of).days) <= tolerance_days]
    far = [offer for offer in nearest.values() if abs((offer.as_of - price_as_of).days) > tolerance_days]
    return near, far


def _distance(offer: Offer, day: date) -> tuple[int, date]:
    return abs((offer.as_of - day).days), offer.as_of


def with_discounts(offers: Iterable[Offer], discount_pct: Mapping[str, float]) -> list[Offer]:
    """Offers with each provider's negotiated discount taken off; the source says so."""
    return [
        replace(
            offer,
            price_usd_per_h=offer.price_usd_per_h * (1 - discount_pct[offer.provider] / 100),
            source=offer.source + _less(discount_pct[offer.provider]),
        )
        if discount_pct.get(offer.provider)
        else offer
        for offer in offers
    ]


def _less(pct: float) -> str:
    return f"; less {pct:g} %"


def is_discounted(offer: Offer, discount_pct: Mapping[str, float]) -> bool:
    """Whether :func:`with_discounts` took something off: not from own prices, nor from a feed of what is paid."""
    pct = discount_pct.get(offer.provider, 0)
    return pct > 0 and offer.source.endswith(_less(pct))


def by_price(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Offers, cheapest first; ties by id so that the order never depends on the input's."""
    return tuple(sorted(offers, key=lambda offer: (offer.price_usd_per_h, offer.offer_id)))


def per_gpu_at_count(total_by_count: Mapping[int, float], count: int) -> float:
    """A total (price, network rate) for ``count`` GPUs from those at other counts: the value per GPU is interpolated
    linearly between the neighbouring counts, and kept beyond the ends. Raises ValueError without any count."""
    if not total_by_count:
        raise ValueError("no count to go by")
    if count in total_by_count:
        return total_by_count[count]
    below = max((c for c in total_by_count if c < count), default=None)
    above = min((c for c in total_by_count if c > count), default=None)
    if below is None or above is None:
        only = above if below is None else below
        assert only is not None
        return count * total_by_count[only] / only
    left, right = total_by_count[below] / below, total_by_count[above] / above
    return count * (left + (right - left) * (count - below) / (above - below))


def distance_km(a: Place, b: Place) -> float:
    """Great-circle distance."""
    lat_a, lat_b = math.radians(a.latitude_deg), math.radians(b.latitude_deg)
    d_lat, d_lon = lat_b - lat_a, math.radians(b.longitude_deg - a.longitude_deg)
    h = math.sin(d_lat / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(d_lon / 2) ** 2
    return 2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(h))


def derive_grid(
    sold: Sequence[Offer],
    regions: Sequence[str],
    gpus: Sequence[str],
    counts: Sequence[int],
    places: Mapping[str, Place],
    price_as_of: date,
) -> list[Offer]:
    """On-demand offers that complete ``gpus`` x ``counts`` in every one of ``regions``, each marked derived.

    ``sold`` are the offers of every region at the date. Where the region sells the GPU, the price per GPU is
    interpolated between the counts sold there; where it does not, in the nearest region that sells it (a provider's own
    first among those within 500 km of each other). A GPU that nobody sells gets no offer.
    """
    cheapest: dict[str, dict[str, dict[int, float]]] = {}
    for offer in sold:
        if offer.market is not Market.ON_DEMAND or offer.is_derived:
            continue
        gpu, count = split_node_config(offer.node_config)
        prices = cheapest.setdefault(gpu, {}).setdefault(offer.region, {})
        prices[count] = min(offer.price_usd_per_h, prices.get(count, math.inf))
    derived = []
    for gpu in gpus:
        by_region = cheapest.get(gpu, {})
        for region in regions:
            donor = region if region in by_region else _nearest(region, by_region, places)
            if donor is None:
                continue
            sold_here = by_region.get(region, {})
            derived += [
                _derived_offer(gpu, count, region, donor, by_region[donor], price_as_of)
                for count in counts
                if count not in sold_here
            ]
    return derived


def _nearest(region: str, candidates: Iterable[str], places: Mapping[str, Place]) -> str | None:
    provider = region.split("/")[0]

    def rank(other: str) -> tuple[float, bool, float, str]:
        known = region in places and other in places
        km = distance_km(places[region], places[other]) if known else math.inf
        band = math.floor(km / _SAME_PLACE_KM) if known else math.inf
        return band, other.split("/")[0] != provider, km, other

    return min(candidates, key=rank, default=None)


def _derived_offer(gpu: str, count: int, region: str, donor: str, prices: Mapping[int, float], day: date) -> Offer:
    config = node_config_id(gpu, count)
    counts = ", ".join(f"x{known}" for known in sorted(prices))
    how = f"price of x{count} there" if count in prices else f"price per GPU interpolated from {counts}"
    where = "" if donor == region else f"{gpu} is not sold in {region}: as in {donor}; "
    if count not in prices and len(prices) == 1:
        how = f"price per GPU of {counts}"
    return Offer(
        offer_id=f"{region}/derived-{config}/on_demand/{day}",
        provider=region.split("/")[0],
        region=region,
        node_config=config,
        instance_type=f"derived-{config}",
        market=Market.ON_DEMAND,
        price_usd_per_h=round(per_gpu_at_count(prices, count), 6),
        interrupt_per_h=None,
        is_derived=True,
        as_of=day,
        source=f"derived: {where}{how}",
    )


def median_price_per_gpu(offers: Iterable[Offer], gpu: str, market: Market) -> float | None:
    """Median over offers of a GPU in a market of the price per GPU and hour; None where nothing is offered."""
    prices = sorted(
        offer.price_usd_per_h / count
        for offer in offers
        if offer.market is market
        for name, count in (split_node_config(offer.node_config),)
        if name == gpu
    )
    return prices[len(prices) // 2] if prices else None
