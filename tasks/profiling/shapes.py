"""Derived sizes of a model: parameters, weight and KV bytes, legal tensor-parallel degrees, runs of unlike layers.

Bytes are per GPU of a tensor-parallel group unless said otherwise; "stage" means a contiguous run of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from catalogs.errors import CoralError
from catalogs.types import ModelSpec
from tasks.templates.types import Position

GIB = 2.0**30
BF16_BYTES = 2.0
# Bytes per weight of the quantised matrices. mxfp4: 4 bits + one 8-bit scale per 32 values; int4 (AWQ, GPTQ): 4 bits +
# a 16-bit scale and a 4-bit zero point per group of 128 unless the config names another; fp8 blocks: one 32-bit scale
# per 128 x 128, which is nothing.
INT4_GROUP = 128
QUANTISED_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp4": 4.25 / 8, "int4": (4 + 20 / 128) / 8}
KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
FP8_BLOCK = 128
# Their published generation_config.json sets top_p or top_k, which engines apply unless a request says otherwise.
SORTING_TYPES = frozenset({"llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma3", "gemma3_text", "deepseek_v3"})
# Their published model code norms queries and keys; config.json does not say so.
QK_NORM_TYPES = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2"})


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers that cost the same: a mixture of experts or dense, and the attention window in tokens (0 = full)."""

    is_moe: bool
    window: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """One matrix product per token of a layer on one GPU: [n, k] x [k, m], with its weights' bytes."""

    k: float
    m: float
    weight_bytes: float


