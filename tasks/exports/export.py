"""A plan as the files of an export."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from catalogs.types import Phase
from catalogs.wording import counted
from tasks.allocation.plan import NETWORK_FULL, PlanState
from tasks.exports.bounds import replica_bounds
from tasks.exports.changes import Change, changes_between, changes_text
from tasks.exports.counts import check_counts
from tasks.exports.kubernetes import kubernetes_files
from tasks.exports.routing import router_weights
from tasks.exports.skypilot import skypilot_files
from tasks.exports.supply import meeting_places
from tasks.exports.tables import refusals_text
from tasks.exports.types import Launch, Refusal
from tasks.exports.vllm import vllm_files

TARGETS = ("vllm", "skypilot", "kubernetes")
_TOLD = ("not_launchable", NETWORK_FULL)  # warnings of the plan that whoever launches it reads again


@dataclass(frozen=True, slots=True)
class Export:
    """``files``: path in the folder -> text. ``refused``: groups that a target does not take. ``notes``: for a person.
    ``changes`` is None where no plan was named to come from."""

    files: dict[str, str]
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...]
    changes: tuple[Change, ...] | None


def export_of(launch: Launch, targets: Sequence[str], before: Launch | None = None) -> Export:
    """The files for ``targets``, checked: every node of the plan is in each target's files or among its refusals."""
    files: dict[str, str] = {"plan.json": launch.plan.model_dump_json(by_alias=True, indent=2) + "\n"}
    refused: list[Refusal] = []
    for target in targets:
        left_out = [Refusal(target, g, g.refusal, g.remedy) for g in launch.groups if not g.is_launchable]
        if target == "skypilot":
            own, more = skypilot_files(launch)
            left_out += more
        else:
            own = vllm_files(launch) if target == "vllm" else kubernetes_files(launch)
        check_counts(launch, target, own, left_out)
        files |= own
        refused += left_out
    files["router_weights.json"] = _json(router_weights(launch))
    files["replica_bounds.json"] = _json(replica_bounds(launch))
    files["NOT_LAUNCHABLE.csv"] = refusals_text(refused)
    changes = None if before is None else changes_between(before, launch)
    if changes is not None:
        files["CHANGES.csv"] = changes_text(changes)
    notes = _notes(launch)
    files["README.md"] = _readme(launch, targets, refused, notes, before)
    return Export(files, tuple(refused), notes, changes)


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _notes(launch: Launch) -> tuple[str, ...]:
    """What may need a hand: instances that stock engines do not launch, with what a plan without them costs; nodes whose network
    is full at the planned rate; a plan that waits for approval; a model of which one side is missing; GPUs of several types
    on the two sides of a handover."""
    notes = []
    if launch.plan.state is PlanState.PROPOSED:
        version = launch.plan.plan_version
        notes.append(f"version {version} is proposed and not current: `coral plans approve {version}` makes it so")
    notes += [warning.text for warning in launch.plan.warnings if warning.code in _TOLD]
    if launch.facts.rules is None:
        notes.append(
            "the rules this version was planned under are not kept: `replica_bounds.json` takes no instance away"
        )
    notes += [
        f"{t.model}: the KV of {t.req_per_s:.3g} req/s moves from prefill in {t.from_region} to decode in {t.to_region} "
        "(router_weights.json, decode_in); connect the two networks yourself: servers here are set up for one region"
        for t in launch.plan.kv_transfers
    ]
    return (*notes, *_service_notes(launch), *_attention_notes(launch))


def _service_notes(launch: Launch) -> list[str]:
    """Where one side of a model cannot be launched: in a region, and at an end of KV that crosses regions."""
    planned: dict[tuple[str, str], set[Phase]] = defaultdict(set)
    launched: dict[tuple[str, str], set[Phase]] = defaultdict(set)
    for group in launch.groups:
        where = group.served.model, group.row.region
        planned[where].add(group.served.phase)
        if group.is_launchable:
            launched[where].add(group.served.phase)
    moves = launch.plan.kv_transfers
    notes = []
    for model, region in sorted(planned):
        missing = planned[model, region] - launched[model, region]
        if missing and launched[model, region]:
            (phase,) = missing
            ends = {(t.model, t.to_region if phase is Phase.PREFILL else t.from_region) for t in moves}
            left = (
                "at most what crosses regions is served there" if (model, region) in ends else "nothing is served there"
            )
            notes.append(f"{model} in {region} lacks its {phase.value} instances: {left}")
    for move in moves:
        for phase, region in ((Phase.PREFILL, move.from_region), (Phase.DECODE, move.to_region)):
            if phase not in launched[move.model, region]:
                text = f"of the KV from {move.from_region} to {move.to_region} nothing is served"
                notes.append(f"{move.model}: {text}: {region} lacks its {phase.value} instances")
    return notes


def _attention_notes(launch: Launch) -> list[str]:
    """Models whose instances hand KV to each other on GPUs of several types."""
    if launch.facts.attention_backend:
        return []
    places = meeting_places(launch.plan)
    here: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for group in launch.groups:
        if group.is_launchable:
            model, region = group.served.model, group.row.region
            gpus = {launch.facts.nodes[node.node_config].gpu for node in group.nodes}
            here[model, places.get((region, model), (region,))] |= gpus
    return [
        f"{model} in {', '.join(regions)} runs on {', '.join(sorted(gpus))}: prefill and decode must use one attention backend; "
        "if the handshake refuses, export with --attention-backend TRITON_ATTN, which all of them have"
        for (model, regions), gpus in sorted(here.items())
        if len(gpus) > 1
    ]


def _readme(
    launch: Launch, targets: Sequence[str], refused: Sequence[Refusal], notes: Sequence[str], before: Launch | None
) -> str:
    plan, engine = launch.plan, launch.facts.engine
    launched = sum(group.row.instances for group in launch.groups if group.is_launchable)
    total = sum(group.row.instances for group in launch.groups)
    lines = [
        f"# Plan {plan.scenario_id}, version {plan.plan_version}, for {engine.engine} {engine.version}",
        "",
        f"{launched} of {counted(total, 'instance is', 'instances are')} here, "
        f"{plan.cost_usd_per_h:.2f} USD/h in all. Written by `coral export`, which "
        "replaces this folder as a whole and refuses if anything in it was added or edited.",
        "",
        "| file | what it holds |",
        "|---|---|",
        "| `plan.json` | the plan itself; `coral plans schema` prints its JSON Schema |",
        "| `router_weights.json` | weights per region and instance, shares per node of a stage |",
        "| `replica_bounds.json` | per group the planned, least and most instances, and the load of one |",
        "| `NOT_LAUNCHABLE.csv` | what is not here, why, and what to do |",
    ]
    if before is not None:
        lines.append(f"| `CHANGES.csv` | from version {before.plan.plan_version}: keep, add, then drain |")
    if "vllm" in targets:
        lines.append(
            "| `commands/` | one script per node rank of a group; `inventory.csv` lists every node of every instance |"
        )
    if "skypilot" in targets:
        lines.append("| `skypilot/` | a task or job group per group; `launch.sh` starts every instance |")
    if "kubernetes" in targets:
        lines.append(
            "| `kubernetes/` | LeaderWorkerSets; a folder per region, to be applied to that region's cluster |"
        )
    if refused:
        lines += [
            "",
            f"Not launchable: {counted(len({r.group.name for r in refused}), 'group')}, see `NOT_LAUNCHABLE.csv`.",
        ]
    lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"
