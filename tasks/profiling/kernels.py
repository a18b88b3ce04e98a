"""The time of each kind of kernel from what it has to do and a GPU's factors: one set of formulas for planning, for
fitting and for checking against measurements.

Everything is vectorised: a quantity may be a scalar or any array that broadcasts. FLOP, bytes and milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Efficiency, MoeFactors
from tasks.profiling import expert_tiles

Floats = NDArray[np.float64]
Number = float | Floats

# From 1e12 FLOP/s and 1e9 B/s to per-millisecond.
FLOP_PER_MS_PER_TFLOPS = 1e9
BYTES_PER_MS_PER_GB_PER_S = 1e6
# Flash attention works on square tiles of this many queries by as many keys (its size for 128-wide heads).
ATTENTION_TILE = 128.0
# vLLM's own all-reduce serves messages below this, NCCL the rest (`max_size` of its CustomAllreduce).
CUSTOM_ALL_REDUCE_BYTES = 8 * 2.0**20
# Bytes moved per logit when a sampler keeps the likeliest tokens (top-k, top-p): it sorts the vocabulary with its indices,
# in many passes. Fitted to serving runs of Llama-3.1-70B on H100; Qwen3-32B's at other sizes agree.
SORT_BYTES_PER_LOGIT = 1080.0


@dataclass(frozen=True, slots=True)
class Peak:
    """What a GPU can do at most. ``l2_bytes`` 0 = nothing is taken to stay in the cache, which is so in serving: by the
    time a layer comes round again, the others' weights and KV have passed through. Within one kernel, ``cache_bytes`` may
    hold what is read again, and ``processors`` work at once (0 and None: not known)."""

    flop_per_ms: float
    bytes_per_ms: float
    l2_bytes: float = 0.0
    cache_bytes: float = 0.0
    processors: int | None = None

    @classmethod
    def of(cls, eff: Efficiency, *, in_loop: bool = False) -> Peak:
        """The peaks a GPU's factors refer to. ``in_loop``: a kernel timed by itself over and over, as kernel tables
        are made, finds its operands in the cache where they fit."""
        cache_bytes = (eff.l2_mib or 0.0) * 2.0**20
        return cls(
            eff.peak_bf16_tflops * FLOP_PER_MS_PER_TFLOPS,
            eff.memory_bandwidth_gb_per_s * BYTES_PER_MS_PER_GB_PER_S,
            cache_bytes if in_loop else 0.0,
            cache_bytes,
            eff.sm_count,
        )


@dataclass(frozen=True, slots=True)
class GemmFactors:
    """pn(2 n (K + fill) M / (F mfu), bytes / (B mbu); p) + tau."""

    mfu: float
    mbu: float
    tau_ms: float
    p: float
    fill: float = 0.0

    @classmethod
    def of(cls, eff: Efficiency) -> GemmFactors:
        """A GPU's factors."""
        return cls(eff.mfu_gemm, eff.mbu_gemm, eff.tau_gemm_ms, eff.p, eff.gemm_fill)


@dataclass(frozen=True, slots=True)
class AttentionFactors:
    """Prefill: FLOP / (F mfu) + passes * bytes / B + tau + prep * launches. Decode: bytes / (B mbu) + tau."""

    mfu: float
    mbu: float
    tau_ms: float
    tau_prefill_ms: float
    prep_ms: float = 0.0
    passes: float = 0.0
    l2_gain: float = 1.0


def pnorm(x: Number, y: Number, p: float) -> Floats:
    """``(x^p + y^p)^(1/p)``, computed relative to the greater so that large p does not overflow."""
    top = np.maximum(x, y)
    low = np.minimum(x, y)
    ratio = np.divide(low, top, out=np.zeros_like(top), where=top > 0)
    return top * (1 + ratio**p) ** (1 / p)


def gemm_ms(n: Number, k: Number, m: Number, weight_bytes: Number, peak: Peak, f: GemmFactors) -> Floats:
    """A dense product [n, k] x [k, m].

    ``fill`` is how many steps along K an output tile costs before and after its sum (filling the pipeline, writing the
    result): it weighs on products with a short K.
    """
    compute = 2 * n * (k + f.fill) * m / (peak.flop_per_ms * f.mfu)
    memory = (weight_bytes + 2 * n * (k + m)) / (peak.bytes_per_ms * f.mbu)
    return pnorm(compute, memory, f.p) + f.tau_ms


