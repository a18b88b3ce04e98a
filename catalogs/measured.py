"""Measurements of one's own: node rates that replace modelled ones, and de-ratings from benchmarks.

A file with a fault is refused whole: planning quietly without a measurement would give another plan than was asked for.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from catalogs.catalog import Catalog
from catalogs.errors import Finding, UnknownNameError, close_matches_remedy
from catalogs.ids import split_node_config
from catalogs.tables import Table, parse_table, read_table, schema_of
from catalogs.types import Phase

RATES = "measured_rates"
CALIBRATION = "calibration"
# Run-to-run spread of a serving benchmark, where a row does not say its own. assumed
DEFAULT_REL_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A measured rate of one node. ``cycle_ms`` None: the most it reaches within the SLO, at whatever cycle.

    ``layout`` is (tp, pp, replicas), None = as modelled; ``row`` is the row of ``file``, for messages.
    """

    node_config: str
    model: str
    phase: Phase
    layers: int
    position: str
    stages: int
    cycle_ms: float | None
    throughput_tok_per_s: float
    layout: tuple[int, int, int] | None
    batch: int | None
    memory_used_gib: float | None
    rel_error: float
    file: str
    row: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """De-rating of one (GPU, model, phase): the geometric mean over ``benchmarks`` of them."""

    gpu: str
    model: str
    phase: Phase
    derate: float
    benchmarks: int


def read_measured_table(path: Path, table: str, catalog: Catalog, label: str) -> Table:
    """A CSV or Parquet file by its schema; GPU spellings become canonical ids."""
    encode = catalog.gpu_names.encode
    if path.suffix.lower() != ".parquet":
        return read_table(path, table, encode_gpu=encode, label=label)
    import pyarrow as pa
    from pyarrow import parquet

    try:
        columns = parquet.read_table(path).to_pydict()
    except (OSError, pa.ArrowException) as error:
        finding = Finding(label, 0, "", "", f"cannot be read as Parquet: {error}", "save it as Parquet or CSV")
        return Table(label, (), (), (finding,), (), 0)
    return parse_table(_csv_text(columns), table, encode_gpu=encode, label=label)


