"""Rates of the layouts that stock engines can put into a pipeline of nodes, beside the best layout of each cell.

An engine takes one tensor-parallel degree for all stages and runs no replicas of a stage inside a node. Where a node's best
layout in a cell is another one, the launchable ones need rates of their own: one replica, ``tp`` x ``pp`` = its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.types import Efficiency, Gpu, NodeConfig, Provenance, Workload
from tasks.profiling.cells import Cells, StageTimes
from tasks.profiling.cycles import Mode
from tasks.profiling.layouts import Layout, legal_layouts
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import POSITION_NAMES, provenance_of, rel_error_of
from tasks.profiling.rates import LayoutSolver
from tasks.profiling.roofline import Roofline
from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.profiling.shapes import ModelShape
from tasks.templates.curves import profile_cells

_KEPT = ("tp", "pp", "replicas", "batch", "rel_error")


@dataclass(frozen=True)
class _Best:
    """The profile's rows in the axes of the cells, for one configuration: arrays [combos, cycles, layers]."""

    rate_tok_per_s: NDArray[np.float64]
    layout: dict[str, NDArray[np.float64]]
    provenance: NDArray[np.int64]

    def is_layout(self, layout: Layout) -> NDArray[np.bool_]:
        """Cells whose best layout is ``layout``."""
        own = [self.layout[name] == getattr(layout, name) for name in ("tp", "pp", "replicas")]
        return (self.rate_tok_per_s > 0) & own[0] & own[1] & own[2]


def launch_profile(
    best: pa.Table,
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    mode: Mode | str = Mode.CYCLE,
    max_stages: int = 6,
) -> pa.Table:
    """Feasible cells of one-replica layouts in pipelines of at least two stages (PROFILE_SCHEMA; key: the profile's and
    ``tp``), without those that ``best`` (the workload's whole profile, measurements included) has already.

    A node holds a layer per inner stage or more. A rate is no more than the best layout's, whose row may be a measurement,
    and never grows with layers: a node holding fewer serves no less, so a layout that is measured at some number of layers
    is at least as fast below it. Sorted by configuration, tp (falling), stages, position, cycle (longest first), layers.
    """
    mode, settings = Mode(mode), settings or ProfileSettings()
    cells = Cells(workload, settings, mode, max(1, min(max_stages, workload.model.layers)))
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    known = _best_by_config(best, cells)
    times: dict[tuple[str, int], StageTimes] = {}
    tables = [PROFILE_SCHEMA.empty_table()]
    for node in sorted(node_configs, key=lambda config: config.node_config):
        eff, own = efficiencies.get(node.gpu), known.get(node.node_config)
        if eff is None or own is None or node.gpu_count == 1:  # one GPU has one layout: the best one
            continue
        roofline = Roofline(gpus[node.gpu], eff, shape)
        for layout in sorted(legal_layouts(shape, node.gpu_count), key=lambda layout: -layout.tp):
            if layout.replicas > 1 or roofline.missing_factors(layout.tp):
                continue
            key = (node.gpu, layout.tp)
            if key not in times:
                times[key] = StageTimes.build(roofline, layout.tp, cells)
            solver = LayoutSolver(node, gpus[node.gpu], shape, cells, layout, times[key])
            ground = provenance_of(roofline, layout, node, mode)
            tables.append(_rows(solver, own, ground, rel_error_of(eff, ground, cells)))
    return pa.concat_tables(tables)


def _best_by_config(best: pa.Table, cells: Cells) -> dict[str, _Best]:
    """The profile in the axes of the cells, for every configuration in it."""
    dense = profile_cells(best, cells.workload.model.layers)
    stages, slot, has_rows = _slots(dense.cycle_ms, cells)
    place = np.array([int(position) for _, position in cells.combos])

    def in_cells(values: NDArray[np.generic]) -> NDArray[np.float64]:
        found = dense.scatter(values, np.float64)[:, stages[:, None], place[:, None], slot, 1:]
        return np.where(has_rows[None, :, :, None], found, 0.0)

    names = [provenance.value for provenance in Provenance]
    ground = in_cells(pc.index_in(best["provenance"].cast(pa.string()), pa.array(names)).to_numpy())
    values = {name: in_cells(pc.fill_null(best[name], 0).to_numpy()) for name in ("throughput_tok_per_s", *_KEPT)}
    return {
        config: _Best(
            values["throughput_tok_per_s"][k], {name: values[name][k] for name in _KEPT}, ground[k].astype(np.int64)
        )
        for k, config in enumerate(dense.node_configs)
    }


