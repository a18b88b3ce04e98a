"""Telling a webhook of alerts. Its address is a secret: it comes from the environment or a Prefect block, and goes nowhere.

No part of the address is in a message, a log, the lake or ``--json``: what goes wrong is told by the kind of error alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

from warehouse.alerts import AlertEvent, Delivery

if TYPE_CHECKING:
    import httpx

VARIABLE = "CORAL_WEBHOOK_URL"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a webhook is waited for: attempts per event, seconds per attempt, seconds between them, seconds in all."""

    attempts: int = 3
    timeout_s: float = 5.0
    pause_s: float = 0.5
    total_s: float = 20.0


def send(url: str, events: Iterable[AlertEvent], patience: Patience = Patience()) -> list[Delivery]:
    """POST each event as JSON, in order; what became of each. Never raises for anything the webhook does.

    A webhook that does not answer once gets no further event of this call: its time is spent.
    """
    import httpx

    # httpx tells every request's address to whoever listens.
    quiet = [logging.getLogger(name) for name in ("httpx", "httpcore")]
    levels = [logger.level for logger in quiet]
    for logger in quiet:
        logger.setLevel(logging.CRITICAL)
    try:
        deadline = time.monotonic() + patience.total_s
        found: list[Delivery] = []
        with httpx.Client(timeout=patience.timeout_s, follow_redirects=False) as client:
            for event in events:
                if found and not found[-1].is_delivered:
                    found.append(Delivery(event.event_id, False, "not tried: the event before it did not get through"))
                else:
                    found.append(_deliver(client, url, event, patience, deadline))
        return found
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)


def _deliver(client: httpx.Client, url: str, event: AlertEvent, patience: Patience, deadline: float) -> Delivery:
    detail = "no time was left"
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(patience.pause_s * 2 ** (attempt - 1))
        if time.monotonic() >= deadline:
            break
        try:
            answer = client.post(url, json=body(event))
        except Exception as error:  # noqa: BLE001 - whatever it is, a run must not fail by it; and its text may hold the address
            detail = type(error).__name__
            continue
        detail = f"HTTP {answer.status_code}"
        if answer.is_success:
            return Delivery(event.event_id, True, detail)
        if answer.status_code < 500 and answer.status_code != 429:
            break  # it will say the same again
    return Delivery(event.event_id, False, detail)


def body(event: AlertEvent) -> dict[str, str]:
    """What the webhook gets; ``text`` is what chat services show."""
    subject = f" of {event.subject}" if event.subject else ""
    return {
        "text": f"coral {event.scenario_id}: {event.kind}{subject} {event.event}: {event.text}",
        "event_id": event.event_id,
        "scenario_id": event.scenario_id,
        "kind": event.kind,
        "subject": event.subject,
        "event": event.event,
        "at": event.at.astimezone(UTC).isoformat(),
    }
