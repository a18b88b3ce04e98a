"""How a table of the lake is described, and what follows from it: DDL, Arrow schemas, the data dictionary.

The tables themselves are in :mod:`warehouse.tables`, the views in :mod:`warehouse.views`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

LAKE_SCHEMA_VERSION = 8
USD_H = "USD/h"
TOK_S = "tok/s"
SHARD_SCHEMA = "shards"  # the schema of tables made of landed files; its folder under the root is `shards/`

_ARROW_OF = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int16(),
    "TINYINT": pa.int8(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
    "VARCHAR[]": pa.list_(pa.string()),
    "INTEGER[]": pa.list_(pa.int32()),
    "DOUBLE[]": pa.list_(pa.float64()),
    "MAP(VARCHAR, DOUBLE)": pa.map_(pa.string(), pa.float64()),
}
_DUCKDB_OF = {arrow: duckdb for duckdb, arrow in _ARROW_OF.items()}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: DuckDB type, unit ("" where it has none), what it means; whether it is part of the key or may be NULL."""

    name: str
    type: str
    description: str
    unit: str = ""
    is_key: bool = False
    nullable: bool = False


def key(name: str, type_: str, description: str, unit: str = "") -> Column:
    """A column of the table's key."""
    return Column(name, type_, description, unit, is_key=True)


def maybe(name: str, type_: str, description: str, unit: str = "") -> Column:
    """A column that may be NULL."""
    return Column(name, type_, description, unit, nullable=True)


@dataclass(frozen=True, slots=True)
class Table:
    """A stored table. ``schema`` is ``main`` or, for tables made of landed files, ``shards``."""

    name: str
    description: str
    columns: tuple[Column, ...]
    schema: str = "main"

    @property
    def qualified_name(self) -> str:
        """``schema.name``."""
        return f"{self.schema}.{self.name}"

    def ddl(self) -> str:
        """The CREATE TABLE statement; safe to repeat."""
        columns = ", ".join(f'"{c.name}" {c.type}{"" if c.nullable else " NOT NULL"}' for c in self.columns)
        return f"CREATE TABLE IF NOT EXISTS {self.qualified_name} ({columns})"

    def arrow_schema(self) -> pa.Schema:
        """The table's Arrow schema; only for types in the list above (landed files bring their own)."""
        return pa.schema([pa.field(c.name, _ARROW_OF[c.type], nullable=c.nullable) for c in self.columns])


@dataclass(frozen=True, slots=True)
class View:
    """A view with its documentation. A column is described by ``extra``, else by the first of ``tables`` that has it."""

    name: str
    description: str
    sql: str
    tables: tuple[str, ...] = ()
    extra: tuple[Column, ...] = ()
    key: tuple[str, ...] = ()

    def ddl(self) -> str:
        """The CREATE VIEW statement; safe to repeat."""
        return f"CREATE OR REPLACE VIEW main.{self.name} AS {self.sql}"


def duckdb_type(arrow_type: pa.DataType) -> str:
    """The DuckDB type that a Parquet column of ``arrow_type`` reads as. Raises KeyError for one we do not use."""
    if pa.types.is_list(arrow_type):
        return f"{duckdb_type(arrow_type.value_type)}[]"
    if pa.types.is_struct(arrow_type):
        return "STRUCT(" + ", ".join(f'"{f.name}" {duckdb_type(f.type)}' for f in arrow_type) + ")"
    return _DUCKDB_OF[arrow_type]


def columns_from_arrow(schema: pa.Schema, described: dict[str, tuple[str, str]], keys: set[str]) -> tuple[Column, ...]:
    """Columns of a landed file's schema; ``described`` maps each name to (description, unit)."""
    return tuple(
        Column(f.name, duckdb_type(f.type), *described[f.name], is_key=f.name in keys, nullable=f.nullable)
        for f in schema
    )
