"""Time of every operation of a layer on one GPU of a tensor-parallel group (DESIGN section 2), in milliseconds.

All functions are vectorised over ``n``, the tokens in the pass (prefill: prompt tokens; decode: one per sequence).
Compute and memory time are joined by the p-norm ``(x^p + y^p)^(1/p)``, so that a kernel near the ridge takes longer
than the slower of the two. Factors come from measurements; one that is missing raises :class:`MissingFactorsError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Efficiency, Gpu, MoeFactors, Phase, Provenance
from tasks.profiling.shapes import Gemm, LayerKind, ModelShape

Floats = NDArray[np.float64]

# From 1e12 FLOP/s and 1e9 B/s to per-millisecond.
FLOP_PER_MS_PER_TFLOPS = 1e9
BYTES_PER_MS_PER_GB_PER_S = 1e6
_RANK = {provenance: rank for rank, provenance in enumerate(Provenance)}


class MissingFactorsError(Exception):
    """The GPU has no factors for an operation: there is no profile, and none is made up."""


def pnorm(x: Floats, y: Floats, p: float) -> Floats:
    """``(x^p + y^p)^(1/p)``, computed relative to the greater so that large p does not overflow."""
    top = np.maximum(x, y)
    low = np.minimum(x, y)
    ratio = np.divide(low, top, out=np.zeros_like(top), where=top > 0)
    return top * (1 + ratio**p) ** (1 / p)


def attention_pairs(context: float, window: int, first: float = 0.0) -> float:
    """Query-key pairs of the prompt positions ``first``..``context`` under a causal mask and ``window`` (0 = none).

    From position 0: ``c^2/2``, or ``cW - W^2/2`` beyond the window.
    """

    def upto(c: float) -> float:
        return c * c / 2 if not window or c <= window else c * window - window * window / 2

    return upto(context) - upto(first)


@dataclass(frozen=True)
class Roofline:
    """Operation times of a model on a GPU. Bytes and FLOP are per GPU of a group of ``tp``."""

    gpu: Gpu
    eff: Efficiency
    shape: ModelShape

    @cached_property
    def _flop_per_ms(self) -> float:
        return self.eff.peak_bf16_tflops * FLOP_PER_MS_PER_TFLOPS

    @cached_property
    def _bytes_per_ms(self) -> float:
        return self.eff.memory_bandwidth_gb_per_s * BYTES_PER_MS_PER_GB_PER_S

    @cached_property
    def _fp8_speedup(self) -> float:
        """Peak of fp8 matrix products against bf16 where weights are fp8 and the GPU has units for it, else 1: other
        quantised weights are widened to 16 bits before the product."""
        gpu = self.gpu
        if self.shape.weight_dtype != "fp8" or not gpu.has_native_fp8:
            return 1.0
        if not gpu.fp8_dense_tflops or not gpu.bf16_dense_tflops:
            return 1.0
        return gpu.fp8_dense_tflops / gpu.bf16_dense_tflops

    # ---- operations ---------------------------------------------------------------------------------------------

    def gemm_ms(self, n: Floats, gemm: Gemm, speedup: float | None = None) -> Floats:
        """One dense product of ``n`` tokens: pn(2nKN / (F mfu), (weights + 2n(K+N)) / (B mbu)) + tau."""
        eff = self.eff
        rate = self._flop_per_ms * eff.mfu_gemm * (self._fp8_speedup if speedup is None else speedup)
        compute = 2 * n * gemm.k * gemm.m / rate
        memory = (gemm.weight_bytes + 2 * n * (gemm.k + gemm.m)) / (self._bytes_per_ms * eff.mbu_gemm)
        return pnorm(compute, memory, eff.p) + eff.tau_gemm_ms

    def dense_ms(self, n: Floats, kind: LayerKind, tp: int) -> Floats:
        """All dense products of a layer: qkv, o, gate+up, down; of a mixture of experts qkv, o, router, shared experts."""
        gemms = (*self.shape.attention_gemms(tp), *self.shape.feed_forward_gemms(kind, tp))
        return np.sum([self.gemm_ms(n, gemm) for gemm in gemms], axis=0)

    def prefill_attention_ms(self, n: Floats, window: int, tp: int, context: float, first: float = 0.0) -> Floats:
        """Attention of ``n`` prompt tokens, from prompts of which the positions ``first``..``context`` are computed:
        4 (H/t) d FLOP per pair; each token bears its prompt's mean."""
        eff, spec = self.eff, self.shape.spec
        if eff.mfu_attn is None or eff.tau_attn_prefill_ms is None:
            raise MissingFactorsError(f"{eff.gpu}: no attention factors")
        width = 2 * spec.head_dim
        if spec.kv_lora_rank:
            width = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
        pairs_per_token = attention_pairs(context, window, first) / (context - first)
        flop = 2 * (spec.heads / tp) * width * n * pairs_per_token
        return flop / (self._flop_per_ms * eff.mfu_attn) + eff.tau_attn_prefill_ms

    def decode_attention_ms(self, n: Floats, window: int, tp: int, context: float) -> Floats:
        """Attention of ``n`` sequences one token on: KV bytes of min(context, window) tokens each / (B mbu) + tau.

        Latent attention shares its KV among all heads, so there compute counts as well.
        """
        eff, spec = self.eff, self.shape.spec
        if eff.mbu_attn is None or eff.tau_attn_ms is None or eff.mfu_attn is None:
            raise MissingFactorsError(f"{eff.gpu}: no attention factors")
        held = min(context, window) if window else context
        memory = n * held * self.shape.kv_bytes_per_token_layer(tp) / (self._bytes_per_ms * eff.mbu_attn)
        if spec.kv_lora_rank:
            width = 2 * spec.kv_lora_rank + spec.qk_rope_head_dim
            compute = 2 * n * (spec.heads / tp) * width * held / (self._flop_per_ms * eff.mfu_attn)
            memory = pnorm(compute, memory, eff.p)
        return memory + eff.tau_attn_ms

    def experts_ms(self, n: Floats, tp: int) -> Floats:
        """Routed experts: E(1 - (1 - k/E)^(n skew)) of them are touched and read; k per token are computed."""
        spec, factors = self.shape.spec, self._moe_factors
        width = spec.moe_intermediate / tp
        touched = spec.n_experts * (1 - (1 - spec.experts_per_token / spec.n_experts) ** (n * factors.skew))
        rows = n * spec.experts_per_token
        compute = 2 * rows * 3 * spec.hidden * width / (self._flop_per_ms * factors.mfu * self._fp8_speedup)
        # Each routed row is read and written at full width and passes the gated inner width three times.
        activations = 2 * rows * (2 * spec.hidden + 3 * width)
        weights = touched * self.shape.expert_weight_bytes(tp)
        memory = (weights + activations) / (self._bytes_per_ms * factors.mbu)
        return pnorm(compute, memory, factors.p) + factors.tau_ms

    def all_reduce_ms(self, n: Floats, tp: int) -> Floats:
        """One all-reduce of [n, hidden] over ``tp`` GPUs, alpha + 2nh/beta; beta was measured on this GPU's link."""
        if tp == 1:
            return np.zeros_like(n)
        if tp not in self.eff.all_reduce:
            raise MissingFactorsError(f"{self.eff.gpu}: no all-reduce factors for {tp} GPUs")
        alpha_ms, beta_gb_per_s = self.eff.all_reduce[tp]
        return alpha_ms + 2 * n * self.shape.spec.hidden / (beta_gb_per_s * BYTES_PER_MS_PER_GB_PER_S)

    def element_wise_ms(self, n: Floats) -> Floats:
        """Norms, residuals, activations, rotary embedding: ew_c * 2nh / B + tau."""
        return self.eff.ew_c * 2 * n * self.shape.spec.hidden / self._bytes_per_ms + self.eff.tau_ew_ms

    def lm_head_ms(self, rows: Floats, tp: int) -> Floats:
        """The head, once per pass, for ``rows`` sequences that get a token (never quantised)."""
        gemm = Gemm(self.shape.spec.hidden, self.shape.spec.vocab / tp, self.shape.lm_head_bytes(tp))
        return self.gemm_ms(rows, gemm, speedup=1.0)

    def embedding_ms(self, n: Floats, tp: int) -> Floats:
        """The embedding: reads and writes one row per token, and joins the vocabulary shards by one all-reduce."""
        return 2 * 2 * n * self.shape.spec.hidden / self._bytes_per_ms + self.all_reduce_ms(n, tp)

    # ---- a layer ------------------------------------------------------------------------------------------------

    def layer_ms(self, n: Floats, kind: LayerKind, tp: int, phase: Phase, context: float, first: float = 0.0) -> Floats:
        """One layer of ``kind``: dense products, attention, experts, two all-reduces, element-wise operations."""
        if phase is Phase.PREFILL:
            attention = self.prefill_attention_ms(n, kind.window, tp, context, first)
        else:
            attention = self.decode_attention_ms(n, kind.window, tp, context)
        total = self.dense_ms(n, kind, tp) + attention + self.element_wise_ms(n) + 2 * self.all_reduce_ms(n, tp)
        return total + self.experts_ms(n, tp) if kind.is_moe else total

    # ---- ground under the figures -------------------------------------------------------------------------------

    @property
    def _moe_group(self) -> str:
        # No factors were fitted for fp8 and int4 experts: fp8 runs the bf16 kernels' shape, int4 the 4-bit ones'.
        return "moe_mxfp4" if self.shape.weight_dtype in ("mxfp4", "int4") else "moe_bf16"

    @property
    def _moe_factors(self) -> MoeFactors:
        factors = self.eff.moe_mxfp4 if self._moe_group == "moe_mxfp4" else self.eff.moe_bf16
        if factors is None:
            raise MissingFactorsError(f"{self.eff.gpu}: no {self._moe_group} factors")
        return factors

    def missing_factors(self, tp: int) -> str:
        """What this GPU lacks for the model at ``tp``, or an empty string.

        A GPU without bf16 units is not profiled for bf16 activations: its factors were measured in fp16.
        """
        if not self.gpu.has_native_bf16 and self.shape.weight_dtype != "fp16":
            return f"{self.gpu.gpu}: no bf16 units, and its factors are for fp16"
        probe = np.ones(1)
        try:
            for kind in self.shape.kinds:
                for phase in (Phase.PREFILL, Phase.DECODE):
                    self.layer_ms(probe, kind, tp, phase, 1.0)
        except MissingFactorsError as error:
            return str(error)
        return ""

    def provenance(self, tp: int) -> Provenance:
        """The weakest ground among the operation groups used. Formats and attention that were not measured at all
        (fp8, int4, latent attention) stand on bf16 and grouped-query factors: borrowed."""
        groups = ["gemm", "attn"] + ([f"ar{tp}"] if tp > 1 else [])
        groups += [self._moe_group] if self.shape.spec.is_moe else []
        found = [self.eff.provenance.get(group, Provenance.DERIVED) for group in groups]
        if self.shape.weight_dtype in ("fp8", "int4") or self.shape.spec.kv_lora_rank:
            found.append(Provenance.BORROWED)
        return max(found, key=_RANK.__getitem__)
