"""Compiled inner loops of the tables of N+1, as in :mod:`tasks.allocation.covers.kernels`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.covers.kernels import Floats, Ints
from tasks.jit import kernel


@kernel
def _add_entry(f: Floats, steps: int, cost: float, once: bool) -> bool:
    """Let one more entry into the table ``f``, any number of times or ``once``; whether that changes it."""
    is_new = False
    for i in range(1, len(f)):
        g = len(f) - i if once else i
        rest = g - steps
        value = cost + (f[rest] if rest > 0 else 0.0)
        if value < f[g]:
            f[g] = value
            is_new = True
    return is_new


@kernel
def _tops(f: Floats) -> Ints:
    """The last x of every step of ``f``: more for the same."""
    is_top = np.isfinite(f)
    is_top[:-1] &= f[1:] > f[:-1]
    return np.flatnonzero(is_top)


@kernel
def spare_table(
    steps: Ints, cost: Floats, once: NDArray[np.bool_], lost: Ints, ends: NDArray[np.bool_], size: int
) -> tuple[Floats, Ints]:
    """out[g] = min over entries e of the least cost of g + lost[e] steps from entries 0..e, g = 1..size; and that e (-1: none).

    Entries by rising rate; those of ``once`` may be taken once, others any number of times. ``ends``: the last entry of
    each rate, where the requirement is read.
    """
    f = np.full(2 * size + 1, np.inf)
    f[0] = 0.0
    out, at = np.full(size + 1, np.inf), np.full(size + 1, -1, dtype=np.int64)
    out[0] = 0.0
    for e in range(len(steps)):
        if steps[e] > 0:
            _add_entry(f, steps[e], cost[e], once[e])
        if ends[e]:
            for g in range(1, size + 1):
                if f[g + lost[e]] < out[g]:
                    out[g] = f[g + lost[e]]
                    at[g] = e
    return out, at


@kernel
def spare_split_table(
    steps: Ints,
    cost: Floats,
    once: NDArray[np.bool_],
    firm: NDArray[np.bool_],
    lost: Ints,
    ends: NDArray[np.bool_],
    least: Ints,
    size: int,
) -> tuple[Floats, Ints, Ints]:
    """As :func:`spare_table` where at least ``least[g]`` of the steps are of ``firm`` entries; and how many of them are."""
    n = 2 * size + 1
    f, s = np.full(n, np.inf), np.full(n, np.inf)
    f[0] = s[0] = 0.0
    out, at, part = np.full(size + 1, np.inf), np.full(size + 1, -1, dtype=np.int64), np.zeros(size + 1, dtype=np.int64)
    out[0] = 0.0
    is_new = False
    for e in range(len(steps)):
        if steps[e] > 0:
            is_new |= _add_entry(f if firm[e] else s, steps[e], cost[e], once[e])
        if not ends[e] or not is_new:
            continue
        is_new, first, tops = False, 0, _tops(f)
        for g in range(1, size + 1):
            need = g + lost[e]
            while first < len(tops) and tops[first] < least[g]:
                first += 1
            for j in range(first, len(tops)):
                x = min(tops[j], need)
                if f[x] >= out[g]:
                    break
                value = f[x] + s[need - x]
                if value < out[g]:
                    out[g], at[g], part[g] = value, e, x
                if x == need:
                    break
    return out, at, part


@kernel
def spare_walk(steps: Ints, cost: Floats, once: NDArray[np.bool_], last: int, need: int) -> Ints:
    """How often each of the entries 0..last is taken for the least cost of ``need`` steps."""
    f = np.full(need + 1, np.inf)
    f[0] = 0.0
    takes = np.zeros((last + 1, need + 1), dtype=np.bool_)
    for e in range(last + 1):
        if steps[e] <= 0:
            continue
        for i in range(1, need + 1):
            g = need + 1 - i if once[e] else i
            rest = g - steps[e]
            value = cost[e] + (f[rest] if rest > 0 else 0.0)
            if value < f[g]:
                f[g] = value
                takes[e, g] = True
    taken = np.zeros(last + 1, dtype=np.int64)
    e, g = last, need
    while g > 0 and e >= 0:
        if takes[e, g]:
            taken[e] += 1
            g -= steps[e]
            if once[e]:
                e -= 1
        else:
            e -= 1
    return taken
