"""Sizes of models as ``coral models`` prints them, against hand calculation and published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiling_cases import EXPERTS, SPEC, WINDOWED, catalog

from catalogs.models import model_from_config
from tasks.profiling.shapes import GIB, ModelShape
from tasks.profiling.sizes import model_sizes

BASE = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    "model_type": "llama", "torch_dtype": "float16",
}  # fmt: skip


# From the published configs of families that are not shipped; billions (total, active) as on the models' cards.
FAMILIES = {
    "google/gemma-2b": (
        {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
         "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000},
        2.51, 2.51,
    ),
    "google/gemma-2-27b": (
        {"model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46,
         "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 256000,
         "sliding_window": 4096},
        27.2, 27.2,
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        {"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
         "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "num_experts": 60,
         "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
        14.3, 2.7,
    ),
    "deepseek-ai/DeepSeek-V2": (
        {"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60,
         "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 102400, "n_routed_experts": 160,
         "num_experts_per_tok": 6, "moe_intermediate_size": 1536, "n_shared_experts": 2, "first_k_dense_replace": 1,
         "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        236, 21,
    ),
    # 107.77 B of the 109 B are the language model; the rest is the vision tower, which config.text_config leaves out.
    "meta-llama/Llama-4-Scout-17B-16E": (
        {"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
         "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
         "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
         "attention_chunk_size": 8192},
        107.77, 17,
    ),
}  # fmt: skip
# Active parameters published without the embedding.
ENDS_LEFT_OUT = {"deepseek-ai/DeepSeek-V2": 1}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_that_are_not_shipped(name: str) -> None:
    config, total, active = FAMILIES[name]
    spec = model_from_config({**BASE, "tie_word_embeddings": "gemma" in config["model_type"], **config}, name)
    sizes = model_sizes(spec)
    assert sizes.params_total / 1e9 == pytest.approx(total, rel=0.01)
    counted = sizes.params_active - ENDS_LEFT_OUT.get(name, 0) * spec.vocab * spec.hidden
    assert counted / 1e9 == pytest.approx(active, rel=0.015)


def test_int4_in_groups_by_hand() -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    sizes = model_sizes(model_from_config({**BASE, "quantization_config": awq}, "llama-3-70b-awq"))
    # Per group of 128 weights: 64 bytes, a 16-bit scale, half a byte of zero point.
    linear = 8192 * (64 + 2 * 8) * 128 + 8192 * 8192 + 3 * 8192 * 28672
    layer = linear * (64 + 2 + 0.5) / 128 + 2 * 8192 * 2
    assert sizes.weight_dtype == "int4"
    assert sizes.layers[0].weight_bytes == pytest.approx(layer, rel=1e-12)
    assert sizes.weight_bytes == pytest.approx(80 * layer + 2 * 128256 * 8192 * 2, rel=1e-12)
    small = model_sizes(model_from_config({**BASE, "quantization_config": {**awq, "group_size": 32}}, "m"))
    assert small.layers[0].weight_bytes == pytest.approx(linear * (16 + 2.5) / 32 + 32768, rel=1e-12)


def test_int4_and_fp8_shards_must_be_whole_groups() -> None:
    def refusals(width: int, quantisation: dict) -> dict[int, str]:
        config = {**BASE, "intermediate_size": width, "quantization_config": quantisation}
        return {degree.tp: degree.refusal for degree in model_sizes(model_from_config(config, "m")).degrees}

    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    # Qwen2.5-72B's published width: 29568 / 8 = 3696 = 28.9 groups; at 1 GPU 231 groups, at 2 115.5.
    found = refusals(29568, awq)
    assert [tp for tp, why in found.items() if not why] == [1]
    assert found[2] == "shard of intermediate at 2 GPUs is not a multiple of the int4 group 128"
    assert [tp for tp, why in refusals(28672, awq).items() if not why] == [1, 2, 4, 8, 16]
    # Scales of whole rows bind nothing; neither does fp8 with one scale a tensor.
    assert [tp for tp, why in refusals(29568, {**awq, "group_size": -1}).items() if not why] == [1, 2, 4, 8, 16]
    assert [tp for tp, why in refusals(29568, {"quant_method": "fp8"}).items() if not why] == [1, 2, 4, 8, 16]
    assert "fp8 block 128" in refusals(29568, {"quant_method": "fp8", "weight_block_size": [128, 128]})[2]


def test_published_refusals() -> None:
    phi = {degree.tp: degree.refusal for degree in model_sizes(catalog().models["microsoft/phi-4"]).degrees}
    assert (phi[1], phi[2]) == ("", "")
    assert phi[4] == "10 KV heads neither divide by 4 nor replicate to it"  # vllm#16021
    qwen = {d.tp: d.refusal for d in model_sizes(catalog().models["Qwen/Qwen3-235B-A22B"], "fp8").degrees}
    assert qwen[8] == "shard of moe_intermediate at 8 GPUs is not a multiple of the fp8 block 128"  # vllm#17569
    assert qwen[4] == ""


def test_kv_of_windows_and_tied_ends() -> None:
    sizes = model_sizes(catalog().models["openai/gpt-oss-120b"], kv_dtype="fp8")
    # 18 full layers of 1,024 bytes a token and 18 that keep 128 tokens.
    assert sizes.kv_bytes_at_longest == 18 * 1024 * (131072 + 128)
    assert sizes.kv_bytes_per_token == 36 * 1024
    gemma = model_sizes(catalog().models["google/gemma-3-27b-it"])
    assert gemma.lm_head_bytes == 0
    assert gemma.embedding_bytes / GIB == pytest.approx(262208 * 5376 * 2 / GIB)


def test_overcharge_of_the_worst_run_by_hand() -> None:
    assert model_sizes(SPEC).worst_run_weights == model_sizes(SPEC).worst_run_kv == 0
    # A quarter of six layers is one; one layer of (64, 64, 0, 64, 64, 0) at 8,192 tokens holds 64 or 8,192.
    assert model_sizes(WINDOWED).worst_run_kv == pytest.approx(8192 / 64 - 1)
    # 15 of Gemma's 62 layers hold 2 or 3 full ones (every sixth), 1,024 tokens in the others of 131,072.
    full, windowed = 131072, 1024
    gemma = model_sizes(catalog().models["google/gemma-3-27b-it"])
    assert gemma.worst_run_kv == pytest.approx((3 * full + 12 * windowed) / (2 * full + 13 * windowed) - 1)
    assert gemma.worst_run_weights == 0
    # Only the first of six layers is dense, so no middle run has it; with two dense ones a run of one layer may.
    assert model_sizes(EXPERTS).worst_run_weights == 0
    two = model_sizes(replace(EXPERTS, dense_layers=2))
    shape = ModelShape(replace(EXPERTS, dense_layers=2), "bf16", "bf16")
    dense, experts = (shape.layer_weight_bytes(kind, 1) for kind in shape.kinds)
    assert two.worst_run_weights == pytest.approx(max(dense, experts) / min(dense, experts) - 1)


def test_layers_that_alternate_are_kinds_of_their_own() -> None:
    spec = replace(EXPERTS, dense_layers=1, moe_layers=(False, True) * 3)
    sizes = model_sizes(spec)
    assert [(kind.layers, kind.is_moe) for kind in sizes.layers] == [(3, False), (3, True)]
    assert sizes.params_total < model_sizes(EXPERTS).params_total
