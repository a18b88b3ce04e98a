"""The tables of a simulation, on a run whose every time is known by hand, and what pooling runs does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulation_cases import instance, node, requests

from catalogs.models import model_from_config
from catalogs.types import Lengths, Phase, Workload
from tasks.simulation.engine import simulate
from tasks.simulation.summary import CDF_GRID, WINDOWS, pool_runs, summarize

MODEL = replace(
    model_from_config(
        {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 100, "torch_dtype": "bfloat16",
            "max_position_embeddings": 4096,
        },
        "m",
    ),
    alias="m",
)  # fmt: skip


def workloads(ttft_ms: float, tpot_ms: float) -> dict[tuple[str, Phase], Workload]:
    lengths = Lengths.constant(10, 6)
    return {
        ("m", phase): Workload(MODEL, "bf16", "bf16", phase, slo, 75.0, lengths)
        for phase, slo in ((Phase.PREFILL, ttft_ms), (Phase.DECODE, tpot_ms))
    }


def run(outputs: Any = 6, ttft_ms: float = 2500.0, tpot_ms: float = 100.0) -> dict[str, Any]:
    """Four requests at 0, 10, 10, 10 s; prefill takes 1 s each, one by one: TTFT 1, 1, 2, 3 s. Decode steps take 0.1 s."""
    asked = requests([0.0, 10.0, 10.0, 10.0], 10, outputs)
    made = simulate(
        asked, [instance(Phase.PREFILL, [node(1.0, batch=10)]), instance(Phase.DECODE, [node(0.1, batch=4)])]
    )
    return summarize(made, workloads(ttft_ms, tpot_ms), from_s=5.0, until_s=65.0)


def test_only_requests_of_the_window_count_and_shares_are_those_by_hand() -> None:
    prefill, decode = run()["workloads"]
    assert (prefill["requests"], prefill["met"]) == (3, 2)
    assert prefill["latency_ms"]["p50"] == pytest.approx(2000, rel=1e-3)
    assert (decode["requests"], decode["met"]) == (3, 3)
    assert decode["latency_ms"]["p99"] == pytest.approx(100, rel=1e-3)
    assert prefill["goodput_req_per_s"] == pytest.approx(2 / 60)


def test_load_is_tokens_per_promised_tokens() -> None:
    """3 prompts of 10 tokens in 60 s, against 1 request/s of 10 tokens."""
    prefill, decode = run()["workloads"]
    assert prefill["load"] == pytest.approx(3 * 10 / 60 / 10)
    assert decode["load"] == pytest.approx(3 * 6 / 60 / 6)


def test_the_distribution_counts_the_share_below_each_multiple_of_the_slo() -> None:
    below = run(ttft_ms=2000.0)["workloads"][0]["below"]
    assert below[int(np.argmin(np.abs(CDF_GRID - 1.0)))] == 2
    assert below[-1] == 3
    assert below == sorted(below)
    assert below[int(np.argmin(np.abs(CDF_GRID - 0.4)))] == 0


def test_a_request_for_one_token_has_no_place_among_those_that_decode() -> None:
    prefill, decode = run(outputs=[6, 1, 6, 6])["workloads"]
    assert (prefill["requests"], decode["requests"]) == (3, 2)


def test_lost_requests_count_and_miss() -> None:
    asked = requests([10.0, 11.0], 10, 6)
    made = simulate(asked, [instance(Phase.PREFILL, [node(0.1, batch=10)])])
    tables = summarize(made, workloads(1000, 100), from_s=0.0, until_s=60.0)
    assert tables["models"][0]["lost"] == {"no_decode_instance": 2}
    assert tables["models"][0]["met"] == 0
    assert tables["workloads"][1]["met"] == 0
    assert tables["workloads"][1]["load"] is None


def test_queue_and_rates_over_time() -> None:
    """Two prompts wait from 10 s, one from 11 to 12 s: 3 request seconds of 60 s, in windows of 1 s."""
    series = run()["series"]
    assert len(series["time_s"]) == WINDOWS
    queue = next(row["queue"] for row in series["workloads"] if row["workload"] == "m/prefill")
    assert np.sum(queue) * series["window_s"] == pytest.approx(3.0)
    offered = series["models"][0]["offered_req_per_s"]
    assert np.sum(offered) * series["window_s"] == pytest.approx(3.0)


def test_pooling_counts_all_requests_and_names_the_worst_seed() -> None:
    good, bad = run(), run(ttft_ms=1500.0)
    pooled = pool_runs([good, bad])
    prefill = pooled["workloads"][0]
    assert (prefill["requests"], prefill["met"]) == (6, 3)
    assert prefill["attained"] == pytest.approx(0.5)
    assert prefill["attained_worst"] == pytest.approx(1 / 3)
    assert prefill["is_met"] is False
    assert pooled["workloads"][1]["is_met"] is True
    assert prefill["below"][-1] == 6
    assert pooled["models"][0]["offered_req_per_s"] == pytest.approx(3 / 60)
    assert [n["utilization"] for n in pooled["nodes"]] == [n["utilization"] for n in good["nodes"]]


def test_no_requests_is_neither_kept_nor_missed() -> None:
    tables = run()
    for row in tables["workloads"]:
        row.update(requests=0, met=0)
    assert [row["is_met"] for row in pool_runs([tables])["workloads"]] == [None, None]
