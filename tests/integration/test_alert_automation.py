"""An alert that fires reaches a webhook through a real Prefect server: event, automation, block."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from flows_cases import wait_until

from catalogs.errors import CoralError
from flows import server
from flows.alerts import _tell_prefect
from flows.automation import NAME, install_automation
from warehouse.alerts import AlertEvent

pytestmark = pytest.mark.integration


@pytest.fixture
def api_with_triggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that runs automations, which that of a single command does not."""
    monkeypatch.setitem(server._SERVER_ENV, "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED", "true")
    with server.ApiServer(tmp_path) as started:
        url = started.wait_ready()
        with server.prefect_environment(server.client_env(url, started.home)):
            yield


@pytest.mark.usefixtures("api_with_triggers")
def test_an_automation_tells_the_blocks_webhook_once_per_event() -> None:
    from prefect.blocks.webhook import Webhook

    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with pytest.raises(CoralError, match="there is no Prefect Webhook block 'coral-alerts'"):
        install_automation("coral-alerts")
    hook = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    try:
        Webhook(url=f"http://127.0.0.1:{hook.server_port}/").save("coral-alerts")
        assert install_automation("coral-alerts") == f"made the automation {NAME!r}"
        assert install_automation("coral-alerts") == f"renewed the automation {NAME!r}"
        for event in ("fired", "cleared"):
            given = AlertEvent(event, "core", "gap", "", event, datetime.now(UTC), 'the "gap" is wide')
            assert _tell_prefect([given]) == []
            assert wait_until(lambda: bool(got) and got[-1]["event"].endswith(event), 120)  # noqa: B023 - used at once
        assert got == [
            {
                "event": f"coral.alert.{event}",
                "scenario_id": "core",
                "kind": "gap",
                "subject": "",
                "text": 'the "gap" is wide',
            }
            for event in ("fired", "cleared")
        ]
    finally:
        hook.shutdown()
        hook.server_close()
