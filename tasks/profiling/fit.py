"""Fits a GPU's factors to measured layers, one kind of operation at a time, by SciPy's robust least squares on the
logarithm of modelled over measured time: a relative error counts alike at a microsecond and at a second.

Both phases weigh alike in an operation they share. The tile of expert products is a size that kernels are built with: each
is fitted and the best one kept. What was not measured is left without factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import Any

import numpy as np

from catalogs.errors import CoralError
from catalogs.layer_times import LayerTime
from catalogs.types import Efficiency, Gpu, GpuDie, MoeFactors, Phase, Provenance
from catalogs.wording import counted
from tasks.profiling import kernels
from tasks.profiling.check import FITTED, LAYER, check_layers
from tasks.profiling.kernels import AttentionFactors, ExpertWork, Floats, GemmFactors, Peak
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import ModelShape

# Residuals beyond this (10 %) count linearly.
_ROBUST = 0.1
# Fewer measurements than this say nothing about an operation's factors.
MIN_ROWS = 8
_TILE_ROWS = (0, 64, 128)
# A tile must make the fit better by this much of its error to be believed.
_TILE_GAIN = 0.002
# Expert tables in this format do not differ with the routing: tokens are taken to choose independently.
_INDEPENDENT = frozenset({"moe_mxfp4"})

Row = LayerTime
# Factors by the name of their field.
Found = dict[str, Any]
# Factors by name: (first guess, least, most).
Start = dict[str, tuple[float, float, float]]
Model = Callable[[Floats], Floats]


def fit_gpu(
    rows: Sequence[Row],
    gpu: Gpu,
    die: GpuDie,
    *,
    source: str,
    as_of: date,
    tiles: str = "",
    wide: Sequence[Row] = (),
) -> Efficiency:
    """Factors of ``gpu`` from measured layers (their ``ops``), with errors of the fitted rows as ``rel_error``.

    ``tiles``: the engine's rule for tiles that the 16-bit experts were timed with ('' = another kernel). ``wide``: layers of
    few wide experts in 16 bits, of which only the experts are looked at, for their compute.

    Raises CoralError where dense products or element-wise work are not measured: nothing can be profiled without.
    """
    eff = _blank(gpu, die, source, as_of)
    eff = replace(eff, **_fit_gemm(_with(rows, "gemm", "dense matrix products"), eff))
    eff = replace(eff, **_fit_element_wise(_with(rows, "ew", "element-wise work"), eff))
    if any("attn" in row.ops for row in rows):
        eff = replace(eff, **_fit_attention(rows, gpu, eff))
    for group in ("moe_bf16", "moe_mxfp4"):
        mine = [row for row in rows if row.ops.get("moe") and _moe_group(row) == group]
        if len(mine) >= MIN_ROWS:
            is_engines = group == "moe_bf16"
            known = MoeFactors(1.0, 1.0, 0.0, 1.0, 1.0, tiles=tiles if is_engines else "")
            experts: Found = {group: _fit_experts(mine, wide if is_engines else (), gpu, eff, group, known)}
            eff = replace(eff, **experts)
    small, large = _fit_all_reduce(rows)
    eff = replace(eff, all_reduce=small, all_reduce_large=large)
    eff = replace(eff, provenance=dict.fromkeys(_groups(eff), Provenance.FITTED))
    return replace(eff, rel_error=layer_errors(rows, gpu, eff))


def layer_errors(rows: Sequence[Row], gpu: Gpu, eff: Efficiency) -> dict[str, float]:
    """Mean relative error of whole layers per phase; a phase without whole layers has none."""
    table = check_layers([replace(row, source="", is_fitted=True) for row in rows], {gpu.gpu: gpu}, {gpu.gpu: eff})
    return {line.phase: line.mape / 100 for line in table.lines if line.op == LAYER and line.split == FITTED}


def left_out_errors(
    rows: Sequence[Row], gpu: Gpu, die: GpuDie, *, source: str, as_of: date
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Mean relative error of whole layers per phase over models that the fit has not seen, and these models: each in turn
    is left out, the rest fitted. A model whose format nothing else has cannot be told; with one model there is none."""
    models = {row.model.model for row in rows}
    found: dict[str, list[tuple[float, int]]] = {}
    told: list[str] = []
    for name in sorted(models) if len(models) > 1 else ():
        rest, mine = [r for r in rows if r.model.model != name], [r for r in rows if r.model.model == name]
        eff = fit_gpu(rest, gpu, die, source=source, as_of=as_of)
        # A format or a tensor parallelism that only this model was measured in has no factors without it.
        errors = layer_errors(mine, gpu, eff)
        told += [name] if errors else []
        for phase, error in errors.items():
            found.setdefault(phase, []).append((error, sum(row.phase == phase for row in mine)))
    means = {
        phase: sum(error * count for error, count in parts) / sum(count for _, count in parts)
        for phase, parts in found.items()
    }
    return means, tuple(told)


