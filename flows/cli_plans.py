"""``coral plans list|show|diff|picture|schema``: the plan versions of a lake. What moves them on: `flows.cli_plan_states`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.errors import CoralError, InputError, UnknownNameError
from flows import cli_plan_states
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
    from tasks.allocation.plan import Plan
    from warehouse.connect import Lake
    from warehouse.records import PlanSummary


def register(app: typer.Typer) -> None:
    """Add the group of commands to ``app``."""
    plans = command_group(
        "plans",
        "The plan versions: list, show, compare, approve, roll back.",
        "coral plans list",
        "coral plans show --why",
    )
    plans.command(
        "list", **described("List plan versions.", "coral plans list", "coral plans list --scenario core --json")
    )(list_plans)
    plans.command(
        "show",
        **described(
            "Print a plan.", "coral plans show", "coral plans show 1 --scenario core --json", "coral plans show --why"
        ),
    )(show_plan)
    plans.command("diff", **described("Compare two plans.", "coral plan --safety p90", "coral plans diff 1 2"))(
        diff_two_plans
    )
    plans.command("schema", **described("Print the JSON Schema of a plan.", "coral plans schema > plan.schema.json"))(
        plan_schema
    )
    cli_plan_states.register(plans)
    plans.command(
        "picture",
        **described(
            "Draw a plan as an SVG.", "coral plans picture --out plan.svg", "coral plans picture 1 --scenario core"
        ),
    )(plan_picture)
    app.add_typer(plans)


def plan_schema() -> None:
    """Print the JSON Schema that ``coral plans show --json`` keeps to."""
    from tasks.allocation.plan import plan_json_schema

    put_json(plan_json_schema())


def plan_picture(
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="Plan version. [default: the current one]")
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("plan.svg"),
) -> None:
    """Draw a published plan: every kind of replica as its pipeline of stages with layers and nodes."""
    from flows.cli_dashboard import draw_plan

    plan = plan_at(lake_root_of(lake), scenario, version)
    draw_plan(plan.model_dump_json(by_alias=True), out)
    say(f"version {plan.plan_version} of {plan.scenario_id} drawn in {out}")


def list_plans(
    scenario: Annotated[
        str | None, typer.Option("--scenario", "-s", metavar="NAME|PATH", help="Only this scenario's. [default: all]")
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the plan versions: state, status, cost, gap, when and why. The current one is published, approved, applied or
    partial; a proposed one waits for `coral plans approve`."""
    from flows.render_plan import plan_list_lines

    root = lake_root_of(lake)
    summaries = _summaries(root, scenario)
    if as_json:
        put_json([{**asdict(summary), "created_at": summary.created_at.isoformat()} for summary in summaries])
    else:
        put_lines(plan_list_lines(summaries))


def show_plan(
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="Plan version. [default: the current one]")
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    why: Annotated[
        bool, typer.Option("--why", help="Say why: what other choices, supply and rules would cost.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a published plan: what to rent, how each model is laid over it, its cost, and how far from the best it is.

    With --why also what one node more or fewer is worth, what each template saves, each model's next-best plan, and what
    headroom and other rules cost: computed once, in about ten seconds, and kept in the lake. What that time did not allow to
    close is computed again when asked for again.
    """
    from flows.render import Line
    from flows.render_plan import plan_lines

    root = lake_root_of(lake)
    plan = plan_at(root, scenario, version)
    if not why:
        if as_json:
            put(plan.model_dump_json(by_alias=True, indent=2))
        else:
            put_lines(plan_lines(plan))
        return
    from flows.render_why import why_lines
    from flows.why import plan_why

    document = plan_why(root, plan)
    if as_json:
        put_json({"plan": plan.model_dump(by_alias=True, mode="json"), "why": document})
    else:
        put_lines([*plan_lines(plan), Line(""), *why_lines(document)])


def diff_two_plans(
    before: Annotated[int, typer.Argument(metavar="A", help="Plan version to come from.")],
    after: Annotated[
        int | None, typer.Argument(metavar="B", help="Plan version to go to. [default: the current one]")
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What to add, keep and remove to get from plan A to plan B, and what that does to the cost.

    Exits with 3 when they differ.
    """
    from flows.cli_diff import diff_lines
    from tasks.allocation.plan_diff import diff_plans

    root = lake_root_of(lake)
    diff = diff_plans(plan_at(root, scenario, before), plan_at(root, scenario, after))
    if as_json:
        put_json(diff.document())
    else:
        put_lines(diff_lines(diff))
    if not diff.is_empty:
        raise typer.Exit(ExitCode.DIFFERENCE)


def scenario_id_of(scenario: str) -> str:
    """The id that plans are kept under: of the scenario at that path or shipped by that name, else the id itself."""
    from catalogs.scenario_files import scenario_path
    from catalogs.scenario_yaml import read_scenario_file

    try:
        path = scenario_path(scenario)
    except UnknownNameError:
        return scenario
    draft = read_scenario_file(path)
    if draft.whole is None:
        raise InputError(draft.findings)
    return draft.whole.id


def _summaries(root: Path, scenario: str | None) -> list[PlanSummary]:
    from warehouse.connect import Lake
    from warehouse.read import list_plans

    with Lake.open(root, read_only=True) as lake:
        return list_plans(lake, None if scenario is None else known_scenario(lake, scenario))


def plan_at(root: Path, scenario: str, version: int | None) -> Plan:
    """A plan version, the current one for None. Raises UnknownNameError for a scenario or version that is not there."""
    from warehouse.connect import Lake

    with Lake.open(root, read_only=True) as lake:
        return plan_in(lake, scenario, version)


def plan_in(lake: Lake, scenario: str, version: int | None) -> Plan:
    """:func:`plan_at` in a lake that is open."""
    from warehouse.read import current_plan, plan_version

    scenario_id = known_scenario(lake, scenario)
    if version is not None:
        return plan_version(lake, scenario_id, version)
    plan = current_plan(lake, scenario_id)
    assert plan is not None  # of plans there are, one is current: the first never waits for approval
    return plan


def known_scenario(lake: Lake, scenario: str) -> str:
    """The id of ``scenario``, if it has a published plan here."""
    from warehouse.read import list_plans

    scenario_id = scenario_id_of(scenario)
    known = {summary.scenario_id for summary in list_plans(lake)}
    if scenario_id in known:
        return scenario_id
    if not known:
        raise CoralError(f"no plan is published in {lake.root}", remedy=f"run `coral plan --scenario {scenario}` first")
    raise UnknownNameError("scenario", scenario_id, known, where=f"plans in {lake.root}")
