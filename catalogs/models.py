"""Model shapes from Hugging Face ``config.json`` files. What is not understood is refused by field name, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from catalogs.errors import CoralError, UnknownNameError
from catalogs.types import ModelSpec

_DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3", "gemma3_text"})
_MOE = frozenset({"mixtral", "qwen3_moe", "gpt_oss", "glm4_moe", "deepseek_v3", "kimi_k2"})
_LATENT = frozenset({"deepseek_v3", "kimi_k2"})
SUPPORTED_MODEL_TYPES = tuple(sorted(_DENSE | _MOE))


class _Fields:
    """Typed access to a config's fields; every failure names the model and the field."""

    def __init__(self, config: Mapping[str, Any], model_id: str) -> None:
        self.config, self.model_id = config, model_id

    def integer(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """The first of ``names`` that is present, as a whole number >= ``low``."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise self.error(names[0], f"is {value!r}, wanted a whole number >= {low}")
            return value
        if default is None:
            raise self.error(names[0], "is missing")
        return default

    def flag(self, name: str, default: bool) -> bool:
        """A true/false field."""
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {value!r}, wanted true or false")
        return value

    def error(self, field: str, problem: str) -> CoralError:
        """A one-line fault of this config."""
        return CoralError(
            f"model {self.model_id!r}: field {field!r} of its config {problem}",
            remedy="use the config.json published with the model's weights",
        )


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

    Raises UnknownNameError for an architecture this planner has no formulas for, CoralError naming a field that is
    missing or out of range.
    """
    if not isinstance(config, Mapping):
        raise CoralError(f"model {model_id!r}: its config is not a JSON object", remedy="use the model's config.json")
    text = config["text_config"] if isinstance(config.get("text_config"), Mapping) else config
    fields = _Fields({**config, **text}, model_id)
    model_type = fields.config.get("model_type")
    if model_type is None:
        raise fields.error("model_type", "is missing")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise UnknownNameError("model_type", str(model_type), SUPPORTED_MODEL_TYPES, where=f"model {model_id!r}")
    layers = fields.integer("num_hidden_layers")
    dtype, block = _shipped_dtype(fields)
    return ModelSpec(
        model=model_id,
        alias=alias or default_alias(model_id),
        model_type=model_type,
        layers=layers,
        hidden=fields.integer("hidden_size"),
        intermediate=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        has_tied_embeddings=fields.flag("tie_word_embeddings", default=model_type.startswith("gemma")),
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


def _attention(fields: _Fields, model_type: str) -> dict[str, int]:
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    latent = {name: fields.integer(name) if model_type in _LATENT else 0 for name in names}
    if model_type in _LATENT:
        head_dim = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
    else:
        head_dim = fields.integer("head_dim", default=fields.integer("hidden_size") // heads)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, **latent}


def _experts(fields: _Fields, model_type: str, layers: int) -> dict[str, int]:
    if model_type in _DENSE:
        names = ("n_experts", "experts_per_token", "shared_experts", "moe_intermediate", "dense_layers")
        return dict.fromkeys(names, 0)
    for name in ("decoder_sparse_step", "moe_layer_freq"):
        if fields.integer(name, default=1) != 1:
            raise fields.error(name, "is not 1: layers that alternate dense and experts are not supported")
    if fields.config.get("mlp_only_layers"):
        raise fields.error("mlp_only_layers", "is not empty: dense layers among the experts are not supported")
    experts = fields.integer("num_local_experts", "num_experts", "n_routed_experts")
    per_token = fields.integer("num_experts_per_tok", "experts_per_token")
    if per_token > experts:
        raise fields.error("num_experts_per_tok", f"is {per_token}, more than the {experts} experts")
    own_width = model_type not in {"mixtral", "gpt_oss"}
    dense_layers = fields.integer("first_k_dense_replace", default=0, low=0)
    if dense_layers > layers:
        raise fields.error("first_k_dense_replace", f"is {dense_layers}, more than the {layers} layers")
    return {
        "n_experts": experts,
        "experts_per_token": per_token,
        "shared_experts": fields.integer("n_shared_experts", default=0, low=0),
        "moe_intermediate": fields.integer("moe_intermediate_size" if own_width else "intermediate_size"),
        "dense_layers": dense_layers,
    }


def _layer_windows(fields: _Fields, model_type: str, layers: int) -> tuple[int, ...]:
    """Each layer's attention window, 0 = full attention."""
    window = fields.integer("sliding_window", default=0, low=0)
    is_windowed: Callable[[int], bool]
    layer_types = fields.config.get("layer_types")
    if layer_types is not None:
        known = {"sliding_attention": True, "full_attention": False}
        if len(layer_types) != layers or any(kind not in known for kind in layer_types):
            raise fields.error(
                "layer_types", f"does not name sliding_attention or full_attention for all {layers} layers"
            )
        is_windowed = lambda i: known[layer_types[i]]  # noqa: E731
    elif model_type.startswith("gemma3"):
        # Every pattern-th layer sees everything; the published default is 6 (5 windowed, 1 full).
        pattern = fields.integer("sliding_window_pattern", "_sliding_window_pattern")
        is_windowed = lambda i: (i + 1) % pattern != 0  # noqa: E731
    elif model_type == "gpt_oss":
        raise fields.error("layer_types", "is missing")
    elif model_type in {"qwen2", "qwen3", "qwen3_moe"}:
        first = fields.integer("max_window_layers", default=layers, low=0)
        in_use = fields.flag("use_sliding_window", default=False)
        is_windowed = lambda i: in_use and i >= first  # noqa: E731
    else:
        is_windowed = lambda _: window > 0  # noqa: E731
    windows = tuple(window if is_windowed(i) else 0 for i in range(layers))
    if window == 0 and any(is_windowed(i) for i in range(layers)):
        raise fields.error("sliding_window", "is missing although some layers are windowed")
    return windows


def _shipped_dtype(fields: _Fields) -> tuple[str, int]:
    """(weight format, quantisation block) of the published weights."""
    quantisation = fields.config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method")
        if method == "mxfp4":
            # Blocks of 32 do not constrain the layout: engines pad an expert's shard to whole blocks.
            return "mxfp4", 0
        if method == "fp8":
            block = quantisation.get("weight_block_size")
            return "fp8", int(block[0]) if block else 0
        raise fields.error("quantization_config.quant_method", f"is {method!r}, known: fp8, mxfp4")
    dtype = fields.config.get("torch_dtype") or fields.config.get("dtype")
    if dtype is None:
        raise fields.error("torch_dtype", "is missing")
    if dtype not in {"bfloat16", "float16"}:
        raise fields.error("torch_dtype", f"is {dtype!r}, known: bfloat16, float16")
    # Both take two bytes a weight and run on the same units.
    return "bf16", 0
