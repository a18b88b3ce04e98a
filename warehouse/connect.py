"""The lake: a folder with a SQLite DuckLake catalog, landed files, a write lock and a schema version.

Layout under the root: ``catalog.sqlite`` (WAL: readers never wait for the writer; :mod:`warehouse.catalog_store` has the
other kind), ``main/`` (DuckLake's own files),
``shards/<table>/`` (landed files), ``write.lock``, ``lake.json`` (schema version; written last, so a lake whose
creation was interrupted does not exist yet). All paths inside are relative: the folder can be moved.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import duckdb

from catalogs.errors import LakeError
from warehouse.catalog_faults import lake_errors
from warehouse.catalog_store import CATALOG_FILE, VERSION_FILE, CatalogStore, new_store, sql_text, store_of
from warehouse.faults import refuse_url
from warehouse.lock import write_lock
from warehouse.rows import insert
from warehouse.schema import LAKE_SCHEMA_VERSION, SHARD_SCHEMA, Column
from warehouse.tables import TABLES
from warehouse.views import VIEWS

DEFAULT_ROOT = Path(".coral")
_EXTENSIONS = ("ducklake", "sqlite_scanner")
_POSTGRES_EXTENSION = "postgres_scanner"


def _extension_file(name: str) -> Path | None:
    """The extension as shipped in its wheel, or None where the wheel (or its build for this DuckDB) is missing."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
    return path if path.is_file() else None


def _load_extensions(connection: duckdb.DuckDBPyConnection, files: Mapping[str, Path | None]) -> None:
    for name, path in files.items():
        try:
            if path is None:
                connection.install_extension(name)
                connection.load_extension(name)
            else:
                connection.load_extension(str(path))
        except duckdb.Error as error:
            raise LakeError(
                f"DuckDB's extension {name} cannot be loaded: {str(error).splitlines()[0]}",
                remedy=f"pip install duckdb=={duckdb.__version__} and the duckdb-extension-* wheels of that version",
            ) from error


def new_connection(store: CatalogStore) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB with the extensions that a lake with this catalog takes. It fetches nothing by itself and never
    reads Python variables."""
    names = (*_EXTENSIONS, _POSTGRES_EXTENSION) if store.is_postgres else _EXTENSIONS
    files = {name: _extension_file(name) for name in names}
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            # Files of installed wheels are trusted as DuckDB's own library beside them is; to check their signatures would
            # take a quarter of a second of every command. What is fetched is checked. SQL of users can load nothing.
            "allow_unsigned_extensions": str(all(files.values())).lower(),
        }
    )
    _load_extensions(connection, files)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def extensions_in_words() -> str:
    """DuckDB's version and the extensions that load, in a line. Raises LakeError for one that does not but must."""
    new_connection(CatalogStore()).close()
    names = list(_EXTENSIONS)
    if _extension_file(_POSTGRES_EXTENSION) is not None:
        new_connection(CatalogStore("any")).close()
        names.append(_POSTGRES_EXTENSION)
    return f"DuckDB {duckdb.__version__} loads {', '.join(names)}"


def attach(
    connection: duckdb.DuckDBPyConnection,
    root: Path,
    *,
    store: CatalogStore,
    read_only: bool,
    is_new: bool = False,
    snapshot: int | None = None,
) -> None:
    """Attach the catalog of ``root`` as ``lake`` and make it the default; ``snapshot`` fixes what is read."""
    catalog = _copied_catalog(connection, root) if read_only and not store.is_postgres else None
    connection.execute(store.attach_sql(root, read_only=read_only, is_new=is_new, snapshot=snapshot, catalog=catalog))
    connection.execute("USE lake")


def _copied_catalog(connection: duckdb.DuckDBPyConnection, root: Path) -> Path | None:
    """A copy of the catalog of a lake whose folder may not be written, kept as long as ``connection``; else None.

    SQLite writes beside a catalog even to read it, unless another program has it open already (its ``-wal`` is then there).
    """
    if os.access(root, os.W_OK) or (root / f"{CATALOG_FILE}-wal").exists():
        return None
    folder = tempfile.mkdtemp(prefix="coral-catalog-")
    weakref.finalize(connection, shutil.rmtree, folder, ignore_errors=True)
    return Path(shutil.copyfile(root / CATALOG_FILE, Path(folder) / CATALOG_FILE))


