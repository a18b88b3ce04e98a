"""A Prefect automation of Coral's alerts: each event ``coral.alert.fired`` or ``coral.alert.cleared`` calls a Webhook block."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from catalogs.errors import CoralError

NAME = "coral alerts"
# Filled in by the server, for each event.
_PAYLOAD = (
    '{"event": {{ event.event | tojson }}, "scenario_id": {{ event.payload.scenario_id | tojson }}, '
    '"kind": {{ event.payload.kind | tojson }}, "subject": {{ event.payload.subject | tojson }}, '
    '"text": {{ event.payload.text | tojson }}}'
)


def install_automation(block: str) -> str:
    """Make the automation, or renew the one there is; a line that says which. Raises CoralError without a server, and for a
    block that is not there."""
    from flows.server import configured_api_url

    if configured_api_url() is None:
        raise CoralError(
            "no Prefect server is configured", remedy="set PREFECT_API_URL; `coral serve` prints its server's"
        )
    import httpx
    from prefect.automations import Automation
    from prefect.blocks.webhook import Webhook
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture

    from flows.alerts import EVENT_PREFIX

    try:
        loaded = cast(Webhook, Webhook.load(block))
        document = loaded._block_document_id
        assert document is not None  # it was loaded from the server
        automation = Automation(
            name=NAME,
            description="Tell a webhook of Coral's alerts as they fire and clear.",
            trigger=EventTrigger(
                expect={EVENT_PREFIX + "fired", EVENT_PREFIX + "cleared"},
                posture=Posture.Reactive,
                threshold=1,
                within=timedelta(0),
            ),
            actions=[CallWebhook(block_document_id=document, payload=_PAYLOAD)],
        )
        try:
            known = cast(Automation, Automation.read(name=NAME))
        except ValueError:
            automation.create()
            return f"made the automation {NAME!r}"
        automation.id = known.id
        automation.update()
    except ValueError as error:
        raise CoralError(
            f"there is no Prefect Webhook block {block!r}",
            remedy="make one of that name: type `webhook`, method POST, the address as its url",
        ) from error
    except httpx.HTTPError as error:
        raise CoralError(
            f"the Prefect server does not answer ({type(error).__name__})",
            remedy="start it, or correct PREFECT_API_URL",
        ) from error
    return f"renewed the automation {NAME!r}"
