"""The simulation: route, prefill, transfer of keys and values, route again, decode; one instance after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from catalogs.types import Phase
from tasks.simulation import route
from tasks.simulation.kernel_common import link_done
from tasks.simulation.kernel_decode import AREA_RUNNING, AREA_WAITING, decode_instance
from tasks.simulation.kernel_prefill import prefill_instance
from tasks.simulation.pack import PackedInstance, kv_tokens_per_context, pack
from tasks.simulation.types import (
    Floats,
    InstanceUse,
    Ints,
    NodeUse,
    Requests,
    RequestStatus,
    SimInstance,
    SimResult,
)


@dataclass(frozen=True, slots=True)
class SimOptions:
    """``kv_watermark``: share of key-value memory kept free at admission."""

    kv_watermark: float = 0.0


@dataclass(slots=True)
class _Run:
    """Work in progress: per-request arrays and what the instances did."""

    requests: Requests
    instances: tuple[SimInstance, ...]
    packed: list[PackedInstance]
    options: SimOptions
    status: Ints
    prefill: Ints
    decode: Ints
    prefill_start_s: Floats
    first_token_s: Floats
    sent_s: Floats
    kv_ready_s: Floats
    decode_start_s: Floats
    finish_s: Floats
    preemptions: Ints
    node_use: list[NodeUse]
    instance_use: list[InstanceUse]


def simulate(requests: Requests, instances: Sequence[SimInstance], options: SimOptions | None = None) -> SimResult:
    """Replays ``requests`` on ``instances`` until every request has left or is counted as lost.

    Each request goes to a prefill instance of its model, from there (unless it wants one token only) to a decode
    instance in the same region. Deterministic: equal inputs give equal times. Raises SimulationInputError for inputs
    that make no sense; a request without an instance is not an error but has that status.
    """
    n, nan = len(requests), np.full(len(requests), np.nan)
    none = np.full(n, -1, dtype=np.int64)
    run = _Run(
        requests, tuple(instances), [pack(instance) for instance in instances], options or SimOptions(),
        np.full(n, int(RequestStatus.DONE), dtype=np.int64), none.copy(), none.copy(),
        nan.copy(), nan.copy(), nan.copy(), nan.copy(), nan.copy(), nan.copy(), np.zeros(n, dtype=np.int64), [], [],
    )  # fmt: skip
    for index, model in enumerate(requests.models):
        members = np.array([i for i, instance in enumerate(run.instances) if instance.model == model], dtype=np.int64)
        _run_model(run, np.nonzero(requests.model == index)[0], members)
    return SimResult(
        requests, run.instances, run.status, run.prefill, run.decode, run.prefill_start_s, run.first_token_s,
        run.kv_ready_s, run.decode_start_s, run.finish_s, run.preemptions,
        tuple(sorted(run.node_use, key=lambda use: (use.instance, use.stage, use.node))),
        tuple(sorted(run.instance_use, key=lambda use: use.instance)),
    )  # fmt: skip


def _run_model(run: _Run, mine: Ints, members: Ints) -> None:
    instances = [run.instances[i] for i in members]
    changes = route.change_times_s(instances)
    weights = [route.prefill_weights(instances, at) for at in changes]
    chosen = route.route(run.requests.arrival_s[mine], weights, changes)
    run.prefill[mine] = np.where(chosen >= 0, members[chosen] if len(members) else -1, -1)
    run.status[mine[chosen < 0]] = int(RequestStatus.NO_PREFILL_INSTANCE)
    for i in members:
        if run.instances[i].phase is Phase.PREFILL:
            _run_prefill(run, int(i), mine[run.prefill[mine] == i])
    _hand_over(run, mine, members, instances, changes)
    for i in members:
        if run.instances[i].phase is Phase.DECODE:
            _run_decode(run, int(i), mine[run.decode[mine] == i])


def _hand_over(run: _Run, mine: Ints, members: Ints, instances: Sequence[SimInstance], changes: Floats) -> None:
    """Picks the decode instance of every request that wants more than one token, when its keys and values have left."""
    served = mine[run.prefill[mine] >= 0]
    single = served[run.requests.output_tokens[served] == 1]
    run.finish_s[single] = run.first_token_s[single]
    going = served[run.requests.output_tokens[served] > 1]
    region = np.array([run.instances[i].region for i in run.prefill[going]], dtype=object)
    for name in sorted({str(name) for name in region}):
        here = going[region == name]
        here = here[np.argsort(run.sent_s[here], kind="stable")]
        weights = [route.decode_weights(instances, name, at) for at in changes]
        chosen = route.route(run.sent_s[here], weights, changes)
        run.status[here[chosen < 0]] = int(RequestStatus.NO_DECODE_INSTANCE)
        run.decode[here[chosen >= 0]] = members[chosen[chosen >= 0]]


def _run_prefill(run: _Run, i: int, mine: Ints) -> None:
    instance, packed, requests = run.instances[i], run.packed[i], run.requests
    tokens = requests.input_tokens[mine]
    start, first, path, busy, served, engine_requests, area, integrals = prefill_instance(
        requests.arrival_s[mine], *computed_and_cached(instance, tokens), packed.engines
    )
    run.prefill_start_s[mine], run.first_token_s[mine] = start, first
    run.sent_s[mine] = egress_s(instance, packed, tokens, first, path)
    last = float(np.max(run.sent_s[mine], initial=0.0))
    alive = _alive_s(run, instance, last)
    _record_nodes(run, i, busy, served, engine_requests, area, alive)
    waiting, in_service = integrals / alive if alive > 0 else integrals
    run.instance_use.append(
        InstanceUse(i, len(mine), int(tokens.sum()), alive, float(waiting), float(in_service), preemptions=0)
    )


def computed_and_cached(instance: SimInstance, tokens: Ints) -> tuple[Ints, Ints]:
    """Of prompts of ``tokens``: how many are computed, at least one, and how many are found in the prefix cache."""
    cached = np.minimum((instance.prefix_hit_rate * tokens).astype(np.int64), tokens - 1)
    return tokens - cached, cached


def egress_s(instance: SimInstance, packed: PackedInstance, tokens: Ints, first_s: Floats, path: Ints) -> Floats:
    """When each prompt's keys and values have left: every node sends those of its layers, first come first served, after
    the first token."""
    order = np.argsort(first_s, kind="stable")
    sent = first_s.copy()
    for s, stage in enumerate(instance.stages):
        nodes = np.array([packed.node_of_engine[e][1] for e in path[order, s]], dtype=np.int64)
        bandwidth = np.array([node.network_bytes_per_s for node in stage.nodes])
        size = _kv_bytes(instance, tokens[order], stage.layers)
        done = link_done(first_s[order], nodes, size / bandwidth[nodes], len(stage.nodes))
        sent[order] = np.maximum(sent[order], done)
    return sent


def _kv_bytes(instance: SimInstance, tokens: Ints, layers: int) -> Floats:
    slope, fixed = kv_tokens_per_context(instance)
    kept = slope * tokens + np.minimum(fixed, (1.0 - slope) * tokens)
    result: Floats = kept * layers * instance.kv_bytes_per_token_layer
    return result


def _run_decode(run: _Run, i: int, mine: Ints) -> None:
    instance, packed, requests = run.instances[i], run.packed[i], run.requests
    slope, fixed = kv_tokens_per_context(instance)
    mine = mine[np.argsort(run.sent_s[mine], kind="stable")]
    largest = min(max(node.kv_capacity_tokens for node in stage.nodes) for stage in instance.stages)
    whole = slope * (requests.input_tokens[mine] + requests.output_tokens[mine]) + fixed
    run.status[mine[whole > largest]] = int(RequestStatus.TOO_LONG)
    mine = mine[whole <= largest]
    ready = run.sent_s[mine]
    for stage in instance.stages:
        # The stage's links are pooled; bytes come in as they leave, at the earliest from the first token on.
        total = sum(node.network_bytes_per_s for node in stage.nodes)
        transfer = _kv_bytes(instance, requests.input_tokens[mine], stage.layers) / total
        begin = np.maximum(run.sent_s[mine] - transfer, run.first_token_s[mine])
        pooled = link_done(begin, np.zeros(len(mine), dtype=np.int64), transfer, 1)
        ready = np.maximum(ready, pooled)
    run.kv_ready_s[mine] = ready
    order = np.argsort(ready, kind="stable")
    mine, ready = mine[order], ready[order]
    steps = requests.output_tokens[mine] - 1
    state = decode_instance(
        ready, requests.input_tokens[mine] + 1, steps, packed.engines, slope, fixed,
        run.options.kv_watermark,
    )  # fmt: skip
    if np.isnan(state.finish_s).any():
        raise AssertionError(f"instance {instance.instance_id}: sequences left unfinished")
    run.decode_start_s[mine], run.finish_s[mine] = state.start_s, state.finish_s
    run.preemptions[mine] = state.preempted
    alive = _alive_s(run, instance, float(np.max(state.finish_s, initial=0.0)))
    _record_nodes(run, i, state.busy_s, state.engine_steps, state.engine_requests, state.engine_area, alive)
    waiting, running = (state.areas[[AREA_WAITING, AREA_RUNNING]] / alive) if alive > 0 else (0.0, 0.0)
    run.instance_use.append(
        InstanceUse(i, len(mine), int(steps.sum()), alive, float(waiting), float(running), int(state.preempted.sum()))
    )


def _alive_s(run: _Run, instance: SimInstance, last_s: float) -> float:
    """From the start of an instance to its end: drained after it stopped taking work, else the end of its work or of arrivals."""
    end = float(run.requests.arrival_s[-1]) if len(run.requests) else 0.0
    return max(min(instance.active_until_s, max(end, last_s)), last_s) - max(instance.active_from_s, 0.0)


def _record_nodes(run: _Run, i: int, busy: Floats, tokens: Ints, requests: Ints, area: Floats, alive: float) -> None:
    packed = run.packed[i]
    for s, stage in enumerate(run.instances[i].stages):
        for k, node in enumerate(stage.nodes):
            engines = [e for e, where in enumerate(packed.node_of_engine) if where == (s, k)]
            busy_s = float(busy[engines].sum())
            run.node_use.append(
                NodeUse(
                    instance=i,
                    stage=s,
                    node=k,
                    node_config=node.node_config,
                    busy_s=busy_s,
                    alive_s=alive,
                    utilization=busy_s / (alive * node.replicas) if alive > 0 else 0.0,
                    tokens=int(tokens[engines].sum()),
                    requests=int(requests[engines].sum()),
                    mean_requests=float(area[engines].sum()) / alive if alive > 0 else 0.0,
                )
            )