def absolute_root(root: str | os.PathLike[str]) -> Path:
    """``root`` resolved; paths handed to the catalog must be absolute. Raises LakeError for what is no folder's name."""
    refuse_url(root)
    try:
        return Path(root).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # a home that nobody has, links in a circle
        raise LakeError(f"{root} is no folder: {error}", remedy="name another folder with --lake") from error


def check_version(root: Path) -> None:
    """Raise LakeError unless ``root`` holds a lake of this schema version."""
    path = root / VERSION_FILE
    if not Lake.exists(root):
        raise LakeError(
            f"there is no lake in {root}", remedy="run `coral build` or `coral plan` first, or name another with --lake"
        )
    try:
        with lake_errors(root):
            found = json.loads(path.read_text())["schema_version"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise LakeError(f"{path} is not a lake's version file", remedy="restore it from a backup") from error
    if found != LAKE_SCHEMA_VERSION:
        way_out = (
            "run `coral migrate`, or name a new folder with --lake"
            if isinstance(found, int) and found < LAKE_SCHEMA_VERSION
            else "use the version of coral that made it, or name a new folder with --lake"
        )
        raise LakeError(
            f"the lake in {root} has schema version {found!r}, this coral reads {LAKE_SCHEMA_VERSION}", remedy=way_out
        )


class Lake:
    """An open lake. Use it from one thread; a second thread takes its own. ``connection`` has ``lake`` as default."""

    def __init__(self, root: Path, connection: duckdb.DuckDBPyConnection, *, read_only: bool) -> None:
        self.root = root
        self.connection = connection
        self.is_read_only = read_only

    @staticmethod
    def exists(root: str | os.PathLike[str] = DEFAULT_ROOT) -> bool:
        """Whether a lake (of any schema version) was created in ``root``."""
        path = absolute_root(root)
        with lake_errors(path):
            return (path / VERSION_FILE).is_file()

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str] = DEFAULT_ROOT,
        *,
        read_only: bool = False,
        create: bool = True,
        lock_timeout_s: float | None = None,
    ) -> Lake:
        """Open the lake in ``root``; for writing, create it where there is none (unless ``create`` is False).

        Raises LakeError (exit 6): no lake, another schema version, a damaged catalog, a full disk, or, while
        creating, a lock held by another process.
        """
        path = absolute_root(root)
        if not read_only and create and not cls.exists(path):
            _create(path, lock_timeout_s)
        check_version(path)
        store = store_of(path)
        if not store.is_postgres and not (path / CATALOG_FILE).is_file():
            raise LakeError(
                f"the lake in {path} has lost its catalog {CATALOG_FILE}",
                remedy="restore it from a backup, or remove lake.json and build again: files under shards/ are reused",
            )
        return cls(path, _connect(path, store, read_only=read_only), read_only=read_only)

    @contextmanager
    def write(self, what: str, *, lock_timeout_s: float | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
        """One transaction under the write lock: all of it is committed, or none. ``what`` is its commit message.

        Raises LakeError when another process keeps the lock longer than ``lock_timeout_s`` (naming its pid), when the
        disk is full, or when the catalog is damaged; the lake is then as it was before.
        """
        if self.is_read_only:
            raise LakeError(f"the lake in {self.root} is open for reading only", remedy="open it for writing")
        with (
            write_lock(self.root, what, lock_timeout_s) as still_held,
            lake_errors(self.root),
            transaction(self.connection, what),
        ):
            yield self.connection
            still_held()

    def snapshot(self) -> int:
        """The id of the latest snapshot; readers can go back to it."""
        with lake_errors(self.root):
            row = self.connection.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
        assert row is not None  # a catalog has at least snapshot 0
        return int(row[0])

    def close(self) -> None:
        """Close the connection; repeated calls do nothing."""
        self.connection.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def all_threads(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """As many threads as the machine has cores, for what goes over a whole library.

    Else a lake's connection has one: most of a query of few rows is reading the catalog, and that takes twice as long and
    three times the processor where several threads share it.
    """
    connection.execute("RESET threads")
    try:
        yield
    finally:
        connection.execute("SET threads = 1")


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection, what: str) -> Iterator[None]:
    """BEGIN ... COMMIT, or ROLLBACK when anything fails, interruption included."""
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("CALL lake.set_commit_message('coral', ?)", [what])
        connection.execute("COMMIT")
    except BaseException:
        _rollback(connection)
        raise


def _rollback(connection: duckdb.DuckDBPyConnection) -> None:
    try:
        connection.execute("ROLLBACK")
    except duckdb.Error:  # a failed COMMIT has already rolled back
        return


def _connect(root: Path, store: CatalogStore, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    connection = new_connection(store)
    try:
        with lake_errors(root):
            connection.execute("SET threads = 1")
            attach(connection, root, store=store, read_only=read_only)
            connection.execute("SELECT count(*) FROM main.data_dictionary").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _create(root: Path, lock_timeout_s: float | None) -> None:
    """Create all tables and views in one transaction, then the version file. Safe against a race and a crash."""
    with lake_errors(root):
        try:
            (root / SHARD_SCHEMA).mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # a folder of the system's own, such as /proc, in which none can be made
            raise LakeError(
                f"{root} cannot be made: {error.strerror}", remedy="name another folder with --lake"
            ) from error
    with write_lock(root, "create the lake", lock_timeout_s):
        if Lake.exists(root):
            return
        store = new_store()
        connection = new_connection(store)
        try:
            with lake_errors(root):
                attach(connection, root, store=store, read_only=False, is_new=True)
                with transaction(connection, "create the lake"):
                    refresh_tables(connection)
                write_version(root, store)
        finally:
            connection.close()


def refresh_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables that are missing, and all views and their dictionary anew; in the caller's transaction."""
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SHARD_SCHEMA}")
    for table in TABLES.values():
        connection.execute(table.ddl())
        connection.execute(f"COMMENT ON TABLE {table.qualified_name} IS {sql_text(table.description)}")
    for view in VIEWS:
        connection.execute(view.ddl())
        connection.execute(f"COMMENT ON VIEW main.{view.name} IS {sql_text(view.description)}")
    connection.execute("DELETE FROM main.data_dictionary")
    insert(connection, "data_dictionary", _dictionary_rows(connection))


def _dictionary_rows(connection: duckdb.DuckDBPyConnection) -> list[dict[str, str | bool]]:
    rows = []
    for table in TABLES.values():
        rows.append(_dictionary_row(table.name, "table", Column("", "", table.description)))
        rows.extend(_dictionary_row(table.name, "table", column) for column in table.columns)
    for view in VIEWS:
        rows.append(_dictionary_row(view.name, "view", Column("", "", view.description)))
        described = {c.name: c for name in reversed(view.tables) for c in TABLES[name].columns}
        described |= {column.name: column for column in view.extra}
        for name, type_, *_ in connection.execute(f"DESCRIBE main.{view.name}").fetchall():
            column = replace(described[name], type=type_, is_key=name in view.key)
            rows.append(_dictionary_row(view.name, "view", column))
    return rows


def _dictionary_row(table_name: str, kind: str, column: Column) -> dict[str, str | bool]:
    return {
        "table_name": table_name,
        "column_name": column.name,
        "kind": kind,
        "type": column.type,
        "unit": column.unit,
        "is_key": column.is_key,
        "description": column.description,
    }


def write_version(root: Path, store: CatalogStore) -> None:
    """State this coral's schema version in the lake's version file; whole or not at all."""
    temporary = root / f"{VERSION_FILE}.tmp"
    with temporary.open("w") as file:
        json.dump({"schema_version": LAKE_SCHEMA_VERSION, **store.document()}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(root / VERSION_FILE)
