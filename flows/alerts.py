"""Checking a scenario's alerts: what holds is fired once, what holds no more is cleared once; webhook and Prefect are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.errors import CoralError
from catalogs.scenario_schema import PolicySection
from catalogs.wording import counted
from flows.drift import DriftReport, find_report
from flows.webhook import VARIABLE, Patience, send
from tasks.allocation.watch import AlarmKind, alarms

if TYPE_CHECKING:
    from catalogs.scenario_schema import Scenario
    from warehouse.alerts import AlertEvent
    from warehouse.connect import Lake

EVENT_PREFIX = "coral.alert."


@dataclass(frozen=True, slots=True)
class AlertCheck:
    """``new`` events, alerts that are ``open`` after them, and how many events the webhook was told of, or not (``notes``)."""

    new: tuple[AlertEvent, ...]
    open: tuple[AlertEvent, ...]
    delivered: int
    undelivered: int
    notes: tuple[str, ...]


def check_alerts(
    lake: Lake, scenario: Scenario, now: datetime | None = None, patience: Patience | None = None
) -> AlertCheck:
    """Fire and clear the scenario's alerts as things stand, and tell the webhook and Prefect.

    Raises LakeError for a lake that cannot be written; nothing that a webhook, a block or a Prefect server does is raised.
    """
    from warehouse.alerts import update_alerts, watched

    now = now or datetime.now(UTC)
    seen = watched(lake, scenario.id, now)
    report = find_report(lake, scenario.id)
    if isinstance(report, DriftReport) and report.is_after_plan:
        since_s = (report.observed_at - report.plan_since).total_seconds()
        seen = replace(seen, drift=report.drift, drift_since_s=since_s)
    new = update_alerts(lake, scenario.id, alarms(seen, scenario.policy, max_ages_s(scenario), now), now)
    return _told(lake, scenario.id, new, now, patience)


def check_after_run(lake_root: Path, scenario: str | Path, scenario_id: str | None = None) -> tuple[str, ...]:
    """Check the alerts after a run, in words for a person; a check that cannot be made is one of them, never an error.

    Where the scenario cannot be read its own limits are unknown: then only whether the last run of ``scenario_id`` failed is
    checked, which it will have.
    """
    from catalogs.scenario import load_scenario
    from warehouse.connect import Lake

    try:
        with Lake.open(lake_root, create=False) as lake:
            try:
                loaded = load_scenario(scenario).scenario
            except CoralError:
                if scenario_id is None:
                    raise
                done = _check_failed_run(lake, scenario_id, datetime.now(UTC))
            else:
                done = check_alerts(lake, loaded)
    except CoralError as error:
        return (f"alerts were not checked: {error}",)
    lines = [f"alert {event.event}: {event.kind} {event.subject}".rstrip() + f": {event.text}" for event in done.new]
    return (*lines, *done.notes)


def _check_failed_run(lake: Lake, scenario_id: str, now: datetime) -> AlertCheck:
    from warehouse.alerts import update_alerts, watched

    holds = alarms(watched(lake, scenario_id, now), PolicySection(), {}, now)
    new = update_alerts(lake, scenario_id, holds, now, {AlarmKind.FAILED_RUN})
    return _told(lake, scenario_id, new, now, None)


def _told(lake: Lake, scenario_id: str, new: list[AlertEvent], now: datetime, patience: Patience | None) -> AlertCheck:
    from warehouse.alerts import list_alerts

    notes = _tell_prefect(new)
    delivered, undelivered, more = _tell_webhook(lake, now, patience or Patience())
    return AlertCheck(tuple(new), tuple(list_alerts(lake, scenario_id)), delivered, undelivered, (*notes, *more))


def max_ages_s(scenario: Scenario) -> Mapping[str, float]:
    """How old what is taken in may be, by input; inputs that are not taken in have no limit."""
    feeds = scenario.feeds
    limits = {
        "prices": (scenario.offers.feed, feeds.prices_hours * 3600),
        "availability": (scenario.availability.feed, feeds.availability_minutes * 60),
        "demand": (scenario.demand and scenario.demand.feed, feeds.demand_minutes * 60),
    }
    return {name: limit_s for name, (feed, limit_s) in limits.items() if feed}


def _tell_webhook(lake: Lake, now: datetime, patience: Patience) -> tuple[int, int, list[str]]:
    """How many events were delivered and how many were not, and what a person should know."""
    from flows.secrets import secret
    from warehouse.alerts import claim_undelivered, record_deliveries

    try:
        url = secret(VARIABLE)
    except Exception as error:  # noqa: BLE001 - a block that cannot be read must not fail a run
        text = error.message if isinstance(error, CoralError) else type(error).__name__
        return 0, 0, [f"the webhook's address could not be read: {text}"]
    if url is None:
        return 0, 0, []
    found = send(url, claim_undelivered(lake, now), patience)
    record_deliveries(lake, found, datetime.now(UTC))
    failed = [delivery for delivery in found if not delivery.is_delivered]
    notes = (
        [
            f"the webhook was not told of {counted(len(failed), 'event')} ({failed[0].detail}): the next check tries again; "
            "does it answer, and is its address right?"
        ]
        if failed
        else []
    )
    return len(found) - len(failed), len(failed), notes


def _tell_prefect(events: list[AlertEvent]) -> list[str]:
    """Emit ``coral.alert.fired`` and ``coral.alert.cleared`` where a Prefect server is configured."""
    from flows.server import configured_api_url

    if not events or configured_api_url() is None:
        return []
    try:
        from prefect.client.orchestration import get_client
        from prefect.events import Event

        # Not emit_event: that sends later, in a thread, and this process may be over by then.
        with get_client(sync_client=True) as client:
            rows = [Event.model_validate(_prefect_event(event)).model_dump(mode="json") for event in events]
            client.request("POST", "/events", json=rows)
    except Exception as error:  # noqa: BLE001 - a server that is away must not fail a run
        return [f"Prefect was not told of {counted(len(events), 'alert event')} ({type(error).__name__})"]
    return []


def _prefect_event(event: AlertEvent) -> dict[str, object]:
    what = f"{event.kind}.{event.subject or 'scenario'}"
    return {
        "event": EVENT_PREFIX + event.event,
        "resource": {
            "prefect.resource.id": f"coral.alert.{event.scenario_id}.{what}",
            "prefect.resource.name": f"{event.kind} of {event.subject or event.scenario_id}",
            "coral.scenario": event.scenario_id,
        },
        "payload": {
            "scenario_id": event.scenario_id,
            "kind": event.kind,
            "subject": event.subject,
            "text": event.text,
        },
    }
