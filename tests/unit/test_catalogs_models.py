"""Model shapes from config.json fields."""

from __future__ import annotations

import copy
import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs import load_catalog
from catalogs.errors import CoralError, UnknownNameError
from catalogs.models import SUPPORTED_MODEL_TYPES, model_from_config
from tasks.profiling.sizes import model_sizes

RAW = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_raw = pytest.mark.skipif(not (RAW / "models.csv").exists(), reason="raw data folder ../shared/data is absent")

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    **LLAMA, "model_type": "deepseek_v3", "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


@needs_raw
def test_all_17_models_agree_with_the_table_made_apart() -> None:
    with (RAW / "models.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    models = load_catalog().models
    assert len(rows) == len(models) == 17
    for row in rows:
        spec = models[row["hf_id"]]
        for ours, theirs in [
            ("layers", "layers"), ("hidden", "hidden"), ("intermediate", "intermediate"), ("heads", "heads"),
            ("kv_heads", "kv_heads"), ("head_dim", "head_dim"), ("vocab", "vocab"), ("n_experts", "n_experts"),
            ("experts_per_token", "experts_per_token"), ("shared_experts", "shared_experts"),
            ("moe_intermediate", "moe_intermediate"), ("max_position", "max_position"),
        ]:  # fmt: skip
            assert getattr(spec, ours) == int(row[theirs]), (spec.model, ours)
        assert spec.has_tied_embeddings == (row["tie_embeddings"] == "True")
        # The table counts every layer of a dense model as dense.
        assert spec.dense_layers == (int(row["dense_layers"]) if spec.is_moe else 0)
        assert sum(window == 0 for window in spec.layer_windows) == int(row["full_attention_layers"])
        assert {w for w in spec.layer_windows if w} == (
            {int(row["sliding_window"])} if row["sliding_window"] else set()
        )


def test_shapes_by_hand() -> None:
    models = {spec.alias: spec for spec in load_catalog().models.values()}
    assert (models["phi-4"].kv_heads, models["phi-4"].head_dim) == (10, 128)
    oss = models["gpt-oss-20b"]
    assert oss.layer_windows == (128, 0) * 12
    assert (oss.shipped_dtype, oss.n_experts, oss.experts_per_token, oss.moe_intermediate) == ("mxfp4", 32, 4, 2880)
    gemma = models["gemma-3-27b-it"]
    assert gemma.layer_windows[:6] == (1024, 1024, 1024, 1024, 1024, 0)
    assert gemma.layer_windows.count(0) == 10
    deepseek = models["deepseek-v3"]
    assert (deepseek.kv_lora_rank, deepseek.qk_rope_head_dim, deepseek.head_dim) == (512, 64, 192)
    assert (deepseek.shipped_dtype, deepseek.quant_block, deepseek.dense_layers) == ("fp8", 128, 3)
    assert models["qwen3-235b-a22b"].is_moe
    assert not models["llama-3.1-70b"].is_moe


def test_names_and_aliases() -> None:
    catalog = load_catalog()
    for name in ("Qwen/Qwen3-32B", "qwen3-32b", "QWEN3-32B"):
        assert catalog.model(name).model == "Qwen/Qwen3-32B"
    with pytest.raises(UnknownNameError, match="did you mean qwen3-32b"):
        catalog.model("qwen3-23b")


@pytest.mark.parametrize(
    "field", ["model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "torch_dtype"]
)
def test_missing_field_is_named(field: str) -> None:
    with pytest.raises(CoralError) as caught:
        model_from_config({k: v for k, v in LLAMA.items() if k != field}, "my/model")
    assert "'my/model'" in str(caught.value)
    assert repr(field) in str(caught.value)
    assert "is missing" in str(caught.value)


@pytest.mark.parametrize("field", ["num_local_experts", "num_experts_per_tok"])
def test_missing_expert_field_is_named(field: str) -> None:
    with pytest.raises(CoralError, match=field):
        model_from_config({k: v for k, v in MIXTRAL.items() if k != field}, "my/model")


@pytest.mark.parametrize("field", ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "moe_intermediate_size"])
def test_missing_latent_field_is_named(field: str) -> None:
    with pytest.raises(CoralError, match=field):
        model_from_config({k: v for k, v in LATENT.items() if k != field}, "my/model")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_hidden_layers", -3),
        ("hidden_size", 40.5),
        ("vocab_size", "many"),
        ("num_hidden_layers", True),
        ("num_key_value_heads", 5),
        ("torch_dtype", "int4"),
        ("tie_word_embeddings", "no"),
        ("quantization_config", {"quant_method": "awq"}),
        ("quantization_config", {"quant_method": "gptq", "bits": 8, "group_size": 128}),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("quantization_config", {"quant_method": "fp8", "weight_block_size": 128}),
        ("quantization_config", "fp8"),
        ("hidden_act", "relu2"),
        ("torch_dtype", ["bfloat16"]),
        ("torch_dtype", {"bfloat16": 1}),
        ("quantization_config", {"quant_method": ["awq"]}),
        ("quantization_config", {"quant_method": {"awq": 4}}),
        ("layer_types", [["full_attention"]] * 32),
        ("layer_types", [{"full_attention": 1}] * 32),
        ("model_type", ["llama"]),
        ("hidden_size", 10**4000),
        ("layer_types", ["full_attention"]),
    ],
)
def test_wrong_value_is_named(field: str, value: object) -> None:
    with pytest.raises(CoralError) as caught:
        model_from_config({**LLAMA, field: value}, "my/model")
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**12) | st.just(10**4000) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "weight_block_size": [128, 128]}}
TENSORS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
}
OSS = {
    **MIXTRAL,
    "model_type": "gpt_oss",
    "layer_types": ["full_attention"] * 32,
    "sliding_window": 128,
    "head_dim": 64,
}
CONFIGS: list[dict[str, Any]] = [
    LLAMA | AWQ, MIXTRAL | {"quantization_config": TENSORS}, LATENT, OSS, {"text_config": LLAMA},
    {**LLAMA, "model_type": "gemma3", "sliding_window": 512, "sliding_window_pattern": 6},
    {**MIXTRAL, "model_type": "llama4", "intermediate_size_mlp": 8192, "moe_layers": [1, 3], "attention_chunk_size": 8192},
    {**MIXTRAL, "model_type": "qwen2_moe", "moe_intermediate_size": 8, "shared_expert_intermediate_size": 16,
     "decoder_sparse_step": 1, "mlp_only_layers": [0], "max_window_layers": 4, "hidden_act": "silu"},
]  # fmt: skip


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return ([path] if path else []) + [place for k, child in inner for place in places_of(child, (*path, k))]


