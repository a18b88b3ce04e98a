"""Tiles of the fused expert products: how many rows they compute beside those routed, and how often they read weights.

vLLM's kernel for 16-bit experts takes its tile from a file tuned for (GPU, experts, width), or else from a rule in the
number of tokens ``n``. The rule of releases up to 0.14 has tiles of at most 64 rows by 64 columns; the one that came after
it (vLLM pull request 34846, in 0.24) grows them to 128 by 128, at a far higher rate. Rows of an expert fill its tiles one by one.
Tiles that run at once share an expert's weights; each further round reads what the cache did not keep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = float | Floats

# The rules, by the release whose kernel tables were taken with them.
UNTIL_014, SINCE_024 = "vllm-0.14", "vllm-0.24"


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows and columns of a tile, and how many rows of tiles the launch order puts side by side."""

    rows: Number
    columns: Number
    side_by_side: Number


def default_tiles(rule: str, n: Number, experts: Number) -> Tiles:
    """The tile of a shape without a tuned one. Raises KeyError for an unknown rule."""
    n = np.asarray(n, dtype=np.float64)
    if rule == UNTIL_014:
        is_small = n <= experts
        return Tiles(np.where(is_small, 16.0, 64.0), np.where(is_small, 32.0, 64.0), np.where(is_small, 1.0, 8.0))
    if rule != SINCE_024:
        raise KeyError(rule)
    rows = np.select([n <= 32, n <= 96, n <= 512], [16.0, 32.0, 64.0], 128.0)
    return Tiles(rows, np.where(n <= 64, 64.0, 128.0), np.where(n > _last_ungrouped(experts), 16.0, 1.0))


def switches(rule: str, experts: Number) -> tuple[Number, ...]:
    """The last token counts before the rule takes another tile."""
    return (experts,) if rule == UNTIL_014 else (32.0, 96.0, 512.0, _last_ungrouped(experts))


def _last_ungrouped(experts: Number) -> Number:
    # Rows of tiles are grouped where n // experts exceeds 128.
    return 129.0 * experts - 1.0


def tuned_rows(rows_per_expert: Number) -> Floats:
    """Rows of a tuned tile: the smallest of 16, 32, 64 and 128 that holds what an expert is given."""
    r = np.asarray(rows_per_expert, dtype=np.float64)
    return np.select([r <= 16, r <= 32, r <= 64], [16.0, 32.0, 64.0], 128.0)


def tile_count(rows: Number, touched: Number, tile_rows: Number) -> Floats:
    """Rows of tiles over all experts: an expert's last one is half full on average, and none has less than one."""
    return np.maximum(touched, rows / tile_rows + np.asarray(touched) / 2)


def missed(matrix_bytes: Number, cache_bytes: float) -> Floats:
    """Share of a matrix that a cache with random replacement has lost when it is read the next time.

    A line outlives the misses of a whole round with probability exp(-missed x size / cache): a fixed point. 0 where the
    matrix fits, or the cache's size is not known.
    """
    size = np.asarray(matrix_bytes, dtype=np.float64) / cache_bytes if cache_bytes else np.zeros_like(matrix_bytes)
    larger = np.maximum(size, 1 + 1e-9)
    found = np.ones_like(size)
    # Newton's steps from 1, above the root, where the function is convex.
    for _ in range(8):
        kept = np.exp(-found * larger)
        found = found - (found - 1 + kept) / (1 - larger * kept)
    return np.where(size > 1, found, 0.0)


def weight_reads(
    rows: Number,
    touched: Number,
    tiles: Tiles,
    matrix: tuple[Number, Number],
    processors: int | None,
    cache_bytes: float,
) -> Floats:
    """How many times an expert's matrix is read from memory, over all experts touched. ``matrix``: (bytes, columns)."""
    size, columns = matrix
    at_once = np.maximum(tiles.side_by_side, (processors or 0) / np.ceil(np.asarray(columns) / tiles.columns))
    rounds = tile_count(rows, touched, tiles.rows * at_once)
    return touched + (rounds - touched) * missed(size, cache_bytes)
