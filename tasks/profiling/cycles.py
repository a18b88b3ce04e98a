"""The common cycles a pipeline of S stages may run at: one grid per workload and stage count, for every configuration.

In a pipeline all stages advance together, so rates can only be added and compared at a common cycle ``c``; a template is
the best over the grid.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Phase, Workload
from tasks.profiling.memory import ProfileSettings

# Beyond the settings' passes, for SLOs of many seconds.
_LONG_PASSES = (24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0)
_SHORTEST_LONG_CYCLE_MS = 150.0
# A prompt waits for its own passes and, on an engine that several share, for those of one prompt ahead of it.
PROMPTS_IN_LINE = 2


class Mode(StrEnum):
    """``CYCLE``: rate b/c at a common cycle, with positions. ``PAPER``: the paper's b/tau within SLO/S, without."""

    CYCLE = "cycle"
    PAPER = "paper"


def cycle_grid(workload: Workload, stages: int, settings: ProfileSettings, mode: Mode) -> NDArray[np.float64]:
    """Cycles in ms, longest first.

    Decode: a token takes S cycles, so c <= SLO / S; geometric below that, because a node that KV limits to few
    sequences runs faster at a short cycle. Prefill: SLO / (S + m), of which m cycles are for the wait and the passes
    that a prompt is cut into (see :func:`passes_allowed`). Paper: the one budget SLO / S.
    """
    if mode is Mode.PAPER:
        return np.array([workload.slo_ms / stages])
    if workload.phase is Phase.PREFILL:
        return workload.slo_ms / (stages + np.array(prefill_passes(workload, settings)))
    return workload.slo_ms / stages / np.array(settings.decode_cycle_divisors)


def prefill_passes(workload: Workload, settings: ProfileSettings) -> tuple[float, ...]:
    """The numbers m of cycles for the wait and the passes of a prompt, fewest first. A pass holds so many tokens at most,
    so where the SLO is long a node is fast only at cycles far below SLO / 16: further m follow while a cycle is no shorter
    than a pass of the largest size takes on a fast GPU."""
    long = (m for m in _LONG_PASSES if workload.slo_ms / m >= _SHORTEST_LONG_CYCLE_MS)
    return (*(float(m) for m in settings.prefill_passes), *long)


def passes_allowed(
    slo_ms: NDArray[np.float64] | float, stages: int, cycle_ms: NDArray[np.float64] | float, mode: Mode
) -> NDArray[np.float64]:
    """Passes (isl / b, <= 0 = none) that a prompt of isl tokens may need and still be through within ``slo_ms``.

    A prompt waits up to a cycle for the next pass; near saturation that pass is partly taken, so the prompt is spread
    over up to isl / b + 1 passes; the last of them leaves S - 1 cycles later: (S + 1 + isl / b) c. Where a stage has
    several engines prompts come to them out of step, and one may find another ahead: (S + 1 + 2 isl / b) c <= SLO.
    In saturated replay of templates of the paper's extended set the first form is broken by 2.4 % of pipelines, by up to
    half, the second by none; the best tokens per USD differ by 0 to 1 %. Paper: one pass, within each stage's budget.
    """
    if mode is Mode.PAPER:
        return np.ones(np.broadcast_shapes(np.shape(slo_ms), np.shape(cycle_ms)))
    return (np.asarray(slo_ms / cycle_ms) - stages - 1) / PROMPTS_IN_LINE
