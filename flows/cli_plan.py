"""``coral build``, ``allocate`` and ``plan``: the main job, in parts or as one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.wording import counted
from flows.cli_common import (
    DEFAULT_SCENARIO,
    ApproveOption,
    DaskOption,
    ExitCode,
    JsonOption,
    KvOption,
    LakeOption,
    LaunchableOption,
    MeasuredOption,
    Mode,
    ModeOption,
    SafetyOption,
    ScenarioOption,
    Solver,
    SolverOption,
    WorkersOption,
    YesOption,
    described,
    percentile_of,
    put,
    put_json,
    put_lines,
    say,
)
from flows.settings import BuildResult, BuildSettings, lake_root_of

if TYPE_CHECKING:
    from flows.plan_publish import AllocationOutcome


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command(
        "build",
        **described(
            "Build the template library.",
            "coral build --scenario core",
            "coral init my",
            "coral build -s my/scenario.yaml --workers 2",
        ),
    )(build)
    app.command(
        "allocate",
        **described(
            "Choose what to rent.",
            "coral allocate --scenario core",
            "coral allocate --publish",
            "coral allocate --cross-region-kv 0.02,10",
        ),
    )(allocate)
    app.command(
        "plan",
        **described(
            "Build if needed, allocate, publish, print.",
            "coral plan",
            "coral init my",
            "coral plan -s my/scenario.yaml --lake my-lake --json",
        ),
    )(plan)


def build(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    mode: ModeOption = None,
    solver: SolverOption = Solver.EXACT,
    dask_address: DaskOption = None,
    workers: WorkersOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the scenario's template library: profiles, then every useful combination of nodes, solved.

    Finished shards are kept: a second run, or one after a kill, goes on where the last one stopped.
    """
    from flows.build import build_library
    from flows.cli_progress import show_progress

    with show_progress() as progress:
        result = build_library(_settings(scenario, lake, mode, solver, dask_address, workers, yes), progress)
    if as_json:
        put_json(asdict(result))
    else:
        put(build_text(result))


def allocate(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    mode: ModeOption = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish the plan. Without it nothing is written.")
    ] = False,
    safety: SafetyOption = None,
    measured_only: MeasuredOption = False,
    launchable_only: LaunchableOption = False,
    cross_region_kv: KvOption = None,
    approve: ApproveOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose what to rent from the library that is built, and print the plan. Writes nothing without --publish.

    Ctrl-C ends the search: the best plan so far is printed and not published, exit code 130.

    Exits with 4 when the demand cannot be met, with 5 when nothing was decided because an input is unknown or stale or the
    run came too late, or when the plan waits for approval because a guard rail holds it.
    """
    from catalogs.errors import CoralError
    from flows import planning
    from flows.cli_progress import show_progress
    from flows.turn import RunRequest

    if approve and not publish:
        raise CoralError("--approve approves what is published", remedy="add --publish, or leave --approve out")
    settings = _settings(scenario, lake, mode, Solver.EXACT, None, None)
    settings = _with_policy(settings, safety, measured_only, launchable_only, cross_region_kv)
    with show_progress() as progress:
        outcome = planning.allocate(settings, progress, publish=publish, request=RunRequest(approve=approve))
    _show(outcome, as_json)


def plan(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    mode: ModeOption = None,
    solver: SolverOption = Solver.EXACT,
    dask_address: DaskOption = None,
    workers: WorkersOption = None,
    safety: SafetyOption = None,
    measured_only: MeasuredOption = False,
    launchable_only: LaunchableOption = False,
    cross_region_kv: KvOption = None,
    approve: ApproveOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the library if needed, allocate, publish, and print the plan: the main job in one command.

    An unchanged decision publishes nothing. Exits with 4 when the demand cannot be met, with 5 when nothing was
    decided because an input is unknown or stale or the run came too late, or when the plan waits for approval because a guard
    rail holds it.
    """
    from flows import planning
    from flows.cli_progress import show_progress
    from flows.turn import RunRequest

    settings = _settings(scenario, lake, mode, solver, dask_address, workers, yes)
    settings = _with_policy(settings, safety, measured_only, launchable_only, cross_region_kv)
    with show_progress() as progress:
        outcome = planning.plan_scenario(settings, progress, RunRequest(approve=approve))
    _show(outcome, as_json)


def _settings(
    scenario: str,
    lake: Path | None,
    mode: Mode | None,
    solver: Solver,
    dask_address: str | None,
    workers: int | None,
    accept_large: bool = False,
) -> BuildSettings:
    settings = BuildSettings(
        scenario=scenario,
        lake_root=lake_root_of(lake),
        mode=mode.value if mode else None,
        solver=solver.value,
        dask_address=dask_address,
        accept_large=accept_large,
    )
    if workers is None:
        return settings
    from dataclasses import replace

    return replace(settings, threads=workers)


def _with_policy(
    settings: BuildSettings, safety: str | None, measured_only: bool, launchable_only: bool, cross_region_kv: str | None
) -> BuildSettings:
    from dataclasses import replace

    from catalogs.scenario_kv import kv_terms_of

    return replace(
        settings,
        safety_percentile=percentile_of(safety),
        measured_only=measured_only,
        launchable_only=launchable_only,
        cross_region_kv=None if cross_region_kv is None else kv_terms_of(cross_region_kv),
    )


def build_text(result: BuildResult) -> str:
    """A build's result for a person."""
    from flows.render import table

    rows = [
        (
            counts.alias,
            f"{counts.combinations:,}",
            f"{counts.templates:,}",
            f"{counts.frontier:,}",
            f"{counts.solve_s:.1f}",
            counts.best_template,
        )
        for counts in result.workloads
    ]
    state = "built" if result.is_new else "up to date, nothing to do"
    lines = [
        f"library {result.library_id}: {state}",
        f"  {counted(result.combinations, 'combination')}, {counted(result.templates, 'template')} in "
        f"{counted(result.shards, 'shard')} ({result.shards_skipped} done before; "
        f"{counted(result.combinations_solved, 'combination')} solved now)",
        f"  {result.wall_s:.1f} s, of which solving {result.solve_s:.1f} s summed over workers",
    ]
    if result.sample_n:
        lines.append(
            f"  {counted(result.sample_n, 'placement')} solved again by the reference ILP, of some combinations the best and the "
            "best that stock engines launch: "
            f"largest relative difference {result.sample_max_rel_diff:.2g}"
        )
    if rows:
        header = ("workload", "combinations", "templates", "frontier", "solve s", "cheapest per token")
        lines += table(header, rows, right=(1, 2, 3, 4))
    return "\n".join(lines)


def _show(outcome: AllocationOutcome, as_json: bool) -> None:
    """The plan on stdout, what became of it on stderr, the exit code that says whether demand is met."""
    from flows.render_plan import plan_lines
    from tasks.allocation.types import SolveStatus

    if as_json:
        put(outcome.plan.model_dump_json(by_alias=True, indent=2))
    else:
        put_lines(plan_lines(outcome.plan))
    say(outcome.text)
    if outcome.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if outcome.run_outcome == "held_for_approval":  # also a shortfall's: it is not published
        raise typer.Exit(ExitCode.HELD)
    if outcome.plan.status is SolveStatus.SHORTFALL:
        raise typer.Exit(ExitCode.SHORTFALL)
    if outcome.run_outcome == "superseded":
        raise typer.Exit(ExitCode.HELD)
