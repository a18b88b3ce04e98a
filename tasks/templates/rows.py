"""Solved placements as an Arrow table (TEMPLATE_SCHEMA), built column by column from flat arrays."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.ids import canonical_json, split_node_config
from tasks.templates.curves import PROVENANCES, Layouts, WorkloadCurves
from tasks.templates.exact import SolvedBatch
from tasks.templates.launch_class import LAUNCH_CLASSES, launch_classes
from tasks.templates.schema import MEMBER_TYPE, NODE_TYPE, STAGE_TYPE, TEMPLATE_SCHEMA
from tasks.templates.types import Position

_POSITION_NAMES = tuple(position.name.lower() for position in Position)


@dataclass(frozen=True, slots=True)
class _Members:
    """Every node of every template, by template, stage and slot: flat arrays of one length."""

    row: NDArray[np.int64]
    stage: NDArray[np.int64]
    slot: NDArray[np.int64]
    config: NDArray[np.int64]
    position: NDArray[np.int64]
    rate: NDArray[np.int64]
    layout: dict[str, NDArray[Any]]


def combination_ids(counts: NDArray[np.int8], node_configs: tuple[str, ...]) -> pa.Array:
    """``combination_id`` of each row of counts [N, K]; ``node_configs`` must be sorted."""
    row, config = np.nonzero(counts)
    amount = counts[row, config].astype(np.int64)
    top = int(amount.max(initial=0))
    labels = pa.array([f"{name}*{held}" for name in node_configs for held in range(top + 1)], pa.string())
    ordinal = np.arange(len(row)) - np.searchsorted(row, row)
    columns = []
    for place in range(int(ordinal.max(initial=0)) + 1):
        here = ordinal == place
        index = np.zeros(len(counts), np.int64)
        index[row[here]] = config[here] * (top + 1) + amount[here]
        absent = np.ones(len(counts), bool)
        absent[row[here]] = False
        columns.append(labels.take(pa.array(index, mask=absent)))
    return pc.binary_join_element_wise(*columns, "+", null_handling="skip")


def template_ids(shard_id: str, combinations: list[str], restriction: str = "") -> list[str]:
    """``template_id`` = h(shard_id, combination_id), or h(shard_id, combination_id, restriction) for the best placement
    under a restriction, for many combinations of one shard."""
    stem = hashlib.sha256(f"[{canonical_json(shard_id)},".encode())
    end = f",{canonical_json(restriction)}]" if restriction else "]"
    ids = []
    for combination in combinations:
        digest = stem.copy()
        digest.update(f"{canonical_json(combination)}{end}".encode())
        ids.append(digest.hexdigest()[:16])
    return ids


def select_rows(batch: SolvedBatch, rows: NDArray[np.integer] | NDArray[np.bool_]) -> SolvedBatch:
    """Some rows of a batch."""
    return SolvedBatch(*(getattr(batch, name)[rows] for name in SolvedBatch.__slots__))


def _members(batch: SolvedBatch, workload: WorkloadCurves) -> _Members:
    """Flatten the node slots and read each node's rate and layout."""
    n_rows, n_configs = batch.counts.shape
    row_of_kind = np.repeat(np.arange(n_rows), n_configs)
    held = batch.counts.reshape(-1)
    row = np.repeat(row_of_kind, held)
    config = np.repeat(np.tile(np.arange(n_configs), n_rows), held)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    stage = batch.slot_stage[row, slot].astype(np.int64)
    order = np.lexsort((slot, stage, row))
    row, config, slot, stage = row[order], config[order], slot[order], stage[order]
    stages = batch.n_stages[row].astype(np.int64)
    position = np.where(stage == 0, Position.FIRST, np.where(stage == stages - 1, Position.LAST, Position.MID))
    position = np.where(stages == 1, Position.ONLY, position).astype(np.int64)
    cell = (config, stages - 1, position, batch.cycle_index[row].astype(np.int64), batch.stage_layers[row, stage])
    layout = {name: getattr(workload.layouts, name)[cell] for name in Layouts.__slots__}
    return _Members(row, stage, slot, config, position, workload.curves.rate_mtok_per_s[cell], layout)


def _per_slot(values: NDArray[Any], members: _Members, shape: tuple[int, ...]) -> NDArray[np.int64]:
    out = np.zeros(shape, np.int64)
    out[members.row, members.slot] = values
    return out


