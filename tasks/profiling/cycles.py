"""The common cycles a pipeline of S stages may run at: one grid per workload and stage count, for every configuration.

In a pipeline all stages advance together, so rates can only be added and compared at a common cycle ``c``; a template is
the best over the grid.
"""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Phase, Workload
from tasks.profiling.memory import ProfileSettings

# Guards floor() against SLO / (SLO / n) falling just short of n.
_ROUNDING = 1e-9


class Mode(StrEnum):
    """``CYCLE``: rate b/c at a common cycle, with positions. ``PAPER``: the paper's b/tau within SLO/S, without."""

    CYCLE = "cycle"
    PAPER = "paper"


def cycle_grid(workload: Workload, stages: int, settings: ProfileSettings, mode: Mode) -> NDArray[np.float64]:
    """Cycles in ms, longest first.

    Decode: a token takes S cycles, so c <= SLO / S; geometric below that, because a node that KV limits to few
    sequences runs faster at a short cycle. Prefill: a prompt waits up to one cycle, passes S stages, and every pass
    beyond the first takes a cycle more: with m passes c <= SLO / (S + m). Just below such a value nothing is gained over
    it, so these values are the grid. Paper: the one budget SLO / S.
    """
    if mode is Mode.PAPER:
        return np.array([workload.slo_ms / stages])
    if workload.phase is Phase.PREFILL:
        return workload.slo_ms / (stages + np.array(settings.prefill_passes, dtype=np.float64))
    return workload.slo_ms / stages / np.array(settings.decode_cycle_divisors)


def passes_allowed(workload: Workload, stages: int, cycle_ms: float, mode: Mode) -> int:
    """Passes a lone prompt may take and still meet the SLO at this cycle. Paper: one, within each stage's budget."""
    if mode is Mode.PAPER:
        return 1
    return math.floor(workload.slo_ms / cycle_ms - stages + _ROUNDING)
