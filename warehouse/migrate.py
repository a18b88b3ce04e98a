"""Bringing a lake to the present tables and views, or refusing it with the way out."""

from __future__ import annotations

import json
import os
from pathlib import Path

from catalogs.errors import LakeError
from warehouse.connect import VERSION_FILE, Lake, absolute_root, check_version, refresh_tables
from warehouse.schema import LAKE_SCHEMA_VERSION


def migrate_lake(root: str | os.PathLike[str]) -> int:
    """Make missing tables and renew all views of a lake of this schema version, in one transaction; its version.

    Raises LakeError for no lake, a broken version file, and a version that no migration leads from: the lake is then as
    it was. There is no migration so far, since version 1 is the first.
    """
    path = absolute_root(root)
    _refuse_older(path)
    with Lake.open(path, create=False) as lake, lake.write("migrate") as connection:
        refresh_tables(connection)
    return LAKE_SCHEMA_VERSION


def _refuse_older(path: Path) -> None:
    """``check_version`` sends older lakes here; say what else there is to do."""
    try:
        check_version(path)
    except LakeError:
        found = _stated_version(path)
        if found is None or found >= LAKE_SCHEMA_VERSION:
            raise
        raise LakeError(
            f"no migration leads from schema version {found} of the lake in {path} to {LAKE_SCHEMA_VERSION}",
            remedy="use the version of coral that made it, or build again in a new folder (--lake): "
            "libraries are computed anew, plans stay readable in the old one",
        ) from None


def _stated_version(path: Path) -> int | None:
    try:
        found = json.loads((path / VERSION_FILE).read_text())["schema_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None
