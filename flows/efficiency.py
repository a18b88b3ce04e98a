"""Makes the shipped efficiency factors again: ``python -m flows.efficiency`` rewrites ``catalogs/data/efficiency.csv``,
``--check`` only compares (exit 3 on a difference).

H100, H200, A100 (80 GB) and L40S are fitted here to the raw collection's kernel tables, their 16-bit experts to those of
Mixtral-8x7B as well. These, and the models that no fit has seen, whose errors are stated, are in the extra ``silicon``. T4,
V100, A100 (40 GB) and most of L4 stay as the raw collection gives them (fits to Helix's layer times). What was measured
nowhere is borrowed or derived from L40S, and says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from catalogs.catalog import efficiency_from_row, efficiency_to_row, load_catalog, load_dies
from catalogs.derive import COLLECTED_ON, efficiency_rows, raw_data_dir, read_raw, to_csv
from catalogs.layer_times import by_gpu, shared_layer_grid, shared_points
from catalogs.silicon import FITTED_WIDE, is_installed, silicon_layer_times, tile_rule
from catalogs.tables import DATA_DIR, parse_table
from catalogs.types import Efficiency, MoeFactors, Provenance
from tasks.profiling.check import check_steps
from tasks.profiling.fit import fit_gpu, layer_errors
from tasks.profiling.memory import ProfileSettings

SOURCE = "fit: kernel tables of aiconfigurator-core 0.12.0 (vLLM 0.24.0; A100 0.14.0) by layer"
HELD_OUT = "MAPE per layer, held-out models"
# A share of peak compute that is rescaled from another GPU's is never taken above this.
_MOST_SHARE = 0.95
_ERRORS = ("rel_error_prefill", "rel_error_decode")


def fitted() -> dict[str, Efficiency]:
    """The four GPUs with kernel tables, by canonical id; errors are those of the fitted rows. Without the extra ``silicon``
    factors of 16-bit experts are those of the committed table."""
    catalog, dies = load_catalog(), load_dies()
    rows = by_gpu(shared_layer_grid(catalog))
    as_of = catalog.gpus["L40S"].as_of
    made = {}
    for gpu, mine in rows.items():
        card, die, rule = catalog.gpus[gpu], dies[gpu], tile_rule(gpu)
        wide = silicon_layer_times(catalog, gpu, (FITTED_WIDE,)) if is_installed() else ()
        made[gpu] = fit_gpu(mine, card, die, source=SOURCE, as_of=as_of, tiles=rule, wide=wide)
        if not wide:
            made[gpu] = replace(made[gpu], moe_bf16=catalog.efficiencies[gpu].moe_bf16)
    return made


def efficiency_table() -> list[dict[str, Any]]:
    """All rows of the table, in the raw collection's order. Without the extra ``silicon`` the errors on held-out models
    are those of the committed table."""
    catalog = load_catalog()
    raw = raw_data_dir() / "perf"
    given = efficiency_rows(read_raw(raw / "efficiency.csv"), read_raw(raw / "errors.csv"), catalog.gpu_names)
    ours = fitted()
    l40s = ours["L40S"]
    ours["A100-80GB-SXM"] = _with_group(ours["A100-80GB-SXM"], "moe_mxfp4", l40s.moe_mxfp4, Provenance.BORROWED)
    made = []
    for row in given:
        gpu = row["gpu"]
        if gpu in ours:
            errors = held_out_errors(ours[gpu])
            made.append(efficiency_to_row(replace(ours[gpu], rel_error=errors), rel_error_source=HELD_OUT))
            continue
        kept = _read_back(row)
        source = row["rel_error_source"]
        if gpu in ("L4", "A10G"):
            kept = _from_l40s(kept, l40s, Provenance.DERIVED if gpu == "A10G" else Provenance.BORROWED)
        if gpu == "A100-40GB-SXM":
            kept = _all_reduce_of(kept, ours["A100-80GB-SXM"])
        if gpu == "A10G":
            kept, source = _derived_a10g(kept, l40s)
        made.append(efficiency_to_row(kept, rel_error_source=source))
    return [row | {"as_of": COLLECTED_ON} for row in made]


def held_out_errors(eff: Efficiency) -> dict[str, float]:
    """Mean error per phase on the models held out of the fit."""
    catalog = load_catalog()
    if not is_installed():
        return dict(catalog.efficiencies[eff.gpu].rel_error)
    rows = silicon_layer_times(catalog, eff.gpu)
    return {phase: round(error, 3) for phase, error in layer_errors(rows, catalog.gpus[eff.gpu], eff).items()}


def _read_back(row: Mapping[str, Any]) -> Efficiency:
    table = parse_table(to_csv("efficiency", [row]), "efficiency").require_clean()
    return efficiency_from_row(table.rows[0])


def _with_group(eff: Efficiency, group: str, factors: MoeFactors | None, ground: Provenance) -> Efficiency:
    changed: dict[str, Any] = {group: factors, "provenance": eff.provenance | {group: ground}}
    return replace(eff, **changed)


def _from_l40s(eff: Efficiency, l40s: Efficiency, ground: Provenance) -> Efficiency:
    """Experts (their share of compute scaled as that of dense products is) and all-reduces over 4 and 8 GPUs."""
    scale = eff.mfu_gemm / l40s.mfu_gemm
    for group, factors in (("moe_bf16", l40s.moe_bf16), ("moe_mxfp4", l40s.moe_mxfp4)):
        assert factors is not None
        eff = _with_group(
            eff, group, replace(factors, mfu=min(factors.mfu * scale, _MOST_SHARE), mfu_tuned=None), ground
        )
    wide = {n: l40s.all_reduce[n] for n in (4, 8)}
    large = {n: pair for n, pair in l40s.all_reduce_large.items() if n in wide}
    return replace(eff, all_reduce=eff.all_reduce | wide, all_reduce_large=large)


def _all_reduce_of(eff: Efficiency, donor: Efficiency) -> Efficiency:
    """All-reduces as the donor's, borrowed: both boards join eight GPUs by the same NVLink and switches, and only the
    donor's were measured."""
    ground = eff.provenance | {f"ar{n}": Provenance.BORROWED for n in donor.all_reduce}
    source = f"{eff.source}; all-reduce borrowed from {donor.gpu}"
    return replace(
        eff, all_reduce=donor.all_reduce, all_reduce_large=donor.all_reduce_large, provenance=ground, source=source
    )


