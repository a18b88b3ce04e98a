"""Alerts in the lake: which have fired and cleared, and whether the webhook has been told."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tasks.allocation.watch import Alarm, AlarmKind, Watched, approval_alarm
from warehouse.connect import Lake
from warehouse.plan_states import open_proposals
from warehouse.read import current_plan
from warehouse.records import DECIDED
from warehouse.rows import insert

# What was not delivered for so long is not news any more; an attempt that ended in silence may be repeated after so long.
_NEWS, _CLAIM = timedelta(hours=24), timedelta(minutes=2)
# With runs every few minutes a plan may stay for some of them until another has saved its start-ups: that is no alert.
_GAP_LASTS = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """An alert that fired or cleared."""

    event_id: str
    scenario_id: str
    kind: str
    subject: str
    event: str
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of telling the webhook."""

    event_id: str
    is_delivered: bool
    detail: str


_EVENT = 'event_id, scenario_id, kind, subject, event, "at", text'


def update_alerts(
    lake: Lake,
    scenario_id: str,
    alarms: Sequence[Alarm],
    now: datetime,
    kinds: Collection[AlarmKind] = tuple(AlarmKind),
) -> list[AlertEvent]:
    """Fire what holds and has not fired, clear what has fired and holds no more; the new events. Nothing is written where
    there are none, and of two callers at once only one gets an event. Alerts of other ``kinds`` stay as they are."""
    if not _news(lake, scenario_id, alarms, now, kinds):
        return []
    with lake.write(f"alerts of {scenario_id}") as connection:
        events = _news(lake, scenario_id, alarms, now, kinds)
        row = connection.execute("SELECT coalesce(max(sequence), 0) FROM main.alert_events").fetchone()
        assert row is not None  # an aggregate always has a row
        numbered = [{"sequence": row[0] + i, **asdict(event)} for i, event in enumerate(events, start=1)]
        insert(connection, "alert_events", numbered)
    return events


def _news(
    lake: Lake, scenario_id: str, alarms: Sequence[Alarm], now: datetime, kinds: Collection[AlarmKind]
) -> list[AlertEvent]:
    rows = lake.connection.execute(
        "SELECT kind, subject, text FROM main.alerts WHERE scenario_id = ? AND is_open ORDER BY 1, 2", [scenario_id]
    ).fetchall()
    is_open = {(kind, subject): text for kind, subject, text in rows if kind in kinds}
    holds = {(alarm.kind.value, alarm.subject): alarm.text for alarm in alarms if alarm.kind in kinds}
    new = [(key, "cleared", text) for key, text in is_open.items() if key not in holds]
    new += [(key, "fired", text) for key, text in holds.items() if key not in is_open]
    return [AlertEvent(uuid.uuid4().hex, scenario_id, *key, event, now, text) for key, event, text in new]


def list_alerts(lake: Lake, scenario_id: str | None = None, *, history: bool = False) -> list[AlertEvent]:
    """Open alerts of a scenario (None: of all), oldest first; with ``history`` every event, as it was told."""
    source = "main.alert_events" if history else "main.alerts"
    rows = lake.connection.execute(
        f"SELECT {_EVENT} FROM {source} WHERE (? IS NULL OR scenario_id = ?) {'' if history else 'AND is_open'} "  # noqa: S608
        "ORDER BY sequence",
        [scenario_id, scenario_id],
    ).fetchall()
    events = [AlertEvent(*row) for row in rows]
    return events if history else [_as_it_is_now(lake, event) for event in events]


def _as_it_is_now(lake: Lake, event: AlertEvent) -> AlertEvent:
    """A proposal that another one replaced, or that a person decided on, can be approved no more: its alert must not say so."""
    if event.kind != AlarmKind.APPROVAL.value:
        return event
    alarm = approval_alarm(_proposal(lake, event.scenario_id))
    return replace(event, text=alarm.text if alarm else "nothing waits any more: the next check clears this")


