"""Helix's published experiments (section 6.3): layouts and run settings shipped here, measured layer times and results in the
raw data collection. What the simulator is checked against."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.layer_times import shared_file
from catalogs.tables import DATA_DIR, read_table

LAYERS = {"llama1_30b": 60, "llama2_70b": 80}
# Bytes handed on per token between nodes: fp16 activations of the hidden size.
ACTIVATION_BYTES = {"llama1_30b": 2 * 6656, "llama2_70b": 2 * 8192}
# The Azure conversation trace without prompts and answers longer than these: 763 and 232 tokens on average.
LONGEST_INPUT, LONGEST_OUTPUT = 2048, 1024


@dataclass(frozen=True, slots=True)
class HelixNode:
    """A node that serves layers [first, end)."""

    gpu: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class HelixRun:
    """One experiment on one cluster. Blank figures are None; see ``data/schemas/helix_runs.csv``."""

    model: str
    method: str
    mode: str
    cluster: str
    nodes: tuple[HelixNode, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HelixTimes:
    """Measured seconds per layer by (tokens) of prompts and (sequences) of decode, ascending."""

    prompt: tuple[tuple[float, float], ...]
    decode: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class HelixLimits:
    """What a node that holds so many layers takes at once: prompts and sequences of a pass, tokens in memory."""

    most_prompts: int
    most_decodes: int
    kv_tokens: float


def helix_runs() -> tuple[HelixRun, ...]:
    """Every experiment whose layout and settings are known."""
    nodes: dict[tuple[str, str, str], list[HelixNode]] = {}
    for row in _shipped("helix_layouts"):
        node = HelixNode(row["gpu"], row["layer_start"], row["layer_end"])
        nodes.setdefault((row["model"], row["method"], row["cluster"]), []).append(node)
    return tuple(
        HelixRun(
            row["model"], row["method"], row["mode"], row["cluster"],
            tuple(nodes[row["model"], row["method"], row["cluster"]]), row,
        )
        for row in _shipped("helix_runs")
    )  # fmt: skip


def helix_latencies() -> list[dict[str, Any]]:
    """Latency percentiles that Helix's own simulator printed."""
    return [dict(row) for row in _shipped("helix_latencies")]


def helix_times() -> dict[tuple[str, str], HelixTimes]:
    """Measured layer times by (GPU, model). Raises CoralError where the raw data collection is absent."""
    rows: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for line in _shared("perf/helix_layer_times.csv"):
        seconds = float(line["ms_per_layer"]) / 1e3
        tables = rows.setdefault((line["gpu"], line["model"]), {"prefill": [], "decode": []})
        tables[line["phase"]].append((float(line["batch_tokens"]), seconds))
    return {
        key: HelixTimes(tuple(sorted(tables["prefill"])), tuple(sorted(tables["decode"])))
        for key, tables in rows.items()
    }


def helix_limits() -> dict[tuple[str, str, int], HelixLimits]:
    """Limits by (GPU, model, layers held). Raises CoralError where the raw data collection is absent."""
    return {
        (line["gpu"], line["model"], int(line["layers_held"])): HelixLimits(
            int(line["prompt_max_requests"]), int(line["decode_max_batch"]), float(line["kv_tokens_per_layer"])
        )
        for line in _shared("perf/helix_node_profile.csv")
    }


def helix_results() -> dict[tuple[str, str, str], tuple[float | None, float | None]]:
    """(Helix's simulator, Helix's prototype) decoded tokens per second of section 6.3, by (model, mode, method).

    Raises CoralError where the raw data collection is absent.
    """
    return {
        (line["model"], line["mode"], line["method"]): (
            _number(line["simulated_decode_tok_s"]),
            _number(line["prototype_decode_tok_s"]),
        )
        for line in _shared("perf/helix_results.csv")
        if line["section"] == "6.3"
    }


def _number(text: str) -> float | None:
    return float(text) if text else None


def _shipped(table: str) -> tuple[dict[str, Any], ...]:
    return read_table(DATA_DIR / f"{table}.csv", table).require_clean().rows


def _shared(name: str) -> list[dict[str, str]]:
    with shared_file(name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))
