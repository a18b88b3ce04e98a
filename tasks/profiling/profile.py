"""The profiles table of a workload: the best layout's rate per configuration, layers, position, stage count and cycle.

Rows are compact. In each (configuration, stage count, position, cycle) they run over layers 1, 2, ... up to and
including the first number of layers that is infeasible, whose row says why; every larger number is infeasible as well.
A configuration without factors has one row (layers 1, stages 1, position ``only``, reason ``unprofiled``).
With one stage a row gives the best the node does at its cycle or any shorter one (decode: any at all, prefill: any of the
grid): the nodes of a single stage need no common cycle, and a node's own is replicas * pp * batch / rate where the network
does not limit it.
``batch`` is the sub-batch of one replica's inner stage: prompt tokens or sequences. ``memory_used_gib`` is that of the
node's fullest GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from catalogs.errors import UnknownNameError
from catalogs.types import Efficiency, Gpu, NodeConfig, Phase, Provenance, Workload
from tasks.profiling.cells import Cells, StageTimes
from tasks.profiling.cycles import Mode
from tasks.profiling.layouts import Layout, legal_layouts
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.rates import FEASIBLE, REASONS, LayoutSolver
from tasks.profiling.roofline import Roofline
from tasks.profiling.schema import PROFILE_SCHEMA, Infeasible
from tasks.profiling.shapes import ModelShape
from tasks.templates.types import Position

POSITION_NAMES = {position: position.name.lower() for position in Position}


@dataclass(frozen=True)
class ConfigRates:
    """Best cells of one configuration [combos, cycles, layers]; ``layout`` indexes ``layouts``, -1 = none; ``provenance``
    and ``rel_error`` are per layout."""

    node: NodeConfig
    layouts: tuple[Layout, ...]
    provenance: tuple[Provenance, ...]
    rel_error: tuple[float, ...]
    rate_tok_per_s: NDArray[np.float64]
    batch: NDArray[np.int64]
    memory_gib: NDArray[np.float64]
    layout: NDArray[np.int64]
    outcome: NDArray[np.int8]


def profile_workload(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    mode: Mode | str = Mode.CYCLE,
    max_stages: int = 6,
) -> pa.Table:
    """The workload's rows of the profiles table (PROFILE_SCHEMA), sorted by configuration, stages, position, cycle
    (longest first), layers. Raises UnknownNameError for a configuration whose GPU is not in ``gpus``."""
    mode, settings = Mode(mode), settings or ProfileSettings()
    stages = max(1, min(max_stages, workload.model.layers))
    cells = Cells(workload, settings, mode, stages)
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    times: dict[tuple[str, int], StageTimes] = {}
    tables = []
    for node in sorted(node_configs, key=lambda config: config.node_config):
        if node.gpu not in gpus:
            raise UnknownNameError("GPU", node.gpu, gpus, where=f"node configuration {node.node_config}")
        rates = best_rates(node, gpus[node.gpu], efficiencies.get(node.gpu), shape, cells, times)
        tables.append(_unprofiled_row(node, cells) if rates is None else _rows(rates, cells))
    return pa.concat_tables(tables) if tables else PROFILE_SCHEMA.empty_table()


def best_rates(
    node: NodeConfig,
    gpu: Gpu,
    eff: Efficiency | None,
    shape: ModelShape,
    cells: Cells,
    times: dict[tuple[str, int], StageTimes] | None = None,
) -> ConfigRates | None:
    """The best layout of every cell of ``node``, closed; None where the GPU has no factors for any legal layout."""
    if eff is None:
        return None
    times = {} if times is None else times
    roofline = Roofline(gpu, eff, shape)
    legal = legal_layouts(shape, node.gpu_count)
    layouts = tuple(layout for layout in legal if not roofline.missing_factors(layout.tp))
    if legal and not layouts:
        return None
    size = (*cells.cycle_ms.shape, shape.spec.layers)
    rate, memory = np.zeros(size), np.zeros(size)
    batch, chosen = np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    outcome = np.full(size, REASONS.index(Infeasible.LAYOUT), dtype=np.int8)
    for number, layout in enumerate(layouts):
        key = (node.gpu, layout.tp)
        if key not in times:
            times[key] = StageTimes.build(roofline, layout.tp, cells)
        solved = LayoutSolver(node, gpu, shape, cells, layout, times[key]).solve()
        # Strictly better only: among equals the earlier, simpler layout stays.
        better = solved.rate_tok_per_s > rate
        rate[better], batch[better] = solved.rate_tok_per_s[better], solved.batch[better]
        memory[better], chosen[better] = solved.memory_gib[better], number
        outcome = np.maximum(outcome, solved.outcome)
    if cells.mode is Mode.CYCLE:
        close_over_cycles(cells.stages == 1, rate, outcome, batch, memory, chosen)
    closed = close_over_layers(rate, outcome)
    provenance = tuple(provenance_of(roofline, layout, node, cells.mode) for layout in layouts)
    rel_error = tuple(rel_error_of(eff, ground, cells) for ground in provenance)
    return ConfigRates(node, layouts, provenance, rel_error, closed, batch, memory, chosen, outcome)


def close_over_cycles(alone: NDArray[np.bool_], rate: NDArray[np.float64], *others: NDArray[Any]) -> None:
    """In the combos ``alone`` [combos], in place: a cell takes all values of the best cell of a shorter cycle where that
    is faster. Arrays [combos, cycles, layers], cycles longest first.

    The nodes of a single stage hold the whole model each and wait for no one: each runs at the cycle it does best at,
    whatever the others of the stage do.
    """
    for longer in range(rate.shape[1] - 2, -1, -1):
        better = (rate[:, longer + 1] > rate[:, longer]) & alone[:, None]
        for array in (*others, rate):
            array[:, longer][better] = array[:, longer + 1][better]


def close_over_layers(rate: NDArray[np.float64], outcome: NDArray[np.int8]) -> NDArray[np.float64]:
    """Rates made non-increasing along the last axis by lowering, so that each cell keeps a layout that reaches at least
    what it claims. A cell closed down to nothing becomes infeasible for its layout in ``outcome``.

    One layout's rates fall with layers by themselves; only where more layers admit a layout that fewer do not (as many
    inner stages as layers) can the best over layouts rise.
    """
    closed = np.minimum.accumulate(rate, axis=-1)
    outcome[(closed == 0) & (outcome == FEASIBLE)] = REASONS.index(Infeasible.LAYOUT)
    return closed


def provenance_of(roofline: Roofline, layout: Layout, node: NodeConfig, mode: Mode) -> Provenance:
    """The weakest ground of what a layout's rates rest on."""
    # A network nobody states is a guess, and in cycle mode it can be what limits the node.
    if node.network_gbit_per_s is None and mode is Mode.CYCLE:
        return Provenance.DERIVED
    return roofline.provenance(layout.tp)


