"""De-ratings from a serving benchmark: roofline time over measured time, for prefill and decode apart.

The mapping, for a run of X requests/s with mean prompt i on one replica of a (GPU, tp):
- prefill, only from runs of one request at a time (``max_concurrency`` 1; others wait in queues): the first token takes one
  pass over the prompt, so ``derate = T_prefill(i) / mean TTFT``.
- decode, from every run: ``b = output rate x TPOT`` sequences decode (Little's law) at the mean context of the lengths. The
  engine spends the share ``u = X x T_prefill(i) / prefill de-rating`` of its time on prompts, during which no token comes,
  so a step itself takes ``TPOT x (1 - u)`` and ``derate = T_decode(b) / (TPOT x (1 - u))``; u = 0 with one request at a
  time, whose tokens no prompt delays.
T are roofline times of all layers, embedding and head, without a de-rating.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from catalogs.errors import CoralError
from catalogs.types import Efficiency, Gpu, Lengths, ModelSpec, Phase
from catalogs.vllm_bench import BenchResult
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import ModelShape

# A run that spends more of its time than this on prompts says little about decode.
MOST_PREFILL_SHARE = 0.6
# Outside, the GPU, the degree or the model is not the one that ran.
PLAUSIBLE = (0.2, 1.5)


@dataclass(frozen=True, slots=True)
class Derate:
    """One de-rating. ``batch``: sequences decoding, or tokens of the prompt. ``times_ms`` (roofline, measured)."""

    phase: Phase
    derate: float
    batch: float
    times_ms: tuple[float, float]


def derates_of(
    run: BenchResult,
    gpu: Gpu,
    eff: Efficiency,
    shape: ModelShape,
    tp: int,
    prefill_derate: float | None = None,
    settings: ProfileSettings | None = None,
) -> list[Derate]:
    """The de-ratings that a run gives. ``prefill_derate``: known from another run (default: as stated).

    Raises CoralError for a degree without layout or factors, a run mostly of prompts, or a de-rating that cannot be.
    """
    settings = settings or ProfileSettings()
    roofline = Roofline(gpu, eff, shape)
    refusal = shape.tp_refusal(tp) or roofline.missing_factors(tp)
    where = f"{run.file}, line {run.line}"
    if refusal:
        raise CoralError(
            f"{where}: tp {tp} on {gpu.gpu} cannot be calibrated: {refusal}", remedy="give the tp that ran"
        )
    found = []
    prompt_ms = model_ms(roofline, tp, Phase.PREFILL, run.lengths.input_mean, run.lengths)
    if run.max_concurrency == 1:
        found.append(
            Derate(Phase.PREFILL, prompt_ms / run.mean_ttft_ms, run.lengths.input_mean, (prompt_ms, run.mean_ttft_ms))
        )
    busy = run.request_per_s * prompt_ms / 1000 / (prefill_derate or settings.derate(Phase.PREFILL))
    share = 0.0 if run.max_concurrency == 1 else busy
    if share > MOST_PREFILL_SHARE:
        raise CoralError(
            f"{where}: prompts take {share:.0%} of the time, so the run says little about decode",
            remedy="benchmark with longer answers or at a lower rate",
        )
    step_ms = run.mean_tpot_ms * (1 - share)
    decode_ms = model_ms(roofline, tp, Phase.DECODE, run.decoding, run.lengths)
    found.append(Derate(Phase.DECODE, decode_ms / step_ms, run.decoding, (decode_ms, step_ms)))
    for item in found:
        if not PLAUSIBLE[0] <= item.derate <= PLAUSIBLE[1]:
            roof, measured = item.times_ms
            raise CoralError(
                f"{where}: {item.phase.value} takes {measured:.4g} ms, the roofline of {gpu.gpu} tp {tp} says {roof:.4g} ms",
                remedy=f"check GPU, tp, model and formats: a de-rating of {item.derate:.3g} cannot be",
            )
    return found


def model_ms(roofline: Roofline, tp: int, phase: Phase, batch: float, lengths: Lengths) -> float:
    """Roofline time in ms of one pass of the whole model: ``batch`` prompt tokens, or sequences that each get a token."""
    n = np.array([max(batch, 1.0)])
    context = lengths.prefill_context if phase is Phase.PREFILL else lengths.decode_context_mean
    kinds = roofline.shape.kind_of_layer
    total = sum(
        float(roofline.layer_ms(n, kind, tp, phase, context)[0]) * kinds.count(kind) for kind in roofline.shape.kinds
    )
    rows = np.maximum(1.0, n / lengths.input_mean) if phase is Phase.PREFILL else n
    return total + float(roofline.embedding_ms(n, tp)[0]) + float(roofline.lm_head_ms(rows, tp)[0])


def shape_of(spec: ModelSpec, weight_dtype: str, kv_dtype: str) -> ModelShape:
    """The model in the formats that ran; '' = as published, and bf16 KV."""
    return ModelShape(spec, weight_dtype or spec.shipped_dtype, kv_dtype or "bf16")
