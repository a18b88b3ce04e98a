"""``coral dashboard``: pages to look at plans and libraries; ``coral plans picture``: a plan as an SVG."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from catalogs.errors import CoralError
from flows.cli_common import LakeOption, described, put, say
from flows.settings import lake_root_of

_LOOPBACK = "127.0.0.1"
_PORT = 2719
_START_S = 120.0


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "dashboard",
        **described("Look at plans and libraries in a browser.", "coral dashboard", "coral dashboard --port 8080"),
    )(dashboard)


def dashboard(
    lake: LakeOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port; 0 = any that is free.")] = _PORT,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at; others than this machine's own have no password.")
    ] = _LOOPBACK,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain/--no-explain", help="Compute the newest plans' shadow prices, once, if they are not known."
        ),
    ] = True,
) -> None:
    """Serve two pages until Ctrl-C: plans (cost, replicas, changes, shadow prices, inputs over time) and libraries
    (templates by tokens per USD and rate, filters, SQL).

    The pages only read, and show what is committed while flows write. Nothing is loaded from outside.
    """
    from warehouse.connect import Lake

    root = lake_root_of(lake)
    Lake.open(root, read_only=True).close()  # says what is wrong with the lake before a server starts
    port = _free_port(host, port)
    command = [sys.executable, "-P", "-m", "dashboards.serve", "--lake", str(root), "--host", host, "--port", str(port)]
    server = subprocess.Popen([*command, "--until-stdin-ends"], stdin=subprocess.PIPE)
    try:
        _await_answer(server, host, port)
        put(f"http://{host}:{port}/")
        say("the dashboard is up; Ctrl-C ends it")
        if explain:
            threading.Thread(target=_explain_newest, args=(root,), daemon=True).start()
        server.wait()
    finally:
        server.terminate()
        server.wait()
    raise CoralError(f"the dashboard's server ended by itself (exit code {server.returncode})", remedy="see above")


def _free_port(host: str, port: int) -> int:
    """``port``, or a free one for 0. Raises CoralError where it is taken or the address is not ours."""
    try:
        with socket.create_server((host, port)) as probe:
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        raise CoralError(
            f"cannot listen at {host}:{port}: {error}", remedy="name another with --port or --host"
        ) from error


def _await_answer(server: subprocess.Popen[bytes], host: str, port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise CoralError(
                f"the dashboard's server did not start (exit code {server.returncode})", remedy="see above"
            )
        try:
            socket.create_connection((host, port), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise CoralError(f"the dashboard's server did not answer within {_START_S:g} s", remedy="try again")


def _explain_newest(root: Path) -> None:
    """Make the explanation of each scenario's newest plan where it is missing or time left some of it open; the page shows
    it when looked at again."""
    from flows.why import plan_why
    from warehouse.connect import Lake
    from warehouse.read import current_plan, list_plans
    from warehouse.results import result_about

    with Lake.open(root, read_only=True) as lake:
        plans = [current_plan(lake, name) for name in dict.fromkeys(row.scenario_id for row in list_plans(lake))]
    for plan in plans:
        if plan is None:
            continue
        about = {"scenario_id": plan.scenario_id, "plan_version": plan.plan_version}
        if result_about(root, "why", **about, open_ends=0):
            continue
        try:
            plan_why(root, plan)
        except CoralError as error:
            say(f"version {plan.plan_version} of {plan.scenario_id} is not explained: {error}")


def draw_plan(document: str, out: Path) -> None:
    """The plan JSON ``document`` as an SVG in ``out``, drawn by the dashboards in a process of their own."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, drawn = Path(folder) / "plan.json", Path(folder) / "plan.svg"
        source.write_text(document)
        command = [sys.executable, "-P", "-m", "dashboards.picture", str(source), str(drawn)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the plan was not drawn:\n{done.stderr}")
        try:
            out.write_bytes(drawn.read_bytes())
        except OSError as error:
            raise CoralError(f"cannot write {out}: {error.strerror}", remedy="name another file with --out") from error
