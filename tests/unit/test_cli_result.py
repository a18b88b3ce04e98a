"""Rows written out: nothing, NaN and an empty text must stay apart, and a file is whole or not there."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalogs.errors import CoralError
from flows.cli_result import Format, write_result

ROWS = pa.table(
    {
        "name": pa.array(["a", "", None, 'say "x", y']),
        "rate": pa.array([1.5, float("nan"), None, -2.0]),
        "n": pa.array([1, 22, None, 4444]),
    }
)


def test_table_aligns_numbers_right_and_names_null() -> None:
    assert write_result(ROWS, Format.TABLE, None).splitlines() == [
        "name        rate     n",
        "a            1.5     1",
        "             nan    22",
        "NULL        NULL  NULL",
        'say "x", y  -2.0  4444',
    ]


def test_csv_keeps_null_and_empty_apart() -> None:
    lines = write_result(ROWS, Format.CSV, None).splitlines()
    assert lines == ["name,rate,n", "a,1.5,1", '"",nan,22', ",,", '"say ""x"", y",-2.0,4444']


def test_json_is_strict_json_with_null_and_nan_named() -> None:
    text = write_result(ROWS, Format.JSON, None)
    rows = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert rows[1] == {"name": "", "rate": "nan", "n": 22}
    assert rows[2] == {"name": None, "rate": None, "n": None}


def test_nested_dates_decimals_and_bytes() -> None:
    rows = pa.table(
        {
            "sum": pa.array([Decimal(7), Decimal("7.50")], pa.decimal128(10, 2)),
            "day": [date(2026, 7, 30), None],
            "at": [datetime(2026, 7, 30, 12, tzinfo=UTC), None],
            "stages": [[{"stage": 0, "share": 0.5}], []],
            "raw": [b"\x01\xff", None],
        }
    )
    first, second = json.loads(write_result(rows, Format.JSON, None))
    assert first["sum"] == 7
    assert second["sum"] == 7.5
    assert first["day"] == "2026-07-30"
    assert first["at"].startswith("2026-07-30T12:00:00")
    assert first["stages"] == [{"stage": 0, "share": 0.5}]
    assert first["raw"] == "01ff"
    assert '[{"stage": 0, "share": 0.5}]' in write_result(rows, Format.TABLE, None)


def test_no_rows_still_show_their_columns() -> None:
    empty = ROWS.slice(0, 0)
    assert write_result(empty, Format.TABLE, None) == "name  rate  n"
    assert write_result(empty, Format.CSV, None) == "name,rate,n"
    assert write_result(empty, Format.JSON, None) == "[]"


def test_a_text_of_two_lines_stays_one_row() -> None:
    assert write_result(pa.table({"note": ["a\nb"]}), Format.TABLE, None).splitlines() == ["note", "a\\nb"]


def test_two_columns_of_one_name_are_no_json_object() -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(CoralError, match="one name"):
        write_result(rows, Format.JSON, None)


def test_files_hold_what_is_printed(tmp_path: Path) -> None:
    text = write_result(ROWS, Format.CSV, tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == text + "\n"
    write_result(ROWS, Format.PARQUET, tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").schema == ROWS.schema
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.parquet"]


def test_a_file_that_cannot_be_written_is_an_expected_error(tmp_path: Path) -> None:
    with pytest.raises(CoralError, match="is not a folder"):
        write_result(ROWS, Format.CSV, tmp_path / "missing" / "rows.csv")
    (tmp_path / "taken").mkdir()
    with pytest.raises(CoralError, match="cannot write"):
        write_result(ROWS, Format.CSV, tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