def claim_undelivered(lake: Lake, now: datetime) -> list[AlertEvent]:
    """Events the webhook has not been told of, oldest first, claimed for this caller: nobody else gets them for two minutes.
    Events older than a day are let go."""
    sql = f"""SELECT {_EVENT} FROM main.alert_events e WHERE "at" >= ? AND NOT EXISTS (
            SELECT 1 FROM main.alert_deliveries d WHERE d.event_id = e.event_id
            AND (d.outcome = 'delivered' OR (d.outcome = 'claimed' AND d."at" > ?
                AND NOT EXISTS (SELECT 1 FROM main.alert_deliveries f WHERE f.event_id = d.event_id
                    AND f.outcome = 'failed' AND f."at" >= d."at")))
        ) ORDER BY sequence"""  # noqa: S608 - constants
    parameters = [now - _NEWS, now - _CLAIM]
    if not lake.connection.execute(sql, parameters).fetchall():
        return []
    with lake.write("claim alerts for the webhook") as connection:
        events = [AlertEvent(*row) for row in connection.execute(sql, parameters).fetchall()]
        insert(connection, "alert_deliveries", [_attempt(event.event_id, now, "claimed", "") for event in events])
    return events


def record_deliveries(lake: Lake, deliveries: Iterable[Delivery], now: datetime) -> None:
    """Keep what became of claimed events; those that failed are free to be claimed again."""
    rows = [_attempt(d.event_id, now, "delivered" if d.is_delivered else "failed", d.detail) for d in deliveries]
    if rows:
        with lake.write("record what the webhook was told") as connection:
            insert(connection, "alert_deliveries", rows)


def watched(lake: Lake, scenario_id: str, now: datetime) -> Watched:
    """What the lake knows of a scenario, but for its drift."""
    plan = current_plan(lake, scenario_id)
    runs = lake.connection.execute(
        """SELECT outcome, note, gap, input_ages_s, started_at, logged_at FROM main.allocation_runs
        WHERE scenario_id = ? AND outcome <> 'superseded' ORDER BY started_at DESC, logged_at DESC LIMIT 200""",
        [scenario_id],
    ).fetchall()
    decided = [row for row in runs if row[0] in DECIDED and row[2] is not None]
    lately = [row[2] for row in decided if decided[0][4] - row[4] < _GAP_LASTS]
    aged = next((row for row in runs if row[3]), None)
    waited_s = (now - aged[4]).total_seconds() if aged else 0.0
    return Watched(
        plan,
        _confirmed_at(lake, scenario_id),
        last_outcome=runs[0][0] if runs else "",
        last_note=runs[0][1] if runs else "",
        gap=min(lately, default=None),
        input_ages_s={name: age + waited_s for name, age in aged[3].items()} if aged else {},
        proposal=_proposal(lake, scenario_id),
    )


def _confirmed_at(lake: Lake, scenario_id: str) -> datetime | None:
    row = lake.connection.execute(
        """SELECT max(moment) FROM (
            SELECT max(logged_at) AS moment FROM main.allocation_runs
            WHERE scenario_id = $1 AND outcome IN ('published', 'unchanged')
            UNION ALL SELECT max(since) FROM main.plan_states
            WHERE scenario_id = $1 AND state IN ('published', 'approved')
        )""",
        [scenario_id],
    ).fetchone()
    return row[0] if row else None


def _proposal(lake: Lake, scenario_id: str) -> tuple[int, str] | None:
    waiting = list(open_proposals(lake.connection, scenario_id).values())
    if not waiting:
        return None
    row = lake.connection.execute(
        "SELECT state_note FROM main.plans WHERE scenario_id = ? AND plan_version = ?", [scenario_id, waiting[-1]]
    ).fetchone()
    return waiting[-1], row[0] if row else ""


def _attempt(event_id: str, at: datetime, outcome: str, detail: str) -> dict[str, Any]:
    return {"event_id": event_id, "at": at, "outcome": outcome, "detail": detail}
