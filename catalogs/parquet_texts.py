"""A Parquet file as a table of texts, so that it is checked cell by cell as a CSV file is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from catalogs.texts import UnreadableError, is_regular_file

_MOST_ROWS = 1_000_000
_REMEDY = "write it again, for instance with DuckDB's COPY ... TO 'file.parquet'"


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns. Raises UnreadableError."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_lines(path: Path) -> list[list[str]]:
    """The column names and then each row's cells as texts: NULL is blank, a time is in UTC. Raises UnreadableError."""
    with _opened(path) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            raise UnreadableError(f"has more than {_MOST_ROWS:,} rows", "split it")
        table = file.read()
    columns = [_texts(column) for column in table.columns]
    return [list(table.column_names), *(list(row) for row in zip(*columns, strict=True))]


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    if not is_regular_file(path):
        raise UnreadableError(
            "the file does not exist" if not path.exists() else "is no regular file", "check the path"
        )
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise UnreadableError(f"is not a Parquet file: {' '.join(str(error).split())[:200]}", _REMEDY) from None


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Cells as texts. A time that no calendar has, or bytes that are no text, must cost its row alone, not the file."""
    try:
        return [_text(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):
        return [_text_of(scalar) for scalar in column]


def _text_of(scalar: pa.Scalar[Any]) -> str:
    try:
        return _text(scalar.as_py())
    except (OverflowError, ValueError):
        return f"a {scalar.type} that cannot be read"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return repr(value) if value == value else "NaN"  # NaN alone differs from itself
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    return str(value)
