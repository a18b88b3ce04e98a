"""``coral whatif``: what another demand, SLO, price or supply would do to the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli_common import (
    DEFAULT_SCENARIO,
    ExitCode,
    JsonOption,
    LakeOption,
    ScenarioOption,
    YesOption,
    described,
    put_json,
    put_lines,
    say,
)
from flows.settings import BuildSettings, lake_root_of

if TYPE_CHECKING:
    from flows.render import Line
    from flows.whatif import WhatIfAnswer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "whatif",
        **described(
            "What other inputs would change.",
            "coral whatif --demand qwen3-32b=+30% --without L40S",
            "coral whatif --price 'L4:*=+10%' --supply us-east-2:L4x1=0",
            "coral whatif --slo phi-4.decode=50 --build",
            "coral whatif --cross-region-kv 0.02,10",
        ),
    )(whatif)


def whatif(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    demand: Annotated[
        list[str] | None, typer.Option("--demand", metavar="MODEL=R", help="Requests/s, or +N% or -N%.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", metavar="MODEL.PHASE=MS", help="TTFT (prefill) or TPOT (decode) in ms, or +N% or -N%."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="CONFIG:REGION=USD", help="USD/h of a node, or +N% or -N%; patterns as L4*:*."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="GPU|CONFIG", help="Rent none of these.")
    ] = None,
    without_region: Annotated[
        list[str] | None,
        typer.Option("--without-region", "--region-without", metavar="REGION", help="Rent nothing there."),
    ] = None,
    supply: Annotated[
        list[str] | None,
        typer.Option("--supply", metavar="REGION:CONFIG=N", help="So many nodes can be had; patterns as *:L4*."),
    ] = None,
    cross_region_kv: Annotated[
        str | None,
        typer.Option(
            "--cross-region-kv",
            metavar="USD[,GBIT]|off",
            help="KV may cross regions at USD per GB and so many Gbit/s, or not at all.",
        ),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Settle the headroom by simulation, as `coral plan` does: takes longer.")
    ] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Build the part of the library that a changed SLO needs.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Plan with some inputs changed and compare with the current plan. Nothing is published.

    Options may be given again. The headroom is the current plan's unless --simulate is given. Exits with 4 when the demand
    could not be met.
    """
    from flows.cli_progress import show_progress
    from flows.whatif import answer_document, what_if
    from flows.whatif_changes import WhatIf
    from tasks.allocation.types import SolveStatus

    lists = (demand, slo, price, without, without_region, supply, [cross_region_kv] if cross_region_kv else None)
    asked = WhatIf(*(tuple(given or ()) for given in lists))
    settings = BuildSettings(scenario=scenario, lake_root=lake_root_of(lake), accept_large=yes)
    with show_progress() as progress:
        answer = what_if(settings, asked, progress, simulate=simulate, build=build)
    if as_json:
        put_json(answer_document(answer))
    else:
        put_lines(answer_lines(answer))
    say("nothing is published")
    if answer.after.status is SolveStatus.SHORTFALL:
        raise typer.Exit(ExitCode.SHORTFALL)


def answer_lines(answer: WhatIfAnswer) -> list[Line]:
    """The whole of ``coral whatif``."""
    from flows.cli_diff import change_lines
    from flows.render import Line, money, table, wrapped
    from flows.whatif import use_of, workload_names
    from tasks.allocation.plan_diff import diff_plans

    before, after = answer.before, answer.after
    lines = [Line(f"What if, against version {before.plan_version} of {before.scenario_id}", "bold")]
    for change in answer.changes:
        lines += wrapped(change)
    rows = []
    for name in workload_names(answer):
        old, new = use_of(before, name), use_of(after, name)
        costs = (old["cost_usd_per_h"], new["cost_usd_per_h"])
        rows.append((name, money(costs[0]), money(costs[1]), _delta(costs[1] - costs[0]), _gpus(old), _gpus(new)))
    total = after.cost_usd_per_h - before.cost_usd_per_h
    rows.append(("total", money(before.cost_usd_per_h), money(after.cost_usd_per_h), _delta(total), "", ""))
    header = ("workload", "USD/h now", "then", "change", "instances and GPUs now", "then")
    lines += [Line(""), *map(Line, table(header, rows, right=(1, 2, 3)))]
    changes = change_lines(diff_plans(before, after), changed_only=True)
    lines += [Line(""), Line("Instances", "bold"), *(changes or [Line("  no difference")])]
    lines += [Line(""), Line("Then", "bold"), *(line for text in _figures(after) for line in wrapped(text))]
    for note in answer.notes:
        lines += wrapped(f"note: {note}", style="yellow")
    return lines


def _figures(after: Any) -> list[str]:
    from flows.render import money, number, percent_up
    from flows.render_plan import distance_to_best

    distance = distance_to_best(after)
    gap = "" if distance is None else f"; within {percent_up(distance)} % of the best plan this library can express"
    texts = [f"start-up {money(after.init_usd)} USD once{gap}"]
    planned = {row.workload_id: row.planned_tok_per_s for row in after.workloads}
    for row in after.shortfalls:
        part = row.missing_tok_per_s / planned[row.workload_id] if planned[row.workload_id] else 0.0
        missing = f"{number(row.missing_tok_per_s)} tok/s ({part:.1%})"
        extra = f"; cheapest extra: {row.cheapest_extra}" if row.cheapest_extra else ""
        texts.append(f"DEMAND NOT MET: {row.workload} misses {missing}{extra}")
    return texts


def _delta(usd_per_h: float) -> str:
    return "0.00" if abs(usd_per_h) < 0.005 else f"{usd_per_h:+,.2f}"


def _gpus(use: dict[str, Any]) -> str:
    gpus = ", ".join(f"{count} {gpu}" for gpu, count in use["gpus"].items())
    return f"{use['instances']} on {gpus}" if gpus else "none"
