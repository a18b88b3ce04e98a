"""Advisory locks of PostgreSQL, for a lake whose writers are on several machines."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from warehouse.catalog_faults import lake_errors
from warehouse.catalog_store import CatalogStore, postgres_address, sql_text

_DATABASE = "lock_holder"
# Of pg_locks: the key of an advisory lock, shown in two halves.
_KEY = "((classid::bigint << 32) | objid::bigint)"


class AdvisoryLock:
    """One attempt to hold a lock, over a connection of its own. The lock is the open transaction's: it ends with it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, key: int) -> None:
        self._connection = connection
        self._key = key

    def is_taken(self) -> bool:
        """Take the lock if it is free; whether it is ours now."""
        return bool(self.ask(f"SELECT pg_try_advisory_xact_lock({self._key}) AS got"))

    def is_held(self) -> bool:
        """Whether the lock is still ours: its connection lives, and is the one that took it."""
        try:
            return bool(
                self.ask(
                    f"""SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
                    AND pid = pg_backend_pid() AND {_KEY} = {self._key}"""  # noqa: S608 - a number
                )
            )
        except duckdb.Error:
            return False

    def holder(self) -> str:
        """Who has it, as that process has said of itself; empty where nobody is seen to."""
        return str(
            self.ask(
                f"""SELECT coalesce(max(a.application_name), '') AS name
                FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
                AND {_KEY} = {self._key}"""  # noqa: S608 - a number
            )
        )

    def ask(self, sql: str) -> object:
        """The one value of a statement that PostgreSQL runs itself."""
        row = self._connection.execute(f"FROM postgres_query({sql_text(_DATABASE)}, {sql_text(sql)})").fetchone()
        assert row is not None  # each of ours is an aggregate or a call
        return row[0]


@contextmanager
def advisory_lock(root: Path, store: CatalogStore, name: str, what: str) -> Iterator[AdvisoryLock]:
    """A lock of that name on the lake of ``store``, not yet taken; released at the end of the block, or of this process.

    Raises LakeError where PostgreSQL cannot be reached.
    """
    from warehouse.connect import new_connection

    digest = hashlib.sha256(f"{store.schema} {name}".encode()).digest()
    # Positive, so that the two halves PostgreSQL shows it in are easily put together again.
    key = int.from_bytes(digest[:8], "big") >> 1
    connection = new_connection(store)
    try:
        with lake_errors(root):
            address = sql_text(postgres_address(root))
            connection.execute(f"ATTACH {address} AS {_DATABASE} (TYPE postgres, READ_ONLY)")
            connection.execute("BEGIN")
            lock = AdvisoryLock(connection, key)
            said = f"process {os.getpid()} on {socket.gethostname()} ({what})"[:63]
            lock.ask(f"SELECT set_config('application_name', {sql_text(said)}, false)")
        yield lock
    finally:
        # DuckDB ends the whole process when a transaction is closed whose server is gone, but not when it is rolled back.
        with suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        connection.close()
