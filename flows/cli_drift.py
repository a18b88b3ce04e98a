"""``coral drift``: what runs against what is planned."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

import typer

from catalogs.wording import counted
from flows.cli_common import (
    DEFAULT_SCENARIO,
    ExitCode,
    JsonOption,
    LakeOption,
    ScenarioOption,
    described,
    put_json,
    put_lines,
)
from flows.cli_ingest import RUNNING_NOW
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from flows.drift import DriftReport
    from flows.render import Line


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "drift",
        **described(
            "Compare what runs with the plan.",
            RUNNING_NOW,
            "coral ingest fleet running.csv",
            "coral drift --scenario core",
        ),
    )(drift)


def drift(scenario: ScenarioOption = DEFAULT_SCENARIO, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the differences between the fleet as last observed (`coral ingest fleet`) and the current plan.

    Exits with 3 when they differ, with 5 when no fleet was ever observed: unknown is not nothing.
    """
    from flows.cli_plans import known_scenario
    from flows.drift import drift_report
    from warehouse.connect import Lake

    with Lake.open(lake_root_of(lake), read_only=True) as opened:
        report = drift_report(opened, known_scenario(opened, scenario))
    if as_json:
        put_json(report.document())
    else:
        put_lines(drift_lines(report))
    if not report.drift.is_empty:
        raise typer.Exit(ExitCode.DIFFERENCE)


def drift_lines(report: DriftReport) -> list[Line]:
    """The report for a person."""
    from flows.render import Line, table

    plan, found = report.plan, report.drift
    seen = f"{report.observed_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    lines = [
        Line(
            f"Fleet of {plan.scenario_id}, seen {seen}, against version {plan.plan_version} ({plan.state.value})",
            "bold",
        )
    ]
    if found.rows:
        header = ("region", "node", "market", "serves", "template", "planned", "running", "")
        rows = [
            (
                row.region,
                row.node_config,
                row.market,
                row.workload or ("another plan" if row.template_id else "unknown"),
                row.template_id,
                str(row.planned_nodes),
                str(row.running_nodes),
                f"{row.difference_nodes:+d}",
            )
            for row in found.rows
        ]
        lines += map(Line, table(header, rows, right=(5, 6, 7)))
    lines.append(Line(f"  {found.matched_nodes} of {found.planned_nodes} planned nodes run"))
    if not found.is_labelled:
        lines.append(Line("  the fleet does not say what its nodes serve: only machines are compared"))
    if report.rows_set_aside:
        lines.append(Line(f"  {counted(report.rows_set_aside, 'row')} of the fleet could not be read: more may run"))
    if not report.is_after_plan:
        lines.append(Line("  seen before the plan became current: observe the fleet again"))
    return lines
