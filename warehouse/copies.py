"""A copy of a lake at a place that cannot hold a lake, such as a bucket: Parquet files of one snapshot, and how to read them.

``tables/TABLE/*.parquet`` are never changed and shared by snapshots; what is there already is not sent again. ``copy.json``
says which of them make up each table, ``copy.sql`` makes tables and views of them in plain DuckDB. Both are kept per snapshot
under ``snapshots/ID/`` and written last at the top, where readers begin: a copy that ended early is not seen by them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from textwrap import dedent
from typing import Any

import duckdb
import pyarrow.parquet as pq

from catalogs.errors import LakeError
from catalogs.ids import short_hash
from warehouse.catalog_faults import lake_errors
from warehouse.catalog_store import VERSION_FILE, sql_text, store_of
from warehouse.connect import Lake, attach, new_connection
from warehouse.lock import copy_lock
from warehouse.places import FolderPlace, Place, PlaceError
from warehouse.records import utc_now
from warehouse.schema import LAKE_SCHEMA_VERSION, SHARD_SCHEMA, Table
from warehouse.tables import TABLES
from warehouse.views import VIEWS

COPY, SCRIPT, TABLE_FOLDER, SNAPSHOT_FOLDER = "copy.json", "copy.sql", "tables", "snapshots"
_FORMAT = 1
_SENDERS = 4
_SPARED = timedelta(days=1)  # files younger than this may be of a copy under way from another machine

# Called before each step that sends; raises to end the copy there.
GoOn = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did. ``is_new``: a snapshot that the place had not; ``deleted``: files of snapshots that were not kept."""

    to: str
    copy_id: str
    snapshot: int
    is_new: bool
    files: int
    files_sent: int
    bytes_sent: int
    deleted: int


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a table: its name at the place, and where it is now."""

    name: str
    path: Path
    size: int
    rows: int


def copy_lake(root: Path, place: Place, *, keep: int | None = None, go_on: GoOn = lambda: None) -> Copied:
    """Copy the newest snapshot of the lake in ``root`` to ``place``; ``keep``: delete all but so many snapshots there.

    Raises LakeError (no lake, a file that was deleted meanwhile, another copy under way) and PlaceError (a place that cannot be
    used, or holds a newer snapshot): readers then still see the snapshot before, and what was sent stays and is not sent again.
    """
    _check_place(root, place)
    with Lake.open(root, read_only=True) as lake:
        lake_id = _lake_id(lake)
    # Where the lake is only read nothing can be locked: a copy of an older snapshot never takes a newer one's place.
    lock = copy_lock(root) if os.access(root, os.W_OK) else nullcontext()
    with lock, tempfile.TemporaryDirectory(prefix="coral-copy-") as scratch:
        with Lake.open(root, read_only=True) as lake:  # once the lock is held: another may have copied more meanwhile
            snapshot = lake.snapshot()
        there = place.files(TABLE_FOLDER)
        _newest_at(place, lake_id, snapshot)  # before anything is sent
        with _at(root, snapshot) as connection, lake_errors(root):
            connection.execute("BEGIN")  # the catalog is read once, not for every table
            tables = {table.name: _files_of(connection, root, table, Path(scratch)) for table in TABLES.values()}
            document = _document(connection, tables, lake_id, snapshot)
        every = [file for files in tables.values() for file in files]
        missing = [file for file in every if file.name not in there or there[file.name][0] != file.size]
        _send(root, place, missing, go_on)
        is_new = _publish(place, document, go_on)
    return Copied(
        place.address,
        document["copy_id"],
        snapshot,
        is_new,
        len(every),
        len(missing),
        sum(file.size for file in missing),
        0 if keep is None else _keep_newest(place, keep, go_on),
    )


# ---- before ------------------------------------------------------------------------------------------------------------


def _check_place(root: Path, place: Place) -> None:
    if isinstance(place, FolderPlace):
        if (place.folder / VERSION_FILE).exists():
            raise PlaceError(f"{place.address} is a lake", remedy="name a folder of its own for the copy")
        if place.folder.is_relative_to(root.resolve()):
            raise PlaceError(f"{place.address} is inside the lake", remedy="name a folder outside")


def _lake_id(lake: Lake) -> str:
    """What tells this lake from others, wherever its folder is."""
    table = store_of(lake.root).metadata_table("ducklake_schema")
    row = lake.connection.execute(f"SELECT schema_uuid FROM {table} WHERE schema_name = 'main'").fetchone()  # noqa: S608
    assert row is not None  # every catalog has the schema
    return str(row[0])


def _newest_at(place: Place, lake_id: str, snapshot: int) -> str:
    """``copy_id`` of what readers begin with at the place; '' where there is no copy yet.

    Raises PlaceError where that is of another lake or of a newer snapshot than ``snapshot``, or no copy's.
    """
    content = place.read(COPY)
    if content is None:
        return ""
    try:
        before = json.loads(content)
        copy_id, owner, newest = before["copy_id"], before["lake_id"], int(before["snapshot"])
    except (ValueError, KeyError, TypeError) as error:
        raise PlaceError(
            f"{place.address}/{COPY} is no copy's", remedy="remove it, or name another place with --to"
        ) from error
    if owner != lake_id:
        raise PlaceError(f"{place.address} holds a copy of another lake", remedy="name another place with --to")
    if newest > snapshot:
        raise PlaceError(
            f"{place.address} holds snapshot {newest}, and the newest of the lake is {snapshot}",
            remedy="leave it if another machine copies this lake; name another place with --to if it is restored from a backup",
        )
    return str(copy_id)


# ---- the files of a snapshot --------------------------------------------------------------------------------------------


def _at(root: Path, snapshot: int) -> duckdb.DuckDBPyConnection:
    """A connection to the lake as it was at a snapshot."""
    store = store_of(root)
    connection = new_connection(store)
    try:
        with lake_errors(root):
            connection.execute("SET threads = 1")  # rows keep their order, so equal tables give equal files
            attach(connection, root, store=store, read_only=True, snapshot=snapshot)
    except BaseException:
        connection.close()
        raise
    return connection


def _files_of(connection: duckdb.DuckDBPyConnection, root: Path, table: Table, scratch: Path) -> list[_File]:
    """A table's files: those that were landed, as they are, where they are the whole of it; else one written now."""
    folder = PurePosixPath(TABLE_FOLDER, table.name)
    if table.schema == SHARD_SCHEMA:
        landed = _landed(connection, table)
        if landed is not None:
            return [_File(str(folder / p.name), p, p.stat().st_size, rows) for p, rows in landed.items()]
    path = scratch / f"{table.name}.parquet"
    connection.execute(f"COPY (FROM {table.qualified_name}) TO {sql_text(path)} (FORMAT parquet, COMPRESSION zstd)")
    content = path.read_bytes()
    name = f"{table.name}-{hashlib.sha256(content).hexdigest()[:16]}.parquet"
    return [_File(str(folder / name), path, len(content), pq.read_metadata(path).num_rows)]


