"""The common cycles a pipeline of S stages may run at: one grid per workload and stage count, for every configuration.

In a pipeline all stages advance together, so rates can only be added and compared at a common cycle ``c``; a template is
the best over the grid.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Phase, Workload
from tasks.profiling.memory import ProfileSettings

# A prompt waits for its own passes and, on an engine that several share, for those of one prompt ahead of it.
PROMPTS_IN_LINE = 2
_SAME = 1e-9
# Rungs: times in ms that cycles are made of whatever the SLO, so that a longer one keeps short cycles to choose. A node
# whose KV holds few sequences is fastest where a pass reads its whole memory, 15 to 150 ms on today's GPUs and several
# times that for inner stages one behind the other. Decode's are SLOs that people ask for,
_DECODE_RUNGS_MS = (
    *(15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400, 500, 600, 800),
    *(1000, 1200, 1500, 2000, 3000, 5000, 10000),
)
# and what lies between them where the SLO is so much longer that none of its own shares is near.
_BETWEEN_MS = (33, 36, 45, 55, 66, 72, 90, 110, 135, 165, 180, 220, 275, 330, 360, 450, 550, 660, 720, 900)
_OWN_SHARES_NEAR = 2
# Prefill is bound by arithmetic: most nodes are as fast per token at half the length of a pass.
_PREFILL_RUNGS_MS = (
    *(50, 70, 100, 125, 160, 200, 250, 320, 400, 500, 630, 800),
    *(1000, 1250, 1600, 2000, 2500, 3200, 4000, 5000, 6300, 8000, 10000),
)


class Mode(StrEnum):
    """``CYCLE``: rate b/c at a common cycle, with positions. ``PAPER``: the paper's b/tau within SLO/S, without."""

    CYCLE = "cycle"
    PAPER = "paper"


def cycle_grid(workload: Workload, stages: int, settings: ProfileSettings, mode: Mode) -> NDArray[np.float64]:
    """Cycles in ms, longest first.

    Decode: a token takes S cycles, so c <= SLO / S; some below, because a node that KV limits to few sequences runs faster
    at a shorter cycle. Prefill: SLO / (S + m), of which m cycles are for the wait and the passes that a prompt is cut into
    (see :func:`passes_allowed`). Paper: the one budget SLO / S.

    Shares of the SLO alone would leave nothing short where it is long, and a plan would get dearer by allowing more: so
    there are rungs that are the same for every SLO, decode's x / S (one stage needs none: a node alone chooses its own
    cycle, see :mod:`tasks.profiling.rates`), prefill's below its shares. At a rung every node runs at least the batch of a
    shorter cycle, so by a looser SLO a combination loses at most what the next rung is longer than its best cycle.
    """
    if mode is Mode.PAPER:
        return np.array([workload.slo_ms / stages])
    if workload.phase is Phase.PREFILL:
        shares = workload.slo_ms / (stages + np.array(settings.prefill_passes))
        return _falling([*shares, *prefill_rungs(shares.min())])
    shares = workload.slo_ms / stages / np.array(settings.decode_cycle_divisors)
    if stages == 1:
        return _falling(shares)
    rungs = [x for x in _DECODE_RUNGS_MS if x < workload.slo_ms]
    rungs += [x for x in _BETWEEN_MS if x * _OWN_SHARES_NEAR < workload.slo_ms]
    return _falling([*shares, *(x / stages for x in rungs)])


def prefill_rungs(below_ms: float = np.inf) -> tuple[float, ...]:
    """Prefill's cycles in ms that no SLO changes, rising: those shorter than ``below_ms``."""
    return tuple(float(c) for c in _PREFILL_RUNGS_MS if c < below_ms)


def _falling(cycles: Iterable[float]) -> NDArray[np.float64]:
    """Sorted, longest first; of two that only rounding tells apart, the longer."""
    ordered = np.sort(np.array(list(cycles)))[::-1]
    return ordered[np.append(True, ordered[1:] < ordered[:-1] * (1 - _SAME))]


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