@settings(deadline=None, max_examples=400)
@given(st.sampled_from([(i, place) for i, config in enumerate(CONFIGS) for place in places_of(config)]), JUNK)
def test_any_value_in_any_field_is_a_model_or_one_line(place: tuple[int, tuple[Any, ...]], junk: Any) -> None:
    config = copy.deepcopy(CONFIGS[place[0]])
    inner: Any = config
    for part in place[1][:-1]:
        inner = inner[part]
    inner[place[1][-1]] = junk
    fault = ""
    try:
        model_sizes(model_from_config(config, "my/model"), "", "bf16")
    except CoralError as error:
        fault = str(error)
    assert "\n" not in fault
    assert len(fault) < 500


def test_the_configs_that_are_spoilt_are_sound() -> None:
    assert [model_from_config(config, "my/model").hidden for config in CONFIGS] == [4096] * len(CONFIGS)


def test_unknown_architecture_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(CoralError) as caught:
        model_from_config({**LLAMA, "model_type": "mamba"}, "my/model")
    assert "'mamba', which is not supported" in str(caught.value)
    assert "did you mean" not in str(caught.value)
    assert all(f" {name}" in caught.value.remedy for name in ("llama,", "qwen3_moe", "deepseek_v3,"))
    assert "mamba" not in SUPPORTED_MODEL_TYPES


def test_windows_apply_only_where_in_use() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert set(model_from_config({**qwen, "use_sliding_window": False}, "m").layer_windows) == {0}
    assert model_from_config({**qwen, "use_sliding_window": True}, "m").layer_windows == (0,) * 28 + (4096,) * 4
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}
    assert set(model_from_config(mistral, "m").layer_windows) == {4096}


