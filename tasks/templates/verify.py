"""Independent check of solved templates against the profile rows themselves.

Nothing here uses the solver's arrays: rates and layouts are joined from the profiles table by their keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.ids import combination_id
from tasks.templates.curves import to_mtok_per_s
from tasks.templates.launch_class import LAUNCHABLE
from tasks.templates.types import LaunchClass

_SHARE_TOLERANCE = 1e-12
_LAYOUT = ("tp", "pp", "replicas", "batch")
_CELL = ["node_config", "stages", "position", "cycle", "layers"]


@dataclass(frozen=True, slots=True)
class _Exploded:
    """Templates as flat stage and member columns; ``stage_row`` and ``member_stage`` point to the level above."""

    table: pa.Table
    stages: dict[str, pa.Array]
    members: dict[str, pa.Array]
    stage_row: NDArray[np.int64]
    member_stage: NDArray[np.int64]

    def stage(self, name: str) -> NDArray[np.int64]:
        """A whole-number stage column."""
        return self.stages[name].to_numpy(zero_copy_only=False).astype(np.int64)

    def member(self, name: str) -> NDArray[np.int64]:
        """A whole-number member column."""
        return self.members[name].to_numpy(zero_copy_only=False).astype(np.int64)

    def row(self, name: str) -> NDArray[np.int64]:
        """A whole-number template column."""
        return self.table[name].to_numpy().astype(np.int64)


def _fields(array: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in array.type), array.flatten(), strict=True))


def _explode(table: pa.Table) -> _Exploded:
    lists = table["stages"].combine_chunks()
    stages = _fields(lists.flatten())
    members = stages.pop("members")
    return _Exploded(
        table,
        stages,
        _fields(members.flatten()),
        pc.list_parent_indices(lists).to_numpy().astype(np.int64),
        pc.list_parent_indices(members).to_numpy().astype(np.int64),
    )


def verify_templates(
    templates: pa.Table, profiles: pa.Table, layers: int, launch: pa.Table | None = None
) -> tuple[str, ...]:
    """What is wrong with solved templates of one workload (TEMPLATE_SCHEMA), one line per kind of fault; empty = nothing.

    Checks that stages cover layers 0..layers-1 exactly once in order, in the right positions; that every node of the
    combination serves exactly one stage; that each member has the rate (rounded down to milli-tok/s, more than 0) and the
    layout of its row in ``profiles``, or for class B1 in ``launch``; that shares are parts of the stage's rate; that the
    template's rate is the least of its stages; and that a second template of a combination is a launchable one beside a
    faster or equal one that is not.
    """
    if templates.num_rows == 0:
        return ()
    flat = _explode(templates)
    rate_faults, layout_faults = _profile_faults(flat, profiles, launch)
    faults = {
        "layers are not covered exactly once": _layer_faults(flat, layers),
        "a stage is in the wrong position": _position_faults(flat),
        "nodes do not match the combination": _node_faults(flat),
        "a node's rate is not that of its profile row": rate_faults,
        "a node's layout is not that of its profile row": layout_faults,
        "the rate is not the least of the stages' rates": _rate_faults(flat),
        "shares are not parts of the stage's rate": _share_faults(flat),
        "a second template of a combination is not a launchable one that the first is not": _second_faults(flat),
    }
    ids = templates["combination_id"]
    return tuple(
        f"{text}: {int(bad.sum())} of {templates.num_rows} templates, first {ids[int(np.argmax(bad))].as_py()}"
        for text, bad in faults.items()
        if bad.any()
    )


def _rows_with(flat: _Exploded, bad_stage: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.bincount(flat.stage_row[bad_stage], minlength=flat.table.num_rows) > 0


def _layer_faults(flat: _Exploded, layers: int) -> NDArray[np.bool_]:
    start, end, row = flat.stage("layer_start"), flat.stage("layer_end"), flat.stage_row
    is_first = np.diff(row, prepend=-1) != 0
    is_last = np.append(is_first[1:], True)
    bad = (end < start) | (is_last & (end != layers - 1))
    bad |= start != np.where(is_first, 0, np.append(0, end[:-1]) + 1)
    return _rows_with(flat, bad) | (np.bincount(row, minlength=flat.table.num_rows) != flat.row("n_stages"))


def _position_faults(flat: _Exploded) -> NDArray[np.bool_]:
    number, row = flat.stage("stage"), flat.stage_row
    stages = flat.row("n_stages")[row]
    expected = np.where(number == 0, "first", np.where(number == stages - 1, "last", "mid"))
    expected = np.where(stages == 1, "only", expected)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    ordinal = np.arange(len(row)) - first[np.cumsum(np.diff(row, prepend=-1) != 0) - 1]
    actual = np.array(flat.stages["position"].to_pylist())
    return _rows_with(flat, (actual != expected) | (number != ordinal))


def _node_faults(flat: _Exploded) -> NDArray[np.bool_]:
    """Slots 0..n-1 once each, and the counts per configuration those of ``nodes`` and ``combination_id``."""
    member_row = flat.stage_row[flat.member_stage]
    n = flat.row("n_nodes")
    slot = flat.member("node_slot")
    bad = np.bincount(member_row, minlength=len(n)) != n
    key = np.unique(member_row * 64 + slot)
    bad |= np.bincount(key // 64, minlength=len(n)) != n
    bad |= np.bincount(member_row[(slot < 0) | (slot >= n[member_row])], minlength=len(n)) > 0
    lists = flat.table["nodes"].combine_chunks()
    kinds = _fields(lists.flatten())
    kind_row = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    names = pa.concat_arrays([kinds["node_config"], flat.members["node_config"]]).dictionary_encode()
    code = names.indices.to_numpy().astype(np.int64)
    width = len(names.dictionary)
    stated, served = np.zeros((2, len(n) * width), np.int64)
    np.add.at(stated, kind_row * width + code[: len(kind_row)], kinds["nodes"].to_numpy().astype(np.int64))
    np.add.at(served, member_row * width + code[len(kind_row) :], 1)
    bad |= (stated != served).reshape(len(n), width).any(axis=1)
    texts = names.dictionary.to_pylist()
    held: list[dict[str, int]] = [{} for _ in range(len(n))]
    for row, kind in np.argwhere(stated.reshape(len(n), width)).tolist():
        held[row][texts[kind]] = int(stated[row * width + kind])
    ids = flat.table["combination_id"].to_pylist()
    return bad | np.array([combination_id(nodes) != text for nodes, text in zip(held, ids, strict=True)])


def _profile_faults(
    flat: _Exploded, profiles: pa.Table, launch: pa.Table | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Templates with a member whose rate, or whose layout, differs from its profile row."""
    stage = flat.member_stage
    row = flat.stage_row[stage]
    held = (flat.stage("layer_end") - flat.stage("layer_start") + 1)[stage]
    wanted = pa.table(
        {
            "index": np.arange(len(stage)),
            "node_config": flat.members["node_config"],
            "stages": flat.row("n_stages")[row],
            "position": flat.stages["position"].take(pa.array(stage)),
            "cycle": flat.table["cycle_ms"].to_numpy()[row].view(np.int64),
            "layers": held,
        }
    )
    joined = wanted.join(_profile_rows(profiles), _CELL, join_type="left outer").sort_by("index")
    bad_rate, bad_layout = _differences(flat, joined)
    if launch is not None and launch.num_rows:
        for name in ("tp", "pp", "replicas"):
            wanted = wanted.append_column(name, pa.array(flat.member(name), pa.int8()))
        rows = _profile_rows(launch)
        joined = wanted.join(rows, [*_CELL, "tp", "pp", "replicas"], join_type="left outer").sort_by("index")
        for name in ("tp", "pp", "replicas"):
            joined = joined.set_column(joined.schema.get_field_index(name), name, pa.array(flat.member(name)))
        else_rate, else_layout = _differences(flat, joined)
        may_differ = (np.array(flat.table["launch_class"].to_pylist()) == LaunchClass.B1.value)[row]
        explained = may_differ & ~else_rate & ~else_layout
        bad_rate, bad_layout = bad_rate & ~explained, bad_layout & ~explained
    n = flat.table.num_rows
    return np.bincount(row[bad_rate], minlength=n) > 0, np.bincount(row[bad_layout], minlength=n) > 0


