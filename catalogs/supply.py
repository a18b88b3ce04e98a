"""What a scenario can rent: the offers chosen for its date, markets and filters, and how many nodes of each there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from catalogs.catalog import Catalog
from catalogs.feeds import quota_families, units_per_node
from catalogs.ids import split_node_config
from catalogs.lake_feeds import PriceSnapshot
from catalogs.offers import by_price, choose_by_date, derive_grid, with_discounts
from catalogs.scenario_schema import OffersSection
from catalogs.types import Availability, Basis, Market, NodeConfig, Offer, Quota
from catalogs.wording import counted

GRID_COUNTS = (1, 2, 4, 8)
Note = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Supply:
    """Chosen offers, cheapest first, and the notes on how they were chosen."""

    offers: tuple[Offer, ...]
    notes: tuple[Note, ...]


def choose_offers(
    section: OffersSection,
    price_as_of: date,
    own: Sequence[Offer],
    catalog: Catalog,
    feed: Mapping[str, PriceSnapshot] | None = None,
) -> Supply:
    """The offers of a scenario.

    In a region of the ``feed`` its prices count and the catalog's do not; own offers replace either for the same machine,
    region and market. Each machine has the price nearest to
    ``price_as_of``; one farther away than the tolerance is used with a note, or dropped. With ``only_sold: false`` the
    grid is completed from the prices of every region. Discounts come off the catalog's prices, before others are
    derived from them.
    """
    replaced = {(offer.region, offer.instance_type, offer.market) for offer in own}
    fed = [price for snapshot in (feed or {}).values() for price in snapshot.prices]
    shipped = [o for o in catalog.offers if o.region not in (feed or {})] if section.use_catalog else []
    listed = [*shipped, *(price.offer for price in fed if price.is_list)]
    agreed = [price.offer for price in fed if not price.is_list]
    pool, kept = (
        [o for o in some if (o.region, o.instance_type, o.market) not in replaced] for some in (listed, agreed)
    )
    # Own prices are what is paid already; the discount is off the list prices, and what is derived follows either.
    paid = [*own, *kept, *with_discounts(pool, section.discount_pct)]
    near, far = choose_by_date(paid, price_as_of, tolerance_days=section.date_tolerance_days)
    dated = near if section.other_dates == "drop" else near + far
    chosen = [offer for offer in dated if _is_wanted(offer, section)]
    notes = _date_notes([offer for offer in far if _is_wanted(offer, section)], section, price_as_of)
    if not section.only_sold:
        # What is named is asked for, sold or not; without names it is what these regions sell.
        named = section.node_configs or [offer.node_config for offer in chosen]
        gpus = section.include_gpus or sorted({split_node_config(config)[0] for config in named})
        grid = derive_grid(dated, section.regions, gpus, GRID_COUNTS, catalog.places, price_as_of)
        derived = [offer for offer in grid if _is_wanted(offer, section)]
        chosen += derived
        notes += _derived_notes(derived)
    notes += _market_notes(chosen, dated, catalog)
    return Supply(by_price(chosen), tuple(notes))


def _is_wanted(offer: Offer, section: OffersSection) -> bool:
    gpu = split_node_config(offer.node_config)[0]
    return (
        offer.region in section.regions
        and offer.market in section.markets
        and (section.include_gpus is None or gpu in section.include_gpus)
        and gpu not in section.exclude_gpus
        and (section.node_configs is None or offer.node_config in section.node_configs)
    )


def _date_notes(far: Sequence[Offer], section: OffersSection, price_as_of: date) -> list[Note]:
    if not far:
        return []
    days = section.date_tolerance_days
    shown = _some(f"{offer.instance_type} in {offer.region} ({offer.as_of})" for offer in by_price(far))
    if section.other_dates == "drop":
        return [
            (
                "other_dates_dropped",
                f"left out, since priced more than {counted(days, 'day')} from {price_as_of}: {shown}",
            )
        ]
    return [("mixed_dates", f"priced more than {counted(days, 'day')} from {price_as_of}: {shown}")]


def _derived_notes(derived: Sequence[Offer]) -> list[Note]:
    if not derived:
        return []
    shown = _some(f"{offer.node_config} in {offer.region}" for offer in derived)
    return [
        (
            "derived_offers",
            f"{counted(len(derived), 'derived price')}, of what nobody sells: {shown}",
        )
    ]


def _market_notes(chosen: Sequence[Offer], dated: Sequence[Offer], catalog: Catalog) -> list[Note]:
    notes = []
    list_only = [
        f"{offer.instance_type} in {offer.region}"
        for offer in chosen
        if offer.market is Market.ON_DEMAND
        and (machine := catalog.instance_types.get((offer.provider, offer.instance_type)))
        and "only" in (machine.note or "")
    ]
    if list_only:
        notes.append(
            ("list_price_only", f"have an on-demand list price but are sold as spot or flex-start: {_some(list_only)}")
        )
    on_demand = {(o.region, o.instance_type): o.price_usd_per_h for o in dated if o.market is Market.ON_DEMAND}
    for offer in chosen:
        full = on_demand.get((offer.region, offer.instance_type))
        if offer.market is Market.SPOT and full is not None and offer.price_usd_per_h >= full:
            what = "above" if offer.price_usd_per_h > full else "equal to"
            text = f"{offer.instance_type} in {offer.region}: spot price {what} on-demand, often a sign of no capacity"
            notes.append(("spot_not_cheaper", text))
    return notes


def _some(texts: Iterable[str], most: int = 4) -> str:
    unique = list(dict.fromkeys(texts))
    return ", ".join(unique[:most]) + (f" and {len(unique) - most} more" if len(unique) > most else "")


def node_configs_of(
    offers: Iterable[Offer], catalog: Catalog, own_network: Mapping[str, float]
) -> dict[str, NodeConfig]:
    """The node configurations on offer: the catalog's, or made from the GPU for an own count, with an own network rate
    where the offers file gives one (the smallest per configuration)."""
    found: dict[str, NodeConfig] = {}
    for offer in offers:
        if offer.node_config in found:
            continue
        known = catalog.node_configs.get(offer.node_config)
        network = own_network.get(offer.node_config, known.network_gbit_per_s if known else None)
        gpu, count = split_node_config(offer.node_config)
        link = (
            known.link if known else "none" if count == 1 else "pcie" if catalog.gpus[gpu].link == "none" else "nvlink"
        )
        found[offer.node_config] = NodeConfig(
            node_config=offer.node_config,
            gpu=gpu,
            gpu_count=count,
            memory_gib=catalog.gpus[gpu].memory_gib * count,
            link=link,
            network_gbit_per_s=network,
            is_derived=offer.is_derived and (known is None or known.is_derived),
            source=known.source if known else offer.source,
            as_of=known.as_of if known else offer.as_of,
        )
    return dict(sorted(found.items()))


def feed_networks(feed: Mapping[str, PriceSnapshot]) -> dict[str, float]:
    """Network rates that a feed tells of, the smallest per configuration."""
    found: dict[str, float] = {}
    for price in (price for snapshot in feed.values() for price in snapshot.prices):
        if price.network_gbit_per_s is not None:
            config = price.offer.node_config
            found[config] = min(price.network_gbit_per_s, found.get(config, price.network_gbit_per_s))
    return found


def lasting_offers(now: Sequence[Offer], usual: Sequence[Offer], catalog: Catalog) -> tuple[Offer, ...]:
    """What a library is to cover: what is offered ``now`` and what usually is. Dates and sources of offers do not show, so
    that the same machines at other prices are the same library."""
    dated = {gpu: facts.as_of for gpu, facts in catalog.gpus.items()}
    return tuple(
        replace(offer, as_of=dated[split_node_config(offer.node_config)[0]], source="price feed")
        if offer.node_config not in catalog.node_configs
        else offer
        for offer in (*usual, *now)
    )


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """A provider's limit as a row over node configurations: sum of ``units[c]`` x nodes of c <= ``quota.limit``."""

    quota: Quota
    units: Mapping[str, int]


