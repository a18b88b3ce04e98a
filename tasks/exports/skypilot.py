"""SkyPilot: a task per group whose nodes are of one machine type, a job group of several tasks where they differ.

Facts: docs of SkyPilot, YAML specification and job groups; all nodes of a task are alike, ``SKYPILOT_NODE_RANK`` and
``SKYPILOT_NODE_IPS`` say which one a script runs on, and the first node of another task of a job group is reached as
``TASK-0.GROUP``. Job groups are experimental there, and their names resolve within one cluster or zone.
"""

from __future__ import annotations

from typing import Any

from catalogs.types import Market
from tasks.exports.shell import all_servers_text, figures_text, folder_of, segments
from tasks.exports.tables import yaml_text
from tasks.exports.types import Group, Launch, Refusal

TARGET = "skypilot"
# Providers that our regions may name and SkyPilot has: its provider = ours.
_CLOUDS = {
    "aws": "aws",
    "gcp": "gcp",
    "azure": "azure",
    "lambda": "lambda",
    "runpod": "runpod",
    "nebius": "nebius",
    "oci": "oci",
}
_PACKAGES = {"Nixl": "nixl", "Mooncake": "mooncake-transfer-engine"}


def skypilot_files(launch: Launch) -> tuple[dict[str, str], list[Refusal]]:
    """Path in the export -> text, and the groups SkyPilot has no place for."""
    files, refused, starts = {}, [], []
    for group in launch.groups:
        if not group.is_launchable:
            continue
        provider = group.row.region.partition("/")[0]
        if provider not in _CLOUDS or group.row.market is Market.OWNED:
            what = f"{group.row.region} ({group.row.market.value}) is none of SkyPilot's clouds"
            refused.append(Refusal(TARGET, group, what, "launch it with the commands of --to vllm, or on kubernetes"))
            continue
        path = f"{TARGET}/{folder_of(group.row.region)}/{group.name}.yaml"
        documents = _documents(group, launch)
        head = "\n".join(figures_text(group)) + "\n"
        files[path] = head + yaml_text(documents)
        verb = "launch --detach-run --yes --cluster" if len(documents) == 1 else "jobs launch --detach-run --yes --name"
        starts += [f'sky {verb} {name} "$here/{path.removeprefix(f"{TARGET}/")}"' for name in group.instance_names]
    script = (
        '#!/usr/bin/env bash\n# Every instance of the plan.\nset -eu\nhere="$(dirname "$0")"\n'
        + "\n".join(starts)
        + "\n"
    )
    return {**files, f"{TARGET}/launch.sh": script}, refused


def _documents(group: Group, launch: Launch) -> list[dict[str, Any]]:
    runs = segments(group)
    if len(runs) == 1:
        return [
            _task(group, launch, 0, len(group.nodes), group.name, master='$(echo "$SKYPILOT_NODE_IPS" | head -n 1)')
        ]
    names = [f"{group.name}-s{first}" for first, _ in runs]
    master = f"{names[0]}-0.${{SKYPILOT_JOBGROUP_NAME}}"
    tasks = [
        _task(group, launch, first, last, name, master=master) for (first, last), name in zip(runs, names, strict=True)
    ]
    return [{"name": group.name, "execution": "parallel"}, *tasks]


def _task(group: Group, launch: Launch, first: int, last: int, name: str, *, master: str) -> dict[str, Any]:
    provider, _, region = group.row.region.partition("/")
    resources: dict[str, Any] = {
        "infra": f"{_CLOUDS[provider]}/{region}",
        "instance_type": group.nodes[first].instance_type,
        "use_spot": group.row.market is Market.SPOT,
    }
    if first == 0:
        resources["ports"] = [server.port for server in group.servers]
    return {
        "name": name,
        "num_nodes": last - first,
        "resources": resources,
        "envs": {"CORAL_PLAN": f"{launch.plan.scenario_id}/{launch.plan.plan_version}"},
        "setup": _setup(group, launch),
        "run": _run(group, first, master),
    }


def _setup(group: Group, launch: Launch) -> str:
    engine = launch.facts.engine
    packages = [f"{engine.engine}=={engine.version}"]
    text = " ".join(group.servers[0].arguments)
    packages += [package for connector, package in _PACKAGES.items() if f'"kv_connector":"{connector}' in text]
    return f"pip install {' '.join(packages)}\n"


def _run(group: Group, first: int, master: str) -> str:
    lines = ["set -eu", 'NODE_IP="$(hostname -I | cut -d " " -f 1)"']
    headless = ""
    if len(group.nodes) > 1:
        lines += [f'HEAD_IP="{master}"', f"NODE_RANK=$(({first} + SKYPILOT_NODE_RANK))"]
        lines += [
            "HEADLESS=--headless" if first else 'HEADLESS=""; if [ "$NODE_RANK" -gt 0 ]; then HEADLESS=--headless; fi'
        ]
        headless = "$HEADLESS"
    start = all_servers_text(group, rank="$NODE_RANK", master="$HEAD_IP", headless=headless, node_address="$NODE_IP")
    return "\n".join(lines) + "\n" + start