def _landed(connection: duckdb.DuckDBPyConnection, table: Table) -> dict[Path, int] | None:
    """The files of a table with their rows, or None where they are not just its rows: rows in the catalog, rows deleted,
    other columns."""
    listed = connection.execute(
        "SELECT data_file, delete_file FROM ducklake_list_files('lake', ?, schema => ?)", [table.name, table.schema]
    ).fetchall()
    if not listed or any(deleted for _, deleted in listed):
        return None
    known = {Path(path): pq.read_metadata(path) for path, _ in listed}
    ((count,),) = connection.execute(f"SELECT count(*) FROM {table.qualified_name}").fetchall()  # noqa: S608 - own names
    columns = [column.name for column in table.columns]
    if any(found.schema.to_arrow_schema().names != columns for found in known.values()):
        return None
    rows = {path: found.num_rows for path, found in known.items()}
    return rows if sum(rows.values()) == count else None


def _document(
    connection: duckdb.DuckDBPyConnection, tables: dict[str, list[_File]], lake_id: str, snapshot: int
) -> dict[str, Any]:
    """``copy.json``: what the snapshot holds and where it is; ``copy_id`` is a hash of that."""
    ((made_at,),) = connection.execute(
        "SELECT snapshot_time FROM lake.snapshots() WHERE snapshot_id = ?", [snapshot]
    ).fetchall()
    content = {
        "format": _FORMAT,
        "lake_id": lake_id,
        "schema_version": LAKE_SCHEMA_VERSION,
        "snapshot": snapshot,
        "snapshot_at": made_at.astimezone(UTC).isoformat(),
        "tables": {
            name: {
                "schema": TABLES[name].schema,
                "description": TABLES[name].description,
                "rows": sum(file.rows for file in files),
                "files": [file.name for file in files],
            }
            for name, files in sorted(tables.items())
        },
        "views": {view.name: {"description": view.description, "sql": dedent(view.sql).strip()} for view in VIEWS},
    }
    copy_id = f"{snapshot:08d}-{short_hash(content)[:8]}"
    return {"copy_id": copy_id, "copied_at": utc_now().isoformat(), "coral": version("coral-planner"), **content}


