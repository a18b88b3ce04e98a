"""`prefect.yaml` states what `coral serve` deploys."""

from __future__ import annotations

import inspect
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalogs.errors import CoralError
from flows.serve import ServeSettings, check_cron, served
from flows.serving import Served, Serving, serving, serving_lock

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The deployment of ``prefect.yaml`` as `prefect deploy` reads it: the environment filled in."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    from prefect.utilities.templating import apply_values

    for name, value in (("SCENARIO", "core"), ("SCENARIO_ID", "core"), ("LAKE", str(tmp_path.resolve()))):
        monkeypatch.setenv(f"CORAL_{name}", value)
    [one] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    return dict(apply_values(one, os.environ, remove_notset=False))


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    from flows.deployments import deployment

    return deployment(Served("core", "core", every_minutes=60, window_minutes=60), tmp_path)


def test_both_run_the_same_flow_in_the_same_pool(stated: dict[str, Any], ours: Any) -> None:
    from flows.allocate_flow import allocate_flow

    assert stated["name"] == ours.name == "core"
    assert stated["entrypoint"] == ours.entrypoint == "flows.allocate_flow.allocate_flow"
    assert stated["work_pool"]["name"] == ours.work_pool_name
    assert stated["work_pool"]["job_variables"]["command"].split()[1:] == ours.job_variables["command"].split()[1:]
    known = set(inspect.signature(allocate_flow.fn).parameters)
    assert set(ours.parameters) <= known
    assert stated["parameters"] == {name: ours.parameters[name] for name in stated["parameters"]}
    assert set(ours.parameters) - set(stated["parameters"]) == {"dask_address"}


def test_two_scenarios_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    shipped = ROOT / "catalogs/data/scenarios/core.yaml"
    (folder / "scenario.yaml").write_text(shipped.read_text())
    with pytest.raises(CoralError, match="are both called core"):
        served(ServeSettings(("core", str(folder)), tmp_path))
    assert len(served(ServeSettings(("core", "core"), tmp_path))) == 1


def test_both_react_to_a_changed_feed_alike(stated: dict[str, Any], ours: Any) -> None:
    from prefect.events import DeploymentEventTrigger

    [trigger] = stated["triggers"]
    theirs = DeploymentEventTrigger.model_validate(trigger)
    assert theirs.model_dump(exclude={"id"}) == ours.triggers[0].model_dump(exclude={"id"})
    assert theirs.expect == {"coral.feed.changed"}


@pytest.mark.parametrize(
    ("feed", "scenario_id", "lake", "fires"),
    [
        ("demand", "core", "", True),
        ("prices", "core", "", True),
        ("demand", "other", "", False),
        ("demand", "core2", "", False),
        ("demand", "core", "/elsewhere", False),
    ],
)
def test_a_feed_sets_off_its_own_scenario_in_its_own_lake(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: str, scenario_id: str, lake: str, fires: bool
) -> None:
    from flows.feed_events import feed_event

    event = feed_event(feed, Path(lake or tmp_path), scenario_id)
    assert ours.triggers[0].match.matches(event.resource) is fires
    assert (event.event in ours.triggers[0].expect, event.payload["scenario_id"]) == (True, scenario_id)


def test_schedules_begin_at_round_times(stated: dict[str, Any], ours: Any) -> None:
    assert stated["schedules"] == [{"cron": "0 * * * *", "timezone": "UTC"}]
    schedule = ours.schedules[0].schedule
    assert schedule.interval == timedelta(hours=1)
    assert (schedule.anchor_date.minute, schedule.anchor_date.second) == (0, 0)


def test_the_window_is_the_interval_unless_said_otherwise(tmp_path: Path) -> None:
    [core] = served(ServeSettings(("core",), tmp_path))
    assert (core.every_minutes, core.window_minutes) == (60, 60)
    [core] = served(ServeSettings(("core", "core"), tmp_path, every_minutes=6))
    assert (core.every_minutes, core.window_minutes) == (6, 6)
    [core] = served(ServeSettings(("core",), tmp_path, cron="5 * * * *"))
    assert core.window_minutes == 60
    [core] = served(ServeSettings(("core",), tmp_path, every_minutes=60, window_minutes=5))
    assert core.window_minutes == 5


def test_a_lake_is_served_once(tmp_path: Path) -> None:
    assert serving(tmp_path) is None
    with serving_lock(tmp_path) as state:
        assert serving(tmp_path) is None  # still starting
        now = Serving(1, "http://127.0.0.1:4200/api", tmp_path / "prefect" / "serve", 2, 3)
        state(now)
        assert serving(tmp_path) == now
        with pytest.raises(CoralError, match="is served already, by process 1"), serving_lock(tmp_path):
            pytest.fail("served twice")
    assert serving(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["5 * * * *", "*/10 0-6,22 1,15 jan-MAR mon-fri", "0 0 * * 7", "5/15 * * * *", " 0  12 31 12 sun "]
)
def test_a_cron_line_that_is_taken_is_one_to_prefect(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    from prefect.client.schemas.schedules import CronSchedule

    check_cron(text)
    assert CronSchedule(cron=text, timezone="UTC")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("nonsense", "1 field of 5"), ("", "0 fields of 5"), ("* * * * * *", "6 fields of 5"), ("@hourly", "1 field of 5"),
        ("60 * * * *", "its minute is '60'"), ("0 24 * * *", "its hour is '24'"), ("0 0 0 * *", "its day of month is '0'"),
        ("0 0 * foo *", "its month is 'foo'"), ("0 0 * * 8", "its day of week is '8'"), ("*/0 * * * *", "minute is '*/0'"),
        (", * * * *", "its minute is ''"), ("1-70 * * * *", "its minute is '1-70'"), ("\u0663 * * * *", "its minute"),
    ],
)  # fmt: skip
def test_what_is_no_cron_line_is_said_before_anything_starts(text: str, wrong: str) -> None:
    with pytest.raises(CoralError) as caught:
        served(ServeSettings(("core",), Path("nowhere"), cron=text))
    assert wrong in str(caught.value)
    assert "To fix: write minute, hour" in str(caught.value)
