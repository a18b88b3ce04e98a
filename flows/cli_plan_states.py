"""``coral plans approve|rollback|applied``: what a person, or a program that starts machines, says of a plan version."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from flows.cli_common import DEFAULT_SCENARIO, LakeOption, ScenarioOption, described, put
from flows.settings import lake_root_of

VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", help="Plan version.")]


def register(plans: typer.Typer) -> None:
    """Add the commands to the group ``plans``."""
    plans.command(
        "approve",
        **described(
            "Make a plan current that a guard rail holds.",
            "coral plan --safety p90",
            "coral plans rollback 1",
            "coral plan --safety p90",
            "coral plans approve 3 --scenario core",
        ),
    )(approve)
    plans.command(
        "rollback",
        **described("Make an earlier plan current again.", "coral plan --safety p90", "coral plans rollback 1"),
    )(rollback)
    plans.command(
        "applied",
        **described(
            "Say that a plan runs.", "coral plans applied 1", "coral plans applied 1 --partial --scenario core"
        ),
    )(applied)


def approve(version: VersionArgument, scenario: ScenarioOption = DEFAULT_SCENARIO, lake: LakeOption = None) -> None:
    """Make a proposed plan the current one. The version before is superseded, and so is every other proposal.

    `coral plans show VERSION` prints what is proposed, `coral plans diff CURRENT VERSION` what it changes.
    """
    from flows.cli_plans import known_scenario
    from warehouse.connect import Lake
    from warehouse.plan_states import approve_plan

    with Lake.open(lake_root_of(lake), create=False) as opened:
        scenario_id = known_scenario(opened, scenario)
        approve_plan(opened, scenario_id, version, by=person())
    put(f"version {version} of {scenario_id} is current now (approved)")


def rollback(version: VersionArgument, scenario: ScenarioOption = DEFAULT_SCENARIO, lake: LakeOption = None) -> None:
    """Make a plan current again that was current before. Versions never change; what is undone stays in the list.

    Until a person approves another plan, every other decision waits for approval: a rollback overrules the planner.
    """
    from flows.cli_plans import known_scenario
    from warehouse.connect import Lake
    from warehouse.plan_states import roll_back_plan

    with Lake.open(lake_root_of(lake), create=False) as opened:
        scenario_id = known_scenario(opened, scenario)
        before = roll_back_plan(opened, scenario_id, version, by=person())
    put(
        f"version {version} of {scenario_id} is current again, in place of version {before}; "
        "any other plan waits for approval from now on"
    )


def applied(
    version: VersionArgument,
    partial: Annotated[bool, typer.Option("--partial", help="Only part of it runs.", show_default=False)] = False,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
) -> None:
    """Say that a plan runs, where no fleet is observed: start-up charges of the next plan are counted from it.

    With `coral ingest fleet` this is not needed: what is seen running decides.
    """
    from flows.cli_plans import known_scenario
    from warehouse.connect import Lake
    from warehouse.plan_states import mark_running

    with Lake.open(lake_root_of(lake), create=False) as opened:
        scenario_id = known_scenario(opened, scenario)
        is_new = mark_running(opened, scenario_id, version, is_whole=not partial, by=person())
    what = "part of it runs" if partial else "it runs"
    put(f"version {version} of {scenario_id}: {what}{'' if is_new else ', as was known'}")


def person() -> str:
    """Who runs the command, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user's name
        return "unknown"
