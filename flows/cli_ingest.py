"""``coral ingest prices|availability|demand|fleet``: files of what the world is like now, into the lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.errors import CoralError, Finding, clipped, finding_lines
from catalogs.lake_feeds import FeedKind
from catalogs.wording import counted
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
    say,
)
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from flows.ingest import IngestResult

# An example of a fleet: all that the plan rents.
RUNNING_NOW = (
    'coral sql "SELECT now() AS observed_at, region, node_config, market, nodes FROM plan_offers '
    "WHERE scenario_id = 'core' AND plan_version = 1\" --format csv --out running.csv"
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file to take in.")]
ConfirmOption = Annotated[bool, typer.Option("--confirm", help="What was held for confirmation is right: take it in.")]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="UTC time the file tells of, such as 2026-07-30T12:00:00Z. [default: when it was written]",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    group = command_group(
        "ingest",
        "Take in files of prices, supply, demand and what runs.",
        "coral init my",
        "coral ingest demand my/demand.csv -s my/scenario.yaml",
        short="Take in prices, supply, demand, what runs.",
    )
    group.command(
        "prices",
        **described(
            "Prices: SkyPilot's catalogs, own CSV.",
            "coral init my",
            "coral ingest prices my/offers.csv -s my/scenario.yaml --as-of 2025-05-01",
        ),
    )(prices)
    group.command(
        "availability",
        **described(
            "Nodes that can be had.",
            "coral init my",
            "coral ingest availability my/availability.csv -s my/scenario.yaml",
        ),
    )(availability)
    group.command(
        "demand",
        **described(
            "Demand per window, or a request trace.",
            "coral init my",
            "coral ingest demand my/demand.csv -s my/scenario.yaml",
            "coral ingest demand my/trace.csv -s my/scenario.yaml --model qwen3-8b --start 2025-05-01T10:00:00Z "
            "--window-minutes 10",
        ),
    )(demand)
    group.command("fleet", **described("Machines that run now.", RUNNING_NOW, "coral ingest fleet running.csv"))(fleet)
    app.add_typer(group)


def prices(
    file: FileArgument,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="Whose SkyPilot catalog it is: aws, gcp, runpod, lambda. [default: as the file or its folder is named]",
            show_default=False,
        ),
    ] = None,
    as_of: AsOfOption = None,
    confirm: ConfirmOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take in prices: a vms.csv of SkyPilot's catalog, or a CSV in the format of a scenario's own offers.

    A file tells all that its regions offer: what it no longer has is withdrawn there. Rows that cannot be read are set aside,
    implausible prices are held (exit 5) until --confirm; the last known price stays meanwhile. A scenario uses them with
    offers: {feed: lake}.
    """
    _run(FeedKind.PRICES, file, scenario, lake, as_json, provider=provider, as_of=time_of(as_of), is_confirmed=confirm)


def availability(
    file: FileArgument,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take in how many nodes can be had: CSV or Parquet with region, node_config, market, observed_at, nodes.

    The newest row of each counts. Blank, NULL and NaN are unknown (quota or default, marked assumed); 0 is none. A scenario
    uses it with availability: {feed: lake}.
    """
    _run(FeedKind.AVAILABILITY, file, scenario, lake, as_json)


def demand(
    file: FileArgument,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model a trace is of. [default: as it says, or the only one]"),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="TIME",
            help="UTC time of a trace's first request, such as 2026-07-30T12:00:00Z. [default: as it says]",
            show_default=False,
        ),
    ] = None,
    window_minutes: Annotated[
        int | None,
        typer.Option(
            "--window-minutes", min=1, max=1440, help="Length of a window. [default: the scenario's, else 60]"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take in demand: CSV or Parquet with model, window_start, demand_req_per_s, or a request trace (Azure, BurstGPT, Mooncake,
    own Parquet) that is counted into windows of rates and lengths.

    Blank, NULL and NaN are unknown (the last plan is held); 0 releases. Lengths that have drifted by more than 10 % from the
    library's are told, with what to rebuild. A scenario uses it with demand: {feed: lake}.
    """
    _run(
        FeedKind.DEMAND,
        file,
        scenario,
        lake,
        as_json,
        model=model,
        start=time_of(start, "--start"),
        window_minutes=window_minutes,
    )


def fleet(
    file: FileArgument,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_of: AsOfOption = None,
    confirm: ConfirmOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take in what runs: CSV or Parquet with observed_at, region, node_config, market, template_id, nodes, failed_nodes.

    A file tells of all that ran at each moment. Of a machine that could not be had (failed_nodes) no further one counts as
    available for feeds.failed_launch_minutes. A file of a heading alone says that nothing runs, and is held until --confirm.
    """
    _run(FeedKind.FLEET, file, scenario, lake, as_json, as_of=time_of(as_of), is_confirmed=confirm)


def time_of(text: str | None, option: str = "--as-of") -> datetime | None:
    """A UTC time or day as given on the command line. Raises CoralError for another form."""
    if text is None:
        return None
    from catalogs.cells import CellError, Column, parse_cell

    try:
        value = parse_cell(text, Column(option, "timestamp", "", "yes", "", False, ""))
    except CellError as error:
        raise CoralError(f"{option} {clipped(text)!r} {error.reason}", remedy=error.remedy) from None
    assert isinstance(value, datetime)
    return value


def _run(kind: FeedKind, file: Path, scenario: str, lake: Path | None, as_json: bool, **options: Any) -> None:
    from flows.ingest import IngestRequest, ingest

    request = IngestRequest(kind, file, scenario, lake_root_of(lake), **options)
    result = ingest(request)
    if as_json:
        put_json(_document(result))
    else:
        put(_summary(result))
        for what, findings in (("held", result.held), ("set aside", result.rejects)):
            _say_findings(what, findings)
        for note in result.notes:
            say(f"note: {note}")
    if result.held:
        raise typer.Exit(ExitCode.HELD)
    if result.rejects and not result.record.n_accepted:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _summary(result: IngestResult) -> str:
    record = result.record
    when = f" of {record.observed_at:%Y-%m-%d %H:%M} UTC" if record.observed_at else ""
    news = counted(record.n_changed, "change") if record.n_changed else "nothing new"
    seen = counted(record.n_rows, result.unit)
    return (
        f"{record.kind.value} of {record.scenario_id}{when}: {seen}, {record.n_accepted:,} accepted, "
        f"{record.n_held:,} held, {record.n_rejected:,} set aside; {news}"
    )


def _say_findings(what: str, findings: Sequence[Finding]) -> None:
    for line in finding_lines(findings, everything="the table `rejects` has all"):
        say(f"{what}: {line}")


def _document(result: IngestResult) -> dict[str, Any]:
    record = asdict(result.record)
    record["kind"] = result.record.kind.value
    record["observed_at"] = result.record.observed_at.isoformat() if result.record.observed_at else None
    findings = {"held": result.held, "rejected": result.rejects}
    return {
        **record,
        **{name: [asdict(f) for f in some] for name, some in findings.items()},
        "notes": list(result.notes),
    }
