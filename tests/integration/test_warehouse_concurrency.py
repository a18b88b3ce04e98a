"""Several processes on one lake: nothing lost, nothing half seen, and kill -9 harms nobody but its victim."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warehouse_cases import QWEN, new_lake, plan, register, run, templates

from warehouse.connect import Lake
from warehouse.land import find_shard, remove_temporaries, write_shard
from warehouse.plans import publish_plan
from warehouse.read import current_library_id, list_plans

pytestmark = pytest.mark.integration
TESTS = Path(__file__).parents[1]

WRITER = """
import sys
from warehouse_cases import *
from warehouse.plans import publish_plan
root, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Lake.open(root) as lake:
    for i in range(count):
        rates = {f"L40Sx4*{n}": 1_000 * n for n in range(1, 2 + i % 4)}
        shards = [write_shard(root, templates(f"{name}{i}{s}", QWEN, rates), f"{name}{i}{s}") for s in "ab"]
        register(lake, f"lib-{name}-{i}", shards)
        publish_plan(lake, plan(instances=1000 * ord(name) + i + 1), run(f"{name}{i}"))
        print(i, flush=True)
"""

# One statement sees one snapshot: what a library promises, what is there, and plans without all their parts.
WHOLE = """
SELECT
    (SELECT count(*) FROM library_rows) AS libraries,
    (SELECT count(*) FROM plan_rows) AS plans,
    (SELECT coalesce(sum(rows), 0)::BIGINT FROM shards) AS promised,
    (SELECT count(*) FROM templates) AS found,
    (SELECT count(*) FROM shards.solved_templates) AS stored,
    (SELECT count(*) FROM library_rows l WHERE library_id NOT IN (SELECT library_id FROM builds)) AS without_build,
    (SELECT count(*) FROM library_rows ANTI JOIN shards USING (library_id)) AS without_shards,
    (SELECT count(*) FROM plan_rows ANTI JOIN plan_documents USING (scenario_id, plan_version)) AS without_document,
    (SELECT count(*) FROM plan_rows ANTI JOIN plan_instances USING (scenario_id, plan_version)) AS without_instances,
    (SELECT count(*) FROM plans WHERE state = 'published') AS published
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def look(lake: Lake) -> dict[str, int]:
    cursor = lake.connection.execute(WHOLE)
    return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))


def assert_whole(seen: dict[str, int]) -> None:
    assert seen["promised"] == seen["found"] == seen["stored"], seen
    assert {name: n for name, n in seen.items() if name.startswith("without") and n} == {}
    assert seen["published"] == min(seen["plans"], 1), seen


def test_two_writers_and_a_reader_lose_nothing(tmp_path: Path) -> None:
    each = 8
    new_lake(tmp_path).close()
    writers = [start(WRITER, tmp_path, name, each) for name in "AB"]
    looks = []
    try:
        while any(w.poll() is None for w in writers):
            with Lake.open(tmp_path, read_only=True) as reader:
                for _ in range(5):
                    looks.append(look(reader))
                    time.sleep(0.05)
    finally:
        ended = [w.communicate(timeout=120) for w in writers]
    assert [w.returncode for w in writers] == [0, 0], [e for _, e in ended]
    for seen in looks:
        assert_whole(seen)
    assert len({seen["libraries"] for seen in looks}) > 2  # it did look while they wrote
    assert [s["libraries"] for s in looks] == sorted(s["libraries"] for s in looks)
    with Lake.open(tmp_path, read_only=True) as lake:
        last = look(lake)
        assert_whole(last)
        assert (last["libraries"], last["plans"]) == (2 * each, 2 * each)
        # Per writer: sizes 1, 2, 3, 4, 1, 2, 3, 4 in two shards each.
        assert last["found"] == 2 * 2 * (1 + 2 + 3 + 4) * 2
        assert [p.plan_version for p in list_plans(lake, "core")] == list(range(2 * each, 0, -1))
        runs = lake.connection.execute("SELECT count(*), count(DISTINCT plan_version) FROM allocation_runs").fetchone()
        assert runs == (2 * each, 2 * each)


def test_a_reader_sees_the_old_library_or_the_new(tmp_path: Path) -> None:
    """Libraries of 1 and of 40 templates become current in turns; no other count is ever seen."""
    code = """
import sys
from warehouse_cases import *
root = Path(sys.argv[1])
with Lake.open(root) as lake:
    for i in range(500):
        if i > 5 and Path(sys.argv[2]).exists():
            break
        rates = {f"L40Sx4*{n}": 1_000 + n for n in range(1, 41 if i % 2 else 2)}
        register(lake, f"lib{i}", [write_shard(root, templates(f"s{i}", QWEN, rates), f"s{i}")])
"""
    sql = """
        SELECT c.library_id, count(t.template_id)
        FROM (FROM current_libraries QUALIFY sequence = max(sequence) OVER (PARTITION BY library_key)) c
        LEFT JOIN templates t ON t.library_id = c.library_id GROUP BY 1"""
    new_lake(tmp_path).close()
    enough = tmp_path / "enough"  # the writer goes on until then: however slow the reader, it sees libraries change
    writer = start(code, tmp_path, enough)
    seen = set()
    with Lake.open(tmp_path, read_only=True) as reader:
        while writer.poll() is None:
            seen.update(reader.connection.execute(sql).fetchall())
            if len(seen) > 3:
                enough.touch()
    _, errors = writer.communicate()
    assert writer.returncode == 0, errors
    assert len(seen) > 3
    assert seen <= {(library, 40 if int(library.removeprefix("lib")) % 2 else 1) for library, _ in seen}


