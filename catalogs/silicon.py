"""Layer times of any model put together from measured kernel tables: those of the PyPI package aiconfigurator-core
(Apache-2.0; the optional extra ``silicon``), read as Parquet from where it is installed. The package is not imported.

Its tables time single kernels in a loop. A layer is the sum of its kernels, each looked up at its exact shape; dense
products of shapes that the tables lack are interpolated between the four nearest, linearly. Element-wise kernels and the
small ones before prefill attention are not measured: they are the package's own estimates, as in the raw collection's
tables. No kernel counts faster than memory's or compute's peak (in a loop, operands may sit in the cache), as in the
package itself, experts excepted.
"""

from __future__ import annotations

import csv
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catalogs.catalog import Catalog
from catalogs.errors import CoralError, UnknownNameError
from catalogs.layer_times import LayerTime, StepTime
from catalogs.types import Gpu, ModelSpec, Phase

PACKAGE = "aiconfigurator_core"
SYSTEMS = {
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200-SXM",
    "a100_sxm": "A100-80GB-SXM",
    "l40s": "L40S",
    "b200_sxm": "B200-SXM",
    "rtx_pro_6000_server": "RTX-PRO-6000-Server",
}
# The models of the raw collection's tables, to which the shipped factors are fitted, and those held out of the fits.
FITTED_MODELS = ("Qwen/Qwen3-32B", "openai/gpt-oss-20b", "Qwen/Qwen3-235B-A22B")
HELD_OUT_MODELS = ("meta-llama/Meta-Llama-3.1-70B", "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B")
# Few wide experts, which the fitted models have not: the compute of the first one's is fitted too, the second is held out.
FITTED_WIDE, HELD_OUT_WIDE = "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x22B-v0.1"
TENSOR_PARALLEL = (1, 2, 4, 8)
PREFILL_POINTS = (
    (1, 128),
    (1, 256),
    (1, 512),
    (1, 1024),
    (1, 2048),
    (2, 1024),
    (4, 1024),
    (4, 2048),
    (1, 4096),
    (1, 8192),
)
DECODE_POINTS = tuple((batch, context) for context in (512, 2048, 8192) for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256))
# The package's estimates: share of bandwidth and time per element-wise kernel, time per small kernel before attention.
ELEMENT_WISE_SHARE, ELEMENT_WISE_MS, PREPARE_MS = 0.8, 0.003, 0.0132
# Routing of the expert tables that the package takes for real traffic.
ROUTING = "power_law_1.2"
_MOE_DTYPES = {"bf16": "bfloat16", "mxfp4": "w4a16_mxfp4"}
_NORMED_TYPES = frozenset({"qwen3", "qwen3_moe"})

Row = Mapping[str, Any]


def systems_dir() -> Path:
    """Where the package keeps its tables. Raises CoralError where it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise CoralError(
            "the kernel tables are not installed", remedy="install the extra: pip install 'coral-planner[silicon]'"
        )
    return Path(found.origin).parent / "systems"


def is_installed() -> bool:
    """Whether the extra is there."""
    return importlib.util.find_spec(PACKAGE) is not None


def silicon_system(gpu: str) -> str:
    """The package's name of a GPU. Raises UnknownNameError with those there are."""
    for system, name in SYSTEMS.items():
        if name == gpu:
            return system
    raise UnknownNameError("GPU with kernel tables", gpu, SYSTEMS.values())


def silicon_layer_times(
    catalog: Catalog, gpu: str, models: Sequence[str] = HELD_OUT_MODELS, *, source: str = "kernel tables"
) -> tuple[LayerTime, ...]:
    """Layers of ``models`` on ``gpu`` over the raw collection's grid. A point without all its kernels is left out.

    FITTED_MODELS and FITTED_WIDE are marked as such: factors of the GPU rest on them.
    """
    tables = _tables(silicon_system(gpu))
    rows = []
    for name in models:
        spec = _held_out_wide(catalog) if name == HELD_OUT_WIDE else catalog.model(name)
        if spec.kv_lora_rank or spec.shared_experts or (spec.is_moe and spec.dense_layers):
            raise CoralError(f"{spec.model}: its layers are not in the kernel tables", remedy="choose another model")
        layer = _Layer(tables, catalog.gpus[gpu], spec)
        for tp in TENSOR_PARALLEL:
            if spec.heads % tp:
                continue
            for phase, points in ((Phase.PREFILL, PREFILL_POINTS), (Phase.DECODE, DECODE_POINTS)):
                for batch, context in points:
                    ops = layer.ops(tp, phase, batch, context)
                    if ops is not None:
                        rows.append(_row(source, gpu, spec, tp, phase, batch, context, ops))
    return tuple(rows)


