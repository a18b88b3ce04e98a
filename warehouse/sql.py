"""Read-only SQL over the lake for people and programs.

READ_ONLY alone is not enough: COPY TO writes files, read_csv reads any file, and DuckLake's and SQLite's table
functions reach the file system whatever DuckDB's own restrictions say (sqlite_scan opens any path,
ducklake_cleanup_old_files deletes). Hence four walls: one SELECT statement; table functions from a short list, checked
on the parsed statement; no external access but the lake's data folders; configuration locked.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa

from catalogs.errors import CoralError, LakeError, UnknownNameError
from warehouse.catalog_faults import OWN_FOLDER, lake_errors
from warehouse.catalog_store import METADATA, sql_text, store_of
from warehouse.connect import absolute_root, attach, check_version, new_connection
from warehouse.schema import SHARD_SCHEMA

_TABLE_FUNCTIONS = frozenset(
    {"duckdb_columns", "duckdb_tables", "duckdb_views", "generate_series", "json_each", "range", "snapshots", "unnest"}
)
_REFUSED_FUNCTIONS = frozenset(
    {"currval", "getenv", "nextval", "setseed", "sleep_ms", "stats", "which_secret", "write_log"}
)
_TRUNCATED = b"coral.truncated_at_rows"
_BATCH_ROWS = 10_000
_NARROW = "narrow it: a WHERE, fewer columns, a smaller join; or sum up with GROUP BY"


class SqlError(CoralError):
    """A statement that is not allowed, cannot be understood, or takes more than its limits."""


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one statement may take. ``max_rows`` None = all; a longer result is cut and marked (:func:`truncated_at`)."""

    max_rows: int | None = 100_000
    timeout_s: float = 60.0
    memory_mib: int = 2_048


def query(
    root: str | os.PathLike[str], sql: str, limits: SqlLimits | None = None, *, snapshot: int | None = None
) -> pa.Table:
    """The result of one read-only statement on the lake in ``root``; see :class:`SqlSession` for many."""
    with SqlSession(root, limits, snapshot=snapshot) as session:
        return session.query(sql)


def truncated_at(table: pa.Table) -> int | None:
    """The row limit a result was cut at, or None when it is whole."""
    value = (table.schema.metadata or {}).get(_TRUNCATED)
    return None if value is None else int(value)


