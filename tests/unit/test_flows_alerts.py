"""Alerts through lake and webhook: each fires once and clears once, whatever the webhook does; its address stays secret."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flows_cases import wait_until, write_tiny_scenario
from hook_cases import CANARY, Hook
from warehouse_cases import new_lake, plan, run

from catalogs.scenario_schema import FeedsSection, PolicySection
from flows.alert_timer import alerts_checked
from flows.alerts import check_after_run, check_alerts, max_ages_s
from flows.cli_alerts import alert_lines
from flows.serving import Served
from flows.settings import SilentProgress
from flows.webhook import Patience, send
from tasks.allocation.watch import Alarm, AlarmKind
from warehouse.alerts import AlertEvent, Delivery, claim_undelivered, list_alerts, record_deliveries, update_alerts
from warehouse.connect import Lake
from warehouse.plan_states import approve_plan
from warehouse.plans import log_run, publish_plan
from warehouse.records import RunLog, RunOutcome

STAYS = RunLog(RunOutcome.UNCHANGED, 1)
QUICK = Patience(attempts=2, timeout_s=0.3, pause_s=0.01, total_s=2.0)
NO_FEED = SimpleNamespace(feed=None)
SCENARIO: Any = SimpleNamespace(
    id="core", policy=PolicySection(), feeds=FeedsSection(), offers=NO_FEED, availability=NO_FEED, demand=None
)
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def event(number: int = 1) -> AlertEvent:
    return AlertEvent(f"e{number}", "core", "gap", "", "fired", NOW, "the gap is wide")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    for name in ("PREFECT_API_URL", "CORAL_WEBHOOK_URL", "CORAL_WEBHOOK_URL_BLOCK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with new_lake(tmp_path) as opened:
        yield opened


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_webhook_gets_one_document_per_event() -> None:
    with Hook() as hook:
        assert send(hook.url, [event(1), event(2)], QUICK) == [
            Delivery("e1", True, "HTTP 200"),
            Delivery("e2", True, "HTTP 200"),
        ]
    assert [d["event_id"] for d in hook.got] == ["e1", "e2"]
    assert hook.got[0]["text"] == "coral core: gap fired: the gap is wide"
    assert hook.got[0]["at"] == "2026-11-30T12:00:00+00:00"


def test_a_webhook_that_stumbles_is_tried_again_and_one_that_refuses_is_not() -> None:
    with Hook(503, 200) as hook:
        assert send(hook.url, [event()], QUICK)[0].is_delivered
    with Hook(404, 200) as hook:
        assert send(hook.url, [event()], QUICK) == [Delivery("e1", False, "HTTP 404")]
        assert hook.got == []


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{port}/x?token=" + CANARY, "no address " + CANARY, "ftp://x/" + CANARY, "http://[" + CANARY],
)
def test_no_webhook_fails_a_run_or_gives_its_address_away(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    found = send(url.format(port=closed_port()) + CANARY, [event(1), event(2)], QUICK)
    assert [d.is_delivered for d in found] == [False, False]
    assert found[1].detail.startswith("not tried")
    assert CANARY not in repr(found) + caplog.text
    with Hook() as hook:
        send(hook.url, [event()], QUICK)
    assert CANARY not in caplog.text


def test_a_webhook_that_says_nothing_is_given_up() -> None:
    with Hook(0, 0, 0) as hook:
        started = time.monotonic()
        assert send(hook.url, [event()], QUICK) == [Delivery("e1", False, "ReadTimeout")]
        assert time.monotonic() - started < 5


def test_each_alert_fires_once_and_clears_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    publish_plan(lake, plan(), run("r1"))
    log_run(lake, run("r2"), RunLog(RunOutcome.FAILED))
    now = datetime.now(UTC)
    with Hook() as hook:
        monkeypatch.setenv("CORAL_WEBHOOK_URL", hook.url)
        for _ in range(3):
            done = check_alerts(lake, SCENARIO, now, QUICK)
        assert [(d["kind"], d["event"]) for d in hook.got] == [("shortfall", "fired"), ("failed_run", "fired")]
        assert [e.kind for e in done.open] == ["shortfall", "failed_run"]
        assert (done.new, done.delivered, done.undelivered) == ((), 0, 0)
        publish_plan(lake, plan(instances=3).model_copy(update={"shortfalls": ()}), run("r3"), guards=("cost rises",))
        for _ in range(2):
            check_alerts(lake, SCENARIO, now, QUICK)
        approve_plan(lake, "core", 2, by="ann")
        for _ in range(2):
            done = check_alerts(lake, SCENARIO, now, QUICK)
    told = [(d["kind"], d["event"]) for d in hook.got[2:]]
    assert told == [("failed_run", "cleared"), ("approval", "fired"), ("approval", "cleared"), ("shortfall", "cleared")]
    assert done.open == ()
    assert len({d["event_id"] for d in hook.got}) == 6
    stored = (
        lake.connection.execute("SELECT * FROM alert_events").fetchall()
        + lake.connection.execute("SELECT * FROM alert_deliveries").fetchall()
    )
    printed = capfd.readouterr()
    assert CANARY not in repr(stored) + repr(done) + printed.out + printed.err
    files = [path.read_bytes() for path in lake.root.rglob("*") if path.is_file()]
    assert not any(CANARY.encode() in content for content in files)


def test_an_open_alert_names_the_proposal_that_can_be_approved(lake: Lake) -> None:
    """One alert for proposals that replace each other; what a person reads must work as it stands."""
    publish_plan(lake, plan(), run("r1"))
    for number in (4, 5):
        publish_plan(lake, plan(instances=number), run(f"r{number}", base=1), guards=("cost rises",))
        if number == 4:
            check_alerts(lake, SCENARIO, NOW, QUICK)
    said = {e.kind: e.text for e in list_alerts(lake)}
    assert said["approval"].startswith("version 3 waits for `coral plans approve 3`")
    approve_plan(lake, "core", 3, by="ann")
    said = {e.kind: e.text for e in list_alerts(lake)}
    assert said["approval"] == "nothing waits any more: the next check clears this"
    told = [(e.event, e.text) for e in list_alerts(lake, history=True) if e.kind == "approval"]
    assert told == [("fired", "version 2 waits for `coral plans approve 2`: cost rises")]


def test_a_dead_webhook_is_told_later_in_order_and_only_of_news(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_plan(lake, plan(), run("r1"))
    now = datetime.now(UTC)
    monkeypatch.setenv("CORAL_WEBHOOK_URL", f"http://127.0.0.1:{closed_port()}/{CANARY}")
    done = check_alerts(lake, SCENARIO, now, QUICK)
    assert (len(done.new), done.delivered, done.undelivered) == (1, 0, 1)
    assert "was not told of 1 event (ConnectError)" in done.notes[0]
    publish_plan(lake, plan(instances=3).model_copy(update={"shortfalls": ()}), run("r2"))
    with Hook() as hook:
        monkeypatch.setenv("CORAL_WEBHOOK_URL", hook.url)
        assert check_alerts(lake, SCENARIO, now + timedelta(minutes=1), QUICK).delivered == 2
    assert [(d["kind"], d["event"]) for d in hook.got] == [("shortfall", "fired"), ("shortfall", "cleared")]
    update_alerts(lake, "core", [Alarm(AlarmKind.GAP, "", "x")], now)
    assert claim_undelivered(lake, now + timedelta(hours=25)) == []


def test_a_block_that_cannot_be_read_does_not_fail_a_check(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_plan(lake, plan(), run("r1"))

    def fail(_: str) -> str:
        raise ConnectionError(CANARY)

    monkeypatch.setattr("flows.secrets.secret", fail)
    done = check_alerts(lake, SCENARIO, datetime.now(UTC), QUICK)
    assert done.notes == ("the webhook's address could not be read: ConnectionError",)


def test_an_input_that_grows_old_is_told_of_though_nothing_runs(lake: Lake, tmp_path: Path) -> None:
    path = write_tiny_scenario(tmp_path)
    path.write_text(path.read_text().replace("{file: demand.csv}", "{feed: lake}"))
    log_run(lake, replace(run("r1", "tiny"), started_at=hours_ago(4), input_ages_s={"demand": 60}), STAYS)
    said = Said()
    served = Served("tiny", str(path), 60, 60)
    with alerts_checked(lake.root, [served], 0.0005, said):
        assert wait_until(lambda: bool(said.lines), 300)
        log_run(lake, replace(run("r2", "tiny"), started_at=hours_ago(0), input_ages_s={"demand": 60}), STAYS)
        assert wait_until(lambda: len(said.lines) > 1, 300)
    assert said.lines == [
        f"tiny: alert {event}: stale_input demand: demand are older than 3 hours" for event in ("fired", "cleared")
    ]
    with alerts_checked(lake.root, [served], 0, said):
        assert "coral alerts" not in {thread.name for thread in threading.enumerate()}


def test_a_run_of_a_scenario_that_cannot_be_read_is_told_of(lake: Lake, tmp_path: Path) -> None:
    path = write_tiny_scenario(tmp_path)
    log_run(lake, replace(run("r1", "tiny"), started_at=hours_ago(4)), STAYS)
    update_alerts(lake, "tiny", [Alarm(AlarmKind.GAP, "", "wide")], NOW)
    path.write_text("schema: one")
    log_run(lake, replace(run("r2", "tiny"), started_at=hours_ago(1), note="is no scenario"), RunLog(RunOutcome.FAILED))
    for expected in (("alert fired: failed_run: the last run failed: is no scenario",), ()):
        assert check_after_run(lake.root, path, "tiny") == expected
    assert [event.kind for event in list_alerts(lake, "tiny")] == ["gap", "failed_run"], "others are left as they are"
    assert check_after_run(lake.root, path)[0].startswith("alerts were not checked: ")


class Said(SilentProgress):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


def hours_ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


def test_a_claimed_event_is_nobody_elses_until_it_has_failed_or_two_minutes_are_over(lake: Lake) -> None:
    (fired,) = update_alerts(lake, "core", [Alarm(AlarmKind.GAP, "", "wide")], NOW)
    assert update_alerts(lake, "core", [Alarm(AlarmKind.GAP, "", "wider")], NOW) == [], "the same alert, in other words"
    assert claim_undelivered(lake, NOW) == [fired]
    assert claim_undelivered(lake, NOW + timedelta(seconds=119)) == []
    assert claim_undelivered(lake, NOW + timedelta(seconds=121)) == [fired], "its claimer has ended in silence"
    record_deliveries(lake, [Delivery(fired.event_id, False, "HTTP 500")], NOW + timedelta(seconds=122))
    assert claim_undelivered(lake, NOW + timedelta(seconds=123)) == [fired]
    record_deliveries(lake, [Delivery(fired.event_id, True, "HTTP 200")], NOW + timedelta(seconds=124))
    assert claim_undelivered(lake, NOW + timedelta(hours=1)) == []
    assert [e.kind for e in list_alerts(lake)] == ["gap"]
    assert alert_lines(list_alerts(lake))[1].text.split()[:3] == ["core", "gap", "fired"]
    update_alerts(lake, "core", [], NOW + timedelta(minutes=3))
    assert [e.event for e in list_alerts(lake, "core", history=True)] == ["fired", "cleared"]
    assert alert_lines(list_alerts(lake))[0].text == "no alert is open"


def test_only_what_is_taken_in_can_be_stale() -> None:
    assert max_ages_s(SCENARIO) == {}
    feed = SimpleNamespace(feed="lake")
    taken: Any = SimpleNamespace(offers=feed, availability=NO_FEED, demand=feed, feeds=FeedsSection(prices_hours=2))
    assert max_ages_s(taken) == {"prices": 7200.0, "demand": 10_800.0}
