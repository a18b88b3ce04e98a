"""``coral compare``: what runs today against the plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.wording import counted
from flows.cli_common import (
    DEFAULT_SCENARIO,
    JsonOption,
    LakeOption,
    ScenarioOption,
    described,
    put_json,
    put_lines,
)
from flows.settings import BuildSettings, lake_root_of

if TYPE_CHECKING:
    from flows.compare import Comparison
    from flows.render import Line


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "compare",
        **described(
            "What runs today against the plan.",
            "coral init my",
            "coral plan -s my/scenario.yaml",
            "coral compare -s my/scenario.yaml --fleet my/fleet.csv",
        ),
    )(compare)


def compare(
    fleet: Annotated[
        Path,
        typer.Option(
            "--fleet",
            metavar="FILE",
            help="CSV of what runs: region, instance_type, count, model, phase, tp, pp, replicas.",
        ),
    ],
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What the machines you run now cost and can serve by the performance model, what the current plan saves, and in what
    order to get there: no step drops below demand (or below today, where that is less) or needs more machines than there are.

    Layouts need not be in the library: they are evaluated as they are.
    """
    from flows.compare import compare as compared
    from flows.compare import comparison_document

    found = compared(BuildSettings(scenario=scenario, lake_root=lake_root_of(lake)), fleet)
    if as_json:
        put_json(comparison_document(found))
    else:
        put_lines(comparison_lines(found))


def comparison_lines(found: Comparison) -> list[Line]:
    """The whole of ``coral compare``."""
    from flows.render import Line

    title = f"What runs today against version {found.plan.plan_version} of {found.plan.scenario_id}"
    sections = [_fleet(found), _workloads(found), _cost(found), _steps(found)]
    return [Line(title, "bold"), *(line for section in sections for line in (Line(""), *section))]


def _fleet(found: Comparison) -> list[Line]:
    from flows.compare import layout_text
    from flows.render import Line, money, number, table, wrapped

    rows = [
        (
            row.offer.region,
            f"{row.count} {row.offer.instance_type}",
            row.workload.alias,
            layout_text(row),
            number(rate.tok_per_s * row.instances) if rate.tok_per_s else "0",
            money(row.usd_per_h),
        )
        for row, rate in zip(found.fleet, found.rates, strict=True)
    ]
    header = ("region", "machines", "workload", "layout", "tok/s within SLO", "USD/h")
    lines = [Line("Today", "bold"), *map(Line, table(header, rows, right=(4, 5)))]
    for row, rate in zip(found.fleet, found.rates, strict=True):
        if rate.reason:
            lines += wrapped(f"row {row.row}: serves nothing by the model: {rate.reason}", style="yellow")
    return lines


def _workloads(found: Comparison) -> list[Line]:
    from flows.render import Line, number, table, wrapped

    rows = [
        (
            row.workload,
            number(row.planned_tok_per_s),
            number(row.today_tok_per_s * row.headroom),
            "serves nothing" if row.utilization is None else f"{row.utilization:.0%}",
            number(row.plan_tok_per_s * row.headroom),
        )
        for row in found.workloads
    ]
    header = ("workload", "demand tok/s", "today, with headroom", "utilisation", "plan")
    lines = [Line("Against demand", "bold"), *map(Line, table(header, rows, right=(1, 2, 3, 4)))]
    return [*lines, *(line for note in found.notes for line in wrapped(note, style="yellow"))]


def _cost(found: Comparison) -> list[Line]:
    from flows.render import HOURS_PER_MONTH, Line, money

    saving = found.saving_usd_per_h
    word = "saves" if saving >= 0 else "costs more by"
    share = f" ({abs(saving) / found.cost_usd_per_h:.1%})" if found.cost_usd_per_h else ""
    text = f"today {money(found.cost_usd_per_h)} USD/h, plan {money(found.plan.cost_usd_per_h)} USD/h: the plan {word} "
    month = f"{abs(saving) * HOURS_PER_MONTH:,.0f} USD per month"
    return [Line("Cost", "bold"), Line(f"  {text}{money(abs(saving))} USD/h{share}, {month}")]


def _steps(found: Comparison) -> list[Line]:
    from flows.compare import machines_text
    from flows.render import Line, money, table, wrapped

    lines = [Line("Steps", "bold")]
    if found.kept:
        lines += wrapped(counted(found.kept, "instance stays as it is", "instances stay as they are"))
    rows = []
    regions = {step.unit.region for step in found.steps.steps}
    for number, step in enumerate(found.steps.steps, 1):
        change = [f"rent {machines_text(step.rents)}"] if step.rents else []
        change += [f"return {machines_text(step.returns)}"] if step.returns else []
        rows.append(
            (
                str(number),
                step.action.value,
                f"{step.instances} x {step.unit.name}" + (f" in {step.unit.region}" if len(regions) > 1 else ""),
                "; ".join(change),
                money(step.rent_usd_per_h),
                "" if math.isinf(step.covers) else f"{step.covers:.0%}",
            )
        )
    header = ("", "step", "what", "machines", "USD/h then", "covers")
    if rows:
        lines += map(Line, table(header, rows, right=(0, 4, 5)))
        lines += wrapped(
            "covers: least served after the step, over workloads, of the demand (or of today where that is less)",
            style="dim",
        )
        if found.plan.kv_transfers:
            egress = money(found.plan.egress_usd_per_h)
            text = f"USD/h then is of machines; KV crosses regions as the plan says at most, which costs {egress} USD/h more"
            lines += wrapped(text, style="dim")
    elif not found.steps.short:
        lines.append(Line("  nothing to do: the plan runs already"))
    if found.steps.short:
        lacks = ", ".join(f"{n} {kind} in {region}" for (region, kind), n in sorted(found.steps.short.items()))
        text = f"STUCK: no order holds the demand with the machines there are; the next step lacks {lacks} for a while"
        lines += wrapped(text, style="bold red")
    return lines
