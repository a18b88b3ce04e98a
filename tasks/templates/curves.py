"""Rate curves and layouts of one workload as dense arrays, read once from its profile rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.ids import split_node_config
from catalogs.types import Provenance
from tasks.templates.types import Position, RateCurves

MILLI = 1000
PROVENANCES: tuple[str, ...] = tuple(provenance.value for provenance in Provenance)
"""Best ground first: codes in :class:`Layouts` index this tuple, so the larger of two codes is the weaker ground."""
_POSITIONS = tuple(position.name.lower() for position in Position)


@dataclass(frozen=True, slots=True)
class Layouts:
    """How each node runs its stage: arrays [K, S, 4, C, L + 1] beside ``RateCurves.rate_mtok_per_s``.

    ``provenance`` is a code into ``PROVENANCES``. Cells without a rate hold 0 (``rel_error`` 0.0).
    """

    tp: NDArray[np.int8]
    pp: NDArray[np.int8]
    replicas: NDArray[np.int8]
    batch: NDArray[np.int32]
    provenance: NDArray[np.int8]
    rel_error: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WorkloadCurves:
    """Rates and layouts of one workload, on the same axes."""

    curves: RateCurves
    layouts: Layouts

    def take(self, node_configs: Sequence[str]) -> WorkloadCurves:
        """The same for some of the configurations, in the given order. Raises KeyError for one that has no rows."""
        index = {name: k for k, name in enumerate(self.curves.node_configs)}
        rows = [index[name] for name in node_configs]
        curves = replace(
            self.curves, node_configs=tuple(node_configs), rate_mtok_per_s=self.curves.rate_mtok_per_s[rows]
        )
        return WorkloadCurves(curves, Layouts(*(getattr(self.layouts, name)[rows] for name in Layouts.__slots__)))

    def usable(self) -> tuple[str, ...]:
        """Configurations with at least one feasible cell."""
        rates = self.curves.rate_mtok_per_s
        return tuple(name for k, name in enumerate(self.curves.node_configs) if rates[k].any())


def to_mtok_per_s(tok_per_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Tokens/s as whole milli-tokens/s, rounded down: the one rounding between profiles and templates."""
    return np.floor(tok_per_s * MILLI).astype(np.int64)


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    """A column as numpy, NULL = 0."""
    column = table[name].combine_chunks()
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False) if column.null_count else column.to_numpy(False)


def _codes(table: pa.Table, name: str) -> tuple[list[str], NDArray[np.int64]]:
    """A string column as (distinct values, code per row)."""
    column = table[name].combine_chunks()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _mapped(table: pa.Table, name: str, order: Sequence[str]) -> NDArray[np.int64]:
    """Codes of a string column in a fixed order. Raises ValueError for a value outside it."""
    values, codes = _codes(table, name)
    unknown = sorted(set(values) - set(order))
    if unknown:
        raise ValueError(f"profiles: {name} {unknown[0]!r} is none of {', '.join(order)}")
    return np.array([order.index(value) for value in values] or [0], np.int64)[codes]