def _row(
    source: str, gpu: str, spec: ModelSpec, tp: int, phase: Phase, batch: int, context: int, ops: dict[str, float]
) -> LayerTime:
    tokens = batch * context if phase is Phase.PREFILL else batch
    return LayerTime(
        source, 0, gpu, spec, spec.shipped_dtype, tp, phase, tokens, batch, context, ops, sum(ops.values()), None,
        spec.model in (*FITTED_MODELS, FITTED_WIDE),
    )  # fmt: skip


def _held_out_wide(catalog: Catalog) -> ModelSpec:
    """Mixtral-8x22B's shape (config.json in the package), which no catalogued plan uses."""
    return replace(
        catalog.model(FITTED_WIDE), model=HELD_OUT_WIDE, alias="mixtral-8x22b-v0.1", layers=56, hidden=6144, heads=48,
        intermediate=16384, moe_intermediate=16384, layer_windows=(0,) * 56, max_position=65536,
    )  # fmt: skip


def tile_rule(gpu: str) -> str:
    """The rule for tiles (:mod:`tasks.profiling.expert_tiles`) of the vLLM release that a GPU's expert tables were taken
    with: 0.14 on the A100, 0.22 and later elsewhere."""
    return "vllm-0.14" if gpu == "A100-80GB-SXM" else "vllm-0.24"


# ---- tables -------------------------------------------------------------------------------------------------------


