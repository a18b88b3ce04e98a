"""``coral export``: a published plan as what launches it."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalogs.wording import counted
from flows.cli_common import (
    DEFAULT_SCENARIO,
    JsonOption,
    LakeOption,
    ScenarioOption,
    described,
    put,
    put_json,
    say,
)
from flows.settings import lake_root_of

if TYPE_CHECKING:
    from flows.export import Exported


class Target(StrEnum):
    """What an export is for."""

    VLLM = "vllm"
    SKYPILOT = "skypilot"
    KUBERNETES = "kubernetes"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "export",
        **described(
            "A plan as commands and manifests.",
            "coral export --to kubernetes --out launch",
            "coral plan --safety p90",
            "coral export --plan 2 --diff 1 --to vllm --to skypilot --out launch",
        ),
    )(export)


def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write; replaced as a whole.")],
    to: Annotated[list[Target], typer.Option("--to", help="What to export for; may be given again.")],
    plan: Annotated[
        int | None,
        typer.Option("--plan", metavar="N", help="Plan version. [default: the current one]", show_default=False),
    ] = None,
    diff: Annotated[
        int | None, typer.Option("--diff", metavar="M", help="Version that runs now: say what to add, keep and drain.")
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option("--engine-version", metavar="X.Y.Z", help="vLLM version. [default: the plan's, or newest]"),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint", metavar="MODEL=REPO", help="Where weights are, if not under the model's own name."
        ),
    ] = None,
    attention_backend: Annotated[
        str, typer.Option("--attention-backend", metavar="NAME", help="Pin it for all engines. [default: each its own]")
    ] = "",
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a published plan as vLLM commands per node, SkyPilot tasks, or LeaderWorkerSets, with weights for a router,
    bounds for an autoscaler, and the list of what stock engines do not launch.

    DIR must be new, empty, or an export in which nothing was added or edited.
    """
    from flows.export import ExportSettings, export_plan
    from flows.export_folder import MANIFEST

    settings = ExportSettings(
        scenario=scenario,
        lake_root=lake_root_of(lake),
        targets=tuple(dict.fromkeys(target.value for target in to)),
        plan_version=plan,
        from_plan_version=diff,
        engine_version=engine_version,
        checkpoints=tuple(checkpoint or ()),
        attention_backend=attention_backend,
    )
    exported = export_plan(settings, out)
    document = summary(exported)
    if as_json:
        put_json(document)
    else:
        put("\n".join(_lines(exported, document)))
    for note in exported.export.notes:
        say(f"note: {note}")
    say(f"{counted(len({MANIFEST, *exported.export.files}), 'file')} written to {out}")


def summary(exported: Exported) -> dict[str, Any]:
    """The export in figures, as JSON types."""
    launch, export = exported.launch, exported.export
    changes = None
    if export.changes is not None:
        changes = {kind: sum(c.action == kind for c in export.changes) for kind in ("keep", "add", "drain")}
    return {
        "scenario_id": launch.plan.scenario_id,
        "plan_version": launch.plan.plan_version,
        "engine": asdict(launch.facts.engine),
        "groups": [
            {
                "group": group.name,
                "region": group.row.region,
                "workload": group.row.workload,
                "combination_id": group.row.combination_id,
                "launch_class": group.row.launch_class.value,
                "instances": group.row.instances,
                "nodes": len(group.nodes) * group.row.instances,
                "refusal": group.refusal,
            }
            for group in launch.groups
        ],
        "not_launchable": [
            {"target": r.target, "group": r.group.name, "reason": r.reason, "remedy": r.remedy} for r in export.refused
        ],
        "changes": changes,
        "notes": list(export.notes),
    }


def _lines(exported: Exported, document: dict[str, Any]) -> list[str]:
    from flows.render import table

    plan, engine = exported.plan, exported.launch.facts.engine
    rows = [
        (
            row["group"],
            row["region"],
            row["combination_id"],
            row["launch_class"],
            str(row["instances"]),
            str(row["nodes"]),
            "" if not row["refusal"] else "not launchable",
        )
        for row in document["groups"]
    ]
    header = ("group", "region", "nodes of one", "class", "instances", "nodes", "")
    lines = [f"Plan {plan.scenario_id}, version {plan.plan_version}, for {engine.engine} {engine.version}"]
    lines += table(header, rows, right=(4, 5))
    seen = dict.fromkeys((r.group.name, r.reason, r.remedy) for r in exported.export.refused)
    lines += [f"  {name}: {reason}. To fix: {remedy}" for name, reason, remedy in seen]
    if document["changes"] is not None:
        lines.append("  instances: " + ", ".join(f"{kind} {count}" for kind, count in document["changes"].items()))
    return lines
