"""Fits: known factors are found again, what is missing is said, and the shipped table is what fitting gives."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from profiling_cases import EFF, EXPERTS, GPU, SPEC, catalog, oracle_layer_ms

from catalogs.catalog import efficiency_from_row, efficiency_to_row
from catalogs.derive import to_csv
from catalogs.errors import CoralError
from catalogs.layer_times import LAYER_OPS, LayerTime
from catalogs.silicon import is_installed
from catalogs.tables import DATA_DIR, parse_table
from catalogs.types import GpuDie, MoeFactors, Phase, Provenance
from flows.efficiency import efficiency_table
from tasks.profiling.check import layer_ms
from tasks.profiling.fit import fit_gpu, layer_errors, left_out_errors

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
TODAY = date(2026, 7, 30)
DENSE = replace(SPEC, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128)
WIDE = replace(DENSE, model="acme/wide", alias="wide", hidden=8192, intermediate=28672, heads=64)
MOE = replace(
    EXPERTS, hidden=2048, heads=32, kv_heads=4, head_dim=128, n_experts=64, experts_per_token=4, moe_intermediate=768,
    shared_experts=0, dense_layers=0,
)  # fmt: skip
TRUE = replace(
    EFF, gemm_fill=300.0, sm_count=100, l2_mib=50.0, attn_prep_ms=0.01, attn_passes=2.0, attn_l2_gain=2.0, ew_inner_c=4.0,
    moe_bf16=MoeFactors(0.6, 0.9, 0.03, 0.85, 1.5, 64, 200.0, 2.0), moe_mxfp4=None,
    all_reduce_large={2: (0.03, 180.0), 4: (0.04, 140.0), 8: (0.05, 130.0)},
)  # fmt: skip
POINTS = [(Phase.PREFILL, 1, c) for c in (128, 512, 1024, 2048, 4096, 8192)]
POINTS += [(Phase.PREFILL, 4, 1024), (Phase.PREFILL, 2, 2048)]
POINTS += [(Phase.DECODE, b, c) for c in (512, 2048, 8192) for b in (1, 2, 4, 8, 16, 32, 64, 128, 256)]


def measured(specs=(DENSE, WIDE, MOE), eff=TRUE, noise: float = 0.0, gpu=GPU) -> list[LayerTime]:
    """Layers of ``specs`` as a loop would measure them on a GPU with the factors ``eff``."""
    rng = np.random.default_rng(5)
    rows = []
    for spec in specs:
        for tp in (1, 2, 4, 8):
            for phase, batch, context in POINTS:
                tokens = batch * context if phase is Phase.PREFILL else batch
                row = LayerTime(
                    "made", 0, "X100", spec, "bf16", tp, phase, tokens, batch, context, {}, None, None, True
                )
                times = layer_ms(row, gpu, eff)
                ops = {op: times[op] * float(np.exp(noise * rng.normal())) for op in LAYER_OPS}
                rows.append(replace(row, ops=ops, total=sum(ops.values())))
    return rows


def fitted(rows, die: GpuDie | None = None):
    return fit_gpu(rows, GPU, die or GpuDie(100, 50.0), source="made", as_of=TODAY)


def test_known_factors_are_found_again() -> None:
    found = fitted(measured())
    for name in ("p", "mfu_gemm", "mbu_gemm", "tau_gemm_ms", "gemm_fill", "mfu_attn", "mbu_attn", "tau_attn_ms"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    for name in ("attn_passes", "attn_l2_gain", "ew_c", "ew_inner_c", "tau_ew_ms"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    # All models launch one kernel before attention: only the sum of the two fixed times is seen.
    fixed = found.tau_attn_prefill_ms + found.attn_prep_ms
    assert fixed == pytest.approx(TRUE.tau_attn_prefill_ms + TRUE.attn_prep_ms, rel=0.02)
    assert found.moe_bf16 is not None
    assert found.moe_bf16.tile_rows == 64
    for name in ("mfu", "mbu", "tau_ms", "skew", "p", "fill", "l2_gain"):
        assert getattr(found.moe_bf16, name) == pytest.approx(getattr(TRUE.moe_bf16, name), rel=0.03), name
    for n, pair in TRUE.all_reduce.items():
        assert found.all_reduce[n] == pytest.approx(pair, rel=0.02)
        assert found.all_reduce_large[n] == pytest.approx(TRUE.all_reduce_large[n], rel=0.02)
    assert set(found.provenance.values()) == {Provenance.FITTED}
    assert "moe_mxfp4" not in found.provenance
    assert found.rel_error == pytest.approx({"prefill": 0.0, "decode": 0.0}, abs=2e-3)


def test_tuned_and_default_tiles_are_told_apart() -> None:
    """Tiles of the engine's own, tuned where an expert is 384 wide (tp 2), and wide experts that were timed besides."""
    engine = MoeFactors(0.4, 0.9, 0.03, 0.85, 1.5, fill=200.0, l2_gain=2.0, mfu_tuned=0.7, tiles="vllm-0.24")
    gpu = replace(GPU, tuned_experts=((64, 384), (8, 3584)))
    true = replace(TRUE, moe_bf16=engine)
    few = replace(
        MOE, model="acme/few", alias="few", hidden=4096, n_experts=8, experts_per_token=2, moe_intermediate=14336
    )
    rows, wide = measured((MOE,), true, gpu=gpu), measured((few,), true, gpu=gpu)
    found = fit_gpu(
        rows, gpu, GpuDie(100, 50.0), source="made", as_of=TODAY, tiles="vllm-0.24", wide=wide
    ).moe_bf16  # fmt: skip
    assert found is not None
    assert found.tiles == "vllm-0.24"
    for name in ("mfu", "mfu_tuned", "mbu", "tau_ms", "skew", "p", "fill", "l2_gain"):
        assert getattr(found, name) == pytest.approx(getattr(engine, name), rel=0.05), name