@dataclass
class _Tables:
    gemm: dict[tuple[int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]
    attention: dict[Phase, dict[tuple[int, ...], dict[int, float]]]
    experts: dict[tuple[Any, ...], float]
    all_reduce: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]
    sides: tuple[list[int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.sides = (sorted({m for m, _ in self.gemm}), sorted({k for _, k in self.gemm}))


@cache
def _tables(system: str) -> _Tables:
    gemm: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for r in _read(system, "gemm", "gemm_perf", ("gemm_dtype", "m", "n", "k", "latency")):
        if r["gemm_dtype"] == "bfloat16":
            gemm[r["n"], r["k"]][r["m"]] = r["latency"]
    experts: dict[tuple[Any, ...], float] = {}
    shape = ("moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "num_tokens")
    for r in _read(system, "moe", "moe_perf", (*shape, "moe_ep_size", "distribution", "latency")):
        if r["moe_ep_size"] == 1 and r["distribution"] == ROUTING:
            key = tuple(r[name] for name in shape)
            experts[key] = min(r["latency"], experts.get(key, np.inf))
    reduce: dict[int, dict[int, float]] = defaultdict(dict)
    for r in _read(system, "comm", "custom_allreduce_perf", ("num_gpus", "message_size", "latency", "backend")):
        if r["backend"] == "vllm_graph":
            reduce[r["num_gpus"]][r["message_size"]] = r["latency"]
    return _Tables(
        {key: _curve(times) for key, times in gemm.items()},
        {
            Phase.PREFILL: _attention(system, "context_attention_perf", "isl"),
            Phase.DECODE: _attention(system, "generation_attention_perf", "step"),
        },
        experts,
        {gpus: _curve(times) for gpus, times in reduce.items()},
    )


def _curve(times: dict[int, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sizes = sorted(times)
    return np.array(sizes, dtype=np.float64), np.array([times[size] for size in sizes])


def _attention(system: str, table: str, length: str) -> dict[tuple[int, ...], dict[int, float]]:
    """(heads, KV heads, head width, window, length) -> batch -> ms. A decode step at position p has p + 1 keys."""
    shape = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
    found: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for r in _read(system, "attention", table, (*shape, length, "batch_size", "kv_cache_dtype", "latency")):
        if r["kv_cache_dtype"] == "bfloat16":
            times = found[*(r[name] or 0 for name in shape), r[length] + (length == "step")]
            times[r["batch_size"]] = min(r["latency"], times.get(r["batch_size"], np.inf))
    return found


def _read(system: str, family: str, table: str, columns: tuple[str, ...]) -> list[Row]:
    """A table of the newest vLLM version that has it; a column that the version lacks is None."""
    import pyarrow.parquet as pq

    folder = systems_dir() / "data" / system / family / "vllm"
    versions = [path.parent for path in folder.glob(f"*/{table}.parquet")]
    if not versions:
        raise CoralError(f"the kernel tables hold no {table} for {system}", remedy="choose another GPU")
    newest = max(versions, key=lambda path: tuple(int(part) for part in path.name.split(".") if part.isdigit()))
    path = newest / f"{table}.parquet"
    there = [name for name in columns if name in pq.read_schema(path).names]
    absent = dict.fromkeys(set(columns) - set(there))
    return [{**absent, **row} for row in pq.read_table(path, columns=there).to_pylist()]


# ---- a layer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    tables: _Tables
    gpu: Gpu
    spec: ModelSpec

    def ops(self, tp: int, phase: Phase, batch: int, context: int) -> dict[str, float] | None:
        """Operations of one layer in ms; None where a kernel is missing."""
        n = batch * context if phase is Phase.PREFILL else batch
        attention = self.attention(tp, phase, batch, context)
        experts = self.experts(tp, n)
        if attention is None or experts is None:
            return None
        return {
            "gemm": sum(self.gemm(n, m, k) for m, k in self.gemms(tp)),
            "attn": attention,
            "moe": experts,
            "ar": 2 * self.all_reduce(tp, n),
            "ew": self.element_wise(tp, n),
        }

    def kv_heads(self, tp: int) -> int:
        return -(-self.spec.kv_heads // tp)

    def gemms(self, tp: int) -> list[tuple[int, int]]:
        """(columns, rows) of the layer's dense products."""
        s = self.spec
        q = s.heads // tp * s.head_dim
        shapes = [(q + 2 * self.kv_heads(tp) * s.head_dim, s.hidden), (s.hidden, q)]
        if s.is_moe:
            return [*shapes, (s.n_experts, s.hidden)]
        return [*shapes, (2 * s.intermediate // tp, s.hidden), (s.hidden, s.intermediate // tp)]

    def gemm(self, n: int, m: int, k: int) -> float:
        total = 0.0
        for (column, a), (row, b) in product(_around(m, self.tables.sides[0]), _around(k, self.tables.sides[1])):
            sizes, times = self.tables.gemm[column, row]
            at = np.interp(n, sizes, times) if n <= sizes[-1] else times[-1] * n / sizes[-1]
            total += a * b * float(at)
        flop_ms = 2 * n * m * k / ((self.gpu.bf16_dense_tflops or np.inf) * 1e9)
        return max(total, flop_ms, self._memory_ms(2 * (m * k + n * (m + k))))

    def _memory_ms(self, size: float) -> float:
        return size / (self.gpu.memory_bandwidth_gb_per_s * 1e6)

    def attention(self, tp: int, phase: Phase, batch: int, context: int) -> float | None:
        s = self.spec
        windows = s.layer_windows or (0,)
        total = 0.0
        for window in windows:
            key = (s.heads // tp, self.kv_heads(tp), s.head_dim, window, context)
            time = _at_batch(self.tables.attention[phase].get(key, {}), batch)
            if time is None:
                return None
            if phase is Phase.DECODE:
                held = min(context, window) if window else context
                time = max(time, self._memory_ms(batch * held * 4 * self.kv_heads(tp) * s.head_dim))
            total += time / len(windows)
        if phase is Phase.PREFILL:
            total += PREPARE_MS * (3 if s.model_type in _NORMED_TYPES else 1)
        return total

    def experts(self, tp: int, n: int) -> float | None:
        s = self.spec
        if not s.is_moe:
            return 0.0
        dtype = _MOE_DTYPES.get(s.shipped_dtype, s.shipped_dtype)
        key = (dtype, s.hidden, s.moe_intermediate, s.experts_per_token, s.n_experts, tp, n)
        return self.tables.experts.get(key)

    def all_reduce(self, tp: int, n: int) -> float:
        if tp == 1:
            return 0.0
        # Message sizes of these tables are in values, not bytes.
        sizes, times = self.tables.all_reduce[tp]
        return float(np.interp(n * self.spec.hidden, sizes, times))

    def element_wise(self, tp: int, n: int) -> float:
        s = self.spec
        values = 8 * s.hidden + (0 if s.is_moe else 3 * s.intermediate / tp)
        return self._memory_ms(2 * n * values) / ELEMENT_WISE_SHARE + ELEMENT_WISE_MS * (2 if s.is_moe else 3)


def _around(size: int, sizes: list[int]) -> list[tuple[int, float]]:
    """The tabulated sizes on either side with their weights; at the ends the nearest alone."""
    if size in sizes or size <= sizes[0] or size >= sizes[-1]:
        return [(min(max(size, sizes[0]), sizes[-1]), 1.0)]
    high = next(i for i, other in enumerate(sizes) if other > size)
    share = (size - sizes[high - 1]) / (sizes[high] - sizes[high - 1])
    return [(sizes[high - 1], 1 - share), (sizes[high], share)]


def _at_batch(times: Mapping[int, float], batch: int) -> float | None:
    """The time at a batch; beyond the last one measured along the line through the last two."""
    if batch in times:
        return times[batch]
    below = sorted(size for size in times if size < batch)
    if len(below) < 2 or any(size > batch for size in times):
        return None
    first, last = below[-2:]
    return times[last] + (times[last] - times[first]) * (batch - last) / (last - first)


# ---- whole requests -----------------------------------------------------------------------------------------------

# Runs of the package's sample by (model there, precision there): (model here, weight format).
_STEPS = {
    ("Qwen/Qwen3-32B", ""): ("Qwen/Qwen3-32B", "bf16"),
    ("openai/gpt-oss-120b", "fp4"): ("openai/gpt-oss-120b", "mxfp4"),
    ("meta-llama/Llama-3.1-70B", "fp8"): ("meta-llama/Meta-Llama-3.1-70B", "fp8"),
}

# What a sort of the logits costs was fitted to these runs (tasks/profiling/kernels.py).
SAMPLING_FITTED_TO = ("meta-llama/Meta-Llama-3.1-70B", "H100-SXM")


def silicon_steps(catalog: Catalog, gpus: Iterable[str]) -> tuple[StepTime, ...]:
    """Measured decode steps of vLLM serving whole requests, tensor-parallel, of models in formats we have factors for.

    ``batch`` is the mean number of sequences that decode: of the stated concurrency, the share of a request's time that its
    answer takes (Little's law). Left out: rows without a stated concurrency, and overloaded runs, whose requests wait
    longer for the first token than for all others. Repeated rows count once.
    """
    wanted = {silicon_system(gpu): gpu for gpu in gpus}
    rows: dict[StepTime, None] = {}
    with (systems_dir() / "silicon_sample.csv").open(encoding="utf-8", newline="") as handle:
        for line in csv.DictReader(handle):
            known = _STEPS.get((line["model_path"], line["precision"]))
            stated = re.search(r"silicon_concurrency=(\d+)", line["silicon_data_source"])
            if known is None or stated is None or line["backend"] != "vllm" or line["mode"] != "agg":
                continue
            if line["system"] in wanted and line["tp_size"]:
                made = _step(line, known, wanted[line["system"]], catalog, int(stated[1]))
                rows |= {} if made is None else {made: None}
    return tuple(rows)


def _step(line: Row, known: tuple[str, str], gpu: str, catalog: Catalog, concurrency: int) -> StepTime | None:
    """None: an overloaded run."""
    model, dtype = catalog.models[known[0]], known[1]
    input_tokens, output_tokens = int(line["isl"]), int(line["osl"])
    step_ms, first_ms = float(line["silicon_tpot_ms"]), float(line["silicon_ttft_ms"])
    share = step_ms * output_tokens / (first_ms + step_ms * output_tokens)
    if share < 0.5:
        return None
    return StepTime(
        f"serving runs, {model.alias} {dtype}", gpu, model, dtype, f"vLLM {line['backend_version']}".strip(),
        int(line["tp_size"]), Phase.DECODE, concurrency * share, input_tokens, output_tokens, step_ms,
        is_fitted=(model.model, gpu) == SAMPLING_FITTED_TO,
    )  # fmt: skip