def _derived_a10g(eff: Efficiency, l40s: Efficiency) -> tuple[Efficiency, str]:
    """Attention and element-wise work as L40S's, on its own die; its error in decode is that against published points,
    where it is greater than its donors'."""
    die = load_dies()["A10G"]
    assert l40s.mfu_attn is not None
    scale = eff.mfu_gemm / l40s.mfu_gemm
    names = (
        "mbu_attn", "tau_attn_ms", "tau_attn_prefill_ms", "attn_prep_ms", "attn_passes", "attn_l2_gain", "ew_c",
        "ew_inner_c", "tau_ew_ms",
    )  # fmt: skip
    shared: dict[str, Any] = {name: getattr(l40s, name) for name in names}
    attention = min(l40s.mfu_attn * scale, _MOST_SHARE)
    eff = replace(eff, mfu_attn=attention, sm_count=die.sm_count, l2_mib=die.l2_mib, **shared)
    catalog = load_catalog()
    points = [point for point in shared_points(catalog)[0] if point.gpu == eff.gpu]
    table = check_steps(points, catalog.gpus, {eff.gpu: eff}, ProfileSettings())
    measured = {line.phase: round(line.mape / 100, 3) for line in table.lines}
    errors = {phase: max(error, measured.get(phase, 0.0)) for phase, error in eff.rel_error.items()}
    return replace(
        eff, rel_error=errors
    ), "nothing fitted: the greater of its donors' held-out p90 and its published points"


def main() -> int:
    """Write the file, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    path = DATA_DIR / "efficiency.csv"
    text = to_csv("efficiency", efficiency_table())
    if path.read_text(encoding="utf-8") == text:
        return 0
    sys.stdout.write(f"{path.name}: {'differs' if check else 'written'}\n")
    if not check:
        path.write_text(text, encoding="utf-8")
    return 3 if check else 0


if __name__ == "__main__":
    sys.exit(main())