def test_kill_9_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    code = """
import sys, time
from warehouse_cases import *
from warehouse import publish
root = Path(sys.argv[1])
shard = write_shard(root, templates("s2", QWEN, {"L40Sx4*2": 3}), "s2")
def hang(*_):
    print("in the middle", flush=True)
    time.sleep(600)
publish._record_build = hang
with Lake.open(root) as lake:
    register(lake, "lib2", [shard])
"""
    with new_lake(tmp_path) as lake:
        register(lake, "lib1", [write_shard(tmp_path, templates("s1", QWEN, {"L40Sx4*1": 5}), "s1")])
        publish_plan(lake, plan(), run("r1"))
    victim = start(code, tmp_path)
    try:
        assert victim.stdout.readline() == "in the middle\n"
        with Lake.open(tmp_path, read_only=True) as reader:  # readers do not wait for the writer
            assert current_library_id(reader, "core") == "lib1"
            assert_whole(look(reader))
    finally:
        victim.kill()
        victim.communicate()
    with Lake.open(tmp_path, read_only=True) as reader:
        assert current_library_id(reader, "core") == "lib1"
        assert_whole(look(reader))
    shard = find_shard(tmp_path, "s2")  # its work is kept, though not registered
    assert shard is not None
    with Lake.open(tmp_path) as lake:
        register(lake, "lib2", [shard])
        assert current_library_id(lake, "core") == "lib2"
        assert look(lake)["found"] == 2


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    """What the victim reported as done is there; what is there is whole; the next writer works."""
    moments = random.Random(5)
    new_lake(tmp_path).close()
    for round_, name in enumerate("ABCDE"):
        victim = start(WRITER, tmp_path, name, 1000)
        try:
            assert victim.stdout.readline() == "0\n"
            time.sleep(moments.uniform(0.0, 0.7))
        finally:
            victim.kill()
        out, _ = victim.communicate()
        done = 1 + len(out.splitlines())
        remove_temporaries(tmp_path)
        assert list(tmp_path.rglob("*.tmp")) == []
        with Lake.open(tmp_path) as lake:
            assert_whole(look(lake))
            kept = lake.connection.execute(f"SELECT count(*) FROM library_rows WHERE library_id LIKE 'lib-{name}-%'")
            assert done <= kept.fetchone()[0] <= done + 1
            register(
                lake,
                f"after-{name}",
                [write_shard(tmp_path, templates(f"z{round_}", QWEN, {"L40Sx4*1": 5}), f"z{round_}")],
            )
            assert_whole(look(lake))
            assert current_library_id(lake, "core") == f"after-{name}"


def test_two_processes_create_one_lake(tmp_path: Path) -> None:
    code = """
import sys
from warehouse_cases import *
from warehouse.plans import publish_plan
with Lake.open(sys.argv[1]) as lake:
    publish_plan(lake, plan(sys.argv[2]), run(sys.argv[2], sys.argv[2]))
"""
    both = [start(code, tmp_path / "lake", name) for name in "ab"]
    ended = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], [e for _, e in ended]
    with Lake.open(tmp_path / "lake", read_only=True) as lake:
        assert sorted((p.scenario_id, p.plan_version) for p in list_plans(lake)) == [("a", 1), ("b", 1)]
        listed = lake.connection.execute(
            "SELECT count(*), count(DISTINCT (table_name, column_name)) FROM data_dictionary"
        )
        total, distinct = listed.fetchone()
        assert total == distinct


def test_workers_that_write_the_same_shard_agree(tmp_path: Path) -> None:
    code = """
import sys
from warehouse_cases import *
rates = {f"L40Sx4*{n}": 1_000 + n for n in range(1, 60)}
for _ in range(20):
    print(write_shard(sys.argv[1], templates("s1", QWEN, rates), "s1").sha256)
"""
    both = [start(code, tmp_path) for _ in range(2)]
    hashes = {line for p in both for line in p.communicate(timeout=120)[0].split()}
    assert len(hashes) == 1
    found = find_shard(tmp_path, "s1")
    assert found is not None
    assert {found.sha256} == hashes
    files = [p.name for p in tmp_path.rglob("*") if p.is_file()]
    assert files == [Path(found.path).name]
