"""The lake as a folder: creation, versions, lock, damage, moving."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from warehouse_cases import QWEN, new_lake, register, templates

from catalogs.errors import CoralError, LakeError
from flows.settings import lake_root_of
from warehouse import connect
from warehouse.catalog_store import CATALOG_FILE, VERSION_FILE, CatalogStore
from warehouse.connect import Lake
from warehouse.faults import disk_errors
from warehouse.land import write_shard
from warehouse.lock import write_lock
from warehouse.schema import LAKE_SCHEMA_VERSION
from warehouse.sql import SqlSession

TESTS = Path(__file__).parents[1]


def test_exists_only_after_creation(tmp_path: Path) -> None:
    root = tmp_path / "a" / "lake"
    assert not Lake.exists(root)
    with pytest.raises(LakeError, match="no lake") as caught:
        Lake.open(root, read_only=True)
    assert caught.value.exit_code == 6
    with pytest.raises(LakeError, match="no lake"):
        Lake.open(root, create=False)
    assert not root.exists()
    Lake.open(root).close()
    assert Lake.exists(root)
    assert json.loads((root / VERSION_FILE).read_text()) == {"schema_version": LAKE_SCHEMA_VERSION}


@pytest.mark.parametrize(
    "name", ["s3://bucket/lake", "gs://bucket/lake", "file:///srv/coral", Path("s3://bucket/lake")]
)
def test_a_url_is_no_folder(name: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for attempt in (lambda: Lake.open(name), lambda: lake_root_of(name)):
        with pytest.raises(LakeError, match="is a URL, and a lake is a folder") as caught:
            attempt()
        assert "mounted file system" in str(caught.value)
    monkeypatch.setenv("CORAL_LAKE", "s3://bucket/lake")
    with pytest.raises(LakeError, match="is a URL"):
        lake_root_of(None)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_rename_is_told(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="cannot do what a lake needs: Function not implemented"), disk_errors(tmp_path):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "a.parquet")


def test_the_catalog_is_in_wal_mode(tmp_path: Path) -> None:
    Lake.open(tmp_path).close()
    # SQLite file format, offsets 18 and 19: write and read version, 2 = WAL
    assert (tmp_path / CATALOG_FILE).read_bytes()[18:20] == b"\x02\x02"


def test_an_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    new_lake(tmp_path).close()
    (tmp_path / VERSION_FILE).unlink()
    assert not Lake.exists(tmp_path)
    with Lake.open(tmp_path) as lake:
        rows = lake.connection.execute(
            "SELECT count(*), count(DISTINCT (table_name, column_name)) FROM data_dictionary"
        )
        total, distinct = rows.fetchone()
    assert total == distinct > 300


@pytest.mark.parametrize(
    ("version", "way_out"),
    [(LAKE_SCHEMA_VERSION + 1, "the version of coral that made it"), (LAKE_SCHEMA_VERSION - 1, "coral migrate")],
)
def test_another_schema_version_is_refused_with_the_way_out(tmp_path: Path, version: int, way_out: str) -> None:
    new_lake(tmp_path).close()
    before = (tmp_path / CATALOG_FILE).read_bytes()
    (tmp_path / VERSION_FILE).write_text(json.dumps({"schema_version": version}))
    for read_only in (True, False):
        with pytest.raises(LakeError, match=way_out):
            Lake.open(tmp_path, read_only=read_only)
    assert (tmp_path / CATALOG_FILE).read_bytes() == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}'])
def test_a_broken_version_file_is_told(tmp_path: Path, text: str) -> None:
    new_lake(tmp_path).close()
    (tmp_path / VERSION_FILE).write_text(text)
    with pytest.raises(LakeError, match="version file"):
        Lake.open(tmp_path)


def test_a_damaged_catalog_is_told(tmp_path: Path) -> None:
    new_lake(tmp_path).close()
    for leftover in ("-wal", "-shm"):
        (tmp_path / f"{CATALOG_FILE}{leftover}").unlink(missing_ok=True)
    (tmp_path / CATALOG_FILE).write_bytes(b"not a catalog at all" * 500)
    for read_only in (True, False):
        with pytest.raises(LakeError, match="damaged"):
            Lake.open(tmp_path, read_only=read_only)
    (tmp_path / CATALOG_FILE).unlink()
    with pytest.raises(LakeError, match="lost its catalog"):
        Lake.open(tmp_path)
    assert not (tmp_path / CATALOG_FILE).exists()


def test_a_lake_that_may_not_be_written_is_read_without_a_file_beside_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_lake(tmp_path).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path and mode & os.W_OK))
    with Lake.open(tmp_path, read_only=True) as lake:
        assert lake.snapshot() >= 0
        assert (
            sorted(path.name for path in tmp_path.iterdir()) == before
        )  # SQLite's own readers leave -wal and -shm here
    with SqlSession(tmp_path) as session:
        assert session.query("SELECT count(*) AS n FROM plans").to_pylist() == [{"n": 0}]
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from warehouse.lock import write_lock
with write_lock(Path(sys.argv[1]), "hold it"):
    print("held", flush=True)
    time.sleep(60)
"""
    new_lake(tmp_path).close()
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with Lake.open(tmp_path) as lake:
            with (
                pytest.raises(LakeError, match=rf"process {holder.pid} \(hold it\)") as caught,
                lake.write("x", lock_timeout_s=0.2),
            ):
                pass
            assert caught.value.exit_code == 6
            holder.kill()
            holder.wait()
            with lake.write("x", lock_timeout_s=5):  # the kernel released it
                pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_two_handles_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    with (
        write_lock(tmp_path, "first"),
        pytest.raises(LakeError, match=f"process {os.getpid()}"),
        write_lock(tmp_path, "second", 0.1),
    ):
        pass
    with write_lock(tmp_path, "third", 0.1):
        pass


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    row = "('i', 'f', 1, 'c', 'v', 'why', 'do', now())"
    with new_lake(tmp_path) as lake:
        before = lake.snapshot()
        for error in (RuntimeError, KeyboardInterrupt):
            with pytest.raises(error), lake.write("half") as connection:  # noqa: PT012 - it must fail inside
                connection.execute(f"INSERT INTO rejects VALUES {row}")
                raise error
        assert lake.connection.execute("SELECT count(*) FROM rejects").fetchone() == (0,)
        with lake.write("whole") as connection:
            connection.execute(f"INSERT INTO rejects VALUES {row}")
        assert lake.connection.execute("SELECT count(*) FROM rejects").fetchone() == (1,)
        assert lake.snapshot() == before + 1
        messages = lake.connection.execute(
            "SELECT commit_message FROM lake.snapshots() ORDER BY snapshot_id"
        ).fetchall()
        assert messages[-1] == ("whole",)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    new_lake(tmp_path).close()
    with Lake.open(tmp_path, read_only=True) as lake, pytest.raises(LakeError, match="reading only"), lake.write("x"):
        pass


