"""Plan changes: which instances run when, with start-up of new ones and draining of old ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from catalogs.types import Phase
from tasks.simulation.types import SimInstance, SimulationInputError

Key = tuple[str, str]
"""A template in a region: (region, template_id)."""

# Prompts that a region's prefill took before it was stopped still need a decode instance there: many times a TTFT.
HAND_OVER_S = 60.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """From ``start_s`` on, ``counts`` copies per key."""

    start_s: float
    counts: Mapping[Key, int]


def run_epochs(
    epochs: Sequence[Epoch],
    prototypes: Mapping[Key, SimInstance],
    startup_s: float,
    *,
    overlap: bool = True,
) -> list[SimInstance]:
    """Instances of a sequence of plans. The first epoch's are up at its start; later ones take work ``startup_s`` after
    their epoch begins.

    Copies in excess are stopped, the youngest first. With ``overlap`` they take work until that epoch's new copies are
    up (if it has any), else they stop at once; then they drain. Decode copies go on for ``HAND_OVER_S`` more, for the prompts
    that the stopped prefill copies still have. A copy that is stopped before it is up never takes work.
    """
    if any(b.start_s <= a.start_s for a, b in pairwise(epochs)):
        raise SimulationInputError("epochs do not ascend in start_s", remedy="sort them")
    running: dict[Key, list[int]] = {}
    spans: list[tuple[Key, float, float]] = []
    for number, epoch in enumerate(epochs):
        ready_s = epoch.start_s + (startup_s if number else 0.0)
        keys = sorted(set(running) | set(epoch.counts))
        starts_any = any(epoch.counts.get(key, 0) > len(running.get(key, [])) for key in keys)
        stop_s = ready_s if overlap and starts_any else epoch.start_s
        for key in keys:
            have, want = running.setdefault(key, []), epoch.counts.get(key, 0)
            more_s = HAND_OVER_S if prototypes[key].phase is Phase.DECODE else 0.0
            while len(have) > want:
                copy = have.pop()
                is_up = spans[copy][1] < stop_s
                spans[copy] = (key, spans[copy][1], stop_s + more_s if is_up else stop_s)
            while len(have) < want:
                have.append(len(spans))
                spans.append((key, ready_s, float("inf")))
    return [
        replace(
            prototypes[key],
            instance_id=f"{prototypes[key].instance_id}#{number}",
            active_from_s=start,
            active_until_s=max(end, start),
        )
        for number, (key, start, end) in enumerate(spans)
    ]
