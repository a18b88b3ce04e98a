"""Model shapes from Hugging Face ``config.json`` files. What is not understood is refused by field name, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from catalogs.errors import CoralError
from catalogs.model_fields import MOST_LAYERS, Fields, shown
from catalogs.model_formats import shipped_dtype
from catalogs.types import ModelSpec

_DENSE = frozenset(
    {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "phi3",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "granite",
        "olmo2",
        "glm4",
    }
)
_LATENT = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
_MOE = _LATENT | {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "glm4_moe", "llama4", "llama4_text"}
SUPPORTED_MODEL_TYPES = tuple(sorted(_DENSE | _MOE))
# Where transformers ties the two embeddings unless the config says otherwise.
_TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})


def default_alias(model_id: str) -> str:
    """``meta-llama/Meta-Llama-3.1-70B`` -> ``llama-3.1-70b``."""
    return model_id.rsplit("/", 1)[-1].lower().removeprefix("meta-")


def model_from_config(
    config: Mapping[str, Any],
    model_id: str,
    *,
    alias: str = "",
    source: str = "config.json",
    as_of: date | None = None,
    config_file: str = "",
) -> ModelSpec:
    """The shape of ``model_id`` from its ``config.json`` as a mapping (nested ``text_config`` is followed).

    Raises CoralError for an architecture this planner has no formulas for, and one naming a field that is
    missing or out of range.
    """
    if not isinstance(config, Mapping):
        raise CoralError(f"model {model_id!r}: its config is not a JSON object", remedy="use the model's config.json")
    text = Fields(config, model_id).group("text_config")
    fields = Fields({**config, **text}, model_id)
    model_type = _model_type(fields)
    layers = fields.integer("num_hidden_layers", high=MOST_LAYERS)
    dtype, block = shipped_dtype(fields)
    return ModelSpec(
        model=model_id,
        alias=alias or default_alias(model_id),
        model_type=model_type,
        layers=layers,
        hidden=fields.integer("hidden_size"),
        # Llama 4 names the width of its dense layers apart; intermediate_size is its experts'.
        intermediate=fields.integer("intermediate_size_mlp", default=fields.integer("intermediate_size")),
        vocab=fields.integer("vocab_size"),
        has_tied_embeddings=fields.flag("tie_word_embeddings", default=model_type in _TIED_BY_DEFAULT),
        layer_windows=_layer_windows(fields, model_type, layers),
        shipped_dtype=dtype,
        quant_block=block,
        max_position=fields.integer("max_position_embeddings"),
        source=source,
        as_of=as_of or date.today(),
        config_file=config_file,
        **_attention(fields, model_type),
        **_experts(fields, model_type, layers),
    )


def _model_type(fields: Fields) -> str:
    model_type = fields.config.get("model_type")
    if model_type is None:
        raise fields.error("model_type", "is missing")
    if not isinstance(model_type, str):
        raise fields.error("model_type", f"is {shown(model_type)}, wanted a text")
    if model_type not in SUPPORTED_MODEL_TYPES:
        # Not the names nearest to it: a config edited to say another architecture would be planned with wrong sizes.
        supported = f"take a model whose model_type is one of: {', '.join(SUPPORTED_MODEL_TYPES)}"
        raise fields.error("model_type", f"is {shown(model_type)}, which is not supported", supported)
    if fields.text("hidden_act", "hidden_activation", default="silu") not in {
        "silu",
        "swish",
        "gelu",
        "gelu_new",
        "gelu_pytorch_tanh",
    }:
        raise fields.error(
            "hidden_act", f"is {shown(fields.config.get('hidden_act'))}: only gated silu or gelu is known"
        )
    return model_type


def _attention(fields: Fields, model_type: str) -> dict[str, Any]:
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    latent = dict.fromkeys(names, 0)
    if model_type in _LATENT:
        # Without a query rank (DeepSeek-V2-Lite: null) the query is projected at full width.
        latent = {name: fields.integer(name, default=0 if name == "q_lora_rank" else None) for name in names}
        head_dim = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
    else:
        hidden = fields.integer("hidden_size")
        if "head_dim" not in fields.config and hidden % heads:
            raise fields.error("head_dim", f"is missing, and {heads} heads do not divide the hidden size {hidden}")
        head_dim = fields.integer("head_dim", default=hidden // heads)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **latent}


def _experts(fields: Fields, model_type: str, layers: int) -> dict[str, Any]:
    if model_type in _DENSE:
        names = ("n_experts", "experts_per_token", "shared_experts", "moe_intermediate", "dense_layers")
        return dict.fromkeys(names, 0)
    experts = fields.integer("num_local_experts", "num_experts", "n_routed_experts")
    per_token = fields.integer("num_experts_per_tok", "experts_per_token")
    if per_token > experts:
        raise fields.error("num_experts_per_tok", f"is {per_token}, more than the {experts} experts")
    own_width = model_type not in {"mixtral", "gpt_oss", "llama4", "llama4_text"}
    width = fields.integer("moe_intermediate_size" if own_width else "intermediate_size")
    is_moe = _moe_layers(fields, model_type, layers)
    leading = is_moe.index(True) if any(is_moe) else layers
    return {
        "n_experts": experts,
        "experts_per_token": per_token,
        "shared_experts": _shared_experts(fields, model_type, width),
        "moe_intermediate": width,
        "dense_layers": leading,
        # Empty where all layers after the leading dense ones are mixtures of experts.
        "moe_layers": () if all(is_moe[leading:]) else is_moe,
    }


def _shared_experts(fields: Fields, model_type: str, width: int) -> int:
    """Shared experts in units of a routed expert's width."""
    if model_type in {"llama4", "llama4_text"}:
        return 1
    if model_type == "qwen2_moe":
        shared = fields.integer("shared_expert_intermediate_size", default=0, low=0)
        if shared % width:
            raise fields.error(
                "shared_expert_intermediate_size", f"is {shared}, not a multiple of the experts' width {width}"
            )
        return shared // width
    return fields.integer("n_shared_experts", default=0, low=0)


