"""Own feeds: offers, availability, quotas, demand. A bad row is set aside with its reason; a bad heading refuses the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from catalogs.catalog import Catalog
from catalogs.errors import Finding, UnknownNameError, close_matches_remedy
from catalogs.ids import split_node_config
from catalogs.offers import median_price_per_gpu
from catalogs.tables import Table, read_table
from catalogs.types import Availability, Basis, Market, Offer, Quota


@dataclass(frozen=True, slots=True)
class Feed:
    """A table as read, with the rows that were set aside after the schema's checks added to its row findings."""

    table: Table
    rejects: tuple[Finding, ...]
    rows: tuple[tuple[int, Mapping[str, Any]], ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Faults of the file itself."""
        return self.table.file_findings

    def without_models(self, names: set[str]) -> Feed:
        """The feed without the rows of some models."""
        return Feed(self.table, self.rejects, tuple(pair for pair in self.rows if pair[1]["model"] not in names))


def read_feed(path: Path, table: str, catalog: Catalog, label: str) -> Feed:
    """Read one feed by its schema; GPU spellings become canonical ids."""
    read = read_table(path, table, encode_gpu=catalog.gpu_names.encode, label=label)
    rows = () if read.file_findings else tuple(zip(read.row_numbers, read.rows, strict=True))
    return Feed(read, read.row_findings, rows)


def _drop(feed: Feed, rejects: Sequence[Finding]) -> Feed:
    bad = {finding.row for finding in rejects}
    return Feed(feed.table, feed.rejects + tuple(rejects), tuple(pair for pair in feed.rows if pair[0] not in bad))


def _unknown(file: str, row: int, column: str, value: str, kind: str, known: Iterable[str]) -> Finding:
    return Finding(file, row, column, value, f"unknown {kind}", close_matches_remedy(value, known, kind))


def check_own_offers(feed: Feed) -> Feed:
    """Set aside rows with a region that is not ``provider/region``, and prices of 0 that are not for owned machines."""
    file, rejects = feed.table.file, []
    for number, row in feed.rows:
        if row["region"].count("/") != 1 or not all(row["region"].split("/")):
            remedy = "write provider/region, such as aws/eu-west-1"
            rejects.append(Finding(file, number, "region", row["region"], "has no provider", remedy))
        if row["price_usd_per_h"] == 0 and row["market"] != Market.OWNED:
            remedy = "give the price of the whole machine in USD/h; 0 is for market owned only"
            rejects.append(Finding(file, number, "price_usd_per_h", "0", "is zero", remedy))
    return _drop(feed, rejects)


def own_offers(feed: Feed) -> list[Offer]:
    """The accepted rows of an own offers file."""
    return [
        Offer(
            offer_id=f"{row['region']}/{row['instance_type']}/{row['market']}/{row['as_of']}",
            provider=row["region"].split("/")[0],
            region=row["region"],
            node_config=row["node_config"],
            instance_type=row["instance_type"],
            market=Market(row["market"]),
            price_usd_per_h=row["price_usd_per_h"],
            interrupt_per_h=row["interrupt_per_h"],
            is_derived=False,
            as_of=row["as_of"],
            source=row["source"] or feed.table.file,
        )
        for _, row in feed.rows
    ]


def price_unit_warnings(feed: Feed, catalog: Catalog) -> list[str]:
    """Rows of several GPUs whose price looks like that of one: below half the usual price per machine and within 40 % of
    the usual price per GPU."""
    texts = []
    for number, row in feed.rows:
        gpu, count = split_node_config(row["node_config"])
        usual = median_price_per_gpu(catalog.offers, gpu, Market(row["market"]))
        price = row["price_usd_per_h"]
        if count > 1 and usual and price < 0.5 * usual * count and 0.6 * usual <= price <= 1.4 * usual:
            texts.append(
                f"{feed.table.file}, row {number}: {price:g} USD/h for {row['node_config']} looks like the price of one GPU "
                f"(usual: {usual:.2f} per GPU); the column is the price of the whole machine"
            )
    return texts


def check_names(feed: Feed, regions: Iterable[str], node_configs: Iterable[str]) -> Feed:
    """Set aside availability rows of a region or node configuration that nobody knows. Rows of known ones that the
    scenario does not use are no fault: a feed may cover more."""
    known_regions, known_configs = set(regions), set(node_configs)
    rejects = []
    for number, row in feed.rows:
        if row["region"] not in known_regions:
            rejects.append(_unknown(feed.table.file, number, "region", row["region"], "region", known_regions))
        if row["node_config"] not in known_configs:
            kind = "node configuration"
            rejects.append(_unknown(feed.table.file, number, "node_config", row["node_config"], kind, known_configs))
    return _drop(feed, rejects)


def latest_availability(feed: Feed) -> dict[tuple[str, str, Market], Availability]:
    """The newest row per (region, configuration, market)."""
    newest: dict[tuple[str, str, Market], tuple[datetime, Availability]] = {}
    for _, row in feed.rows:
        market = Market(row["market"] or Market.ON_DEMAND)
        key = (row["region"], row["node_config"], market)
        if key not in newest or row["observed_at"] >= newest[key][0]:
            seen = row["observed_at"].isoformat()
            newest[key] = (row["observed_at"], Availability(*key, seen, row["nodes"], Basis.FEED))
    return {key: availability for key, (_, availability) in newest.items()}


def check_quota_names(feed: Feed, catalog: Catalog, offers: Sequence[Offer] | None, regions: Iterable[str]) -> Feed:
    """Set aside quotas of a region that nobody knows or of a family that no offer of its region counts against (``offers``
    None: what is on offer is not known)."""
    known_regions = set(regions)
    file, rejects = feed.table.file, []
    for number, row in feed.rows:
        if row["region"] not in known_regions:
            rejects.append(_unknown(file, number, "region", row["region"], "region", known_regions))
            continue
        if row["provider"] != row["region"].split("/")[0]:
            remedy = f"write {row['region'].split('/')[0]}"
            rejects.append(Finding(file, number, "provider", row["provider"], "is not the region's provider", remedy))
        if offers is None:
            continue
        here = [offer for offer in offers if offer.region == row["region"]]
        families = {name for offer in here or offers for name in quota_families(offer, catalog)}
        families |= {m.quota_family for m in catalog.instance_types.values() if m.quota_family}
        if row["family"] not in families:
            rejects.append(_unknown(file, number, "family", row["family"], "quota family", families))
        elif row["unit"] == "vcpu":
            rejects += _without_vcpus(file, number, row["family"], here, catalog)
    return _drop(feed, rejects)


def _without_vcpus(file: str, number: int, family: str, offers: Sequence[Offer], catalog: Catalog) -> list[Finding]:
    unknown = [
        offer.instance_type
        for offer in offers
        if family in quota_families(offer, catalog) and units_per_node(offer, "vcpu", catalog) is None
    ]
    remedy = "give the limit in gpu or node"
    reason = f"no vCPU count is known for {', '.join(unknown)}"
    return [Finding(file, number, "unit", "vcpu", reason, remedy)] if unknown else []


def quota_families(offer: Offer, catalog: Catalog) -> frozenset[str]:
    """The names under which a quota may speak of an offer: the provider's family, the GPU, the configuration, the type."""
    machine = catalog.instance_types.get((offer.provider, offer.instance_type))
    family = {machine.quota_family} if machine and machine.quota_family else set()
    return frozenset({split_node_config(offer.node_config)[0], offer.node_config, offer.instance_type, *family})


def units_per_node(offer: Offer, unit: str, catalog: Catalog) -> int | None:
    """Units of a quota that one machine of ``offer`` takes; None where the vCPU count is unknown."""
    if unit == "node":
        return 1
    if unit == "gpu":
        return split_node_config(offer.node_config)[1]
    machine = catalog.instance_types.get((offer.provider, offer.instance_type))
    return machine.vcpus if machine else None


def quotas(feed: Feed) -> list[Quota]:
    """The accepted quotas."""
    return [Quota(row["provider"], row["region"], row["family"], row["unit"], row["limit"]) for _, row in feed.rows]


@dataclass(frozen=True, slots=True)
class DemandWindow:
    """The demand row that counts for a model. ``req_per_s`` None = unknown. ``peak_ratio``: the planned percentile of the
    requests in a minute over their mean, where minutes were counted."""

    model: str
    window_start: datetime
    req_per_s: float | None
    peak_ratio: float | None = None


def check_demand_names(feed: Feed, catalog: Catalog, served: Iterable[str]) -> Feed:
    """Set aside demand of models that nobody knows (``served`` first among the suggestions). Known models that the
    scenario does not serve are no fault: a feed may cover more."""
    rejects = []
    names = [name for model in served for name in (model, catalog.model(model).alias)]
    for number, row in feed.rows:
        try:
            catalog.model(row["model"])
        except UnknownNameError:
            rejects.append(_unknown(feed.table.file, number, "model", row["model"], "model", names))
    return _drop(feed, rejects)


def demand_windows(feed: Feed, catalog: Catalog, at: datetime | None) -> dict[str, DemandWindow]:
    """Per model the latest window that has begun at ``at`` (None: the latest window of all)."""
    latest: dict[str, DemandWindow] = {}
    for _, row in feed.rows:
        model = catalog.model(row["model"]).model
        if at is not None and row["window_start"] > at:
            continue
        if model not in latest or row["window_start"] >= latest[model].window_start:
            latest[model] = DemandWindow(model, row["window_start"], row["demand_req_per_s"])
    return latest
