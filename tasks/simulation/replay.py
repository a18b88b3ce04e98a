"""Template replay: does an instance, kept saturated, reach the rate stored for it within its SLO?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from catalogs.types import Phase
from tasks.simulation.arrivals import sample_lengths
from tasks.simulation.engine import computed_and_cached, egress_s
from tasks.simulation.kernel_decode import decode_instance, most_in_micro_batch
from tasks.simulation.kernel_prefill import prefill_instance
from tasks.simulation.pack import kv_tokens_per_context, pack
from tasks.simulation.types import Ints, SimInstance, SimulationInputError

# A replay keeps its promise at this share of the stored rate and this percentile of the latency.
RATE_SHARE = 0.98
PERCENTILE = 95
# Contexts in a batch vary around the mean that rates are made for; a template at the very edge of its cycle may show it.
LATENCY_TOLERANCE = 1e-3
# Prefill is offered this share of the stored rate: a little more than it must serve, so that a backlog shows.
OFFERED_SHARE = 0.982
MOST_PROMPTS = 400_000


@dataclass(frozen=True, slots=True)
class Replay:
    """Saturated replay of one instance. ``rate_share`` = replayed / stored tokens per second; ``latency_ms`` is the
    PERCENTILE of TPOT (decode, from joining a micro-batch) or TTFT (prefill, from arrival until the KV has left)."""

    template_id: str
    stored_tok_per_s: float
    rate_share: float
    latency_ms: float
    slo_ms: float
    preemptions: int
    mean_in_flight: float

    @property
    def is_kept(self) -> bool:
        """Whether rate and latency both hold."""
        return self.rate_share >= RATE_SHARE and self.latency_ms <= self.slo_ms * (1 + LATENCY_TOLERANCE)


def replay(
    instance: SimInstance,
    tokens_per_request: float,
    slo_ms: float,
    pairs: tuple[Ints, Ints],
    seed: int = 0,
    offered_share: float = OFFERED_SHARE,
    *,
    counts_transfer: bool = True,
) -> Replay:
    """Saturates ``instance`` with lengths drawn from ``pairs``.

    Decode: a queue that never empties, in steady state from the start (the first sequences are part way through, as a
    moment picked at random would find them). Prefill: prompts arrive evenly spaced in tokens at ``offered_share`` of the stored
    rate, for a queue without end has no TTFT; what is served is that less the growth of the backlog. ``counts_transfer``
    as in Slo.
    """
    stored = instance.rate_req_per_s * tokens_per_request
    rng = np.random.default_rng(seed)
    if instance.phase is Phase.PREFILL:
        return _replay_prefill(instance, stored, offered_share, slo_ms, pairs, rng, counts_transfer)
    return _replay_decode(instance, stored, slo_ms, pairs, rng)


def _replay_prefill(
    instance: SimInstance,
    stored: float,
    offered_share: float,
    slo_ms: float,
    pairs: tuple[Ints, Ints],
    rng: np.random.Generator,
    counts_transfer: bool,
) -> Replay:
    offered = offered_share * stored
    # Long against a pass and against the SLO, and enough prompts for the node with the smallest share.
    smallest = min(node.share for stage in instance.stages for node in stage.nodes)
    count = int(max(4000, 400 / smallest, 200 * slo_ms / 1e3 * offered / float(pairs[0].mean())))
    inputs, _ = sample_lengths(pairs, min(count, MOST_PROMPTS), rng)
    # A prompt comes when the tokens before it are due, so that the stream never runs ahead of the rate.
    arrive = np.cumsum(inputs) / offered
    packed = pack(instance)
    _, first_token, path, _, _, _, _, integrals = prefill_instance(
        arrive, *computed_and_cached(instance, inputs), packed.engines
    )
    reached = egress_s(instance, packed, inputs, first_token, path) if counts_transfer else first_token
    ttft = reached - arrive
    # If waits grow, less is served than comes: by as much as the last prompts are late.
    tenth = len(inputs) // 10
    early, late = slice(2 * tenth, 3 * tenth), slice(9 * tenth, None)
    growth = np.average(ttft[late], weights=inputs[late]) - np.average(ttft[early], weights=inputs[early])
    span = arrive[late].mean() - arrive[early].mean()
    return Replay(
        instance.template_id,
        stored,
        offered_share * float(span / (span + max(growth, 0.0))),
        float(np.percentile(ttft[2 * tenth :], PERCENTILE)) * 1e3,
        slo_ms,
        preemptions=0,
        mean_in_flight=float(integrals.sum() / first_token.max()),
    )


def _replay_decode(
    instance: SimInstance, stored: float, slo_ms: float, pairs: tuple[Ints, Ints], rng: np.random.Generator
) -> Replay:
    packed = pack(instance)
    slope, fixed = kv_tokens_per_context(instance)
    decoding = pairs[1] > 1
    if not decoding.any():
        raise SimulationInputError("no request asks for a second token", remedy="give lengths that decode")
    pairs = pairs[0][decoding], pairs[1][decoding]
    engines = packed.engines
    slots = int(engines.slots[engines.batch_engine].sum())
    if len(instance.stages) > 1:
        slots = len(engines.batch_engine) * int(most_in_micro_batch(engines))
    largest = min(float(engines.kv_capacity[low:high].max()) for low, high in pairwise(engines.stage_offsets))
    first_in, first_left = _in_progress(pairs, slots, rng)
    more_in, more_out = sample_lengths(pairs, max(8 * slots, 2000), rng)
    context = np.concatenate([first_in, more_in + 1])
    steps = np.concatenate([first_left, more_out - 1])
    fits = slope * (context + steps) + fixed <= largest
    if not fits.any():
        return Replay(instance.template_id, stored, 0.0, float("inf"), slo_ms, 0, 0.0)
    context, steps = context[fits], steps[fits]
    state = decode_instance(np.zeros(len(context)), context, steps, engines, slope, fixed, 0.0)
    # Steady state lasts until the queue is empty; skip the start, where the sequences in progress get their slots.
    end, begin = float(state.start_s.max()), float(state.start_s.max()) * 0.25
    overlap = np.minimum(state.finish_s, end) - np.maximum(state.start_s, begin)
    share = np.clip(overlap / (state.finish_s - state.start_s), 0.0, 1.0)
    rate = float((share * steps).sum()) / (end - begin)
    tpot = (state.finish_s - state.start_s) / steps
    whole = (state.start_s >= begin) & (state.start_s <= end - float(np.median(state.finish_s - state.start_s)))
    counted = tpot[whole] if whole.any() else tpot
    return Replay(
        instance.template_id,
        stored,
        rate / stored,
        float(np.percentile(counted, PERCENTILE)) * 1e3,
        slo_ms,
        int(state.preempted.sum()),
        float(np.clip(overlap, 0.0, None).sum()) / (end - begin),
    )


def _in_progress(pairs: tuple[Ints, Ints], count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """(tokens held, steps left) of sequences found at a random moment: long ones more often, at any point of their way."""
    steps = (pairs[1] - 1).astype(np.float64)
    index = rng.choice(len(steps), size=count, p=steps / steps.sum())
    age = np.floor(rng.uniform(0.0, steps[index])).astype(np.int64)
    return pairs[0][index] + 1 + age, pairs[1][index] - 1 - age
