"""Prefill: every engine is a first-come queue that serves passes of at most its token budget.

Prompts meet no feedback, so engines are simulated one after the other, stage by stage: the pieces an engine emits are
what arrives at the next stage. A prompt keeps its engine per stage, for the keys of its earlier chunks are there.
"""

from __future__ import annotations

import numpy as np

from tasks.jit import kernel
from tasks.simulation.kernel_common import count_integral, smooth_wrr, step_time
from tasks.simulation.pack import Engines
from tasks.simulation.types import Floats, Ints


@kernel
def engine_passes(
    arrive_s: Floats,
    request: Ints,
    tokens: Ints,
    done: Ints,
    budget: int,
    inner: int,
    hop_latency_s: float,
    hop_s_per_token: float,
    grid_tokens: Floats,
    grid_context: Floats,
    time_s: Floats,
) -> tuple[Floats, Floats, Floats, Ints, Ints, float]:
    """Serves pieces in order of arrival; a piece that does not fit is cut and goes on in the next pass.

    ``done[r]``: tokens of request r already through this stage (changed in place). A pass of n tokens attends on average
    sum(c * (done + (c + 1) / 2)) / n keys. Returns per piece out: start of its pass, end of its pass, arrival at the next
    stage, request, tokens; then the busy time.
    """
    n, most = len(arrive_s), len(arrive_s) + tokens.sum() // budget + 1
    start_s, end_s, out_s = np.empty(most), np.empty(most), np.empty(most)
    out_request, out_tokens = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    outs, head, left, free, busy = 0, 0, 0, 0.0, 0.0
    if n > 0:
        left = tokens[0]
    while head < n:
        now = max(free, arrive_s[head])
        first, used, keys = outs, 0, 0.0
        while head < n and arrive_s[head] <= now and used < budget:
            piece, r = min(left, budget - used), request[head]
            keys += piece * (done[r] + 0.5 * (piece + 1))
            done[r] += piece
            used += piece
            left -= piece
            out_request[outs], out_tokens[outs], start_s[outs] = r, piece, now
            outs += 1
            if left == 0:
                head += 1
                if head < n:
                    left = tokens[head]
        length = step_time(grid_tokens, grid_context, time_s, used, keys / used)
        free = now + length
        busy += length
        for i in range(first, outs):
            end_s[i] = now + inner * length
            out_s[i] = end_s[i] + hop_latency_s + used * hop_s_per_token
    return start_s[:outs], end_s[:outs], out_s[:outs], out_request[:outs], out_tokens[:outs], busy


@kernel
def prefill_instance(
    arrive_s: Floats, tokens: Ints, cached: Ints, engines: Engines
) -> tuple[Floats, Floats, Ints, Floats, Ints, Ints, Floats, Floats]:
    """Runs one instance over its requests, sorted by arrival: ``tokens`` [n] to compute of each, after ``cached`` [n] of its
    prompt that every stage has already.

    Returns start of the first pass and end of the last [n]; the engine per stage [n, S]; busy seconds, tokens, requests
    and integral of requests present per engine [E]; and [2] the integrals of requests waiting for their first pass and
    of requests from there to the first token.
    """
    n, n_stages, n_engines = len(arrive_s), len(engines.stage_offsets) - 1, len(engines.share)
    start_s, first_token_s = np.full(n, np.nan), np.full(n, np.nan)
    path = np.empty((n, n_stages), dtype=np.int64)
    busy, area = np.zeros(n_engines), np.zeros(n_engines)
    engine_tokens, engine_requests = np.zeros(n_engines, dtype=np.int64), np.zeros(n_engines, dtype=np.int64)
    unit_s, unit_request, unit_tokens = arrive_s, np.arange(n), tokens
    for s in range(n_stages):
        low, high = engines.stage_offsets[s], engines.stage_offsets[s + 1]
        path[:, s] = low + smooth_wrr(engines.share[low:high], tokens.astype(np.float64), np.zeros(high - low))
        enter = np.full(n, np.inf)
        leave = np.zeros(n)
        for i in range(len(unit_s)):
            enter[unit_request[i]] = min(enter[unit_request[i]], unit_s[i])
        done = cached.copy()
        outs_s, outs_request, outs_tokens = [np.empty(0)], [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for e in range(low, high):
            mine = np.nonzero(path[:, s][unit_request] == e)[0]
            begin, end, out, request, piece, busy[e] = engine_passes(
                unit_s[mine], unit_request[mine], unit_tokens[mine], done, engines.slots[e], engines.inner[e],
                engines.hop_latency_s[e], engines.hop_s_per_token[e],
                engines.grid_tokens, engines.grid_context, engines.time_s[engines.table[e]],
            )  # fmt: skip
            engine_tokens[e] = piece.sum()
            for i in range(len(request)):
                leave[request[i]] = end[i]
                if s == 0 and np.isnan(start_s[request[i]]):
                    start_s[request[i]] = begin[i]
            here = np.nonzero(path[:, s] == e)[0]
            engine_requests[e] = len(here)
            area[e] = count_integral(np.sort(enter[here]), np.sort(leave[here]))
            outs_s.append(out)
            outs_request.append(request)
            outs_tokens.append(piece)
        unit_s, unit_request, unit_tokens = _concat(outs_s), _concat_ints(outs_request), _concat_ints(outs_tokens)
        order = np.argsort(unit_s, kind="mergesort")
        unit_s, unit_request, unit_tokens = unit_s[order], unit_request[order], unit_tokens[order]
        first_token_s[:] = leave
    sorted_start = np.sort(start_s)
    integrals = np.array([count_integral(arrive_s, sorted_start), count_integral(sorted_start, np.sort(first_token_s))])
    return start_s, first_token_s, path, busy, engine_tokens, engine_requests, area, integrals


@kernel
def _concat(parts: list[Floats]) -> Floats:
    out = np.empty(sum([len(part) for part in parts]))
    at = 0
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
    return out


@kernel
def _concat_ints(parts: list[Ints]) -> Ints:
    out = np.empty(sum([len(part) for part in parts]), dtype=np.int64)
    at = 0
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
    return out
