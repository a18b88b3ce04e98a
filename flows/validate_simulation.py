"""``coral simulate --validate``: the simulator against everything measured, and what stays unvalidated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from catalogs.catalog import load_catalog
from catalogs.helix import (
    LONGEST_INPUT,
    LONGEST_OUTPUT,
    HelixRun,
    helix_latencies,
    helix_limits,
    helix_results,
    helix_runs,
    helix_times,
)
from catalogs.layer_times import shared_points
from catalogs.traces import read_trace, trace_path
from catalogs.types import Phase
from flows.settings import Progress, progress_stage

Row = dict[str, Any]

PROTOTYPE, SIMULATOR, POINTS = "Helix's prototype", "Helix's simulator", "published points"
PROTOTYPE_PART = "Helix's prototype, in part"
_PERCENTILES = (5, 25, 50, 75, 95)
UNVALIDATED = (
    "serving with prefill and decode apart on real hardware: no measurement of it is at hand, so the KV transfer, the "
    "router between phases and plans as a whole rest on theory and on the parts below",
    "pipelines of unlike nodes with data parallelism inside a stage: Helix routes requests node by node, which has no such "
    "stage",
    "latency tails on real hardware: the prototype's figures are means; its percentiles are its simulator's",
    "Helix's geo-distributed (6.4) and 42-node (6.5) clusters and its 70B online runs: layouts or offered rates are not at hand",
    "mixture-of-experts models, fp8 and mxfp4 weights: no serving point with stated lengths and concurrency is at hand",
    "plan changes (start-up, drain), prefix caching, speculative decoding, failures",
)


def validate(progress: Progress) -> Row:
    """Every comparison as ``rows``, their errors per set as ``summary``, and what is ``unvalidated``.

    Raises CoralError where the raw data collection is absent.
    """
    results = helix_results()
    rows: list[Row] = []
    with progress_stage(progress, "Helix"):
        rows += _helix_rows(results)
    with progress_stage(progress, "published points"):
        points, notes = _point_rows()
        rows += points
    own = [abs(sim / real - 1) for sim, real in results.values() if sim and real]
    return {
        "rows": rows,
        "summary": _summary(rows),
        "helix_simulator_vs_prototype_pct": 100 * sum(own) / len(own),
        "notes": list(notes),
        "unvalidated": list(UNVALIDATED),
    }


def _helix_rows(results: dict[tuple[str, str, str], tuple[float | None, float | None]]) -> list[Row]:
    from tasks.simulation.helix_check import run_helix

    times, limits, trace = helix_times(), helix_limits(), _helix_trace()
    totals: dict[tuple[str, str, str], list[Any]] = {}
    clusters: list[Row] = []
    for experiment in helix_runs():
        made = run_helix(experiment, times, limits, trace)
        totals.setdefault((experiment.model, experiment.mode, experiment.method), []).append(made)
        clusters += _cluster_rows(experiment, made)
    rows = []
    for key, parts in totals.items():
        rate = sum(part.decode_tok_per_s for part in parts)
        simulated, prototype = results[key]
        rows.append(_row(PROTOTYPE, " ".join(key), "decoded", "tok/s", prototype, rate))
        rows.append(_row(SIMULATOR, " ".join(key), "decoded", "tok/s", simulated, rate))
    for line in helix_latencies():
        parts = totals[line["model"], line["mode"], line["method"]]
        name = f"{line['model']} {line['mode']} {line['method']}"
        took = np.concatenate([p.prompt_s if line["phase"] == Phase.PREFILL.value else p.decode_s for p in parts])
        what = "prompt" if line["phase"] == Phase.PREFILL.value else "token"
        for percentile, value in zip(_PERCENTILES, np.percentile(took, _PERCENTILES), strict=True):
            rows.append(_row(SIMULATOR, name, f"{what} p{percentile}", "s", line[f"p{percentile}_s"], float(value)))
    return [row for row in rows + clusters if row["measured"] is not None]


def _cluster_rows(experiment: HelixRun, made: Any) -> list[Row]:
    name = f"{experiment.model} {experiment.mode} {experiment.method}, {experiment.cluster} alone"
    settings = experiment.settings
    return [
        _row(PROTOTYPE_PART, name, "decoded", "tok/s", settings["prototype_decode_tok_per_s"], made.decode_tok_per_s),
        _row(PROTOTYPE_PART, name, "prompt mean", "s", settings["prototype_prompt_s"], float(made.prompt_s.mean())),
        _row(PROTOTYPE_PART, name, "token mean", "s", settings["prototype_decode_s"], float(made.decode_s.mean())),
    ]


def _helix_trace() -> tuple[Any, Any, Any]:
    """The trace Helix draws from: Azure conversation without long prompts and answers."""
    trace = read_trace(trace_path("azure-conv"))
    assert trace.arrival_s is not None
    kept = (trace.input_tokens <= LONGEST_INPUT) & (trace.output_tokens <= LONGEST_OUTPUT)
    kept &= (trace.input_tokens >= 4) & (trace.output_tokens >= 4)
    return trace.arrival_s[kept], trace.input_tokens[kept], trace.output_tokens[kept]


def _point_rows() -> tuple[list[Row], tuple[str, ...]]:
    from tasks.simulation.serving import serve_point

    catalog = load_catalog()
    points, skipped = shared_points(catalog)
    rows = []
    for point in points:
        config = next(config for config in catalog.node_configs.values() if config.gpu == point.gpu)
        value = serve_point(point, config, catalog.gpus[point.gpu], catalog.efficiencies[point.gpu])
        name = f"{point.gpu} x{point.tp} {point.model.alias}, {point.batch:g} at once"
        what = "first token" if point.phase is Phase.PREFILL else "per token"
        rows.append(_row(POINTS, name, what, "ms", point.ms, value))
    return rows, skipped


def _row(group: str, case: str, what: str, unit: str, measured: float | None, simulated: float) -> Row:
    error = None if measured is None else 100 * (simulated / measured - 1)
    return {
        "set": group, "case": case, "what": what, "unit": unit, "measured": measured, "simulated": simulated,
        "error_pct": error,
    }  # fmt: skip


def _summary(rows: Iterable[Row]) -> list[Row]:
    """Errors per set and kind: number of comparisons, mean of their size, mean, largest."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        kind = "throughput" if row["unit"] == "tok/s" else "latency"
        groups.setdefault((row["set"], kind), []).append(row["error_pct"])
    return [
        {
            "set": group, "kind": kind, "n": len(errors), "mean_abs_error_pct": float(np.mean(np.abs(errors))),
            "mean_error_pct": float(np.mean(errors)), "largest_error_pct": max(errors, key=abs),
        }
        for (group, kind), errors in groups.items()
    ]  # fmt: skip
