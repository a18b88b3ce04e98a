"""The performance model against measurements: errors by source, GPU, phase and operation, fitted and held-out rows apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from catalogs.layer_times import LAYER_OPS, LayerTime, StepTime
from catalogs.types import Efficiency, Gpu, Lengths, Phase
from tasks.profiling.memory import MemoryModel, ProfileSettings
from tasks.profiling.roofline import MissingFactorsError, Roofline
from tasks.profiling.shapes import ModelShape

LAYER, HEAD, STEP, FIRST_TOKEN = "layer", "lm", "step", "first_token"
FITTED, HELD_OUT = "fitted", "held-out"


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Errors of the model over ``rows`` measurements, in percent: mean of |model/measured - 1|, of the signed value
    (positive = too slow), and the 90th percentile. ``op``: a kind of operation, ``layer`` = their sum, ``lm`` = the
    head, ``step`` = a whole decode step, ``first_token``."""

    source: str
    split: str
    gpu: str
    phase: str
    op: str
    rows: int
    mape: float
    bias: float
    p90: float


@dataclass(frozen=True)
class Checked:
    """The table, and one line per set that could not be compared, saying why."""

    lines: tuple[ErrorLine, ...]
    notes: tuple[str, ...] = ()


@dataclass
class _Tally:
    """Relative errors by (source, split, GPU, phase, op)."""

    errors: dict[tuple[str, str, str, str, str], list[float]]
    notes: dict[str, None]

    def add(self, row: LayerTime | StepTime, split: str, op: str, modelled: float, measured: float) -> None:
        key = (row.source, split, row.gpu, row.phase.value, op)
        self.errors.setdefault(key, []).append(modelled / measured - 1)

    def table(self) -> Checked:
        return Checked(tuple(_line(key, np.array(errors)) for key, errors in self.errors.items()), tuple(self.notes))


def _line(key: tuple[str, str, str, str, str], errors: np.ndarray) -> ErrorLine:
    source, split, gpu, phase, op = key
    size = 100 * np.abs(errors)
    return ErrorLine(
        source, split, gpu, phase, op, len(errors), float(size.mean()), float(100 * errors.mean()),
        float(np.percentile(size, 90)),
    )  # fmt: skip


def layer_ms(row: LayerTime, gpu: Gpu, eff: Efficiency, *, in_loop: bool = True) -> dict[str, float]:
    """The model's time of a measured layer by operation, the mean over the model's layers, and of its ``lm`` head (with
    the vocabulary's all-reduce, as the tables have it). Raises MissingFactorsError."""
    shape = ModelShape(row.model, row.weight_dtype, "bf16")
    model = Roofline(gpu, eff, shape, in_loop)
    n, context = np.array([float(row.tokens)]), float(row.context)
    counts = {kind: shape.kind_of_layer.count(kind) / row.model.layers for kind in shape.kinds}
    total = dict.fromkeys(LAYER_OPS, 0.0)
    for kind, share in counts.items():
        for op, ms in model.operations_ms(n, kind, row.tp, row.phase, context).items():
            total[op] += share * float(ms[0])
    if row.attention_kv_heads is not None:
        other = replace(row, model=replace(row.model, kv_heads=row.attention_kv_heads), attention_kv_heads=None)
        total["attn"] = layer_ms(other, gpu, eff, in_loop=in_loop)["attn"]
    head = model.head_gemm_ms(np.array([float(row.batch)]), row.tp) + model.all_reduce_ms(n, row.tp)
    return total | {HEAD: float(head[0])}