def attention_pairs(context: float, window: float, first: float = 0.0) -> float:
    """Query-key pairs of the prompt positions ``first``..``context`` under a causal mask and ``window`` (0 = none).

    From position 0: ``c^2/2``, or ``cW - W^2/2`` beyond the window.
    """

    def upto(c: float) -> float:
        return c * c / 2 if not window or c <= window else c * window - window * window / 2

    return upto(context) - upto(first)


def tile_pairs(context: float, window: float, first: float = 0.0) -> tuple[float, float]:
    """(pairs that whole tiles of a prompt cover, pairs of its longest row of tiles), where kernels skip masked tiles only
    as a whole.

    Every row of tiles computes half a tile too many at the diagonal and, under a window, half a tile at its far end. The
    longest row is the one that the last processor finishes when all else is done.
    """
    waste = 0.5 if not window or context <= window else 1.0
    covered = attention_pairs(context, window, first) + waste * (context - first) * ATTENTION_TILE
    reach = min(context, window + ATTENTION_TILE) if window else context
    return covered, max(reach, ATTENTION_TILE) * ATTENTION_TILE


def prefill_attention_ms(flop: Number, io_bytes: Number, launches: Number, peak: Peak, f: AttentionFactors) -> Floats:
    """Attention over prompts. ``launches`` are the small kernels before it: rotary embedding with the cache write, and
    the norms of queries and keys where a model has them."""
    compute = flop / (peak.flop_per_ms * f.mfu)
    return np.asarray(compute + f.passes * io_bytes / peak.bytes_per_ms + f.tau_prefill_ms + f.prep_ms * launches)


def decode_attention_ms(
    kv_bytes: Number, peak: Peak, f: AttentionFactors, flop: Number = 0.0, p: float = 1.0
) -> Floats:
    """Attention of one token per sequence: its KV is read once. ``flop`` counts where all heads share one latent KV.

    In a timing loop, KV that fits in the cache comes faster, though the tables never show it faster than memory's peak.
    """
    cold = pnorm(flop / (peak.flop_per_ms * f.mfu), kv_bytes / (peak.bytes_per_ms * f.mbu), p) + f.tau_ms
    if not peak.l2_bytes:
        return np.asarray(cold)
    warm = np.maximum(kv_bytes / (peak.bytes_per_ms * f.l2_gain) + f.tau_ms, kv_bytes / peak.bytes_per_ms)
    return np.where(kv_bytes <= peak.l2_bytes, warm, cold)


def experts_touched(n: Number, experts: Number, per_token: Number, skew: float) -> Floats:
    """How many of E experts ``n`` tokens of k each reach: E(1 - (1 - k/E)^(n^skew)).

    One token always reaches k. With skew 1 tokens choose independently; below it they crowd, and the more of them the
    more so.
    """
    return experts * (1 - (1 - per_token / experts) ** (n**skew))


@dataclass(frozen=True)
class ExpertWork:
    """Routed experts of a layer on one GPU: ``width`` is an expert's inner width there; ``is_tuned`` 1 where the engine
    ships tiles tuned for it, else 0."""

    n: Number
    experts: Number
    per_token: Number
    hidden: Number
    width: Number
    expert_bytes: Number
    is_tuned: Number = 0.0


def experts_ms(work: ExpertWork, peak: Peak, f: MoeFactors, compute_speedup: float = 1.0) -> Floats:
    """Grouped products of the routed experts: those touched are read, rows are computed in tiles.

    ``fill`` as in :func:`gemm_ms`: narrow experts' second product sums over few steps. A larger tile that the engine
    takes from some number of tokens on can be faster with more of them: time then stands still until it is not.
    """
    time = _experts_ms(work, peak, f, compute_speedup)
    for last in expert_tiles.switches(f.tiles, work.experts) if f.tiles else ():
        time = np.maximum(time, _experts_ms(replace(work, n=np.minimum(work.n, last)), peak, f, compute_speedup))
    return time


