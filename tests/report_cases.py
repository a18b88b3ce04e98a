"""A document as ``coral simulate --json`` prints it, small and made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

GRID = (10.0 ** np.linspace(-2.0, 1.5, 141)).tolist()
WINDOWS = 60


def simulation_document() -> dict[str, Any]:
    """Two streams of two models; the first one's prefill misses, 97 of 100 requests being within its SLO."""
    models = [("phi-4", "microsoft/phi-4", 1200.0, 60.0), ("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 900.0, 30.0)]
    workloads = []
    for alias, model, ttft, tpot in models:
        for phase, slo in (("prefill", ttft), ("decode", tpot)):
            lost = 3 if (alias, phase) == ("phi-4", "prefill") else 0
            workloads.append(_workload(f"{alias}/{phase}", model, phase, slo, 100 - lost))
    stream = {
        "name": "poisson", "text": "Poisson at planned rates", "seeds": 2, "workloads": workloads,
        "models": [_model(alias, model) for alias, model, *_ in models],
        "nodes": [_node(row["workload"], i) for row in workloads for i in range(3)],
        "series": {
            "time_s": [10.0 * i for i in range(WINDOWS)], "window_s": 10.0,
            "models": [
                {"alias": alias, "offered_req_per_s": [2.0] * WINDOWS, "goodput_req_per_s": [1.9] * WINDOWS}
                for alias, *_ in models
            ],
            "workloads": [{"workload": row["workload"], "queue": [0.5] * WINDOWS} for row in workloads],
        },
    }  # fmt: skip
    other = {**stream, "name": "azure-conv", "text": "trace azure-conv, its own arrivals, at planned rates"}
    return {
        "schema": 1, "scenario_id": "small", "plan_version": 1, "cost_usd_per_h": 52.5, "price_as_of": "2026-07-30",
        "minutes": 10.0, "warm_up_s": 60.0, "counts_transfer": True, "change": None, "notes": ["a note"], "cdf_grid": GRID,
        "streams": [stream, other],
    }  # fmt: skip


def _workload(alias: str, model: str, phase: str, slo: float, within: int) -> dict[str, Any]:
    # All that get through take 0.2 to 0.9 of the SLO.
    below = [int(min(max((multiple - 0.2) / 0.7, 0.0), 1.0) * within) for multiple in GRID]
    return {
        "workload": alias, "workload_id": "id", "model": model, "phase": phase, "slo_ms": slo, "slo_percentile": 99.0,
        "requests": 100, "met": within, "goodput_req_per_s": 1.9, "below": below,
        "latency_ms": {"p50": 0.5 * slo, "p95": 0.8 * slo, "p99": 0.9 * slo}, "instances": 3, "nodes": 3,
        "utilization_mean": 0.5, "utilization_max": 0.6, "queue_mean": 7858.0, "queue_max": 15_354.0, "rate_req_per_s": 3.0,
        "load": 0.66, "attained": within / 100, "attained_worst": within / 100, "is_met": within >= 99,
    }  # fmt: skip


def _model(alias: str, model: str) -> dict[str, Any]:
    return {
        "model": model, "alias": alias, "requests": 100, "met": 97, "offered_req_per_s": 2.0, "goodput_req_per_s": 1.9,
        "input_tokens": 1000, "output_tokens": 100, "lost": {}, "preemptions": 0, "attained": 0.97, "attained_worst": 0.96,
        "kv_transfer_ms": {"p50": 10.0, "p95": 20.0, "p99": 30.0},
    }  # fmt: skip


def _node(alias: str, number: int) -> dict[str, Any]:
    return {
        "workload": alias, "region": "aws/us-east-2", "instance": f"{alias}#{number}", "template_id": "t", "stage": 0,
        "node": 0, "node_config": "L40Sx1", "utilization": 0.5, "mean_requests": 1.5,
    }  # fmt: skip