@dataclass(frozen=True)
class ModelShape:
    """A model in a weight and a KV format. Raises CoralError for a format that is not known."""

    spec: ModelSpec
    weight_dtype: str
    kv_dtype: str

    def __post_init__(self) -> None:
        for label, dtype, known in (
            ("weight_dtype", self.weight_dtype, QUANTISED_BYTES),
            ("kv_dtype", self.kv_dtype, KV_BYTES),
        ):
            if dtype not in known:
                raise CoralError(
                    f"{self.spec.model}: {label} {dtype!r} is not known", remedy=f"use one of {sorted(known)}"
                )
        if self.weight_dtype == "mxfp4" and not self.spec.is_moe:
            raise CoralError(
                f"{self.spec.model}: weight_dtype 'mxfp4' quantises experts and this model has none",
                remedy="use bf16, fp8 or int4",
            )

    # ---- layers -------------------------------------------------------------------------------------------------

    @cached_property
    def kind_of_layer(self) -> tuple[LayerKind, ...]:
        """The kind of every layer, in order."""
        spec = self.spec
        windows = spec.layer_windows or (0,) * spec.layers
        is_moe = spec.moe_layers or tuple(spec.is_moe and i >= spec.dense_layers for i in range(spec.layers))
        return tuple(LayerKind(is_moe[i], windows[i]) for i in range(spec.layers))

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct kinds, in order of first appearance."""
        return tuple(dict.fromkeys(self.kind_of_layer))

    @cached_property
    def _cumulative(self) -> NDArray[np.int64]:
        one_hot = np.array([[kind == other for other in self.kinds] for kind in self.kind_of_layer], dtype=np.int64)
        return np.vstack([np.zeros((1, len(self.kinds)), np.int64), np.cumsum(one_hot, axis=0)])

    def runs(self, layers: int, position: Position) -> NDArray[np.int64]:
        """How many layers of each kind a run of ``layers`` can hold: int64 [candidates, kinds], distinct rows.

        A first stage holds the model's first layers and a last stage its last, one candidate each: exact. A middle
        stage may begin anywhere, so it has one candidate per distinct run, and whoever sizes it must bear the worst.
        """
        total = self.spec.layers
        cumulative = self._cumulative
        if position is Position.FIRST or (position is Position.ONLY and layers == total):
            return cumulative[layers][None, :]
        if position is Position.LAST:
            return (cumulative[total] - cumulative[total - layers])[None, :]
        # A middle stage leaves at least one layer on either side; longer runs (never used) may lie anywhere.
        start, stop = (1, total - 1) if position is Position.MID and layers <= total - 2 else (0, total)
        counts = cumulative[start + layers : stop + 1] - cumulative[start : stop - layers + 1]
        return np.unique(counts, axis=0)

    @cached_property
    def run_tables(self) -> dict[Position, NDArray[np.float64]]:
        """:meth:`runs` for every number of layers: [layers + 1, candidates, kinds]; row 0 is empty, short rows repeat."""
        tables = {}
        for position in Position:
            rows = [np.zeros((1, len(self.kinds)), dtype=np.int64)]
            rows += [self.runs(layers, position) for layers in range(1, self.spec.layers + 1)]
            width = max(len(row) for row in rows)
            padded = [np.vstack([row, np.repeat(row[-1:], width - len(row), axis=0)]) for row in rows]
            tables[position] = np.array(padded, dtype=np.float64)
        return tables

    # ---- weights ------------------------------------------------------------------------------------------------

    @property
    def sorts_logits(self) -> bool:
        """Whether tokens are drawn from the likeliest alone by default, so that every step sorts the vocabulary."""
        return self.spec.model_type in SORTING_TYPES

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normalised head by head before attention (Qwen3, Gemma 3 and their kin)."""
        return self.spec.model_type in QK_NORM_TYPES

    @cached_property
    def linear_bytes(self) -> float:
        """Bytes per weight of attention and dense feed-forward matrices (mxfp4 quantises the experts alone)."""
        return BF16_BYTES if self.weight_dtype == "mxfp4" else self.expert_bytes

    @cached_property
    def expert_bytes(self) -> float:
        """Bytes per weight of routed experts."""
        if self.weight_dtype != "int4":
            return QUANTISED_BYTES[self.weight_dtype]
        return (4 + (20 / self._group if self._group else 0.0)) / 8

    @cached_property
    def _group(self) -> int:
        """Weights along a matrix's input that share a scale, and (fp8) outputs: 0 = whole rows. Weights published in the
        format say it; for others the usual 128 is taken."""
        if self.spec.shipped_dtype == self.weight_dtype:
            return self.spec.quant_block
        return {"fp8": FP8_BLOCK, "int4": INT4_GROUP}.get(self.weight_dtype, 0)

    def attention_gemms(self, tp: int) -> tuple[Gemm, ...]:
        """The attention projections of one layer on one of ``tp`` GPUs. KV heads fewer than GPUs are replicated."""
        spec, size = self.spec, self.linear_bytes
        if spec.kv_lora_rank:
            return self._latent_gemms(tp)
        q, kv = spec.heads * spec.head_dim / tp, max(1.0, spec.kv_heads / tp) * spec.head_dim
        return (
            Gemm(spec.hidden, q + 2 * kv, spec.hidden * (q + 2 * kv) * size),
            Gemm(q, spec.hidden, q * spec.hidden * size),
        )

    def _latent_gemms(self, tp: int) -> tuple[Gemm, ...]:
        # Multi-head latent attention: down-projections are held whole by every GPU, heads are split.
        spec, heads = self.spec, self.spec.heads / tp
        qk = spec.qk_nope_head_dim + spec.qk_rope_head_dim
        latent = spec.kv_lora_rank + spec.qk_rope_head_dim
        sizes: list[tuple[float, float]] = [
            (spec.hidden, spec.q_lora_rank + latent),
            (spec.q_lora_rank or spec.hidden, heads * qk),
            (spec.kv_lora_rank, heads * (spec.qk_nope_head_dim + spec.v_head_dim)),
            (heads * spec.v_head_dim, spec.hidden),
        ]
        return tuple(Gemm(k, m, k * m * self.linear_bytes) for k, m in sizes)

    def feed_forward_gemms(self, kind: LayerKind, tp: int) -> tuple[Gemm, ...]:
        """The dense matrices of a layer's second half: gate+up and down, or the router and the shared experts."""
        spec, size = self.spec, self.linear_bytes
        if not kind.is_moe:
            return _gated(spec.hidden, spec.intermediate / tp, size)
        router = Gemm(spec.hidden, spec.n_experts, spec.hidden * spec.n_experts * BF16_BYTES)
        if not spec.shared_experts:
            return (router,)
        return (router, *_gated(spec.hidden, spec.shared_experts * spec.moe_intermediate / tp, size))

    def expert_weight_bytes(self, tp: int) -> float:
        """Bytes of one routed expert on one of ``tp`` GPUs."""
        return 3.0 * self.spec.hidden * self.spec.moe_intermediate / tp * self.expert_bytes

    def layer_weight_bytes(self, kind: LayerKind, tp: int) -> float:
        """Weights of one layer on one of ``tp`` GPUs, norms included."""
        gemms = (*self.attention_gemms(tp), *self.feed_forward_gemms(kind, tp))
        total = sum(gemm.weight_bytes for gemm in gemms) + 2 * self.spec.hidden * BF16_BYTES
        if kind.is_moe:
            total += self.spec.n_experts * self.expert_weight_bytes(tp)
        return total

    def embedding_bytes(self, tp: int) -> float:
        """The token embedding on one of ``tp`` GPUs (vocabulary-parallel, never quantised)."""
        return self.spec.vocab * self.spec.hidden * BF16_BYTES / tp

    def lm_head_bytes(self, tp: int) -> float:
        """The language-model head on one of ``tp`` GPUs; with tied embeddings the same matrix."""
        return self.embedding_bytes(tp)

    def end_bytes(self, has_embedding: bool, has_head: bool, tp: int) -> float:
        """Embedding and head where they sit; a stage that holds both of a tied pair holds one matrix."""
        if has_embedding and has_head and self.spec.has_tied_embeddings:
            return self.embedding_bytes(tp)
        return has_embedding * self.embedding_bytes(tp) + has_head * self.lm_head_bytes(tp)

    @cached_property
    def weight_bytes(self) -> float:
        """The whole model's weights, on one GPU if it fitted."""
        layers = sum(self.layer_weight_bytes(kind, 1) for kind in self.kind_of_layer)
        return layers + self.end_bytes(has_embedding=True, has_head=True, tp=1)

    # ---- parameters ---------------------------------------------------------------------------------------------

    @cached_property
    def params_total(self) -> float:
        """All parameters (biases of projections left out: under 0.05 % of any model here)."""
        return self._params(self.spec.n_experts)

    @cached_property
    def params_active(self) -> float:
        """Parameters a token touches: the routed experts it is sent to, everything else; embedding included."""
        return self._params(self.spec.experts_per_token)

    @property
    def params_embedding(self) -> float:
        """Parameters of the token embedding, which some publishers leave out of the active count."""
        return float(self.spec.vocab * self.spec.hidden)

    def _params(self, experts: int) -> float:
        spec = self.spec
        plain = ModelShape(spec, "bf16", "bf16")
        total = plain.end_bytes(has_embedding=True, has_head=True, tp=1)
        for kind in self.kind_of_layer:
            total += plain.layer_weight_bytes(kind, 1)
            if kind.is_moe:
                total -= (spec.n_experts - experts) * plain.expert_weight_bytes(1)
        return total / BF16_BYTES

    # ---- KV cache -----------------------------------------------------------------------------------------------

    def kv_bytes_per_token_layer(self, tp: int = 1) -> float:
        """KV bytes of one token in one layer on one of ``tp`` GPUs: replicated beyond the KV heads; latent KV always is."""
        spec, size = self.spec, KV_BYTES[self.kv_dtype]
        if spec.kv_lora_rank:
            return (spec.kv_lora_rank + spec.qk_rope_head_dim) * size
        return 2 * max(1.0, spec.kv_heads / tp) * spec.head_dim * size

    def kv_bytes_per_sequence(self, context_tokens: float, tp: int = 1) -> NDArray[np.float64]:
        """KV bytes of one sequence in one layer of each kind [kinds]: a windowed layer keeps its window only."""
        held = [min(context_tokens, kind.window) if kind.window else context_tokens for kind in self.kinds]
        return np.array(held) * self.kv_bytes_per_token_layer(tp)

    def kv_bytes_all_layers(self, context_tokens: float) -> float:
        """KV bytes of one sequence in the whole model."""
        return float(self._cumulative[-1] @ self.kv_bytes_per_sequence(context_tokens))

    # ---- tensor parallelism -------------------------------------------------------------------------------------

    def tp_refusal(self, tp: int) -> str:
        """Why an engine refuses ``tp`` GPUs per tensor-parallel group; empty = legal.

        vLLM's rule: heads divide evenly, KV heads divide evenly or are replicated evenly; fp8 in blocks needs every shard
        to be a whole number of blocks, int4 in groups every shard of an input (o and down projections) whole groups.
        """
        spec = self.spec
        if spec.heads % tp:
            return f"{spec.heads} heads do not divide by {tp}"
        if not spec.kv_lora_rank and spec.kv_heads % tp and tp % spec.kv_heads:
            return f"{spec.kv_heads} KV heads neither divide by {tp} nor replicate to it"
        width = [f"{name} ({size})" for name, size in self._sharded_sizes().items() if size % tp]
        if width:
            return f"{', '.join(width)} does not divide by {tp}"
        if self._group and tp > 1:
            odd = [name for name, size in self._sharded_sizes().items() if size // tp % self._group]
            if odd:
                unit = "block" if self.weight_dtype == "fp8" else "group"
                return (
                    f"shard of {', '.join(odd)} at {tp} GPUs is not a multiple of the {self.weight_dtype} {unit}"
                    f" {self._group}"
                )
        return ""

    def _sharded_sizes(self) -> dict[str, int]:
        """Widths that tensor parallelism splits."""
        spec = self.spec
        sizes = {}
        if any(not kind.is_moe for kind in self.kinds):
            sizes["intermediate"] = spec.intermediate
        if spec.is_moe:
            sizes["moe_intermediate"] = spec.moe_intermediate
        if spec.shared_experts:
            sizes["shared_experts"] = spec.shared_experts * spec.moe_intermediate
        if self.weight_dtype == "int4":
            sizes["attention output"] = spec.heads * (spec.v_head_dim or spec.head_dim)
        return sizes

    @property
    def activation_width(self) -> float:
        """Feed-forward width per token of the widest layer: the activations' share that tensor parallelism splits."""
        spec = self.spec
        dense = spec.intermediate if any(not kind.is_moe for kind in self.kinds) else 0
        routed = (spec.experts_per_token + spec.shared_experts) * spec.moe_intermediate
        return float(max(dense, routed))


def _gated(hidden: float, width: float, size: float) -> tuple[Gemm, Gemm]:
    return (Gemm(hidden, 2 * width, hidden * 2 * width * size), Gemm(width, hidden, width * hidden * size))
