"""Made-up GPUs and models with round figures, and a scalar oracle of one profile cell written apart from the code."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from functools import cache

from catalogs import load_catalog
from catalogs.types import Efficiency, Gpu, Lengths, ModelSpec, MoeFactors, NodeConfig, Phase, Provenance, Workload

GIB = 2**30
TODAY = date(2026, 7, 30)
MODELS = ("microsoft/phi-4", "openai/gpt-oss-120b", "Qwen/Qwen3-32B", "deepseek-ai/DeepSeek-V3")

GPU = Gpu(
    "X100", "acme", 80.0, False, 2000.0, 1000.0, 1000.0, 2000.0, True, True, "link", 600.0, 64.0, "made up", TODAY
)
EFF = Efficiency(
    gpu="X100",
    peak_bf16_tflops=1000.0,
    memory_bandwidth_gb_per_s=2000.0,
    p=2.0,
    mfu_gemm=0.8,
    mbu_gemm=0.9,
    tau_gemm_ms=0.005,
    mfu_attn=0.5,
    mbu_attn=0.85,
    tau_attn_ms=0.01,
    tau_attn_prefill_ms=0.04,
    moe_bf16=MoeFactors(0.6, 0.9, 0.03, 0.9, 1.0),
    moe_mxfp4=MoeFactors(0.5, 0.7, 0.02, 0.6, 1.5),
    all_reduce={2: (0.005, 200.0), 4: (0.006, 150.0), 8: (0.008, 100.0)},
    ew_c=12.0,
    tau_ew_ms=0.007,
    provenance={g: Provenance.FITTED for g in ("gemm", "attn", "moe_bf16", "moe_mxfp4", "ar2", "ar4", "ar8")},
    rel_error={"prefill": 0.06, "decode": 0.05},
    source="made up",
    as_of=TODAY,
)
SPEC = ModelSpec(
    model="acme/six",
    alias="six",
    model_type="llama",
    layers=6,
    hidden=1024,
    intermediate=4096,
    heads=16,
    kv_heads=4,
    head_dim=64,
    vocab=32000,
    has_tied_embeddings=False,
    n_experts=0,
    experts_per_token=0,
    shared_experts=0,
    moe_intermediate=0,
    dense_layers=0,
    layer_windows=(0,) * 6,
    q_lora_rank=0,
    kv_lora_rank=0,
    qk_rope_head_dim=0,
    qk_nope_head_dim=0,
    v_head_dim=0,
    shipped_dtype="bf16",
    quant_block=0,
    max_position=8192,
    source="made up",
    as_of=TODAY,
)
WINDOWED = replace(SPEC, model="acme/windowed", alias="windowed", layer_windows=(64, 64, 0, 64, 64, 0))
EXPERTS = replace(
    SPEC,
    model="acme/experts",
    alias="experts",
    n_experts=16,
    experts_per_token=2,
    shared_experts=1,
    moe_intermediate=512,
    dense_layers=1,
)


def node(count: int, network_gbit_per_s: float | None = 1e5, gpu: Gpu = GPU) -> NodeConfig:
    """``count`` GPUs with a network that is never in the way."""
    name = f"{gpu.gpu}x{count}"
    return NodeConfig(
        name, gpu.gpu, count, gpu.memory_gib * count, gpu.link, network_gbit_per_s, False, "made up", TODAY
    )


def workload(spec: ModelSpec, phase: Phase, slo_ms: float, lengths: Lengths | None = None, **kwargs) -> Workload:
    """A bf16 workload of requests of 512 + 128 tokens unless said otherwise."""
    values = {"weight_dtype": "bf16", "kv_dtype": "bf16", "slo_percentile": 99.0} | kwargs
    lengths = lengths or Lengths.constant(512.0, 128.0)
    return Workload(model=spec, phase=phase, slo_ms=slo_ms, lengths=lengths, **values)


@cache
def catalog():
    """The shipped catalog."""
    return load_catalog()


# ---- an oracle for one cell: loops and scalars only ---------------------------------------------------------------


def _pn(x: float, y: float, p: float) -> float:
    return (x**p + y**p) ** (1 / p)


def _gemm(n: float, k: float, m: float, eff: Efficiency) -> float:
    compute = 2 * n * k * m / (eff.peak_bf16_tflops * 1e9 * eff.mfu_gemm)
    memory = (2 * k * m + 2 * n * (k + m)) / (eff.memory_bandwidth_gb_per_s * 1e6 * eff.mbu_gemm)
    return _pn(compute, memory, eff.p) + eff.tau_gemm_ms


def _all_reduce(n: float, h: int, tp: int, eff: Efficiency) -> float:
    if tp == 1:
        return 0.0
    alpha, beta = eff.all_reduce[tp]
    return alpha + 2 * n * h / (beta * 1e6)


def oracle_layer_ms(
    spec: ModelSpec, layer: int, n: float, tp: int, phase: Phase, context: float, eff: Efficiency
) -> float:
    """One layer of a bf16 grouped-query model, by the formulas as written down."""
    h, d, kv = spec.hidden, spec.head_dim, max(1, spec.kv_heads / tp)
    window = spec.layer_windows[layer] or math.inf
    flops, bandwidth = eff.peak_bf16_tflops * 1e9, eff.memory_bandwidth_gb_per_s * 1e6
    is_moe = spec.n_experts > 0 and layer >= spec.dense_layers
    total = _gemm(n, h, (spec.heads / tp + 2 * kv) * d, eff) + _gemm(n, spec.heads * d / tp, h, eff)
    if not is_moe:
        total += _gemm(n, h, 2 * spec.intermediate / tp, eff) + _gemm(n, spec.intermediate / tp, h, eff)
    else:
        total += _gemm(n, h, spec.n_experts, eff)
        if spec.shared_experts:
            width = spec.shared_experts * spec.moe_intermediate / tp
            total += _gemm(n, h, 2 * width, eff) + _gemm(n, width, h, eff)
        m, k, inner = eff.moe_bf16, spec.experts_per_token, spec.moe_intermediate / tp
        touched = spec.n_experts * (1 - (1 - k / spec.n_experts) ** (n**m.skew))
        compute = 2 * n * k * 3 * h * inner / (flops * m.mfu)
        memory = (touched * 3 * h * inner * 2 + 2 * n * k * (2 * h + 3 * inner)) / (bandwidth * m.mbu)
        total += _pn(compute, memory, m.p) + m.tau_ms
    if phase is Phase.PREFILL:
        pairs = context**2 / 2 if context <= window else context * window - window**2 / 2
        total += 4 * spec.heads / tp * d * (n / context) * pairs / (flops * eff.mfu_attn) + eff.tau_attn_prefill_ms
    else:
        total += n * min(context, window) * 2 * kv * d * 2 / (bandwidth * eff.mbu_attn) + eff.tau_attn_ms
    return total + eff.ew_c * 2 * n * h / bandwidth + eff.tau_ew_ms + 2 * _all_reduce(n, h, tp, eff)


def oracle_layer_bytes(spec: ModelSpec, layer: int, tp: int) -> float:
    """Weights of one layer of a bf16 model on one GPU, norms included."""
    h, d, kv = spec.hidden, spec.head_dim, max(1, spec.kv_heads / tp)
    count = h * (spec.heads / tp + 2 * kv) * d + spec.heads * d / tp * h + 2 * h
    if spec.n_experts and layer >= spec.dense_layers:
        experts = spec.n_experts + spec.shared_experts
        count += h * spec.n_experts + experts * 3 * h * spec.moe_intermediate / tp
    else:
        count += 3 * h * spec.intermediate / tp
    return 2 * count


def vllm_partition(layers: int, pp: int) -> list[int]:
    """How vLLM splits layers over pipeline ranks (its ``get_pp_indices``)."""
    parts = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        parts[-i] += 1
    return parts


class Oracle:
    """The best rate of one cell by trying every layout and every batch from the largest down."""

    def __init__(
        self, work: Workload, node_config: NodeConfig, settings, eff: Efficiency = EFF, gpu: Gpu = GPU
    ) -> None:
        self.work, self.node, self.settings, self.eff, self.gpu = work, node_config, settings, eff, gpu
        self.spec, self.is_prefill = work.model, work.phase is Phase.PREFILL
        self.sorts_logits = True

    def runs(self, where: str, size: int) -> list[range]:
        """Where a stage's layers may lie: first and last are known, a middle one keeps a layer free on either side."""
        total = self.spec.layers
        if where == "first" or (where == "only" and size == total):
            return [range(size)]
        if where == "last":
            return [range(total - size, total)]
        low, high = (1, total - 1) if where == "mid" and size <= total - 2 else (0, total)
        return [range(s, s + size) for s in range(low, high - size + 1)]

    def inner(self, layers: int, stages: int, where: str, pp: int, replicas: int) -> list[tuple]:
        """(runs, has embedding, has head, hop bytes per ms or inf, hop ms) of every inner stage."""
        settings, has_first, has_last = self.settings, where in ("only", "first"), where in ("only", "last")
        network = self.node.network_gbit_per_s / 8 * settings.network_efficiency * 1e6 / replicas
        out = (network if stages > 1 and not has_last else math.inf, settings.network_hop_ms if stages > 1 else 0.0)
        link = ((self.gpu.link_gb_per_s or self.gpu.pcie_gb_per_s) / 2 * 1e6, settings.link_hop_ms)
        if pp == 1:
            return [(self.runs(where, layers), has_first, has_last, *out)]
        found = []
        for i, size in enumerate(vllm_partition(layers, pp)):
            place = "first" if i == 0 and has_first else "last" if i == pp - 1 and has_last else "mid"
            hop = out if i == pp - 1 else link
            found.append((self.runs(place, size), i == 0 and has_first, i == pp - 1 and has_last, *hop))
        return found

    def stage_ms(self, inner: tuple, n: int, tp: int, context: float) -> float:
        """Time of an inner stage at batch ``n``, the worst of its runs."""
        runs, has_embedding, has_head, hop_rate, hop_ms = inner
        spec, eff, phase = self.spec, self.eff, self.work.phase
        total = max(sum(oracle_layer_ms(spec, i, n, tp, phase, context, eff) for i in run) for run in runs)
        if has_embedding:
            total += 4 * n * spec.hidden / (eff.memory_bandwidth_gb_per_s * 1e6) + _all_reduce(n, spec.hidden, tp, eff)
        if has_head:
            rows = max(1, n / self.work.lengths.input_mean) if self.is_prefill else n
            total += _gemm(rows, spec.hidden, spec.vocab / tp, eff)
            # A llama's tokens are drawn by a sort of its logits, 1080 bytes each.
            total += self.sorts_logits * rows * spec.vocab * 1080 / (eff.memory_bandwidth_gb_per_s * 1e6)
        derate = self.settings.prefill_derate if self.is_prefill else self.settings.decode_derate
        return total / derate + 2 * n * spec.hidden / hop_rate + hop_ms

    def used_bytes(self, inner: tuple, n: int, tp: int, in_flight: int) -> float:
        """Memory of the fullest GPU of an inner stage at batch ``n``, without the engine's reserve."""
        runs, has_embedding, has_head, *_ = inner
        spec, lengths, windows = self.spec, self.work.lengths, self.spec.layer_windows
        token = 2 * max(1, spec.kv_heads / tp) * spec.head_dim * 2
        worst = 0.0
        for run in runs:
            used = sum(oracle_layer_bytes(spec, i, tp) for i in run)
            used += (has_embedding + has_head) * spec.vocab * spec.hidden * 2 / tp
            width = max(spec.intermediate, (spec.experts_per_token + spec.shared_experts) * spec.moe_intermediate)
            # A decode engine keeps room for 2,048 tokens, or for drawing a token for each sequence in flight (as many at
            # most) at 38.5 bytes a logit, which comes after; prefill draws few.
            tokens = n if self.is_prefill else max(n, 2048)
            largest_pass = tokens * (2 * width + 4 * spec.hidden) * 2 / tp
            if has_head and not self.is_prefill:
                largest_pass = max(largest_pass, min(in_flight * n, tokens) * spec.vocab * 38.5)
            used += largest_pass
            for i in run:
                if self.is_prefill:
                    earlier = max(0.0, lengths.input_at_percentile - n)
                    kept = min(windows[i], lengths.input_at_percentile) if windows[i] else earlier
                    used += (in_flight * n + kept) * token
                else:
                    context = lengths.decode_context_mean
                    used += in_flight * n * min(context, windows[i] or math.inf) * token
            worst = max(worst, used)
        return worst

    def fits(
        self, layout: tuple[int, int, int], layers: int, stages: int, where: str, cycle_ms: float, n: int, lone: bool
    ):
        """Whether batch ``n`` meets the cycle and the memory in every inner stage."""
        tp, pp, replicas = layout
        lengths, settings = self.work.lengths, self.settings
        context = lengths.input_at_percentile if lone else lengths.prefill_context
        if not self.is_prefill:
            context = lengths.decode_context_mean
        reserve = settings.engine_reserve_gib + (0 if self.is_prefill else settings.cuda_graph_gib)
        usable = (self.gpu.memory_gib * settings.gpu_memory_utilization - reserve) * GIB
        # The sub-batches of a decode pipeline come together: the last of pp leaves after 2 pp - 1 inner passes.
        passes = 2 * pp - 1 if stages > 1 and not self.is_prefill else pp
        return all(
            self.stage_ms(inner, n, tp, context) <= cycle_ms / passes
            and self.used_bytes(inner, n, tp, stages * pp) <= usable
            for inner in self.inner(layers, stages, where, pp, replicas)
        )

    def chunk(self, layers: int, stages: int, where: str, cycle_ms: float) -> int:
        """The least pass with which a prompt of the percentile's length is through in time, its KV handed over."""
        spec, isl, windows = self.spec, self.work.lengths.input_at_percentile, self.spec.layer_windows
        token = 2 * spec.kv_heads * spec.head_dim * 2
        kept = max(sum(min(isl, windows[i] or math.inf) for i in run) for run in self.runs(where, layers))
        sent_ms = kept * token / (self.node.network_gbit_per_s / 8 * self.settings.network_efficiency * 1e6)
        cycles = (self.work.slo_ms - sent_ms) / cycle_ms
        passes = (cycles - stages - 1) / 2
        return math.ceil(isl / passes - 1e-9) if passes > 0 else 1 << 30

    def best_rate(
        self, layers: int, stages: int, where: str, cycle_ms: float, only: tuple[int, int, int] | None = None
    ) -> float:
        """Tokens per second of the cell, 0 where nothing fits (network ignored); ``only``: of one (tp, pp, replicas)."""
        best, spec, lengths, settings = 0.0, self.spec, self.work.lengths, self.settings
        sizes = range(1, settings.max_prefill_tokens + 1) if self.is_prefill else settings.cuda_graph_batch_sizes
        count = self.node.gpu_count
        for tp in (t for t in range(1, count + 1) if count % t == 0):
            if spec.heads % tp or (spec.kv_heads % tp and tp % spec.kv_heads):
                continue
            for pp in (p for p in range(1, count // tp + 1) if (count // tp) % p == 0 and p <= layers):
                layout = (tp, pp, count // tp // pp)
                if only not in (None, layout):
                    continue
                if self.is_prefill:
                    chunk = self.chunk(layers, stages, where, cycle_ms)
                    own = min(chunk, math.ceil(lengths.input_at_percentile))
                    if chunk > sizes[-1] or not all(
                        self.fits(layout, layers, stages, where, cycle_ms, n, lone=lone)
                        for n, lone in ((chunk, False), (own, True))
                    ):
                        continue
                for n in reversed(sizes):
                    if self.fits(layout, layers, stages, where, cycle_ms, n, lone=False):
                        if stages > 1 or self.is_prefill:
                            best = max(best, layout[2] * pp * n * 1000 / cycle_ms)
                            break
                        # A decode node alone takes the time its batch takes, and whichever batch is best.
                        inner = self.inner(layers, stages, where, pp, layout[2])
                        slowest = max(self.stage_ms(part, n, tp, lengths.decode_context_mean) for part in inner)
                        best = max(best, layout[2] * n * 1000 / slowest)
        return best
