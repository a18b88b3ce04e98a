"""The dashboards in a real browser, against what SQL says; while a plan is published."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import coral
from dashboard_cases import dashboard_lake, plan_inputs, shown_plan
from warehouse_cases import run

from warehouse.connect import Lake
from warehouse.plans import publish_plan
from warehouse.sql import query

pytestmark = pytest.mark.integration

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 120_000
# What only Chromium itself says of marimo's page, not an error of ours.
HARMLESS = re.compile(r"preloaded using link preload")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dashboard")
    dashboard_lake(folder / "lake")
    return folder / "lake"


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """The command as a user starts it."""
    code = "import sys; from flows.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "dashboard", "--lake", str(root), "--port", "0", "--no-explain"]
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    server = subprocess.Popen(command, cwd=root.parent, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        assert line.startswith("http://127.0.0.1:"), line
        yield line
    finally:
        server.terminate()
        server.wait(timeout=60)


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
        context.set_default_timeout(WAIT_MS)
        yield context
        context.close()


def open_page(browser: Any, url: str, width: int) -> tuple[Any, list[str], list[str]]:
    """The page, the addresses it asks for and the warnings and errors it says, both growing."""
    page = browser.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text) if message.type in {"warning", "error"} else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.set_viewport_size({"width": width, "height": 1000})
    page.goto(url, timeout=WAIT_MS)
    return page, asked, said


def assert_legible(page: Any, width: int) -> None:
    """Nothing is cut at this width, and the smallest type can be read."""
    page.set_viewport_size({"width": width, "height": 1000})
    page.wait_for_function("w => document.documentElement.clientWidth === w", arg=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.coral .wide, .coral .card')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    page.wait_for_function(f"{cut} === 0")
    sizes = (
        "[...document.querySelectorAll('.coral *')].filter(e => e.textContent.trim())"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(page.evaluate(sizes)) >= 11


def assert_quiet(address: str, asked: list[str], said: list[str]) -> None:
    """Nothing was asked of anyone else, nothing went wrong."""
    own = (address, address.replace("http:", "ws:"), "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert [text for text in said if not HARMLESS.search(text)] == []


def test_the_page_of_plans(browser: Any, address: str, root: Path) -> None:
    page, asked, said = open_page(browser, address, 1440)
    cost = page.locator(".coral .tile .value").first
    cost.wait_for()
    figures = query(root, "SELECT plan_version, cost_usd_per_h FROM plans ORDER BY plan_version").to_pylist()
    assert cost.inner_text().split()[0] == f"{figures[-1]['cost_usd_per_h']:,.2f}"
    page.locator("svg.replica").wait_for()
    assert "1 x L40Sx4" in page.locator(".missed").inner_text()  # the shortfall and what would close it
    page.locator(".vega-embed canvas").nth(2).wait_for()  # cost, demand, prices
    assert_legible(page, 1440)
    assert_legible(page, 800)

    page.locator("select").nth(1).select_option(index=1)  # version 1
    page.locator("h1", has_text="version 1").wait_for()
    assert cost.inner_text().split()[0] == f"{figures[0]['cost_usd_per_h']:,.2f}"
    assert "This is the first version" in page.locator("body").inner_text()

    with Lake.open(root) as lake:  # a flow publishes while the page is open
        third = shown_plan(3, 24.0, "2026-07-30T14:00:00+00:00", "demand changed", 33.0)
        publish_plan(lake, third, run("r3"), plan_inputs())
    page.get_by_text("Look again").click()
    page.locator("h1", has_text="version 3").wait_for()
    assert cost.inner_text().split()[0] == "33.00"
    assert_quiet(address, asked, said)
    page.close()


def test_the_page_of_libraries(browser: Any, address: str, root: Path) -> None:
    page, asked, said = open_page(browser, f"{address}library/?scenario=core", 1440)
    count = page.locator(".coral .count")
    count.wait_for()
    (known,) = query(
        root,
        "SELECT count(*) AS n FROM templates JOIN libraries USING (library_id) WHERE list_contains(library_keys, 'core')",
    ).to_pylist()
    assert int(count.get_attribute("data-rows")) == known["n"] == 5
    best = query(
        root, "SELECT min(usd_per_million_tok) AS usd FROM best_templates WHERE scenario_id = 'core'"
    ).to_pylist()[0]
    assert f"{best['usd']:,.4f}" in count.inner_text()
    page.locator(".vega-embed canvas").wait_for()
    assert_legible(page, 1440)
    assert_legible(page, 800)

    page.locator("select", has_text="one kind of node").select_option(label="mixed")
    page.locator(".coral .count[data-rows='1']").wait_for()
    page.get_by_text("Run", exact=True).click()
    answer = page.locator(".coral .answer table tbody tr")
    answer.first.wait_for()
    assert answer.count() == 3  # the best of each region
    assert_quiet(address, asked, said)
    page.close()


def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, address: str) -> None:
    done = coral("dashboard", "--lake", tmp_path / "none", cwd=tmp_path)
    assert done.returncode == 6
    assert "no lake" in done.stderr
    port = address.rstrip("/").rpartition(":")[2]
    with Lake.open(tmp_path / "lake"):
        taken = coral("dashboard", "--lake", tmp_path / "lake", "--port", port, cwd=tmp_path)
    assert taken.returncode == 2
    assert "--port" in taken.stderr
    assert "Traceback" not in done.stderr + taken.stderr