def script(document: dict[str, Any], address: str) -> str:
    """``copy.sql``: statements for plain DuckDB that make every table and view of a copy."""
    lines = [
        f"-- Copy {document['copy_id']} of a Coral lake, snapshot {document['snapshot']} of {document['snapshot_at']}.",
        "-- Run in DuckDB 1.5 or newer; where the copy is known by another address, change it here:",
        f"SET VARIABLE coral_copy = {sql_text(address)};",
        f"CREATE SCHEMA IF NOT EXISTS {SHARD_SCHEMA};",
    ]
    for name, table in document["tables"].items():
        names = ", ".join(sql_text(f"/{path}") for path in table["files"])
        files = f"list_transform([{names}], lambda name: getvariable('coral_copy') || name)"
        lines.append(f"CREATE OR REPLACE VIEW {table['schema']}.{name} AS FROM read_parquet({files});")
    lines += [f"CREATE OR REPLACE VIEW main.{name} AS {view['sql']};" for name, view in document["views"].items()]
    return "\n".join(lines) + "\n"


# ---- sending -----------------------------------------------------------------------------------------------------------


def _send(root: Path, place: Place, files: list[_File], go_on: GoOn) -> None:
    def one(file: _File) -> None:
        try:
            go_on()
            place.send(file.name, file.path)
        except FileNotFoundError as error:
            raise LakeError(
                f"{file.path.name} of the lake in {root} was deleted while it was copied", remedy="run it again"
            ) from error

    with ThreadPoolExecutor(_SENDERS) as pool:
        try:
            for _ in pool.map(one, files):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _publish(place: Place, document: dict[str, Any], go_on: GoOn) -> bool:
    """Write what readers begin with, unless it is there; whether it was not."""
    if _newest_at(place, document["lake_id"], document["snapshot"]) == document["copy_id"]:
        return False
    for folder in (f"{SNAPSHOT_FOLDER}/{document['copy_id']}/", ""):
        go_on()
        place.write(f"{folder}{SCRIPT}", script(document, place.address).encode())
        place.write(f"{folder}{COPY}", json.dumps(document, indent=1).encode())
    return True


def _keep_newest(place: Place, keep: int, go_on: GoOn) -> int:
    """Delete all but the newest ``keep`` snapshots, then old files that none of the kept names; how many files."""
    described = place.files(SNAPSHOT_FOLDER)
    documents = sorted(name for name in described if name.endswith(f"/{COPY}"))
    used = {path for name in [*documents[-keep:], COPY] for path in _named(place, name)}
    folders = [str(PurePosixPath(name).parent) for name in documents[:-keep]]
    for folder in folders:
        go_on()
        place.delete_folder(folder)
    old = datetime.now(UTC) - _SPARED
    gone = [name for name, (_, at) in place.files(TABLE_FOLDER).items() if name not in used and at < old]
    for name in gone:
        go_on()
        place.delete(name)
    return len(gone) + sum(str(PurePosixPath(name).parent) in folders for name in described)


def _named(place: Place, name: str) -> Iterator[str]:
    for table in json.loads(place.read(name) or b'{"tables": {}}')["tables"].values():
        yield from table["files"]