class SqlSession:
    """An open read-only connection. ``snapshot`` shows the lake as of an earlier snapshot id.

    Raises LakeError for no lake, another schema version, an unknown snapshot or a damaged catalog.
    """

    def __init__(
        self, root: str | os.PathLike[str], limits: SqlLimits | None = None, *, snapshot: int | None = None
    ) -> None:
        self._root = absolute_root(root)
        self._limits = limits or SqlLimits()
        check_version(self._root)
        self._store = store_of(self._root)
        self._connection = new_connection(self._store)
        try:
            with lake_errors(self._root):
                self._attach(snapshot)
            _confine(self._connection, self._root, self._limits)
        except BaseException:
            self._connection.close()
            raise

    def _attach(self, snapshot: int | None) -> None:
        try:
            attach(self._connection, self._root, store=self._store, read_only=True, snapshot=snapshot)
            self._connection.execute("SELECT count(*) FROM main.data_dictionary").fetchone()
        except duckdb.Error as error:
            if snapshot is None or not ("snapshot" in str(error).lower() or isinstance(error, duckdb.CatalogException)):
                raise
            raise LakeError(
                f"the lake in {self._root} has no snapshot {snapshot}",
                remedy="list them with `SELECT snapshot_id, snapshot_time, commit_message FROM lake.snapshots()`",
            ) from error

    def query(self, sql: str) -> pa.Table:
        """The statement's result. Raises SqlError (refused, wrong, over a limit) or UnknownNameError (close matches)."""
        statement = self._admitted(sql)
        try:
            with lake_errors(self._root), _interrupted_after(self._connection, self._limits.timeout_s):
                return self._fetch(statement)
        except duckdb.InterruptException as error:
            raise SqlError(f"the statement took longer than {self._limits.timeout_s:g} s", remedy=_NARROW) from error
        except duckdb.OutOfMemoryException as error:
            raise SqlError(f"the statement needs more than {self._limits.memory_mib} MiB", remedy=_NARROW) from error
        except duckdb.Error as error:
            raise self._told(error, sql) from error

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self._connection.close()

    def __enter__(self) -> SqlSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _admitted(self, sql: str) -> duckdb.Statement:
        """The one SELECT (or WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE) in ``sql``, or SqlError."""
        try:
            statements = self._connection.extract_statements(sql)
        except duckdb.Error as error:
            raise self._told(error, sql) from error
        if not statements:
            raise SqlError("there is no statement to run", remedy="give one SELECT statement")
        kinds = [statement.type.name for statement in statements]
        if kinds == ["CREATE", "SELECT"] and "pivot" in sql.lower():
            raise SqlError("PIVOT needs its values here", remedy="write PIVOT ... ON column IN (value, value, ...)")
        if len(statements) > 1:
            raise SqlError(f"{len(statements)} statements were given", remedy="give one SELECT statement at a time")
        if kinds != ["SELECT"]:
            raise SqlError(
                f"{kinds[0]} statements are not allowed: the lake is read only", remedy="use SELECT, DESCRIBE or SHOW"
            )
        _check_functions(self._parsed(sql))
        return statements[0]

    def _parsed(self, sql: str) -> Any:
        row = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
        assert row is not None  # a scalar query has a row
        parsed = json.loads(row[0])
        if parsed["error"]:
            raise SqlError(
                "this statement is not allowed: the lake is read only", remedy="use SELECT, DESCRIBE or SHOW"
            )
        return parsed["statements"]

    def _fetch(self, statement: duckdb.Statement) -> pa.Table:
        limit = self._limits.max_rows
        reader = self._connection.execute(statement).to_arrow_reader(
            _BATCH_ROWS if limit is not None else 10 * _BATCH_ROWS
        )
        batches, rows, size = [], 0, 0
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if size > self._limits.memory_mib * 2**20:  # rows that were handed over are not in DuckDB's own count
                raise SqlError(f"the result has more than {self._limits.memory_mib:,} MiB", remedy=_NARROW)
            if limit is not None and rows > limit:
                break
        table = pa.Table.from_batches(batches, reader.schema)
        if limit is None or rows <= limit:
            return table
        metadata = {**(table.schema.metadata or {}), _TRUNCATED: str(limit).encode()}
        return table.slice(0, limit).replace_schema_metadata(metadata)

    def _told(self, error: duckdb.Error, sql: str) -> CoralError:
        """What DuckDB says, as one line, with the lake's own names as close matches."""
        text = str(error)
        table = re.search(r"Table with name (\S+) does not exist", text)
        if table:
            return UnknownNameError("table", table[1], self._names("table_name", "column_name = ''"))
        column = re.search(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"', text)
        if column:
            return UnknownNameError("column", column[1] or column[2], self._columns_in(sql))
        function = re.search(r"Function with name \"?(\w+)\"? (?:does not exist|is not)", text)
        if function:
            return UnknownNameError("function", function[1], self._names("function_name", "true", "duckdb_functions()"))
        return SqlError(" ".join(text.split()), remedy="mend the statement")

    def _names(self, column: str, where: str, source: str = "main.data_dictionary") -> list[str]:
        rows = self._connection.execute(f"SELECT DISTINCT {column} FROM {source} WHERE {where}").fetchall()  # noqa: S608
        return [name for (name,) in rows]

    def _columns_in(self, sql: str) -> list[str]:
        """Columns of the lake's tables that ``sql`` mentions, or of all when it mentions none."""
        tables = {name for name in self._names("table_name", "true") if re.search(rf"\b{re.escape(name)}\b", sql, re.I)}
        rows = self._connection.execute(
            "SELECT table_name, column_name FROM main.data_dictionary WHERE column_name <> ''"
        )
        return sorted({column for table, column in rows.fetchall() if not tables or table in tables})


def _confine(connection: duckdb.DuckDBPyConnection, root: Path, limits: SqlLimits) -> None:
    """Close every way to files but the lake's data folders, and lock the door."""
    folders = ", ".join(sql_text(root / name) for name in (OWN_FOLDER, SHARD_SCHEMA))
    for statement in (
        "SET temp_directory = ''",
        f"SET memory_limit = '{int(limits.memory_mib)}MiB'",
        "SET allow_community_extensions = false",
        f"SET allowed_directories = [{folders}]",
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement)


def _check_functions(parsed: Any) -> None:
    """Refuse table functions that are not on the list, and functions that act or look outside, anywhere in the tree."""
    for node in _nodes(parsed):
        name = str(node.get("function_name", "")).lower()
        if not name:
            continue
        if name in _REFUSED_FUNCTIONS:
            raise SqlError(f"the function {name} is not allowed here", remedy="leave it out")
    for node in _nodes(parsed):
        # Names are told apart without regard to case.
        places = {str(node.get(part, "")).lower() for part in ("catalog_name", "schema_name")}
        if node.get("type") == "BASE_TABLE" and METADATA in places:
            # With a catalog in PostgreSQL this would lead to whatever else its user may read there.
            raise SqlError("the catalog's own tables are not for reading", remedy="list the lake's with SHOW TABLES")
        if node.get("type") == "TABLE_FUNCTION":
            function = node["function"]
            name = str(function.get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise SqlError(
                    f"the table function {name or 'of this form'} is not allowed here: only the lake's tables are read",
                    remedy="list them with SHOW TABLES",
                )


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a parsed statement, at any depth."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


@contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
