"""``coral backfill``, ``gc`` and ``migrate``: adding to a lake, cleaning it, and bringing it up to date."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.wording import counted
from flows.cli_common import (
    DEFAULT_SCENARIO,
    DaskOption,
    JsonOption,
    LakeOption,
    Mode,
    ModeOption,
    ScenarioOption,
    WorkersOption,
    YesOption,
    described,
    put,
    put_json,
    say,
)
from flows.settings import BuildSettings, lake_root_of

if TYPE_CHECKING:
    from warehouse.gc import Garbage


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command(
        "backfill",
        **described(
            "Add a GPU type to a library.",
            "coral backfill --gpu H100-SXM",
            "coral backfill --gpu H200-SXM --as with-h200",
        ),
    )(backfill)
    app.command(
        "gc",
        **described("Delete what nothing needs.", "coral gc --keep-days 30 --dry-run", "coral gc --keep-days 30"),
    )(gc)
    app.command("migrate", **described("Bring a lake up to date.", "coral migrate"))(migrate)


def backfill(
    gpu: Annotated[list[str], typer.Option("--gpu", metavar="GPU", help="A GPU type to add; may be given again.")],
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    key: Annotated[
        str | None,
        typer.Option("--as", metavar="KEY", help="Make it the current library of KEY. [default: of the scenario]"),
    ] = None,
    mode: ModeOption = None,
    dask_address: DaskOption = None,
    workers: WorkersOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the scenario's library as if it offered the GPU types too, where its regions sell them at its prices.

    Only combinations with a new GPU type are solved; files of the others are shared with the scenario's own library,
    which stays as it is. The scenario's file is not changed; what to change in it to plan with the GPU is told.
    """
    from catalogs.scenario_extend import how_to_offer
    from flows.backfill import backfill_library
    from flows.cli_progress import show_progress

    settings = _settings(scenario, lake, mode, dask_address, workers, yes)
    with show_progress() as progress:
        result = backfill_library(replace(settings, library_key=key), gpu, progress)
    if as_json:
        put_json(asdict(result))
    else:
        from flows.cli_plan import build_text

        put(build_text(result))
    if result.is_new and not result.combinations_solved:
        say(
            f"no combination with {', '.join(gpu)} is new: none fits within library.rho x the weights, or all were solved"
        )
    if result.is_new:
        say(f"to plan with {', '.join(gpu)}, {how_to_offer(scenario, gpu)}: the library is then found as it is")


def gc(
    lake: LakeOption = None,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0, max=36500, help="Keep what was in use within this many days.")
    ] = 30,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete libraries that are nobody's current one and that no kept plan needs, files that no library names, and what is
    older than --keep-days of results that can be computed again and of logs: runs that published nothing, alerts that are
    over, rejected rows, earlier states of the fleet.

    A plan is kept while it is current, while it is its scenario's newest or last applied, and for --keep-days after it was
    superseded, with what it was decided on. Plan versions themselves are never deleted. Earlier snapshots of the lake are
    forgotten. What feeds told before --keep-days goes, but for the last word on each and a year of demand.
    """
    from warehouse.connect import Lake
    from warehouse.gc import collect_garbage, find_garbage

    with Lake.open(lake_root_of(lake), read_only=dry_run, create=False) as opened:
        garbage = (find_garbage if dry_run else collect_garbage)(opened, keep_days)
    if as_json:
        put_json({**asdict(garbage), "dry_run": dry_run})
    else:
        put("\n".join(_garbage_lines(garbage, dry_run)))


def migrate(lake: LakeOption = None) -> None:
    """Bring the lake to this version's tables and views. Its data stays as it is.

    A lake that no migration leads from is refused and left as it is (exit 6), with the way out.
    """
    from warehouse.migrate import migrate_lake
    from warehouse.schema import LAKE_SCHEMA_VERSION

    root = lake_root_of(lake)
    before = migrate_lake(root)
    if before < LAKE_SCHEMA_VERSION:
        put(f"the lake in {root} had schema version {before}; now it is the current one, {LAKE_SCHEMA_VERSION}")
    else:
        put(f"the lake in {root} has the current schema version, {before}: nothing to do")


def _settings(
    scenario: str, lake: Path | None, mode: Mode | None, dask_address: str | None, workers: int | None, yes: bool
) -> BuildSettings:
    settings = BuildSettings(
        scenario=scenario,
        lake_root=lake_root_of(lake),
        mode=mode.value if mode else None,
        dask_address=dask_address,
        accept_large=yes,
    )
    return settings if workers is None else replace(settings, threads=workers)


def _garbage_lines(garbage: Garbage, dry_run: bool) -> list[str]:
    verb = "would delete" if dry_run else "deleted"
    kept = counted(len(garbage.kept_libraries), "library stays", "libraries stay")
    size = f"{counted(len(garbage.files), 'file')}, {garbage.bytes / 2**20:,.1f} MiB"
    lines = [f"{verb} {counted(len(garbage.libraries), 'library', 'libraries')} and {size}; {kept}"]
    lines += [f"  library {name}" for name in garbage.libraries]
    lines += [f"  {counted(count, 'row')} of {name}" for name, count in garbage.rows.items()]
    return lines + [f"  {name}" for name in garbage.files] if dry_run else lines