def test_noise_stays_noise() -> None:
    found = fitted(measured(noise=0.05))
    assert layer_errors(measured(), GPU, found) == pytest.approx({"prefill": 0.0, "decode": 0.0}, abs=0.02)
    assert found.mfu_gemm == pytest.approx(TRUE.mfu_gemm, rel=0.03)


def test_a_stray_measurement_moves_little() -> None:
    rows = measured()
    stray = replace(rows[3], ops=rows[3].ops | {"gemm": 20 * rows[3].ops["gemm"]})
    found = fitted([*rows[:3], stray, *rows[4:]])
    assert found.mfu_gemm == pytest.approx(TRUE.mfu_gemm, rel=0.01)


def test_what_was_not_measured_has_no_factors() -> None:
    rows = [replace(row, ops={op: row.ops[op] for op in ("gemm", "ew")}, total=None) for row in measured((DENSE,))]
    found = fitted(rows, GpuDie())
    assert (found.mfu_attn, found.moe_bf16, found.moe_mxfp4, found.all_reduce) == (None, None, None, {})
    assert found.provenance == {"gemm": Provenance.FITTED}
    assert found.rel_error == {}


def test_small_messages_alone_give_one_rate() -> None:
    rows = [row for row in measured((DENSE,)) if row.phase is Phase.DECODE or row.tokens <= 512]
    assert all(2 * row.tokens * 4096 < 8 * 2**20 for row in rows)
    rows += [row for row in measured((WIDE,)) if row.tp == 1]
    found = fitted(rows)
    assert found.all_reduce[2] == pytest.approx(TRUE.all_reduce[2], rel=0.02)
    assert found.all_reduce_large == {}


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (lambda row: row.phase is Phase.PREFILL, "0 rows measure decode attention"),
        (lambda row: row.phase is Phase.DECODE, "0 rows measure prefill attention"),
        (
            lambda row: row.tp == 1 and row.batch == 1 and row.phase is Phase.PREFILL,
            "6 rows measure dense matrix products",
        ),
    ],
)
def test_too_few_rows_are_refused(keep, said: str) -> None:
    with pytest.raises(CoralError, match=said):
        fitted([row for row in measured((DENSE,)) if keep(row)])


