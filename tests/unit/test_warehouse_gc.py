"""What `coral gc` deletes, and what it must not."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from warehouse_cases import PHI, QWEN, land_frontier, land_profile, new_lake, register, run, template_id, templates
from warehouse_cases import plan as example_plan

from tasks.allocation.watch import Alarm, AlarmKind
from warehouse.alerts import list_alerts, update_alerts
from warehouse.connect import Lake
from warehouse.gc import collect_garbage, find_garbage
from warehouse.keys import known_profile
from warehouse.land import find_shard, read_landed, verify, write_shard
from warehouse.plan_states import mark_running
from warehouse.plans import log_run, publish_plan
from warehouse.publish import register_library
from warehouse.read import list_plans
from warehouse.records import LandedShard, RunLog, RunOutcome, ShardKind, utc_now
from warehouse.results import FRAMES, plan_result_id, write_result
from warehouse.rows import insert
from warehouse.sql import query

LATER = timedelta(days=40)
COMBINATION = "L40Sx4*1"


def shard(root: Path, name: str) -> LandedShard:
    return write_shard(root, templates(name, QWEN, {COMBINATION: 5_000, "H100-SXMx1*1": 6_000}), name)


def three_libraries(root: Path) -> Lake:
    """`old`, then `mid`, then `new` are current for one key. All share shard `common`; each has one of its own."""
    lake = new_lake(root)
    for name in ("old", "mid", "new"):
        register(lake, name, [shard(root, "common"), shard(root, name)])
    return lake


def shards_on_disk(root: Path) -> set[str]:
    return {path.name.rsplit("-", 1)[0] for path in (root / "shards/solved_templates").glob("*.parquet")}


def libraries(lake: Lake) -> set[str]:
    return {name for (name,) in lake.connection.execute("SELECT library_id FROM libraries").fetchall()}


def test_only_the_current_library_stays_when_nothing_uses_the_others(tmp_path: Path) -> None:
    with three_libraries(tmp_path) as lake:
        found = find_garbage(lake, 30, utc_now() + LATER)
        assert found.libraries == ("mid", "old")
        assert found.kept_libraries == ("new",)
        assert {Path(name).name.rsplit("-", 1)[0] for name in found.files} == {"mid", "old"}
        assert found.bytes == sum((tmp_path / name).stat().st_size for name in found.files) > 0
        assert shards_on_disk(tmp_path) == {"common", "old", "mid", "new"}, "finding changes nothing"
        assert libraries(lake) == {"old", "mid", "new"}
        assert collect_garbage(lake, 30, utc_now() + LATER) == found
        assert shards_on_disk(tmp_path) == {"common", "new"}
        assert libraries(lake) == {"new"}
        assert find_garbage(lake, 0, utc_now() + LATER).libraries == ()
    rows = query(tmp_path, "SELECT library_id, count(*) AS n FROM templates GROUP BY 1").to_pylist()
    assert rows == [{"library_id": "new", "n": 4}]
    assert query(tmp_path, "SELECT count(*) AS n FROM profiles").to_pylist() == [{"n": 2}]


def test_within_the_days_everything_stays(tmp_path: Path) -> None:
    with three_libraries(tmp_path) as lake:
        assert collect_garbage(lake, 30).libraries == ()
        assert libraries(lake) == {"old", "mid", "new"}
    assert shards_on_disk(tmp_path) == {"common", "old", "mid", "new"}


def test_what_a_kept_plan_needs_stays_until_it_is_superseded_for_long(tmp_path: Path) -> None:
    """Version 1 is of `old` and runs a template of `mid`; version 2 (of `new`) supersedes it now."""
    runs = template_id("mid", COMBINATION)
    with three_libraries(tmp_path) as lake:
        first = example_plan()
        instance = first.instances[0].model_copy(update={"template_id": runs})
        inputs = first.inputs.model_copy(update={"library_id": "old"})
        publish_plan(lake, first.model_copy(update={"instances": (instance,), "inputs": inputs}), run("r1"))
        assert collect_garbage(lake, 30, utc_now() + LATER).libraries == ()
        assert shards_on_disk(tmp_path) == {"common", "old", "mid", "new"}
        second = example_plan(cost_usd_per_h=first.cost_usd_per_h + 1)
        inputs = second.inputs.model_copy(update={"library_id": "new"})
        moved = second.instances[0].model_copy(update={"instances": 7, "template_id": template_id("new", COMBINATION)})
        publish_plan(lake, second.model_copy(update={"instances": (moved,), "inputs": inputs}), run("r2"))
        assert find_garbage(lake, 30).libraries == ()
        assert collect_garbage(lake, 30, utc_now() + LATER).libraries == ("mid", "old")
        versions = lake.connection.execute("SELECT plan_version FROM plans ORDER BY 1").fetchall()
        assert versions == [(1,), (2,)], "plans themselves stay"


def test_loose_files_go_when_they_are_old(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        register(lake, "lib", [shard(tmp_path, "used")])
        known = land_profile(tmp_path, QWEN)
        shard(tmp_path, "unfinished")
        unused = land_profile(tmp_path, PHI)
        files = {
            "keys/needed": known.shard_id,
            "keys/stale": unused.shard_id,
            "shards/solved_templates/damaged/x.parquet.1": "",
            "prefect/slot-0/server.log": "",
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "keys/torn").write_bytes(b"\xff\xfe")
        torn = known_profile(tmp_path, "torn")
        assert torn is not None
        assert find_shard(tmp_path, torn, kind=ShardKind.PROFILES) is None  # computed again
        assert collect_garbage(lake, 1).files == (), "a build that runs now may be about to use them"
        for path in tmp_path.rglob("*"):
            if path.is_file():
                os.utime(path, (0, 0))
        gone = {Path(name).name.rsplit("-", 1)[0] for name in collect_garbage(lake, 1).files}
        assert gone == {"unfinished", unused.shard_id, "stale", "torn", "x.parquet.1", "server.log"}
        assert find_shard(tmp_path, "unfinished") is None
        assert (tmp_path / "keys/needed").exists()
        verify(lake.root, shard(tmp_path, "used"))


def test_a_file_that_is_registered_again_after_a_kill_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill comes after the transaction; a build then uses the file that was about to go."""
    import warehouse.gc as module

    with three_libraries(tmp_path) as lake:

        def killed(_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(module, "_spare_files_in_use", killed)
            with pytest.raises(KeyboardInterrupt):
                collect_garbage(lake, 30, utc_now() + LATER)
        assert "old" in shards_on_disk(tmp_path)
        register(lake, "again", [shard(tmp_path, "common"), shard(tmp_path, "old")], key="other")
        collect_garbage(lake, 30)
        assert "old" in shards_on_disk(tmp_path)
        assert read_landed(tmp_path, [shard(tmp_path, "old")]).num_rows == 2
    rows = query(tmp_path, "SELECT count(*) AS n FROM templates WHERE library_id = 'again'").to_pylist()
    assert rows == [{"n": 4}]


def test_frontiers_go_with_their_library(tmp_path: Path) -> None:
    from warehouse_cases import build_record, library_record

    with new_lake(tmp_path) as lake:
        profiles = [land_profile(tmp_path, QWEN)]
        for name in ("old", "new"):
            landed = shard(tmp_path, name)
            frontier = land_frontier(tmp_path, f"f-{name}".replace("-", "_"), QWEN, [template_id(name, COMBINATION)])
            library, build = library_record(name, profiles), build_record(name, name)
            register_library(lake, library, [landed], profiles, [frontier], build)
        collect_garbage(lake, 0, utc_now() + LATER)
        for table in ("frontier_slim", "frontier_configs"):
            rows = lake.connection.execute(f"SELECT DISTINCT frontier_id FROM main.{table}").fetchall()
            assert rows == [("f_new",)], table
        assert lake.connection.execute("SELECT DISTINCT library_id FROM template_frontier").fetchall() == [("new",)]
    assert [path.name.split("-")[0] for path in (tmp_path / "shards/frontier_rows").glob("*.parquet")] == ["f_new"]


def aged(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


def test_old_results_go_but_what_kept_plans_were_decided_on_stays(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        for n in (1, 2, 3):
            publish_plan(lake, example_plan(instances=n), run(f"r{n}"))
        mark_running(lake, "core", 1, is_whole=True, by="x")  # superseded, but the last one that was applied
        frames = {
            v: aged(write_result(tmp_path, plan_result_id(FRAMES, "core", v), {"v": v}, FRAMES)) for v in (1, 2, 3)
        }
        old = [aged(write_result(tmp_path, "0" * 16, {}, kind)) for kind in ("why", "headroom", "simulations")]
        new = write_result(tmp_path, "1" * 16, {}, "headroom")
        assert find_garbage(lake, 30).files == tuple(sorted(str(p.relative_to(tmp_path)) for p in old))
        collect_garbage(lake, 0, utc_now() + LATER)
        assert [v for v, path in frames.items() if path.exists()] == [1, 3]
        assert not any(path.exists() for path in (*old, new))
        assert [p.plan_version for p in list_plans(lake, "core")] == [3, 2, 1]


def test_old_log_rows_go_but_the_latest_of_their_kind_stay(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        publish_plan(lake, example_plan(), run("r1"))
        for n in range(2, 6):
            publish_plan(lake, example_plan(), run(f"r{n}"))
        log_run(lake, run("r6"), RunLog(RunOutcome.FAILED))
        update_alerts(lake, "core", [Alarm(AlarmKind.GAP, "", "a"), Alarm(AlarmKind.DRIFT, "", "b")], utc_now())
        update_alerts(lake, "core", [Alarm(AlarmKind.DRIFT, "", "b")], utc_now())
        common = {"scenario_id": "core", "region": "r", "node_config": "L4x1", "market": "on_demand", "template_id": ""}
        common |= {"nodes": 1, "failed_nodes": 0, "ingest_id": ""}
        with lake.write("observe") as connection:
            insert(connection, "fleet", [common | {"observed_at": utc_now() + timedelta(seconds=n)} for n in range(3)])
        assert find_garbage(lake, 30).rows == {}
        found = collect_garbage(lake, 30, utc_now() + LATER)
        assert found.rows == {"allocation_runs": 3, "alert_events": 2, "fleet": 2}
        left = lake.connection.execute("SELECT run_id FROM allocation_runs ORDER BY 1").fetchall()
        assert left == [("r1",), ("r5",), ("r6",)], "what made a version, what last confirmed it, and the last of all"
        assert [e.kind for e in list_alerts(lake)] == ["drift"]
        assert find_garbage(lake, 30, utc_now() + LATER).rows == {}


def test_what_the_fleet_runs_keeps_its_library(tmp_path: Path) -> None:
    with three_libraries(tmp_path) as lake:
        row = {"scenario_id": "core", "region": "r", "node_config": "L40Sx4", "market": "on_demand", "nodes": 1}
        row |= {
            "template_id": template_id("old", COMBINATION),
            "failed_nodes": 0,
            "ingest_id": "",
            "observed_at": utc_now(),
        }
        with lake.write("observe") as connection:
            insert(connection, "fleet", [row])
        assert collect_garbage(lake, 30, utc_now() + LATER).libraries == ("mid",)
