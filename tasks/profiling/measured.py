"""Measured node rates in place of modelled ones, row by row.

A node never serves less for holding fewer layers, nor more for holding more: so a measured rate also raises the cells of
fewer layers that the model puts below it, and lowers those of more layers that it puts above. A rate without a cycle is
the most the node reaches within the SLO: it stands at the longest cycle and caps the shorter ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from catalogs.errors import CoralError
from catalogs.measured import MeasuredRate
from catalogs.types import Provenance, Workload
from tasks.profiling.cycles import Mode, cycle_grid
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.schema import PROFILE_SCHEMA, Infeasible

Row = dict[str, Any]
# A stated cycle is one of the grid's if it is this close: a person writes 33.3 for 100/3.
_SAME_CYCLE = 0.005
_POSITIONS = ("only", "first", "mid", "last")
_LAYOUT = ("tp", "pp", "replicas")


@dataclass
class _Curve:
    """One (stages, position, cycle) of a configuration: feasible rows by layers, and why the next number is not."""

    cells: dict[int, Row] = field(default_factory=dict)
    reason: str = Infeasible.UNPROFILED.value
    rel_error: float = 0.0


def with_measured(
    table: pa.Table,
    rates: Sequence[MeasuredRate],
    workload: Workload,
    settings: ProfileSettings | None = None,
    mode: Mode | str = Mode.CYCLE,
    max_stages: int = 6,
) -> pa.Table:
    """The workload's profile rows (PROFILE_SCHEMA) with ``rates`` of this workload put in; others are ignored, and so are
    configurations that are not in ``table`` (nothing is sold of them) and pipelines of more than ``max_stages``.

    Raises CoralError, naming the row, for a cycle that is none of the workload's, or for a rate where the model has no
    layout and the row gives none.
    """
    settings, mode = settings or ProfileSettings(), Mode(mode)
    own = [r for r in rates if (r.model, r.phase) == (workload.model.model, workload.phase)]
    names = set(table["node_config"].unique().to_pylist())
    by_config: dict[str, list[MeasuredRate]] = {}
    for rate in own:
        if rate.node_config in names and rate.stages <= max_stages:
            by_config.setdefault(rate.node_config, []).append(rate)
    if not by_config:
        return table
    parts = [table.filter(pc.invert(pc.is_in(table["node_config"], pa.array(sorted(by_config)))))]
    for name, measured in by_config.items():
        rows = table.filter(pc.equal(table["node_config"], name)).to_pylist()
        curves = _curves(rows)
        for rate in sorted(measured, key=lambda r: (-(r.cycle_ms or float("inf")), -r.layers)):
            _put(curves, rate, cycle_grid(workload, rate.stages, settings, mode).tolist())
        parts.append(_table(name, workload, curves))
    rank = {position: number for number, position in enumerate(_POSITIONS)}
    merged = pa.concat_tables(parts)
    order = pa.array([rank[position] for position in merged["position"].to_pylist()])
    keys = [("node_config", "ascending"), ("stages", "ascending"), ("rank", "ascending")]
    keys += [("cycle_ms", "descending"), ("layers", "ascending")]
    return merged.append_column("rank", order).sort_by(keys).drop_columns("rank")


def _curves(rows: Sequence[Row]) -> dict[tuple[int, str, float], _Curve]:
    curves: dict[tuple[int, str, float], _Curve] = {}
    for row in rows:
        if row["reason"] == Infeasible.UNPROFILED.value:
            continue  # the one row that says there is no profile
        curve = curves.setdefault((row["stages"], row["position"], row["cycle_ms"]), _Curve())
        curve.rel_error = row["rel_error"]
        if row["throughput_tok_per_s"] is None:
            curve.reason = row["reason"]
        else:
            curve.cells[row["layers"]] = row
    return curves


def _put(curves: dict[tuple[int, str, float], _Curve], rate: MeasuredRate, grid: Sequence[float]) -> None:
    """Put one rate into the curves of its stage count and position; ``grid`` holds the cycles, longest first."""
    target = grid[0] if rate.cycle_ms is None else _nearest(rate, grid)
    _measure(curves.setdefault((rate.stages, rate.position, target), _Curve()), rate)
    if rate.cycle_ms is None:
        for cycle in grid[1:]:
            curve = curves.get((rate.stages, rate.position, cycle))
            if curve is not None:
                _cap(curve, rate, from_layers=rate.layers)


def _nearest(rate: MeasuredRate, grid: Sequence[float]) -> float:
    stated = rate.cycle_ms or 0.0
    best = min(grid, key=lambda cycle: abs(cycle - stated))
    if abs(best - stated) > _SAME_CYCLE * best:
        shown = ", ".join(f"{cycle:.6g}" for cycle in grid)
        raise CoralError(
            f"{rate.file}, row {rate.row}, cycle_ms: {stated:g} is not a cycle of {rate.stages} stages",
            remedy=f"use one of {shown}, or leave it blank for the most within the SLO",
        )
    return best


def _measure(curve: _Curve, rate: MeasuredRate) -> None:
    """The measured cell, and fewer layers at least as fast; more layers no faster."""
    _cap(curve, rate, from_layers=rate.layers + 1)
    for layers in range(1, rate.layers + 1):
        there = curve.cells.get(layers)
        is_own = layers == rate.layers
        if not is_own and there is not None and there["throughput_tok_per_s"] >= rate.throughput_tok_per_s:
            continue
        layout = rate.layout or (None if there is None else tuple(there[name] for name in _LAYOUT))
        if layout is None:
            raise _no_layout(rate)
        if layout[1] > layers:
            layout = _as_replicas(rate, layout, layers)
        curve.cells[layers] = _cell(rate, layers, layout, there)


def _as_replicas(rate: MeasuredRate, layout: tuple[int, ...], layers: int) -> tuple[int, int, int]:
    """The layout for fewer layers than inner stages: each inner stage a replica, as fast while it holds no more layers."""
    tp, pp, replicas = layout
    if layers * pp > rate.layers:
        raise _no_layout(rate)
    return tp, 1, replicas * pp


def _no_layout(rate: MeasuredRate) -> CoralError:
    return CoralError(
        f"{rate.file}, row {rate.row}, tp: no layout is known for {rate.layers} layers or fewer on {rate.node_config}",
        remedy="give tp, pp and replicas as measured, and a row for fewer layers than inner stages",
    )


def _cell(rate: MeasuredRate, layers: int, layout: Sequence[int], there: Mapping[str, Any] | None) -> Row:
    model = there or {"batch": 0, "memory_used_gib": None}
    return {
        "layers": layers,
        "throughput_tok_per_s": rate.throughput_tok_per_s,
        "batch": rate.batch or model["batch"],
        "memory_used_gib": rate.memory_used_gib or model["memory_used_gib"],
        "provenance": Provenance.MEASURED.value,
        "rel_error": rate.rel_error,
        **dict(zip(_LAYOUT, layout, strict=True)),
    }


def _cap(curve: _Curve, rate: MeasuredRate, from_layers: int) -> None:
    for layers, cell in curve.cells.items():
        if layers >= from_layers and cell["throughput_tok_per_s"] > rate.throughput_tok_per_s:
            curve.cells[layers] = {**cell, "throughput_tok_per_s": rate.throughput_tok_per_s}


def _table(name: str, workload: Workload, curves: Mapping[tuple[int, str, float], _Curve]) -> pa.Table:
    """Rows 1, 2, ... up to and including the first that is infeasible."""
    rows: list[Row] = []
    for (stages, position, cycle_ms), curve in curves.items():
        where = {
            "node_config": name,
            "workload_id": workload.workload_id,
            "stages": stages,
            "position": position,
            "cycle_ms": cycle_ms,
        }
        held = 0
        while held + 1 in curve.cells:
            held += 1
            rows.append({**curve.cells[held], **where, "reason": None})
        if held < workload.model.layers:
            blank = dict.fromkeys((*PROFILE_SCHEMA.names,))
            ground = {"provenance": Provenance.DERIVED.value, "rel_error": curve.rel_error}
            rows.append({**blank, **where, **ground, "layers": held + 1, "reason": curve.reason})
    return pa.Table.from_pylist(rows, schema=PROFILE_SCHEMA)
