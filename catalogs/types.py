"""Typed rows of the catalogs and the workload they describe. Units are in the names; see CONTRACTS for the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from catalogs.ids import short_hash


class Phase(StrEnum):
    """What a workload's instances do. Prefill counts prompt tokens, decode and aggregated count output tokens."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


class Market(StrEnum):
    """How a node is bought."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    OWNED = "owned"


class Basis(StrEnum):
    """Where an availability or demand figure comes from."""

    FEED = "feed"
    QUOTA = "quota"
    ASSUMED = "assumed"
    STATED = "stated"


class Provenance(StrEnum):
    """Ground under a performance figure, best first."""

    MEASURED = "measured"
    FITTED = "fitted"
    BORROWED = "borrowed"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU type. ``memory_gib`` is what the driver reports where known, else nominal (``memory_is_nominal``)."""

    gpu: str
    vendor: str
    memory_gib: float
    memory_is_nominal: bool
    memory_bandwidth_gb_per_s: float
    bf16_dense_tflops: float | None
    fp16_dense_tflops: float | None
    fp8_dense_tflops: float | None
    has_native_bf16: bool
    has_native_fp8: bool
    link: str
    link_gb_per_s: float | None
    pcie_gb_per_s: float
    source: str
    as_of: date
    # (experts, width of an expert on one GPU) for which vLLM ships tuned tiles in 16 bits.
    tuned_experts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GpuDie:
    """Facts of a GPU's die that the performance model needs beside its peaks; None = not known, that part is left out."""

    sm_count: int | None = None
    l2_mib: float | None = None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A GPU type and a count in one machine. ``memory_gib`` is the sum over its GPUs.

    ``network_gbit_per_s`` is the smallest of the cheapest machines sold for it (None = unknown); ``is_derived`` marks
    a count that no cloud sells (the paper's full grid).
    """

    node_config: str
    gpu: str
    gpu_count: int
    memory_gib: float
    link: str
    network_gbit_per_s: float | None
    is_derived: bool
    source: str
    as_of: date


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fitted factors of one GPU (DESIGN section 2). A missing group (NaN in the file) is None: no such profile.

    Times ``tau_*`` and ``alpha`` in ms, ``beta`` in GB/s, ``mfu``/``mbu``/``skew`` are fractions.
    """

    gpu: str
    peak_bf16_tflops: float
    memory_bandwidth_gb_per_s: float
    p: float
    mfu_gemm: float
    mbu_gemm: float
    tau_gemm_ms: float
    mfu_attn: float | None
    mbu_attn: float | None
    tau_attn_ms: float | None
    tau_attn_prefill_ms: float | None
    moe_bf16: MoeFactors | None
    moe_mxfp4: MoeFactors | None
    all_reduce: dict[int, tuple[float, float]]
    ew_c: float
    tau_ew_ms: float
    provenance: dict[str, Provenance]
    rel_error: dict[str, float]
    source: str
    as_of: date
    # What follows refines the form where it was measured; its defaults leave it out.
    gemm_fill: float = 0.0
    attn_prep_ms: float = 0.0
    attn_passes: float = 0.0
    ew_inner_c: float = 0.0
    sm_count: int | None = None
    l2_mib: float | None = None
    attn_l2_gain: float = 1.0
    all_reduce_large: dict[int, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoeFactors:
    """Expert-GEMM factors of one weight format: pn(...; p) + tau. ``tile_rows`` 0 and ``fill`` 0 = no loss.

    ``tiles`` names the engine's rule for tiles where that is the kernel ('' = another kernel, with ``tile_rows``);
    ``mfu_tuned`` is the share of peak with tuned ones (None = as ``mfu``).
    """

    mfu: float
    mbu: float
    tau_ms: float
    skew: float
    p: float
    tile_rows: int = 0
    fill: float = 0.0
    l2_gain: float = 1.0
    mfu_tuned: float | None = None
    tiles: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's shape, from its Hugging Face ``config.json``. ``layer_windows[i]`` is layer i's attention window (0 = full).

    ``n_experts`` 0 means dense; ``dense_layers`` is how many leading layers are dense in a mixture of experts.
    ``shared_experts`` counts in widths of a routed expert. ``moe_layers[i]`` says whether layer i is a mixture of experts;
    empty = all but the leading dense ones. ``quant_block``: rows of an fp8 block or weights of an int4 group, 0 = none.
    """

    model: str
    alias: str
    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    has_tied_embeddings: bool
    n_experts: int
    experts_per_token: int
    shared_experts: int
    moe_intermediate: int
    dense_layers: int
    layer_windows: tuple[int, ...]
    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    shipped_dtype: str
    quant_block: int
    max_position: int
    source: str
    as_of: date
    config_file: str = ""
    moe_layers: tuple[bool, ...] = ()

    @property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return self.n_experts > 0


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine one can rent: price in USD per hour for the whole instance. ``region`` is ``provider/region``."""

    offer_id: str
    provider: str
    region: str
    node_config: str
    instance_type: str
    market: Market
    price_usd_per_h: float
    interrupt_per_h: float | None
    is_derived: bool
    as_of: date
    source: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Nodes that can be had. ``nodes`` None = unknown (then quota or the scenario's default counts, labelled assumed)."""

    region: str
    node_config: str
    market: Market
    observed_at: str
    nodes: int | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class Quota:
    """A provider's limit in its own unit: ``vcpu``, ``gpu`` or ``node`` of a family, region-wide."""

    provider: str
    region: str
    family: str
    unit: str
    limit: int


def _significant(value: float, digits: int = 3) -> float:
    return 0.0 if value == 0 else round(value, digits - 1 - math.floor(math.log10(abs(value))))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Request lengths in tokens, with the moments that rates depend on (DESIGN section 2, prompts and contexts).

    ``input_at_percentile`` is the prompt length the SLO percentile must serve alone; equal to the mean when only means
    are known.
    """

    input_mean: float
    output_mean: float
    input_sq_mean: float
    output_sq_mean: float
    cross_mean: float
    input_at_percentile: float
    source: str = "stated means"

    @classmethod
    def constant(cls, input_mean: float, output_mean: float, source: str = "stated means") -> Lengths:
        """Every request alike: the moments of a point mass."""
        return cls(input_mean, output_mean, input_mean**2, output_mean**2, input_mean * output_mean, input_mean, source)

    @property
    def decode_context_mean(self) -> float:
        """Mean context of a decode step: E[i*o]/E[o] + E[o^2]/(2E[o])."""
        return self.cross_mean / self.output_mean + self.output_sq_mean / (2 * self.output_mean)

    @property
    def prefill_context(self) -> float:
        """E[i^2]/E[i]: a prompt of this length has the mean attention cost per prompt token."""
        return self.input_sq_mean / self.input_mean

    def bucketed(self) -> tuple[float, ...]:
        """The moments at three significant digits, so that noise does not make a new workload."""
        values = (self.input_mean, self.output_mean, self.input_sq_mean, self.output_sq_mean, self.cross_mean)
        return tuple(_significant(value) for value in (*values, self.input_at_percentile))


@dataclass(frozen=True, slots=True)
class Workload:
    """One (model, phase, SLO) that templates are solved for. ``slo_ms`` is TTFT for prefill, TPOT for decode."""

    model: ModelSpec
    weight_dtype: str
    kv_dtype: str
    phase: Phase
    slo_ms: float
    slo_percentile: float
    lengths: Lengths
    prefix_hit_rate: float = 0.0
    workload_id: str = field(init=False)

    def __post_init__(self) -> None:
        key = {
            "model": self.model.model,
            "weight_dtype": self.weight_dtype,
            "kv_dtype": self.kv_dtype,
            "phase": self.phase.value,
            "slo_ms": self.slo_ms,
            "slo_percentile": self.slo_percentile,
            "lengths": self.lengths.bucketed(),
            "hit_rate": self.prefix_hit_rate,
        }
        object.__setattr__(self, "workload_id", short_hash(key))

    @property
    def alias(self) -> str:
        """Readable name, ``qwen3-32b/decode``."""
        return f"{self.model.alias}/{self.phase.value}"

    @property
    def tokens_per_request(self) -> float:
        """Tokens of this phase per request: prompt tokens for prefill, output tokens else."""
        return self.lengths.input_mean if self.phase is Phase.PREFILL else self.lengths.output_mean