def test_layers_that_alternate_are_told_apart() -> None:
    qwen = {
        **MIXTRAL,
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    }
    every_second = model_from_config({**qwen, "decoder_sparse_step": 2}, "m")
    assert every_second.moe_layers == (False, True) * 16
    assert (every_second.dense_layers, every_second.shared_experts) == (1, 4)  # 5632 = 4 x 1408
    named = model_from_config({**qwen, "mlp_only_layers": [0, 5]}, "m")
    assert [i for i in range(32) if not named.moe_layers[i]] == [0, 5]
    assert model_from_config(qwen, "m").moe_layers == ()
    every_third = model_from_config({**LATENT, "moe_layer_freq": 3}, "m")  # from layer 3 on: 3, 6, ...
    assert [i for i, is_moe in enumerate(every_third.moe_layers) if is_moe] == list(range(3, 32, 3))
    with pytest.raises(CoralError, match=r"mlp_only_layers.*layer numbers from 0 to 31"):
        model_from_config({**qwen, "mlp_only_layers": [32]}, "m")


def test_nested_text_config_and_no_object() -> None:
    nested = {"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
        **LLAMA, "model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 2}}  # fmt: skip
    assert model_from_config(nested, "m").layer_windows == (512, 0) * 16
    with pytest.raises(CoralError, match="not a JSON object"):
        model_from_config(json.loads("[1]"), "m")


@pytest.mark.parametrize(
    ("quantisation", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", 128)),
        ({"quant_method": "fp8"}, ("fp8", 0)),
        ({"quant_method": "fbgemm_fp8"}, ("fp8", 0)),
        ({"quant_method": "mxfp4"}, ("mxfp4", 0)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, ("int4", 128)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, ("int4", 32)),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, ("int4", 0)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}}, ("int4", 128)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {
            "num_bits": 8, "type": "float", "strategy": "channel"}}}}, ("fp8", 0)),
    ],
)  # fmt: skip
def test_published_formats(quantisation: dict, expected: tuple[str, int]) -> None:
    spec = model_from_config({**LLAMA, "quantization_config": quantisation}, "m")
    assert (spec.shipped_dtype, spec.quant_block) == expected


def test_unknown_compression_names_its_group() -> None:
    eight_bit = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}},
    }
    with pytest.raises(CoralError, match=r"config_groups\.g\.weights' of its config are 8-bit 'int'"):
        model_from_config({**LLAMA, "quantization_config": eight_bit}, "m")


def test_latent_attention_without_a_query_rank() -> None:
    lite = model_from_config({**LATENT, "model_type": "deepseek_v2", "q_lora_rank": None}, "m")
    assert (lite.q_lora_rank, lite.kv_lora_rank, lite.head_dim) == (0, 512, 192)


def test_windows_of_gemma2_and_llama4() -> None:
    gemma = model_from_config({**LLAMA, "model_type": "gemma2", "sliding_window": 4096}, "m")
    assert gemma.layer_windows == (4096, 0) * 16
    llama4 = {"model_type": "llama4", "torch_dtype": "bfloat16", "text_config": {
        **LLAMA, "model_type": "llama4_text", "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 8192,
    }}  # fmt: skip
    spec = model_from_config(llama4, "m")
    assert spec.layer_windows == (8192, 8192, 8192, 0) * 8
    assert spec.moe_layers == (False, True) * 16
    assert (spec.intermediate, spec.moe_intermediate, spec.shared_experts) == (16384, 8192, 1)


@pytest.mark.parametrize("field", ["num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size"])
@pytest.mark.parametrize("value", [2**63, 10**30])
def test_an_absurd_size_is_refused_in_one_line_before_it_takes_memory(field: str, value: int) -> None:
    with pytest.raises(CoralError, match=f"'{field}' of its config is .* wanted a whole number from 1 to ") as caught:
        model_from_config({**LLAMA, field: value}, "my-org/my")
    assert "\n" not in str(caught.value)
