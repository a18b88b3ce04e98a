"""Measurements of one's own attached to a scenario: node rates, and de-ratings from vLLM benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, InputError, UnknownNameError
from catalogs.measured import (
    CALIBRATION,
    RATES,
    MeasuredRate,
    measured_rates,
    merged_rows,
    read_measured_table,
    table_text,
)
from catalogs.scenario import load_scenario
from catalogs.scenario_files import SCENARIO_DIR, scenario_path
from catalogs.texts import write_text

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from catalogs.types import Workload
    from catalogs.vllm_bench import BenchResult
    from tasks.profiling.calibrate import Derate

_SECTIONS = {RATES: ("profiles", "measured.csv"), CALIBRATION: ("calibration", "calibration.csv")}


@dataclass(frozen=True, slots=True)
class RateRow:
    """A measured rate beside what the model says of that cell; ``modelled`` None: it says nothing can run there."""

    rate: MeasuredRate
    workload: str
    modelled_tok_per_s: float | None


@dataclass(frozen=True, slots=True)
class DerateRow:
    """A de-rating of one run, on ``gpu`` at ``tp``."""

    file: str
    gpu: str
    tp: int
    workload: str
    derate: Derate


@dataclass(frozen=True, slots=True)
class Attached:
    """Where rows were written, and whether the scenario had to be told of the file."""

    path: Path
    rows: int
    is_named_now: bool


def own_scenario(name_or_path: str | Path) -> Path:
    """The path of a scenario that may be written to. Raises CoralError for a shipped one."""
    path = scenario_path(name_or_path)
    if path.parent == SCENARIO_DIR:
        raise CoralError(
            f"{path.stem} is a shipped scenario", remedy="copy it, or `coral init DIR`, and name that scenario's path"
        )
    return path


def compared_rates(path: Path, loaded: LoadedScenario) -> list[RateRow]:
    """The rates in a file, each beside its modelled cell. Raises InputError with every fault of the file, CoralError for a
    rate that fits no cell; rates of models that the scenario does not serve are refused too, since nothing would use them."""
    from flows.build_inputs import resolve_inputs
    from flows.settings import BuildSettings
    from tasks.profiling.measured import with_measured
    from tasks.profiling.profile import profile_workload

    table = read_measured_table(path, RATES, loaded.catalog, path.name)
    rates, findings = measured_rates(table, loaded.catalog, loaded.node_configs)
    if findings:
        raise InputError(findings)
    inputs = resolve_inputs(BuildSettings(loaded.path, Path()), loaded)
    served = {workload.model.model for workload in loaded.workloads}
    for rate in rates:
        _check_used(rate, served, loaded)
    rows = []
    for item in inputs.workloads:
        workload = item.workload
        own = [r for r in rates if (r.model, r.phase) == (workload.model.model, workload.phase)]
        configs = [c for c in inputs.node_configs if c.node_config in {r.node_config for r in own}]
        if not own:
            continue
        settings = inputs.settings_of(item)
        modelled = profile_workload(
            workload, configs, inputs.gpus, inputs.efficiencies, settings, inputs.mode, inputs.n_max
        )
        with_measured(modelled, own, workload, settings, inputs.mode, inputs.n_max)
        cells = _best_cells(modelled.to_pylist())
        rows += [RateRow(rate, workload.alias, _cell_of(cells, rate)) for rate in own]
    return sorted(rows, key=lambda row: row.rate.row)


def _check_used(rate: MeasuredRate, served: set[str], loaded: LoadedScenario) -> None:
    where = f"{rate.file}, row {rate.row}"
    if rate.model not in served:
        raise UnknownNameError("model of this scenario", rate.model, served, where=where)
    if rate.node_config not in loaded.node_configs:
        raise UnknownNameError(
            "node configuration of this scenario", rate.node_config, loaded.node_configs, where=where
        )
    most = loaded.scenario.library.n_max
    if rate.stages > most:
        raise CoralError(
            f"{where}: {rate.stages} stages need {rate.stages} nodes, library.n_max is {most}", remedy="raise n_max"
        )


def _best_cells(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[tuple[float, float]]]:
    cells: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in rows:
        if row["throughput_tok_per_s"] is not None:
            key = (row["node_config"], row["stages"], row["position"], row["layers"])
            cells.setdefault(key, []).append((row["cycle_ms"], row["throughput_tok_per_s"]))
    return cells


def _cell_of(cells: Mapping[tuple[Any, ...], list[tuple[float, float]]], rate: MeasuredRate) -> float | None:
    """The modelled rate at the row's cycle, or the best over cycles where it names none."""
    found = cells.get((rate.node_config, rate.stages, rate.position, rate.layers), [])
    if rate.cycle_ms is not None:
        found = [min(found, key=lambda cell: abs(cell[0] - (rate.cycle_ms or 0.0)))] if found else []
    return max((value for _, value in found), default=None)


