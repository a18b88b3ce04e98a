"""What the placement solvers read and return.

Rates are integers, milli-tokens per second, rounded down once when the curves are made: every comparison and sum
after that is exact, whichever solver does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray


class Position(IntEnum):
    """Where a stage stands: the first also holds the embedding, the last the lm head, ``ONLY`` both."""

    ONLY = 0
    FIRST = 1
    MID = 2
    LAST = 3


class LaunchClass(StrEnum):
    """How far stock engines can launch a template. A: one node; B1: one node per stage, all of one GPU count; B2: nodes of
    unequal GPU counts; C: several nodes share a stage or degrees differ, which takes a runtime of its own."""

    A = "A"
    B1 = "B1"
    B2 = "B2"
    C = "C"


@dataclass(frozen=True, slots=True)
class RateCurves:
    """Rates of every node configuration for one workload.

    ``rate_mtok_per_s[k, s - 1, position, c, j]`` is the rate of configuration k holding j layers in a stage at
    ``position`` of an s-stage pipeline at cycle ``cycle_ms[s - 1, c]``: int64, 0 = infeasible, non-increasing in j >= 1;
    j = 0 is unused (0). Shape [K, S, 4, C, L + 1]. Stage count 1 uses position ONLY, more use FIRST, MID, LAST.
    A cycle slot that is not used holds NaN in ``cycle_ms`` and zeros in the rates.
    """

    workload_id: str
    layers: int
    node_configs: tuple[str, ...]
    cycle_ms: NDArray[np.float64]
    rate_mtok_per_s: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """One pipeline stage: layers ``layer_start``..``layer_end`` (inclusive) on ``nodes`` (indices into the
    combination's expanded node list, i.e. configurations in index order, each repeated by its count)."""

    layer_start: int
    layer_end: int
    position: Position
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """A throughput-optimal placement of one combination. ``throughput_mtok_per_s`` 0 = nothing feasible (no stages).

    ``cycle_index`` points into ``RateCurves.cycle_ms[len(stages) - 1]``.
    """

    counts: tuple[int, ...]
    throughput_mtok_per_s: int
    cycle_index: int
    stages: tuple[StagePlacement, ...]
