"""Clusters that serve prefill and decode together, from nodes with measured layer times, and what a run of one says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from catalogs.helix import HelixLimits, HelixNode, HelixTimes
from tasks.simulation.kernel_aggregated import ClusterTables, Feeding, at_knots, run_cluster
from tasks.simulation.types import Floats, Ints, SimulationInputError

# A typical pass, by which alternative nodes get their parts of the requests: the mean prompt, and this many sequences.
TYPICAL_PROMPT_TOKENS = 763
TYPICAL_OUTPUT_TOKENS = 232
TYPICAL_SEQUENCES = 16


@dataclass(frozen=True, slots=True)
class Wiring:
    """Between nodes: seconds per token handed on, and once per hop; seconds per token copied into a pass."""

    link_s_per_token: float
    latency_s: float
    copy_s_per_token: float


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Decoded tokens per second in the counted time, and the seconds that prompts and decoded tokens took."""

    decode_tok_per_s: float
    prompt_s: Floats
    decode_s: Floats


def cluster_tables(
    nodes: Sequence[HelixNode],
    layers: int,
    times_of: Callable[[str], HelixTimes],
    limits_of: Callable[[HelixNode], HelixLimits],
    wiring: Wiring,
) -> ClusterTables:
    """The tables of a cluster: a node hands on to every node that begins where it ends.

    Where several can take over, requests are divided by what can get through them: a node's rate, or that of all that
    follows it if less. Raises SimulationInputError when no chain of nodes holds all layers.
    """
    prompt_knots, decode_knots = _union(nodes, times_of, "prompt"), _union(nodes, times_of, "decode")
    prompt = np.stack([_pass_s(node, times_of(node.gpu).prompt, prompt_knots) for node in nodes])
    decode = np.stack([_pass_s(node, times_of(node.gpu).decode, decode_knots) for node in nodes])
    limits = [limits_of(node) for node in nodes]
    following = [[k for k, other in enumerate(nodes) if other.first == node.end] for node in nodes]
    following.append([k for k, node in enumerate(nodes) if node.first == 0])
    rates = [_typical_rate(prompt_knots, prompt[k], decode_knots, decode[k]) for k in range(len(nodes))]
    through = _through(nodes, following, rates, layers)
    if not any(through[k] > 0 for k in following[-1]):
        raise SimulationInputError("no chain of nodes holds all layers", remedy="check the layout")
    width = max(len(row) for row in following)
    table = np.full((len(following), width), -1)
    weight = np.zeros((len(following), width))
    for row, successors in enumerate(following):
        table[row, : len(successors)] = successors
        weight[row, : len(successors)] = [through[k] for k in successors]
    alike = np.array([[float(other.first <= node.first < other.end) for other in nodes] for node in nodes])
    return ClusterTables(
        prompt_knots, prompt, decode_knots, decode, wiring.copy_s_per_token,
        np.array([limit.most_prompts for limit in limits]), np.array([limit.most_decodes for limit in limits]),
        np.array([limit.kv_tokens for limit in limits]), table, weight,
        np.array(sorted(range(len(nodes)), key=lambda k: -nodes[k].first)), alike, wiring.link_s_per_token, wiring.latency_s,
    )  # fmt: skip


def _union(nodes: Sequence[HelixNode], times_of: Callable[[str], HelixTimes], phase: str) -> Floats:
    knots = {knot for node in nodes for knot, _ in getattr(times_of(node.gpu), phase)}
    # No prompt token takes no time; a lone sequence takes what the smallest measured batch takes.
    return np.array(sorted(knots | ({0.0} if phase == "prompt" else set())))


def _pass_s(node: HelixNode, measured: Sequence[tuple[float, float]], knots: Floats) -> Floats:
    """Seconds of a pass through the node's layers at ``knots``; beyond its last measurement the last slope goes on."""
    at, seconds = (np.array(column) for column in zip(*measured, strict=True))
    if knots[0] == 0.0:
        at, seconds = np.concatenate([[0.0], at]), np.concatenate([[0.0], seconds])
    inside = np.interp(knots, at, seconds)
    slope = (seconds[-1] - seconds[-2]) / (at[-1] - at[-2])
    result: Floats = (node.end - node.first) * (inside + np.maximum(knots - at[-1], 0.0) * max(slope, 0.0))
    return result


def _typical_rate(prompt_knots: Floats, prompt: Floats, decode_knots: Floats, decode: Floats) -> float:
    """Mean requests per second a node gets through."""
    step = at_knots(decode_knots, decode, TYPICAL_SEQUENCES) / TYPICAL_SEQUENCES
    return float(1.0 / (at_knots(prompt_knots, prompt, TYPICAL_PROMPT_TOKENS) + TYPICAL_OUTPUT_TOKENS * step))


def _through(
    nodes: Sequence[HelixNode], following: Sequence[Sequence[int]], rates: Sequence[float], layers: int
) -> list[float]:
    """What can get through each node and all after it; 0 where no chain ends with the last layer."""
    through = [0.0] * len(nodes)
    for k in sorted(range(len(nodes)), key=lambda k: -nodes[k].first):
        after = float("inf") if nodes[k].end == layers else sum(through[other] for other in following[k])
        through[k] = min(rates[k], after)
    return through


def run(
    tables: ClusterTables,
    feeding: Feeding,
    requests: tuple[Floats, Ints, Ints],
    *,
    warm_up_s: float,
) -> ClusterResult:
    """Runs ``requests`` (arrival, input, output) until the horizon and counts from ``warm_up_s`` on."""
    prompt_end, prompt_took, token_end, token_took = run_cluster(tables, feeding, *requests)
    counted = (token_end >= warm_up_s) & (token_end <= feeding.horizon_s)
    with np.errstate(invalid="ignore"):
        prompts = (prompt_end >= warm_up_s) & (prompt_end <= feeding.horizon_s)
    seconds = feeding.horizon_s - warm_up_s
    return ClusterResult(float(counted.sum()) / seconds, prompt_took[prompts], token_took[counted])