def attach_rates(path: Path, scenario: Path, loaded: LoadedScenario) -> Attached:
    """Put a file's rows into the scenario's measurements; rows of the same cell are replaced."""
    return _attach(RATES, scenario, loaded, list(read_measured_table(path, RATES, loaded.catalog, path.name).rows))


def benchmarked(
    runs: Sequence[BenchResult], loaded: LoadedScenario, gpu: str | None, tp: int | None, model: str | None
) -> list[DerateRow]:
    """De-ratings of benchmark runs; ``gpu``, ``tp``, ``model`` where the runs do not say them. Runs of one request at a time
    come first, so that their prefill de-rating serves the others."""
    from tasks.profiling.calibrate import derates_of, shape_of

    rows: list[DerateRow] = []
    known: dict[tuple[str, int, str], float] = {}
    for run in sorted(runs, key=lambda run: run.max_concurrency != 1):
        where = f"{run.file}, line {run.line}"
        name, degree = gpu or run.metadata.get("gpu"), tp or run.metadata.get("tp")
        if name is None or degree is None:
            raise CoralError(f"{where}: does not say what it ran on", remedy="give --gpu and --tp")
        workload = _workload_of(loaded, model or run.model_id, where)
        canonical = loaded.catalog.gpu_names.encode(name)
        factors = loaded.catalog.efficiencies.get(canonical)
        if factors is None:
            raise CoralError(
                f"{where}: {canonical} has no efficiency factors to de-rate", remedy="add measured rates instead"
            )
        key = (canonical, _degree(str(degree), where), workload.model.model)
        shape = shape_of(workload.model, workload.weight_dtype, workload.kv_dtype)
        found = derates_of(run, loaded.catalog.gpus[canonical], factors, shape, key[1], known.get(key))
        for item in found:
            if item.phase.value == "prefill":
                known.setdefault(key, item.derate)
            rows.append(DerateRow(run.file, canonical, key[1], f"{workload.model.alias}/{item.phase.value}", item))
    return rows


def _workload_of(loaded: LoadedScenario, name: str, where: str) -> Workload:
    names = {}
    for workload in loaded.workloads:
        names[workload.model.model.lower()] = names[workload.model.alias.lower()] = workload
    if name.lower() not in names:
        known = [n for w in loaded.workloads for n in (w.model.model, w.model.alias)]
        raise UnknownNameError(
            "model of this scenario", name, known, where=where + " (give --model where names differ)"
        )
    return names[name.lower()]


def _degree(text: str, where: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise CoralError(f"{where}: tp {text!r} is not a whole number of GPUs", remedy="give --tp")
    return int(text)


def attach_derates(
    rows: Sequence[DerateRow], runs: Sequence[BenchResult], scenario: Path, loaded: LoadedScenario
) -> Attached:
    """Put de-ratings into the scenario's calibration; a run of the same file name replaces its earlier rows."""
    ran_on = {run.file: run.ran_on for run in runs}
    seen: dict[tuple[str, ...], int] = {}
    new = []
    for row in rows:
        model, phase = row.workload.rsplit("/", 1)
        key = (row.gpu, model, phase, row.file)
        seen[key] = seen.get(key, 0) + 1
        new.append(
            {
                "gpu": row.gpu,
                "model": model,
                "phase": phase,
                "derate": round(row.derate.derate, 4),
                "tp": row.tp,
                "batch": round(row.derate.batch, 2),
                "as_of": ran_on[row.file] or date.today(),
                # One file may hold several runs.
                "source": row.file if seen[key] == 1 else f"{row.file} #{seen[key]}",
            }
        )
    return _attach(CALIBRATION, scenario, loaded, new)


def _attach(table: str, scenario: Path, loaded: LoadedScenario, new: Sequence[Mapping[str, Any]]) -> Attached:
    section, default = _SECTIONS[table]
    named = getattr(loaded.scenario, section)
    path = scenario.parent / (named.file if named else default)
    if path.suffix == ".parquet":
        raise CoralError(f"{path.name} is Parquet and is not written to", remedy="name a CSV file in the scenario")
    old = read_measured_table(path, table, loaded.catalog, path.name).require_clean().rows if path.is_file() else ()
    rows = merged_rows(table, old, new)
    write_text(path, table_text(table, rows))
    if named is None:
        text = scenario.read_text(encoding="utf-8")
        write_text(scenario, f"{text.rstrip()}\n{section}: {{file: {default}}}\n")
    load_scenario(scenario)  # what was written must be in order
    return Attached(path, len(new), named is None)
