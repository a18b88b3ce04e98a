"""``coral serve``: plans on a schedule and when a feed changes, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli_common import DEFAULT_SCENARIO, DaskOption, LakeOption, described, say
from flows.settings import lake_root_of


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "serve",
        **described(
            "Plan on a schedule and when a feed changes.",
            "coral serve",
            "coral init my",
            "coral serve -s core -s my/scenario.yaml --every 30",
            'coral serve --cron "5 * * * *" --window 20',
        ),
    )(serve)


def serve(
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario", "-s", metavar="NAME|PATH", help="A scenario to plan; may be given again. [default: core]"
        ),
    ] = None,
    lake: LakeOption = None,
    every: Annotated[
        float | None,
        typer.Option("--every", metavar="MINUTES", min=0.1, help="How often. [default: the scenario's interval]"),
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="CRON", help="When instead, as five cron fields in UTC.")
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--window",
            metavar="MINUTES",
            min=0.1,
            help="How long a run that is due is worth executing. [default: the interval]",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of Prefect's API and pages.")] = 4200,
    dask_address: DaskOption = None,
    alerts: Annotated[
        float,
        typer.Option(
            "--alerts-every",
            metavar="MINUTES",
            min=0,
            help="How often alerts are checked beside runs; 0 = after runs only.",
        ),
    ] = 5.0,
) -> None:
    """Run a Prefect server, a worker and the schedule until Ctrl-C: a plan is made at once, then on time, then for every
    change of a feed; alerts are checked after every run and between them. All of it listens on 127.0.0.1 only; restart it
    after a kill and it goes on.
    """
    from catalogs.errors import CoralError
    from flows.cli_progress import LineProgress
    from flows.serve import ServeSettings
    from flows.serve import serve as run

    if every is not None and cron is not None:
        raise CoralError("--every and --cron are two schedules", remedy="give one of them")
    settings = ServeSettings(
        scenarios=tuple(scenario or (DEFAULT_SCENARIO,)),
        lake_root=lake_root_of(lake),
        every_minutes=every,
        cron=cron,
        window_minutes=window,
        port=port,
        dask_address=dask_address,
        alerts_minutes=alerts,
    )
    run(settings, LineProgress())
    say("stopped: nothing is left running; what was published stays")
