"""`coral doctor`: what is found, what is said to do, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from flows_cases import wait_until
from typer.testing import CliRunner
from warehouse_cases import new_lake, plan, run

from flows import doctor, doctor_installation, doctor_processes
from flows.cli import app
from flows.doctor import Check, Status, exit_code, lake_checks
from warehouse.connect import Lake
from warehouse.plan_states import approve_plan
from warehouse.plans import log_run, publish_plan
from warehouse.records import AllocationRun, RunLog, RunOutcome

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {f"{check.area}: {check.name}": check for check in checks}


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], 0),
        ([("disk", Status.WARNING), ("server", Status.NOTE)], 0),
        ([("feeds", Status.STALE), ("disk", Status.WARNING)], 5),
        ([("feeds", Status.STALE), ("server", Status.FAILED)], 2),
        ([("installation", Status.FAILED), ("lake", Status.FAILED)], 6),
    ],
)
def test_the_exit_code_is_of_the_gravest(states: list[tuple[str, Status]], code: int) -> None:
    assert exit_code([Check(area, "x", status, "y") for area, status in states]) == code


def test_without_a_lake_it_says_how_one_comes_about(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--lake", str(tmp_path / "none"), "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == document["exit_code"]
    found = {(check["area"], check["name"]): check for check in document["checks"]}
    assert found["lake", "lake"]["status"] == "note"
    assert found["lake", "lake"]["remedy"] == "`coral plan` makes one"
    assert found["installation", "python"]["status"] == "ok"
    assert found["installation", "duckdb"]["status"] == "ok"
    assert not (tmp_path / "none").exists()
    text = CliRunner().invoke(app, ["doctor", "--lake", str(tmp_path / "none")]).stdout
    assert "-> `coral plan` makes one" in text


def test_a_lake_of_another_schema_is_the_lakes_own_exit_code(tmp_path: Path) -> None:
    new_lake(tmp_path).close()
    (tmp_path / "lake.json").write_text('{"schema_version": 999}')
    done = CliRunner().invoke(app, ["doctor", "--lake", str(tmp_path)])
    assert done.exit_code == 6
    assert "has schema version 999" in done.stdout


def test_leftovers_and_runs_of_a_lake_are_told(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        log_run(lake, AllocationRun("r1", "core", NOW - timedelta(hours=2)), RunLog(RunOutcome.UNCHANGED, 1))
        log_run(
            lake,
            AllocationRun("r2", "core", NOW - timedelta(hours=1), note="the disk is full"),
            RunLog(RunOutcome.FAILED, 1),
        )
        log_run(lake, AllocationRun("r3", "other", NOW), RunLog(RunOutcome.HELD_UNKNOWN_DEMAND, 1))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "shards" / "solved_templates").mkdir(parents=True)
    left = tmp_path / "shards" / "solved_templates" / f".s1@{os.uname().nodename}@{ended.pid}@1.tmp"
    left.touch()
    found = by_name(list(lake_checks(tmp_path, NOW, {})))
    assert found["lake: lake"].status is Status.OK
    assert found["lake: leftovers"].status is Status.WARNING
    assert left.name in found["lake: leftovers"].found
    assert found["runs: allocation of core"].status is Status.WARNING
    assert "the disk is full" in found["runs: allocation of core"].found
    assert found["runs: allocation of other"].status is Status.STALE
    assert left.exists()  # nothing is changed


def test_a_proposal_that_was_decided_on_waits_no_more(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        publish_plan(lake, plan(), run("r1"))
        later = replace(run("r2", base=1), started_at=NOW)
        publish_plan(lake, plan(instances=4), later, guards=("cost rises",))
    waits = by_name(list(lake_checks(tmp_path, NOW, {})))["runs: allocation of core"]
    assert waits.status is Status.STALE
    assert "`coral plans approve 2 --scenario core`" in waits.remedy
    with Lake.open(tmp_path) as lake:
        approve_plan(lake, "core", 2, by="ann")
    decided = by_name(list(lake_checks(tmp_path, NOW, {})))["runs: allocation of core"]
    assert (decided.status, decided.remedy) == (Status.OK, "")


@pytest.mark.parametrize(
    ("kind", "age", "status"),
    [
        ("demand", timedelta(minutes=179), Status.OK),  # the schema's default is 180 minutes
        ("demand", timedelta(minutes=181), Status.STALE),
        ("prices", timedelta(hours=47), Status.OK),
        ("prices", timedelta(hours=49), Status.STALE),
        ("fleet", timedelta(minutes=121), Status.STALE),
        ("fleet", -timedelta(minutes=4), Status.OK),  # another machine's clock
        ("fleet", -timedelta(minutes=6), Status.WARNING),  # this machine's clock was set back
        ("demand", -timedelta(hours=6), Status.OK),  # what is expected
    ],
)
def test_a_feed_is_stale_when_older_than_its_scenario_allows(
    kind: str, age: timedelta, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warehouse import health

    monkeypatch.setattr(health, "feed_ages", lambda _: [health.FeedAge("mine", kind, NOW - age)])
    [check] = list(doctor._feeds(SimpleNamespace(), NOW, {}))
    assert (check.name, check.status) == (f"{kind} of mine", status)
    assert ("from now" in check.found, "-" in check.found) == (age < timedelta(), False)


def test_other_versions_than_tested_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import version

    pins = tmp_path / "constraints.txt"
    monkeypatch.setattr(doctor_installation, "pins_file", lambda: pins)
    pins.write_text(f"numpy=={version('numpy')}\nno-such-package==1\n")
    assert doctor_installation._packages().status is Status.OK
    pins.write_text("numpy==0.1\n")
    check = doctor_installation._packages()
    assert (check.status, check.found) == (
        Status.WARNING,
        f"other versions than tested: numpy {version('numpy')} (tested: 0.1)",
    )
    pins.unlink()
    assert doctor_installation._packages().status is Status.NOTE


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((100 << 20, Status.FAILED), (1 << 30, Status.WARNING), (3 << 30, Status.OK)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert doctor._room(tmp_path).status is status


def test_a_server_that_does_not_answer_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    found = by_name(list(doctor_processes.server_checks(tmp_path)))
    assert found["server: prefect"].status is Status.FAILED
    assert "unset PREFECT_API_URL" in found["server: prefect"].remedy


def test_a_child_whose_command_has_ended_is_a_leftover() -> None:
    """The words a child of ours is started with; the parent named there has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", "flows.tied", str(ended.pid), "prefect"]
    child = subprocess.Popen(sleeper)
    ours = subprocess.Popen([*sleeper[:4], str(os.getpid()), "prefect"])
    try:
        assert wait_until(lambda: child.pid in [process.pid for process, _ in doctor_processes.leftovers()], 10)
        [check] = list(doctor_processes.process_checks())
        assert f"{child.pid} (flows.tied {ended.pid} prefect)" in check.found
        assert f"{ours.pid} (" not in check.found
        assert "kill " in check.remedy
    finally:
        for process in (child, ours):
            process.kill()
            process.wait()


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_damaged_file_of_the_catalogs_own_tables_is_told_with_a_way_out(tmp_path: Path, damage: str) -> None:
    new_lake(tmp_path).close()
    [own] = (tmp_path / "main" / "data_dictionary").glob("*.parquet")
    if damage == "gone":
        own.unlink()
    else:
        own.write_bytes(own.read_bytes()[:-20])
    check = by_name(list(lake_checks(tmp_path, NOW, {})))["lake: files"]
    assert check.status is Status.FAILED
    assert f"1 file of the lake's own tables missing or damaged: main/data_dictionary/{own.name}" in check.found
    assert "restore the folder from a backup" in check.remedy
    assert "coral build" not in check.remedy  # which would find the library there, and leave the file
