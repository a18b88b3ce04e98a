"""Operation times: by hand, and against measured kernel tables within the errors stated for the factors."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiling_cases import EFF, EXPERTS, GPU, SPEC, WINDOWED, catalog, oracle_layer_ms

from catalogs.types import Phase, Provenance
from tasks.profiling.kernels import attention_pairs, pnorm
from tasks.profiling.roofline import MissingFactorsError, Roofline
from tasks.profiling.shapes import Gemm, LayerKind, ModelShape

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SYSTEMS = {"h100_sxm": "H100-SXM", "h200_sxm": "H200-SXM", "a100_sxm": "A100-80GB-SXM", "l40s": "L40S"}
GRID_MODELS = {
    "Qwen3-32B": ("Qwen/Qwen3-32B", "bf16"),
    "Phi4-14B": ("microsoft/phi-4", "bf16"),
    "Qwen3-235B-A22B": ("Qwen/Qwen3-235B-A22B", "bf16"),
    "GPT-OSS-20B": ("openai/gpt-oss-20b", "mxfp4"),
}


def roofline(spec=SPEC, eff=EFF, gpu=GPU, weight_dtype: str = "bf16") -> Roofline:
    return Roofline(gpu, eff, ModelShape(spec, weight_dtype, "bf16"))


def test_pnorm_joins_and_does_not_overflow() -> None:
    assert pnorm(np.array([3.0]), np.array([4.0]), 2.0)[0] == pytest.approx(5.0)
    assert pnorm(np.array([3.0]), np.array([4.0]), 1.0)[0] == pytest.approx(7.0)
    assert pnorm(np.array([0.0]), np.array([4.0]), 3.0)[0] == 4.0
    assert pnorm(np.array([1e200]), np.array([1e200]), 4.0)[0] == pytest.approx(2**0.25 * 1e200)
    assert pnorm(np.zeros(1), np.zeros(1), 2.0)[0] == 0.0


def test_a_gemm_by_hand() -> None:
    # 4096 tokens x [8192 x 8192]: 549.8 GFLOP / 800 TFLOP/s = 0.6872 ms; (134.2 MB + 134.2 MB) / 1800 GB/s = 0.1491 ms
    time = roofline().gemm_ms(np.array([4096.0]), Gemm(8192, 8192, 8192 * 8192 * 2))
    assert time[0] == pytest.approx((0.687195**2 + 0.149131**2) ** 0.5 + 0.005, rel=1e-5)


def test_attention_pairs() -> None:
    assert attention_pairs(100, 0) == 5000
    assert attention_pairs(100, 200) == 5000
    assert attention_pairs(100, 40) == 100 * 40 - 800
    assert attention_pairs(100, 0, first=60) == 5000 - 1800  # the first 60 tokens were in the prefix cache
    # each of the last 40 sees the window of 40
    assert attention_pairs(100, 40, first=60) == 40 * 40


def test_decode_attention_reads_the_window_only() -> None:
    model = roofline(WINDOWED)
    n = np.array([16.0])
    # 16 sequences x 64 tokens x 2 x 4 heads x 64 x 2 bytes = 1.049 MB over 1700 GB/s
    assert model.decode_attention_ms(n, 64, 1, 1000.0)[0] == pytest.approx(16 * 64 * 1024 / 1.7e9 + 0.01)
    assert model.decode_attention_ms(n, 0, 1, 1000.0)[0] == pytest.approx(16 * 1000 * 1024 / 1.7e9 + 0.01)


def test_experts_touched() -> None:
    # One token reaches 2 of 16 experts whatever the skew; 8 tokens at skew 0.9: 16 (1 - (14/16)^(8^0.9)) = 9.28127, each of
    # 3 x 1024 x 512 x 2 bytes
    one, eight = roofline(EXPERTS).experts_ms(np.array([1.0, 8.0]), 1)
    memory = np.array([2.0, 9.28127]) * 3 * 1024 * 512 * 2 + np.array([1, 8]) * 2 * 2 * (2048 + 1536)
    compute = np.array([1, 8]) * 2 * 2 * 3 * 1024 * 512
    assert [one, eight] == pytest.approx(memory / 1.8e9 + compute / 0.6e12 + 0.03, rel=1e-5)


def test_all_reduce_needs_factors() -> None:
    model = roofline(eff=replace(EFF, all_reduce={2: (0.005, 200.0)}))
    assert model.all_reduce_ms(np.array([1000.0]), 2)[0] == pytest.approx(0.005 + 2 * 1000 * 1024 / 200e6)
    assert model.all_reduce_ms(np.array([1000.0]), 1)[0] == 0
    with pytest.raises(MissingFactorsError, match="no all-reduce factors for 4"):
        model.all_reduce_ms(np.array([1000.0]), 4)


@given(
    spec=st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    tp=st.sampled_from([1, 2, 4, 8]),
    phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    n=st.integers(1, 20000),
    context=st.floats(1, 1e5),
)
def test_a_layer_equals_the_formulas_written_as_scalars(spec, tp: int, phase: Phase, n: int, context: float) -> None:
    model = roofline(spec)
    for layer, kind in enumerate(model.shape.kind_of_layer):
        found = model.layer_ms(np.array([float(n)]), kind, tp, phase, context)[0]
        assert found == pytest.approx(oracle_layer_ms(spec, layer, n, tp, phase, context, EFF), rel=1e-9)


@given(
    st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([Phase.PREFILL, Phase.DECODE]),
)
def test_times_rise_with_tokens(spec, tp: int, phase: Phase) -> None:
    model, n = roofline(spec), np.arange(1.0, 3000.0)
    for kind in model.shape.kinds:
        assert np.all(np.diff(model.layer_ms(n, kind, tp, phase, 700.0)) > 0)


def test_l40s_tensor_parallel_prefill_is_slower_than_one_gpu() -> None:
    # PCIe all-reduce at 1.2 GB/s: eight GPUs reach about 0.23 of one GPU's rate on long prefill passes.
    l40s = catalog()
    shape = ModelShape(l40s.models["Qwen/Qwen3-32B"], "bf16", "bf16")
    model = Roofline(l40s.gpus["L40S"], l40s.efficiencies["L40S"], shape)
    n, kind = np.array([8192.0]), LayerKind(False, 0)
    times = {tp: model.layer_ms(n, kind, tp, Phase.PREFILL, 1024.0)[0] for tp in (1, 8)}
    assert times[1] / times[8] == pytest.approx(0.23, abs=0.04)


def test_fp8_uses_fp8_units_where_there_are_some() -> None:
    n, kind, wide = np.array([8192.0]), LayerKind(False, 0), catalog().models["Qwen/Qwen3-32B"]
    bf16 = roofline(wide).dense_ms(n, kind, 1)[0]
    fp8 = roofline(wide, weight_dtype="fp8").dense_ms(n, kind, 1)[0]
    without = roofline(wide, weight_dtype="fp8", gpu=replace(GPU, has_native_fp8=False)).dense_ms(n, kind, 1)[0]
    # More than half: activations are turned to 8 bits first and results stay at two bytes. Four products of widths
    # 5120, 8192, 5120, 25600: 3 x 8192 x 44032 bytes at 2000 GB/s and four kernels of 0.0028 ms.
    assert 0.5 * bf16 < fp8 < 0.6 * bf16
    plain = roofline(wide, weight_dtype="fp8")
    gemms = (*plain.shape.attention_gemms(1), *plain.shape.feed_forward_gemms(kind, 1))
    products = sum(plain.gemm_ms(n, gemm)[0] for gemm in gemms)
    assert fp8 - products == pytest.approx(3 * 8192 * 44032 / 2e9 + 4 * 0.007 / 2.5)
    assert without == pytest.approx(bf16, rel=0.02)  # weights are widened: compute as before


def test_provenance_is_the_weakest_group_used() -> None:
    eff = replace(EFF, provenance=EFF.provenance | {"ar4": Provenance.BORROWED, "moe_bf16": Provenance.DERIVED})
    assert roofline(eff=eff).provenance(1) is Provenance.FITTED
    assert roofline(eff=eff).provenance(4) is Provenance.BORROWED
    assert roofline(EXPERTS, eff=eff).provenance(1) is Provenance.DERIVED
    assert roofline(weight_dtype="fp8").provenance(1) is Provenance.BORROWED
    latent = catalog().models["deepseek-ai/DeepSeek-V3"]
    assert roofline(latent).provenance(1) is Provenance.BORROWED
    # 32 experts and more were fitted; fewer, wider ones were not.
    fitted = {name: roofline(catalog().models[name]) for name in ("openai/gpt-oss-20b", "Qwen/Qwen3-235B-A22B")}
    assert {model.provenance(1) for model in fitted.values()} == {Provenance.FITTED}
    assert roofline(catalog().models["mistralai/Mixtral-8x7B-v0.1"]).provenance(1) is Provenance.BORROWED


def test_gpus_without_bf16_or_factors_are_not_profiled() -> None:
    assert "no bf16 units" in roofline(gpu=replace(GPU, has_native_bf16=False)).missing_factors(1)
    assert roofline(gpu=replace(GPU, has_native_bf16=False), weight_dtype="fp16").missing_factors(1) == ""
    assert "no moe_bf16 factors" in roofline(EXPERTS, eff=replace(EFF, moe_bf16=None)).missing_factors(1)
    assert "no attention factors" in roofline(eff=replace(EFF, mbu_attn=None)).missing_factors(1)
    assert roofline().missing_factors(8) == ""
