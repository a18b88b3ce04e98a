"""``coral api``: published plans over HTTP, read-only."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from catalogs.errors import CoralError
from flows.cli_common import LakeOption, described, say
from flows.settings import lake_root_of

_LOOPBACK = "127.0.0.1"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "api",
        **described(
            "Published plans over HTTP.",
            "coral api",
            "coral api --port 8750 --max-age-minutes 90",
        ),
    )(api)


def api(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = _LOOPBACK,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8750,
    max_age_minutes: Annotated[
        float | None,
        typer.Option(
            "--max-age-minutes", min=0, help="/health fails when no run has decided for so long. [default: never]"
        ),
    ] = None,
    lake: LakeOption = None,
) -> None:
    """Serve the lake's plans: current plan, versions, differences, health, Prometheus metrics, the JSON Schema of a plan.

    It only reads, follows what other commands publish, and ends with Ctrl-C. There is no sign-in: whoever reaches the
    address can read every plan, so by default only this machine can.
    """
    from warehouse.connect import Lake

    root = lake_root_of(lake)
    Lake.open(root, read_only=True).close()  # a lake that is not there is told before anything listens
    import uvicorn

    from flows.api.app import make_app

    listener = _listen(host, port)
    config = uvicorn.Config(
        make_app(root, None if max_age_minutes is None else max_age_minutes * 60),
        log_level="warning",
        access_log=False,
        lifespan="on",
        server_header=False,
    )
    bound = listener.getsockname()
    shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    say(f"plans of {root} at http://{shown}:{bound[1]}/, until Ctrl-C")
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises CoralError for an address that is not this machine's or a port that is taken."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()  # who comes before the server is ready waits
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise CoralError(
            f"cannot listen on {host} port {port}: {why}", remedy="give another --port or --host"
        ) from error
    return listener
