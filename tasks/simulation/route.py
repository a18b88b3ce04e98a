"""The router: regions by what they can serve end to end, instances by smooth weighted round-robin on their rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from catalogs.types import Phase
from tasks.simulation.kernel_common import smooth_wrr
from tasks.simulation.types import Floats, Ints, SimInstance


def change_times_s(instances: Sequence[SimInstance]) -> Floats:
    """Times at which the set of instances that take work changes, ascending, starting with -inf."""
    times = {-np.inf}
    for instance in instances:
        times |= {instance.active_from_s, instance.active_until_s}
    return np.array(sorted(time for time in times if time < np.inf), dtype=np.float64)


def is_active(instance: SimInstance, at_s: float) -> bool:
    """Whether the router may send work at ``at_s``."""
    return instance.active_from_s <= at_s < instance.active_until_s


def prefill_weights(instances: Sequence[SimInstance], at_s: float) -> Floats:
    """Router weights of one model's instances for new requests, [instances]; decode instances weigh 0.

    A request stays in its region, so a region's weight is the smaller of its prefill and decode rate, divided over its
    prefill instances by rate. Where no region has both phases, prefill rates alone count: the request is then lost
    between the phases and counted as such.
    """
    supply: dict[tuple[str, Phase], float] = {}
    for instance in instances:
        if is_active(instance, at_s):
            key = (instance.region, instance.phase)
            supply[key] = supply.get(key, 0.0) + instance.rate_req_per_s
    weights = np.zeros(len(instances))
    alone = np.zeros(len(instances))
    for i, instance in enumerate(instances):
        if instance.phase is Phase.PREFILL and is_active(instance, at_s):
            prefill = supply[instance.region, Phase.PREFILL]
            decode = supply.get((instance.region, Phase.DECODE), 0.0)
            weights[i] = instance.rate_req_per_s / prefill * min(prefill, decode)
            alone[i] = instance.rate_req_per_s
    return weights if weights.any() else alone


def decode_weights(instances: Sequence[SimInstance], region: str, at_s: float) -> Floats:
    """Router weights of one model's decode instances in ``region``, [instances]."""
    return np.array(
        [
            instance.rate_req_per_s
            if instance.phase is Phase.DECODE and instance.region == region and is_active(instance, at_s)
            else 0.0
            for instance in instances
        ],
        dtype=np.float64,
    )


def route(times_s: Floats, weights_at: Sequence[Floats], changes_s: Floats) -> Ints:
    """Index chosen for each item, sorted by time; -1 where nothing takes work. ``weights_at[i]`` holds from ``changes_s[i]``."""
    chosen = np.full(len(times_s), -1, dtype=np.int64)
    bounds = [*np.searchsorted(times_s, changes_s, side="left"), len(times_s)]
    for weights, low, high in zip(weights_at, bounds[:-1], bounds[1:], strict=True):
        if high > low and weights.any():
            chosen[low:high] = smooth_wrr(weights, np.ones(high - low), np.zeros(len(weights)))
    return chosen
