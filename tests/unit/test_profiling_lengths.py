"""Lengths of requests in the rates: moments instead of means, the prompt of the percentile, cached prefixes, long SLOs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from profiling_cases import EFF, GIB, GPU, SPEC, catalog, node, workload

from catalogs.types import Lengths, Phase
from tasks.profiling.cycles import Mode, cycle_grid
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import profile_workload
from tasks.profiling.shapes import ModelShape


def best(phase: Phase, slo_ms: float, lengths: Lengths) -> float:
    """The best rate of one H100 that holds all of Llama 3.1 8B."""
    cat = catalog()
    spec, gpu = cat.models["meta-llama/Meta-Llama-3.1-8B"], cat.gpus["H100-SXM"]
    work = workload(spec, phase, slo_ms, lengths)
    rows = profile_workload(work, [node(1, 1e5, gpu)], cat.gpus, cat.efficiencies, max_stages=1).to_pylist()
    return max((row["throughput_tok_per_s"] or 0.0 for row in rows if row["layers"] == spec.layers), default=0.0)


@pytest.mark.parametrize(
    ("trace", "ttft_ms"), [("azure-conv-2023", 500.0), ("azure-code-2023", 500.0), ("mooncake-conversation", 30000.0)]
)
def test_a_real_trace_is_slower_than_its_means(trace: str, ttft_ms: float) -> None:
    """Long prompts have more than their share of attention."""
    whole = catalog().lengths[trace].at(99.0)
    means = Lengths.constant(whole.input_mean, whole.output_mean)
    lone = replace(whole, input_at_percentile=whole.input_mean)
    assert whole.prefill_context > whole.input_mean
    assert best(Phase.PREFILL, ttft_ms, lone) < best(Phase.PREFILL, ttft_ms, means)
    assert best(Phase.PREFILL, ttft_ms, whole) <= best(Phase.PREFILL, ttft_ms, lone)


def test_a_tight_slo_that_the_mean_prompt_meets_and_the_percentile_does_not() -> None:
    mean = Lengths.constant(2000.0, 100.0)
    assert best(Phase.PREFILL, 300.0, mean) > 0
    assert best(Phase.PREFILL, 300.0, replace(mean, input_at_percentile=60000.0)) == 0


def test_decode_context_by_moments() -> None:
    """Two kinds of request alike in number: 1,000 + 10 and 100 + 400 tokens. A step has a context of
    (1000 x 10 + 100 x 400) / 410 + (10^2 + 400^2) / (2 x 410) tokens, not 550 + 102.5."""
    lengths = Lengths(550.0, 205.0, (1000**2 + 100**2) / 2, (10**2 + 400**2) / 2, (10000 + 40000) / 2, 1000.0)
    by_hand = 50000 / 410 + 160100 / 820
    assert lengths.decode_context_mean == pytest.approx(by_hand)
    by_steps = sum(sum(i + t for t in range(o)) for i, o in ((1000, 10), (100, 400))) / 410
    assert by_hand == pytest.approx(by_steps, rel=0.002)


def test_a_long_slo_does_not_hold_a_node_to_few_passes() -> None:
    """A pass holds 16,384 tokens at most: at 30 s a node is as fast as its passes only if cycles get far below SLO / 16."""
    short = cycle_grid(workload(SPEC, Phase.PREFILL, 800.0), 1, ProfileSettings(), Mode.CYCLE)
    assert short[-1] == 800 / 17  # nothing is added where cycles are short already
    grid = cycle_grid(workload(SPEC, Phase.PREFILL, 30000.0), 1, ProfileSettings(), Mode.CYCLE)
    assert grid[-1] == 50.0
    assert max(longer / shorter for longer, shorter in pairwise(grid[grid < 30000 / 17])) < 1.43

    lengths = Lengths.constant(8192.0, 128.0)
    assert best(Phase.PREFILL, 30000.0, lengths) >= 0.95 * best(Phase.PREFILL, 2000.0, lengths)


def test_the_cached_prefix_is_held_too() -> None:
    """Half of every prompt of 512 is in the cache: a pass that computes 2,048 tokens serves 4,096, and their KV is held.

    KV of one token in six layers: 6 x 2 x 4 heads x 64 x 2 bytes; activations (2 x 4096 + 4 x 1024) x 2 bytes a token.
    """

    def row(hit: float) -> dict:
        work = workload(SPEC, Phase.PREFILL, 1e6, Lengths.constant(512.0, 128.0), prefix_hit_rate=hit)
        settings = ProfileSettings(max_prefill_tokens=2048, prefill_passes=(16,))
        rows = profile_workload(work, [node(1)], {GPU.gpu: GPU}, {GPU.gpu: EFF}, settings, max_stages=1).to_pylist()
        return next(r for r in rows if r["layers"] == 6 and r["throughput_tok_per_s"])

    token, activation = 6 * 2 * 4 * 64 * 2, (2 * 4096 + 4 * 1024) * 2
    weights = ModelShape(SPEC, "bf16", "bf16").weight_bytes
    for hit, resident in ((0.0, 2048), (0.5, 4096)):
        found = row(hit)
        held = (found["memory_used_gib"] - ProfileSettings().engine_reserve_gib) * GIB
        assert found["batch"] == 2048
        assert held == pytest.approx(weights + 2048 * activation + resident * token, rel=1e-6)
    assert row(0.5)["throughput_tok_per_s"] == pytest.approx(2 * row(0.0)["throughput_tok_per_s"])
