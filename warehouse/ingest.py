"""Taking feeds into the lake: a file in one transaction, and nothing written for what the lake knows already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import duckdb

from catalogs.errors import LakeError
from catalogs.ids import short_hash
from catalogs.lake_feeds import DemandObservation, FleetNodes, PriceSnapshot
from catalogs.scenario_schema import MOMENTS
from catalogs.types import Availability
from warehouse.connect import Lake
from warehouse.records import IngestRecord, Reject, utc_now
from warehouse.rows import insert, plain

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """All machines at a moment."""

    observed_at: datetime
    nodes: tuple[FleetNodes, ...]


@dataclass(frozen=True, slots=True)
class FeedContent:
    """Accepted rows of one file; of its kind only."""

    prices: Sequence[PriceSnapshot] = ()
    availability: Sequence[Availability] = ()
    demand: Sequence[DemandObservation] = ()
    fleet: Sequence[FleetObservation] = ()


def record_ingest(
    lake: Lake,
    record: IngestRecord,
    content: FeedContent,
    rejects: Sequence[Reject] = (),
    *,
    at: datetime | None = None,
    lock_timeout_s: float | None = None,
) -> IngestRecord:
    """Take in the accepted rows of a file, log it and the rows set aside, in one transaction; the record as logged.

    Rows that say what the lake knows already are not written again, and a file read before that changes nothing is not
    logged again. A price snapshot's ``sequence`` is that of the snapshot it was judged against: raises LakeError when
    another has come since, when the lock is held, or when the disk is full; nothing is written then. ``record.ingest_id``
    is ignored: it is assigned here.
    """
    at = at or utc_now()
    with lake.write(f"ingest {record.kind.value} of {record.scenario_id}", lock_timeout_s=lock_timeout_s) as connection:
        before = connection.execute(
            "SELECT count(*) FROM main.ingests WHERE content_id = ?", [record.content_id]
        ).fetchone()
        assert before is not None  # an aggregate always has a row
        record = replace(record, ingest_id=short_hash([record.content_id, before[0]]))
        writer = _Writer(connection, record, at)
        writer.prices(content.prices)
        writer.availability(content.availability)
        writer.demand(content.demand)
        writer.fleet(content.fleet)
        # That nothing runs any more is a change as well, though it is told without a row.
        ended = [o.observed_at for o in content.fleet if not o.nodes] if before[0] == 0 else []
        writer.changed += sum(map(writer.has_seen_nodes, ended))
        record = replace(record, n_changed=writer.changed)
        if before[0] == 0 or writer.changed:
            writer.log(record, rejects)
    return record


class _Writer:
    """Writes what is new of one file, inside the caller's transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, record: IngestRecord, at: datetime) -> None:
        self.connection, self.scenario_id, self.ingest_id, self.at = (
            connection,
            record.scenario_id,
            record.ingest_id,
            at,
        )
        self.changed = 0

    def log(self, record: IngestRecord, rejects: Sequence[Reject]) -> None:
        row = {name: getattr(record, name) for name in record.__dataclass_fields__}
        insert(self.connection, "ingests", [{**row, "ingested_at": self.at}])
        rows = [{name: getattr(reject, name) for name in reject.__dataclass_fields__} for reject in rejects]
        insert(self.connection, "rejects", [{"ingest_id": self.ingest_id, "logged_at": self.at, **row} for row in rows])

    def prices(self, snapshots: Iterable[PriceSnapshot]) -> None:
        latest = {
            region: (sequence, observed_at, set_id)
            for region, sequence, observed_at, set_id in self.connection.execute(
                """SELECT region, sequence, observed_at, set_id FROM main.price_snapshots WHERE scenario_id = ?
                QUALIFY sequence = max(sequence) OVER (PARTITION BY region)""",
                [self.scenario_id],
            ).fetchall()
        }
        sets: dict[str, list[Row]] = {}
        rows = []
        for snapshot in snapshots:
            sequence, observed_at, held = latest.get(snapshot.region, (0, None, None))
            if sequence != snapshot.sequence:
                raise LakeError(
                    f"other prices of {snapshot.region} were taken in meanwhile", remedy="run the same command again"
                )
            set_id, members = price_set(snapshot)
            if (observed_at, held) == (snapshot.observed_at, set_id):
                continue
            sets[set_id] = members
            self.changed += len(members) if set_id != held else 0
            row = {"scenario_id": self.scenario_id, "region": snapshot.region, "sequence": sequence + 1}
            row |= {"observed_at": snapshot.observed_at, "set_id": set_id, "ingest_id": self.ingest_id}
            rows.append(row)
        known = self.connection.execute(
            "SELECT DISTINCT set_id FROM main.price_sets WHERE list_contains(?::VARCHAR[], set_id)", [list(sets)]
        ).fetchall()
        for (set_id,) in known:
            del sets[set_id]
        insert(self.connection, "price_sets", [row for members in sets.values() for row in members])
        # A region told of again with the same prices is news as well: they are known to hold later.
        self.changed = max(self.changed, insert(self.connection, "price_snapshots", rows))

    def availability(self, rows: Iterable[Availability]) -> None:
        keys = ("region", "node_config", "market", "observed_at")
        given = [
            {
                "region": row.region,
                "node_config": row.node_config,
                "market": row.market.value,
                "observed_at": datetime.fromisoformat(row.observed_at),
                "nodes": row.nodes,
            }
            for row in rows
        ]
        self.corrected("availability_observations", "availability_feed", keys, given)

    def demand(self, windows: Iterable[DemandObservation]) -> None:
        given = []
        for window in windows:
            row: Row = {"model": window.model, "window_start": window.window_start, "window_s": window.window_s}
            row |= {"demand_req_per_s": window.req_per_s, "minute_counts": list(window.minute_counts)}
            row |= {name: getattr(window.lengths, name) if window.lengths else None for name in MOMENTS}
            given.append(row)
        self.corrected("demand_windows", "demand_feed", ("model", "window_s", "window_start"), given)

    def corrected(self, table: str, view: str, keys: tuple[str, ...], given: Sequence[Row]) -> None:
        """Append the rows that ``view`` does not show already."""
        if not given:
            return
        columns = list(given[0])
        time = keys[-1]
        span = [min(row[time] for row in given), max(row[time] for row in given)]
        shown = self.connection.execute(
            f"SELECT {', '.join(columns)} FROM main.{view} WHERE scenario_id = ? AND {time} BETWEEN ? AND ?",  # noqa: S608
            [self.scenario_id, *span],
        ).fetchall()
        key_of: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda row: tuple(row[name] for name in keys)  # noqa: E731
        known = {key_of(row): row for row in (dict(zip(columns, values, strict=True)) for values in shown)}
        new = [row for row in given if known.get(key_of(row)) != row]
        common = {"scenario_id": self.scenario_id, "ingest_id": self.ingest_id, "ingested_at": self.at}
        self.changed += insert(self.connection, table, [{**common, **row} for row in new])

    def fleet(self, observations: Iterable[FleetObservation]) -> None:
        for observation in observations:
            given = [
                {name: plain(getattr(row, name)) for name in row.__dataclass_fields__} for row in observation.nodes
            ]
            shown = self.connection.execute(
                f"""SELECT {", ".join(FleetNodes.__dataclass_fields__)} FROM main.fleet f
                LEFT JOIN main.ingests i ON i.ingest_id = f.ingest_id
                WHERE f.scenario_id = ? AND f.observed_at = ?
                QUALIFY rank() OVER (ORDER BY i.ingested_at DESC NULLS LAST, f.ingest_id) = 1""",  # noqa: S608
                [self.scenario_id, observation.observed_at],
            ).fetchall()
            if sorted(tuple(row.values()) for row in given) == sorted(shown):
                continue
            common = {"scenario_id": self.scenario_id, "observed_at": observation.observed_at}
            common |= {"ingest_id": self.ingest_id}
            self.changed += insert(self.connection, "fleet", [{**common, **row} for row in given])

    def has_seen_nodes(self, before: datetime) -> bool:
        """Whether something was seen to run before."""
        query = "SELECT 1 FROM main.fleet WHERE scenario_id = ? AND observed_at < ? LIMIT 1"
        return self.connection.execute(query, [self.scenario_id, before]).fetchone() is not None


def price_set(snapshot: PriceSnapshot) -> tuple[str, list[Row]]:
    """A snapshot's prices as rows, and their common id: equal prices are one set, whenever and by whomever they are told."""
    rows: list[Row] = []
    for price in snapshot.prices:
        offer = price.offer
        row: Row = {"instance_type": offer.instance_type, "node_config": offer.node_config}
        row |= {"market": offer.market.value, "price_usd_per_h": offer.price_usd_per_h}
        row |= {"interrupt_per_h": offer.interrupt_per_h, "network_gbit_per_s": price.network_gbit_per_s}
        row |= {"as_of": offer.as_of if price.is_dated else None, "is_list": price.is_list, "source": offer.source}
        rows.append(row)
    rows.sort(key=lambda row: (row["instance_type"], row["node_config"], row["market"]))
    set_id = short_hash([{**row, "as_of": row["as_of"] and row["as_of"].isoformat()} for row in rows])
    return set_id, [{"set_id": set_id, **row} for row in rows]
