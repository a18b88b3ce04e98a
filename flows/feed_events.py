"""Telling the schedule that a feed has changed: the event that sets off an allocation before its hour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.events import Event

    from warehouse.records import IngestRecord

FEED_CHANGED = "coral.feed.changed"
FEED_PREFIX = "coral.feed."
# Labels of the event's resource: whose feed it is, and in which lake. A schedule listens to its own only.
SCENARIO_LABEL, LAKE_LABEL = "coral.scenario", "coral.lake"


def feed_changed(lake_root: Path, record: IngestRecord) -> str:
    """Called once after an ingest that said something new, when all of it is in the lake; a line that says who was told,
    empty where there is nobody.

    Nothing is raised for what is not running: the rows are in, and whoever reads the lake next finds them.
    """
    details = {"ingest_id": record.ingest_id, "n_changed": record.n_changed}
    return announce_feed(record.kind.value, lake_root, record.scenario_id, details)


def announce_feed(feed: str, lake_root: Path, scenario_id: str, details: Mapping[str, object] | None = None) -> str:
    """Emit ``coral.feed.changed`` of a scenario's ``feed`` (prices, availability, demand, fleet); a line for a person that says
    to whom, empty where nothing runs that would want to know.

    Told is the Prefect server of PREFECT_API_URL, else that of the `coral serve` that serves this lake. What is in the lake
    stays whether or not anybody could be told: nothing is raised for a server that does not answer.
    """
    from flows.server import client_env, configured_api_url, prefect_environment
    from flows.serving import serving

    here, configured = serving(lake_root), configured_api_url()
    if configured is None and here is None:
        return ""
    environment = {} if here is None or configured else client_env(here.url, here.home)
    with prefect_environment(environment):
        import httpx
        from prefect.client.orchestration import get_client
        from prefect.exceptions import PrefectHTTPStatusError

        event = feed_event(feed, lake_root, scenario_id, details)
        # Not emit_event: that sends later, in a thread, and this command may be over by then.
        try:
            with get_client(sync_client=True) as client:
                client.request("POST", "/events", json=[event.model_dump(mode="json")])
                return f"told the schedule at {client.api_url}"
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            return f"the Prefect server could not be told that {feed} changed ({error}): its next run sees it"


def feed_event(feed: str, lake_root: Path, scenario_id: str, details: Mapping[str, object] | None = None) -> Event:
    """The event that ``feed`` of the scenario in this lake has changed."""
    from prefect.events import Event, Resource

    labels = {SCENARIO_LABEL: scenario_id, LAKE_LABEL: str(lake_root.resolve())}
    return Event(
        event=FEED_CHANGED,
        resource=Resource({"prefect.resource.id": FEED_PREFIX + feed, **labels}),
        payload={"feed": feed, "scenario_id": scenario_id, **(details or {})},
    )
