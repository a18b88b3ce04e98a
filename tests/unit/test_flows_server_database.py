"""The empty server database that an installation keeps: whole or not there, never in the way."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from flows import server_database
from flows.server_database import begin_with_copy, is_new, keep_copy


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "share" / "coral" / "prefect-1.db"
    monkeypatch.setattr(server_database, "kept_copy", lambda: path)
    return path


def home(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def rows(database: Path) -> list[tuple[int]]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT x FROM t").fetchall()


def test_what_the_first_server_made_the_second_begins_with(tmp_path: Path, kept: Path) -> None:
    first, second = home(tmp_path, "first"), home(tmp_path, "second")
    begin_with_copy(first)
    assert is_new(first)
    with contextlib.closing(sqlite3.connect(first / "prefect.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (7)")
        connection.commit()
        keep_copy(first)  # in use, and most of it in the WAL
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    begin_with_copy(second)
    assert not is_new(second)
    assert rows(second / "prefect.db") == [(7,)]
    assert [path.name for path in second.iterdir()] == ["prefect.db"]


def test_a_servers_own_database_is_never_replaced(tmp_path: Path, kept: Path) -> None:
    folder = home(tmp_path, "server")
    for path, x in ((folder / "prefect.db", 1), (kept, 2)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.execute("INSERT INTO t VALUES (?)", [x])
            connection.commit()
    begin_with_copy(folder)
    keep_copy(folder)
    assert (rows(folder / "prefect.db"), rows(kept)) == ([(1,)], [(2,)])


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_copy_is_deleted_and_the_server_begins_without(tmp_path: Path, kept: Path, content: bytes) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    folder = home(tmp_path, "server")
    begin_with_copy(folder)
    assert is_new(folder)
    assert list(folder.iterdir()) == []
    assert not kept.exists()


def test_an_installation_that_cannot_be_written_keeps_none(tmp_path: Path, kept: Path) -> None:
    kept.parent.parent.write_text("a file where the folder should be")
    folder = home(tmp_path, "server")
    sqlite3.connect(folder / "prefect.db").close()
    keep_copy(folder)
    begin_with_copy(home(tmp_path, "other"))
    assert is_new(tmp_path / "other")