def _lists(lengths: NDArray[np.int64], values: pa.Array) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _struct(kind: pa.StructType, columns: list[Any]) -> pa.StructArray:
    fields = list(kind)
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column).cast(field.type)
        for column, field in zip(columns, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _stage_lists(batch: SolvedBatch, members: _Members, names: pa.Array) -> pa.ListArray:
    """The nested ``stages`` column. Raises RuntimeError unless every rate is the least sum of its stages."""
    key = members.row * (batch.slot_stage.shape[1] + 1) + members.stage
    first = np.flatnonzero(np.diff(key, prepend=-1))
    sums = np.add.reduceat(members.rate, first)
    size = np.diff(np.append(first, len(key)))
    row, stage = members.row[first], members.stage[first]
    slowest = np.minimum.reduceat(sums, np.flatnonzero(np.diff(row, prepend=-1)))
    if not np.array_equal(slowest, batch.throughput_mtok_per_s) or members.rate.min() <= 0:
        raise RuntimeError("a solved placement's rate is not the least of its stages")
    ends = np.cumsum(batch.stage_layers.astype(np.int64), axis=1)[row, stage]
    layout = members.layout
    per_node = [members.slot, names.take(pa.array(members.config)), members.rate / np.repeat(sums, size), members.rate]
    per_node += [layout[name] for name in ("tp", "pp", "replicas", "batch")]
    per_stage = [
        stage,
        ends - batch.stage_layers[row, stage],
        ends - 1,
        pa.array(_POSITION_NAMES).take(pa.array(members.position[first])),
        _lists(size, _struct(MEMBER_TYPE, per_node)),
    ]
    return _lists(batch.n_stages.astype(np.int64), _struct(STAGE_TYPE, per_stage))


def template_table(shard_id: str, batch: SolvedBatch, workload: WorkloadCurves, restriction: str = "") -> pa.Table:
    """Rows (TEMPLATE_SCHEMA) of all combinations with a rate, sorted by ``combination_id``.

    ``batch.counts`` refer to ``workload.curves.node_configs``, which must be sorted. ``restriction`` goes into the ids. A
    template's provenance is the weakest of its nodes', its ``rel_error`` the largest.
    """
    names = workload.curves.node_configs
    batch = select_rows(batch, np.flatnonzero(batch.throughput_mtok_per_s > 0))
    if len(batch.counts) == 0:
        return TEMPLATE_SCHEMA.empty_table()
    ids = combination_ids(batch.counts, names)
    order = pc.sort_indices(ids).to_numpy().astype(np.int64)
    ids, batch = ids.take(pa.array(order)), select_rows(batch, order)
    n = len(ids)
    name_array = pa.array(names, pa.string())
    members = _members(batch, workload)
    starts = np.flatnonzero(np.diff(members.row, prepend=-1))
    gpus = np.array([split_node_config(name)[1] for name in names])[members.config]
    shape = batch.slot_stage.shape
    launch = launch_classes(
        batch.slot_stage,
        *(_per_slot(values, members, shape) for values in (gpus, members.layout["tp"], members.layout["replicas"])),
    )
    kind_row, kind = np.nonzero(batch.counts)
    kinds = _struct(NODE_TYPE, [name_array.take(pa.array(kind)), batch.counts[kind_row, kind]])
    cycle_ms = workload.curves.cycle_ms[batch.n_stages.astype(np.int64) - 1, batch.cycle_index]
    columns = [
        pa.repeat(pa.scalar(shard_id, pa.string()), n),
        pa.array(template_ids(shard_id, ids.to_pylist(), restriction), pa.string()),
        pa.repeat(pa.scalar(workload.curves.workload_id, pa.string()), n),
        ids,
        pa.array(batch.counts.sum(axis=1, dtype=np.int16)),
        pa.array(batch.n_stages.astype(np.int16)),
        pa.array(batch.throughput_mtok_per_s),
        pa.array(cycle_ms),
        pa.array(LAUNCH_CLASSES).take(pa.array(launch)),
        pa.array(PROVENANCES).take(pa.array(np.maximum.reduceat(members.layout["provenance"], starts))),
        pa.array(np.maximum.reduceat(members.layout["rel_error"], starts)),
        _lists(np.bincount(kind_row, minlength=n), kinds),
        _stage_lists(batch, members, name_array),
    ]
    return pa.Table.from_arrays(columns, schema=TEMPLATE_SCHEMA)
