"""The dashboards as a web server: ``python -m dashboards.serve --lake DIR``; `coral dashboard` starts it.

One process serves both pages with all their scripts and fonts; it reads the lake and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any

from dashboards.frame import HEAD, POLICY
from dashboards.lake import LAKE_VARIABLE, LakeReader

_FOLDER = Path(__file__).parent


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.serve")
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=2719)
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when whoever started this is gone")
    given = parser.parse_args()
    if given.until_stdin_ends:
        threading.Thread(target=_stop_with_starter, daemon=True).start()
    root = given.lake.expanduser().resolve()
    LakeReader(root).close()
    os.environ[LAKE_VARIABLE] = str(root)
    serve(given.host, given.port)


def _stop_with_starter() -> None:
    """End this process when the other end of stdin closes, however that came about."""
    sys.stdin.read()
    os._exit(0)


def serve(host: str, port: int) -> None:
    """Serve the pages of the lake that the environment names."""
    import marimo
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Mount, Route

    builder = marimo.create_asgi_app(quiet=True, include_code=False, html_head=HEAD)
    for name in ("plan", "library"):
        builder = builder.with_app(path=f"/{name}", root=str(_FOLDER / f"{name}_app.py"))
    pages = builder.build()

    async def confined(scope: Any, receive: Any, send: Any) -> None:
        """The pages, with word to the browser that nothing is fetched from elsewhere."""

        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await pages(scope, receive, send_with_policy if scope["type"] == "http" else send)

    def no_icon(_: Request) -> Response:
        return Response(status_code=204)

    routes = [Route("/", lambda _: RedirectResponse("/plan/")), Route("/favicon.ico", no_icon), Mount("/", confined)]
    app = Starlette(routes=routes)
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
