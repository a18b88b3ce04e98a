"""``coral simulate`` as a process: exit codes, resuming, many seeds as a flow, and its report in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import coral
from report_cases import simulation_document
from simulate_cases import publish_small_plan

from catalogs.errors import LakeError
from flows import simulate_work
from flows.settings import SilentProgress
from flows.simulate import run_simulation
from flows.simulate_inputs import SimulateSettings

pytestmark = pytest.mark.integration

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("simulate")
    publish_small_plan(root)
    return root


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / ".coral" / "simulations").glob("*")}


def test_one_seed_runs_without_a_server_and_a_second_time_not_at_all(folder: Path) -> None:
    args = ("simulate", "-s", "scenario.yaml", "--minutes", "1")
    first = coral(*args, cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "every workload keeps its SLO" in first.stdout
    assert "start server" not in first.stderr
    assert not (folder / ".coral" / "prefect").exists()
    kept = results(folder)
    assert len(kept) == 1
    again = coral(*args, cwd=folder)
    assert again.stdout == first.stdout
    assert "simulate:" not in again.stderr
    assert results(folder) == kept


def test_a_missed_slo_exits_3_and_says_which(folder: Path) -> None:
    done = coral("simulate", "-s", "scenario.yaml", "--minutes", "1", "--rate", "phi-4=200", "--json", cwd=folder)
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    missed = [row["workload"] for row in document["streams"][0]["workloads"] if row["is_met"] is False]
    assert "phi-4/prefill" in missed
    assert not [name for name in missed if name.startswith("gpt")]


def test_bad_input_is_one_line_and_exit_2(folder: Path) -> None:
    for args in (("--plan", "9"), ("--trace", "nowhere.csv"), ("--report", "no/such/folder.html", "--minutes", "1")):
        done = coral("simulate", "-s", "scenario.yaml", *args, cwd=folder)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in done.stderr


class Steps(SilentProgress):
    """Remembers what was begun, moved on and noted."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.moved = 0.0
        self.notes: list[str] = []

    def start(self, stage: str, total: float) -> None:
        self.begun.append(stage)

    def advance(self, stage: str, amount: float) -> None:
        self.moved += amount if stage == "simulate" else 0.0

    def finish(self, stage: str, note: str = "") -> None:
        self.notes.append(note)


@pytest.mark.usefixtures("api_url")
def test_many_seeds_run_as_a_flow_and_only_those_that_are_missing(tmp_path: Path) -> None:
    """2 of 4 runs are lost after the first flow: the second does those and no others, and all ends as it was."""
    settings = SimulateSettings(publish_small_plan(tmp_path), tmp_path / ".coral", minutes=1.0, seeds=4, threads=2)
    first = Steps()
    document = run_simulation(settings, first)
    assert (first.moved, first.notes[-1]) == (4, "0 runs were done before")
    made = results(tmp_path)
    assert len(made) == 4
    for name in sorted(made)[:2]:
        (tmp_path / ".coral" / "simulations" / name).unlink()
    second = Steps()
    assert run_simulation(settings, second) == document
    assert (second.moved, second.notes[-1]) == (2, "2 runs were done before")
    assert results(tmp_path) == made
    third = Steps()
    assert run_simulation(settings, third) == document
    assert third.begun == ["read plan and traces"]


@pytest.mark.usefixtures("api_url")
def test_a_run_that_fails_stops_the_flow_with_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimulateSettings(publish_small_plan(tmp_path), tmp_path / ".coral", minutes=1.0, seeds=3, threads=1)

    def fail(*_: object) -> None:
        raise LakeError("the disk is full", remedy="make room")

    monkeypatch.setattr(simulate_work, "simulate_run", fail)
    with pytest.raises(LakeError, match="the disk is full"):
        run_simulation(settings)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=CHROMIUM,
            headless=True,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield context
        context.close()


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """The report of a made document, drawn as the command draws it."""
    from flows.simulate import write_report

    write_report(simulation_document(), folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize("width", [1440, 800])
def test_the_report_draws_offline_without_an_error_and_nothing_is_cut(browser: Any, report: Path, width: int) -> None:
    page = browser.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-drawn]", timeout=30_000)
    assert asked == [report.as_uri()]
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    hidden = "[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
    assert set(page.evaluate(hidden)) == {0}
    charts = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(e => [e.getBoundingClientRect(), e.querySelector('svg')"
        ".getBoundingClientRect()]).map(([box, svg]) => [svg.width > 150, svg.right <= box.right + 1])"
    )
    assert len(charts) == 18
    assert all(is_wide and is_inside for is_wide, is_inside in charts)
    page.close()


def test_the_smallest_type_of_the_report_can_be_read(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.set_viewport_size({"width": 800, "height": 900})
    page.goto(report.as_uri())
    page.wait_for_selector("body[data-drawn]", timeout=30_000)
    sizes = page.evaluate(
        "[...document.querySelectorAll('text, td, th, p')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 10
    page.close()
