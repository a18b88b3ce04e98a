"""``coral gc``, ``migrate``, and what ``build``, ``plan`` and ``backfill`` refuse before or after a build, by command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from cli_runner import coral
from flows_cases import write_scenario

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from warehouse_cases import QWEN, new_lake, register, templates

from warehouse.land import write_shard

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("commands_share_a_server")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """./.coral holds library `old`, superseded by `new`, and a loose file of long ago."""
    root = tmp_path / ".coral"
    with new_lake(root) as lake:
        for name in ("old", "new"):
            register(lake, name, [write_shard(root, templates(name, QWEN, {"L40Sx4*1": 5_000}), name)])
    loose = write_shard(root, templates("loose", QWEN, {"L40Sx4*1": 5_000}), "loose")
    os.utime(root / loose.path, (0, 0))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name.rsplit("-", 1)[0] for path in (folder / ".coral/shards/solved_templates").glob("*.parquet")}


def test_gc_says_what_it_would_delete_and_then_does(folder: Path) -> None:
    dry = coral("gc", "--keep-days", "0", "--dry-run", cwd=folder)
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.startswith("would delete 1 library and 2 files")
    assert names(folder) == {"old", "new", "loose"}
    assert json.loads(coral("gc", "--dry-run", "--json", cwd=folder).stdout)["libraries"] == [], "within 30 days"
    done = json.loads(coral("gc", "--keep-days", "0", "--json", cwd=folder).stdout)
    assert (done["libraries"], done["kept_libraries"], len(done["files"])) == (["old"], ["new"], 2)
    assert names(folder) == {"new"}
    rows = json.loads(coral("sql", "SELECT library_id FROM templates", "--json", cwd=folder).stdout)
    assert rows == [{"library_id": "new"}]


def test_migrate_keeps_what_there_is(folder: Path) -> None:
    done = coral("migrate", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "has the current schema version" in done.stdout
    assert len(json.loads(coral("sql", "SELECT * FROM templates", "--json", cwd=folder).stdout)) == 2


@pytest.mark.parametrize(("version", "way_out"), [(0, "a new folder"), (999, "the version of coral that made it")])
def test_a_lake_of_another_schema_is_refused_with_the_way_out(folder: Path, version: int, way_out: str) -> None:
    (folder / ".coral/lake.json").write_text(json.dumps({"schema_version": version}))
    for command in (("migrate",), ("gc",)):
        done = coral(*command, cwd=folder)
        assert done.returncode == 6
        assert done.stdout == ""
        assert str(version) in done.stderr
        assert way_out in done.stderr
        assert "Traceback" not in done.stderr
    assert names(folder) == {"old", "new", "loose"}


@pytest.mark.parametrize("command", [("gc",), ("migrate",)])
def test_no_lake_exits_6_and_makes_none(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = coral(*command, cwd=tmp_path)
    assert done.returncode == 6
    assert "there is no lake" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_library_that_would_explode_is_refused_with_its_size(tmp_path: Path, command: str) -> None:
    done = coral(command, "-s", "paper-extended", "--solver", "ilp", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: the library of paper-extended would have about 1,")
    assert "days of one core" in error
    assert "--yes" in error
    assert not (tmp_path / ".coral").exists(), "refused before anything is made"


@pytest.mark.parametrize(
    ("gpu", "message"),
    [("L40S", "offers L40S already"), ("H20O", "did you mean"), ("MI300X", "sells MI300X at prices of")],
)
def test_a_gpu_that_cannot_be_added_is_one_line(tmp_path: Path, gpu: str, message: str) -> None:
    done = coral("backfill", "--gpu", gpu, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_model_too_large_names_the_missing_memory(tmp_path: Path) -> None:
    scenario = write_scenario(tmp_path)
    text = scenario.read_text().replace("include_gpus: [L40S, L4, A10G]", "node_configs: [L4x1]")
    scenario.write_text(text.replace("n_max: 3", "n_max: 1"))
    done = coral("build", "-s", scenario, cwd=tmp_path)
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: phi-4/")
    assert "GiB" in error
    assert "library.n_max" in error
    assert "Traceback" not in done.stderr
