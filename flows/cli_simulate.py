"""``coral simulate``: replay requests against a published plan and say whether its SLOs hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli_common import (
    DEFAULT_SCENARIO,
    DaskOption,
    ExitCode,
    JsonOption,
    LakeOption,
    ScenarioOption,
    WorkersOption,
    described,
    put_json,
    put_lines,
    say,
)
from flows.settings import lake_root_of


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "simulate",
        **described(
            "Replay requests against a plan.",
            "coral simulate",
            "coral simulate --minutes 10 --seeds 3 --report plan.html",
            "coral init my",
            "coral simulate --trace my/trace.csv --rate 2 --minutes 10",
            "coral plan --safety p90",
            "coral simulate --from-plan 1 --plan 2 --switch-at 10 --minutes 30",
        ),
    )(simulate)


def simulate(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    plan: Annotated[
        int | None, typer.Option("--plan", metavar="VERSION", help="Published plan. [default: the current one]")
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            "--trace",
            metavar="FILE|NAME|MODEL=FILE",
            help="A trace: an Azure, BurstGPT or Mooncake file, our own CSV or Parquet, or azure-conv, azure-code, "
            "mooncake. Give it again for more; MODEL=FILE is for one model. [default: Poisson]",
        ),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", metavar="R|MODEL=R", help="Mean requests/s of each model. [default: as planned]"),
    ] = None,
    poisson: Annotated[
        bool, typer.Option("--poisson", help="Poisson arrivals; of a trace only the lengths are used.")
    ] = False,
    minutes: Annotated[float, typer.Option("--minutes", help="Minutes to simulate.")] = 30.0,
    from_plan: Annotated[
        int | None,
        typer.Option("--from-plan", metavar="VERSION", help="Start on this plan and change to --plan on the way."),
    ] = None,
    switch_at: Annotated[
        float | None,
        typer.Option("--switch-at", metavar="MINUTES", help="When that change begins. [default: a third of --minutes]"),
    ] = None,
    startup: Annotated[
        float | None,
        typer.Option("--startup", metavar="MINUTES", help="Until new instances are up. [default: as in the scenario]"),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs with different seeds.")] = 1,
    without_transfer: Annotated[
        bool, typer.Option("--ttft-before-transfer", help="End TTFT with prefill: leave out the KV's way to decode.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a static HTML report; it needs no network.")
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Compare with published measurements instead, and say what stays open.")
    ] = False,
    dask_address: DaskOption = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay requests against a published plan: latency, goodput, how busy nodes are, how long queues get.

    The plan and its library stay as they are. Finished runs are kept in the lake and not run again. Exits with 3 when a
    workload misses its SLO at the percentile asked for.
    """
    if validate:
        _validate(as_json)
        return
    from flows.cli_progress import show_progress
    from flows.simulate import check_report_path, run_simulation, write_report
    from flows.simulate_inputs import SimulateSettings

    settings = SimulateSettings(
        scenario,
        lake_root_of(lake),
        plan,
        tuple(trace or ()),
        tuple(rate or ()),
        poisson,
        minutes,
        seeds,
        not without_transfer,
        dask_address,
        from_plan,
        switch_at,
        startup,
        **({} if workers is None else {"threads": workers}),
    )
    if report is not None:
        check_report_path(report)
    with show_progress() as progress:
        document = run_simulation(settings, progress)
    if report is not None:
        write_report(document, report)
        say(f"report written to {report}")
    _show(document, as_json)


def _show(document: dict[str, Any], as_json: bool) -> None:
    """The document on stdout, and the exit code that says whether the SLOs hold."""
    from flows.render_simulation import simulation_lines
    from flows.simulate_work import is_kept

    if as_json:
        put_json(document)
    else:
        put_lines(simulation_lines(document))
    if not is_kept(document):
        raise typer.Exit(ExitCode.DIFFERENCE)


def _validate(as_json: bool) -> None:
    """The comparison with measurements on stdout; what was left out, and why, on stderr."""
    from flows.cli_progress import show_progress
    from flows.render_simulation import validation_lines
    from flows.validate_simulation import validate

    with show_progress() as progress:
        document = validate(progress)
    if as_json:
        put_json(document)
        return
    put_lines(validation_lines(document))
    for note in document["notes"]:
        say(f"note: {note}")
