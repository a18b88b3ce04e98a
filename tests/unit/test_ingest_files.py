"""Files that are no use as they are: what `coral ingest` says of them is true, and works when it is followed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from scenario_cases import SOUND

from catalogs.errors import InputError
from catalogs.lake_feeds import FeedKind
from catalogs.tables import read_table
from flows.ingest import IngestRequest, IngestResult, ingest

Ingest = Callable[..., IngestResult]
NOON = datetime(2026, 7, 30, 12, tzinfo=UTC)
VMS = "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\n"
OWN = "region,node_config,instance_type,market,price_usd_per_h,as_of\n"
AVAILABILITY = "region,node_config,market,observed_at,nodes\n"
DEMAND = "model,window_start,demand_req_per_s\n"


@pytest.fixture
def take_in(tmp_path: Path) -> Ingest:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(yaml.safe_dump(SOUND))

    def call(kind: str, text: str, **options: Any) -> IngestResult:
        file = tmp_path / "aws.csv"
        file.write_text(text)
        return ingest(IngestRequest(FeedKind(kind), file, scenario, tmp_path / "lake", as_of=NOON, **options), NOON)

    return call


@pytest.mark.parametrize(
    ("kind", "heading"), [("prices", OWN), ("prices", VMS), ("availability", AVAILABILITY), ("demand", DEMAND)]
)
def test_a_heading_alone_is_a_broken_export(kind: str, heading: str, take_in: Ingest) -> None:
    with pytest.raises(InputError, match="has no row"):
        take_in(kind, heading)


def test_rows_set_aside_are_of_the_scenarios_regions_all_the_same(take_in: Ingest) -> None:
    assert take_in("prices", VMS + "g6.xlarge,L4,1,x,us-west-2\n").notes == (
        "the scenario does not use them: set offers.feed: lake",
    )
    elsewhere = take_in("prices", VMS + "g6.xlarge,L4,1,0.8,eu-west-1\n")
    assert any("none of its regions is one of the scenario's" in note for note in elsewhere.notes)


def test_a_region_that_nobody_knows_is_told_with_the_one_it_is_like(take_in: Ingest) -> None:
    own = (
        OWN
        + "aws/us-est-2,L4x1,g6.xlarge,on_demand,0.8,2026-07-30\naws/us-west-2,L4x1,g6.xlarge,on_demand,0.8,2026-07-30\n"
    )
    for _ in range(2):  # what was taken in before makes it no better known
        (told,) = [note for note in take_in("prices", own).notes if "neither the catalog nor the scenario" in note]
        assert told.startswith(
            "neither the catalog nor the scenario knows aws/us-est-2 (near aws/us-east-2 or aws/us-west-2): "
        )


@pytest.mark.parametrize(
    ("text", "remedies"),
    [
        ("", [f"give at least the heading {DEMAND.strip()}"]),
        ("model,window,demand\n", ["rename it to window_start", "rename it to demand_req_per_s"]),
        (AVAILABILITY, [f"give a file with the columns {DEMAND.strip()}"]),
        ("timestamp_s,tokens\n1,2\n", ["begin with timestamp_s,input_tokens,output_tokens"]),
    ],
)
def test_a_demand_file_is_told_which_form_it_lacks(text: str, remedies: list[str], take_in: Ingest) -> None:
    with pytest.raises(InputError) as caught:
        take_in("demand", text)
    found = [finding.remedy for finding in caught.value.findings]
    assert [f.startswith(r) for f, r in zip(found, remedies, strict=True)] == [True] * len(remedies)


def test_demand_of_a_model_that_is_not_served_is_told(take_in: Ingest) -> None:
    notes = take_in("demand", DEMAND + "gpt-oss-120b,2026-07-30T11:00:00Z,3\n").notes
    assert "the scenario does not serve openai/gpt-oss-120b: kept, not used" in notes


def test_a_time_that_no_calendar_has_costs_its_row_alone(tmp_path: Path) -> None:
    """2**63 - 1 microseconds after 1970 is in the year 294,247."""
    times = pa.array([1_785_405_600_000_000, 2**63 - 1], pa.timestamp("us"))
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"model": ["m", "m"], "window_start": times, "demand_req_per_s": [1.0, 2.0]}), path)
    read = read_table(path, "demand")
    assert [row["window_start"] for row in read.rows] == [datetime(2026, 7, 30, 10, tzinfo=UTC)]
    (finding,) = read.findings
    assert (finding.row, finding.column, finding.reason) == (2, "window_start", "is not a time")


def test_a_fleet_that_may_be_availability_is_told(take_in: Ingest) -> None:
    row = "aws/us-west-2,L4x1,on_demand,2026-07-30T11:59:00Z,3"
    told = "its columns are those of availability"
    assert any(told in note for note in take_in("fleet", f"{AVAILABILITY}{row}\n").notes)
    with_template = f"{AVAILABILITY.strip()},template_id\n{row},\n"
    assert not any(told in note for note in take_in("fleet", with_template).notes)
