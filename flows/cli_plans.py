"""``coral plans list|show|diff``: the published plans of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catalogs.errors import CoralError, UnknownNameError
from flows.cli_common import (
    DEFAULT_SCENARIO,
    ExitCode,
    JsonOption,
    LakeOption,
    ScenarioOption,
    described,
    put,
    put_json,
    put_lines,
)
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan
    from warehouse.records import PlanSummary


def register(app: typer.Typer) -> None:
    """Add the group of commands to ``app``."""
    plans = typer.Typer(
        name="plans", help="The published plans: list, show, compare.", rich_markup_mode=None, no_args_is_help=True
    )
    plans.command(
        "list", **described("List plan versions.", "coral plans list", "coral plans list --scenario core --json")
    )(list_plans)
    plans.command(
        "show", **described("Print a plan.", "coral plans show", "coral plans show 3 --scenario core --json")
    )(show_plan)
    plans.command("diff", **described("Compare two plans.", "coral plans diff 1 2", "coral plans diff 1 --json"))(
        diff_two_plans
    )
    app.add_typer(plans)


def list_plans(
    scenario: Annotated[
        str | None, typer.Option("--scenario", "-s", metavar="NAME|PATH", help="Only this scenario's. [default: all]")
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the plan versions: state, status, cost, gap, when and why."""
    from flows.render import plan_list_lines

    root = lake_root_of(lake)
    summaries = _summaries(root, None if scenario is None else _scenario_id(root, scenario))
    if as_json:
        put_json([{**asdict(summary), "created_at": summary.created_at.isoformat()} for summary in summaries])
    else:
        put_lines(plan_list_lines(summaries))


def show_plan(
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="Plan version. [default: the latest]")
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a published plan: what to rent, how each model is laid over it, its cost, and how far from the best it is."""
    from flows.render import plan_lines

    root = lake_root_of(lake)
    plan = _plan(root, _scenario_id(root, scenario), version)
    if as_json:
        put(plan.model_dump_json(by_alias=True, indent=2))
    else:
        put_lines(plan_lines(plan))


def diff_two_plans(
    before: Annotated[int, typer.Argument(metavar="A", help="Plan version to come from.")],
    after: Annotated[
        int | None, typer.Argument(metavar="B", help="Plan version to go to. [default: the latest]")
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What to add, keep and remove to get from plan A to plan B, and what that does to the cost.

    Exits with 3 when they differ.
    """
    from flows.cli_diff import diff_lines, diff_plans

    root = lake_root_of(lake)
    scenario_id = _scenario_id(root, scenario)
    diff = diff_plans(_plan(root, scenario_id, before), _plan(root, scenario_id, after))
    if as_json:
        put_json(diff.document())
    else:
        put_lines(diff_lines(diff))
    if not diff.is_empty:
        raise typer.Exit(ExitCode.DIFFERENCE)


def _scenario_id(root: Path, scenario: str) -> str:
    raise NotImplementedError(CoralError, UnknownNameError)


def _summaries(root: Path, scenario_id: str | None) -> Sequence[PlanSummary]:
    raise NotImplementedError


def _plan(root: Path, scenario_id: str, version: int | None) -> Plan:
    raise NotImplementedError