def _blank(gpu: Gpu, die: GpuDie, source: str, as_of: date) -> Efficiency:
    peak = gpu.bf16_dense_tflops or gpu.fp16_dense_tflops
    if peak is None:
        raise CoralError(f"{gpu.gpu}: its peak compute is not known", remedy="add bf16_dense_tflops to its row")
    return Efficiency(
        gpu=gpu.gpu, peak_bf16_tflops=peak, memory_bandwidth_gb_per_s=gpu.memory_bandwidth_gb_per_s,
        p=1.0, mfu_gemm=1.0, mbu_gemm=1.0, tau_gemm_ms=0.0, mfu_attn=None, mbu_attn=None, tau_attn_ms=None,
        tau_attn_prefill_ms=None, moe_bf16=None, moe_mxfp4=None, all_reduce={}, ew_c=0.0, tau_ew_ms=0.0, provenance={},
        rel_error={}, source=source, as_of=as_of, sm_count=die.sm_count, l2_mib=die.l2_mib,
    )  # fmt: skip


def _groups(eff: Efficiency) -> list[str]:
    there = {"attn": eff.mfu_attn, "moe_bf16": eff.moe_bf16, "moe_mxfp4": eff.moe_mxfp4}
    return ["gemm", *(name for name, value in there.items() if value is not None), *(f"ar{n}" for n in eff.all_reduce)]


def _with(rows: Sequence[Row], op: str, what: str) -> list[Row]:
    found = [row for row in rows if row.ops.get(op)]
    if len(found) < MIN_ROWS:
        raise CoralError(
            f"{counted(len(found), 'row measures', 'rows measure')} {what} ({op}); a fit needs {MIN_ROWS}",
            remedy="measure more batches or lengths",
        )
    return found


def _shape(row: Row) -> ModelShape:
    return ModelShape(row.model, row.weight_dtype, "bf16")


def _moe_group(row: Row) -> str:
    return "moe_mxfp4" if row.weight_dtype in ("mxfp4", "int4") else "moe_bf16"


def _tokens(rows: Sequence[Row]) -> Floats:
    return np.array([float(row.tokens) for row in rows])


def _solve(model: Model, rows: Sequence[Row], op: str, start: Start) -> dict[str, float]:
    """Factors (name -> value) that bring ``model`` nearest to the rows' ``op``; ``start``: (first guess, least, most)."""
    from scipy.optimize import least_squares

    measured = np.array([row.ops[op] for row in rows])
    is_prefill = np.array([row.phase is Phase.PREFILL for row in rows])
    weight = np.ones(len(rows))
    if 0 < is_prefill.sum() < len(rows):
        weight = np.sqrt(np.where(is_prefill, 0.5 / is_prefill.mean(), 0.5 / (~is_prefill).mean()))
    first, least, most = (np.array(column) for column in zip(*start.values(), strict=True))
    found = least_squares(
        lambda x: weight * np.log(model(x) / measured),
        first, bounds=(least, most), loss="soft_l1", f_scale=_ROBUST, x_scale=np.maximum(np.abs(first), 1e-3),
    )  # fmt: skip
    return dict(zip(start, (float(value) for value in found.x), strict=True))


def _fit_gemm(rows: Sequence[Row], eff: Efficiency) -> Found:
    width = 7
    k, m, weights, there = (np.zeros((len(rows), width)) for _ in range(4))
    for i, row in enumerate(rows):
        shape = _shape(row)
        kind = shape.kinds[-1]
        for j, gemm in enumerate((*shape.attention_gemms(row.tp), *shape.feed_forward_gemms(kind, row.tp))):
            k[i, j], m[i, j], weights[i, j], there[i, j] = gemm.k, gemm.m, gemm.weight_bytes, 1
    n, peak = _tokens(rows)[:, None], Peak.of(eff)

    def model(x: Floats) -> Floats:
        return np.sum(there * kernels.gemm_ms(n, k, m, weights, peak, GemmFactors(*x)), axis=1)

    found = _solve(
        model, rows, "gemm",
        {"mfu": (0.8, 0.05, 1), "mbu": (0.85, 0.05, 1), "tau": (0.004, 0, 0.2), "p": (3, 1, 20), "fill": (100, 0, 2000)},
    )  # fmt: skip
    return {
        "mfu_gemm": found["mfu"], "mbu_gemm": found["mbu"], "tau_gemm_ms": found["tau"], "p": found["p"],
        "gemm_fill": found["fill"],
    }  # fmt: skip


