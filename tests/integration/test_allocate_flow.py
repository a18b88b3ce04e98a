"""The scheduled flow where it decides nothing: a broken scenario, a run that comes too late. The last plan stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows_cases import wait_until, write_tiny_scenario
from warehouse_cases import new_lake, plan, run

from warehouse.connect import Lake
from warehouse.plans import publish_plan
from warehouse.read import current_plan

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    with new_lake(tmp_path / "lake") as opened:
        publish_plan(opened, plan("tiny"), run("first", "tiny"))
    return tmp_path / "lake"


def logged(lake: Path) -> list[tuple[Any, ...]]:
    with Lake.open(lake, read_only=True) as opened:
        assert current_plan(opened, "tiny").plan_version == 1
        return opened.connection.execute(
            "SELECT run_id, outcome, plan_version, note FROM allocation_runs WHERE run_id <> 'first'"
        ).fetchall()


def events_of(url: str, run_id: str) -> set[str]:
    """Names of Coral's events that a flow run has emitted."""
    import httpx

    wanted = {"filter": {"event": {"prefix": ["coral."]}, "related": {"id": [f"prefect.flow-run.{run_id}"]}}}
    found = httpx.post(f"{url}/events/filter", json=wanted, timeout=30).json()["events"]
    return {event["event"] for event in found}


def test_a_scenario_that_cannot_be_read_is_a_failed_run(lake: Path, api_url: str) -> None:
    from flows.allocate_flow import allocate_flow

    scenario = write_tiny_scenario(lake.parent)
    scenario.write_text(scenario.read_text().replace("schema: 1", "schema: one"))
    state = allocate_flow(scenario=str(scenario), lake=str(lake), scenario_id="tiny", return_state=True)
    assert state.is_failed()
    [(run_id, outcome, version, note)] = logged(lake)
    assert (run_id, outcome, version) == (str(state.state_details.flow_run_id), "failed", 1)
    assert "scenario.yaml, line 1" in note


def test_a_run_that_comes_too_late_is_superseded(lake: Path, api_url: str) -> None:
    from prefect.events.worker import EventsWorker

    from flows.allocate_flow import allocate_flow

    scenario = write_tiny_scenario(lake.parent)
    state = allocate_flow(scenario=str(scenario), lake=str(lake), window_minutes=0, return_state=True)
    assert (state.is_completed(), state.name) == (True, "Superseded")
    [(run_id, outcome, version, note)] = logged(lake)
    assert (run_id, outcome, version) == (str(state.state_details.flow_run_id), "superseded", 1)
    assert "beyond its window of 0 s" in note
    EventsWorker.drain_all(timeout=30)
    assert wait_until(lambda: events_of(api_url, run_id) == {"coral.allocation.superseded"}, 30, 0.5)
