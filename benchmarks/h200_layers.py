"""Times single layers of Qwen3 with random weights on the GPU at hand, in the layer-times format.

``python benchmarks/h200_layers.py --system H200-SXM --out layers.csv`` needs torch and a CUDA GPU, nothing of Coral's, and
takes about four minutes for the whole grid (``--quick``: one). Then ``coral profiles fit --gpu H200-SXM --data layers.csv``
gives factors and their errors on models left out.

A tensor-parallel shard of degree t is timed on one GPU by its shapes (heads and widths over t, KV heads replicated below
one); all-reduces are not timed. Operands rotate through copies that together exceed the L2 cache, as in serving, where the
other layers pass through in between. Decode runs as a CUDA graph, prefill eagerly.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

# (hidden, intermediate, heads, KV heads, head width, vocabulary), of the models' config.json
MODELS = {
    "Qwen/Qwen3-8B": (4096, 12288, 32, 8, 128, 151936),
    "Qwen/Qwen3-32B": (5120, 25600, 64, 8, 128, 151936),
}
PREFILL = ((1, 128), (1, 256), (1, 512), (1, 1024), (1, 2048), (4, 1024), (1, 4096), (4, 2048), (1, 8192))
DECODE = tuple((b, c) for c in (512, 2048, 8192) for b in (1, 4, 16, 64, 256))
HEAD = ("system", "model", "tp", "phase", "batch", "isl", "gemm", "attn", "moe", "ar", "ew", "lm")
# Copies of an operand rotate until they exceed this: more than any L2 cache.
ROTATE_BYTES = 512 * 2**20
# Median over this many runs, after a few to warm up.
RUNS, WARM_UP = 15, 3


def times_ms(torch: Any, work: Callable[[], object], *, as_graph: bool) -> float:
    """Median time of ``work`` in ms on the device; captured once and replayed where ``as_graph``."""
    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    run = work
    if as_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        run = graph.replay
        run()
    found = []
    for _ in range(RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found)


class Shard:
    """One layer's shard of a model at tensor-parallel degree ``tp``: random weights, and the work of each operation."""

    def __init__(self, torch: Any, name: str, tp: int) -> None:
        self.torch = torch
        self.hidden, inner, heads, kv_heads, self.width, vocabulary = MODELS[name]
        self.heads, self.kv_heads, self.inner = heads // tp, max(1, kv_heads // tp), inner // tp
        rows = (self.heads + 2 * self.kv_heads) * self.width
        shapes = ((rows, self.hidden), (self.hidden, self.heads * self.width), (2 * self.inner, self.hidden))
        self.products = [self.rotating(*shape) for shape in (*shapes, (self.hidden, self.inner))]
        self.head = self.rotating(vocabulary // tp, self.hidden)
        self.norm = torch.ones(self.hidden, dtype=torch.bfloat16, device="cuda")

    def random(self, *shape: int) -> Any:
        """A bf16 tensor of small random values on the device."""
        return self.torch.randn(*shape, dtype=self.torch.bfloat16, device="cuda") * 0.02

    def rotating(self, *shape: int) -> list[Any]:
        """Copies that together exceed the cache."""
        size = 2
        for side in shape:
            size *= side
        return [self.random(*shape) for _ in range(max(1, min(16, ROTATE_BYTES // size + 1)))]

    def product_ms(self, copies: list[Any], tokens: int, *, as_graph: bool) -> float:
        """One dense product of ``tokens`` rows, the mean over its copies."""
        given = self.random(tokens, copies[0].shape[1])

        def work() -> None:
            for weight in copies:
                self.torch.nn.functional.linear(given, weight)

        return times_ms(self.torch, work, as_graph=as_graph) / len(copies)

    def attention_ms(self, batch: int, context: int, *, is_prefill: bool) -> float:
        """Causal attention of whole prompts, or of one token per sequence over its KV."""
        queries = context if is_prefill else 1
        size = 2 * 2 * batch * self.kv_heads * context * self.width
        copies = 1 if is_prefill else max(1, min(16, ROTATE_BYTES // size + 1))
        query = self.random(batch, self.heads, queries, self.width)
        held = [tuple(self.random(batch, self.kv_heads, context, self.width) for _ in range(2)) for _ in range(copies)]
        attend = self.torch.nn.functional.scaled_dot_product_attention

        def work() -> None:
            for key, value in held:
                attend(query, key, value, is_causal=is_prefill, enable_gqa=self.heads != self.kv_heads)

        return times_ms(self.torch, work, as_graph=not is_prefill) / copies

    def element_wise_ms(self, tokens: int, *, as_graph: bool) -> float:
        """Two norms with their residuals, and the gated activation."""
        functional = self.torch.nn.functional
        state, wide = self.random(tokens, self.hidden), self.random(tokens, 2 * self.inner)

        def work() -> None:
            for _ in range(2):
                functional.rms_norm(state + state, (self.hidden,), self.norm)
            functional.silu(wide[:, : self.inner]) * wide[:, self.inner :]

        return times_ms(self.torch, work, as_graph=as_graph)


def rows(torch: Any, system: str, points: dict[str, tuple[tuple[int, int], ...]]) -> Iterator[dict[str, object]]:
    """One row per model, degree, phase and point, in HEAD's columns."""
    for name in MODELS:
        for tp in (1, 2, 4, 8):
            shard = Shard(torch, name, tp)
            for phase, grid in points.items():
                for batch, context in grid:
                    is_prefill = phase == "prefill"
                    tokens = batch * context if is_prefill else batch
                    graph = not is_prefill
                    yield {
                        "system": system, "model": name, "tp": tp, "phase": phase, "batch": batch, "isl": context,
                        "gemm": sum(shard.product_ms(copies, tokens, as_graph=graph) for copies in shard.products),
                        "attn": shard.attention_ms(batch, context, is_prefill=is_prefill),
                        "moe": 0,
                        "ar": 0 if tp == 1 else "",
                        "ew": shard.element_wise_ms(tokens, as_graph=graph),
                        "lm": shard.product_ms(shard.head, batch, as_graph=True),
                    }  # fmt: skip
            del shard
            torch.cuda.empty_cache()


def main() -> int:
    """Measure and write; the exit code is 2 where there is no torch or no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", default="H200-SXM", help="the GPU's name in the catalog")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--quick", action="store_true", help="a third of the grid")
    options = parser.parse_args()
    try:
        import torch  # type: ignore[import-not-found]
    except ImportError:
        sys.stderr.write("error: torch is not installed. To fix: pip install torch\n")
        return 2
    if not torch.cuda.is_available():
        sys.stderr.write("error: no CUDA GPU is visible. To fix: run this where the GPU is\n")
        return 2
    step = 3 if options.quick else 1
    points = {"prefill": PREFILL[::step], "decode": DECODE[::step]}
    ticks = cycle("-\\|/")
    with options.out.open("w", encoding="utf-8", newline="") as handle, torch.no_grad():
        writer = csv.DictWriter(handle, HEAD, lineterminator="\n")
        writer.writeheader()
        for row in rows(torch, options.system, points):
            writer.writerow({key: f"{value:.6f}" if isinstance(value, float) else value for key, value in row.items()})
            handle.flush()
            sys.stderr.write(
                f"\r{next(ticks)} {row['model']} tp {row['tp']} {row['phase']} {row['batch']}x{row['isl']}   "
            )
    sys.stderr.write(f"\n{options.out}: written on {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
