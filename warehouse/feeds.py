"""Reading what feeds told: prices, availability, demand and fleet of one scenario. Scenarios never see each other's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from catalogs.lake_feeds import (
    DemandObservation,
    FailedLaunch,
    FeedKind,
    FeedPrice,
    FleetNodes,
    ObservedFleet,
    PriceSnapshot,
)
from catalogs.scenario_schema import MOMENTS
from catalogs.types import Availability, Basis, Lengths, Market, Offer
from warehouse.catalog_faults import lake_errors
from warehouse.connect import Lake
from warehouse.records import IngestRecord

_LOG = "ingest_id, content_id, kind, scenario_id, file, observed_at, n_rows, n_accepted, n_held, n_rejected, n_changed, note"


def _rows(lake: Lake, sql: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
    with lake_errors(lake.root):
        found = lake.connection.execute(sql, list(parameters))
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def last_ingest(lake: Lake, scenario_id: str, kind: FeedKind) -> IngestRecord | None:
    """The latest file of a kind of which a row was accepted; None before the first."""
    sql = f"""SELECT {_LOG} FROM main.ingests
        WHERE scenario_id = ? AND kind = ? AND observed_at IS NOT NULL ORDER BY ingested_at DESC, ingest_id LIMIT 1"""  # noqa: S608 - a constant
    rows = _rows(lake, sql, [scenario_id, kind.value])
    return IngestRecord(**{**rows[0], "kind": FeedKind(rows[0]["kind"])}) if rows else None


def price_snapshots(
    lake: Lake, scenario_id: str, since: datetime | None = None, at: datetime | None = None
) -> dict[str, PriceSnapshot]:
    """The latest prices per region, of those seen not after ``at``; with ``since`` only of regions that were told of at or
    after that moment."""
    rows = _rows(
        lake,
        """SELECT s.region, s.observed_at, s.sequence, p.* EXCLUDE (set_id)
        FROM (
            FROM main.price_snapshots WHERE scenario_id = ? AND (? IS NULL OR observed_at <= ?)
            QUALIFY sequence = max(sequence) OVER (PARTITION BY region)
        ) s LEFT JOIN main.price_sets p ON p.set_id = s.set_id
        WHERE ? IS NULL OR s.observed_at >= ?
        ORDER BY s.region, p.instance_type, p.node_config, p.market""",
        [scenario_id, at, at, since, since],
    )
    found: dict[str, PriceSnapshot] = {}
    for region in dict.fromkeys(row["region"] for row in rows):
        own = [row for row in rows if row["region"] == region]
        prices = tuple(_price(row) for row in own if row["instance_type"] is not None)
        found[region] = PriceSnapshot(region, own[0]["observed_at"], prices, own[0]["sequence"])
    return found


def _price(row: dict[str, Any]) -> FeedPrice:
    as_of = row["as_of"] or row["observed_at"].date()
    offer = Offer(
        offer_id=f"{row['region']}/{row['instance_type']}/{row['market']}/{as_of}",
        provider=row["region"].split("/")[0],
        region=row["region"],
        node_config=row["node_config"],
        instance_type=row["instance_type"],
        market=Market(row["market"]),
        price_usd_per_h=row["price_usd_per_h"],
        interrupt_per_h=row["interrupt_per_h"],
        is_derived=False,
        as_of=as_of,
        source=row["source"],
    )
    return FeedPrice(offer, row["network_gbit_per_s"], row["is_list"], row["as_of"] is not None)


def latest_availability(
    lake: Lake, scenario_id: str, at: datetime | None = None
) -> dict[tuple[str, str, Market], Availability]:
    """The newest observation per (region, configuration, market), of those not after ``at``."""
    rows = _rows(
        lake,
        """SELECT region, node_config, market, observed_at, nodes FROM main.availability_feed
        WHERE scenario_id = ? AND (? IS NULL OR observed_at <= ?)
        QUALIFY row_number() OVER (PARTITION BY region, node_config, market ORDER BY observed_at DESC) = 1
        ORDER BY region, node_config, market""",
        [scenario_id, at, at],
    )
    found = {}
    for row in rows:
        key = (row["region"], row["node_config"], Market(row["market"]))
        found[key] = Availability(*key, row["observed_at"].isoformat(), row["nodes"], Basis.FEED)
    return found


def demand_history(
    lake: Lake, scenario_id: str, since: datetime | None = None, before: datetime | None = None
) -> dict[str, tuple[DemandObservation, ...]]:
    """Per model the windows that began in [since, before], in order of time; windows of several lengths may overlap."""
    rows = _rows(
        lake,
        """SELECT * FROM main.demand_feed
        WHERE scenario_id = ? AND (? IS NULL OR window_start >= ?) AND (? IS NULL OR window_start <= ?)
        ORDER BY model, window_start, window_s""",
        [scenario_id, since, since, before, before],
    )
    found: dict[str, list[DemandObservation]] = {}
    for row in rows:
        found.setdefault(row["model"], []).append(_observation(row))
    return {model: tuple(windows) for model, windows in found.items()}


def _observation(row: dict[str, Any]) -> DemandObservation:
    moments = {name: row[name] for name in MOMENTS}
    return DemandObservation(
        row["model"],
        row["window_start"],
        row["window_s"],
        row["demand_req_per_s"],
        tuple(row["minute_counts"]),
        None if None in moments.values() else Lengths(**moments, source="demand feed"),
    )


def observed_fleet(lake: Lake, scenario_id: str, at: datetime | None = None) -> ObservedFleet | None:
    """All machines seen at the latest observation not after ``at``; None where none was ever taken in.

    An observation without machines is one: nothing runs.
    """
    when = _rows(
        lake,
        """SELECT max(observed_at) AS latest FROM (
            SELECT observed_at FROM main.ingests WHERE scenario_id = $1 AND kind = 'fleet'
            UNION ALL SELECT observed_at FROM main.fleet WHERE scenario_id = $1
        ) WHERE $2::TIMESTAMPTZ IS NULL OR observed_at <= $2""",
        [scenario_id, at],
    )[0]["latest"]
    if when is None:
        return None
    # Of two files that tell of the same moment the later counts, whole.
    told = _rows(
        lake,
        """SELECT ingest_id, n_rejected FROM main.ingests
        WHERE scenario_id = $1 AND kind = 'fleet' AND (
            observed_at = $2
            OR ingest_id IN (SELECT ingest_id FROM main.fleet WHERE scenario_id = $1 AND observed_at = $2)
        ) ORDER BY ingested_at DESC, ingest_id LIMIT 1""",
        [scenario_id, when],
    )
    ingest_id, set_aside = (told[0]["ingest_id"], told[0]["n_rejected"]) if told else ("", 0)
    rows = _rows(
        lake,
        """SELECT region, node_config, market, template_id, nodes, failed_nodes FROM main.fleet
        WHERE scenario_id = ? AND observed_at = ? AND ingest_id = ?
        ORDER BY region, node_config, market, template_id""",
        [scenario_id, when, ingest_id],
    )
    nodes = tuple(FleetNodes(**{**row, "market": Market(row["market"])}) for row in rows)
    return ObservedFleet(scenario_id, when, nodes, set_aside)


def failed_launches(lake: Lake, scenario_id: str, since: datetime, at: datetime) -> tuple[FailedLaunch, ...]:
    """The latest failed launch per (region, configuration, market) in [since, at], with the nodes that run there by the
    latest observation not after ``at``."""
    rows = _rows(
        lake,
        """SELECT region, node_config, market, max(observed_at) AS failed_at FROM main.fleet
        WHERE scenario_id = ? AND failed_nodes > 0 AND observed_at BETWEEN ? AND ?
        GROUP BY region, node_config, market ORDER BY region, node_config, market""",
        [scenario_id, since, at],
    )
    fleet = observed_fleet(lake, scenario_id, at)
    running: dict[tuple[str, str, str], int] = {}
    for row in fleet.nodes if fleet else ():
        key = (row.region, row.node_config, row.market.value)
        running[key] = running.get(key, 0) + row.nodes
    return tuple(
        FailedLaunch(
            row["region"],
            row["node_config"],
            Market(row["market"]),
            row["failed_at"],
            running.get((row["region"], row["node_config"], row["market"]), 0),
        )
        for row in rows
    )