def _fit_element_wise(rows: Sequence[Row], eff: Efficiency) -> Found:
    n, peak = _tokens(rows), Peak.of(eff)
    hidden = np.array([float(row.model.hidden) for row in rows])
    inner = np.array([0.0 if row.model.is_moe else row.model.intermediate / row.tp for row in rows])

    def model(x: Floats) -> Floats:
        return kernels.element_wise_ms(n, hidden, inner, peak, x[0], x[1]) + x[2]

    return _solve(model, rows, "ew", {"ew_c": (10, 0, 200), "ew_inner_c": (4, 0, 200), "tau_ew_ms": (0.007, 0, 0.5)})


def _fit_attention(rows: Sequence[Row], gpu: Gpu, eff: Efficiency) -> Found:
    parts = {
        phase: [r for r in rows if r.phase is phase and r.ops.get("attn")] for phase in (Phase.PREFILL, Phase.DECODE)
    }
    for phase, mine in parts.items():
        if len(mine) < MIN_ROWS:
            raise CoralError(
                f"{counted(len(mine), 'row measures', 'rows measure')} {phase.value} attention; a fit needs {MIN_ROWS}",
                remedy="measure more of it",
            )
    # Any values: the work of attention does not depend on them.
    probe = replace(eff, mfu_attn=1.0, mbu_attn=1.0, tau_attn_ms=0.0, tau_attn_prefill_ms=0.0)
    peak, loop = Peak.of(eff), Peak.of(eff, in_loop=True)
    flop, moved, launches = np.array([_prefill_work(row, gpu, probe) for row in parts[Phase.PREFILL]]).T

    def prefill(x: Floats) -> Floats:
        factors = AttentionFactors(x[0], 1.0, 0.0, x[1], x[2], x[3])
        return kernels.prefill_attention_ms(flop, moved, launches, peak, factors)

    long = _solve(
        prefill, parts[Phase.PREFILL], "attn",
        {"mfu": (0.6, 0.02, 1), "tau": (0.01, 0, 0.5), "prep": (0.01, 0, 0.2), "passes": (1, 0, 20)},
    )  # fmt: skip
    held = np.array([_kv_bytes(row) for row in parts[Phase.DECODE]])

    def decode(x: Floats) -> Floats:
        factors = AttentionFactors(1.0, x[0], x[1], 0.0, l2_gain=x[2])
        return np.mean(kernels.decode_attention_ms(held, loop, factors), axis=1)

    short = _solve(
        decode, parts[Phase.DECODE], "attn", {"mbu": (0.85, 0.05, 1), "tau": (0.012, 0, 0.5), "l2_gain": (1.5, 1, 8)}
    )
    return {
        "mfu_attn": long["mfu"], "tau_attn_prefill_ms": long["tau"], "attn_prep_ms": long["prep"],
        "attn_passes": long["passes"], "mbu_attn": short["mbu"], "tau_attn_ms": short["tau"],
        "attn_l2_gain": short["l2_gain"],
    }  # fmt: skip


def _prefill_work(row: Row, gpu: Gpu, probe: Efficiency) -> list[float]:
    """Mean over the model's layers of FLOP, bytes and small kernels."""
    model = Roofline(gpu, probe, _shape(row))
    n, kinds = np.array([float(row.tokens)]), model.shape.kind_of_layer
    work = {k: model.prefill_attention_work(n, k.window, row.tp, float(row.context)) for k in model.shape.kinds}
    return [float(np.mean([np.ravel(work[kind][i])[0] for kind in kinds])) for i in range(3)]


def _kv_bytes(row: Row) -> list[float]:
    """KV bytes of each layer of the first few, in which every window pattern repeats."""
    spec = row.model if row.attention_kv_heads is None else replace(row.model, kv_heads=row.attention_kv_heads)
    shape = ModelShape(spec, row.weight_dtype, "bf16")
    per_kind = dict(zip(shape.kinds, shape.kv_bytes_per_sequence(float(row.context), row.tp), strict=True))
    return [row.tokens * float(per_kind[kind]) for kind in shape.kind_of_layer[:12]]


