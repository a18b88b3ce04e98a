"""Measured times of single layers: the raw collection's tables, Helix's layer times, and files of one's own.

A file in the layer-times format (``data/schemas/layer_times.csv``) is CSV or Parquet, one row per (GPU, model, tensor
parallelism, phase, batch, length), one column per kind of operation, in milliseconds per layer on one GPU.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from catalogs.catalog import Catalog
from catalogs.derive import raw_data_dir
from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, close_matches_remedy
from catalogs.models import model_from_config
from catalogs.tables import Table, parse_table, read_table
from catalogs.types import ModelSpec, Phase

TABLE = "layer_times"
LAYER_OPS = ("gemm", "attn", "moe", "ar", "ew")
# The tables' short names where they are no alias of ours.
_MODEL_NAMES = {"phi4-14b": "microsoft/phi-4"}
# The kernel tables hold no attention with Phi-4's 10 KV heads; its rows are those of 8 (their decode times read 0.8 of
# its KV at the rate that every other model's reach).
_ATTENTION_KV_HEADS = {"microsoft/phi-4": 8}
# Helix published no lengths with its layer times; of those tried for prompts and contexts this agrees best.
HELIX_CONTEXT_TOKENS = 1000
_HELIX_GPUS = {"A100": "A100-40GB-SXM", "L4": "L4", "T4": "T4", "V100": "V100-16GB-SXM2"}


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Times of one layer in ms: by operation, or ``total`` alone. ``is_fitted``: factors were fitted to this row.

    ``tokens`` in the pass: prompt tokens of prompts of ``context`` each, or ``batch`` sequences of ``context``.
    """

    source: str
    row: int
    gpu: str
    model: ModelSpec
    weight_dtype: str
    tp: int
    phase: Phase
    tokens: int
    batch: int
    context: int
    ops: Mapping[str, float]
    total: float | None
    head: float | None
    is_fitted: bool
    attention_kv_heads: int | None = None


def shared_file(name: str) -> Path:
    """A file of the raw data folder. Raises CoralError, saying how to point to it, where it is absent."""
    path = raw_data_dir() / name
    if not path.is_file():
        raise CoralError(
            f"the measured set {name} is not in {raw_data_dir()}",
            remedy="set CORAL_SHARED_DATA to the folder of the raw data collection",
        )
    return path


def read_layer_times(
    path: Path, catalog: Catalog, *, source: str = "", gpu: str = "", is_fitted: bool = True
) -> tuple[LayerTime, ...]:
    """A file in the layer-times format; every fault at once in an InputError, each with its row and column.

    ``gpu``: the one GPU whose rows these must be; ``system`` may then be a name of one's own, the same in all rows.
    """
    table = _read(path)
    findings = list(table.findings)
    rows = []
    is_alone = len({row["system"] for row in table.rows}) == 1
    for number, row in zip(table.row_numbers, table.rows, strict=True):
        reader = _RowReader(table.file, number, row, catalog)
        made = reader.read(gpu, is_alone=is_alone)
        findings += reader.findings
        if made is not None:
            rows.append(replace(made, source=source or path.name, is_fitted=is_fitted))
    if not findings and not rows:
        findings.append(Finding(table.file, 0, "", "", "the file holds no rows", "add measurements"))
    if findings:
        raise InputError(findings)
    return tuple(rows)


def _read(path: Path) -> Table:
    if path.suffix != ".parquet":
        return read_table(path, TABLE)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_table(path).to_pydict()
    except (OSError, pa.ArrowException) as error:
        reason = "the file does not exist" if not path.exists() else f"cannot be read as Parquet: {error}"
        return Table(path.name, (), (), (Finding(path.name, 0, "", "", reason, "give a CSV or Parquet file"),), (), 0)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in zip(*columns.values(), strict=True))
    return parse_table(out.getvalue(), TABLE, label=path.name)