def _slots(
    cycle_ms: NDArray[np.float64], cells: Cells
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Where the cells' stage counts [combos] and cycles [combos, cycles] stand in a profile's, and whether it has them: one
    of configurations that are mostly unprofiled need not. Raises ValueError for cycles that are none of the workload's."""
    stages = np.minimum(cells.stages - 1, len(cycle_ms) - 1)
    slot, has_rows = np.zeros(cells.cycle_ms.shape, np.int64), np.zeros(cells.cycle_ms.shape, np.bool_)
    for i, row in enumerate(cells.cycle_ms):
        grid = cycle_ms[stages[i]]
        grid = grid[~np.isnan(grid)]
        if stages[i] == cells.stages[i] - 1 and len(grid):
            if not np.isin(grid, row).all():
                raise ValueError(f"the profile of {cells.workload.alias} has other cycles than its workload")
            slot[i] = np.minimum(np.searchsorted(grid, row), len(grid) - 1)
            has_rows[i] = grid[slot[i]] == row
    return stages, slot, has_rows


def _rows(solver: LayoutSolver, best: _Best, ground: Provenance, rel_error: float) -> pa.Table:
    """The rows of one layout of one configuration."""
    cells, layout, grounds = solver.cells, solver.layout, list(Provenance)
    solved, known, least = solver.solve(), best.is_layout(layout), layout.pp - 1
    rate = np.zeros_like(best.rate_tok_per_s)
    rate[..., least:] = np.minimum.accumulate(solved.rate_tok_per_s[..., least:], axis=-1)
    rate = np.where(known, best.rate_tok_per_s, np.minimum(rate, best.rate_tok_per_s))
    columns = {
        "batch": np.where(known, best.layout["batch"], solved.batch),
        "rel_error": np.where(known, best.layout["rel_error"], rel_error),
        "provenance": np.where(known, best.provenance, grounds.index(ground)),
        "memory": np.where(known, np.nan, solved.memory_gib),
    }
    for j in range(rate.shape[-1] - 2, least - 1, -1):
        more = rate[..., j + 1] > rate[..., j]
        if more.any():
            for column in (rate, *columns.values()):
                column[..., j][more] = column[..., j + 1][more]
    shown = (rate > 0) & ~known & (cells.stages > 1)[:, None, None]
    at = np.nonzero(shown)
    combo, cycle, layer = at
    size = len(combo)

    def same(name: str, value: object) -> pa.Array:
        return pa.repeat(pa.scalar(value, PROFILE_SCHEMA.field(name).type), size)

    memory = columns["memory"][at]
    names = [POSITION_NAMES[position] for _, position in cells.combos]
    values = {
        "node_config": same("node_config", solver.node.node_config),
        "workload_id": same("workload_id", cells.workload.workload_id),
        "layers": pa.array((layer + 1).astype(np.int16)),
        "position": pa.array(names, pa.string()).take(pa.array(combo)),
        "stages": pa.array(cells.stages[combo].astype(np.int8)),
        "cycle_ms": pa.array(cells.cycle_ms[combo, cycle]),
        "throughput_tok_per_s": pa.array(rate[at]),
        "reason": pa.nulls(size, pa.string()),
        "tp": same("tp", layout.tp),
        "pp": same("pp", layout.pp),
        "replicas": same("replicas", 1),
        "batch": pa.array(columns["batch"][at].astype(np.int32)),
        "memory_used_gib": pa.array(memory, mask=np.isnan(memory)),
        "provenance": pa.array([item.value for item in grounds], pa.string()).take(
            pa.array(columns["provenance"][at].astype(np.int64))
        ),
        "rel_error": pa.array(columns["rel_error"][at]),
    }
    return pa.Table.from_pydict(values, schema=PROFILE_SCHEMA)
