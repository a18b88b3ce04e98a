"""Feeds in the lake: what counts of what was taken in, and that nothing of one scenario or one bad file touches another."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from warehouse_cases import new_lake

from catalogs.errors import LakeError
from catalogs.lake_feeds import DemandObservation, FeedKind, FeedPrice, FleetNodes, PriceSnapshot
from catalogs.types import Availability, Basis, Lengths, Market, Offer
from warehouse.connect import Lake
from warehouse.feeds import (
    demand_history,
    failed_launches,
    last_ingest,
    latest_availability,
    observed_fleet,
    price_snapshots,
)
from warehouse.gc import collect_garbage
from warehouse.ingest import FeedContent, FleetObservation, record_ingest
from warehouse.records import IngestRecord, Reject

NOON = datetime(2026, 7, 30, 12, tzinfo=UTC)
EAST = "aws/us-east-2"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with new_lake(tmp_path / "lake") as opened:
        yield opened


def record(kind: FeedKind, content: str, observed_at: datetime | None = NOON, scenario: str = "mine") -> IngestRecord:
    return IngestRecord("", content, kind, scenario, "file.csv", observed_at, 3, 2, 0, 1)


def price(
    instance_type: str, usd_per_h: float, market: Market = Market.ON_DEMAND, day: date | None = None
) -> FeedPrice:
    as_of = day or NOON.date()
    offer = Offer("", "aws", EAST, "L40Sx1", instance_type, market, usd_per_h, None, False, as_of, "feed")
    return FeedPrice(offer, None, True, day is not None)


def snapshot(*prices: FeedPrice, hours: float = 0, sequence: int = 0, region: str = EAST) -> PriceSnapshot:
    return PriceSnapshot(region, NOON + timedelta(hours=hours), prices, sequence)


def count(lake: Lake, table: str) -> int:
    row = lake.connection.execute(f"SELECT count(*) FROM main.{table}").fetchone()
    assert row is not None
    return row[0]


def test_the_latest_snapshot_is_all_that_a_region_offers(lake: Lake) -> None:
    first = snapshot(price("g6e.xlarge", 1.86), price("g6e.2xlarge", 2.24))
    done = record_ingest(lake, record(FeedKind.PRICES, "a"), FeedContent(prices=[first]))
    assert done.n_changed == 2
    second = snapshot(price("g6e.xlarge", 1.90), hours=1, sequence=1)
    other = snapshot(price("g6e.xlarge", 9.0), region="aws/us-west-2")
    record_ingest(lake, record(FeedKind.PRICES, "b"), FeedContent(prices=[second, other]))
    found = price_snapshots(lake, "mine")
    assert [p.offer.price_usd_per_h for p in found[EAST].prices] == [1.90], "what is no longer told is withdrawn"
    assert (found[EAST].sequence, found[EAST].observed_at) == (2, NOON + timedelta(hours=1))
    assert found[EAST].prices[0].offer.as_of == NOON.date(), "an undated price holds for its snapshot's day"
    assert set(price_snapshots(lake, "mine", since=NOON + timedelta(minutes=30))) == {EAST}
    assert price_snapshots(lake, "yours") == {}


def test_equal_prices_are_kept_once_and_seen_again(lake: Lake) -> None:
    rows = (price("g6e.xlarge", 1.86), price("g6e.xlarge", 0.9, Market.SPOT))
    record_ingest(lake, record(FeedKind.PRICES, "a"), FeedContent(prices=[snapshot(*rows)]))
    again = record_ingest(lake, record(FeedKind.PRICES, "a"), FeedContent(prices=[snapshot(*rows, sequence=1)]))
    assert again.n_changed == 0
    assert (count(lake, "ingests"), count(lake, "price_snapshots")) == (1, 1), "the same file writes nothing"
    later = snapshot(*reversed(rows), hours=1, sequence=1)
    assert record_ingest(lake, record(FeedKind.PRICES, "b"), FeedContent(prices=[later])).n_changed == 1
    record_ingest(lake, record(FeedKind.PRICES, "a", scenario="yours"), FeedContent(prices=[snapshot(*rows)]))
    assert count(lake, "price_sets") == 2
    assert price_snapshots(lake, "mine")[EAST].observed_at == NOON + timedelta(hours=1)


def test_a_price_file_taken_back_counts_again(lake: Lake) -> None:
    dear, cheap = price("g6e.xlarge", 2.0, day=date(2026, 7, 30)), price("g6e.xlarge", 1.0, day=date(2026, 7, 30))
    for sequence, (content, row) in enumerate((("a", dear), ("b", cheap), ("a", dear))):
        record_ingest(lake, record(FeedKind.PRICES, content), FeedContent(prices=[snapshot(row, sequence=sequence)]))
    assert price_snapshots(lake, "mine")[EAST].prices[0].offer.price_usd_per_h == 2.0
    assert count(lake, "ingests") == 3


def test_prices_judged_against_an_older_snapshot_are_refused_whole(lake: Lake) -> None:
    record_ingest(lake, record(FeedKind.PRICES, "a"), FeedContent(prices=[snapshot(price("g6e.xlarge", 1.86))]))
    stale = FeedContent(prices=[snapshot(price("g6e.xlarge", 5.0)), snapshot(price("x", 1.0), region="aws/new")])
    with pytest.raises(LakeError, match="meanwhile"):
        record_ingest(lake, record(FeedKind.PRICES, "b"), stale, [Reject("f", 1, "Price", "x", "bad", "mend")])
    assert set(price_snapshots(lake, "mine")) == {EAST}
    assert (count(lake, "ingests"), count(lake, "rejects")) == (1, 0)


def test_availability_newest_observation_counts_and_null_is_unknown(lake: Lake) -> None:
    def seen(hours: float, nodes: int | None) -> Availability:
        when = (NOON + timedelta(hours=hours)).isoformat()
        return Availability(EAST, "L40Sx1", Market.ON_DEMAND, when, nodes, Basis.FEED)

    key = (EAST, "L40Sx1", Market.ON_DEMAND)
    record_ingest(lake, record(FeedKind.AVAILABILITY, "a"), FeedContent(availability=[seen(0, 7), seen(1, None)]))
    assert latest_availability(lake, "mine")[key].nodes is None
    assert latest_availability(lake, "mine", at=NOON)[key].nodes == 7
    done = record_ingest(lake, record(FeedKind.AVAILABILITY, "b"), FeedContent(availability=[seen(0, 7), seen(1, 3)]))
    assert done.n_changed == 1, "the row that was known already is not written again"
    assert latest_availability(lake, "mine")[key].nodes == 3
    assert latest_availability(lake, "yours") == {}


def test_demand_is_corrected_and_unknown_is_not_zero(lake: Lake) -> None:
    lengths = Lengths(1155, 211, 2e6, 6e4, 3e5, 4000, "demand feed")
    rows = [
        DemandObservation("m", NOON, 3600, 6.0, (300, 420), lengths),
        DemandObservation("m", NOON + timedelta(hours=1), 3600, None),
        DemandObservation("n", NOON, 3600, 0.0),
    ]
    record_ingest(lake, record(FeedKind.DEMAND, "a"), FeedContent(demand=rows))
    found = demand_history(lake, "mine")
    assert found["m"] == (rows[0], rows[1])
    assert found["n"][0].req_per_s == 0.0
    again = record_ingest(lake, record(FeedKind.DEMAND, "a"), FeedContent(demand=rows))
    assert again.n_changed == 0
    mended = DemandObservation("m", NOON + timedelta(hours=1), 3600, 8.0)
    later = NOON + timedelta(days=200)
    assert record_ingest(lake, record(FeedKind.DEMAND, "b"), FeedContent(demand=[mended]), at=later).n_changed == 1
    assert demand_history(lake, "mine", since=NOON + timedelta(minutes=1)) == {"m": (mended,)}
    assert demand_history(lake, "mine", before=NOON)["m"] == (rows[0],)


def test_windows_of_several_lengths_do_not_hide_each_other(lake: Lake) -> None:
    hour, quarter = DemandObservation("m", NOON, 3600, 6.0), DemandObservation("m", NOON, 900, 9.0)
    for name, window in (("a", hour), ("b", quarter), ("c", hour)):
        record_ingest(lake, record(FeedKind.DEMAND, name), FeedContent(demand=[window]))
    assert demand_history(lake, "mine") == {"m": (quarter, hour)}
    assert count(lake, "demand_windows") == 2, "the hour told again says nothing new"
    mended = DemandObservation("m", NOON, 900, 8.0)
    record_ingest(lake, record(FeedKind.DEMAND, "d"), FeedContent(demand=[mended]), at=NOON + timedelta(days=200))
    assert demand_history(lake, "mine") == {"m": (mended, hour)}


def test_fleet_of_a_moment_is_whole_and_may_be_empty(lake: Lake) -> None:
    def node(template: str, nodes: int, failed: int = 0) -> FleetNodes:
        return FleetNodes(EAST, "L40Sx1", Market.ON_DEMAND, template, nodes, failed)

    assert observed_fleet(lake, "mine") is None
    first = FleetObservation(NOON, (node("a" * 16, 2), node("", 1, failed=3)))
    record_ingest(lake, record(FeedKind.FLEET, "a"), FeedContent(fleet=[first]))
    assert record_ingest(lake, record(FeedKind.FLEET, "a"), FeedContent(fleet=[first])).n_changed == 0
    found = observed_fleet(lake, "mine")
    assert found is not None
    assert (found.observed_at, found.rows_set_aside) == (NOON, 1)
    assert sorted(row.nodes for row in found.nodes) == [1, 2]
    hour = NOON + timedelta(hours=1)
    assert failed_launches(lake, "mine", NOON, hour)[0].running == 3
    assert failed_launches(lake, "mine", NOON + timedelta(minutes=1), hour) == ()
    corrected = FleetObservation(NOON, (node("a" * 16, 5),))
    later = NOON + timedelta(days=200)
    record_ingest(lake, record(FeedKind.FLEET, "b"), FeedContent(fleet=[corrected]), at=later)
    found = observed_fleet(lake, "mine")
    assert found is not None
    assert [row.nodes for row in found.nodes] == [5]
    record_ingest(lake, record(FeedKind.FLEET, "c", hour), FeedContent(fleet=[FleetObservation(hour, ())]), at=later)
    empty = observed_fleet(lake, "mine")
    assert empty is not None
    assert (empty.observed_at, empty.nodes) == (hour, ())
    before = observed_fleet(lake, "mine", at=NOON)
    assert before is not None
    assert [row.nodes for row in before.nodes] == [5]


def test_a_file_without_a_good_row_is_logged_with_its_rejects_once(lake: Lake) -> None:
    rejects = [Reject("file.csv", 1, "Price", "-1", "is negative", "mend it")]
    for _ in range(2):
        record_ingest(lake, record(FeedKind.PRICES, "bad", None), FeedContent(), rejects)
    assert (count(lake, "ingests"), count(lake, "rejects")) == (1, 1)
    assert last_ingest(lake, "mine", FeedKind.PRICES) is None
    record_ingest(lake, record(FeedKind.PRICES, "good"), FeedContent(prices=[snapshot(price("g6e.xlarge", 1.86))]))
    known = last_ingest(lake, "mine", FeedKind.PRICES)
    assert known is not None
    assert known.observed_at == NOON


def test_gc_keeps_the_last_word_on_everything(lake: Lake) -> None:
    def seen(hours: float, nodes: int) -> Availability:
        when = (NOON + timedelta(hours=hours)).isoformat()
        return Availability(EAST, "L40Sx1", Market.ON_DEMAND, when, nodes, Basis.FEED)

    def node(nodes: int) -> FleetNodes:
        return FleetNodes(EAST, "L40Sx1", Market.ON_DEMAND, "", nodes)

    for number in range(3):
        at = NOON + timedelta(hours=number)
        told = FeedContent(
            prices=[snapshot(price("g6e.xlarge", 2.0 + number), hours=number, sequence=number)],
            availability=[seen(number, number)],
            demand=[DemandObservation("m", at - timedelta(days=400 * (number == 0)), 3600, number)],
            fleet=[FleetObservation(at, (node(number),))],
        )
        reject = Reject("f", 1, "c", "v", "why", "do")
        record_ingest(lake, record(FeedKind.FLEET, f"c{number}", at), told, [reject], at=at)
    before = price_snapshots(lake, "mine"), latest_availability(lake, "mine"), observed_fleet(lake, "mine")
    collect_garbage(lake, 0, NOON + timedelta(hours=5))
    after = price_snapshots(lake, "mine"), latest_availability(lake, "mine"), observed_fleet(lake, "mine")
    assert after == before
    tables = ("price_snapshots", "price_sets", "availability_observations", "fleet", "ingests", "rejects")
    assert [count(lake, table) for table in tables] == [1, 1, 1, 1, 1, 0]
    assert [window.req_per_s for window in demand_history(lake, "mine")["m"]] == [1, 2]
