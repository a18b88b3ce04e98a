"""Decode: continuous batching in M micro-batches that go round the pipeline, with admission by key-value memory.

With one stage every engine has micro-batches of its own, as many as it has inner stages.

A micro-batch enters a stage when the slowest node of the stage before has handed over, and waits on each engine for the
micro-batch before it: so every token takes max(sum of stage times, M * slowest stage time). Micro-batches keep their
order in all stages. A sequence keeps its engine per stage, for its keys are there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tasks.jit import kernel
from tasks.simulation.kernel_common import step_time
from tasks.simulation.pack import Engines
from tasks.simulation.types import Floats, Ints

INFINITY = np.inf


class DecodeState(NamedTuple):
    """Mutable state. Per micro-batch [M]: size, iteration, ready_s (back at the first stage), next_done (iteration at which
    some sequence ends), blocked_at (removals seen when admission last failed, else -1); ``members`` [M, slots].
    Per micro-batch and engine [M, E]: counts, keys (sum of contexts). Per engine [E]: kv_used, free_s, resident, and totals.
    Per sequence [n]: engine per stage ``path`` [n, S], ``joined`` and ``ends`` (iterations), ``context`` at joining, ``rank``
    (order of admission), ``left`` (steps). ``held``: preempted sequences, last in first out. ``count_*``: see indices below.
    """

    size: Ints
    iteration: Ints
    ready_s: Floats
    next_done: Ints
    blocked_at: Ints
    members: Ints
    counts: Ints
    keys: Floats
    kv_used: Floats
    free_s: Floats
    busy_s: Floats
    engine_steps: Ints
    engine_requests: Ints
    engine_area: Floats
    resident: Ints
    path: Ints
    joined: Ints
    ends: Ints
    context: Ints
    rank: Ints
    left: Ints
    start_s: Floats
    finish_s: Floats
    preempted: Ints
    held: Ints
    counters: Ints
    areas: Floats


# Slots of ``counters``: sequences running, waiting (arrived or held), next to arrive, held, removals so far, admissions.
RUNNING, WAITING, NEXT, HELD, REMOVALS, ADMITTED, ARRIVED = range(7)
# Slots of ``areas``: integral of waiting, of running; time of the last update.
AREA_WAITING, AREA_RUNNING, LAST_S = range(3)


@kernel
def advance_clock(state: DecodeState, arrive_s: Floats, now: float) -> None:
    """Moves the counted integrals to ``now`` and counts what has arrived by then."""
    counters, areas = state.counters, state.areas
    last = areas[LAST_S]
    areas[AREA_WAITING] += counters[WAITING] * (now - last)
    areas[AREA_RUNNING] += counters[RUNNING] * (now - last)
    for e in range(len(state.engine_area)):
        state.engine_area[e] += state.resident[e] * (now - last)
    while counters[ARRIVED] < len(arrive_s) and arrive_s[counters[ARRIVED]] <= now:
        areas[AREA_WAITING] += now - arrive_s[counters[ARRIVED]]
        counters[ARRIVED] += 1
        counters[WAITING] += 1
    areas[LAST_S] = now


@kernel
def leave(state: DecodeState, m: int, slot: int, slope: float, fixed: float) -> None:
    """Takes the sequence in ``slot`` out of micro-batch m: slots, keys and memory."""
    i = state.members[m, slot]
    context = state.context[i] + state.iteration[m] - state.joined[i]
    for s in range(state.path.shape[1]):
        e = state.path[i, s]
        state.counts[m, e] -= 1
        state.resident[e] -= 1
        state.keys[m, e] -= context
        # Exactly empty when empty: rounding errors must not keep the longest sequence out.
        state.kv_used[e] = state.kv_used[e] - slope * context - fixed if state.resident[e] > 0 else 0.0
    state.size[m] -= 1
    state.members[m, slot] = state.members[m, state.size[m]]
    state.counters[RUNNING] -= 1
    state.counters[REMOVALS] += 1


@kernel
def retire(state: DecodeState, m: int, now: float, slope: float, fixed: float) -> None:
    """Removes the sequences of micro-batch m that have all their tokens."""
    slot, soonest = 0, np.iinfo(np.int64).max
    while slot < state.size[m]:
        i = state.members[m, slot]
        if state.ends[i] <= state.iteration[m]:
            state.finish_s[i] = now
            leave(state, m, slot, slope, fixed)
        else:
            soonest = min(soonest, state.ends[i])
            slot += 1
    state.next_done[m] = soonest


@kernel
def make_room(state: DecodeState, engines: Engines, m: int, slope: float, fixed: float) -> None:
    """Preempts the latest admitted sequences of micro-batch m until its next token fits on every engine.

    A preempted sequence keeps its progress and goes to the front of the queue: its keys are counted as swapped out, and
    neither the swap nor a recomputation is charged.
    """
    for e in range(len(engines.share)):
        while state.counts[m, e] > 0 and state.kv_used[e] + slope * state.counts[m, e] > engines.kv_capacity[e] + 1e-6:
            latest = -1
            for slot in range(state.size[m]):
                i = state.members[m, slot]
                on_engine = False
                for s in range(state.path.shape[1]):
                    on_engine |= state.path[i, s] == e
                if on_engine and (latest < 0 or state.rank[i] > state.rank[state.members[m, latest]]):
                    latest = slot
            i = state.members[m, latest]
            state.left[i] = state.ends[i] - state.iteration[m]
            context = state.context[i] + state.iteration[m] - state.joined[i]
            leave(state, m, latest, slope, fixed)
            state.context[i] = context
            state.preempted[i] += 1
            state.held[state.counters[HELD]] = i
            state.counters[HELD] += 1
            state.counters[WAITING] += 1


@kernel
def choose_engine(
    state: DecodeState, engines: Engines, m: int, s: int, need: float, growth: float, whole: float, watermark: float
) -> int:
    """The engine of stage s with a slot and room that is fullest behind its share; -1 if none has room now.

    ``need``: memory of the sequence now, ``growth`` of one more token of one sequence, ``whole`` at its end.
    """
    best, best_load, best_fill = -1, 0.0, 0.0
    for e in range(engines.stage_offsets[s], engines.stage_offsets[s + 1]):
        if engines.batch_engine[m] >= 0 and engines.batch_engine[m] != e:
            continue
        capacity = engines.kv_capacity[e]
        count = state.counts[m, e]
        if count >= engines.slots[e] or whole > capacity:
            continue
        spare = capacity * (1.0 - watermark) if state.kv_used[e] > 0.5 else capacity
        if state.kv_used[e] + need + growth * (count + 1) > spare:
            continue
        load, fill = (count + 1) / engines.share[e], state.kv_used[e] / capacity
        if best < 0 or load < best_load - 1e-12 or (load < best_load + 1e-12 and fill < best_fill):
            best, best_load, best_fill = e, load, fill
    return best


@kernel
def admit(
    state: DecodeState, engines: Engines, m: int, now: float, slope: float, fixed: float, watermark: float
) -> None:
    """Fills micro-batch m from the queue (preempted first, then by arrival) up to its part of all sequences."""
    counters = state.counters
    n_stages = state.path.shape[1]
    chosen = np.empty(n_stages, dtype=np.int64)
    while counters[WAITING] > 0:
        target = np.ceil((counters[RUNNING] + counters[WAITING]) * engines.batch_weight[m] - 1e-9)
        if state.size[m] >= target or state.size[m] >= state.members.shape[1]:
            return
        i = state.held[counters[HELD] - 1] if counters[HELD] > 0 else counters[NEXT]
        need, whole = slope * state.context[i] + fixed, slope * (state.context[i] + state.left[i]) + fixed
        for s in range(n_stages):
            chosen[s] = choose_engine(state, engines, m, s, need, slope, whole, watermark)
            if chosen[s] < 0:
                state.blocked_at[m] = counters[REMOVALS]
                return
        if counters[HELD] > 0:
            counters[HELD] -= 1
        else:
            counters[NEXT] += 1
            state.start_s[i] = now
        for s in range(n_stages):
            e = chosen[s]
            state.path[i, s] = e
            state.counts[m, e] += 1
            state.resident[e] += 1
            state.keys[m, e] += state.context[i]
            state.kv_used[e] += need
            state.engine_requests[e] += 1
        state.joined[i] = state.iteration[m]
        state.ends[i] = state.iteration[m] + state.left[i]
        state.next_done[m] = min(state.next_done[m], state.ends[i])
        state.members[m, state.size[m]] = i
        state.size[m] += 1
        state.rank[i] = counters[ADMITTED]
        counters[ADMITTED] += 1
        counters[WAITING] -= 1
        counters[RUNNING] += 1


@kernel
def go_round(state: DecodeState, engines: Engines, m: int, now: float, slope: float) -> None:
    """Sends micro-batch m once through all stages: one token for each of its sequences."""
    at = now
    for s in range(len(engines.stage_offsets) - 1):
        handed_over = at
        for e in range(engines.stage_offsets[s], engines.stage_offsets[s + 1]):
            count = state.counts[m, e]
            if count == 0:
                continue
            split, part = engines.split[e], -(-count // engines.split[e])
            # A token written in this pass is attended too.
            length = step_time(
                engines.grid_tokens,
                engines.grid_context,
                engines.time_s[engines.table[e]],
                part,
                state.keys[m, e] / count,
            )
            begin = max(at, state.free_s[e])
            parts = -(-count // part) if split > 1 else 1
            state.free_s[e] = begin + parts * length
            state.busy_s[e] += parts * length
            state.engine_steps[e] += count
            end = begin + (parts + engines.inner[e] - 1) * length
            handed_over = max(handed_over, end + engines.hop_latency_s[e] + count * engines.hop_s_per_token[e])
            state.keys[m, e] += count
            state.kv_used[e] += slope * count
        at = handed_over
    state.iteration[m] += 1
    state.ready_s[m] = at


@kernel
def next_event(state: DecodeState, arrive_s: Floats) -> tuple[float, int]:
    """(time, micro-batch) of what happens next: one comes back, or an empty one can take a sequence. (inf, -1): nothing."""
    counters, now = state.counters, state.areas[LAST_S]
    head_s = INFINITY
    if counters[HELD] > 0:
        head_s = now
    elif counters[NEXT] < len(arrive_s):
        head_s = arrive_s[counters[NEXT]]
    best_s, best = INFINITY, -1
    for m in range(len(state.size)):
        if state.size[m] > 0:
            at = state.ready_s[m]
        elif state.blocked_at[m] == counters[REMOVALS]:
            continue
        else:
            at = max(state.ready_s[m], head_s)
        if at < best_s:
            best_s, best = at, m
    return max(best_s, now), best


@kernel
def decode_instance(
    arrive_s: Floats, context: Ints, steps: Ints, engines: Engines, slope: float, fixed: float,
    watermark: float,
) -> DecodeState:  # fmt: skip
    """Runs one instance over its sequences, sorted by arrival, until all have left.

    ``context``: tokens attended in the first step; ``steps``: tokens still to make (>= 1). Every sequence must fit, at its
    full length, on some engine of each stage: else it blocks the queue and the run ends with NaN in ``start_s``.
    """
    state = new_state(arrive_s, context, steps, engines)
    while True:
        now, m = next_event(state, arrive_s)
        if m < 0:
            return state
        advance_clock(state, arrive_s, now)
        if state.size[m] > 0:
            if state.iteration[m] >= state.next_done[m]:
                retire(state, m, now, slope, fixed)
            make_room(state, engines, m, slope, fixed)
        state.blocked_at[m] = -1
        admit(state, engines, m, now, slope, fixed, watermark)
        if state.size[m] > 0:
            go_round(state, engines, m, now, slope)


@kernel
def most_in_micro_batch(engines: Engines) -> int:
    """Sequences that fit into one micro-batch by its slots: those of the stage with fewest."""
    most = engines.slots.sum()
    for s in range(len(engines.stage_offsets) - 1):
        most = min(most, engines.slots[engines.stage_offsets[s] : engines.stage_offsets[s + 1]].sum())
    return most


@kernel
def new_state(arrive_s: Floats, context: Ints, steps: Ints, engines: Engines) -> DecodeState:
    """An empty instance."""
    n, e, s = len(arrive_s), len(engines.share), len(engines.stage_offsets) - 1
    m, slots = len(engines.batch_engine), most_in_micro_batch(engines)
    return DecodeState(
        np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64), np.zeros(m),
        np.full(m, np.iinfo(np.int64).max), np.full(m, -1), np.zeros((m, slots), dtype=np.int64),
        np.zeros((m, e), dtype=np.int64), np.zeros((m, e)), np.zeros(e), np.zeros(e), np.zeros(e),
        np.zeros(e, dtype=np.int64), np.zeros(e, dtype=np.int64), np.zeros(e), np.zeros(e, dtype=np.int64),
        np.full((n, s), -1), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), context.copy(),
        np.zeros(n, dtype=np.int64), steps.copy(), np.full(n, np.nan), np.full(n, np.nan),
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(7, dtype=np.int64), np.zeros(3),
    )  # fmt: skip