def _csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """Columns as CSV, so that both forms pass the same checks; null becomes blank, NaN stays NaN (and is refused)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow("" if v is None else v.isoformat() if isinstance(v, date) else v for v in row)
    return out.getvalue()


def measured_rates(
    table: Table, catalog: Catalog, node_configs: Iterable[str]
) -> tuple[list[MeasuredRate], list[Finding]]:
    """The rates of a table, and every fault in it. Rows of known models that a scenario does not serve are no fault."""
    findings = list(table.findings)
    rates: list[MeasuredRate] = []
    known = set(node_configs) | set(catalog.node_configs)
    for number, row in zip(table.row_numbers, table.rows, strict=True):
        faults = _row_faults(table.file, number, row, catalog, known)
        findings += faults
        if not faults:
            rates.append(_rate(table.file, number, row, catalog))
    return rates, findings + _rising(rates)


def _rate(file: str, number: int, row: Mapping[str, Any], catalog: Catalog) -> MeasuredRate:
    layout = None if row["tp"] is None else (row["tp"], row["pp"], row["replicas"])
    plain = ("node_config", "layers", "position", "stages", "cycle_ms", "throughput_tok_per_s", "batch")
    return MeasuredRate(
        **{name: row[name] for name in (*plain, "memory_used_gib")},
        model=catalog.model(row["model"]).model,
        phase=Phase(row["phase"]),
        layout=layout,
        rel_error=row["rel_error"] or DEFAULT_REL_ERROR,
        file=file,
        row=number,
    )


def _row_faults(file: str, number: int, row: Mapping[str, Any], catalog: Catalog, known: set[str]) -> list[Finding]:
    def fault(column: str, reason: str, remedy: str) -> Finding:
        value = row[column]
        return Finding(file, number, column, "" if value is None else str(value), reason, remedy)

    faults = []
    if row["node_config"] not in known:
        faults.append(
            fault("node_config", "unknown node configuration", close_matches_remedy(row["node_config"], known))
        )
    try:
        spec = catalog.model(row["model"])
    except UnknownNameError as error:
        return [*faults, fault("model", "unknown model", error.remedy)]
    if row["layers"] > spec.layers:
        faults.append(
            fault("layers", f"is more than the {spec.layers} layers of {spec.alias}", f"give 1 to {spec.layers}")
        )
    if (row["position"] == "only") != (row["stages"] == 1):
        faults.append(
            fault("position", f"does not go with {row['stages']} stages", "only goes with 1 stage, no other does")
        )
    if row["position"] == "only" and row["layers"] < spec.layers:
        remedy = f"give {spec.layers} layers, or its position in a pipeline"
        faults.append(fault("layers", "a node that is the only stage holds the whole model", remedy))
    layout = [row[name] for name in ("tp", "pp", "replicas")]
    if any(part is None for part in layout):
        if any(part is not None for part in layout):
            faults.append(fault("tp", "is part of a layout", "give tp, pp and replicas, or none of them"))
    elif math.prod(layout) != split_node_config(row["node_config"])[1]:
        faults.append(fault("tp", f"tp x pp x replicas is {math.prod(layout)}", "it must be the node's number of GPUs"))
    elif layout[1] > row["layers"]:
        faults.append(fault("pp", f"is more than the {row['layers']} layers held", "give at most one stage a layer"))
    return faults


def _rising(rates: Sequence[MeasuredRate]) -> list[Finding]:
    """Rates that rise with layers where all else is alike: a node cannot be faster for holding more."""
    findings = []
    groups: dict[tuple[Any, ...], list[MeasuredRate]] = {}
    for rate in rates:
        key = (rate.node_config, rate.model, rate.phase, rate.position, rate.stages, rate.cycle_ms)
        groups.setdefault(key, []).append(rate)
    for group in groups.values():
        group.sort(key=lambda rate: rate.layers)
        for fewer, more in pairwise(group):
            if more.throughput_tok_per_s > fewer.throughput_tok_per_s:
                slower = f"{fewer.throughput_tok_per_s:g} with {fewer.layers}"
                reason = f"with {more.layers} layers is above row {fewer.row}'s {slower}"
                remedy = "measure again, or swap the rows' layers: a node is never faster for holding more"
                value = f"{more.throughput_tok_per_s:g}"
                findings.append(Finding(more.file, more.row, "throughput_tok_per_s", value, reason, remedy))
    return findings


def calibrations(table: Table, catalog: Catalog) -> tuple[list[Calibration], list[Finding]]:
    """De-ratings per (GPU, model, phase), and every fault of the table."""
    findings = list(table.findings)
    found: dict[tuple[str, str, Phase], list[float]] = {}
    for number, row in zip(table.row_numbers, table.rows, strict=True):
        try:
            model = catalog.model(row["model"]).model
        except UnknownNameError as error:
            findings.append(Finding(table.file, number, "model", row["model"], "unknown model", error.remedy))
            continue
        found.setdefault((row["gpu"], model, Phase(row["phase"])), []).append(row["derate"])
    means = [
        Calibration(*key, math.exp(math.fsum(map(math.log, values)) / len(values)), len(values))
        for key, values in sorted(found.items())
    ]
    return means, findings


def read_own_measurements(
    files: Mapping[str, tuple[Path, str] | None], catalog: Catalog, node_configs: Iterable[str]
) -> tuple[list[MeasuredRate], list[Calibration], list[Finding]]:
    """Rates, de-ratings and every fault of the files that a scenario names (path, label) by table; None = no such file."""
    rates: list[MeasuredRate] = []
    derates: list[Calibration] = []
    faults: list[Finding] = []
    if (file := files.get(RATES)) is not None:
        rates, found = measured_rates(read_measured_table(file[0], RATES, catalog, file[1]), catalog, node_configs)
        faults += found
    if (file := files.get(CALIBRATION)) is not None:
        derates, found = calibrations(read_measured_table(file[0], CALIBRATION, catalog, file[1]), catalog)
        faults += found
    return rates, derates, faults


def table_text(table: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV text in the order of the table's schema; None is blank."""
    kept = list(rows)
    return _csv_text({column.name: [row[column.name] for row in kept] for column in schema_of(table).columns})


def merged_rows(
    table: str, old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """``old`` rows with those of the same key replaced by ``new``, which come last."""
    names = schema_of(table).key
    fresh = list(new)
    keys = {tuple(row[name] for name in names) for row in fresh}
    return [row for row in old if tuple(row[name] for name in names) not in keys] + fresh
