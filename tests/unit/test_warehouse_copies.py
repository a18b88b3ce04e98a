"""Copies of a lake in a folder: all of it, whole or not at all, sent once; and what is no place for one.

The lake's own SQL, and plain DuckDB on the copy, must say the same. Buckets are in tests/integration.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dashboard_cases import dashboard_lake
from warehouse_cases import new_lake, plan, run

from catalogs.errors import CoralError, LakeError
from warehouse.connect import Lake
from warehouse.copies import Copied, copy_lake
from warehouse.lock import copy_lock
from warehouse.places import FolderPlace, PlaceError, place_of
from warehouse.plans import publish_plan
from warehouse.sql import SqlSession
from warehouse.tables import TABLES
from warehouse.views import VIEWS

NAMES = [*(table.qualified_name for table in TABLES.values()), *(f"main.{view.name}" for view in VIEWS)]
SOME = ["main.plan_states", "main.plans", "main.plan_instances", "main.templates", "shards.frontier_rows"]


@dataclass(frozen=True)
class Made:
    """A lake in a folder with its copy beside it, copied twice; then a version was published."""

    folder: Path
    first: Copied
    again: Copied
    was_touched: bool


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    root, to = folder / "lake", folder / "to"
    dashboard_lake(root)
    first = copy_lake(root, place_of(str(to)))
    times = {path: path.stat().st_mtime_ns for path in to.rglob("*.*")}
    again = copy_lake(root, place_of(f"file://{to}"))
    was_touched = {path: path.stat().st_mtime_ns for path in to.rglob("*.*")} != times
    with Lake.open(root) as lake:
        publish_plan(lake, plan(instances=3, cost_usd_per_h=24.0), run("r3"))
    return Made(folder, first, again, was_touched)


@pytest.fixture
def root(made: Made, tmp_path: Path) -> Path:
    """Both once more, to change."""
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lake"


@pytest.fixture
def to(root: Path) -> Path:
    return root.with_name("to")


def told(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def as_copied(script: Path, folder: Path) -> duckdb.DuckDBPyConnection:
    """Plain DuckDB after the copy's own statements, told where the copy is now."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    lines = script.read_text().splitlines()
    lines[2] = f"SET VARIABLE coral_copy = '{folder}';"
    connection.execute("\n".join(lines))
    return connection


def check_equal(root: Path, to: Path, names: list[str] = SOME, *, old: Copied | None = None) -> None:
    script = to / "copy.sql" if old is None else to / "snapshots" / old.copy_id / "copy.sql"
    with SqlSession(root, snapshot=old and old.snapshot) as lake, as_copied(script, to) as copied:
        for name in names:
            ours, theirs = lake.query(f"FROM {name}"), copied.execute(f"FROM {name}").to_arrow_table()
            assert theirs.schema.types == ours.schema.types, name
            assert theirs.column_names == ours.column_names, name
            assert told(theirs) == told(ours), name


def test_every_table_and_view_is_as_in_the_lake(made: Made) -> None:
    root, to = made.folder / "lake", made.folder / "to"
    assert made.first.is_new
    assert made.first.files == made.first.files_sent == len(list(to.rglob("*.parquet")))
    check_equal(root, to, NAMES, old=made.first)
    with duckdb.connect() as connection:  # as it stands: the copy is where it was made
        connection.execute((to / "copy.sql").read_text())
        assert connection.execute("SELECT plan_version FROM plans WHERE is_current").fetchall() == [(2,)]
    # A table at a time, by its files alone; what was landed is sent as it is.
    document = json.loads((to / "copy.json").read_text())
    landed = document["tables"]["solved_templates"]
    assert sum(pq.read_metadata(to / name).num_rows for name in landed["files"]) == landed["rows"] == 6
    for name in landed["files"]:
        assert (to / name).read_bytes() == (root / "shards/solved_templates" / Path(name).name).read_bytes()


def test_of_an_unchanged_lake_nothing_is_sent(made: Made) -> None:
    assert (made.again.is_new, made.again.files_sent) == (False, 0)
    assert made.again.copy_id == made.first.copy_id
    assert not made.was_touched


def test_rows_that_were_deleted_are_not_in_the_copy(root: Path, to: Path) -> None:
    with Lake.open(root) as lake, lake.write("drop templates") as connection:
        connection.execute("DELETE FROM shards.solved_templates WHERE combination_id = 'L40Sx4*2'")
    copy_lake(root, place_of(str(to)))
    check_equal(root, to)
    assert not list((to / "tables/solved_templates").glob("*.tmp"))