def rel_error_of(eff: Efficiency, ground: Provenance, cells: Cells) -> float:
    """The error on held-out models; where a factor was borrowed nobody measured it on this GPU, so no less than the error
    assumed of what is not measured."""
    phase = "prefill" if cells.workload.phase is Phase.PREFILL else "decode"
    measured = eff.rel_error.get(phase, cells.settings.unknown_rel_error)
    return max(measured, cells.settings.unknown_rel_error) if ground is Provenance.BORROWED else measured


def _rows(rates: ConfigRates, cells: Cells) -> pa.Table:
    """The compact rows of one configuration: feasible cells and the first infeasible one after them."""
    feasible = rates.rate_tok_per_s > 0
    shown = feasible.copy()
    shown[:, :, 0] = True
    shown[:, :, 1:] |= feasible[:, :, :-1]
    shown &= ~np.isnan(cells.cycle_ms)[:, :, None]
    combo, cycle, layer = np.nonzero(shown)
    at = (combo, cycle, layer)
    good = feasible[at]
    size = len(good)
    none = ~good
    layout = np.maximum(rates.layout[at], 0)
    table = rates.layouts or (Layout(1, 1, 1),)
    provenance = rates.provenance or (Provenance.DERIVED,)
    rel_error = np.array(rates.rel_error or (cells.settings.unknown_rel_error,))

    def per_layout(values: Sequence[int]) -> pa.Array:
        return pa.array(np.array(values, dtype=np.int8)[layout], mask=none)

    def named(names: Sequence[str], index: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> pa.Array:
        return pa.array(list(names), pa.string()).take(pa.array(index, mask=mask))

    reasons = [reason.value for reason in REASONS]
    columns = [
        pa.repeat(pa.scalar(rates.node.node_config, pa.string()), size),
        pa.repeat(pa.scalar(cells.workload.workload_id, pa.string()), size),
        pa.array((layer + 1).astype(np.int16)),
        named([POSITION_NAMES[position] for _, position in cells.combos], combo),
        pa.array(cells.stages[combo].astype(np.int8)),
        pa.array(cells.cycle_ms[combo, cycle]),
        pa.array(rates.rate_tok_per_s[at], mask=none),
        named(reasons, np.minimum(rates.outcome[at], len(reasons) - 1), mask=good),
        per_layout([item.tp for item in table]),
        per_layout([item.pp for item in table]),
        per_layout([item.replicas for item in table]),
        pa.array(rates.batch[at].astype(np.int32), mask=none),
        pa.array(rates.memory_gib[at], mask=none),
        named([item.value for item in provenance], layout),
        pa.array(rel_error[layout]),
    ]
    return pa.Table.from_arrays(columns, schema=PROFILE_SCHEMA)


def _unprofiled_row(node: NodeConfig, cells: Cells) -> pa.Table:
    row: dict[str, list[object]] = {name: [None] for name in PROFILE_SCHEMA.names}
    row |= {
        "node_config": [node.node_config],
        "workload_id": [cells.workload.workload_id],
        "layers": [1],
        "position": [POSITION_NAMES[Position.ONLY]],
        "stages": [1],
        "cycle_ms": [float(cells.cycle_ms[0, 0])],
        "reason": [Infeasible.UNPROFILED.value],
        "provenance": [Provenance.DERIVED.value],
        "rel_error": [cells.settings.unknown_rel_error],
    }
    return pa.Table.from_pydict(row, schema=PROFILE_SCHEMA)