def _moe_layers(fields: Fields, model_type: str, layers: int) -> tuple[bool, ...]:
    """Which layers are mixtures of experts, by the rule of the architecture."""
    first = fields.integer("first_k_dense_replace", default=0, low=0)
    if first > layers:
        raise fields.error("first_k_dense_replace", f"is {first}, more than the {layers} layers")
    if model_type in {"llama4", "llama4_text"}:
        step = fields.integer("interleave_moe_layer_step", default=1)
        named = fields.integers("moe_layers", layers)
        return tuple(i in named if named is not None else (i + 1) % step == 0 for i in range(layers))
    if model_type in {"qwen2_moe", "qwen3_moe"}:
        step = fields.integer("decoder_sparse_step", default=1)
        dense = fields.integers("mlp_only_layers", layers) or frozenset()
        return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))
    step = fields.integer("moe_layer_freq", default=1)
    return tuple(i >= first and i % step == 0 for i in range(layers))


def _layer_windows(fields: Fields, model_type: str, layers: int) -> tuple[int, ...]:
    """Each layer's attention window, 0 = full attention."""
    window = fields.integer("sliding_window", "attention_chunk_size", default=0, low=0)
    is_windowed: Callable[[int], bool]
    layer_types = fields.config.get("layer_types")
    if layer_types is not None:
        known = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}
        if (
            not isinstance(layer_types, list)
            or len(layer_types) != layers
            or any(not isinstance(kind, str) or kind not in known for kind in layer_types)
        ):
            raise fields.error(
                "layer_types", f"does not name sliding_attention or full_attention for all {layers} layers"
            )
        is_windowed = lambda i: known[layer_types[i]]  # noqa: E731
    elif model_type in {"llama4", "llama4_text"}:
        # Every fourth layer has no rotary embedding and sees everything; the others see their chunk.
        step = fields.integer("no_rope_layer_interval", default=4)
        is_windowed = lambda i: window > 0 and (i + 1) % step != 0  # noqa: E731
    elif model_type == "gemma2":
        is_windowed = lambda i: i % 2 == 0  # noqa: E731
    elif model_type.startswith("gemma3"):
        # Every pattern-th layer sees everything; the published default is 6 (5 windowed, 1 full).
        pattern = fields.integer("sliding_window_pattern", "_sliding_window_pattern")
        is_windowed = lambda i: (i + 1) % pattern != 0  # noqa: E731
    elif model_type == "gpt_oss":
        raise fields.error("layer_types", "is missing")
    elif model_type in {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}:
        first = fields.integer("max_window_layers", default=layers, low=0)
        in_use = fields.flag("use_sliding_window", default=False)
        is_windowed = lambda i: in_use and i >= first  # noqa: E731
    else:
        is_windowed = lambda _: window > 0  # noqa: E731
    windows = tuple(window if is_windowed(i) else 0 for i in range(layers))
    if window == 0 and any(is_windowed(i) for i in range(layers)):
        raise fields.error("sliding_window", "is missing although some layers are windowed")
    return windows
