"""Bringing a lake to the present schema version, tables and views, or refusing it with the way out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import duckdb

from catalogs.errors import LakeError
from warehouse.catalog_faults import lake_errors
from warehouse.catalog_store import VERSION_FILE, store_of
from warehouse.connect import (
    absolute_root,
    attach,
    check_version,
    new_connection,
    refresh_tables,
    transaction,
    write_version,
)
from warehouse.lock import write_lock
from warehouse.prices import renew_all_prices
from warehouse.schema import LAKE_SCHEMA_VERSION


def _add_launch_tp(connection: duckdb.DuckDBPyConnection) -> None:
    """1 -> 2: profiles hold launchable layouts beside the best one of a cell; all rows so far are best ones."""
    connection.execute("ALTER TABLE shards.profile_rows ADD COLUMN IF NOT EXISTS launch_tp TINYINT DEFAULT 0")


def _add_feeds(connection: duckdb.DuckDBPyConnection) -> None:
    """2 -> 3: tables of feeds (made with the others that are missing), and launches that failed beside what runs."""
    connection.execute("ALTER TABLE main.fleet ADD COLUMN IF NOT EXISTS failed_nodes BIGINT DEFAULT 0")
    connection.execute("ALTER TABLE main.fleet ADD COLUMN IF NOT EXISTS ingest_id VARCHAR DEFAULT ''")


def _add_state_note(connection: duckdb.DuckDBPyConnection) -> None:
    """3 -> 4: the states of plans say why; states so far give no reason."""
    connection.execute("ALTER TABLE main.plan_states ADD COLUMN IF NOT EXISTS note VARCHAR DEFAULT ''")


def _only_new_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """4 -> 5: alerts, whose tables are made with all that are missing."""


def _only_new_views(connection: duckdb.DuckDBPyConnection) -> None:
    """5 -> 6: demand windows of several lengths beside each other, in a view that is made anew with all others."""


def _drop_price_views(connection: duckdb.DuckDBPyConnection) -> None:
    """6 -> 7: prices and best templates are tables where they were views of the same names."""
    views = connection.execute("SELECT view_name FROM duckdb_views() WHERE database_name = 'lake'").fetchall()
    for (name,) in views:
        if name in {"region_prices", "best_templates"}:
            connection.execute(f"DROP VIEW main.{name}")


def _add_egress(connection: duckdb.DuckDBPyConnection) -> None:
    """7 -> 8: KV that crosses regions, in a table of its own and as a part of a plan's cost; so far none did."""
    connection.execute("ALTER TABLE main.plan_rows ADD COLUMN IF NOT EXISTS egress_usd_per_h DOUBLE DEFAULT 0")


# Per schema version: what leads to the next one. Repeating a step must do no harm: a kill may come before the version is
# written.
_STEPS: dict[int, Callable[[duckdb.DuckDBPyConnection], None]] = {
    1: _add_launch_tp,
    2: _add_feeds,
    3: _add_state_note,
    4: _only_new_tables,
    5: _only_new_views,
    6: _drop_price_views,
    7: _add_egress,
}


def migrate_lake(root: str | os.PathLike[str]) -> int:
    """Bring the lake to this coral's schema version, make missing tables and renew all views; the version it had.

    One transaction under the write lock. Raises LakeError for no lake, a broken version file, a lock that is held, and a
    version that no migration leads from: the lake is then as it was.
    """
    path = absolute_root(root)
    found = _version(path)
    with write_lock(path, "migrate"):
        store = store_of(path)
        connection = new_connection(store)
        try:
            with lake_errors(path):
                attach(connection, path, store=store, read_only=False)
                with transaction(connection, f"migrate from schema version {found}"):
                    for version in range(found, LAKE_SCHEMA_VERSION):
                        _STEPS[version](connection)
                    refresh_tables(connection)
                    renew_all_prices(connection)
                write_version(path, store)
        finally:
            connection.close()
    return found


def _version(path: Path) -> int:
    """The lake's schema version. Raises LakeError for one that no migration leads from."""
    try:
        check_version(path)
    except LakeError:
        found = _stated_version(path)
        if found is None or found >= LAKE_SCHEMA_VERSION:
            raise
        if all(version in _STEPS for version in range(found, LAKE_SCHEMA_VERSION)):
            return found
        raise LakeError(
            f"no migration leads from schema version {found} of the lake in {path} to {LAKE_SCHEMA_VERSION}",
            remedy="use the version of coral that made it, or build again in a new folder (--lake): "
            "libraries are computed anew, plans stay readable in the old one",
        ) from None
    return LAKE_SCHEMA_VERSION


def _stated_version(path: Path) -> int | None:
    try:
        found = json.loads((path / VERSION_FILE).read_text())["schema_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None