def _profile_rows(profiles: pa.Table) -> pa.Table:
    """Profile rows with their keys in the types of ``wanted``."""
    return pa.table(
        {
            "node_config": profiles["node_config"].cast(pa.string()),
            "stages": profiles["stages"].cast(pa.int64()),
            "position": profiles["position"].cast(pa.string()),
            "cycle": profiles["cycle_ms"].to_numpy().view(np.int64),
            "layers": profiles["layers"].cast(pa.int64()),
            "rate": profiles["throughput_tok_per_s"],
            **{name: profiles[name] for name in _LAYOUT},
        }
    )


def _differences(flat: _Exploded, joined: pa.Table) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Members whose rate, and whose layout, is not that of the row joined to them."""
    rate = flat.member("throughput_mtok_per_s")
    bad_rate = (to_mtok_per_s(joined["rate"].fill_null(0.0).to_numpy()) != rate) | (rate <= 0)
    bad_layout = np.zeros(len(rate), bool)
    for name in _LAYOUT:
        bad_layout |= joined[name].fill_null(-1).to_numpy().astype(np.int64) != flat.member(name)
    return bad_rate, bad_layout


def _second_faults(flat: _Exploded) -> NDArray[np.bool_]:
    """Combinations with two templates of which not exactly the slower one is launchable, or with more than two."""
    _, combination = np.unique(np.array(flat.table["combination_id"].to_pylist()), return_inverse=True)
    number = np.bincount(combination)
    is_launchable = np.isin(np.array(flat.table["launch_class"].to_pylist()), sorted(LAUNCHABLE))
    rate = flat.row("throughput_mtok_per_s")
    free, bound = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
    np.maximum.at(free, combination[~is_launchable], rate[~is_launchable])
    np.maximum.at(bound, combination[is_launchable], rate[is_launchable])
    launchable = np.bincount(combination, weights=is_launchable)
    bad = (number > 2) | ((number == 2) & ((launchable != 1) | (bound > free)))
    return bad[combination]


def _stage_sums(flat: _Exploded) -> NDArray[np.int64]:
    sums = np.zeros(len(flat.stage_row), np.int64)
    np.add.at(sums, flat.member_stage, flat.member("throughput_mtok_per_s"))
    return sums


def _rate_faults(flat: _Exploded) -> NDArray[np.bool_]:
    least = np.full(flat.table.num_rows, np.iinfo(np.int64).max)
    np.minimum.at(least, flat.stage_row, _stage_sums(flat))
    return least != flat.row("throughput_mtok_per_s")


def _share_faults(flat: _Exploded) -> NDArray[np.bool_]:
    share = flat.members["share"].to_numpy()
    part = flat.member("throughput_mtok_per_s") / np.maximum(_stage_sums(flat), 1)[flat.member_stage]
    row = flat.stage_row[flat.member_stage]
    return np.bincount(row[~(np.abs(share - part) <= _SHARE_TOLERANCE)], minlength=flat.table.num_rows) > 0