class StopError(Exception):
    """Stands for a kill."""


def test_wherever_a_copy_ends_readers_see_a_whole_snapshot(made: Made, root: Path, to: Path) -> None:
    before = set(to.rglob("*.parquet"))

    def ends(when: Callable[[], bool]) -> Callable[[], None]:
        def go_on() -> None:
            if when():
                raise StopError

        return go_on

    for when in (
        lambda: len(set(to.rglob("*.parquet")) - before) > 2,  # some of its files are there
        lambda: len(list((to / "snapshots").iterdir())) > 1,  # all are, and its own description
    ):
        with pytest.raises(StopError):
            copy_lake(root, place_of(str(to)), go_on=ends(when))
        assert json.loads((to / "copy.json").read_text())["copy_id"] == made.first.copy_id
        check_whole(to)
    done = copy_lake(root, place_of(str(to)))
    assert (done.is_new, done.files_sent) == (True, 0)
    check_equal(root, to)
    check_equal(root, to, old=made.first)
    # A version adds rows to few tables: itself, states, document, instances, offers, the run.
    changed = {path.parent.name for path in set(to.rglob("*.parquet")) - before}
    assert {"plan_rows", "plan_states", "plan_documents", "plan_instances"} <= changed
    assert not changed & {"solved_templates", "frontier_rows", "profile_rows", "offer_rows", "data_dictionary"}


def check_whole(to: Path) -> None:
    document = json.loads((to / "copy.json").read_text())
    for name, table in document["tables"].items():
        assert sum(pq.read_metadata(to / path).num_rows for path in table["files"]) == table["rows"], name


def test_a_file_cut_short_is_sent_again(root: Path, to: Path) -> None:
    cut = next(to.rglob("tables/offer_rows/*.parquet"))
    cut.write_bytes(cut.read_bytes()[:100])
    copy_lake(root, place_of(str(to)))
    check_whole(to)


def test_only_the_newest_snapshots_are_kept_and_what_they_name(made: Made, root: Path, to: Path) -> None:
    second = copy_lake(root, place_of(str(to)), keep=1)
    assert second.deleted == 2  # copy.json and copy.sql of the first; its files may be of a copy under way elsewhere
    first_files = set(files_of(made.folder / "to", made.first.copy_id))
    assert all((to / name).exists() for name in first_files)
    long_ago = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    for path in to.rglob("*.parquet"):
        os.utime(path, (long_ago, long_ago))
    gone = first_files - set(files_of(to, second.copy_id))
    assert copy_lake(root, place_of(str(to)), keep=1).deleted == len(gone) > 3
    assert not any((to / name).exists() for name in gone)
    check_equal(root, to)


def files_of(to: Path, copy_id: str) -> list[str]:
    document = json.loads((to / "snapshots" / copy_id / "copy.json").read_text())
    return [path for table in document["tables"].values() for path in table["files"]]


