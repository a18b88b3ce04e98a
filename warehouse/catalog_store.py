"""Where a lake's catalog is kept: SQLite in the lake's folder, or PostgreSQL for writers on several machines.

``lake.json`` says which. PostgreSQL is reached at CORAL_CATALOG, libpq's ``key=value`` or URI form after ``postgres:``; the
password is libpq's to find (PGPASSWORD, a password file), so the address is no secret and may stand in messages. Each
lake has a schema of its own in the database, named in its ``lake.json``: another database is found not to have it.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from catalogs.errors import CoralError, LakeError

CATALOG_FILE = "catalog.sqlite"
VERSION_FILE = "lake.json"
CATALOG_VARIABLE = "CORAL_CATALOG"
_PREFIX = "postgres:"
_BUSY_TIMEOUT_MS = 30_000
_PASSWORD = re.compile(r"password\s*=|//[^/@]*:[^/@]*@", re.IGNORECASE)
METADATA = "__ducklake_metadata_lake"


def sql_text(value: str | Path) -> str:
    """``value`` as an SQL string literal, for statements that take no parameters."""
    return "'" + str(value).replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class CatalogStore:
    """A lake's catalog: ``schema`` None = SQLite, else the lake's schema in PostgreSQL."""

    schema: str | None = None

    @property
    def is_postgres(self) -> bool:
        """Whether it is kept in PostgreSQL."""
        return self.schema is not None

    def attach_sql(
        self,
        root: Path,
        *,
        read_only: bool,
        is_new: bool = False,
        snapshot: int | None = None,
        catalog: Path | None = None,
    ) -> str:
        """The statement that attaches the catalog as ``lake``; ``is_new``: and makes it. ``catalog``: the SQLite file, None =
        that of ``root``. Raises CoralError for a catalog in PostgreSQL whose address is not known."""
        options = [
            f"DATA_PATH {sql_text(f'{root}/')}",
            "OVERRIDE_DATA_PATH true",  # the folder may have moved since it was created
        ]
        if snapshot is not None:
            options.append(f"SNAPSHOT_VERSION {int(snapshot)}")
        if read_only:
            options.append("READ_ONLY")
        if self.schema is None:
            options += [f"META_BUSY_TIMEOUT {_BUSY_TIMEOUT_MS}", *([] if read_only else ["META_JOURNAL_MODE 'WAL'"])]
            source = f"ducklake:sqlite:{catalog or root / CATALOG_FILE}"
        else:
            options.append(f"METADATA_SCHEMA {sql_text(self.schema)}")
            if not is_new:
                options.append("CREATE_IF_NOT_EXISTS false")
            source = f"ducklake:{_PREFIX}{postgres_address(root)}"
        return f"ATTACH {sql_text(source)} AS lake ({', '.join(options)})"

    def metadata_table(self, name: str) -> str:
        """The qualified name of one of DuckLake's own tables."""
        return f"{METADATA}.{self.schema or 'main'}.{name}"

    def document(self) -> dict[str, str]:
        """What ``lake.json`` says of it."""
        return {} if self.schema is None else {"catalog": "postgres", "catalog_schema": self.schema}


def new_store() -> CatalogStore:
    """The catalog a new lake gets: in PostgreSQL where CORAL_CATALOG is set. Raises CoralError for an address it cannot be."""
    return CatalogStore(f"coral_{uuid.uuid4().hex[:12]}" if _stated_address() else None)


def store_of(root: Path) -> CatalogStore:
    """The catalog of the lake in ``root`` as its ``lake.json`` says; SQLite where that says nothing."""
    try:
        stated = json.loads((root / VERSION_FILE).read_text())
    except (OSError, ValueError):
        return CatalogStore()  # whoever opens the lake says what is wrong
    if not isinstance(stated, dict) or stated.get("catalog") != "postgres":
        return CatalogStore()
    schema = stated.get("catalog_schema")
    if not isinstance(schema, str) or not re.fullmatch(r"coral_[0-9a-f]+", schema):
        raise LakeError(f"{root / VERSION_FILE} names no schema of its catalog", remedy="restore it from a backup")
    return CatalogStore(schema)


def postgres_address(root: Path) -> str:
    """Where PostgreSQL is reached, without a password. Raises LakeError when the environment does not say."""
    address = _stated_address()
    if address is None:
        raise LakeError(
            f"the catalog of the lake in {root} is in PostgreSQL, and {CATALOG_VARIABLE} does not say where",
            remedy=f"set {CATALOG_VARIABLE}, such as 'postgres:host=127.0.0.1 dbname=coral user=coral', and PGPASSWORD",
        )
    return address


def _stated_address() -> str | None:
    text = os.environ.get(CATALOG_VARIABLE, "").strip()
    if not text:
        return None
    if _PASSWORD.search(text):
        # Not shown: it would stand in logs and messages from here on.
        raise CoralError(f"{CATALOG_VARIABLE} holds a password", remedy="take it out, and set PGPASSWORD instead")
    if text.startswith(("postgres://", "postgresql://")):
        return text
    if not text.startswith(_PREFIX) or not text.removeprefix(_PREFIX).strip():
        raise CoralError(
            f"{CATALOG_VARIABLE} is no address of a catalog",
            remedy="write 'postgres:host=127.0.0.1 dbname=coral user=coral', or unset it to keep catalogs in SQLite",
        )
    return text.removeprefix(_PREFIX)
