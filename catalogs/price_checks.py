"""Whether prices are plausible: against the last ones of the same machine, else against the median of the GPU.

The factors let through every real change of GCP's on-demand and spot prices from 2022-02 to 2025-11 (216 and 2,435) and of
AWS in us-east-1 from 2022-06 to 2026-07, and hold the one real slip among them: a2-ultragpu-2g at a fifth for a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from catalogs.catalog import Catalog
from catalogs.errors import Finding
from catalogs.ids import split_node_config
from catalogs.lake_feeds import FeedPrice, PriceSnapshot
from catalogs.offers import median_price_per_gpu
from catalogs.price_feeds import OfferKey, PriceFile, PriceRow, offer_key
from catalogs.types import Market, Offer

# Most that a price may differ from the last one of the machine, and from the median per GPU, either way.
CHANGE_FACTOR = {Market.ON_DEMAND: 2.0, Market.SPOT: 4.0}
MEDIAN_FACTOR = {Market.ON_DEMAND: 5.0, Market.SPOT: 10.0}
# Own prices of a file are a yardstick from so many on, where nothing else is known of a GPU.
_LEAST_FOR_MEDIAN = 3
# Share of a region's offers that may be gone from one snapshot to the next.
GONE_SHARE = 0.5
CONFIRM = "if it is right, ingest the file again with --confirm; the last known price stays till then"


@dataclass(frozen=True, slots=True)
class JudgedPrices:
    """Snapshots to take in, one per region, complete with what stays of the last ones; what is held and what is set aside
    beside the file's own rejects; and of how many rows."""

    snapshots: tuple[PriceSnapshot, ...]
    held: tuple[Finding, ...]
    rejects: tuple[Finding, ...]
    held_rows: frozenset[int]
    rejected_rows: frozenset[int]


def judge_prices(
    read: PriceFile,
    last: Mapping[str, PriceSnapshot],
    catalog: Catalog,
    observed_at: datetime,
    *,
    is_confirmed: bool = False,
) -> JudgedPrices:
    """The region snapshots that a price file makes on top of the ``last`` ones.

    A machine of the file whose row was set aside or held keeps its last price; one that the file no longer has in a region
    is withdrawn there. A region whose last snapshot is newer is set aside; one of which most offers are gone is held whole.
    ``is_confirmed``: nothing is held.
    """
    known = {offer_key(p.offer): p for snapshot in last.values() for p in snapshot.prices}
    medians = _Medians([*catalog.offers, *(p.offer for p in known.values())], [row.price.offer for row in read.rows])
    by_region: dict[str, list[PriceRow]] = {}
    for row in read.rows:
        by_region.setdefault(row.price.offer.region, []).append(row)
    snapshots: list[PriceSnapshot] = []
    held: list[Finding] = []
    rejects: list[Finding] = []
    held_rows: set[int] = set()
    rejected_rows: set[int] = set()
    for region, rows in sorted(by_region.items()):
        before = last.get(region)
        if before is not None and before.observed_at > observed_at:
            reason = f"prices of {region} at {before.observed_at:%Y-%m-%d %H:%M} UTC are there already: these are older"
            rejects.append(_of_file(read, region, reason, "give --as-of if the date is wrong, or newer prices"))
            rejected_rows.update(number for row in rows for number in row.rows)
            continue
        doubts = (
            [] if is_confirmed else [(row, why) for row in rows if (why := _doubt(row.price.offer, known, medians))]
        )
        doubted = {offer_key(row.price.offer) for row, _ in doubts}
        kept = _kept(read, before, doubted)
        taken = {offer_key(row.price.offer): row.price for row in rows if offer_key(row.price.offer) not in doubted}
        gone = {offer_key(p.offer) for p in before.prices} - set(kept) - set(taken) if before else set()
        if before and not is_confirmed and len(gone) > GONE_SHARE * len(before.prices):
            reason = f"{len(gone)} of the {len(before.prices)} prices last known in {region} are not in the file"
            held.append(_of_file(read, region, reason, CONFIRM))
            held_rows.update(number for row in rows for number in row.rows)
            continue
        held += [
            Finding(read.file, row.row, row.column, f"{row.price.offer.price_usd_per_h:g}", why, CONFIRM)
            for row, why in doubts
        ]
        held_rows.update(number for row, _ in doubts for number in row.rows)
        prices = tuple({**kept, **taken}.values())
        if prices:
            snapshots.append(PriceSnapshot(region, observed_at, prices, before.sequence if before else 0))
    return JudgedPrices(tuple(snapshots), tuple(held), tuple(rejects), frozenset(held_rows), frozenset(rejected_rows))


def _of_file(read: PriceFile, region: str, reason: str, remedy: str) -> Finding:
    return Finding(read.file, 0, "region", region, reason, remedy)


def _kept(read: PriceFile, before: PriceSnapshot | None, doubted: set[OfferKey]) -> dict[OfferKey, FeedPrice]:
    """Last prices that stay, with the date they held for: of machines whose row was held or could not be read."""
    kept = {}
    for price in before.prices if before else ():
        offer = price.offer
        if offer_key(offer) in doubted or (offer.region, offer.instance_type) in read.unreadable:
            kept[offer_key(offer)] = replace(price, is_dated=True)
    return kept


class _Medians:
    """Median price per GPU and market: of known offers, else of the file itself."""

    def __init__(self, known: Sequence[Offer], own: Sequence[Offer]) -> None:
        self.known, self.own = known, own
        self.found: dict[tuple[str, Market], float | None] = {}

    def of(self, gpu: str, market: Market) -> float | None:
        if (gpu, market) not in self.found:
            median = median_price_per_gpu(self.known, gpu, market)
            if median is None and _count(self.own, gpu, market) >= _LEAST_FOR_MEDIAN:
                median = median_price_per_gpu(self.own, gpu, market)
            self.found[gpu, market] = median
        return self.found[gpu, market]


def _count(offers: Iterable[Offer], gpu: str, market: Market) -> int:
    return sum(o.market is market and split_node_config(o.node_config)[0] == gpu for o in offers)


def _doubt(offer: Offer, known: Mapping[OfferKey, FeedPrice], medians: _Medians) -> str:
    """Why a price is to be confirmed by a person; '' = it is plausible."""
    if offer.market is Market.OWNED:
        return ""  # what own machines cost is what their owner says
    last = known.get(offer_key(offer))
    if last is not None:
        before = last.offer.price_usd_per_h
        if _is_off(offer.price_usd_per_h, before, CHANGE_FACTOR[offer.market]):
            return f"is {offer.price_usd_per_h / before:.2g}x the last price, {before:g} USD/h of {last.offer.as_of}"
        return ""
    gpu, count = split_node_config(offer.node_config)
    median = medians.of(gpu, offer.market)
    if median is not None and _is_off(offer.price_usd_per_h / count, median, MEDIAN_FACTOR[offer.market]):
        each = offer.price_usd_per_h / count
        return f"is {each:.3g} USD/h per GPU, {each / median:.2g}x the median of {gpu} ({median:.3g})"
    return ""


def _is_off(value: float, yardstick: float, factor: float) -> bool:
    return yardstick > 0 and not yardstick / factor <= value <= yardstick * factor
