"""Rows of a query as a table, CSV, JSON or Parquet. NULL, NaN and an empty text stay three different things."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError

if TYPE_CHECKING:
    import pyarrow as pa


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def write_result(rows: pa.Table, output_format: Format, out: Path | None) -> str:
    """The rows as text, and, given ``out``, in that file (written whole or not at all). Parquet needs ``out``."""
    if output_format is Format.PARQUET:
        if out is None:
            raise ValueError("Parquet is written to a file only")
        import pyarrow.parquet as pq

        _write_whole(out, lambda path: pq.write_table(rows, path))
        return ""
    text = _TEXT[output_format](rows)
    if out is not None:
        _write_whole(out, lambda path: path.write_text(text + "\n", encoding="utf-8"))
    return text


def _write_whole(out: Path, write: Callable[[Path], Any]) -> None:
    if not out.parent.is_dir():
        raise CoralError(f"{out.parent} is not a folder", remedy="make it, or name another file with --out")
    part = out.with_name(f".{out.name}.tmp")
    try:
        write(part)
        part.replace(out)
    except OSError as error:
        raise CoralError(f"cannot write {out}: {error.strerror}", remedy="name another file with --out") from error
    finally:
        part.unlink(missing_ok=True)


def _plain(value: Any) -> Any:
    """A value JSON can hold: dates as ISO text, decimals as numbers, NaN and infinities by name."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cell(value: Any, null: str) -> str:
    value = _plain(value)
    if value is None:
        return null
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_table(rows: pa.Table) -> str:
    from flows.render import table

    columns = [[_cell(value, "NULL").replace("\n", "\\n") for value in column.to_pylist()] for column in rows.columns]
    right = [index for index, field in enumerate(rows.schema) if _is_number(field.type)]
    return "\n".join(table(rows.column_names, list(zip(*columns, strict=True)), right=right, indent=0))


def _is_number(arrow_type: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_decimal(arrow_type)


def _as_csv(rows: pa.Table) -> str:
    """RFC 4180, as DuckDB reads it back: NULL is nothing at all, an empty text is a pair of quotes."""
    values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    header = ",".join(_csv_field(name) for name in rows.column_names)
    lines = (",".join("" if value is None else _csv_field(_cell(value, "")) for value in row) for row in values)
    return "\n".join([header, *lines])


def _csv_field(text: str) -> str:
    needs_quotes = not text or any(character in text for character in ',"\n\r')
    return '"' + text.replace('"', '""') + '"' if needs_quotes else text


def _as_json(rows: pa.Table) -> str:
    names = rows.column_names
    if len(set(names)) != len(names):
        raise CoralError("two columns of the result have one name", remedy="name them apart with AS")
    return json.dumps([_plain(row) for row in rows.to_pylist()], indent=2, ensure_ascii=False, allow_nan=False)


_TEXT = {Format.TABLE: _as_table, Format.CSV: _as_csv, Format.JSON: _as_json}
