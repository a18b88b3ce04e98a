"""Rates of one-replica layouts: against a search over every batch, beside measurements, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiling_cases import EFF, EXPERTS, GPU, SPEC, WINDOWED, Oracle, node, workload

from catalogs.measured import MeasuredRate
from catalogs.types import Lengths, Phase
from tasks.profiling.launch import launch_profile
from tasks.profiling.measured import with_measured
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import profile_workload
from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.curves import launch_curves, workload_curves

SMALL = ProfileSettings(max_prefill_tokens=256, cuda_graph_batch_sizes=(1, 2, 4, 8, 16, 32))
POSITIONS = ("only", "first", "mid", "last")


def both(work, nodes, gpu=GPU, measured=()) -> tuple[pa.Table, pa.Table]:
    args = (nodes, {"X100": gpu}, {"X100": EFF}, SMALL)
    best = profile_workload(work, *args, max_stages=3)
    best = with_measured(best, measured, work, SMALL, max_stages=3)
    return best, launch_profile(best, work, *args, max_stages=3)


def key(row: dict) -> tuple:
    return (row["node_config"], row["stages"], row["position"], row["cycle_ms"], row["layers"])


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    gpus=st.sampled_from([2, 4]),
    memory_gib=st.sampled_from([2.2, 3.0, 80.0]),
    slo_ms=st.sampled_from([8.0, 15.0, 60.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_cells_equal_a_search_over_every_batch_of_the_layout(
    spec, phase: Phase, gpus: int, memory_gib: float, slo_ms: float, seed: int
) -> None:
    gpu = replace(GPU, memory_gib=memory_gib)
    lengths = Lengths(90.0, 128.0, 1.5 * 90.0**2, 2 * 128.0**2, 90.0 * 128.0, 180.0)
    work = workload(spec, phase, slo_ms, lengths)
    config = node(gpus, 1e5, gpu)
    best, launch = both(work, [config], gpu)
    curves = launch_curves(workload_curves(best, 6), launch)
    oracle = Oracle(work, config, SMALL, EFF, gpu)
    rng = np.random.default_rng(seed)
    for _ in range(6):
        tp, stages = int(rng.choice([t for t in (1, 2, 4) if t <= gpus])), int(rng.integers(2, 4))
        place, layers = int(rng.integers(1, 4)), int(rng.integers(1, 7))
        grid = workload_curves(best, 6).curves.cycle_ms[stages - 1]
        slot = int(rng.integers(0, np.isfinite(grid).sum()))
        got = int(curves[tp].curves.rate_mtok_per_s[0, stages - 1, place, slot, layers]) if tp in curves else 0
        # Fewer layers than inner stages are no placement of this layout, and what holds more layers is no faster.
        reach = [
            oracle.best_rate(j, stages, POSITIONS[place], float(grid[slot]), (tp, gpus // tp, 1))
            for j in range(gpus // tp, layers + 1)
        ]
        expected = min(reach, default=0.0)
        if layers >= gpus // tp:
            assert got == pytest.approx(expected * 1000, rel=1e-9, abs=1.0)


def test_rows_are_those_the_profile_does_not_have() -> None:
    best, launch = both(workload(SPEC, Phase.DECODE, 100.0), [node(1), node(2), node(4)])
    assert launch.schema == PROFILE_SCHEMA
    rows = launch.to_pylist()
    assert {row["node_config"] for row in rows} == {"X100x2", "X100x4"}  # one GPU has no other layout
    assert {(row["replicas"], row["reason"]) for row in rows} == {(1, None)}
    assert min(row["stages"] for row in rows) == 2
    assert len({(*key(row), row["tp"]) for row in rows}) == len(rows)
    by_cell = {key(row): row for row in best.to_pylist()}
    for row in rows:
        cell = by_cell[key(row)]
        assert row["tp"] * row["pp"] == int(row["node_config"][-1])
        assert 0 < row["throughput_tok_per_s"] <= cell["throughput_tok_per_s"]
        assert (row["tp"], 1) != (cell["tp"], cell["replicas"])
        assert row["layers"] >= row["pp"] or row["throughput_tok_per_s"] <= cell["throughput_tok_per_s"]


def test_a_slow_measurement_of_the_node_caps_every_layout() -> None:
    work = workload(SPEC, Phase.DECODE, 100.0)
    slow = MeasuredRate("X100x2", "acme/six", Phase.DECODE, 2, "mid", 2, 50.0, 7.0, None, None, None, 0.02, "m.csv", 1)
    _, launch = both(work, [node(2)], measured=[slow])
    at = (pc.field("stages") == 2) & (pc.field("position") == "mid") & (pc.field("cycle_ms") == 50.0)
    rows = launch.filter(at & (pc.field("layers") >= 2)).to_pylist()
    assert rows
    assert {row["throughput_tok_per_s"] for row in rows} == {7.0}


def test_a_fast_measurement_of_a_layout_holds_for_fewer_layers() -> None:
    work = workload(SPEC, Phase.DECODE, 100.0)
    fast = MeasuredRate(
        "X100x2", "acme/six", Phase.DECODE, 3, "mid", 2, 50.0, 1e7, (2, 1, 1), 16, None, 0.02, "m.csv", 1
    )
    best, launch = both(work, [node(2)], measured=[fast])
    curve = launch_curves(workload_curves(best, 6), launch)[2].curves
    slot = int(np.flatnonzero(curve.cycle_ms[1] == 50.0)[0])
    assert curve.rate_mtok_per_s[0, 1, 2, slot, 1:4].tolist() == [10**10] * 3


def test_a_gpu_without_factors_has_no_rows() -> None:
    work = workload(SPEC, Phase.DECODE, 100.0)
    best = profile_workload(work, [node(2)], {"X100": GPU}, {}, SMALL, max_stages=3)
    assert launch_profile(best, work, [node(2)], {"X100": GPU}, {}, SMALL, max_stages=3).num_rows == 0


def test_a_profile_of_other_cycles_is_refused() -> None:
    work = workload(SPEC, Phase.DECODE, 100.0)
    best = profile_workload(replace(work, slo_ms=90.0), [node(2)], {"X100": GPU}, {"X100": EFF}, SMALL, max_stages=3)
    with pytest.raises(ValueError, match="other cycles"):
        launch_profile(best, work, [node(2)], {"X100": GPU}, {"X100": EFF}, SMALL, max_stages=3)
