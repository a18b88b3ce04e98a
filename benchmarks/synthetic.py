"""Made-up but roofline-shaped rate curves of the paper's extended set-up, for timings that need no profiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.templates.types import RateCurves

GPUS = {  # TFLOP/s, GB/s, GiB, GB/s all-reduce
    "A100": (312.0, 2039.0, 79.2, 120.0),
    "A10G": (70.0, 600.0, 22.0, 6.0),
    "H100": (989.0, 3350.0, 79.2, 180.0),
    "L4": (121.0, 300.0, 22.0, 5.0),
    "L40S": (362.0, 864.0, 44.99, 6.0),
}
COUNTS = (1, 2, 4, 8)
CONTEXT_TOKENS = 800.0


@dataclass(frozen=True)
class Shape:
    """A model as the roofline needs it: weights in GB, KV bytes per token and layer, SLOs in ms."""

    layers: int
    weight_gb: float
    active_gb: float
    kv_bytes: float
    hidden: int
    head_layers: float
    prefill_ms: float
    decode_ms: float


MODELS = {
    "phi-4": Shape(40, 29.3, 29.3, 5120, 5120, 1.4, 1200, 60),
    "gpt-oss-20b": Shape(24, 13.75, 7.2, 2048, 2880, 2.4, 900, 30),
    "qwen3-32b": Shape(64, 65.5, 65.5, 4096, 5120, 1.6, 1600, 100),
    "llama3-70b": Shape(80, 141.1, 141.1, 4096, 8192, 1.2, 1500, 80),
    "gpt-oss-120b": Shape(36, 65.2, 10.3, 2048, 2880, 0.7, 1000, 40),
    "qwen3-235b": Shape(94, 470.2, 44.4, 2048, 4096, 0.3, 1800, 120),
}


def node_configs() -> tuple[tuple[str, ...], list[int]]:
    """Ids of the 20 configurations and their memory in MiB."""
    names = tuple(f"{gpu}x{count}" for gpu in GPUS for count in COUNTS)
    return names, [round(GPUS[gpu][2] * count * 1024) for gpu in GPUS for count in COUNTS]


def _rates(
    shape: Shape, gpu: str, count: int, cycle_ms: float, stages: int, extra: float, decode: bool
) -> NDArray[np.float64]:
    """tok/s of one node for j = 0..L layers; ``extra`` layers of embedding or head are held besides."""
    tflops, bandwidth, gib, link = GPUS[gpu]
    j = np.arange(shape.layers + 1) + extra
    held_gb = shape.weight_gb / shape.layers * j
    free_gb = 0.9 * gib * count * 1.0737 - held_gb - 2.0
    read_ms = shape.active_gb / shape.layers * j / (0.8 * bandwidth * count) * 1e3
    flop_ms = shape.active_gb / shape.layers * j / (0.6 * tflops * count)  # GB of bf16 = G weights / 2, 2 flops each
    hop_ms = 0.0 if count == 1 else 4e-6 * shape.hidden / link * j
    fixed_ms = 0.05 * j
    if decode:
        kv_ms = CONTEXT_TOKENS * shape.kv_bytes * j / (0.8 * bandwidth * count) / 1e6
        batch = (cycle_ms - read_ms - fixed_ms) / (flop_ms + hop_ms + kv_ms)
        batch = np.minimum(batch, free_gb * 1e9 / (stages * CONTEXT_TOKENS * shape.kv_bytes * j))
    else:
        batch = np.minimum((cycle_ms - fixed_ms) / np.maximum(flop_ms + hop_ms, 1e-12), 16384)
    batch = np.where((free_gb > 0) & (batch >= 1), np.floor(batch), 0)
    batch[0] = 0
    return batch / cycle_ms * 1e3


def curves(alias: str, decode: bool, n_max: int = 6, cycles: int = 10) -> RateCurves:
    """Closed curves of all configurations; ``cycles`` 1 stands for the paper's mode."""
    shape = MODELS[alias]
    names, _ = node_configs()
    grid = np.full((n_max, cycles), np.nan)
    out = np.zeros((len(names), n_max, 4, cycles, shape.layers + 1), np.int64)
    for s in range(1, n_max + 1):
        longest = shape.decode_ms / s if decode else shape.prefill_ms / (s + 1)
        grid[s - 1] = longest * np.linspace(1.0 if cycles == 1 else 0.4, 1.0, cycles)
        extras = {0: 2 * shape.head_layers} if s == 1 else {1: shape.head_layers, 2: 0.0, 3: shape.head_layers}
        for place, extra in extras.items():
            if place == 2 and s == 2:
                continue
            for c, cycle_ms in enumerate(grid[s - 1]):
                for k, name in enumerate(names):
                    gpu, count = name.split("x")
                    rate = _rates(shape, gpu, int(count), cycle_ms, s, extra, decode)
                    closed = np.maximum.accumulate(rate[:0:-1])[::-1]
                    out[k, s - 1, place, c, 1:] = np.floor(closed * 1000)
    return RateCurves(f"{alias}/{'decode' if decode else 'prefill'}", shape.layers, names, grid, out)
