"""What ``coral profiles check`` and ``fit`` do: gather measurements, compare or fit, and put the answer into tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from catalogs.catalog import Catalog, efficiency_to_row, load_catalog, load_dies
from catalogs.derive import to_csv
from catalogs.errors import CoralError, UnknownNameError
from catalogs.layer_times import LayerTime, StepTime, read_layer_times, shared_helix, shared_layer_grid, shared_points
from catalogs.silicon import (
    FITTED_MODELS,
    FITTED_WIDE,
    HELD_OUT_WIDE,
    SYSTEMS,
    is_installed,
    silicon_layer_times,
    silicon_steps,
    tile_rule,
)
from catalogs.types import Efficiency, GpuDie
from tasks.profiling.check import LAYER, Checked, ErrorLine, check_layers, check_steps, joined
from tasks.profiling.fit import fit_gpu, layer_errors, left_out_errors
from tasks.profiling.memory import ProfileSettings

# Value of --data that stands for the kernel tables of the extra.
SILICON = "silicon"
NO_SILICON = (
    "not checked: models that the factors were not fitted to, and whole serving runs; for these "
    "pip install 'coral-planner[silicon]'"
)
_MEASURED_SYSTEMS = ("H100-SXM", "H200-SXM")


def check_all(gpus: Sequence[str] = ()) -> Checked:
    """Errors of the shipped factors against every measured set there is, of ``gpus`` (default: all).

    What is not on this machine is left out with a note. Raises CoralError where nothing is, UnknownNameError for a GPU without
    factors.
    """
    catalog = load_catalog()
    wanted = [_known(catalog, name) for name in gpus] or list(catalog.efficiencies)
    notes: list[str] = []
    parts, steps, skipped = _shared(catalog, wanted, notes)
    if not parts and not is_installed():
        raise CoralError(
            f"nothing to compare with: {notes[0]}",
            remedy="pip install 'coral-planner[silicon]', which has kernel tables, or set CORAL_SHARED_DATA",
        )
    if not is_installed():
        notes.append(NO_SILICON)
    else:
        tabulated = [gpu for gpu in SYSTEMS.values() if gpu in wanted and gpu in catalog.efficiencies]
        held_out = [row for gpu in tabulated for row in silicon_layer_times(catalog, gpu)]
        for gpu in tabulated:
            for wide in (FITTED_WIDE, HELD_OUT_WIDE):
                named = wide.partition("/")[2].removesuffix("-v0.1")
                held_out += silicon_layer_times(catalog, gpu, (wide,), source=f"kernel tables, {named}")
        parts.append(check_layers(held_out, catalog.gpus, catalog.efficiencies))
        steps += silicon_steps(catalog, [gpu for gpu in _MEASURED_SYSTEMS if gpu in wanted])
    parts.append(check_steps(steps, catalog.gpus, catalog.efficiencies, ProfileSettings()))
    return joined([*parts, Checked((), (*notes, *skipped))])


def _shared(
    catalog: Catalog, wanted: Sequence[str], notes: list[str]
) -> tuple[list[Checked], list[StepTime], Sequence[str]]:
    """(layers compared, whole steps, points left out) of the raw data; all empty, and a note of it, where it is not here."""
    try:
        measured = [shared_layer_grid(catalog), shared_helix(catalog)]
        points, skipped = shared_points(catalog)
    except CoralError as error:
        notes.append(f"not checked: layers and points of the raw data; {error}")
        return [], [], ()
    parts = [check_layers(_of(rows, wanted), catalog.gpus, catalog.efficiencies) for rows in measured]
    return parts, [point for point in points if point.gpu in wanted], skipped


def _known(catalog: Catalog, name: str) -> str:
    gpu = catalog.gpu_names.encode(name, scope="efficiency")
    if gpu not in catalog.efficiencies:
        raise UnknownNameError("GPU with efficiency factors", gpu, catalog.efficiencies)
    return gpu


def _of(rows: Iterable[LayerTime], gpus: Sequence[str]) -> list[LayerTime]:
    return [row for row in rows if row.gpu in gpus]


@dataclass(frozen=True)
class Fit:
    """Factors of a GPU, how far off they are, and their row of the efficiency table.

    ``held_out`` are mean errors per phase on models that the fit has not seen; empty where there are none.
    """

    efficiency: Efficiency
    fitted: dict[str, float]
    held_out: dict[str, float]
    held_out_how: str
    lines: tuple[ErrorLine, ...]
    row: dict[str, Any]

    def csv(self) -> str:
        """The row with its heading, as a file that a scenario can name under ``efficiency``."""
        return to_csv("efficiency", [self.row])


def fit(gpu: str, data: str, *, sm_count: int | None = None, l2_mib: float | None = None) -> Fit:
    """Fit ``gpu`` to the layers in the file ``data``, or to the kernel tables (``silicon``).

    Raises InputError with every fault of the file, CoralError where it does not suffice for a fit.
    """
    catalog = load_catalog()
    name = catalog.gpu_names.encode(gpu, scope="efficiency")
    card = catalog.gpus[name]
    known = load_dies().get(name, GpuDie())
    die = GpuDie(sm_count or known.sm_count, l2_mib or known.l2_mib)
    tiles, wide_rows = "", tuple[LayerTime, ...]()
    if data == SILICON:
        tiles, wide_rows = tile_rule(name), silicon_layer_times(catalog, name, (FITTED_WIDE,))
        rows, others = silicon_layer_times(catalog, name, FITTED_MODELS), silicon_layer_times(catalog, name)
        source = "fit: kernel tables of aiconfigurator-core 0.12.0 by layer"
    else:
        path = Path(data)
        rows, others = read_layer_times(path, catalog, gpu=name), ()
        source = f"fit: {path.name}"
    eff = fit_gpu(rows, card, die, source=source, as_of=date.today(), tiles=tiles, wide=wide_rows)
    fitted = dict(eff.rel_error)
    if others:
        held_out, how = layer_errors(others, card, eff), "models held out of the fit"
    else:
        held_out, told = left_out_errors(rows, card, die, source=source, as_of=eff.as_of)
        how = f"{', '.join(told)}, each left out in turn"
    eff = replace(eff, rel_error=_stated_errors(fitted, held_out))
    lines = check_layers([*rows, *others], {name: card}, {name: eff}).lines
    said = how if held_out else "the fitted rows alone, doubled: one model"
    row = efficiency_to_row(eff, rel_error_source=f"MAPE per layer, {said}")
    return Fit(eff, fitted, held_out, how, lines, row)


def _stated_errors(fitted: dict[str, float], held_out: dict[str, float]) -> dict[str, float]:
    """What the row states per phase: the error on unseen models, at least that of the fitted rows; where there are none,
    twice that of the fitted rows."""
    errors: dict[str, float] = {}
    for phase in ("prefill", "decode"):
        if phase not in fitted:
            raise CoralError(
                f"no row measures a whole {phase} layer (all of gemm, attn, moe, ar, ew)",
                remedy=f"fill every column of some {phase} rows, 0 where the model has no such operation",
            )
        errors[phase] = round(min(1.0, max(fitted[phase], held_out.get(phase, 2 * fitted[phase]), 1e-3)), 4)
    return errors


def main_lines(lines: Iterable[ErrorLine]) -> list[ErrorLine]:
    """Whole layers, steps and first tokens, without the single operations."""
    return [line for line in lines if line.op not in ("gemm", "attn", "moe", "ar", "ew", "lm")]


def op_mapes(lines: Iterable[ErrorLine], line: ErrorLine) -> dict[str, float]:
    """MAPE of each operation of the layers that ``line`` sums up."""
    key = (line.source, line.split, line.gpu, line.phase)
    same = [other for other in lines if (other.source, other.split, other.gpu, other.phase) == key]
    return {other.op: other.mape for other in same if line.op == LAYER and other.op != LAYER}