def test_a_place_has_copies_of_one_lake_and_is_none(root: Path, to: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Lake.open(other).close()
    with pytest.raises(PlaceError, match="holds a copy of another lake"):
        copy_lake(other, place_of(str(to)))
    (tmp_path / "file").touch()
    for place, why in ((root, "is a lake"), (root / "copy", "is inside the lake"), (tmp_path / "file", "is a file")):
        with pytest.raises(PlaceError, match=why):
            copy_lake(root, place_of(str(place)))
    (to / "copy.json").write_text("[]")
    with pytest.raises(PlaceError, match=r"copy\.json is no copy's"):
        copy_lake(root, place_of(str(to)))


def test_an_older_snapshot_takes_no_newer_ones_place(root: Path, to: Path, tmp_path: Path) -> None:
    """As of a lake restored from a backup: said to be there already, it was never copied."""
    older = shutil.copytree(root, tmp_path / "older")
    with Lake.open(root) as lake:
        publish_plan(lake, plan(instances=4, cost_usd_per_h=32.0), run("r4"))
    newer = copy_lake(root, place_of(str(to)))
    before = set(to.rglob("*"))
    with pytest.raises(PlaceError, match=f"holds snapshot {newer.snapshot}, and the newest of the lake is"):
        copy_lake(older, place_of(str(to)))
    assert set(to.rglob("*")) == before
    check_equal(root, to)


def test_a_folder_that_cannot_be_made_is_said_to_be_that(root: Path) -> None:
    with pytest.raises(PlaceError, match=r"/proc/x/tables/\w+ cannot be made"):
        copy_lake(root, place_of("/proc/x"))


def test_one_copies_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_LOCK_TIMEOUT_S", "0")
    new_lake(tmp_path / "lake").close()
    with copy_lock(tmp_path / "lake"), pytest.raises(LakeError, match="is being copied by process"):
        copy_lake(tmp_path / "lake", place_of(str(tmp_path / "to")))
    assert not (tmp_path / "to").exists()


def test_a_file_that_goes_meanwhile_ends_the_copy_with_a_line(root: Path, tmp_path: Path) -> None:
    def remove() -> None:
        for path in (root / "shards").rglob("*.parquet"):
            path.unlink(missing_ok=True)

    with pytest.raises(LakeError, match="deleted while it was copied"):
        copy_lake(root, place_of(str(tmp_path / "other")), go_on=remove)
    assert not (tmp_path / "other/copy.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host/x",
        "s3://",
        "s3:///x",
        "s3://bad bucket/x",
        "gs://_/x",
        "http://127.0.0.1/x",
        "file://elsewhere/x",
        "file//bucket/x",
        "https//host/x",
        "ftp:/bucket\n/x",
        "~nobody-has-this-name/x",
    ],
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(PlaceError) as caught:
        place_of(text)
    assert "To fix: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or the name of a folder" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("s3//bucket/x", "s3://bucket/x"),
        ("S3:bucket/x", "s3://bucket/x"),
        ("gs:/bucket", "gs://bucket"),
        ("gs;//bucket/x", "gs://bucket/x"),
    ],
)
def test_a_mistyped_address_is_no_folder(text: str, meant: str) -> None:
    with pytest.raises(PlaceError, match=rf"is no address.* To fix: did you mean {meant}\?"):
        place_of(text)


@pytest.mark.parametrize("text", ["s3/bucket", "./s3//bucket", "gsx", "files//x"])
def test_a_folder_may_be_called_nearly_so(text: str) -> None:
    assert isinstance(place_of(text), FolderPlace)


@pytest.mark.parametrize(
    "text",
    ["s3//hidden@bucket/x", "s3://AKIA:hidden@bucket/x", "s3://bucket/x?secret_key=hidden", "gs://hidden@b/x#hidden"],
)
def test_an_address_with_a_secret_is_refused_unseen(text: str) -> None:
    with pytest.raises(CoralError) as caught:
        place_of(text)
    assert "hidden" not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (
            "s3://bucket/x",
            "When getting information for bucket 'bucket': AWS Error ACCESS_DENIED during HeadBucket operation: No body.",
            "s3://bucket/x refuses us, without credentials in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE)",
        ),
        (
            "gs://bucket/x",
            "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of Could not create a OAuth2 access "
            "token to authenticate the request. The underlying error message was: CURL error [6]=Could not resolve hostname)",
            "gs://bucket/x refuses us, without credentials in the environment (GOOGLE_APPLICATION_CREDENTIALS)",
        ),
        (
            "s3://bucket/x",
            "When initiating multiple part upload for key 'x': AWS Error NO_SUCH_BUCKET during PutObject operation",
            "there is no bucket bucket",
        ),
        (
            "s3://bucket/x",
            "When reading: AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached",
            "s3://bucket is not reached at AWS",
        ),
        (
            "s3://bucket/x",
            "AWS Error UNKNOWN (HTTP status 500): a\nb.",
            "s3://bucket/x: AWS Error UNKNOWN (HTTP status 500): a b",
        ),
    ],
)
def test_what_a_store_says_is_told_in_a_line(text: str, said: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)

    class Store:
        def open_input_file(self, name: str) -> None:
            raise OSError(said)

    place = place_of(text)
    place.__dict__["_store"] = Store()
    with pytest.raises(PlaceError) as caught:
        place.read("copy.json")
    assert str(caught.value).partition(". To fix: ")[0] == line


def test_a_folder_is_named_as_people_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("~/a b", f"{tmp_path}/x/../a b", f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        place = place_of(text)
        assert isinstance(place, FolderPlace)
        assert place.folder == tmp_path / "a b"