def test_models_left_out_in_turn() -> None:
    # The factors describe every model exactly: leaving one out costs nothing. The experts' only model cannot be told.
    errors, told = left_out_errors(measured(), GPU, GpuDie(100, 50.0), source="made", as_of=TODAY)
    assert told == ("acme/six", "acme/wide")
    assert errors == pytest.approx({"prefill": 0.0, "decode": 0.0}, abs=5e-3)
    assert left_out_errors(measured((DENSE,)), GPU, GpuDie(100, 50.0), source="made", as_of=TODAY) == ({}, ())
    # A model that is twice as slow as the others is found out.
    slow = [replace(r, ops={o: 2 * t for o, t in r.ops.items()}, total=2 * r.total) for r in measured((WIDE,))]
    errors, _ = left_out_errors([*measured((DENSE,)), *slow], GPU, GpuDie(100, 50.0), source="made", as_of=TODAY)
    assert errors["prefill"] > 0.3


def test_the_row_reads_back_as_the_factors() -> None:
    found = fitted(measured())
    row = efficiency_to_row(found, rel_error_source="made")
    table = parse_table(
        to_csv("efficiency", [row | {"rel_error_prefill": 0.01, "rel_error_decode": 0.02}]), "efficiency"
    )
    again = efficiency_from_row(table.require_clean().rows[0])
    assert again.rel_error == {"prefill": 0.01, "decode": 0.02}
    assert again.provenance == found.provenance
    assert again.all_reduce_large[4] == pytest.approx(found.all_reduce_large[4], rel=1e-4)
    probe = measured((DENSE, MOE))
    for row in (probe[3], probe[20], probe[-1]):
        assert layer_ms(row, GPU, again) == pytest.approx(layer_ms(row, GPU, found), rel=1e-3)


def test_neutral_refinements_leave_the_plain_form() -> None:
    # Defaults of the refining factors: the layer is the plain formulas', written apart from the code.
    row = replace(measured((DENSE,), EFF)[5], tp=2)
    modelled = layer_ms(row, GPU, EFF, in_loop=False)
    plain = oracle_layer_ms(DENSE, 0, row.tokens, 2, row.phase, row.context, EFF)
    assert sum(modelled[op] for op in LAYER_OPS) == pytest.approx(plain)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared measurements are not here: set CORAL_SHARED_DATA")
def test_the_shipped_factors_are_what_fitting_gives() -> None:
    shipped = parse_table((DATA_DIR / "efficiency.csv").read_text(encoding="utf-8"), "efficiency").require_clean().rows
    made = parse_table(to_csv("efficiency", efficiency_table()), "efficiency").require_clean().rows
    assert [row["gpu"] for row in made] == [row["gpu"] for row in shipped]
    unchecked = set() if is_installed() else {"rel_error_prefill", "rel_error_decode"}
    for mine, theirs in zip(made, shipped, strict=True):
        for name in mine.keys() - unchecked:
            # Other builds of the linear algebra end a fit a little elsewhere.
            same = pytest.approx(theirs[name], rel=1e-2, abs=2e-3) if isinstance(theirs[name], float) else theirs[name]
            assert mine[name] == same, (mine["gpu"], name)


def test_dies_are_those_of_catalogued_gpus() -> None:
    from catalogs.catalog import load_dies

    assert set(load_dies()) <= set(catalog().gpus)
    assert load_dies()["H100-SXM"] == GpuDie(132, 50.0)
    for name, eff in catalog().efficiencies.items():
        if eff.sm_count is not None:
            assert GpuDie(eff.sm_count, eff.l2_mib) == load_dies()[name]
