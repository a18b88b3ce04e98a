"""Profile rows as dense curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from template_tables import profile_table, random_curves

from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.curves import config_hashes, curves_from_profiles, workload_curves
from tasks.templates.types import Position

ROW: dict[str, Any] = {
    "node_config": "L4x1",
    "workload_id": "w",
    "layers": 1,
    "position": "only",
    "stages": 1,
    "cycle_ms": 50.0,
    "throughput_tok_per_s": 1.2349,
    "reason": None,
    "tp": 1,
    "pp": 1,
    "replicas": 1,
    "batch": 16,
    "memory_used_gib": 3.0,
    "provenance": "fitted",
    "rel_error": 0.1,
}


def table(*changes: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([ROW | change for change in changes], schema=PROFILE_SCHEMA)


def test_rates_are_rounded_down_to_whole_milli_tokens() -> None:
    curves = curves_from_profiles(table({}))
    assert curves.rate_mtok_per_s.dtype == np.int64
    assert curves.rate_mtok_per_s[0, 0, Position.ONLY, 0].tolist() == [0, 1234]


def test_axes_are_sorted_whatever_the_order_of_rows() -> None:
    rows = table(
        {"node_config": "L4x2", "stages": 2, "position": "last", "cycle_ms": 20.0, "throughput_tok_per_s": 4.0},
        {"node_config": "L4x2", "stages": 2, "position": "last", "cycle_ms": 10.0, "throughput_tok_per_s": 3.0},
        {"cycle_ms": 30.0, "layers": 2, "throughput_tok_per_s": 1.0},
        {"cycle_ms": 30.0, "layers": 1, "throughput_tok_per_s": 2.0},
    )
    curves = curves_from_profiles(rows, layers=3)
    assert curves.node_configs == ("L4x1", "L4x2")
    assert np.array_equal(curves.cycle_ms, [[30.0, np.nan], [10.0, 20.0]], equal_nan=True)
    assert curves.rate_mtok_per_s.shape == (2, 2, 4, 2, 4)
    assert curves.rate_mtok_per_s[0, 0, Position.ONLY, 0].tolist() == [0, 2000, 1000, 0]
    assert curves.rate_mtok_per_s[1, 1, Position.LAST, :, 1].tolist() == [3000, 4000]
    assert curves.rate_mtok_per_s.sum() == 10_000


def test_null_is_infeasible_and_layouts_are_those_of_the_cell() -> None:
    loaded = workload_curves(
        table(
            {"layers": 1, "tp": 2, "batch": 32, "provenance": "borrowed", "rel_error": 0.3},
            {"layers": 2, "throughput_tok_per_s": None, "reason": "memory", "tp": None, "batch": None},
        )
    )
    assert loaded.curves.rate_mtok_per_s[0, 0, 0, 0].tolist() == [0, 1234, 0]
    layouts = loaded.layouts
    assert layouts.tp[0, 0, 0, 0].tolist() == [0, 2, 0]
    assert layouts.batch[0, 0, 0, 0].tolist() == [0, 32, 0]
    assert layouts.provenance[0, 0, 0, 0].tolist() == [0, 2, 0]
    assert layouts.rel_error[0, 0, 0, 0].tolist() == [0, 0.3, 0]


def test_configurations_without_a_rate_are_not_usable() -> None:
    loaded = workload_curves(table({}, {"node_config": "A10Gx1", "throughput_tok_per_s": None, "reason": "unprofiled"}))
    assert loaded.curves.node_configs == ("A10Gx1", "L4x1")
    assert loaded.usable() == ("L4x1",)
    assert loaded.take(("L4x1",)).curves.node_configs == ("L4x1",)
    with pytest.raises(KeyError):
        loaded.take(("H100x1",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (({}, {}), "two rows"),
        (({"throughput_tok_per_s": float("nan")},), "number >= 0"),
        (({"throughput_tok_per_s": -1.0},), "number >= 0"),
        (({"throughput_tok_per_s": float("inf")},), "number >= 0"),
        (({}, {"layers": 2, "throughput_tok_per_s": 1.5}), "grows with layers"),
        (({}, {"workload_id": "v"}), "one workload"),
        (({"position": "middle"},), "'middle' is none of"),
        (({"provenance": "guessed"},), "'guessed' is none of"),
        (({"layers": 0},), "1..0"),
        (({"cycle_ms": float("nan")},), "cycle_ms"),
        ((), "no rows"),
    ],
)
def test_faulty_tables_are_refused(changes: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        workload_curves(table(*changes))


def test_more_layers_than_the_model_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.\.1"):
        workload_curves(table({}, {"layers": 2, "throughput_tok_per_s": 0.5}), layers=1)


def test_a_table_made_from_curves_gives_the_same_curves() -> None:
    curves = random_curves(np.random.default_rng(2), configs=3, layers=7, stages=3, cycles=2)
    curves.rate_mtok_per_s[:, 1, Position.MID] = 0  # two stages have no middle, so no such rows
    loaded = curves_from_profiles(profile_table(curves), layers=7)
    assert np.array_equal(loaded.rate_mtok_per_s, curves.rate_mtok_per_s[:, : loaded.cycle_ms.shape[0]])


def test_hash_of_a_configuration_depends_on_its_own_rows_alone() -> None:
    one = config_hashes(workload_curves(table({}), layers=3))["L4x1"]
    others = table({}, {"node_config": "H100x1", "stages": 2, "position": "last", "cycle_ms": 7.0})
    assert config_hashes(workload_curves(others, layers=3))["L4x1"] == one
    for change in ({"throughput_tok_per_s": 1.3}, {"tp": 2}, {"batch": 17}, {"cycle_ms": 51.0}, {"rel_error": 0.2}):
        assert config_hashes(workload_curves(table(change), layers=3))["L4x1"] != one
    assert config_hashes(workload_curves(table({}), layers=4))["L4x1"] != one
