"""Files of availability, demand and fleet state, as CSV and as Parquet: blank, NaN, zero and a fault are four things."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalogs import load_catalog
from catalogs.errors import Finding, InputError
from catalogs.state_feeds import read_availability_file, read_demand_file, read_fleet_file
from catalogs.types import Market

NOW = datetime(2026, 7, 30, 12, tzinfo=UTC)
REGIONS, CONFIGS = {"aws/us-east-2"}, {"L40Sx1", "L4x1"}
AVAILABILITY = "region,node_config,market,observed_at,nodes\n"
DEMAND = "model,window_start,demand_req_per_s\n"
FLEET = "observed_at,region,node_config,market,template_id,nodes,failed_nodes\n"

Read = Callable[[Path], tuple[list[object], tuple[Finding, ...]]]


def availability(path: Path) -> tuple[list[object], tuple[Finding, ...]]:
    found = read_availability_file(path, load_catalog(), REGIONS, CONFIGS, NOW)
    return [(row.node_config, row.market, row.nodes) for row in found.rows], found.rejects


def demand(path: Path) -> tuple[list[object], tuple[Finding, ...]]:
    found = read_demand_file(path, load_catalog(), ["Qwen/Qwen3-8B"], timedelta(hours=1))
    return [(row.model, row.window_start.hour, row.req_per_s) for row in found.rows], found.rejects


def fleet(path: Path) -> tuple[list[object], tuple[Finding, ...]]:
    found, at = read_fleet_file(path, load_catalog(), REGIONS, CONFIGS, NOW)
    assert [row for nodes in at.values() for row in nodes] == list(found.rows)
    return [(row.node_config, row.template_id, row.nodes, row.failed_nodes) for row in found.rows], found.rejects


def as_parquet(text: str, path: Path) -> Path:
    """The CSV's cells as a writer of Parquet has them: blanks NULL, numbers as numbers where all of a column are."""
    rows = list(csv.DictReader(io.StringIO(text)))
    columns: dict[str, list[object]] = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        try:
            columns[name] = [float(cell) if cell else None for cell in cells]
        except ValueError:
            columns[name] = [cell or None for cell in cells]
    pq.write_table(pa.table(columns), path)
    return path


def write(tmp_path: Path, text: str, suffix: str) -> Path:
    path = tmp_path / f"feed{suffix}"
    if suffix == ".parquet":
        return as_parquet(text, path)
    path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
class TestStates:
    def test_availability(self, tmp_path: Path, suffix: str) -> None:
        when = "aws/us-east-2,{},{},2026-07-30T11:00:00Z,{}\n"
        rows = [when.format(*cells) for cells in (("L40Sx1", "", 0), ("L4x1", "spot", ""), ("L4x1", "owned", "NaN"))]
        text = AVAILABILITY + "".join(rows)
        good, rejects = availability(write(tmp_path, text, suffix))
        want = [("L40Sx1", Market.ON_DEMAND, 0), ("L4x1", Market.SPOT, None), ("L4x1", Market.OWNED, None)]
        assert (good, rejects) == (want, ())

    def test_demand(self, tmp_path: Path, suffix: str) -> None:
        values = ("0", "", "NaN", "2.5")
        text = DEMAND + "".join(f"qwen3-8b,2026-07-30T{hour:02}:00:00Z,{v}\n" for hour, v in enumerate(values))
        good, rejects = demand(write(tmp_path, text, suffix))
        model = "Qwen/Qwen3-8B"
        assert good == [(model, 0, 0), (model, 1, None), (model, 2, None), (model, 3, 2.5)]
        assert rejects == ()

    def test_fleet(self, tmp_path: Path, suffix: str) -> None:
        row = "2026-07-30T11:00:00Z,aws/us-east-2,L40Sx1,,{},{},{}\n"
        text = FLEET + row.format("0123456789abcdef", 3, "") + row.format("", 0, 2)
        good, rejects = fleet(write(tmp_path, text, suffix))
        assert good == [("L40Sx1", "0123456789abcdef", 3, 0), ("L40Sx1", "", 0, 2)]
        assert rejects == ()


GOOD = {
    AVAILABILITY: "aws/us-east-2,L40Sx1,on_demand,2026-07-30T11:00:00Z,5",
    DEMAND: "qwen3-8b,2026-07-30T11:00:00Z,5",
    FLEET: "2026-07-30T11:00:00Z,aws/us-east-2,L40Sx1,on_demand,,5,0",
}
FAULTS: list[tuple[Read, str, str, str]] = [
    (availability, AVAILABILITY, "mars/north,L40Sx1,spot,2026-07-30T11:00:00Z,5", "unknown region"),
    (availability, AVAILABILITY, "aws/us-east-2,L40x1,spot,2026-07-30T11:00:00Z,5", "unknown GPU"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx3,spot,2026-07-30T11:00:00Z,5", "unknown node configuration"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx1,spots,2026-07-30T11:00:00Z,5", "is not an allowed value"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx1,spot,2026-07-30T11:00:00Z,-1", "is negative"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx1,spot,2026-07-30T11:00:00Z,1.5", "is not a whole number"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx1,spot,yesterday,5", "is not a time"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx1,spot,2026-07-30T13:00:00Z,5", "is in the future"),
    (availability, AVAILABILITY, "aws/us-east-2,L40Sx1,,2026-07-30T11:00:00Z,6", "duplicate of row 1"),
    (demand, DEMAND, "gpt-9,2026-07-30T10:00:00Z,5", "unknown model"),
    (demand, DEMAND, "qwen3-8b,2026-07-30T10:00:00Z,-5", "is negative"),
    (demand, DEMAND, "qwen3-8b,2026-07-30T10:00:00Z,inf", "is not finite"),
    (demand, DEMAND, "qwen3-8b,2026-07-30T10:00:00Z,5 req/s", "is not a plain number"),
    (demand, DEMAND, "qwen3-8b,,5", "is blank"),
    (demand, DEMAND, "Qwen/Qwen3-8B,2026-07-30T11:00:00Z,6", "duplicate of row 1"),
    (fleet, FLEET, "2026-07-30T11:00:00Z,aws/us-east-2,L40Sx1,spot,,NaN,0", "is not a value"),
    (fleet, FLEET, "2026-07-30T11:00:00Z,aws/us-east-2,L40Sx1,spot,mine,1,0", "is no template id (16 hex digits)"),
    (fleet, FLEET, "2026-07-30T13:00:00Z,aws/us-east-2,L40Sx1,spot,,1,0", "is in the future"),
    (fleet, FLEET, "2026-07-30T11:00:00Z,aws/us-east-2,L40Sx1,,,6,0", "duplicate of row 1"),
]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(("read", "heading", "bad", "reason"), FAULTS)
def test_a_bad_row_is_set_aside_and_the_others_stay(
    tmp_path: Path, read: Read, heading: str, bad: str, reason: str, suffix: str
) -> None:
    good, rejects = read(write(tmp_path, f"{heading}{GOOD[heading]}\n{bad}\n", suffix))
    assert len(good) == 1
    assert [(f.row, f.reason) for f in rejects] == [(2, reason)]
    assert rejects[0].remedy


@pytest.mark.parametrize("read", [availability, demand, fleet])
def test_a_file_that_cannot_be_used_is_refused_whole(tmp_path: Path, read: Read) -> None:
    texts = {"a.csv": "place,count\nx,1\n", "b.csv": "", "c.parquet": "no Parquet", "d.csv": "\x00\xff"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(InputError) as caught:
            read(tmp_path / name)
        assert all(finding.row == 0 for finding in caught.value.findings)
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "none.parquet")