@dataclass
class _RowReader:
    """One row of a file to a :class:`LayerTime`, or its faults."""

    file: str
    number: int
    row: Mapping[str, Any]
    catalog: Catalog
    findings: list[Finding] = field(default_factory=list)

    def fault(self, column: str, value: object, reason: str, remedy: str) -> None:
        self.findings.append(Finding(self.file, self.number, column, str(value), reason, remedy))

    def gpu(self, only: str, *, is_alone: bool) -> str:
        label = self.row["system"]
        try:
            name = self.catalog.gpu_names.encode(label, scope="efficiency")
        except CoralError as error:
            if only and is_alone:
                return only
            self.fault("system", label, error.message, error.remedy or "use a GPU of the catalog")
            return ""
        if only not in ("", name):
            self.fault("system", label, f"is {name}, not {only}", "give the rows of one GPU only")
        return name

    def model(self) -> ModelSpec | None:
        label = self.row["model"]
        try:
            return self.catalog.model(_MODEL_NAMES.get(label.lower(), label))
        except UnknownNameError:
            known = [text for model in self.catalog.models.values() for text in (model.model, model.alias)]
            self.fault("model", label, "unknown model", close_matches_remedy(label, known))
            return None

    def ops(self, spec: ModelSpec | None) -> dict[str, float]:
        ops = {op: self.row[op] for op in LAYER_OPS if self.row[op] is not None}
        if not ops and self.row["lm"] is None:
            self.fault("gemm", "", "nothing was measured in this row", "fill at least one of " + ", ".join(LAYER_OPS))
        if spec is None:
            return ops
        there = {"gemm": True, "attn": True, "moe": spec.is_moe, "ar": self.row["tp"] > 1}
        for op, is_there in there.items():
            if is_there and ops.get(op) == 0:
                self.fault(op, 0, "takes no time", "leave it blank where it was not measured")
            elif not is_there and ops.get(op, 0) != 0:
                self.fault(op, ops[op], f"{spec.model} at tp {self.row['tp']} has no such operation", "write 0")
        return ops

    def read(self, only: str, *, is_alone: bool) -> LayerTime | None:
        row, gpu, spec = self.row, self.gpu(only, is_alone=is_alone), self.model()
        ops = self.ops(spec)
        if self.findings or spec is None:
            return None
        phase, batch, context = Phase(row["phase"]), row["batch"], row["isl"]
        return LayerTime(
            source="", row=self.number, gpu=gpu, model=spec, weight_dtype=spec.shipped_dtype, tp=row["tp"], phase=phase,
            tokens=batch * context if phase is Phase.PREFILL else batch, batch=batch, context=context, ops=ops,
            total=sum(ops.values()) if len(ops) == len(LAYER_OPS) else None, head=row["lm"], is_fitted=True,
            attention_kv_heads=_ATTENTION_KV_HEADS.get(spec.model),
        )  # fmt: skip


def shared_layer_grid(catalog: Catalog) -> tuple[LayerTime, ...]:
    """The raw collection's kernel tables by layer: what the shipped factors of H100, H200, A100 and L40S are fitted to."""
    return read_layer_times(shared_file("perf/layer_grid.csv"), catalog, source="kernel tables")


def shared_helix(catalog: Catalog) -> tuple[LayerTime, ...]:
    """Helix's measured layer times of fp16 LLaMA-30B (fitted) and Llama-2-70B (held out), lengths assumed. Rows of
    zero milliseconds (they are rounded) are left out."""
    models = {"llama1_30b": _helix_llama(6656, 17920, 52, 52, 60), "llama2_70b": _helix_llama(8192, 28672, 64, 8, 80)}
    rows = []
    with shared_file("perf/helix_layer_times.csv").open(encoding="utf-8", newline="") as handle:
        for number, line in enumerate(csv.DictReader(handle), start=1):
            card, _, count = line["gpu"].partition("x")
            total, tokens, phase = float(line["ms_per_layer"]), int(line["batch_tokens"]), Phase(line["phase"])
            if card not in _HELIX_GPUS or not total:
                continue
            spec = models[line["model"]]
            row = LayerTime(
                source=f"Helix {line['gpu']}",
                row=number,
                gpu=_HELIX_GPUS[card],
                model=spec,
                weight_dtype="fp16",
                tp=int(count or 1),
                phase=phase,
                tokens=tokens,
                batch=tokens,
                context=min(HELIX_CONTEXT_TOKENS, tokens) if phase is Phase.PREFILL else HELIX_CONTEXT_TOKENS,
                ops={},
                total=total,
                head=None,
                is_fitted=line["model"] == "llama1_30b",
            )
            rows.append(row)
    return tuple(rows)


