"""vLLM: one shell script per node rank of a group, and the list of all nodes with the script each runs."""

from __future__ import annotations

from tasks.exports.shell import all_servers_text, figures_text, folder_of
from tasks.exports.tables import csv_text
from tasks.exports.types import Group, Launch

FOLDER = "commands"
INVENTORY = f"{FOLDER}/inventory.csv"
_COLUMNS = ("instance", "rank", "region", "market", "instance_type", "node_config", "workload", "template_id", "script")


def vllm_files(launch: Launch) -> dict[str, str]:
    """Path in the export -> text."""
    files, rows = {}, []
    for group in launch.groups:
        if not group.is_launchable:
            continue
        folder = f"{FOLDER}/{folder_of(group.row.region)}/{group.name}"
        for node in group.nodes:
            files[f"{folder}/node-{node.rank}.sh"] = _script(group, node.rank)
        rows += [
            (
                name,
                node.rank,
                group.row.region,
                group.row.market.value,
                node.instance_type,
                node.node_config,
                group.row.workload,
                group.row.template_id,
                f"{folder}/node-{node.rank}.sh",
            )
            for name in group.instance_names
            for node in group.nodes
        ]
    return {**files, INVENTORY: csv_text(_COLUMNS, rows)}


def _script(group: Group, rank: int) -> str:
    lines = ["#!/usr/bin/env bash", *figures_text(group), "set -eu"]
    lines += ["# NODE_IP: this node's address, as the others reach it."]
    lines += ['NODE_IP="${NODE_IP:-$(hostname -I | cut -d " " -f 1)}"']
    if len(group.nodes) > 1:
        lines += ["# HEAD_IP: address of the node of rank 0 of the same instance."]
        lines += ['HEAD_IP="$NODE_IP"' if rank == 0 else ': "${HEAD_IP:?set it to the address of the node of rank 0}"']
    start = all_servers_text(
        group, rank=str(rank), master="$HEAD_IP", headless="--headless" if rank else "", node_address="$NODE_IP"
    )
    return "\n".join(lines) + "\n" + start