def _fit_experts(
    rows: Sequence[Row], wide: Sequence[Row], gpu: Gpu, eff: Efficiency, group: str, known: MoeFactors
) -> MoeFactors:
    """Factors of one group's experts; ``known`` names their tiles. Of another kernel each tile is fitted, the best kept.

    All factors come from ``rows``; those of compute are then fitted again to ``rows`` and ``wide`` together.
    """
    both = [*rows, *wide]
    work, loop = _expert_work(both, gpu, eff), Peak.of(eff, in_loop=True)
    start: Start = {
        "mfu": (0.6, 0.02, 1), "mbu": (0.9, 0.05, 1), "tau_ms": (0.03, 0, 0.5), "p": (1.3, 1, 20), "l2_gain": (1.5, 1, 8),
        "fill": (100, 0, 2000),
    }  # fmt: skip
    if group not in _INDEPENDENT:
        start["skew"] = (0.9, 0.3, 1)
    compute = {name: start[name] for name in ("mfu", "fill")}
    measured = np.array([row.ops["moe"] for row in both])
    best: tuple[float, MoeFactors] | None = None
    for tile_rows in (0,) if known.tiles else _TILE_ROWS:
        made = _expert_factors(replace(known, tile_rows=tile_rows), rows, _expert_work(rows, gpu, eff), loop, start)
        if wide:
            made = _expert_factors(made, both, work, loop, compute)
        error = float(np.mean(np.abs(np.log(kernels.experts_ms(work, loop, made) / measured))))
        if best is None or error < best[0] - _TILE_GAIN:
            best = (error, made)
    assert best is not None
    return best[1]


def _expert_factors(known: MoeFactors, rows: Sequence[Row], work: ExpertWork, loop: Peak, start: Start) -> MoeFactors:
    """``known`` with the factors in ``start`` fitted, and that of tuned tiles where there are both kinds of shapes."""
    is_tuned = np.asarray(work.is_tuned) > 0
    if known.tiles and is_tuned.any() and not is_tuned.all():
        start = start | {"mfu_tuned": start["mfu"]}

    def factors(x: Floats) -> MoeFactors:
        values: Found = dict(zip(start, (float(value) for value in x), strict=True))
        return replace(known, **values)

    found = _solve(lambda x: kernels.experts_ms(work, loop, factors(x)), rows, "moe", start)
    return factors(np.array(list(found.values())))


def _expert_work(rows: Sequence[Row], gpu: Gpu, eff: Efficiency) -> ExpertWork:
    works = [Roofline(gpu, eff, _shape(row)).expert_work(np.array(float(row.tokens)), row.tp) for row in rows]
    return ExpertWork(*(np.array([float(getattr(one, f.name)) for one in works]) for f in fields(ExpertWork)))


def _fit_all_reduce(
    rows: Sequence[Row],
) -> tuple[dict[int, tuple[float, float]], dict[int, tuple[float, float]]]:
    """(alpha ms, beta GB/s) by number of GPUs, for small and for large messages."""
    small: dict[int, tuple[float, float]] = {}
    large: dict[int, tuple[float, float]] = {}
    for tp in sorted({row.tp for row in rows if row.ops.get("ar")}):
        mine = [row for row in rows if row.tp == tp and row.ops.get("ar")]
        for found, is_large in ((small, False), (large, True)):
            part = [row for row in mine if (_message(row) >= kernels.CUSTOM_ALL_REDUCE_BYTES) == is_large]
            if len(part) >= MIN_ROWS:
                found[tp] = _fit_line(part)
    # Without small messages there is no latency to speak of, and the large ones alone would be a guess for the rest.
    return small, {tp: pair for tp, pair in large.items() if tp in small}


def _message(row: Row) -> float:
    return 2.0 * row.tokens * row.model.hidden


def _fit_line(rows: Sequence[Row]) -> tuple[float, float]:
    message = np.array([_message(row) for row in rows])
    rate = max(message / np.array([row.ops["ar"] / 2 for row in rows])) / kernels.BYTES_PER_MS_PER_GB_PER_S
    start = {"alpha": (min(row.ops["ar"] for row in rows) / 4, 0.0, 100.0), "beta": (rate, rate / 100, rate * 100)}
    found = _solve(lambda x: 2 * kernels.all_reduce_ms(message, (x[0], x[1])), rows, "ar", start)
    return found["alpha"], found["beta"]