def quota_limits(quotas: Iterable[Quota], offers: Iterable[Offer], catalog: Catalog) -> list[QuotaLimit]:
    """Each quota with the units that a node of each configuration takes: the cheapest machine's of each market, the most of
    these. Owned machines take none."""
    cheapest: dict[tuple[str, Market, str], Offer] = {}
    for offer in offers:
        if offer.market is not Market.OWNED:
            cheapest.setdefault((offer.region, offer.market, offer.node_config), offer)
    limits = []
    for quota in quotas:
        units: dict[str, int] = {}
        for (region, _, config), offer in cheapest.items():
            if region == quota.region and quota.family in quota_families(offer, catalog):
                taken = units_per_node(offer, quota.unit, catalog)
                if taken is not None:
                    units[config] = max(taken, units.get(config, 0))
        limits.append(QuotaLimit(quota, units))
    return limits


@dataclass(frozen=True, slots=True)
class Capacity:
    """Nodes per region and configuration, those held already included, never infinite: the feed's figure, at most what
    the quotas allow; without a feed the quotas; without either the scenario's default, labelled assumed. Owned machines
    are never assumed: without a figure there are none. Where a launch ``failed`` of late there are no more than run there."""

    default_nodes: int
    feed: Mapping[tuple[str, str, Market], Availability] = field(default_factory=dict)
    limits: tuple[QuotaLimit, ...] = ()
    failed: Mapping[tuple[str, str, Market], int] = field(default_factory=dict)

    def nodes(self, region: str, node_config: str, market: Market) -> tuple[int, Basis]:
        """How many nodes, and where the figure comes from."""
        nodes, basis = self._told(region, node_config, market)
        running = self.failed.get((region, node_config, market))
        return (nodes, basis) if running is None or running >= nodes else (running, Basis.FEED)

    def _told(self, region: str, node_config: str, market: Market) -> tuple[int, Basis]:
        limits = () if market is Market.OWNED else self.limits
        allowed = [
            limit.quota.limit // limit.units[node_config]
            for limit in limits
            if limit.quota.region == region and limit.units.get(node_config)
        ]
        quota = min(allowed, default=None)
        seen = self.feed.get((region, node_config, market))
        if market is Market.OWNED and (seen is None or seen.nodes is None):
            return 0, Basis.ASSUMED  # nobody owns what is not counted
        if seen is None or seen.nodes is None:
            return (self.default_nodes, Basis.ASSUMED) if quota is None else (quota, Basis.QUOTA)
        if quota is not None and quota < seen.nodes:
            return quota, Basis.QUOTA
        return seen.nodes, Basis.FEED
