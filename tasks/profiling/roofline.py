"""Time of every operation of a layer on one GPU of a tensor-parallel group, in milliseconds.

A :class:`Roofline` says what a model's operations have to do; :mod:`tasks.profiling.kernels` says how long that takes. All
is vectorised over ``n``, the tokens in the pass (prefill: prompt tokens; decode: one per sequence). Compute and memory
time are joined by the p-norm ``(x^p + y^p)^(1/p)``, so that a kernel near the ridge takes longer than the slower of the
two. Factors come from measurements; one that is missing raises :class:`MissingFactorsError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from catalogs.types import Efficiency, Gpu, MoeFactors, Phase, Provenance
from tasks.profiling import expert_tiles, kernels
from tasks.profiling.kernels import AttentionFactors, ExpertWork, Floats, GemmFactors, Peak
from tasks.profiling.shapes import Gemm, LayerKind, ModelShape

# Fewer experts than this are wide. With tiles by vLLM's newer rule a model of eight that no factor was fitted to is modelled as
# well as others; with the older rule's, on A100, prefill is 10 % off, and other kernels were never timed on any.
FEWEST_EXPERTS = 32

_RANK = {provenance: rank for rank, provenance in enumerate(Provenance)}


class MissingFactorsError(Exception):
    """The GPU has no factors for an operation: there is no profile, and none is made up."""


@dataclass(frozen=True)
class Roofline:
    """Operation times of a model on a GPU. Bytes and FLOP are per GPU of a group of ``tp``."""

    gpu: Gpu
    eff: Efficiency
    shape: ModelShape
    # Times of kernels run by themselves in a loop, as measured tables have them, in place of those in serving.
    in_loop: bool = False

    @cached_property
    def _peak(self) -> Peak:
        return Peak.of(self.eff, in_loop=self.in_loop)

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
        """One dense product of ``n`` tokens; ``speedup`` of its compute against bf16 (default: the weights' format's)."""
        peak = self._peak
        fast = Peak(peak.flop_per_ms * (self._fp8_speedup if speedup is None else speedup), peak.bytes_per_ms)
        return kernels.gemm_ms(n, gemm.k, gemm.m, gemm.weight_bytes, fast, GemmFactors.of(self.eff))

    def dense_ms(self, n: Floats, kind: LayerKind, tp: int) -> Floats:
        """All dense products of a layer: qkv, o, gate+up, down; of a mixture of experts qkv, o, router, shared experts."""
        gemms = (*self.shape.attention_gemms(tp), *self.shape.feed_forward_gemms(kind, tp))
        times = [self.gemm_ms(n, gemm) for gemm in gemms]
        if self._fp8_speedup > 1:
            # The element-wise time of a layer is that of two or three kernels.
            launch = self.eff.tau_ew_ms / 2.5
            times += [kernels.quantise_ms(n, gemm.k, launch, self._peak) for gemm in gemms]
        return np.sum(times, axis=0)

    def prefill_attention_work(
        self, n: Floats, window: int, tp: int, context: float, first: float = 0.0
    ) -> tuple[Floats, Floats, int]:
        """(FLOP, bytes moved once, small kernels before it) of the attention of ``n`` prompt tokens, from prompts of which
        the positions ``first``..``context`` are computed; each token bears its prompt's mean.

        Where the GPU's processors are known, whole tiles count, and the last tile row that one of them still works on.
        """
        spec, width = self.shape.spec, self._attention_width
        per_pair = 2 * (spec.heads / tp) * width
        tail = 0.0
        if self.eff.sm_count is None:
            pairs = kernels.attention_pairs(context, window, first)
        else:
            pairs, longest = kernels.tile_pairs(context, window, first)
            tail = 2 * width * longest * self.eff.sm_count
        per_token = 2 * (spec.heads / tp) * width
        if not spec.kv_lora_rank:
            per_token = 2 * (spec.heads / tp + max(1.0, spec.kv_heads / tp)) * spec.head_dim
        return n * (per_pair * pairs / (context - first)) + tail, 2 * n * per_token, 1 + 2 * self.shape.has_qk_norm

    def prefill_attention_ms(self, n: Floats, window: int, tp: int, context: float, first: float = 0.0) -> Floats:
        """Attention of ``n`` prompt tokens: 4 (H/t) d FLOP per pair, see :meth:`prefill_attention_work`."""
        work = self.prefill_attention_work(n, window, tp, context, first)
        return kernels.prefill_attention_ms(*work, self._peak, self._attention_factors)

    def decode_attention_ms(self, n: Floats, window: int, tp: int, context: float) -> Floats:
        """Attention of ``n`` sequences one token on: KV bytes of min(context, window) tokens each / (B mbu) + tau.

        Latent attention shares its KV among all heads, so there compute counts as well.
        """
        spec, factors = self.shape.spec, self._attention_factors
        held = min(context, window) if window else context
        kv_bytes = n * held * self.shape.kv_bytes_per_token_layer(tp)
        flop = 0.0 * n
        if spec.kv_lora_rank:
            flop = 2 * n * (spec.heads / tp) * (2 * spec.kv_lora_rank + spec.qk_rope_head_dim) * held
        return kernels.decode_attention_ms(kv_bytes, self._peak, factors, flop, self.eff.p)

    def expert_work(self, n: Floats, tp: int) -> ExpertWork:
        """What the routed experts of a layer have to do for ``n`` tokens."""
        spec = self.shape.spec
        width, size = spec.moe_intermediate / tp, self.shape.expert_weight_bytes(tp)
        # Files of tuned tiles are by format: what is known is of 16 bits.
        is_tuned = self.shape.weight_dtype in ("bf16", "fp16") and (spec.n_experts, width) in self.gpu.tuned_experts
        return ExpertWork(n, spec.n_experts, spec.experts_per_token, spec.hidden, width, size, float(is_tuned))

    def experts_ms(self, n: Floats, tp: int) -> Floats:
        """Routed experts: those touched are read; k per token are computed."""
        return kernels.experts_ms(self.expert_work(n, tp), self._peak, self._moe_factors, self._fp8_speedup)

    def all_reduce_ms(self, n: Floats, tp: int) -> Floats:
        """One all-reduce of [n, hidden] over ``tp`` GPUs, alpha + 2nh/beta; beta was measured on this GPU's link."""
        if tp == 1:
            return np.zeros_like(n)
        if tp not in self.eff.all_reduce:
            raise MissingFactorsError(f"{self.eff.gpu}: no all-reduce factors for {tp} GPUs")
        message = 2 * n * self.shape.spec.hidden
        return kernels.all_reduce_ms(message, self.eff.all_reduce[tp], self.eff.all_reduce_large.get(tp))

    def element_wise_ms(self, n: Floats, kind: LayerKind, tp: int) -> Floats:
        """Norms, residuals, gating, rotary embedding: 2n (ew_c h + ew_inner_c f/t) / B + tau."""
        spec, eff = self.shape.spec, self.eff
        inner = 0.0 if kind.is_moe else spec.intermediate / tp
        return kernels.element_wise_ms(n, spec.hidden, inner, self._peak, eff.ew_c, eff.ew_inner_c) + eff.tau_ew_ms

    def lm_head_ms(self, rows: Floats, tp: int) -> Floats:
        """The head, once per pass, for ``rows`` sequences that get a token (never quantised), and the sampling of it."""
        total = self.head_gemm_ms(rows, tp)
        return (
            total + kernels.sampling_ms(rows, self.shape.spec.vocab, self._peak) if self.shape.sorts_logits else total
        )

    def head_gemm_ms(self, rows: Floats, tp: int) -> Floats:
        """The head's matrix product alone."""
        gemm = Gemm(self.shape.spec.hidden, self.shape.spec.vocab / tp, self.shape.lm_head_bytes(tp))
        return self.gemm_ms(rows, gemm, speedup=1.0)

    def embedding_ms(self, n: Floats, tp: int) -> Floats:
        """The embedding: reads and writes one row per token, and joins the vocabulary shards by one all-reduce."""
        return 2 * 2 * n * self.shape.spec.hidden / self._peak.bytes_per_ms + self.all_reduce_ms(n, tp)

    # ---- a layer ------------------------------------------------------------------------------------------------

    def layer_ms(self, n: Floats, kind: LayerKind, tp: int, phase: Phase, context: float, first: float = 0.0) -> Floats:
        """One layer of ``kind``: dense products, attention, experts, two all-reduces, element-wise operations."""
        return np.sum(list(self.operations_ms(n, kind, tp, phase, context, first).values()), axis=0)

    def operations_ms(
        self, n: Floats, kind: LayerKind, tp: int, phase: Phase, context: float, first: float = 0.0
    ) -> dict[str, Floats]:
        """The same by operation: gemm, attn, moe (0 in a dense layer), ar (both all-reduces), ew."""
        if phase is Phase.PREFILL:
            attention = self.prefill_attention_ms(n, kind.window, tp, context, first)
        else:
            attention = self.decode_attention_ms(n, kind.window, tp, context)
        return {
            "gemm": self.dense_ms(n, kind, tp),
            "attn": attention,
            "moe": self.experts_ms(n, tp) if kind.is_moe else np.zeros_like(n),
            "ar": 2 * self.all_reduce_ms(n, tp),
            "ew": self.element_wise_ms(n, kind, tp),
        }

    # ---- ground under the figures -------------------------------------------------------------------------------

    @cached_property
    def _attention_factors(self) -> AttentionFactors:
        eff = self.eff
        if eff.mfu_attn is None or eff.mbu_attn is None or eff.tau_attn_ms is None or eff.tau_attn_prefill_ms is None:
            raise MissingFactorsError(f"{eff.gpu}: no attention factors")
        fixed = (eff.tau_attn_ms, eff.tau_attn_prefill_ms, eff.attn_prep_ms)
        return AttentionFactors(eff.mfu_attn, eff.mbu_attn, *fixed, eff.attn_passes, eff.attn_l2_gain)

    @property
    def _attention_width(self) -> float:
        """Query-key plus value width of a head."""
        spec = self.shape.spec
        if spec.kv_lora_rank:
            return spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
        return 2.0 * spec.head_dim

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
        (fp8, int4, latent attention, few wide experts of other kernels) stand on bf16, grouped-query, fine-grained
        experts': borrowed."""
        groups = ["gemm", "attn"] + ([f"ar{tp}"] if tp > 1 else [])
        groups += [self._moe_group] if self.shape.spec.is_moe else []
        found = [self.eff.provenance.get(group, Provenance.DERIVED) for group in groups]
        spec, tiles = self.shape.spec, self.eff.moe_bf16.tiles if self.eff.moe_bf16 else ""
        is_known = self._moe_group == "moe_bf16" and tiles == expert_tiles.SINCE_024
        has_few_wide = 0 < spec.n_experts < FEWEST_EXPERTS and not is_known
        if self.shape.weight_dtype in ("fp8", "int4") or spec.kv_lora_rank or has_few_wide:
            found.append(Provenance.BORROWED)
        return max(found, key=_RANK.__getitem__)
