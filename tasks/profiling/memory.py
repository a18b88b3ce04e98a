"""What a GPU holds while it serves: weights, KV of every sequence in flight, activations, the engine's own share.

Settings are values an engine version or an operator fixes; each says where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catalogs.engines import EngineVersion
from catalogs.types import Gpu, Phase
from tasks.profiling.shapes import GIB, ModelShape

Floats = NDArray[np.float64]

# Bytes per logit at the peak of a sampler that keeps the likeliest tokens: 32-bit logits, their sorted copy with 64-bit
# indices, probabilities, sums. Read off logs of vLLM 0.11 on H100, 38.4 to 39.6 with five text models if its default of
# 1,024 sequences held there; no tensor parallelism splits it. An older log (Llama 3 8B, 256 sequences) gives 41.2; a
# multimodal model's gives 17, for which this keeps too much room.
SAMPLER_BYTES_PER_LOGIT = 38.5


def _graph_sizes() -> tuple[int, ...]:
    return (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Values of an engine version and of the planner. "assumed" marks those without a measured source."""

    # vLLM's --gpu-memory-utilization, a share of TOTAL memory: the newest release's; others in the engines table.
    gpu_memory_utilization: float = 0.92
    # CUDA context, NCCL buffers, engine; inside the utilised share. assumed
    engine_reserve_gib: float = 0.8
    # CUDA graphs of decode, captured once per size. assumed
    cuda_graph_gib: float = 0.7
    # Roofline times are this share of real ones. Against serving runs on H100 and H200 no bias is left (`coral profiles
    # check`: within 2 % for steps of decode, 7 % for those mostly of prefill); other GPUs and hosts get this allowance.
    decode_derate: float = 0.98
    prefill_derate: float = 0.95
    # vLLM captures graphs at 1, 2, 4, then in eights to 256 and sixteens to 512 sequences; a batch pads up to one.
    cuda_graph_batch_sizes: tuple[int, ...] = field(default_factory=_graph_sizes)
    # Largest token budget of one prefill pass (vLLM: --max-num-batched-tokens; 16,384 is its default on large GPUs).
    max_prefill_tokens: int = 16384
    # Token budget of a decode engine's pass. It computes no prompts, but an engine times its largest pass at the start and
    # leaves KV the rest, and recomputes a preempted sequence in chunks of this (vLLM's own default of the same option).
    decode_pass_tokens: int = 2048
    # Cycle grid (see cycles.py): decode cycles are SLO / S divided by these, beside rungs that no SLO changes. Most nodes do
    # best near the longest; those that KV holds to few sequences far below it.
    decode_cycle_divisors: tuple[float, ...] = (1.0, 1.07, 1.15, 1.25, 1.36, 1.5, 1.75, 2.2, 3.0, 5.0)
    # Prefill cycles are SLO / (S + m): m cycles for a prompt's wait and the passes it is cut into (cycles.py). Near 1 only
    # passes much longer than a prompt will do, and their cycle is longest.
    prefill_passes: tuple[float, ...] = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
    # Whether the time to first token includes the transfer of the prompt's KV to the decode node: behind the usual proxies
    # the first token reaches the client through the decode instance. The paper's profile does not know it.
    charge_kv_handover: bool = True
    # Between nodes: one hop's fixed time (two copies through the host and a round trip in one zone). assumed
    network_hop_ms: float = 0.2
    # Share of the network's line rate that payload reaches. assumed
    network_efficiency: float = 0.8
    # Whether decode nodes' networks also bear the KV of their prompts, which prefill nodes send them. What is sent must
    # arrive; turn off to compare with planners that charge the sender alone.
    charge_decode_kv_in: bool = True
    # Where a node's network is not known: the rate is capped by this and the row says `derived`. assumed
    unknown_network_gbit_per_s: float = 10.0
    # Between GPUs of one node. assumed
    link_hop_ms: float = 0.02
    # Relative error of a rate where no error was measured. assumed
    unknown_rel_error: float = 0.25
    # (GPU, phase, de-rating) of the model at hand from benchmarks of one's own; they replace the two stated above.
    calibration: tuple[tuple[str, str, float], ...] = ()

    @classmethod
    def of_engine(cls, engine: EngineVersion, **others: Any) -> ProfileSettings:
        """The settings of an engine version; ``others`` as in the constructor."""
        return cls(gpu_memory_utilization=engine.gpu_memory_utilization, **others)

    def derate(self, phase: Phase, gpu: str = "") -> float:
        """The phase's de-rating on ``gpu``: from a benchmark where there is one, else as stated."""
        for name, of_phase, value in self.calibration:
            if (name, of_phase) == (gpu, phase.value):
                return value
        return self.prefill_derate if phase is Phase.PREFILL else self.decode_derate


@dataclass(frozen=True)
class MemoryModel:
    """Memory of one GPU of a ``tp`` group. All sizes in bytes."""

    gpu: Gpu
    shape: ModelShape
    phase: Phase
    settings: ProfileSettings

    @property
    def usable_bytes(self) -> float:
        """What an engine may fill: the utilised share of what the driver reports, less the engine's own reserve."""
        settings = self.settings
        reserve = settings.engine_reserve_gib + (settings.cuda_graph_gib if self.phase is Phase.DECODE else 0.0)
        return (self.gpu.memory_gib * settings.gpu_memory_utilization - reserve) * GIB

    def layer_bytes(self, tp: int) -> Floats:
        """Weights of one layer of each kind [kinds]."""
        return np.array([self.shape.layer_weight_bytes(kind, tp) for kind in self.shape.kinds])

    def activation_bytes_per_token(self, tp: int) -> float:
        """Peak activations per token of the pass: n (2f + 4h) 2 / t."""
        return (2 * self.shape.activation_width + 4 * self.shape.spec.hidden) * 2 / tp

    def pass_bytes(self, batch: Floats, in_flight: int, tp: int, *, has_head: bool) -> Floats:
        """What the engine keeps for its largest pass: activations of the tokens, or, where the head is, drawing a token for
        each of the ``in_flight * batch`` sequences it admits, whichever is more; the one has ended when the other begins."""
        each = self.activation_bytes_per_token(tp)
        if self.phase is Phase.PREFILL:
            return np.asarray(batch * each)
        budget = np.maximum(batch, self.settings.decode_pass_tokens)
        drawn = np.minimum(batch * in_flight, budget) * self._sampler_bytes if has_head else 0.0
        return np.maximum(budget * each, drawn)

    def largest_decode_batch(
        self, free: Floats, sequence: Floats, in_flight: int, tp: int, *, has_head: bool
    ) -> Floats:
        """The largest batch (not whole) with ``batch * sequence + pass_bytes(batch) <= free``; below 0 = none."""
        each, budget = self.activation_bytes_per_token(tp), self.settings.decode_pass_tokens
        most = np.minimum((free - budget * each) / sequence, free / (sequence + each))
        if has_head:
            drawn = self._sampler_bytes
            capped = np.maximum((free - budget * drawn) / sequence, free / (sequence + in_flight * drawn))
            most = np.minimum(most, np.minimum(capped, free / (sequence + drawn)))
        return np.asarray(most)

    @property
    def _sampler_bytes(self) -> float:
        return self.shape.spec.vocab * SAMPLER_BYTES_PER_LOGIT

    def sequence_bytes(self, context: float, tp: int) -> Floats:
        """Decode: KV of one sequence in one layer of each kind [kinds]."""
        return self.shape.kv_bytes_per_sequence(context, tp)