def test_a_moved_lake_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "it's old", tmp_path / "new"  # a quote in the path, too
    with new_lake(old) as lake:
        register(lake, "lib1", [write_shard(old, templates("s1", QWEN, {"L40Sx4*1": 5}), "s1")])
    shutil.move(old, new)
    monkeypatch.chdir(tmp_path)
    with Lake.open("new") as lake:
        assert lake.connection.execute("SELECT combination_id FROM templates").fetchall() == [("L40Sx4*1",)]
        register(lake, "lib2", [write_shard(new, templates("s2", QWEN, {"L40Sx4*2": 5}), "s2")])
        assert lake.connection.execute("SELECT count(*) FROM templates").fetchone() == (2,)


def test_a_full_disk_is_told_and_the_lake_stays(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    code = """
import resource, signal, sys
from warehouse_cases import *
lake = Lake.open(sys.argv[1])
import os
limit = os.path.getsize(sys.argv[1] + "/catalog.sqlite") + 200_000
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from catalogs.errors import LakeError
from warehouse.plans import log_rejects
from warehouse.records import Reject
try:
    for i in range(50):
        log_rejects(lake, f"i{i}", [Reject("f" * 20000, 1, "c", "v", "why", "do")] * 5)
        print("ok", flush=True)
except LakeError as error:
    print(error.exit_code, error, flush=True)
"""
    new_lake(tmp_path).close()
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True, check=True
    )
    *committed, told = out.stdout.splitlines()
    assert told.startswith(("6 the disk is full", "6 the disk failed or is full"))
    with Lake.open(tmp_path) as lake:
        kept = lake.connection.execute("SELECT count(DISTINCT ingest_id), count(*) FROM rejects").fetchone()
        assert kept == (len(committed), 5 * len(committed))
        register(lake, "lib1", [write_shard(tmp_path, templates("s1", QWEN, {"L40Sx4*1": 5}), "s1")])


def test_a_missing_extension_wheel_falls_back_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network here: the fallback is seen to be tried, and its failure told."""
    asked = []

    class Connection:
        def install_extension(self, name: str) -> None:
            asked.append(name)
            raise connect.duckdb.IOException("cannot reach it")

    monkeypatch.setattr(connect, "_extension_file", lambda name: None)
    with pytest.raises(LakeError, match="ducklake cannot be loaded"):
        connect._load_extensions(Connection(), {"ducklake": None})
    assert asked == ["ducklake"]


@pytest.mark.parametrize("is_shipped", [True, False])
def test_only_what_is_installed_goes_without_a_signature(monkeypatch: pytest.MonkeyPatch, is_shipped: bool) -> None:
    """One that would be fetched must be signed."""
    monkeypatch.setattr(connect, "_load_extensions", lambda *_: None)
    if not is_shipped:
        monkeypatch.setattr(connect, "_extension_file", lambda name: None)
    with connect.new_connection(CatalogStore()) as connection:
        (allowed,) = connection.execute("SELECT current_setting('allow_unsigned_extensions')").fetchone()
    assert allowed is is_shipped


def test_connections_fetch_nothing_by_themselves() -> None:
    with connect.new_connection(CatalogStore()) as connection:
        names = ["autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements"]
        assert [connection.execute(f"SELECT current_setting('{n}')").fetchone()[0] for n in names] == [False] * 3


def test_the_environment_says_how_long_a_writer_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_LOCK_TIMEOUT_S", "0.2")
    with (
        write_lock(tmp_path, "first"),
        pytest.raises(LakeError, match=r"waited 0\.2 s"),
        write_lock(tmp_path, "second"),
    ):
        pass


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_a_lock_timeout_that_is_no_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CORAL_LOCK_TIMEOUT_S", text)
    with pytest.raises(CoralError, match="CORAL_LOCK_TIMEOUT_S"), write_lock(tmp_path, "x"):
        pass
