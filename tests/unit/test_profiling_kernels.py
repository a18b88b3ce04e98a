"""Kernel times by hand: tiles, caches, crowding tokens, two all-reduce algorithms, sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiling_cases import EFF, GPU, SPEC, WINDOWED, catalog

from catalogs.types import MoeFactors, Phase
from tasks.profiling import expert_tiles, kernels
from tasks.profiling.kernels import AttentionFactors, ExpertWork, GemmFactors, Peak
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import LayerKind, ModelShape

PEAK = Peak(flop_per_ms=1e12, bytes_per_ms=2e9)  # 1000 TFLOP/s, 2000 GB/s
LOOP = Peak(1e12, 2e9, l2_bytes=50 * 2**20)
COMPUTE = Peak(1e12, 1e15)  # memory is never in the way


def test_short_sums_pay_for_the_fill_of_each_tile() -> None:
    # K 512 with a fill of 512 does twice the steps: 2 x 4096 x 1024 x 8192 / 1e12 = 0.0687 ms.
    plain, filled = (
        float(kernels.gemm_ms(4096, 512, 8192, 0, COMPUTE, GemmFactors(1.0, 1.0, 0.0, 20.0, fill))) for fill in (0, 512)
    )
    assert filled == pytest.approx(2 * 4096 * 1024 * 8192 / 1e12, rel=1e-6)
    assert filled == pytest.approx(2 * plain)


def test_tiles_of_causal_attention_counted_one_by_one() -> None:
    # 1,024 tokens are 8 rows of tiles with 1, 2, ..., 8 of them: 36 tiles of 128 x 128.
    covered, longest = kernels.tile_pairs(1024, 0)
    assert covered == 36 * 128 * 128
    assert longest == 8 * 128 * 128
    # A window of 128: the first row is one tile, every other touches two: 15, counted with half a tile more.
    covered, longest = kernels.tile_pairs(1024, 128)
    assert covered == 15.5 * 128 * 128
    assert longest == 2 * 128 * 128
    # The last 512 tokens of 1,024 with the first half cached: rows of 5, 6, 7 and 8 tiles.
    covered, longest = kernels.tile_pairs(1024, 0, first=512)
    assert covered == 26 * 128 * 128
    assert longest == 8 * 128 * 128


@given(st.floats(1, 1e5), st.sampled_from([0, 64, 128, 4096]), st.floats(0, 0.99))
def test_tiles_cover_every_pair_and_little_more(context: float, window: int, cached: float) -> None:
    first = cached * context
    pairs = kernels.attention_pairs(context, window, first)
    covered, longest = kernels.tile_pairs(context, window, first)
    assert pairs <= covered <= pairs + (context - first) * 128 + 1e-6
    assert longest >= 128 * 128


def test_the_last_processor_finishes_the_longest_row() -> None:
    # 16 heads of width 64: 36 tiles each of 4 x 128 x 128 x 64 FLOP, and a tail of 8 tiles on each of 100 processors.
    eff = replace(EFF, sm_count=100, attn_prep_ms=0.01, attn_passes=2.0)
    shape = ModelShape(SPEC, "bf16", "bf16")
    flop, moved, launches = Roofline(GPU, eff, shape).prefill_attention_work(np.array([1024.0]), 0, 1, 1024.0)
    tile = 4 * 128 * 128 * 64
    assert flop[0] == pytest.approx(16 * 36 * tile + 100 * 8 * tile)
    # q and o of 16 heads, k and v of 4, 64 wide, two bytes
    assert moved[0] == 1024 * (2 * 16 + 2 * 4) * 64 * 2
    assert launches == 1
    time = Roofline(GPU, eff, shape).prefill_attention_ms(np.array([1024.0]), 0, 1, 1024.0)[0]
    assert time == pytest.approx((16 * 36 + 800) * tile / 0.5e12 + 2 * moved[0] / 2e9 + 0.04 + 0.01)


def test_query_and_key_norms_are_two_kernels_more() -> None:
    known = catalog().models
    kernels_before = {
        name: Roofline(GPU, EFF, ModelShape(known[name], "bf16", "bf16")).prefill_attention_work(
            np.ones(1), 0, 1, 128.0
        )[2]
        for name in ("Qwen/Qwen3-32B", "meta-llama/Meta-Llama-3.1-70B", "microsoft/phi-4")
    }
    assert kernels_before == {"Qwen/Qwen3-32B": 3, "meta-llama/Meta-Llama-3.1-70B": 1, "microsoft/phi-4": 1}


def test_kv_in_the_cache_comes_faster_in_a_loop_only() -> None:
    factors = AttentionFactors(0.5, 0.8, 0.01, 0.0, l2_gain=2.0)
    held = np.array([20e6, 200e6])
    cold = kernels.decode_attention_ms(held, PEAK, factors)
    assert cold == pytest.approx(held / 1.6e9 + 0.01)
    warm = kernels.decode_attention_ms(held, LOOP, factors)
    # 20 MB at 4000 GB/s and 0.01 ms of launch; tables never show less than 20 MB / 2000 GB/s. 200 MB do not fit.
    assert warm == pytest.approx([max(20e6 / 4e9 + 0.01, 20e6 / 2e9), cold[1]])
    assert kernels.decode_attention_ms(np.array([40e6]), LOOP, factors)[0] == pytest.approx(40e6 / 2e9)


def test_serving_plans_with_cold_caches() -> None:
    eff = replace(EFF, l2_mib=50.0, attn_l2_gain=2.0)
    shape, n = ModelShape(WINDOWED, "bf16", "bf16"), np.array([16.0])
    serving, loop = Roofline(GPU, eff, shape), Roofline(GPU, eff, shape, in_loop=True)
    assert serving.decode_attention_ms(n, 0, 1, 1000.0) > loop.decode_attention_ms(n, 0, 1, 1000.0)
    kind = LayerKind(False, 0)
    plain = Roofline(GPU, EFF, shape)
    assert serving.layer_ms(n, kind, 1, Phase.DECODE, 1000.0) == plain.layer_ms(n, kind, 1, Phase.DECODE, 1000.0)


def test_tokens_crowd_onto_experts() -> None:
    one, many = kernels.experts_touched(np.array([1.0, 1e6]), 128, 8, 0.8)
    assert one == pytest.approx(8)
    assert many == pytest.approx(128)
    # independent choices: 128 (1 - (15/16)^16) = 82.4
    assert kernels.experts_touched(16.0, 128, 8, 1.0) == pytest.approx(82.42, abs=0.01)
    assert kernels.experts_touched(16.0, 128, 8, 0.8) < 82


@given(st.integers(1, 100_000), st.sampled_from([(8, 2), (128, 8), (32, 4)]), st.floats(0.5, 1))
def test_touched_experts_are_between_k_and_all(n: int, experts: tuple[int, int], skew: float) -> None:
    count, per_token = experts
    found = float(kernels.experts_touched(float(n), count, per_token, skew))
    assert per_token - 1e-9 <= found <= min(count, n * per_token) + 1e-9


def test_expert_tiles_by_hand() -> None:
    # 256 tokens, 2 of 4 experts each, all four touched: 512 rows, and half a tile of 64 for each: 640. A fill of 32 makes
    # the sums over 1,024 and 96 steps longer by it. Compute alone: 2 x 640 x (2 x 96 x 1056 + 1024 x 128) FLOP.
    work = ExpertWork(256.0, 4.0, 2.0, 1024.0, 96.0, 0.0)
    factors = MoeFactors(mfu=0.5, mbu=1.0, tau_ms=0.02, skew=1.0, p=20.0, tile_rows=64, fill=32.0)
    assert kernels.experts_ms(work, COMPUTE, factors) == pytest.approx(
        2 * 640 * (2 * 96 * 1056 + 1024 * 128) / 0.5e12 + 0.02, rel=1e-6
    )
    # With one token, its two experts' tiles are no fuller than the rows they have: 2 rows count as 4.
    few = kernels.experts_ms(replace(work, n=1.0), COMPUTE, factors)
    assert few == pytest.approx(2 * 4 * (2 * 96 * 1056 + 1024 * 128) / 0.5e12 + 0.02)


def test_an_engines_default_tiles_by_hand() -> None:
    # 512 tokens, 2 of 8 experts each, all touched: 1,024 rows in tiles of 64, half a tile more for each: 20 tiles, 1,280
    # rows. Nothing is kept between rows of tiles (512 / 8 = 64 tokens an expert), and a tile is 128 columns: of the 28,672
    # of the first product 224, of the 4,096 of the second 32. 100 processors work on one of the former, 3.125 of the
    # latter, so weights are read in 20 and in max(8, 1024 / 200 + 4) = 9.12 rounds where the cache has lost all between.
    width, hidden = 14336.0, 4096.0
    expert = 6 * hidden * width
    work = ExpertWork(512.0, 8.0, 2.0, hidden, width, expert)
    factors = MoeFactors(mfu=0.5, mbu=1.0, tau_ms=0.02, skew=1.0, p=20.0, mfu_tuned=0.8, tiles="vllm-0.24")
    small = Peak(1e12, 2e9, cache_bytes=1e6, processors=100)
    moved = expert * (2 / 3 * 20 + 1 / 3 * 9.12) + 2 * 1024 * (2 * hidden + 3 * width)
    flop = 1280 * expert
    time = kernels.pnorm(np.array(flop / 0.5e12), np.array(moved / 2e9), 20.0) + 0.02
    assert kernels.experts_ms(work, small, factors) == pytest.approx(float(time), rel=1e-3)
    # A tuned tile holds an expert's 128 rows: two tiles of 128 each for 1.5 on average, its own rate, weights read once.
    tuned = kernels.experts_ms(replace(work, is_tuned=1.0), small, factors)
    read = expert * 8 + 2 * 1024 * (2 * hidden + 3 * width)
    by_hand = kernels.pnorm(np.array(12 * 128 * expert / 0.8e12), np.array(read / 2e9), 20.0) + 0.02
    assert tuned == pytest.approx(float(by_hand), rel=1e-3)
    # A cache that holds both matrices: read once.
    large = kernels.experts_ms(work, replace(small, cache_bytes=1e9), factors)
    assert large == pytest.approx(
        float(kernels.pnorm(np.array(flop / 0.5e12), np.array(read / 2e9), 20.0)) + 0.02, rel=1e-3
    )


def test_the_older_rule_pads_to_64_rows_as_soon_as_there_are_more_tokens_than_experts() -> None:
    assert [float(expert_tiles.default_tiles("vllm-0.14", n, 8.0).rows) for n in (8.0, 9.0, 4096.0)] == [16, 64, 64]
    newer = [float(expert_tiles.default_tiles("vllm-0.24", n, 8.0).rows) for n in (32.0, 33.0, 97.0, 513.0)]
    assert newer == [16, 32, 64, 128]
    # Rows of tiles are grouped from 129 tokens an expert on.
    assert [float(expert_tiles.default_tiles("vllm-0.24", n, 8.0).side_by_side) for n in (1031.0, 1032.0)] == [1, 16]


@pytest.mark.parametrize(("share", "lost"), [(0.5, 0.0), (1.0, 0.0), (2.0, 0.79681213), (20.0, 1.0)])
def test_what_a_cache_loses_of_a_matrix_as_large_as_it_and_more(share: float, lost: float) -> None:
    # The root of x = 1 - exp(-2x) is 0.79681213 (the giant component of a random graph of mean degree 2).
    assert float(expert_tiles.missed(share * 1e6, 1e6)) == pytest.approx(lost, abs=1e-7)
    assert float(expert_tiles.missed(share * 1e6, 0.0)) == 0.0


@given(
    st.sampled_from(["vllm-0.14", "vllm-0.24"]),
    st.sampled_from([(8.0, 2.0, 14336.0), (8.0, 2.0, 2048.0), (128.0, 8.0, 1536.0), (16.0, 1.0, 8192.0)]),
    st.sampled_from([0.0, 1.0]),
)
def test_expert_times_never_fall_with_tokens(rule: str, shape: tuple[float, float, float], is_tuned: float) -> None:
    n = np.unique(np.geomspace(1, 40000, 400).round())
    experts, per_token, width = shape
    work = ExpertWork(n, experts, per_token, 4096.0, width, 6 * 4096 * width, is_tuned)
    factors = MoeFactors(0.5, 0.8, 0.02, 0.85, 2.0, fill=300.0, mfu_tuned=0.7, tiles=rule)
    for peak in (PEAK, Peak(1e12, 2e9, cache_bytes=50e6, processors=132)):
        assert np.all(np.diff(kernels.experts_ms(work, peak, factors)) >= 0)


def test_expert_weights_in_the_cache() -> None:
    work = ExpertWork(1.0, 8.0, 2.0, 1024.0, 512.0, 10e6)
    factors = MoeFactors(0.5, 1.0, 0.0, 1.0, 20.0, l2_gain=4.0)
    cold, warm = (float(kernels.experts_ms(work, peak, factors)) for peak in (PEAK, LOOP))
    assert cold == pytest.approx(20e6 / 2e9, rel=2e-3)
    assert warm == pytest.approx(cold / 4, rel=5e-3)


def test_all_reduces_change_their_algorithm_at_8_mib() -> None:
    size = np.array([1e6, 8 * 2**20 - 1, 8 * 2**20, 1e9])
    time = kernels.all_reduce_ms(size, (0.005, 100.0), (0.05, 200.0))
    assert time[0] == pytest.approx(0.005 + 1e6 / 100e6)
    assert time[3] == pytest.approx(0.05 + 1e9 / 200e6)
    # Where the second would be faster at the switch, time stands still until it is not.
    assert time[2] == pytest.approx(max(0.05 + 8 * 2**20 / 200e6, 0.005 + 8 * 2**20 / 100e6))
    assert np.all(np.diff(kernels.all_reduce_ms(np.linspace(1e5, 1e8, 500), (0.005, 100.0), (0.05, 200.0))) >= 0)
    assert kernels.all_reduce_ms(1e9, (0.005, 100.0)) == pytest.approx(0.005 + 10.0)


def test_sampling_sorts_the_vocabulary_where_the_model_asks_for_it() -> None:
    # 64 rows of 151,936 logits at 1,080 bytes on 3,350 GB/s: 3.13 ms, on one GPU or on eight.
    known = catalog()
    gpu, eff = known.gpus["H100-SXM"], known.efficiencies["H100-SXM"]
    rows = np.array([64.0])
    for name, added in (("Qwen/Qwen3-32B", 64 * 151_936 * 1080 / 3350e6), ("openai/gpt-oss-120b", 0.0)):
        model = Roofline(gpu, eff, ModelShape(known.models[name], "bf16", "bf16"))
        for tp in (1, 8):
            assert model.lm_head_ms(rows, tp) - model.head_gemm_ms(rows, tp) == pytest.approx(added)


@given(st.sampled_from(["H100-SXM", "A100-80GB-SXM", "L40S", "A10G"]), st.sampled_from([Phase.PREFILL, Phase.DECODE]))
def test_times_of_shipped_gpus_rise_with_tokens(name: str, phase: Phase) -> None:
    known = catalog()
    n = np.arange(1.0, 20000.0, 7.0)
    for model in ("Qwen/Qwen3-235B-A22B", "openai/gpt-oss-20b"):
        spec = known.models[model]
        shape = ModelShape(spec, spec.shipped_dtype, "bf16")
        time = Roofline(known.gpus[name], known.efficiencies[name], shape).layer_ms(n, shape.kinds[0], 4, phase, 700.0)
        assert np.all(np.diff(time) >= 0)
