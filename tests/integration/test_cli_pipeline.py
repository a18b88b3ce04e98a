"""From ``coral init`` to plans, as a user goes: an own model and region that no shipped scenario has, no code edited."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import OWN_SERVER, coral

from catalogs.scenario_files import shipped_scenarios
from tasks.allocation.plan import Plan

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("commands_share_a_server")]

SCENARIO = "my/scenario.yaml"
OWN_MODEL = "my-org/my-8b-chat"


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{old!r} is not in {path.name}"
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with the starter scenario (two nodes per instance at most) planned once: (folder, stdout, stderr)."""
    folder = tmp_path_factory.mktemp("pipeline")
    assert coral("init", "my", cwd=folder).returncode == 0
    rewrite(folder / SCENARIO, "n_max: 3", "n_max: 2")
    done = coral("plan", "-s", SCENARIO, "--workers", "2", cwd=folder, variables=OWN_SERVER)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, done.stderr


@pytest.fixture
def folder(first: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy of the planned folder, for a test to change."""
    shutil.copytree(first[0], tmp_path / "copy")
    return tmp_path / "copy"


def versions(folder: Path) -> list[int]:
    rows = json.loads(coral("plans", "list", "-s", SCENARIO, "--json", cwd=folder).stdout)
    return [row["plan_version"] for row in rows]


def run_outcomes(folder: Path) -> list[str]:
    query = "SELECT outcome FROM allocation_runs ORDER BY started_at"
    return [row["outcome"] for row in json.loads(coral("sql", query, "--json", cwd=folder).stdout)]


def test_own_model_and_region_are_in_no_shipped_scenario() -> None:
    from catalogs import load_scenario

    for name in shipped_scenarios():
        loaded = load_scenario(name)
        assert OWN_MODEL not in {demand.model for demand in loaded.model_demands}
        assert "aws/eu-central-1" not in loaded.regions


def test_plan_prints_the_published_plan(first: tuple[Path, str, str]) -> None:
    folder, out, err = first
    assert "Plan my-prod, version 1 (published)" in out
    for workload in ("qwen3-8b prefill", "qwen3-8b decode"):
        assert workload in out
    assert "aws/eu-central-1" in out
    assert "% of the best plan this library can express" in out
    assert max(len(line) for line in out.splitlines()) <= 100
    assert "published as version 1 of my-prod" in err
    shown = coral("plans", "show", "-s", SCENARIO, cwd=folder)
    assert shown.stdout == out


def test_the_document_serves_both_models_in_full(first: tuple[Path, str, str]) -> None:
    plan = Plan.model_validate_json(coral("plans", "show", "-s", SCENARIO, "--json", cwd=first[0]).stdout)
    assert {workload.model for workload in plan.workloads} == {"Qwen/Qwen3-8B", OWN_MODEL}
    for workload in plan.workloads:
        own = [row for row in plan.instances if row.workload_id == workload.workload_id]
        rate = sum(row.instances * row.throughput_tok_per_s for row in own) * workload.headroom
        assert rate >= workload.planned_tok_per_s * (1 - 1e-9)
    rent = sum(offer.nodes * offer.price_usd_per_h for offer in plan.offers)
    assert rent == pytest.approx(plan.cost_usd_per_h)


def test_sql_reads_the_library_and_the_plan(first: tuple[Path, str, str]) -> None:
    query = "SELECT count(*) AS n FROM plan_instances JOIN templates USING (template_id)"
    assert json.loads(coral("sql", query, "--json", cwd=first[0]).stdout)[0]["n"] >= 4


def test_again_is_unchanged_and_logged(folder: Path, first: tuple[Path, str, str]) -> None:
    done = coral("plan", "-s", SCENARIO, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "unchanged: version 1 stays" in done.stderr
    assert done.stdout == first[1]
    assert versions(folder) == [1]
    assert run_outcomes(folder) == ["published", "unchanged"]


def test_allocate_writes_nothing_unless_told_to(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / ".coral").rglob("*") if path.is_file()}
    done = coral("allocate", "-s", SCENARIO, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert Plan.model_validate_json(done.stdout).state == "draft"
    after = {path: path.stat().st_mtime_ns for path in (folder / ".coral").rglob("*") if path.is_file()}
    data = [path for path in before.keys() | after.keys() if not path.name.startswith("catalog.sqlite")]
    assert [path for path in data if before.get(path) != after.get(path)] == []
    assert run_outcomes(folder) == ["published"]


def test_more_demand_is_a_new_version_and_diff_says_what_to_add(folder: Path) -> None:
    rewrite(folder / "my/demand.csv", "09:00:00Z,8", "09:00:00Z,20")
    done = coral("allocate", "-s", SCENARIO, "--publish", "--approve", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert versions(folder) == [2, 1]
    assert "demand of qwen3-8b" in done.stdout
    diff = coral("plans", "diff", "1", "2", "-s", SCENARIO, "--json", cwd=folder)
    assert diff.returncode == 3
    document = json.loads(diff.stdout)
    assert sum(row["add"] for row in document["rows"]) > 0
    assert document["cost_delta_usd_per_h"] > 0


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("offers.csv", "price_usd_per_h", "price_usd", "price_usd_per_h"),
        ("scenario.yaml", "ttft_ms: 1000", "ttft_ms: 0.001", "qwen3-8b"),
        ("scenario.yaml", "model: qwen3-8b", "model: qwen3-8", "did you mean"),
        ("models/my-8b-chat.json", "{", "", "my-8b-chat.json"),
    ],
)
def test_bad_input_leaves_what_was_published(folder: Path, file: str, old: str, new: str, message: str) -> None:
    rewrite(folder / "my" / file, old, new)
    done = coral("plan", "-s", SCENARIO, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert errors
    assert any(message in line for line in errors)
    rows = json.loads(coral("sql", "SELECT plan_version, state FROM plans", "--json", cwd=folder).stdout)
    assert rows == [{"plan_version": 1, "state": "published"}]


def test_a_bad_row_is_set_aside_told_and_kept_with_its_reason(folder: Path) -> None:
    rewrite(folder / "my/offers.csv", "on_demand,2.10", "on_demand,-2.10")
    done = coral("plan", "-s", SCENARIO, "--approve", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = [
        line for line in done.stderr.splitlines() if line.startswith("set aside: offers.csv, row 1, price_usd_per_h")
    ]
    assert len(told) == 1
    query = 'SELECT file, "row", "column", value FROM rejects'
    rows = json.loads(coral("sql", query, "--json", cwd=folder).stdout)
    assert rows == [{"file": "offers.csv", "row": 1, "column": "price_usd_per_h", "value": "-2.10"}]


def test_unknown_demand_holds_the_last_plan_and_exits_5(folder: Path) -> None:
    rewrite(folder / "my/demand.csv", "09:00:00Z,8", "09:00:00Z,")
    done = coral("plan", "-s", SCENARIO, cwd=folder)
    assert done.returncode == 5, done.stderr
    assert "qwen3-8b" in done.stderr.lower()
    assert versions(folder) == [1]
    assert run_outcomes(folder) == ["published", "held_unknown_demand"]


def test_a_shortfall_is_published_explained_and_exits_4(folder: Path) -> None:
    rewrite(folder / "my/demand.csv", "09:00:00Z,8", "09:00:00Z,8000")
    done = coral("plan", "-s", SCENARIO, "--approve", cwd=folder)
    assert done.returncode == 4, done.stderr
    assert "DEMAND NOT MET" in done.stdout
    assert "binding: " in done.stdout
    assert versions(folder) == [2, 1]


def test_a_lake_under_lock_exits_6_and_publishes_nothing(folder: Path) -> None:
    from warehouse.lock import write_lock

    rewrite(folder / "my/demand.csv", "09:00:00Z,8", "09:00:00Z,80")
    with write_lock(folder / ".coral", "a test", 1.0):
        done = coral("allocate", "-s", SCENARIO, "--publish", cwd=folder, variables={"CORAL_LOCK_TIMEOUT_S": "0.5"})
    assert done.returncode == 6, done.stderr
    assert "waited 0.5 s" in done.stderr
    assert versions(folder) == [1]


def test_an_interrupt_while_a_plan_is_searched_for_prints_the_best_one_and_publishes_nothing(folder: Path) -> None:
    code = """
import signal, sys
from tasks.allocation.covers import solver
solve = solver.solve_covers
def interrupted(problem, limits, **options):
    if limits.stop is not None and not limits.stop.is_set():
        signal.raise_signal(signal.SIGTERM)
    return solve(problem, limits, **options)
solver.solve_covers = interrupted
from flows.cli import main
sys.exit(main())
"""
    before = versions(folder)
    rewrite(folder / "my/demand.csv", "09:00:00Z,8", "09:00:00Z,11")
    done = subprocess.run(
        [sys.executable, "-c", code, "allocate", "--publish", "-s", SCENARIO],
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "100", "CORAL_LAKE": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 130, done.stderr
    assert "USD/h" in done.stdout
    assert "the search was interrupted: this is the best plan it had found" in done.stdout
    assert "is not published" in done.stderr
    assert versions(folder) == before
