"""What can befall a lake's catalog, told as expected outcomes: damage, a lock, a missing file, a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from catalogs.errors import LakeError
from warehouse.faults import disk_errors, disk_full

_FULL = ("no space left", "disk is full", "disk full", "file too large", "quota exceeded", "could not write all bytes")
_DAMAGED = ("file is not a database", "malformed", "no such table: ducklake", "file is encrypted")
_LOCKED = ("database is locked", "database table is locked")
_MISSING = ("no such file or directory", "no magic bytes found", "too small to be a parquet file")
# A Parquet file of which bytes were cut off or changed; where these lie decides what DuckDB says.
_BROKEN_FILE = (
    "invalid footer length", "tprotocolexception", "don't know what type", "out of buffer", "decompression failure",
    "could not read enough bytes", "failed to read file",
)  # fmt: skip
_UNREACHED = ("unable to connect to postgres", "server closed the connection", "no connection to the server")
_CONFLICT = ("transaction conflict", "could not serialize access")
_NOT_THERE = ("does not exist - and creating",)
_READ_ONLY = ("readonly database", "permission denied", "unable to open database")

OWN_FOLDER = "main"
# Tables of the catalog, plans among them: nothing but a copy has what was in such a file.
OWN_FILE_REMEDY = (
    "restore the folder from a backup; without one, move lake.json and catalog.sqlite away and plan again: plans so far are "
    "lost, files under shards/ are reused"
)


@contextmanager
def lake_errors(root: Path) -> Iterator[None]:
    """Turn DuckDB's and the system's errors about the lake in ``root`` into LakeError; others pass unchanged."""
    try:
        with disk_errors(root):
            yield
    except duckdb.Error as error:
        known = _explain(str(error), root)
        if known is None:
            raise
        raise known from error


def _explain(text: str, root: Path) -> LakeError | None:
    first, low = text.splitlines()[0] if text else "", text.lower()
    if any(mark in low for mark in _UNREACHED):
        # libpq's own last words; the address holds no password.
        why = first.rpartition("failed: ")[2] or first
        return LakeError(
            f"the catalog of the lake in {root} is in PostgreSQL, which cannot be reached ({why})",
            remedy="start it, or mend CORAL_CATALOG and PGPASSWORD",
        )
    if any(mark in low for mark in _NOT_THERE):
        return LakeError(
            f"the catalog of the lake in {root} is not in the database that CORAL_CATALOG names",
            remedy="name the one it was made in, or restore it there from a backup",
        )
    if any(mark in low for mark in _CONFLICT):
        return LakeError(
            f"another writer changed the lake in {root} at the same moment", remedy="run the same command again"
        )
    if any(mark in low for mark in _FULL):
        return disk_full(root)
    if "disk i/o error" in low:
        return LakeError(
            f"the disk failed or is full: nothing was changed in the lake in {root} ({first})",
            remedy="check the disk and free some space, then run the same command again; finished work is kept",
        )
    if any(mark in low for mark in _DAMAGED):
        return LakeError(
            f"the catalog of the lake in {root} is damaged ({first})",
            remedy="restore catalog.sqlite from a backup, or move it and lake.json away and build again: "
            "files under shards/ are reused",
        )
    if any(mark in low for mark in _LOCKED):
        return LakeError(
            f"the catalog of the lake in {root} is locked", remedy="wait for the other program and try again"
        )
    if any(mark in low for mark in (*_MISSING, *_BROKEN_FILE)):
        is_own = f"{root / OWN_FOLDER}/" in first
        return LakeError(
            f"a file of the lake in {root} is missing or damaged ({first})",
            remedy=OWN_FILE_REMEDY if is_own else "run `coral build` again: it makes the same file anew",
        )
    if any(mark in low for mark in _READ_ONLY):
        return LakeError(
            f"the lake in {root} cannot be written or opened ({first})",
            remedy="make the folder writable, or copy the lake to one that is",
        )
    return None
