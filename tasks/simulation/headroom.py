"""Headroom: the largest share of the stored rate at which a phase's SLO percentile still holds for its arrivals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.ids import short_hash
from catalogs.types import Phase
from tasks.simulation.arrivals import sample_lengths
from tasks.simulation.engine import simulate
from tasks.simulation.types import (
    Floats,
    Ints,
    Requests,
    RequestStatus,
    SimInstance,
    SimNode,
    SimStage,
    SimulationInputError,
    StepTable,
)

# Requests that arrive in the first part of a run meet an empty system and are not counted.
WARM_UP_SHARE = 0.15
_INSTANT_S = 1e-9

RequestsAt = Callable[[float], Requests]
"""Makes the stream of one model at a mean rate in req/s; equal rates must give equal streams."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """``utilization``: largest share of the instances' rate at which ``percentile`` % of requests met ``slo_ms``; 0 =
    not even at ``lowest``. ``tried`` maps each share simulated to the share of requests that met the limit."""

    utilization: float
    slo_ms: float
    percentile: float
    tried: Mapping[float, float]


def instances_class(instances: Sequence[SimInstance]) -> str:
    """What instances must share to share a headroom: all that the simulator sees of them but their names.

    Regions count by which instances are together, templates not at all: the same stages in another region, library or
    order have the same class.
    """
    regions: dict[str, list[str]] = {}
    for instance in instances:
        stages = [
            [stage.layers, *([_digest(node.step), *_plain(node)] for node in stage.nodes)] for stage in instance.stages
        ]
        fields = [instance.phase.value, instance.rate_req_per_s, stages, instance.kv_bytes_per_token_layer]
        fields += [
            instance.activation_bytes_per_token,
            instance.kv_full_share,
            instance.kv_window,
            instance.prefix_hit_rate,
        ]
        regions.setdefault(instance.region, []).append(short_hash(fields))
    return short_hash(sorted(sorted(region) for region in regions.values()))


def _plain(node: SimNode) -> list[float | str]:
    values = [node.share, node.batch, node.network_bytes_per_s, node.kv_capacity_tokens, node.replicas]
    return [str(value) for value in (*values, node.inner_stages, node.hop_latency_s)]


def _digest(table: StepTable) -> str:
    digest = hashlib.sha256()
    for array in (table.tokens, table.context, table.time_s):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def poisson_at(model: str, pairs: tuple[Ints, Ints], count: int, seed: int = 0) -> RequestsAt:
    """Poisson streams of ``count`` requests with lengths drawn from ``pairs``: one stream, its clock scaled to the rate,
    so that a higher rate is the same requests closer together."""
    rng = np.random.default_rng(seed)
    unit_s = np.cumsum(rng.exponential(size=count))
    inputs, outputs = sample_lengths(pairs, count, rng)
    number = np.zeros(count, dtype=np.int64)
    return lambda rate: Requests(unit_s / rate, inputs, outputs, number, (model,))


def copies_of(instance: SimInstance, count: int) -> list[SimInstance]:
    """``count`` instances alike."""
    return [replace(instance, instance_id=f"{instance.instance_id}#{i}") for i in range(count)]


def slower(instance: SimInstance, ratio: float) -> SimInstance:
    """The instance with passes that take ``ratio`` times as long; what its network does stays."""
    stages = tuple(
        replace(
            stage,
            nodes=tuple(replace(n, step=replace(n.step, time_s=n.step.time_s * ratio)) for n in stage.nodes),
        )
        for stage in instance.stages
    )
    return replace(instance, stages=stages)


def headroom(
    instances: Sequence[SimInstance],
    slo_ms: float,
    percentile: float,
    requests_at: RequestsAt,
    *,
    lowest: float = 0.3,
    step: float = 0.01,
    counts_transfer: bool = True,
    receivers: Sequence[SimInstance] = (),
    longest_prompt: float = float("inf"),
) -> Headroom:
    """Bisects the load on ``instances`` (one model, one phase) over multiples of ``step`` in [lowest, 1].

    Prefill is judged by TTFT; with ``counts_transfer`` (see Slo) it ends when the decode instances ``receivers`` have taken
    the KV in (none given: at once). Decode is judged by TPOT from the arrival of the KV: its requests come as they arrive,
    from a prefill that takes no time. Prompts above ``longest_prompt`` tokens take their time but are not judged: templates
    promise nothing for them. Never above 1: more than the stored rate is not planned.
    """
    phases = {(instance.phase, instance.model) for instance in instances}
    if len(phases) != 1:
        raise SimulationInputError("headroom of several phases or models at once", remedy="give one of each")
    if not 0 < percentile < 100:
        raise SimulationInputError(f"percentile {percentile}", remedy="give a percentile between 0 and 100")
    tried: dict[float, float] = {}
    total = sum(instance.rate_req_per_s for instance in instances)

    def holds(share: float) -> bool:
        asked = requests_at(share * total)
        tried[share] = attained(
            instances,
            slo_ms,
            asked,
            counts_transfer=counts_transfer,
            receivers=receivers,
            longest_prompt=longest_prompt,
        )
        return tried[share] >= percentile / 100

    # From above: a lightly loaded instance takes many small steps for the same requests, so low shares cost the most.
    low, high = round(lowest / step) - 1, round(1 / step)
    middle = high
    while low < high:
        low, high = (middle, high) if holds(middle * step) else (low, middle - 1)
        middle = (low + high + 1) // 2
    return Headroom(low * step if low * step >= lowest - 1e-9 else 0.0, slo_ms, percentile, tried)


def attained(
    instances: Sequence[SimInstance],
    slo_ms: float,
    requests: Requests,
    *,
    counts_transfer: bool = True,
    receivers: Sequence[SimInstance] = (),
    longest_prompt: float = float("inf"),
) -> float:
    """Share of the requests after the warm-up that met the limit of the instances' phase."""
    phase, regions = instances[0].phase, sorted({instance.region for instance in instances})
    if phase is Phase.PREFILL:
        alone = replace(requests, output_tokens=np.minimum(requests.output_tokens, 2))
        missing = [region for region in regions if all(receiver.region != region for receiver in receivers)]
        instants = [_instant(instances, region, Phase.DECODE) for region in missing]
        result = simulate(alone, [*instances, *receivers, *instants])
        latency: Floats = result.ttft_s if counts_transfer else result.prefill_s
    else:
        result = simulate(requests, [*instances, *(_instant(instances, region, Phase.PREFILL) for region in regions)])
        latency = result.tpot_s
    counted = requests.arrival_s >= WARM_UP_SHARE * requests.arrival_s[-1]
    counted &= (requests.output_tokens > 1) | (phase is Phase.PREFILL)
    counted &= requests.input_tokens <= longest_prompt
    if not counted.any():
        raise SimulationInputError("no request to judge by", remedy="give a longer stream")
    done = result.status == int(RequestStatus.DONE)
    with np.errstate(invalid="ignore"):
        met = done & (latency * 1e3 <= slo_ms * (1 + 1e-9))
    return float(met[counted].mean())


def _instant(instances: Sequence[SimInstance], region: str, phase: Phase) -> SimInstance:
    """Stands for the other phase in ``region``: takes no time, and as many requests as the instances there serve."""
    here = [instance for instance in instances if instance.region == region]
    batch = 1 << 40 if phase is Phase.PREFILL else 64
    node = SimNode("none", 1.0, StepTable.constant(_INSTANT_S), batch=batch, network_bytes_per_s=1e30)
    return SimInstance(
        instance_id=f"{phase.value} of {region}",
        model=here[0].model,
        phase=phase,
        region=region,
        rate_req_per_s=sum(instance.rate_req_per_s for instance in here),
        stages=(SimStage(1, (node,)),),
    )
