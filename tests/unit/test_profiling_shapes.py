"""Sizes of models against published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiling_cases import EXPERTS, SPEC, WINDOWED, catalog

from catalogs.errors import CoralError
from tasks.profiling.layouts import Layout, all_layouts, legal_layouts
from tasks.profiling.shapes import GIB, LayerKind, ModelShape
from tasks.templates.types import Position

# Billions: (total, active) as published on the models' cards or papers; tolerance 1 %, or the rounding of the figure.
PUBLISHED = {
    "microsoft/phi-4": (14.66, 14.66),
    "openai/gpt-oss-20b": (20.91, 3.61),
    "openai/gpt-oss-120b": (116.83, 5.13),
    "Qwen/Qwen3-32B": (32.8, 32.8),
    "Qwen/Qwen3-235B-A22B": (235, 22),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.3),
    "Qwen/Qwen3-8B": (8.2, 8.2),
    "meta-llama/Meta-Llama-3.1-8B": (8.03, 8.03),
    "meta-llama/Meta-Llama-3.1-70B": (70.55, 70.55),
    "meta-llama/Llama-3.3-70B-Instruct": (70.55, 70.55),
    "meta-llama/Meta-Llama-3.1-405B": (405.85, 405.85),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, 12.9),
    "deepseek-ai/DeepSeek-V3": (671, 37),
    "moonshotai/Kimi-K2-Instruct": (1026, 32),  # "1T" published; 1,026 B is the sum of the checkpoint's tensors
    "Qwen/Qwen2.5-72B": (72.7, 72.7),
    "google/gemma-3-27b-it": (27.0, 27.0),  # 27.4 published with the 0.4 B vision tower
    "zai-org/GLM-4.5": (355, 32),
}
# Active counts that leave out the embedding look-up (OpenAI says so; DeepSeek's and Kimi's 37 and 32 B are met so too), or
# both ends (what meets GLM-4.5's figure).
UNCOUNTED_ENDS = {
    "openai/gpt-oss-20b": 1,
    "openai/gpt-oss-120b": 1,
    "deepseek-ai/DeepSeek-V3": 1,
    "moonshotai/Kimi-K2-Instruct": 1,
    "zai-org/GLM-4.5": 2,
}
# A figure of one decimal or whole billions leaves more room than 1 %: 3.353 is published as 3.3, 36.63 as 37.
ROUNDED = {"Qwen/Qwen3-30B-A3B": 0.06, "deepseek-ai/DeepSeek-V3": 0.5}


def shape(name: str, weight_dtype: str = "bf16", kv_dtype: str = "bf16") -> ModelShape:
    return ModelShape(catalog().models[name], weight_dtype, kv_dtype)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_the_published_ones(name: str) -> None:
    total, active = PUBLISHED[name]
    sizes = shape(name)
    assert sizes.params_total / 1e9 == pytest.approx(total, rel=0.01)
    counted = sizes.params_active - UNCOUNTED_ENDS.get(name, 0) * sizes.params_embedding
    assert counted / 1e9 == pytest.approx(active, rel=0.01, abs=ROUNDED.get(name, 0.0))


def test_every_shipped_model_is_checked() -> None:
    assert set(catalog().models) == set(PUBLISHED)


def test_tied_embeddings_count_once_where_both_ends_meet() -> None:
    tied = ModelShape(replace(SPEC, has_tied_embeddings=True), "bf16", "bf16")
    apart = ModelShape(SPEC, "bf16", "bf16")
    matrix = 32000 * 1024 * 2
    assert apart.weight_bytes - tied.weight_bytes == matrix
    assert tied.end_bytes(True, True, 1) == tied.end_bytes(True, False, 1) == tied.end_bytes(False, True, 1) == matrix
    assert apart.end_bytes(True, True, 2) == matrix  # both, halved over two GPUs
    assert tied.end_bytes(False, False, 1) == 0


def test_layer_weights_by_hand() -> None:
    # qkv 5120 x (64 + 2*8)*128, o 8192 x 5120, gate+up 5120 x 51200, down 25600 x 5120, two norms of 5120
    sizes = shape("Qwen/Qwen3-32B")
    dense = LayerKind(False, 0)
    parameters = 5120 * 80 * 128 + 8192 * 5120 + 5120 * 51200 + 25600 * 5120 + 2 * 5120
    assert sizes.layer_weight_bytes(dense, 1) == 2 * parameters
    # At 16 GPUs a KV head is held by two of them.
    sixteenth = 5120 * (4 + 2) * 128 + 512 * 5120 + 5120 * 3200 + 1600 * 5120 + 2 * 5120
    assert sizes.layer_weight_bytes(dense, 16) == 2 * sixteenth


def test_mxfp4_quantises_experts_alone() -> None:
    # The shipped checkpoints are 13.75 and 65.19 GB of tensors (sum of file sizes published beside the weights).
    assert shape("openai/gpt-oss-20b", "mxfp4").weight_bytes / 1e9 == pytest.approx(13.75, rel=0.01)
    assert shape("openai/gpt-oss-120b", "mxfp4").weight_bytes / 1e9 == pytest.approx(65.19, rel=0.01)
    assert shape("deepseek-ai/DeepSeek-V3", "fp8").weight_bytes / 1e9 == pytest.approx(673.04, rel=0.01)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(CoralError, match="weight_dtype 'fp7' is not known"):
        ModelShape(SPEC, "fp7", "bf16")
    with pytest.raises(CoralError, match="kv_dtype 'int4'"):
        ModelShape(SPEC, "bf16", "int4")
    with pytest.raises(CoralError, match="has none"):
        ModelShape(SPEC, "mxfp4", "bf16")


def test_sliding_windows_are_counted_once() -> None:
    # aiconfigurator#1537: a prompt of 65,536 and 400 generated tokens takes 1.1341 GiB with the windows, 2.2637 without.
    spec = catalog().models["openai/gpt-oss-120b"]
    assert ModelShape(spec, "mxfp4", "fp8").kv_bytes_all_layers(65536 + 400) / GIB == pytest.approx(1.1341, abs=5e-5)
    full = replace(spec, layer_windows=(0,) * spec.layers)
    assert ModelShape(full, "mxfp4", "fp8").kv_bytes_all_layers(65536 + 400) / GIB == pytest.approx(2.2637, abs=5e-5)
    assert ModelShape(spec, "mxfp4", "fp8").kv_bytes_all_layers(65536) / GIB == pytest.approx(1.134, rel=0.01)


@pytest.mark.parametrize(
    ("name", "bytes_per_layer"),
    [
        ("Qwen/Qwen3-32B", 4096),
        ("microsoft/phi-4", 5120),
        ("deepseek-ai/DeepSeek-V3", 1152),
        ("openai/gpt-oss-20b", 2048),
    ],
)
def test_kv_bytes(name: str, bytes_per_layer: int) -> None:
    assert shape(name).kv_bytes_per_token_layer() == bytes_per_layer
    assert shape(name, kv_dtype="fp8").kv_bytes_per_token_layer() == bytes_per_layer / 2


def test_kv_is_split_over_kv_heads_and_then_replicated() -> None:
    sizes = shape("Qwen/Qwen3-235B-A22B")  # 4 KV heads
    assert [sizes.kv_bytes_per_token_layer(tp) for tp in (1, 2, 4, 8)] == [2048, 1024, 512, 512]
    assert shape("deepseek-ai/DeepSeek-V3").kv_bytes_per_token_layer(8) == 1152  # latent KV is never split


@pytest.mark.parametrize("gpus", [4, 8])
def test_phi_4_never_runs_at_tp_4_or_8(gpus: int) -> None:
    layouts = legal_layouts(shape("microsoft/phi-4"), gpus)
    assert {layout.tp for layout in layouts} == {1, 2}
    assert Layout(pp=gpus // 2, tp=2, replicas=1) in layouts
    assert "10 KV heads" in shape("microsoft/phi-4").tp_refusal(gpus)


def test_fp8_blocks_limit_tensor_parallelism() -> None:
    # vllm#17569: 1536 / 8 = 192 is not a multiple of 128; 1536 / 4 = 384 is.
    sizes = shape("Qwen/Qwen3-235B-A22B", "fp8")
    assert "multiple of the fp8 block 128" in sizes.tp_refusal(8)
    assert [sizes.tp_refusal(tp) for tp in (1, 2, 4)] == ["", "", ""]
    assert shape("Qwen/Qwen3-235B-A22B").tp_refusal(8) == ""
    assert shape("deepseek-ai/DeepSeek-V3", "fp8").tp_refusal(8) == ""


def test_replicated_kv_heads_are_legal() -> None:
    assert shape("Qwen/Qwen3-235B-A22B").tp_refusal(8) == ""  # 4 KV heads over 8 GPUs
    assert "64 heads do not divide by 3" in shape("Qwen/Qwen3-32B").tp_refusal(3)  # gpustack#2259


def test_layouts_use_every_gpu() -> None:
    for gpus in (1, 2, 3, 4, 8):
        layouts = all_layouts(gpus)
        assert all(layout.tp * layout.pp * layout.replicas == gpus for layout in layouts)
        assert len(set(layouts)) == len(layouts)
    assert len(all_layouts(8)) == 10


@pytest.mark.parametrize(
    ("layers", "pp", "expected"), [(8, 4, (2, 2, 2)), (9, 4, (2, 3, 2)), (11, 4, (3, 3, 2)), (3, 2, (2, 2, 1))]
)
def test_inner_layers_follow_the_engine(layers: int, pp: int, expected: tuple[int, int, int]) -> None:
    # vLLM gives remainders to the ranks before the last: 9 over 4 is 2, 2, 3, 2.
    assert Layout(pp, 1, 1).inner_layers(layers) == expected


def test_runs_of_unlike_layers() -> None:
    # windows: 64 64 0 64 64 0 -> kinds (windowed, full)
    sizes = ModelShape(WINDOWED, "bf16", "bf16")
    assert sizes.runs(2, Position.FIRST).tolist() == [[2, 0]]
    assert sizes.runs(2, Position.LAST).tolist() == [[1, 1]]
    assert sizes.runs(2, Position.MID).tolist() == [[1, 1], [2, 0]]
    assert sizes.runs(6, Position.ONLY).tolist() == [[4, 2]]
    # one dense layer, then experts: a middle stage never holds layer 0
    experts = ModelShape(EXPERTS, "bf16", "bf16")
    assert experts.runs(1, Position.FIRST).tolist() == [[1, 0]]
    assert experts.runs(3, Position.MID).tolist() == [[0, 3]]
    assert experts.runs(3, Position.LAST).tolist() == [[0, 3]]
