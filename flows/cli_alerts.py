"""``coral alerts list|check|automate``: what a person must be told of scenarios that plan themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_common import (
    DEFAULT_SCENARIO,
    ExitCode,
    JsonOption,
    LakeOption,
    ScenarioOption,
    command_group,
    described,
    put,
    put_json,
    put_lines,
    say,
)
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from flows.render import Line
    from warehouse.alerts import AlertEvent


def register(app: typer.Typer) -> None:
    """Add the group of commands to ``app``."""
    alerts = command_group("alerts", "Alerts: list, check, tell Prefect.", "coral alerts check", "coral alerts list")
    alerts.command(
        "list", **described("List alerts that are open.", "coral alerts list", "coral alerts list --history --json")
    )(list_alerts)
    alerts.command("check", **described("Fire and clear a scenario's alerts.", "coral alerts check -s core"))(check)
    alerts.command(
        "automate",
        **described(
            "Make a Prefect automation of alerts.",
            "coral serve &",
            "export PREFECT_API_URL=http://127.0.0.1:4200/api",
            """python -c "from prefect.blocks.webhook import Webhook; Webhook(url=input()).save('coral-alerts')\"""",
            "coral alerts automate --block coral-alerts",
        ),
    )(automate)
    app.add_typer(alerts)


def list_alerts(
    scenario: Annotated[
        str | None, typer.Option("--scenario", "-s", metavar="NAME|PATH", help="Only this scenario's. [default: all]")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Every alert that fired or cleared.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the alerts that are open, or with --history all that ever fired and cleared. Checks nothing anew."""
    from flows.cli_plans import scenario_id_of
    from warehouse import alerts
    from warehouse.connect import Lake

    scenario_id = None if scenario is None else scenario_id_of(scenario)
    with Lake.open(lake_root_of(lake), read_only=True) as opened:
        events = alerts.list_alerts(opened, scenario_id, history=history)
    if as_json:
        put_json([_document(event) for event in events])
    else:
        put_lines(alert_lines(events))


def check(scenario: ScenarioOption = DEFAULT_SCENARIO, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """See whether demand is unmet, the gap wide, the plan old, an input stale, the last run failed, the fleet not as planned,
    or an approval due. What is new fires once, what is over clears once.

    CORAL_WEBHOOK_URL names a webhook to tell (or CORAL_WEBHOOK_URL_BLOCK a Prefect Secret block that does); with
    PREFECT_API_URL Prefect gets events. A webhook that does not answer is tried again by the next check, for a day. Runs
    check by themselves. Exits with 3 while an alert is open.
    """
    from catalogs.scenario import load_scenario
    from flows.alerts import check_alerts
    from warehouse.connect import Lake

    loaded = load_scenario(scenario)
    with Lake.open(lake_root_of(lake), create=False) as opened:
        done = check_alerts(opened, loaded.scenario)
    for note in done.notes:
        say(note)
    if as_json:
        put_json({"new": [_document(e) for e in done.new], "open": [_document(e) for e in done.open],
                  "delivered": done.delivered, "undelivered": done.undelivered})  # fmt: skip
    else:
        put_lines(alert_lines(done.open))
    if done.open:
        raise typer.Exit(ExitCode.DIFFERENCE)


def automate(
    block: Annotated[str, typer.Option("--block", metavar="NAME", help="Prefect Webhook block to call.")],
) -> None:
    """Make, or renew, the automation `coral alerts` at the Prefect server of PREFECT_API_URL: on every alert that fires or
    clears it calls the Webhook block. The address stays in the block."""
    from flows.automation import install_automation

    put(install_automation(block))


def alert_lines(events: Iterable[AlertEvent]) -> list[Line]:
    """Alerts for a person."""
    from flows.render import Line, table

    rows = [
        (e.scenario_id, e.kind, e.subject, e.event, f"{e.at.astimezone(UTC):%Y-%m-%d %H:%M}", e.text) for e in events
    ]
    header = ("scenario", "alert", "of", "", "since (UTC)", "")
    return [Line(text) for text in table(header, rows, right=(), indent=0)] if rows else [Line("no alert is open")]


def _document(event: AlertEvent) -> dict[str, Any]:
    return {**asdict(event), "at": event.at.isoformat()}
