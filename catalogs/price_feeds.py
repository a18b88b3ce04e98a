"""Reads price files: SkyPilot's catalog format of AWS, GCP, RunPod and Lambda, and our own CSV.

By column name, whatever the order and whatever else is there. A row is accepted, or set aside with its reason; zones of a
region become one offer. Whether a price is plausible is judged in :mod:`catalogs.price_checks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from catalogs.catalog import Catalog
from catalogs.errors import CoralError, Finding, InputError, UnknownNameError
from catalogs.feeds import check_own_offers, own_offers, read_feed
from catalogs.ids import node_config_id
from catalogs.lake_feeds import FeedPrice
from catalogs.price_parts import Parts
from catalogs.tables import Reading, Table, read_lines, read_table
from catalogs.texts import UnreadableError
from catalogs.types import Market, Offer
from catalogs.wording import counted

# Provider -> scope of its GPU names (catalogs/data/gpu_aliases.csv).
SKYPILOT_SCOPES = {"aws": "skypilot", "gcp": "skypilot", "runpod": "runpod", "lambda": "lambda"}
_SKYPILOT_COLUMNS = {"InstanceType", "AcceleratorName", "AcceleratorCount", "Region"}
_MARKET_OF = {"Price": Market.ON_DEMAND, "SpotPrice": Market.SPOT}
# A date may be a day ahead somewhere on Earth.
_AHEAD = timedelta(days=1)

OfferKey = tuple[str, str, str, Market]


def offer_key(offer: Offer) -> OfferKey:
    """What makes two prices those of the same machine: (region, instance type, node configuration, market)."""
    return offer.region, offer.instance_type, offer.node_config, offer.market


@dataclass(frozen=True, slots=True)
class PriceRow:
    """A price as read: its row, the column it stood in, and the offer. ``others``: further rows of the file that tell of the
    same offer, such as its dearer zones; what becomes of the price becomes of them."""

    row: int
    column: str
    price: FeedPrice
    others: frozenset[int] = frozenset()

    @property
    def rows(self) -> frozenset[int]:
        """All rows of the file behind the price."""
        return self.others | {self.row}


@dataclass(frozen=True, slots=True)
class PriceFile:
    """A price file as read. ``unreadable`` are the machines of rows that were set aside, as (region, instance type): what is
    known of them must stay."""

    file: str
    rows_seen: int
    rows: tuple[PriceRow, ...]
    rejects: tuple[Finding, ...]
    unreadable: frozenset[tuple[str, str]] = frozenset()
    notes: tuple[str, ...] = ()


def read_price_file(
    path: Path, catalog: Catalog, provider: str | None, observed_at: datetime, now: datetime
) -> PriceFile:
    """The prices in ``path``, as of ``observed_at`` where it does not date them. ``provider`` says whose SkyPilot catalog it
    is (None: as the file's or its folder's name says).

    Raises InputError where the file cannot be read or is of neither form, CoralError where the provider is not told.
    """
    try:
        lines = read_lines(path)
    except UnreadableError as error:
        raise InputError([Finding(path.name, 0, "", "", error.reason, error.remedy)]) from None
    header = {cell.strip() for cell in lines[0]} if lines else set()
    if {"node_config", "price_usd_per_h"} & header or not _SKYPILOT_COLUMNS & header:
        return _read_own(path, lines, catalog, now)
    return _read_skypilot(path, lines, catalog, provider or _provider_of(path), observed_at.date())


def _provider_of(path: Path) -> str:
    words = {word for part in (path.stem, path.parent.name) for word in part.lower().replace("-", "_").split("_")}
    found = sorted(words & set(SKYPILOT_SCOPES))
    if len(found) != 1:
        known = ", ".join(SKYPILOT_SCOPES)
        raise CoralError(
            f"{path.name} is in SkyPilot's format but does not say whose prices these are",
            remedy=f"give --provider (one of {known}), or name the file after it: aws_vms.csv",
        )
    return found[0]


def _require(table: Table) -> Table:
    if table.file_findings:
        raise InputError(table.file_findings)
    return table


# -- our own CSV -------------------------------------------------------------------------------------------------------
def _read_own(path: Path, lines: Sequence[list[str]], catalog: Catalog, now: datetime) -> PriceFile:
    feed = check_own_offers(read_feed(path, "own_offers", catalog, path.name))
    _require(feed.table)
    rejects = list(feed.rejects)
    newest: dict[OfferKey, PriceRow] = {}
    for (number, values), offer in zip(feed.rows, own_offers(feed), strict=True):
        if offer.as_of > (now + _AHEAD).date():
            remedy = "give the date the price was seen or agreed on; prices to come are taken when they hold"
            rejects.append(Finding(path.name, number, "as_of", str(offer.as_of), "is in the future", remedy))
            continue
        row = PriceRow(number, "price_usd_per_h", FeedPrice(offer, values["network_gbit_per_s"], False, True))
        held = newest.get(offer_key(offer), row)
        counts = row if offer.as_of >= held.price.offer.as_of else held
        newest[offer_key(offer)] = replace(counts, others=held.rows | row.rows)
    bad = {finding.row for finding in rejects}
    machines = _machines(lines, bad, "region", "instance_type", "")
    older = len(feed.rows) - (len(rejects) - len(feed.rejects)) - len(newest)
    notes = (
        (f"{counted(older, 'row is', 'rows are')} of an earlier date than another of the same machine",)
        if older
        else ()
    )
    return PriceFile(path.name, feed.table.rows_seen, tuple(newest.values()), tuple(rejects), machines, notes)


def _machines(
    lines: Sequence[list[str]], rows: set[int], region: str, instance_type: str, provider: str
) -> frozenset[tuple[str, str]]:
    """(region, instance type) of the given rows, as far as they can be made out."""
    header = [cell.strip() for cell in lines[0]] if lines else []
    if not {region, instance_type} <= set(header):
        return frozenset()
    at = header.index(region), header.index(instance_type)
    cells = [lines[row] for row in sorted(rows) if 0 < row < len(lines)]
    return frozenset((provider + line[at[0]].strip(), line[at[1]].strip()) for line in cells if len(line) > max(at))


# -- SkyPilot's catalogs -----------------------------------------------------------------------------------------------
def _read_skypilot(path: Path, lines: Sequence[list[str]], catalog: Catalog, provider: str, day: date) -> PriceFile:
    if provider not in SKYPILOT_SCOPES:
        raise UnknownNameError("provider", provider, SKYPILOT_SCOPES)
    header = [cell.strip() for cell in lines[0]]
    if not set(_MARKET_OF) & set(header):
        remedy = "give SkyPilot's catalog with its column Price, SpotPrice or both"
        raise InputError([Finding(path.name, 0, "Price", "", "the column is missing, and so is SpotPrice", remedy)])
    missing = [Finding(path.name, 0, c, "", "the column is missing", "give SkyPilot's catalog whole")
               for c in sorted(_SKYPILOT_COLUMNS - set(header))]  # fmt: skip
    if missing:
        raise InputError(missing)
    table = _require(read_table(path, "skypilot_vms", label=path.name, how=Reading(takes_columns=True)))
    reader = _SkyPilot(path.name, provider, catalog, day)
    for number, values in zip(table.row_numbers, table.rows, strict=True):
        reader.add(number, values)
    reader.join_parts()
    rejects = (*table.row_findings, *reader.rejects)
    machines = _machines(lines, {finding.row for finding in rejects}, "Region", "InstanceType", f"{provider}/")
    return PriceFile(path.name, table.rows_seen, tuple(reader.offers()), rejects, machines, tuple(reader.notes()))


@dataclass
class _SkyPilot:
    """Rows of a SkyPilot catalog as they come; a group holds the zones of a machine in a region."""

    file: str
    provider: str
    catalog: Catalog
    day: date
    rejects: list[Finding] = field(default_factory=list)
    groups: dict[tuple[str, str, str, Market], dict[str, tuple[float, int, str]]] = field(default_factory=dict)
    rows: dict[tuple[str, str, str, Market], set[int]] = field(default_factory=dict)
    no_capacity: int = 0
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.scope = SKYPILOT_SCOPES[self.provider]
        self.parts = Parts(self.catalog, self.provider, self.scope)

    def add(self, number: int, values: Mapping[str, Any]) -> None:
        """Take a row: of a whole machine, or a part of one."""
        part = self.parts.take(number, values)
        if not part:
            self.add_whole((number,), values)
        elif part != number:
            remedy = "keep the right one"
            reason = f"contradicts row {part}, which asks another price for the same GPUs and zone"
            self.rejects.append(Finding(self.file, number, "Price", f"{values.get('Price')}", reason, remedy))

    def join_parts(self) -> None:
        """Take the machines that are priced in parts, and set aside the parts of none."""
        used: set[int] = set()
        for numbers, values in self.parts.joined():
            faults = len(self.rejects)
            self.add_whole(numbers, values)
            used.update(numbers if len(self.rejects) == faults else numbers[:1])
        remedy = "leave the row out, or give the price of the whole machine in a CSV of your own"
        for number, column, reason in self.parts.left(frozenset(used)):
            self.rejects.append(Finding(self.file, number, column, "", reason, remedy))

    def add_whole(self, numbers: tuple[int, ...], values: Mapping[str, Any]) -> None:
        """Take a machine with its GPUs, of the rows ``numbers``."""
        number = numbers[0]
        fault = self.fault_of(number, values)
        if fault is not None:
            self.rejects.append(fault)
            return
        name, machine = values["AcceleratorName"], values["InstanceType"]
        try:
            gpu = self.catalog.gpu_names.encode(name, scope=self.scope, instance_type=machine)
        except UnknownNameError as error:
            remedy = f"{error.remedy}; a GPU that the catalog lacks is in no plan: leave the row out"
            self.rejects.append(Finding(self.file, number, "AcceleratorName", name, "unknown GPU", remedy))
            return
        except CoralError as error:
            self.rejects.append(Finding(self.file, number, "AcceleratorName", name, error.message, error.remedy))
            return
        config = node_config_id(gpu, values["AcceleratorCount"])
        zone = values.get("AvailabilityZone") or ""
        asked = [(column, values[column]) for column in _MARKET_OF if values.get(column) is not None]
        for column, price in asked:
            known = self.groups.get((values["Region"], machine, config, _MARKET_OF[column]), {}).get(zone)
            if known is not None and known[0] != price:
                reason = f"contradicts row {known[1]}, which asks {known[0]:g} for the same machine and zone"
                self.rejects.append(Finding(self.file, number, column, f"{price:g}", reason, "keep the right one"))
                return
        for column, price in asked:
            key = (values["Region"], machine, config, _MARKET_OF[column])
            self.groups.setdefault(key, {}).setdefault(zone, (price, number, column))
            self.rows.setdefault(key, set()).update(numbers)
        self.no_capacity += len(asked) == 2 and asked[1][1] >= asked[0][1]

    def fault_of(self, number: int, values: Mapping[str, Any]) -> Finding | None:
        """Why a row whose cells are sound is no offer of a machine with GPUs, or None."""

        def fault(column: str, value: object, reason: str, remedy: str) -> Finding:
            return Finding(self.file, number, column, "" if value is None else str(value), reason, remedy)

        if not values["InstanceType"]:
            return fault("InstanceType", None, "is blank: a price of the GPU without a machine", "leave the row out")
        if not values["AcceleratorName"]:
            return fault("AcceleratorName", None, "is blank: a machine without GPUs", "leave the row out")
        if not values["AcceleratorCount"]:
            return fault(
                "AcceleratorCount", None, "is blank or 0: how many GPUs?", "leave the row out, or give the number"
            )
        if "/" in values["Region"]:
            return fault("Region", values["Region"], "has a slash", f"give the region alone; {self.provider} is added")
        if all(values.get(column) is None for column in _MARKET_OF):
            return fault("Price", None, "is blank, and so is SpotPrice", "give one; blank is neither free nor 0")
        return None

    def offers(self) -> Iterator[PriceRow]:
        """One offer per machine, region and market: the cheapest zone."""
        for (region, machine, config, market), zones in self.groups.items():
            price, row, column = min(zones.values())
            where = f"; cheapest of {len(zones)} zones" if len({asked for asked, *_ in zones.values()}) > 1 else ""
            offer = Offer(
                offer_id=f"{self.provider}/{region}/{machine}/{market}/{self.day}",
                provider=self.provider,
                region=f"{self.provider}/{region}",
                node_config=config,
                instance_type=machine,
                market=market,
                price_usd_per_h=price,
                interrupt_per_h=None,
                is_derived=False,
                as_of=self.day,
                source=f"price feed of {self.provider}{where}",
            )
            rows = frozenset(self.rows[region, machine, config, market])
            yield PriceRow(row, column, FeedPrice(offer, None, True, False), rows)

    def notes(self) -> list[str]:
        """What a person should know of the file as a whole."""
        several = sum(
            market is Market.ON_DEMAND and len({price for price, *_ in zones.values()}) > 1
            for (*_, market), zones in self.groups.items()
        )
        found = []
        if self.no_capacity:
            found.append(
                f"{counted(self.no_capacity, 'row asks', 'rows ask')} as much for spot as on demand, or more: often there is "
                "no capacity"
            )
        if several:
            found.append(
                f"{counted(several, 'machine has', 'machines have')} several on-demand prices over zones: the cheapest counts"
            )
        return found