def _cycle_grid(
    stages: NDArray[np.int64], cycle_ms: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rising cycles per stage count [S, C] (NaN = unused) and each row's slot in it."""
    top = int(stages.max())
    cycles = [np.unique(cycle_ms[stages == s]) for s in range(1, top + 1)]
    grid = np.full((top, max(len(values) for values in cycles)), np.nan)
    slot = np.zeros(len(stages), np.int64)
    for s, values in enumerate(cycles, start=1):
        grid[s - 1, : len(values)] = values
        rows = stages == s
        slot[rows] = np.searchsorted(values, cycle_ms[rows])
    return grid, slot


@dataclass(frozen=True, slots=True)
class ProfileCells:
    """Where the rows of a workload's profile table stand in dense arrays [K, S, 4, C, L + 1]: ``index`` is the flat cell
    of each row. Configurations are sorted by id, cycles rise."""

    workload_id: str
    layers: int
    node_configs: tuple[str, ...]
    cycle_ms: NDArray[np.float64]
    index: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense arrays."""
        stages, cycles = self.cycle_ms.shape
        return (len(self.node_configs), stages, 4, cycles, self.layers + 1)

    def scatter(self, values: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
        """One value per row as a dense array, 0 where there is no row."""
        dense = np.zeros(self.shape, dtype)
        dense.reshape(-1)[self.index] = values.astype(dtype)
        return dense


def profile_cells(table: pa.Table, layers: int | None = None) -> ProfileCells:
    """Cells of the one workload in ``table`` (PROFILE_SCHEMA); ``layers`` defaults to the most in the table.

    Raises ValueError for no rows, several workloads, two rows of one cell, and keys out of range.
    """
    workloads, _ = _codes(table, "workload_id")
    if table.num_rows == 0 or len(workloads) != 1:
        raise ValueError(f"profiles of one workload expected, got {len(workloads) if table.num_rows else 'no rows'}")
    names, config = _codes(table, "node_config")
    order = sorted(range(len(names)), key=names.__getitem__)
    config = np.argsort(np.array(order))[config]
    j, stages = _column(table, "layers").astype(np.int64), _column(table, "stages").astype(np.int64)
    cycle_ms = _column(table, "cycle_ms").astype(np.float64)
    top = int(j.max()) if layers is None else layers
    if j.min() < 1 or j.max() > top or stages.min() < 1 or not np.isfinite(cycle_ms).all():
        raise ValueError(f"profiles of {workloads[0]}: layers must be 1..{top}, stages >= 1 and cycle_ms a number")
    grid, slot = _cycle_grid(stages, cycle_ms)
    shape = (len(names), len(grid), 4, grid.shape[1], top + 1)
    cell = np.ravel_multi_index((config, stages - 1, _mapped(table, "position", _POSITIONS), slot, j), shape)
    if (np.bincount(cell, minlength=1) > 1).any():
        raise ValueError(
            f"profiles of {workloads[0]}: two rows for one (node_config, layers, position, stages, cycle_ms)"
        )
    return ProfileCells(workloads[0], top, tuple(names[i] for i in order), grid, cell)


def workload_curves(table: pa.Table, layers: int | None = None) -> WorkloadCurves:
    """Dense rates and layouts of the one workload in ``table`` (PROFILE_SCHEMA).

    ``layers`` is the model's layer count (default: the most in the table). Configurations are sorted by id, cycles
    rise. Raises ValueError for no rows, several workloads, two rows of one cell, a NaN or negative rate, and curves
    that grow with layers.
    """
    cells = profile_cells(table, layers)
    tok_per_s = _column(table, "throughput_tok_per_s").astype(np.float64)
    if not (np.isfinite(tok_per_s) & (tok_per_s >= 0)).all():
        raise ValueError(
            f"profiles of {cells.workload_id}: throughput_tok_per_s must be a number >= 0, or NULL = infeasible"
        )
    rate = cells.scatter(to_mtok_per_s(tok_per_s), np.int64)
    if (np.diff(rate[..., 1:], axis=-1) > 0).any():
        raise ValueError(f"profiles of {cells.workload_id}: a rate grows with layers; close the curves first")
    feasible = rate.reshape(-1)[cells.index] > 0

    def scatter(values: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
        return cells.scatter(np.where(feasible, values, 0), dtype)

    layouts = Layouts(
        scatter(_column(table, "tp"), np.int8),
        scatter(_column(table, "pp"), np.int8),
        scatter(_column(table, "replicas"), np.int8),
        scatter(_column(table, "batch"), np.int32),
        scatter(_mapped(table, "provenance", PROVENANCES), np.int8),
        scatter(_column(table, "rel_error"), np.float64),
    )
    return WorkloadCurves(
        RateCurves(cells.workload_id, cells.layers, cells.node_configs, cells.cycle_ms, rate), layouts
    )


def launch_curves(best: WorkloadCurves, launch: pa.Table) -> dict[int, WorkloadCurves]:
    """Rates of the layouts that stock engines can put into a pipeline, per tensor-parallel degree (falling).

    ``launch`` holds the cells of one-replica layouts that are not the best of theirs (PROFILE_SCHEMA, key with ``tp``);
    those that are come from ``best``. One stage is left out: a node alone runs as it does best. Configurations and cycles
    are those of ``best``. A node holds at least a layer per inner stage, pp = its GPUs / tp: cells of fewer have the rate of
    pp layers as a bound, and no layout.

    Raises ValueError for a row of a configuration or cycle that ``best`` does not have, two rows of one cell and degree,
    rows of fewer layers than inner stages, and curves that grow with layers.
    """
    curves = best.curves
    one = (best.layouts.replicas == 1) & (curves.rate_mtok_per_s > 0)
    one[:, 0] = False
    degrees = set(np.unique(best.layouts.tp[one]).tolist()) | set(launch["tp"].unique().to_pylist())
    return {tp: _of_degree(best, launch.filter(pc.equal(launch["tp"], tp)), one, tp) for tp in sorted(degrees)[::-1]}


def _of_degree(best: WorkloadCurves, rows: pa.Table, one: NDArray[np.bool_], tp: int) -> WorkloadCurves:
    curves = best.curves
    kept = one & (best.layouts.tp == tp)
    rate = np.where(kept, curves.rate_mtok_per_s, 0)
    arrays = {name: np.where(kept, getattr(best.layouts, name), 0) for name in Layouts.__slots__}
    index = {name: k for k, name in enumerate(curves.node_configs)}
    names, codes = _codes(rows, "node_config") if rows.num_rows else ([], np.zeros(0, np.int64))
    if unknown := sorted(set(names) - set(index)):
        raise ValueError(f"launch profiles of {curves.workload_id}: {unknown[0]} is not in its profiles")
    config = np.array([index[name] for name in names], np.int64)[codes]
    stages = _column(rows, "stages").astype(np.int64) - 1
    place, j = _mapped(rows, "position", _POSITIONS), _column(rows, "layers").astype(np.int64)
    # The cycle of a row is one of its stage count's: compare with each, there are a dozen.
    same = curves.cycle_ms[np.minimum(stages, len(curves.cycle_ms) - 1)] == _column(rows, "cycle_ms")[:, None]
    if (stages >= len(curves.cycle_ms)).any() or not same.any(axis=1).all():
        raise ValueError(f"launch profiles of {curves.workload_id} have a cycle that its profiles do not have")
    at = (config, stages, place, same.argmax(axis=1), j)
    flat = np.ravel_multi_index(at, rate.shape)
    if rate.reshape(-1)[flat].any() or len(np.unique(flat)) < len(flat):
        raise ValueError(f"launch profiles of {curves.workload_id}: two rates for one cell at tp {tp}")
    rate[at] = to_mtok_per_s(_column(rows, "throughput_tok_per_s").astype(np.float64))
    for k, name in enumerate(curves.node_configs):
        least = min(split_node_config(name)[1] // tp, curves.layers)
        if rate[k, ..., 1:least].any():
            raise ValueError(
                f"launch profiles of {curves.workload_id}: {name} at tp {tp} holds fewer than {least} layers"
            )
        rate[k, ..., 1:least] = rate[k, ..., least : least + 1]
    if (np.diff(rate[..., 1:], axis=-1) > 0).any():
        raise ValueError(f"launch profiles of {curves.workload_id}: a rate grows with layers at tp {tp}")
    for name in ("tp", "pp", "replicas", "batch", "rel_error"):
        arrays[name][at] = _column(rows, name)
    arrays["provenance"][at] = _mapped(rows, "provenance", PROVENANCES)
    return WorkloadCurves(replace(curves, rate_mtok_per_s=rate), Layouts(**arrays))


def curves_from_profiles(table: pa.Table, layers: int | None = None) -> RateCurves:
    """Just the rates of :func:`workload_curves`."""
    return workload_curves(table, layers).curves


def config_hashes(best: WorkloadCurves, launch: Mapping[int, WorkloadCurves] | None = None) -> dict[str, str]:
    """Hash of everything a configuration contributes to templates: its cycles, rates and layouts.

    It depends on that configuration's own cells alone, so more configurations, stage counts or cycles elsewhere leave
    it as it is.
    """
    digests = {name: hashlib.sha256(f"{best.curves.layers}".encode()) for name in best.curves.node_configs}
    for tp, workload in [(0, best), *(launch or {}).items()]:
        curves, arrays = workload.curves, [getattr(workload.layouts, name) for name in Layouts.__slots__]
        for k, name in enumerate(curves.node_configs):
            for s, c in np.argwhere(curves.rate_mtok_per_s[k].any(axis=(1, 3))):
                digests[name].update(f"|{tp}:{s + 1}:{float(curves.cycle_ms[s, c]).hex()}:".encode())
                for array in (curves.rate_mtok_per_s, *arrays):
                    digests[name].update(np.ascontiguousarray(array[k, s, :, c]).tobytes())
    return {name: digest.hexdigest()[:16] for name, digest in digests.items()}