def _helix_llama(hidden: int, intermediate: int, heads: int, kv_heads: int, layers: int) -> ModelSpec:
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 32000, "torch_dtype": "float16",
        "max_position_embeddings": 4096,
    }  # fmt: skip
    return model_from_config(config, f"helix/llama-{layers}-layers")


@dataclass(frozen=True, slots=True)
class StepTime:
    """A measured whole: ``ms`` per decode step (what a user waits for between tokens), or of a first token.

    ``input_tokens``/``output_tokens`` are the requests' lengths, ``batch`` how many were decoded at once. ``is_fitted``: a
    constant of the model was fitted to this row. ``draws_likeliest``: the engine applied the model's own top-p or top-k
    (vLLM does by itself since its first 2025 releases).
    """

    source: str
    gpu: str
    model: ModelSpec
    weight_dtype: str
    engine: str
    tp: int
    phase: Phase
    batch: float
    input_tokens: int
    output_tokens: int
    ms: float
    draws_likeliest: bool = True
    is_fitted: bool = False


_POINT_GPUS = {"a10g": "A10G", "l4": "L4", "a100_80g": "A100-80GB-SXM", "a100_40g": "A100-40GB-SXM"}
_POINT_MODELS = {"Llama-3-8B": "meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B"}


def shared_points(catalog: Catalog) -> tuple[tuple[StepTime, ...], tuple[str, ...]]:
    """Published end-to-end points that state a batch and lengths, and one line per point left out, saying why."""
    points, skipped = [], []
    with shared_file("perf/measured_points.csv").open(encoding="utf-8", newline="") as handle:
        for number, line in enumerate(csv.DictReader(handle), start=1):
            made = _point(line, catalog)
            if isinstance(made, str):
                skipped.append(f"measured_points.csv, row {number}: {made}")
            else:
                points.append(made)
    return tuple(points), tuple(skipped)


def _point(line: Mapping[str, str], catalog: Catalog) -> StepTime | str:
    gpu, model = _POINT_GPUS.get(line["gpu"]), _POINT_MODELS.get(line["model"])
    metrics: dict[str, Callable[[float, int], float]] = {
        "itl_ms": lambda value, _: value,
        "ttft_ms": lambda value, _: value,
        # Output tokens per second of all requests in flight, with the time of prompts in it.
        "out_tok_s": lambda value, batch: batch / value * 1000,
    }
    if gpu is None or model is None:
        return f"{line['gpu']} or {line['model']} has no shape here"
    if line["metric"] not in metrics or not line["isl"].isdigit() or not line["concurrency"].isdigit():
        return f"{line['metric']} without a stated batch and lengths says nothing about a step"
    batch = int(line["concurrency"])
    return StepTime(
        source="published points",
        gpu=gpu,
        model=catalog.models[model],
        weight_dtype="bf16",
        engine=line["engine"],
        tp=int(line["count"]),
        phase=Phase.PREFILL if line["metric"] == "ttft_ms" else Phase.DECODE,
        batch=batch,
        input_tokens=int(line["isl"]),
        output_tokens=int(line["osl"]),
        ms=metrics[line["metric"]](float(line["value"]), batch),
        draws_likeliest=not line["engine"].startswith("vLLM 0.4"),
    )


def by_gpu(rows: Sequence[LayerTime]) -> dict[str, list[LayerTime]]:
    """Rows by GPU, in order of first appearance."""
    found: dict[str, list[LayerTime]] = {}
    for row in rows:
        found.setdefault(row.gpu, []).append(row)
    return found
