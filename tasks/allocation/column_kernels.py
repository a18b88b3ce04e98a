"""Compiled loops over all templates: what one costs and how often it fits, and which ones another one beats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.jit import kernel


@kernel
def price_and_fit(
    counts: NDArray[np.int16], price: NDArray[np.float64], capacity: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Per template: USD/h of one instance in a region (NaN where a node is not sold), and how many fit there alone."""
    n, configs = counts.shape
    total, fits = np.zeros(n), np.zeros(n, dtype=np.int64)
    for i in range(n):
        most = np.int64(1 << 40)
        for k in range(configs):
            if counts[i, k] > 0:
                total[i] += counts[i, k] * price[k]
                most = min(most, capacity[k] // counts[i, k])
        fits[i] = most
    return total, fits


@kernel
def used_configs(counts: NDArray[np.int16]) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Per row its configurations in order and how many nodes of each, padded with configuration 0, count 0."""
    n, configs = counts.shape
    width = 1
    for i in range(n):
        used = 0
        for k in range(configs):
            if counts[i, k] > 0:
                used += 1
        width = max(width, used)
    node, count = np.zeros((n, width), dtype=np.int64), np.zeros((n, width), dtype=np.int16)
    for i in range(n):
        at = 0
        for k in range(configs):
            if counts[i, k] > 0:
                node[i, at], count[i, at] = k, counts[i, k]
                at += 1
    return node, count


@kernel
def undominated(counts: NDArray[np.int16], rate: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mask of templates that no other one matches with as few nodes of every configuration and as high a rate.

    Of exact twins the first is kept.
    """
    n, configs = counts.shape
    keep = np.ones(n, dtype=np.bool_)
    for i in range(n):
        for j in range(n):
            if j == i or not keep[j] or rate[j] < rate[i]:
                continue
            beats, twin = True, rate[j] == rate[i]
            for k in range(configs):
                if counts[j, k] > counts[i, k]:
                    beats = False
                    break
                if counts[j, k] < counts[i, k]:
                    twin = False
            if beats and not (twin and j > i):
                keep[i] = False
                break
    return keep


@kernel
def smallest(counts: NDArray[np.int16], order: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of templates with no other one inside: one that needs no more nodes of any configuration. Of twins the first in
    ``order`` is kept, which must go by rising number of nodes."""
    n, configs = counts.shape
    mask = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for k in range(configs):
            if counts[i, k] > 0:
                mask[i] |= np.int64(1) << np.int64(k % 62)
    keep = np.zeros(n, dtype=np.bool_)
    kept = np.empty(n, dtype=np.int64)
    many = 0
    for i in order:
        is_smallest = True
        for a in range(many):
            j = kept[a]
            if mask[j] & ~mask[i]:
                continue
            inside = True
            for k in range(configs):
                if counts[j, k] > counts[i, k]:
                    inside = False
                    break
            if inside:
                is_smallest = False
                break
        if is_smallest:
            keep[i] = True
            kept[many] = i
            many += 1
    return keep
