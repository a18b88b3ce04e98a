"""A lake whose catalog is in PostgreSQL: writers on several machines, the same flows, and a password that stays unsaid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import hook_cases
import pytest
from cli_runner import coral
from flows_cases import write_tiny_scenario
from hook_cases import Hook
from postgres_cases import CANARY, Postgres, postgres_server
from warehouse_cases import plan, run

from catalogs.errors import CoralError, LakeError
from warehouse.catalog_store import new_store
from warehouse.connect import Lake, new_connection
from warehouse.copies import copy_lake
from warehouse.gc import collect_garbage
from warehouse.lock import LockLostError, allocation_lock
from warehouse.places import place_of
from warehouse.plans import publish_plan
from warehouse.read import list_plans
from warehouse.sql import query

pytestmark = pytest.mark.integration
TESTS = Path(__file__).parents[1]
COMMITS = 20

WRITER = """
import sys
from warehouse_cases import *
from warehouse.plans import publish_plan
name, count = sys.argv[2], int(sys.argv[3])
with Lake.open(sys.argv[1]) as lake:
    for i in range(count):
        published = publish_plan(lake, plan(instances=1000 * ord(name) + i + 1), run(f"{name}{i}"))
        assert published.outcome == "published", published.outcome
"""
HOLDER = """
import sys, time
from pathlib import Path
from warehouse.lock import allocation_lock
with allocation_lock(Path(sys.argv[1]), "core", "run elsewhere"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    monkeypatch.setenv("CORAL_CATALOG", server.address)
    monkeypatch.setenv("PGPASSWORD", server.password)
    return server


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_writers_lose_nothing(postgres: Postgres, tmp_path: Path) -> None:
    Lake.open(tmp_path).close()
    assert not (tmp_path / "catalog.sqlite").exists()
    writers = [start(WRITER, tmp_path, name, COMMITS) for name in "AB"]
    ended = [writer.communicate(timeout=300) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], [error for _, error in ended]
    with Lake.open(tmp_path) as lake:
        assert [plan.plan_version for plan in list_plans(lake, "core")] == list(range(2 * COMMITS, 0, -1))
        counts = lake.connection.execute(
            """SELECT (SELECT count(DISTINCT run_id) FROM allocation_runs), (SELECT count(*) FROM plan_instances),
            (SELECT count(*) FROM plans WHERE state = 'published')"""
        ).fetchone()
        assert counts == (2 * COMMITS, 2 * COMMITS, 1)
        collect_garbage(lake, 0)
        assert len(list_plans(lake, "core")) == 2 * COMMITS
    assert query(tmp_path, "SELECT count(*) AS n FROM plan_documents").to_pylist() == [{"n": 2 * COMMITS}]
    with pytest.raises(CoralError, match="not for reading"):
        query(tmp_path, "SELECT * FROM __ducklake_metadata_lake.pg_catalog.pg_stat_activity")
    copied = copy_lake(tmp_path, place_of(str(tmp_path.with_name("copy"))))
    with duckdb.connect() as plain:  # a copy needs neither the catalog nor its password
        plain.execute((Path(copied.to) / "copy.sql").read_text())
        assert plain.execute("SELECT count(*), max(plan_version) FROM plans").fetchall() == [(2 * COMMITS, 2 * COMMITS)]
    assert not any(CANARY.encode() in path.read_bytes() for path in Path(copied.to).rglob("*.*"))


def test_an_allocation_excludes_others_until_its_process_is_killed(postgres: Postgres, tmp_path: Path) -> None:
    Lake.open(tmp_path).close()
    holder = start(HOLDER, tmp_path)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with (
            pytest.raises(
                LakeError, match=rf"core is being allocated by process {holder.pid} on \S+ \(run elsewhere\)"
            ),
            allocation_lock(tmp_path, "core", "here", 0.2),
        ):
            pytest.fail("two at once")
        with allocation_lock(tmp_path, "other", "here", 0.2):
            pass
    finally:
        holder.kill()
        holder.wait()
    with allocation_lock(tmp_path, "core", "here", 30):
        pass


def test_a_run_whose_lock_ends_with_its_connection_publishes_nothing(postgres: Postgres, tmp_path: Path) -> None:
    with Lake.open(tmp_path) as lake, allocation_lock(tmp_path, "core", "run r1") as still_held:
        still_held()
        assert publish_plan(lake, plan(), run("r1"), still_held=still_held).plan_version == 1
        cut(postgres, "run r1")
        with pytest.raises(LockLostError, match=r"run r1: the lock was lost meanwhile .* nothing is written"):
            publish_plan(lake, plan(instances=3), run("r2"), still_held=still_held)
        with allocation_lock(tmp_path, "core", "run r3", 0.2), pytest.raises(LockLostError):
            still_held()  # another has the lock now: it is not ours again
        with pytest.raises(LockLostError):
            delete_runs(lake, postgres)
        assert [row.plan_version for row in list_plans(lake, "core")] == [1]
        assert lake.connection.execute("SELECT run_id FROM allocation_runs").fetchall() == [("r1",)]


def delete_runs(lake: Lake, postgres: Postgres) -> None:
    """A transaction whose write lock ends before it commits."""
    with lake.write("a note") as connection:
        connection.execute("DELETE FROM main.allocation_runs")
        cut(postgres, "a note")


def cut(postgres: Postgres, holder: str) -> None:
    """End the connection that holds a lock, as a restart of the server does."""
    connection = new_connection(new_store())
    connection.execute(f"ATTACH '{postgres.address.removeprefix('postgres:')}' AS pg (TYPE postgres)")
    sql = (
        f"SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE application_name LIKE '%({holder})'"
    )
    row = connection.execute("FROM postgres_query('pg', ?)", [sql]).fetchone()
    connection.close()
    assert row == (1,)


def test_a_catalog_that_is_not_to_be_had_is_one_line_without_the_password(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Lake.open(tmp_path).close()
    monkeypatch.setenv("PGPASSWORD", "wrong-" + CANARY)
    with pytest.raises(LakeError, match=r"cannot be reached .*password authentication failed") as refused:
        Lake.open(tmp_path)
    monkeypatch.setenv("PGPASSWORD", CANARY)
    monkeypatch.setenv("CORAL_CATALOG", postgres.address.replace("dbname=postgres", "dbname=template1"))
    # A database without this lake gets no empty one.
    with pytest.raises(LakeError, match="is not in the database that CORAL_CATALOG names") as elsewhere:
        Lake.open(tmp_path)
    monkeypatch.delenv("CORAL_CATALOG")
    with pytest.raises(LakeError, match="CORAL_CATALOG does not say where") as unset:
        Lake.open(tmp_path)
    for error in (refused, elsewhere, unset):
        assert "\n" not in str(error.value)
        assert CANARY not in str(error.value)


def test_the_flow_plans_on_a_dask_scheduler_and_leaves_the_password_nowhere(
    postgres: Postgres,
    tmp_path: Path,
    api_url: str,
    server_lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import distributed
    from prefect.blocks.system import Secret

    from flows.allocate_flow import allocate_flow

    Secret(value=CANARY).save("coral-catalog", overwrite=True)
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSWORD_BLOCK", "coral-catalog")
    monkeypatch.setenv("CORAL_WEBHOOK_URL_BLOCK", "coral-webhook")
    # More than can be had, so that an alert fires.
    scenario, lake = write_tiny_scenario(tmp_path, req_per_s=50_000), tmp_path / "lake"
    with (
        Hook() as hook,
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
    ):
        Secret(value=hook.url).save("coral-webhook", overwrite=True)
        state = allocate_flow(
            scenario=str(scenario), lake=str(lake), dask_address=cluster.scheduler_address, return_state=True
        )
    assert {(told["kind"], told["event"]) for told in hook.got} == {("shortfall", "fired")}
    assert (state.name, os.environ["PGPASSWORD"]) == ("Published", CANARY), state.message
    asked = (("plans", "list"), ("plans", "show", "-s", scenario), ("alerts", "list", "--history"))
    told = [coral(*words, "--lake", lake, "--json", cwd=tmp_path) for words in asked]
    assert [done.returncode for done in told] == [0, 0, 0]
    with Lake.open(lake, read_only=True) as opened:
        assert [plan.plan_version for plan in list_plans(opened, "tiny")] == [1]
    said = "".join(done.stdout + done.stderr for done in told) + "".join(capfd.readouterr())
    for canary in (CANARY, hook_cases.CANARY):
        assert canary not in said
    written = [path for folder in (tmp_path, server_lake) for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 10
    for canary in (CANARY, hook_cases.CANARY):  # the lake, Prefect's database with its logs and artifacts, its files
        assert [path for path in written if canary.encode() in path.read_bytes()] == []
