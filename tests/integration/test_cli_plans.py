"""``coral plans`` and ``coral sql`` on a lake that holds two published plans of a hand-written scenario."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pyarrow.parquet as pq
import pytest

from catalogs.errors import LakeError
from warehouse.connect import Lake
from warehouse.lock import write_lock
from warehouse.plans import publish_plan
from warehouse.records import AllocationRun

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from cli_plan_example import QWEN_DECODE, QWEN_PREFILL, example_plan
from cli_runner import coral

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder whose ./.coral holds versions 1 and 2 of `example`: one prefill instance more in the second."""
    root = tmp_path_factory.mktemp("lake")
    plans = (
        example_plan(),
        example_plan(
            cost_usd_per_h=72.5, reason="demand rose", instances=[{**QWEN_PREFILL, "instances": 3}, QWEN_DECODE]
        ),
    )
    with Lake.open(root / ".coral") as lake:
        for index, plan in enumerate(plans):
            publish_plan(lake, plan, AllocationRun(f"run{index}", "example", datetime(2026, 8, 1, index, tzinfo=UTC)))
    return root


def test_list_shows_both_versions_newest_first(folder: Path) -> None:
    done = coral("plans", "list", cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:3] for line in done.stdout.splitlines()[1:]]
    assert rows == [["example", "2", "published"], ["example", "1", "superseded"]]


def test_list_as_json(folder: Path) -> None:
    rows = json.loads(coral("plans", "list", "--scenario", "example", "--json", cwd=folder).stdout)
    assert [(row["plan_version"], row["cost_usd_per_h"]) for row in rows] == [(2, 72.5), (1, 52.5)]


def test_show_is_the_latest_unless_a_version_is_given(folder: Path) -> None:
    latest = coral("plans", "show", "-s", "example", cwd=folder)
    first = coral("plans", "show", "1", "-s", "example", cwd=folder)
    assert "Plan example, version 2 (published)" in latest.stdout
    assert "3 instances" in latest.stdout
    assert "Plan example, version 1 (superseded)" in first.stdout
    assert "2 instances" in first.stdout
    assert latest.stderr == first.stderr == ""


def test_show_is_deterministic_plain_and_fits_100_columns(folder: Path) -> None:
    once, again = (coral("plans", "show", "-s", "example", cwd=folder).stdout for _ in range(2))
    assert once == again
    assert "\x1b" not in once
    assert max(len(line) for line in once.splitlines()) <= 100


def test_the_plan_keeps_to_the_published_schema(folder: Path) -> None:
    schema = json.loads(coral("plans", "schema", cwd=folder).stdout)
    document = json.loads(coral("plans", "show", "--scenario", "example", "--json", cwd=folder).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError, match="'x' was unexpected"):
        jsonschema.validate(document | {"x": 1}, schema)


def test_show_json_is_the_plan_document(folder: Path) -> None:
    document = json.loads(coral("plans", "show", "1", "-s", "example", "--json", cwd=folder).stdout)
    assert document["schema"] == 1
    assert document["plan_version"] == 1
    assert document["instances"][0]["stages"][0]["layers"] == [0, 31]


def test_diff_exits_3_and_says_what_to_add(folder: Path) -> None:
    done = coral("plans", "diff", "1", "2", "-s", "example", cwd=folder)
    assert done.returncode == 3
    row = next(line for line in done.stdout.splitlines() if "qwen3-32b/prefill" in line)
    assert row.split()[-2:] == ["+1", "2"]
    assert "52.50 -> 72.50 USD/h (+20.00 USD/h)" in done.stdout


def test_diff_of_a_version_with_itself_exits_0(folder: Path) -> None:
    done = coral("plans", "diff", "2", "-s", "example", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_empty"] is True


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("plans", "show", "-s", "exmple"), "did you mean example?"),
        (("plans", "show", "7", "-s", "example"), "unknown plan version '7'"),
        (("plans", "diff", "1", "9", "-s", "example"), "unknown plan version '9'"),
        (("sql", "SELECT * FROM templats"), "did you mean templates"),
        (("sql", "DROP TABLE plan_rows"), "not allowed"),
        (("sql", "SELECT * FROM read_csv('/etc/passwd')"), "not allowed"),
        (("sql", "SELECT 1", "--format", "parquet"), "--out"),
        (("sql", "SELECT 1", "--out", "no/such/folder.csv", "--format", "csv"), "is not a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(folder: Path, args: tuple[str, ...], message: str) -> None:
    done = coral(*args, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_no_lake_exits_6_and_makes_none(tmp_path: Path) -> None:
    done = coral("plans", "list", cwd=tmp_path)
    assert done.returncode == 6
    assert "there is no lake" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_lake_of_another_schema_exits_6(tmp_path: Path) -> None:
    Lake.open(tmp_path / ".coral").close()
    (tmp_path / ".coral" / "lake.json").write_text('{"schema_version": 999}')
    done = coral("sql", "SELECT 1", cwd=tmp_path)
    assert done.returncode == 6
    assert "999" in done.stderr


def test_reading_does_not_wait_for_a_writer(folder: Path) -> None:
    with write_lock(folder / ".coral", "a test", 1.0):
        assert coral("plans", "list", cwd=folder).returncode == 0
        with pytest.raises(LakeError), write_lock(folder / ".coral", "a second", 0.1):
            pass


def test_sql_formats_agree(folder: Path) -> None:
    query = "SELECT plan_version, cost_usd_per_h, reason FROM plans ORDER BY 1"
    as_table = coral("sql", query, cwd=folder).stdout
    as_json = coral("sql", query, "--json", cwd=folder).stdout
    as_csv = coral("sql", "-", "--format", "csv", cwd=folder, stdin=query).stdout
    assert [line.split()[:2] for line in as_table.splitlines()[1:]] == [["1", "52.5"], ["2", "72.5"]]
    expected = [(1, 52.5), (2, 72.5)]
    assert [(row["plan_version"], row["cost_usd_per_h"]) for row in json.loads(as_json)] == expected
    assert [(int(row[0]), float(row[1])) for row in list(csv.reader(io.StringIO(as_csv)))[1:]] == expected


def test_sql_writes_parquet(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "instances.parquet"
    done = coral("sql", "SELECT * FROM plan_instances", "--format", "parquet", "--out", out, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert pq.read_table(out).num_rows == 4
