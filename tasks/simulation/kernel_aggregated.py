"""Aggregated serving on a fixed cluster, as Helix's prototype runs it: prefill and decode share the nodes, each with a
first-come queue; a node takes what waits when it is free, up to its limits, as one pass through the layers it holds.

Used to check the simulator's way of counting (queues, passes, links, admission) against a published system. Not used to
plan: Coral's plans split prefill and decode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tasks.jit import kernel
from tasks.simulation.types import Floats, Ints


class ClusterTables(NamedTuple):
    """Nodes [N]. ``prompt_s[k]`` and ``decode_s[k]`` are pass times of node k at the knots (all its layers); ``kv_tokens``
    it holds, ``inf`` = not limited. Row k of ``following`` lists the nodes that take over from node k (row N: the first
    nodes), padded with -1, and of ``weight`` their parts of the requests; a node whose row is all -1 is a last one.
    ``from_last`` lists the nodes so that none comes before one that follows it; ``alike[k]`` marks those that hold the first
    layer of node k."""

    prompt_knots: Floats
    prompt_s: Floats
    decode_knots: Floats
    decode_s: Floats
    copy_s_per_token: float
    most_prompts: Ints
    most_decodes: Ints
    kv_tokens: Floats
    following: Ints
    weight: Floats
    from_last: Ints
    alike: Floats
    link_s_per_token: float
    latency_s: float


class Feeding(NamedTuple):
    """How requests come. ``in_flight`` > 0: that many at first, then a new one ``pause_s`` after each that ends (and, with
    ``fills_kv``, after each prompt); else at ``arrive_s``. A request is let in while no layer's memory, over all nodes that
    hold it, is used beyond ``kv_feed``, and a path has room for it below ``kv_high`` on every node, counting
    ``expected_output`` tokens for its answer."""

    in_flight: int
    fills_kv: bool
    pause_s: float
    kv_feed: float
    kv_high: float
    expected_output: float
    horizon_s: float


@kernel
def at_knots(knots: Floats, values: Floats, at: float) -> float:
    """Linear between knots and beyond the last; constant below the first."""
    if at <= knots[0]:
        return values[0]
    i = min(int(np.searchsorted(knots, at)), len(knots) - 1) - 1
    part = (at - knots[i]) / (knots[i + 1] - knots[i])
    return values[i] + part * (values[i + 1] - values[i])


@kernel
def find_open(tables: ClusterTables, feeding: Feeding, kv_used: Floats, need: float) -> Ints:
    """Which nodes [N] have room for ``need`` tokens themselves and a chain of such nodes after them to the last layer."""
    is_open = np.zeros(len(kv_used), dtype=np.int64)
    for k in range(len(kv_used)):
        used, room = (tables.alike[k] * kv_used).sum(), np.inf
        if np.isfinite(feeding.kv_feed):
            room = 0.0
            for j in range(len(kv_used)):
                if tables.alike[k, j] > 0:
                    room += tables.kv_tokens[j]
        if used > feeding.kv_feed * room:
            return is_open
    for k in tables.from_last:
        is_last, leads_on = True, False
        for other in tables.following[k]:
            if other < 0:
                break
            is_last = False
            leads_on |= is_open[other] > 0
        has_room = kv_used[k] + need <= feeding.kv_high * tables.kv_tokens[k]
        is_open[k] = has_room and (is_last or leads_on)
    return is_open


@kernel
def pick_path(
    tables: ClusterTables, feeding: Feeding, credit: Floats, kv_used: Floats, need: float, path: Ints
) -> bool:
    """Fills ``path`` with nodes from first to last, hop by hop to the open node of most credit (smooth weighted
    round-robin); False if there is no room."""
    is_open = find_open(tables, feeding, kv_used, need)
    row, hops = len(tables.prompt_s), 0
    path[:] = -1
    while True:
        best, total, is_last = -1, 0.0, True
        for s in range(tables.following.shape[1]):
            k = tables.following[row, s]
            if k < 0:
                break
            is_last = False
            if not is_open[k]:
                continue
            credit[row, s] += tables.weight[row, s]
            total += tables.weight[row, s]
            if best < 0 or credit[row, s] > credit[row, best]:
                best = s
        if is_last or best < 0:
            return is_last
        credit[row, best] -= total
        row = tables.following[row, best]
        path[hops] = row
        hops += 1


@kernel
def take_batch(
    tables: ClusterTables, waiting: Ints, is_prompt: Ints, inputs: Ints, node: int, batch: Ints
) -> tuple[int, float]:
    """Fills ``batch`` with those of ``waiting`` (in order) that fit one pass of ``node``; their number, and seconds it takes."""
    prompts, tokens, decodes, taken = 0, 0, 0, 0
    for i in waiting:
        if is_prompt[i]:
            if prompts >= tables.most_prompts[node]:
                continue
            prompts += 1
            tokens += inputs[i]
        else:
            if decodes >= tables.most_decodes[node]:
                continue
            decodes += 1
        batch[taken] = i
        taken += 1
    length = tables.copy_s_per_token * (tokens + decodes)
    if tokens > 0:
        length += at_knots(tables.prompt_knots, tables.prompt_s[node], tokens)
    if decodes > 0:
        length += at_knots(tables.decode_knots, tables.decode_s[node], decodes)
    return taken, length


class ClusterState(NamedTuple):
    """Mutable state. Per request [n]: nodes of its path (-1 after the last), its place on it, tokens left, whether its prompt
    is to do, when it is due, at the node, and sent off; ``active`` lists those in the cluster. Per node: when it is free,
    tokens counted in memory; when each link is free; credits of the router. What came out: prompts and tokens."""

    path: Ints
    place: Ints
    left: Ints
    is_prompt: Ints
    due_s: Floats
    ready_s: Floats
    issued_s: Floats
    active: Ints
    free_s: Floats
    kv_used: Floats
    link_free_s: Floats
    credit: Floats
    prompt_end_s: Floats
    prompt_took_s: Floats
    token_end_s: Floats
    token_took_s: Floats
    counters: Ints
    opened_s: Floats


# Slots of ``counters``: next request to let in, end of those that are due, active ones, tokens made, whether memory is full.
HEAD, TAIL, ACTIVE, TOKENS, BLOCKED = range(5)


@kernel
def new_state(tables: ClusterTables, feeding: Feeding, arrive_s: Floats, outputs: Ints) -> ClusterState:
    """An empty cluster."""
    n, n_nodes = len(outputs), len(tables.prompt_s)
    due_s, counters = arrive_s.copy(), np.zeros(5, dtype=np.int64)
    counters[TAIL] = n
    if feeding.in_flight > 0:
        counters[TAIL] = min(feeding.in_flight, n)
        due_s[: counters[TAIL]] = np.arange(counters[TAIL]) * feeding.pause_s
    return ClusterState(
        np.full((n, n_nodes + 1), -1), np.zeros(n, dtype=np.int64), outputs.copy(), np.ones(n, dtype=np.int64),
        due_s, np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n_nodes), np.zeros(n_nodes),
        np.zeros((n_nodes, n_nodes)), np.zeros(tables.weight.shape), np.full(n, np.nan), np.full(n, np.nan),
        np.empty(outputs.sum()), np.empty(outputs.sum()), counters, np.zeros(1),
    )  # fmt: skip


@kernel
def next_pass(state: ClusterState) -> tuple[float, int]:
    """(start, node) of the pass that can begin first; (inf, -1) if nothing waits anywhere."""
    start, node = np.inf, -1
    for a in range(state.counters[ACTIVE]):
        i = state.active[a]
        k = state.path[i, state.place[i]]
        at = max(state.free_s[k], state.ready_s[i])
        if at < start:
            start, node = at, k
    return start, node


@kernel
def let_in(state: ClusterState, tables: ClusterTables, feeding: Feeding, inputs: Ints) -> None:
    """Sends the next request on its way, or notes that there is no room for it."""
    counters = state.counters
    i = counters[HEAD]
    need = inputs[i] + feeding.expected_output
    if not pick_path(tables, feeding, state.credit, state.kv_used, need, state.path[i]):
        counters[BLOCKED] = 1
        return
    for k in state.path[i]:
        if k >= 0:
            state.kv_used[k] += need
    entered_s = max(state.due_s[i], state.opened_s[0])
    # Where requests come at a rate, a wait for room is theirs; where they are made when there is room, there is none.
    state.issued_s[i] = entered_s if feeding.in_flight > 0 else state.due_s[i]
    state.ready_s[i] = entered_s + tables.latency_s
    state.active[counters[ACTIVE]] = i
    counters[ACTIVE] += 1
    counters[HEAD] += 1


@kernel
def leave(state: ClusterState, i: int, need: float, now: float) -> None:
    """Takes request i out; what waited for room may try again."""
    for k in state.path[i]:
        if k >= 0:
            state.kv_used[k] -= need
    for a in range(state.counters[ACTIVE]):
        if state.active[a] == i:
            state.counters[ACTIVE] -= 1
            state.active[a] = state.active[state.counters[ACTIVE]]
            break
    if state.counters[BLOCKED]:
        state.counters[BLOCKED] = 0
        state.opened_s[0] = now


@kernel
def come_back(state: ClusterState, tables: ClusterTables, feeding: Feeding, i: int, need: float, done: float) -> None:
    """Request i has been through all layers: notes the token, and sends it round again or out."""
    counters = state.counters
    was_prompt = state.is_prompt[i] > 0
    if was_prompt:
        state.prompt_end_s[i], state.prompt_took_s[i] = done, done - state.issued_s[i]
    else:
        state.token_end_s[counters[TOKENS]], state.token_took_s[counters[TOKENS]] = done, done - state.issued_s[i]
        counters[TOKENS] += 1
        state.left[i] -= 1
    state.is_prompt[i], state.place[i], state.issued_s[i] = 0, 0, done
    state.ready_s[i] = done + tables.latency_s
    ends = state.left[i] == 0
    if ends:
        leave(state, i, need, done)
    makes_one = feeding.in_flight > 0 and (ends or (was_prompt and feeding.fills_kv))
    if makes_one and counters[TAIL] < len(state.left) and not (feeding.fills_kv and counters[BLOCKED]):
        state.due_s[counters[TAIL]] = done + feeding.pause_s
        counters[TAIL] += 1


@kernel
def do_pass(
    state: ClusterState, tables: ClusterTables, feeding: Feeding, inputs: Ints, node: int, start: float, batch: Ints
) -> None:
    """One pass of ``node``, and what it does to those in it. ``batch`` is room to work in."""
    waiting = 0
    for a in range(state.counters[ACTIVE]):
        i = state.active[a]
        if state.path[i, state.place[i]] == node and state.ready_s[i] <= start:
            batch[waiting] = i
            waiting += 1
    first_come = batch[:waiting][np.argsort(state.ready_s[batch[:waiting]], kind="mergesort")]
    taken, length = take_batch(tables, first_come, state.is_prompt, inputs, node, batch)
    end = start + length
    state.free_s[node] = end
    for i in batch[:taken]:
        state.place[i] += 1
        k = state.path[i, state.place[i]]
        if k < 0:
            come_back(state, tables, feeding, i, inputs[i] + feeding.expected_output, end + tables.latency_s)
            continue
        tokens = inputs[i] if state.is_prompt[i] else 1
        state.link_free_s[node, k] = max(end, state.link_free_s[node, k]) + tables.link_s_per_token * tokens
        state.ready_s[i] = state.link_free_s[node, k] + tables.latency_s


@kernel
def run_cluster(
    tables: ClusterTables, feeding: Feeding, arrive_s: Floats, inputs: Ints, outputs: Ints
) -> tuple[Floats, Floats, Floats, Floats]:
    """Runs until ``horizon_s`` or until all requests have left.

    Returns per request [n] when its prompt was done and how long that took (NaN = not), and per decoded token, in order of
    completion, when it was done and how long its round took. All times in seconds.
    """
    state = new_state(tables, feeding, arrive_s, outputs)
    counters, batch = state.counters, np.empty(len(outputs), dtype=np.int64)
    while True:
        start, node = next_pass(state)
        has_due = counters[HEAD] < counters[TAIL] and not counters[BLOCKED]
        if has_due and max(state.due_s[counters[HEAD]], state.opened_s[0]) <= start:
            let_in(state, tables, feeding, inputs)
        elif node >= 0 and start <= feeding.horizon_s:
            do_pass(state, tables, feeding, inputs, node, start, batch)
        else:
            break
    made = counters[TOKENS]
    return state.prompt_end_s, state.prompt_took_s, state.token_end_s[:made], state.token_took_s[:made]