def check_layers(rows: Iterable[LayerTime], gpus: Mapping[str, Gpu], efficiencies: Mapping[str, Efficiency]) -> Checked:
    """Errors on measured layers, by operation and total. A GPU without factors is noted, not guessed."""
    tally = _Tally({}, {})
    for row in rows:
        eff = efficiencies.get(row.gpu)
        if eff is None:
            tally.notes[f"{row.source}: {row.gpu} has no efficiency factors"] = None
            continue
        try:
            modelled = layer_ms(row, gpus[row.gpu], eff)
        except MissingFactorsError as error:
            tally.notes[f"{row.source}, {row.model.alias} at tp {row.tp}: {error}"] = None
            continue
        split = FITTED if row.is_fitted else HELD_OUT
        for op, measured in row.ops.items():
            if measured > 0:
                tally.add(row, split, op, modelled[op], measured)
        if row.total is not None:
            tally.add(row, split, LAYER, sum(modelled[op] for op in LAYER_OPS), row.total)
        if row.head is not None and row.phase is Phase.DECODE:
            tally.add(row, split, HEAD, modelled[HEAD], row.head)
    return tally.table()


def step_ms(row: StepTime, gpu: Gpu, eff: Efficiency, settings: ProfileSettings) -> float:
    """The model's time of what a serving engine was measured at, de-rated.

    Decode: one step of ``batch`` sequences at the mean context. An engine that serves whole requests takes in
    batch / output_tokens prompts per step, whose passes lengthen it by as much; of more requests than its KV cache holds,
    some wait. First token: one pass over one prompt
    where requests come one at a time, else it waits for others and is not modelled: callers leave such rows out.
    """
    shape = ModelShape(row.model, row.weight_dtype, "bf16")
    model = Roofline(gpu, eff, shape)
    prompt = _pass_ms(model, row, Phase.PREFILL, float(row.input_tokens), 1.0, float(row.input_tokens))
    if row.phase is Phase.PREFILL:
        return prompt / settings.derate(Phase.PREFILL)
    context = Lengths.constant(row.input_tokens, row.output_tokens).decode_context_mean
    batch = min(float(row.batch), _most_sequences(gpu, shape, row.tp, context, settings))
    step = _pass_ms(model, row, Phase.DECODE, batch, batch, context)
    arriving = batch / row.output_tokens * prompt / settings.derate(Phase.PREFILL)
    return step / settings.derate(Phase.DECODE) + arriving


def _most_sequences(gpu: Gpu, shape: ModelShape, tp: int, context: float, settings: ProfileSettings) -> float:
    usable = MemoryModel(gpu, shape, Phase.DECODE, settings).usable_bytes - shape.weight_bytes / tp
    counts = [shape.kind_of_layer.count(kind) for kind in shape.kinds]
    return max(1.0, usable / float(np.dot(counts, shape.kv_bytes_per_sequence(context, tp))))


def _pass_ms(model: Roofline, row: StepTime, phase: Phase, tokens: float, sequences: float, context: float) -> float:
    """A whole model's pass on one group of GPUs: embedding, layers, head and sampling."""
    n, rows, tp = np.array([tokens]), np.array([sequences]), row.tp
    head = model.lm_head_ms(rows, tp) if row.draws_likeliest else model.head_gemm_ms(rows, tp)
    total = model.embedding_ms(n, tp) + head + model.all_reduce_ms(rows, tp)
    for kind in model.shape.kinds:
        total = total + model.shape.kind_of_layer.count(kind) * model.layer_ms(n, kind, tp, phase, context)
    return float(total[0])


def check_steps(
    rows: Iterable[StepTime],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings,
) -> Checked:
    """Errors on whole steps of serving engines."""
    tally = _Tally({}, {})
    for row in rows:
        eff = efficiencies.get(row.gpu)
        if eff is None:
            tally.notes[f"{row.source}: {row.gpu} has no efficiency factors"] = None
        elif row.phase is Phase.PREFILL and row.batch > 1:
            tally.notes[f"{row.source}: first tokens of several requests at once wait for one another: left out"] = None
        else:
            op = STEP if row.phase is Phase.DECODE else FIRST_TOKEN
            tally.add(
                row, FITTED if row.is_fitted else HELD_OUT, op, step_ms(row, gpus[row.gpu], eff, settings), row.ms
            )
    return tally.table()


def joined(parts: Sequence[Checked]) -> Checked:
    """Several tables as one."""
    return Checked(
        tuple(line for part in parts for line in part.lines),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
