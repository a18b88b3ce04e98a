"""Commands of the engine as shell text. Words that the shell fills in are written as variables; all others are quoted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tasks.exports.servers import rank_words
from tasks.exports.types import Group, Server

_VARIABLES = frozenset({"$HEAD_IP", "$NODE_IP", "$NODE_RANK"})


def shell_words(words: Sequence[str]) -> str:
    """A command line; our own variables stay variables, all else is taken as it is written."""
    return " ".join(f'"{word}"' if word in _VARIABLES else shlex.quote(word) for word in words)


def server_text(
    group: Group, server: Server, *, rank: str, master: str, headless: str, node_address: str, sees_all: bool = True
) -> str:
    """One server's start, with its environment before it. ``rank``, ``master`` and ``node_address`` may be shell variables;
    ``headless`` is ``--headless``, '' or a variable that holds one of them. ``sees_all``: the GPUs of the whole node are
    visible, so that one of several servers must choose its own."""
    env = dict(server.env)
    if server.side_channel:
        env |= server.side_channel
        env["VLLM_NIXL_SIDE_CHANNEL_HOST" if any("NIXL" in k for k in server.side_channel) else "VLLM_HOST_IP"] = (
            node_address
        )
    if len(group.nodes) > 1:
        env["VLLM_HOST_IP"] = node_address
    if sees_all and len(group.servers) > 1:
        gpus = server.tensor * server.pipeline
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(g) for g in range(server.index * gpus, (server.index + 1) * gpus))
    words = [*server.arguments, *rank_words(len(group.nodes), rank, master)]
    if headless and not headless.startswith("$"):
        words.append(headless)
    set_env = [f"{name}={shell_words([value])}" for name, value in sorted(env.items())]
    tail = f" {headless}" if headless.startswith("$") else ""  # unquoted: an empty one is no word
    return " ".join([*set_env, shell_words(words)]) + tail


def all_servers_text(group: Group, *, rank: str, master: str, headless: str, node_address: str) -> str:
    """The starts of all servers of a node, for bash; of several, all end when one does, so that what restarts it sees it."""
    starts = [
        server_text(group, server, rank=rank, master=master, headless=headless, node_address=node_address)
        for server in group.servers
    ]
    if len(starts) == 1:
        return f"exec env {starts[0]}\n"
    lines = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", "trap 'exit 143' TERM"]
    lines += [f"env {start} &" for start in starts]
    return "\n".join([*lines, "status=0", "wait -n || status=$?", 'exit "$status"', ""])


def segments(group: Group) -> list[tuple[int, int]]:
    """[first, last) ranks of runs of nodes of one machine type, in rank order."""
    runs: list[tuple[int, int]] = []
    for node in group.nodes:
        if runs and group.nodes[runs[-1][0]].instance_type == node.instance_type:
            runs[-1] = (runs[-1][0], node.rank + 1)
        else:
            runs.append((node.rank, node.rank + 1))
    return runs


def folder_of(region: str) -> str:
    """A region as the name of a folder."""
    return region.replace("/", "_")


def figures_text(group: Group) -> list[str]:
    """Comment lines for a person: what runs here, at what rate, how full."""
    row = group.row
    lines = [
        f"# {row.workload}: {row.instances} x {row.combination_id} in {row.region}, launch class {row.launch_class.value}",
        f"# planned rate of one instance {row.throughput_tok_per_s:,.0f} tok/s, {row.cost_usd_per_h:.2f} USD/h",
    ]
    for node in group.nodes:
        used = "" if node.memory_used_gib is None else f", fills {node.memory_used_gib:.1f} GiB of a GPU"
        lines.append(
            f"# rank {node.rank}: {node.instance_type} ({node.node_config}), layers {node.layers[0]}-{node.layers[1]}{used}"
        )
    return lines
