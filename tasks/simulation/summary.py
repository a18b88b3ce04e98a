"""A simulation as plain tables: one row per workload, model and node, and their course over time. JSON types only.

Runs that differ in their seed alone are pooled: shares over all requests, percentiles and use as means over the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from catalogs.types import Phase, Workload
from tasks.simulation.metrics import Slo, met_slo, percentiles_ms, queue_over_time
from tasks.simulation.types import Floats, RequestStatus, SimResult

# Latencies at which cumulative shares are kept, as multiples of the SLO: 40 per decade, the SLO itself among them.
CDF_GRID = 10.0 ** np.linspace(-2.0, 1.5, 141)
# A course is kept as means over this many windows, however long the run is.
WINDOWS = 60
_QUEUE_STEP_S = 1.0

Row = dict[str, Any]


def summarize(
    result: SimResult,
    workloads: Mapping[tuple[str, Phase], Workload],
    *,
    from_s: float,
    until_s: float,
    counts_transfer: bool = True,
    change_s: tuple[float, float] | None = None,
) -> Row:
    """Tables over the requests that arrive in [from_s, until_s): keys ``models``, ``workloads``, ``nodes``, ``series``, and
    with ``change_s`` (from, until) ``change``: ``models`` again, of the counted requests that arrive in that time.

    ``workloads`` by (model, phase) must have both phases of every model that sends requests. Latency is TTFT for prefill
    and TPOT for decode, over requests that decode; a request that is lost counts and does not meet its SLO.
    """
    slos = _slos(result, workloads, counts_transfer)
    met = dict(zip((Phase.PREFILL, Phase.DECODE), met_slo(result, slos), strict=True))
    arrival = result.requests.arrival_s
    counted = (arrival >= from_s) & (arrival < until_s)
    span_s = until_s - from_s
    latency = {
        Phase.PREFILL: result.ttft_s if counts_transfer else result.prefill_s,
        Phase.DECODE: result.tpot_s,
    }
    seconds = np.arange(from_s, until_s, _QUEUE_STEP_S)
    queues = queue_over_time(result, seconds)
    nodes = _nodes(result, workloads)
    rows = []
    for model in result.requests.models:
        mine = counted & (result.requests.model == result.requests.models.index(model))
        for phase in (Phase.PREFILL, Phase.DECODE):
            here = mine if phase is Phase.PREFILL else mine & (result.requests.output_tokens > 1)
            row = _workload_row(workloads[model, phase], latency[phase][here], met[phase][here], span_s)
            queue = queues[f"{model}/{phase.value}"]
            rows.append(
                row
                | _use_row(row["workload"], nodes, queue)
                | _load_row(result, workloads[model, phase], mine, from_s, until_s)
            )
    both = met[Phase.PREFILL] & met[Phase.DECODE]
    tables = {
        "models": [_model_row(result, workloads, name, counted, both, span_s) for name in result.requests.models],
        "workloads": rows,
        "nodes": nodes,
        "series": _series(result, workloads, both, from_s, until_s),
    }
    if change_s is not None:
        low, high = max(change_s[0], from_s), min(change_s[1], until_s)
        counted &= (arrival >= low) & (arrival < high)
        tables["change"] = [
            _model_row(result, workloads, name, counted, both, high - low) for name in result.requests.models
        ]
    return tables


def _slos(result: SimResult, workloads: Mapping[tuple[str, Phase], Workload], counts_transfer: bool) -> dict[str, Slo]:
    return {
        model: Slo(workloads[model, Phase.PREFILL].slo_ms, workloads[model, Phase.DECODE].slo_ms, counts_transfer)
        for model in result.requests.models
    }


def _workload_row(workload: Workload, latency_s: Floats, met: np.ndarray, span_s: float) -> Row:
    """``below``: how many requests took at most each multiple of the SLO in ``CDF_GRID``; NaN is never."""
    finite = np.sort(latency_s[np.isfinite(latency_s)]) * 1e3
    at = percentiles_ms(latency_s)
    return {
        "workload": workload.alias,
        "workload_id": workload.workload_id,
        "model": workload.model.model,
        "phase": workload.phase.value,
        "slo_ms": workload.slo_ms,
        "slo_percentile": workload.slo_percentile,
        "requests": len(met),
        "met": int(met.sum()),
        "goodput_req_per_s": float(met.sum()) / span_s,
        "latency_ms": {f"p{p}": at.get(p) for p in (50, 95, 99)},
        "below": np.searchsorted(finite, CDF_GRID * workload.slo_ms * (1 + 1e-9), side="right").tolist(),
    }


def _load_row(result: SimResult, workload: Workload, counted: np.ndarray, from_s: float, until_s: float) -> Row:
    """``load``: the phase's tokens per second over the rate that the instances promise, each while it takes work; None
    without instances."""
    key, span_s = (workload.model.model, workload.phase), until_s - from_s
    rate = 0.0
    for i in result.instances:
        if (i.model, i.phase) == key:
            active_s = min(i.active_until_s, until_s) - max(i.active_from_s, from_s)
            rate += i.rate_req_per_s * max(active_s, 0.0) / span_s
    tokens = result.requests.input_tokens if workload.phase is Phase.PREFILL else result.requests.output_tokens
    asked = float(tokens[counted].sum()) / span_s
    return {"rate_req_per_s": rate, "load": asked / (rate * workload.tokens_per_request) if rate else None}


def _use_row(alias: str, nodes: Sequence[Row], queue: Floats) -> Row:
    mine = [node for node in nodes if node["workload"] == alias]
    use = [node["utilization"] for node in mine]
    return {
        "instances": len({node["instance"] for node in mine}),
        "nodes": len(mine),
        "utilization_mean": float(np.mean(use)) if use else None,
        "utilization_max": float(np.max(use)) if use else None,
        "queue_mean": float(queue.mean()) if len(queue) else 0.0,
        "queue_max": float(queue.max()) if len(queue) else 0.0,
    }


def _model_row(
    result: SimResult,
    workloads: Mapping[tuple[str, Phase], Workload],
    model: str,
    counted: np.ndarray,
    both: np.ndarray,
    span_s: float,
) -> Row:
    mine = counted & (result.requests.model == result.requests.models.index(model))
    status = result.status[mine]
    lost = {kind.name.lower(): int((status == kind).sum()) for kind in RequestStatus if kind is not RequestStatus.DONE}
    transfer = percentiles_ms((result.kv_ready_s - result.first_token_s)[mine])
    return {
        "model": model,
        "alias": workloads[model, Phase.PREFILL].model.alias,
        "requests": int(mine.sum()),
        "met": int(both[mine].sum()),
        "offered_req_per_s": float(mine.sum()) / span_s,
        "goodput_req_per_s": float(both[mine].sum()) / span_s,
        "input_tokens": int(result.requests.input_tokens[mine].sum()),
        "output_tokens": int(result.requests.output_tokens[mine].sum()),
        "lost": {name: count for name, count in lost.items() if count},
        "kv_transfer_ms": {f"p{p}": transfer.get(p) for p in (50, 95, 99)},
        "preemptions": int(result.preemptions[mine].sum()),
    }


def _nodes(result: SimResult, workloads: Mapping[tuple[str, Phase], Workload]) -> list[Row]:
    rows = []
    for use in result.node_use:
        instance = result.instances[use.instance]
        if (instance.model, instance.phase) in workloads:
            rows.append(
                {
                    "workload": workloads[instance.model, instance.phase].alias,
                    "region": instance.region,
                    "instance": instance.instance_id,
                    "template_id": instance.template_id,
                    "stage": use.stage,
                    "node": use.node,
                    "node_config": use.node_config,
                    "utilization": use.utilization,
                    "mean_requests": use.mean_requests,
                }
            )
    return rows


def _series(
    result: SimResult,
    workloads: Mapping[tuple[str, Phase], Workload],
    both: np.ndarray,
    from_s: float,
    until_s: float,
) -> Row:
    """Means over windows: requests waiting; offered and good requests/s by time of arrival. ``time_s``: their middles."""
    edges = np.linspace(from_s, until_s, WINDOWS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    looks = max(1, round((until_s - from_s) / WINDOWS / _QUEUE_STEP_S))
    moments = np.linspace(from_s, until_s, WINDOWS * looks, endpoint=False)
    queues = {
        name: waiting.reshape(WINDOWS, looks).mean(axis=1) for name, waiting in queue_over_time(result, moments).items()
    }
    models = []
    for index, model in enumerate(result.requests.models):
        mine = result.requests.model == index
        arrival, width = result.requests.arrival_s, np.diff(edges)
        models.append(
            {
                "alias": workloads[model, Phase.PREFILL].model.alias,
                "offered_req_per_s": (np.histogram(arrival[mine], edges)[0] / width).tolist(),
                "goodput_req_per_s": (np.histogram(arrival[mine & both], edges)[0] / width).tolist(),
            }
        )
    return {
        "time_s": (middle - from_s).tolist(),
        "window_s": (until_s - from_s) / WINDOWS,
        "models": models,
        "workloads": [
            {"workload": workloads[model, phase].alias, "queue": queues[f"{model}/{phase.value}"].tolist()}
            for model in result.requests.models
            for phase in (Phase.PREFILL, Phase.DECODE)
        ],
    }


def pool_runs(runs: Sequence[Row]) -> Row:
    """Runs of one stream with different seeds as one: see the module. The course over time is the first run's.

    Adds per workload and model ``attained`` (share of all requests, None without any) and ``attained_worst`` (of the worst
    run), per workload ``is_met`` (attained >= the SLO's percentile; None without requests).
    """
    return {
        "workloads": [
            _pooled(rows, percentile=rows[0]["slo_percentile"]) for rows in _by_name(runs, "workloads", "workload")
        ],
        "models": [_pooled(rows) for rows in _by_name(runs, "models", "alias")],
        "nodes": _pooled_nodes(runs),
        "series": runs[0]["series"],
        **({"change": [_pooled(rows) for rows in _by_name(runs, "change", "alias")]} if "change" in runs[0] else {}),
    }


def _by_name(runs: Sequence[Row], table: str, name: str) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for run in runs:
        for row in run[table]:
            found.setdefault(row[name], []).append(row)
    return list(found.values())


_ADDED = ("requests", "met", "preemptions", "input_tokens", "output_tokens")
_LARGEST = ("utilization_max", "queue_max")


def _pooled(rows: Sequence[Row], percentile: float | None = None) -> Row:
    pooled = {name: _pool(name, [row[name] for row in rows]) for name in rows[0]}
    shares = [row["met"] / row["requests"] for row in rows if row["requests"]]
    pooled["attained"] = pooled["met"] / pooled["requests"] if pooled["requests"] else None
    pooled["attained_worst"] = min(shares, default=None)
    if percentile is not None:
        pooled["is_met"] = None if pooled["attained"] is None else pooled["attained"] >= percentile / 100
    return pooled


def _pool(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if name == "below":
        return [sum(counts) for counts in zip(*values, strict=True)]
    if isinstance(first, dict):
        keys = sorted({key for value in values for key in value})
        inner = {key: [value.get(key) for value in values] for key in keys}
        if name == "lost":
            return {key: sum(count or 0 for count in counts) for key, counts in inner.items()}
        return {key: _mean(numbers) for key, numbers in inner.items()}
    if name in _ADDED:
        return sum(values)
    if name in _LARGEST:
        return max((value for value in values if value is not None), default=None)
    is_measured = name.endswith(("_mean", "_req_per_s")) or name == "load"
    return _mean(values) if is_measured else first


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _pooled_nodes(runs: Sequence[Row]) -> list[Row]:
    """Nodes with their use as means over the runs; every run has the same nodes in the same order."""
    pooled = []
    for rows in zip(*(run["nodes"] for run in runs), strict=True):
        means = {name: _mean([row[name] for row in rows]) for name in ("utilization", "mean_requests")}
        pooled.append(rows[0] | means)
    return pooled
