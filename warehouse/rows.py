"""From typed rows to Arrow tables and into the lake's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import duckdb
import pyarrow as pa

from warehouse.schema import Table
from warehouse.tables import TABLES

_INCOMING = "incoming_rows"


def plain(value: Any) -> Any:
    """An enum's value, a tuple as a list, anything else as it is."""
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def to_arrow(table: Table, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """``rows`` in the schema of ``table``. A missing key, an unknown key or a wrong type raises: nothing is guessed."""
    schema = table.arrow_schema()
    names = set(schema.names)
    for row in rows:
        if set(row) != names:
            raise ValueError(f"row of {table.name}: {sorted(set(row) ^ names)} missing or unknown")
    plain_rows = [{name: plain(value) for name, value in row.items()} for row in rows]
    return pa.Table.from_pylist(plain_rows, schema=schema)


def insert(connection: duckdb.DuckDBPyConnection, table_name: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append ``rows`` to a table inside the caller's transaction; returns how many."""
    return insert_arrow(connection, table_name, to_arrow(TABLES[table_name], list(rows)))


def insert_arrow(connection: duckdb.DuckDBPyConnection, table_name: str, arrow: pa.Table) -> int:
    """Append an Arrow table with the table's columns inside the caller's transaction; returns how many rows."""
    table = TABLES[table_name]
    if set(arrow.column_names) != set(table.arrow_schema().names):
        raise ValueError(
            f"{table_name}: {sorted(set(arrow.column_names) ^ set(table.arrow_schema().names))} missing or unknown"
        )
    if arrow.num_rows == 0:
        return 0
    connection.register(_INCOMING, arrow)
    try:
        connection.execute(f"INSERT INTO {table.qualified_name} BY NAME SELECT * FROM {_INCOMING}")  # noqa: S608 - own names
    finally:
        connection.unregister(_INCOMING)
    return arrow.num_rows