def _experts_ms(work: ExpertWork, peak: Peak, f: MoeFactors, compute_speedup: float) -> Floats:
    rows = work.n * work.per_token
    touched = experts_touched(work.n, work.experts, work.per_token, f.skew)
    computed, reads = _tiled(work, rows, touched, peak, f)
    up, down = 2 * work.width * (work.hidden + f.fill), work.hidden * (work.width + f.fill)
    mfu = np.where(work.is_tuned, f.mfu if f.mfu_tuned is None else f.mfu_tuned, f.mfu)
    compute = 2 * computed * (up + down) / (peak.flop_per_ms * mfu * compute_speedup)
    # Each routed row is read and written at full width and passes the gated inner width three times.
    activations = 2 * rows * (2 * work.hidden + 3 * work.width)
    weights = reads * work.expert_bytes
    reading = weights / np.where(weights <= peak.l2_bytes, f.l2_gain, 1.0)
    return pnorm(compute, (reading + activations) / (peak.bytes_per_ms * f.mbu), f.p) + f.tau_ms


def _tiled(work: ExpertWork, rows: Number, touched: Floats, peak: Peak, f: MoeFactors) -> tuple[Number, Floats]:
    """(rows computed, times an expert's weights are read) in all.

    Without the engine's tiles each expert's last tile is half empty on average, or smaller where it has few rows
    (``tile_rows``; 0 = no loss), and weights are read once. Tuned tiles read them once too.
    """
    if not f.tiles:
        return rows + np.minimum(rows, touched * f.tile_rows / 2), touched
    default, is_tuned = expert_tiles.default_tiles(f.tiles, work.n, work.experts), np.asarray(work.is_tuned) > 0
    tile_rows = np.where(is_tuned, expert_tiles.tuned_rows(rows / touched), default.rows)
    # Two thirds of an expert are its gated product into the inner width, one third the product back.
    matrices = ((2 / 3, 2 * work.width), (1 / 3, work.hidden))
    reads = sum(
        share * expert_tiles.weight_reads(
            rows, touched, default, (share * work.expert_bytes, columns), peak.processors, peak.cache_bytes
        )
        for share, columns in matrices
    )  # fmt: skip
    return expert_tiles.tile_count(rows, touched, tile_rows) * tile_rows, np.where(is_tuned, touched, reads)


def all_reduce_ms(
    message_bytes: Number, small: tuple[float, float], large: tuple[float, float] | None = None
) -> Floats:
    """alpha + bytes / beta, with other figures beyond the size from which another algorithm takes over; never falling."""
    alpha_ms, beta_gb_per_s = small
    first = alpha_ms + message_bytes / (beta_gb_per_s * BYTES_PER_MS_PER_GB_PER_S)
    if large is None:
        return np.asarray(first)
    at_switch = alpha_ms + CUSTOM_ALL_REDUCE_BYTES / (beta_gb_per_s * BYTES_PER_MS_PER_GB_PER_S)
    second = large[0] + message_bytes / (large[1] * BYTES_PER_MS_PER_GB_PER_S)
    return np.where(message_bytes < CUSTOM_ALL_REDUCE_BYTES, first, np.maximum(second, at_switch))


def sampling_ms(rows: Number, vocabulary: float, peak: Peak) -> Floats:
    """Choosing ``rows`` tokens among the likeliest by a sort of each row's logits; the same on any number of GPUs."""
    return np.asarray(rows * vocabulary * SORT_BYTES_PER_LOGIT / peak.bytes_per_ms)


def quantise_ms(n: Number, width: Number, launch_ms: float, peak: Peak) -> Floats:
    """Turning activations [n, width] from 16 bits to 8 before a product: read two bytes, write one."""
    return np.asarray(3 * n * width / peak.bytes_per_ms + launch_ms)


def element_wise_ms(
    n: Number, hidden: Number, inner: Number, peak: Peak, per_hidden: float, per_inner: float
) -> Floats:
    """Norms and residuals over the hidden width, gating over the dense inner width: two bytes a value."""
    return np.asarray(2 * n * (per_hidden * hidden + per_inner * inner) / peak.bytes_per_ms)
