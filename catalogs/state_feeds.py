"""Reads files of availability, demand and fleet state for `coral ingest`: CSV or Parquet, each row accepted or set aside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from catalogs.catalog import Catalog
from catalogs.errors import Finding, InputError
from catalogs.feeds import Feed, check_demand_names, check_names
from catalogs.lake_feeds import DemandObservation, FleetNodes
from catalogs.tables import Reading, read_table
from catalogs.types import Availability, Basis, Market

# How far a clock may be ahead of ours.
_CLOCKS = timedelta(minutes=5)
T = TypeVar("T")
_TEMPLATE_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class StateFile(Generic[T]):
    """A file as read: accepted rows in its order, and the rows set aside."""

    rows_seen: int
    rows: tuple[T, ...]
    rejects: tuple[Finding, ...]


def read_availability_file(
    path: Path, catalog: Catalog, regions: Iterable[str], node_configs: Iterable[str], now: datetime
) -> StateFile[Availability]:
    """Nodes that can be had. Blank, NULL and NaN are unknown, which is not 0. Raises InputError for the file itself."""
    feed = check_names(_read(path, "availability", catalog), regions, node_configs)
    feed = _without(feed, _ahead(feed, "observed_at", now))
    feed = _distinct(feed, lambda row: (row["region"], row["node_config"], _market(row), row["observed_at"]))
    rows = (
        Availability(
            row["region"],
            row["node_config"],
            _market(row),
            row["observed_at"].isoformat(),
            row["nodes"],
            Basis.FEED,
        )
        for _, row in feed.rows
    )
    return StateFile(feed.table.rows_seen, tuple(rows), feed.rejects)


def read_demand_file(
    path: Path, catalog: Catalog, served: Iterable[str], window: timedelta
) -> StateFile[DemandObservation]:
    """Mean request rates per window of ``window`` length, by model id. Blank, NULL and NaN are unknown, which is not 0.

    Windows may be still to come: what is expected then. Raises InputError for the file itself.
    """
    feed = check_demand_names(_read(path, "demand", catalog), catalog, served)
    feed = _distinct(feed, lambda row: (catalog.model(row["model"]).model, row["window_start"]))
    rows = (
        DemandObservation(
            catalog.model(row["model"]).model, row["window_start"], window.total_seconds(), row["demand_req_per_s"]
        )
        for _, row in feed.rows
    )
    return StateFile(feed.table.rows_seen, tuple(rows), feed.rejects)


def read_fleet_file(
    path: Path, catalog: Catalog, regions: Iterable[str], node_configs: Iterable[str], now: datetime
) -> tuple[StateFile[FleetNodes], Mapping[datetime, tuple[FleetNodes, ...]]]:
    """The file, and all its machines by the moment they were seen. Raises InputError for the file itself.

    A file of a heading alone has none: whoever hands it in must say that nothing runs.
    """
    feed = check_names(_read(path, "fleet_state", catalog), regions, node_configs)
    feed = _without(feed, _ahead(feed, "observed_at", now))
    feed = _without(feed, _bad_templates(feed))
    keys = ("observed_at", "region", "node_config")
    feed = _distinct(feed, lambda row: (*(row[k] for k in keys), _market(row), row["template_id"] or ""))
    at: dict[datetime, tuple[FleetNodes, ...]] = {}
    for _, row in feed.rows:
        seen = FleetNodes(
            row["region"],
            row["node_config"],
            _market(row),
            row["template_id"] or "",
            row["nodes"],
            row["failed_nodes"] or 0,
        )
        at[row["observed_at"]] = (*at.get(row["observed_at"], ()), seen)
    rows = tuple(seen for nodes in at.values() for seen in nodes)
    return StateFile(feed.table.rows_seen, rows, feed.rejects), at


def _read(path: Path, table: str, catalog: Catalog) -> Feed:
    """The table, NULL and NaN taken for unknown where a column may be. Raises InputError for faults of the file itself."""
    how = Reading(catalog.gpu_names.encode, takes_nothing=True)
    read = read_table(path, table, label=path.name, how=how)
    if read.file_findings:
        raise InputError(read.file_findings)
    return Feed(read, read.row_findings, tuple(zip(read.row_numbers, read.rows, strict=True)))


def _market(row: Mapping[str, Any]) -> Market:
    return Market(row["market"] or Market.ON_DEMAND)


def _without(feed: Feed, findings: Iterable[Finding]) -> Feed:
    found = tuple(findings)
    bad = {finding.row for finding in found}
    return Feed(feed.table, feed.rejects + found, tuple(pair for pair in feed.rows if pair[0] not in bad))


def _ahead(feed: Feed, column: str, now: datetime) -> Iterator[Finding]:
    """Rows that tell of what is still to come: they would count as the latest till then."""
    for number, row in feed.rows:
        if row[column] > now + _CLOCKS:
            remedy = "check the time zone: times without one are UTC"
            yield Finding(feed.table.file, number, column, row[column].isoformat(), "is in the future", remedy)


def _bad_templates(feed: Feed) -> Iterator[Finding]:
    for number, row in feed.rows:
        name = row["template_id"]
        if name and not _TEMPLATE_ID.fullmatch(name):
            remedy = "copy it from `coral plans show --json`, or leave the cell empty where none is known"
            yield Finding(feed.table.file, number, "template_id", name, "is no template id (16 hex digits)", remedy)


def _distinct(feed: Feed, key_of: Callable[[Mapping[str, Any]], tuple[Any, ...]]) -> Feed:
    """The feed without rows whose key, with names and blanks understood, an earlier row has already."""
    first: dict[tuple[Any, ...], int] = {}
    twice = []
    for number, row in feed.rows:
        key = key_of(row)
        if first.setdefault(key, number) != number:
            shown = ", ".join(str(part) for part in key if part != "")
            reason = f"duplicate of row {first[key]}"
            twice.append(Finding(feed.table.file, number, "", shown, reason, "keep one row for each key"))
    return _without(feed, twice)
