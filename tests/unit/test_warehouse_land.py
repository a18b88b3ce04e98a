"""Landed files: complete or absent, equal bytes for equal rows, damage noticed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warehouse_cases import PHI, QWEN, land_frontier, profile, templates

from catalogs.errors import LakeError
from tasks.templates.schema import TEMPLATE_SCHEMA
from warehouse.land import (
    content_hash,
    file_sha256,
    find_shard,
    read_profiles,
    remove_temporaries,
    verify,
    with_launch_rows,
    write_shard,
)
from warehouse.records import ShardKind

RATES = {"L40Sx4*1": 5, "H100-SXMx1*1+L40Sx4*2": 7}


def test_a_shard_lands_whole_under_its_hash(tmp_path: Path) -> None:
    shard = write_shard(tmp_path, templates("s1", QWEN, RATES), "s1")
    file = tmp_path / shard.path
    assert shard.path == f"shards/solved_templates/s1-{shard.sha256[:16]}.parquet"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == shard.sha256
    assert (shard.rows, shard.workload_id) == (2, QWEN)
    assert pq.read_table(file).to_pylist() == templates("s1", QWEN, RATES).to_pylist()
    assert find_shard(tmp_path, "s1") == shard
    assert list(tmp_path.rglob("*.tmp")) == []


def test_equal_rows_give_equal_bytes_however_they_are_chunked_or_ordered_by_column(tmp_path: Path) -> None:
    table = templates("s1", QWEN, RATES)
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    shuffled = chunked.select(TEMPLATE_SCHEMA.names[::-1])
    noted = table.replace_schema_metadata({"pandas": "x"})
    hashes = {write_shard(tmp_path / str(i), t, "s1").sha256 for i, t in enumerate((table, chunked, shuffled, noted))}
    assert len(hashes) == 1


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys; from warehouse_cases import *\n"
        f"print(write_shard(sys.argv[1], templates('s1', QWEN, {RATES!r}), 's1').sha256)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "7"}
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "other")], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == write_shard(tmp_path / "here", templates("s1", QWEN, RATES), "s1").sha256


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "other content"])
def test_a_damaged_file_counts_as_absent_and_is_set_aside(tmp_path: Path, damage: str) -> None:
    shard = write_shard(tmp_path, templates("s1", QWEN, RATES), "s1")
    file = tmp_path / shard.path
    data = bytearray(file.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 3] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:
        other = write_shard(tmp_path, templates("s2", QWEN, RATES), "s2")
        data = bytearray((tmp_path / other.path).read_bytes())
    file.write_bytes(data)
    with pytest.raises(LakeError, match="damaged"):
        verify(tmp_path, shard)
    assert find_shard(tmp_path, "s1") is None
    assert not file.exists()
    assert [p.read_bytes() for p in (tmp_path / "shards/solved_templates/damaged").iterdir()] == [bytes(data)]
    assert write_shard(tmp_path, templates("s1", QWEN, RATES), "s1") == shard
    verify(tmp_path, shard)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    shard = write_shard(tmp_path, templates("s1", QWEN, RATES), "s1")
    (tmp_path / shard.path).unlink()
    assert find_shard(tmp_path, "s1") is None
    with pytest.raises(LakeError, match="missing"):
        verify(tmp_path, shard)


def test_an_id_that_begins_another_is_not_mistaken_for_it(tmp_path: Path) -> None:
    write_shard(tmp_path, templates("s11", QWEN, RATES), "s11")
    assert find_shard(tmp_path, "s1") is None
    assert len(list((tmp_path / "shards/solved_templates").glob("s11-*"))) == 1


def test_temporaries_of_dead_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    import socket

    folder = tmp_path / "shards/solved_templates"
    folder.mkdir(parents=True)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    dead = folder / f"s1@{socket.gethostname()}@{child.pid}@1.tmp"
    alive = folder / f"s1@{socket.gethostname()}@{os.getpid()}@1.tmp"
    elsewhere = folder / "s1@some-other-host@1@1.tmp"
    old = folder / "s1@some-other-host@1@2.tmp"
    for path in (dead, alive, elsewhere, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert remove_temporaries(tmp_path) == sorted([dead.name, old.name])
    assert sorted(p.name for p in folder.iterdir()) == sorted([alive.name, elsewhere.name])


def test_an_empty_shard_needs_its_workload(tmp_path: Path) -> None:
    empty = templates("s1", QWEN, {})
    with pytest.raises(ValueError, match="workload"):
        write_shard(tmp_path, empty, "s1")
    shard = write_shard(tmp_path, empty, "s1", workload_id=QWEN)
    assert (shard.rows, shard.workload_id) == (0, QWEN)
    assert find_shard(tmp_path, "s1") == shard


def test_tables_of_another_form_are_refused(tmp_path: Path) -> None:
    table = templates("s1", QWEN, RATES)
    wrong_type = table.set_column(4, "n_nodes", table["n_nodes"].cast(pa.int64()))
    with pytest.raises(ValueError, match="n_nodes is int64, must be int16"):
        write_shard(tmp_path, wrong_type, "s1")
    with pytest.raises(ValueError, match="rel_error"):
        write_shard(tmp_path, table.drop_columns("rel_error"), "s1")
    blank = table.set_column(1, "template_id", pa.array([None, "x"], pa.string()))
    with pytest.raises(ValueError, match="template_id has blanks"):
        write_shard(tmp_path, blank, "s1")
    two = pa.concat_tables([table, templates("s1", PHI, RATES)])
    with pytest.raises(ValueError, match="one workload_id"):
        write_shard(tmp_path, two, "s1")
    with pytest.raises(ValueError, match="expected"):
        write_shard(tmp_path, table, "s1", workload_id=PHI)
    with pytest.raises(ValueError, match="not a shard id"):
        write_shard(tmp_path, table, "../s1")
    assert list(tmp_path.rglob("*.parquet")) == []


def test_profiles_get_their_id_and_frontiers_keep_their_filter(tmp_path: Path) -> None:
    table = profile(QWEN)
    landed = write_shard(tmp_path, table, content_hash(table), kind=ShardKind.PROFILES)
    stored = pq.read_table(tmp_path / landed.path)
    assert stored["profile_id"].to_pylist() == [content_hash(table)] * 2
    assert stored["launch_tp"].to_pylist() == [0] * 2
    assert stored.drop_columns(["profile_id", "launch_tp"]).to_pylist() == table.to_pylist()
    frontier = land_frontier(tmp_path, "f1", QWEN, ["t1"])
    assert (frontier.filter_id, frontier.workload_id) == ("all", QWEN)
    assert find_shard(tmp_path, "f1", kind=ShardKind.FRONTIER) == frontier
    assert find_shard(tmp_path, "f1") is None


def test_launchable_layouts_lie_beside_the_best_ones(tmp_path: Path) -> None:
    best = profile(QWEN)
    rows = best.slice(0, 1)
    launch = rows.set_column(rows.schema.get_field_index("tp"), rows.schema.field("tp"), pa.array([2], pa.int8()))
    both = with_launch_rows(best, launch)
    landed = write_shard(tmp_path, both, content_hash(both), kind=ShardKind.PROFILES)
    assert landed.rows == 3
    assert read_profiles(tmp_path, [landed]) == (best, launch)


def test_workers_need_no_duckdb(tmp_path: Path) -> None:
    code = "import sys, warehouse.land; print('duckdb' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert out.stdout.strip() == "False"


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the same call fails, with EFBIG instead of ENOSPC."""
    code = """
import resource, signal, sys
from warehouse_cases import *
from catalogs.errors import LakeError
table = templates("s1", QWEN, {"L40Sx4*1": 5})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_shard(sys.argv[1], table, "s1")
except LakeError as error:
    print(error.exit_code, error)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("6 the disk is full")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


COLUMN = st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), min_size=1, max_size=20)


@settings(max_examples=50, deadline=None)
@given(numbers=COLUMN, cut=st.integers(0, 20))
def test_content_hash_sees_values_not_chunks(numbers: list[float | None], cut: int) -> None:
    texts = [None if x is None else str(x) for x in numbers]
    table = pa.table({"a": pa.array(numbers, pa.float64()), "b": pa.array(texts, pa.string())})
    again = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    padded = pa.concat_tables([table, table]).slice(len(numbers))
    assert content_hash(table) == content_hash(again) == content_hash(padded)
    first = 1.0 if numbers[0] is None else None
    changed = table.set_column(0, "a", pa.array([first, *numbers[1:]], pa.float64()))
    assert content_hash(changed) != content_hash(table)


def test_content_hash_tells_blank_from_zero_and_where_a_text_ends() -> None:
    def of(values: list[str | None]) -> str:
        return content_hash(pa.table({"a": pa.array(values, pa.string())}))

    assert len({of(["ab", "c"]), of(["a", "bc"]), of(["abc", ""]), of(["abc", None])}) == 4
    zero, blank = pa.table({"a": pa.array([0], pa.int8())}), pa.table({"a": pa.array([None], pa.int8())})
    assert content_hash(zero) != content_hash(blank)


def test_file_hash_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    # FIPS 180-2, example B.1
    assert file_sha256(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
