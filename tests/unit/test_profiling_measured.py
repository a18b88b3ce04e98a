"""Measured rates in place of modelled ones: which cells change, to what, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiling_cases import EFF, GPU, SPEC, node, workload

from catalogs.errors import CoralError
from catalogs.measured import MeasuredRate
from catalogs.types import Phase
from tasks.profiling.measured import with_measured
from tasks.profiling.profile import profile_workload
from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.curves import workload_curves

WORK = workload(SPEC, Phase.DECODE, 100.0)
NODES = [node(1), node(2)]
TABLE = profile_workload(WORK, NODES, {GPU.gpu: GPU}, {GPU.gpu: EFF}, max_stages=3)


def rate(**changes) -> MeasuredRate:
    base = MeasuredRate(
        "X100x2", "acme/six", Phase.DECODE, 6, "only", 1, None, 1000.0, None, None, None, 0.02, "measured.csv", 4
    )
    return replace(base, **changes)


def curve(table: pa.Table, stages: int = 1, position: str = "only", config: str = "X100x2", cycle: float = 100.0):
    rows = table.filter(
        pc.and_(
            pc.and_(pc.equal(table["node_config"], config), pc.equal(table["stages"], stages)),
            pc.and_(pc.equal(table["position"], position), pc.equal(table["cycle_ms"], cycle)),
        )
    ).to_pylist()
    return {row["layers"]: row for row in rows}


def rates(table: pa.Table, **where) -> list[float | None]:
    return [row["throughput_tok_per_s"] for _, row in sorted(curve(table, **where).items())]


def test_a_slower_measurement_stands_and_lowers_nothing_below() -> None:
    modelled = rates(TABLE)
    table = with_measured(TABLE, [rate()], WORK, max_stages=3)
    cell = curve(table)[6]
    assert (cell["throughput_tok_per_s"], cell["provenance"], cell["rel_error"]) == (1000.0, "measured", 0.02)
    assert rates(table)[:5] == modelled[:5]  # fewer layers keep their modelled rates, which are higher
    # The layout stays the modelled one; the shorter cycles may not claim more than the most within the SLO.
    assert [cell[k] for k in ("tp", "pp", "replicas")] == [curve(TABLE)[6][k] for k in ("tp", "pp", "replicas")]
    for cycle in set(TABLE.filter(pc.equal(TABLE["stages"], 1))["cycle_ms"].to_pylist()):
        six = curve(table, cycle=cycle).get(6)
        assert six is None or six["throughput_tok_per_s"] is None or six["throughput_tok_per_s"] <= 1000.0
    # Other configurations and positions are untouched.
    assert rates(table, config="X100x1") == rates(TABLE, config="X100x1")
    assert rates(table, stages=2, position="mid", cycle=50.0) == rates(TABLE, stages=2, position="mid", cycle=50.0)


def test_a_faster_measurement_raises_fewer_layers() -> None:
    fast = max(r for r in rates(TABLE, stages=2, position="first", cycle=50.0) if r) * 2
    table = with_measured(TABLE, [rate(layers=3, position="first", stages=2, throughput_tok_per_s=fast)], WORK, None)
    found = rates(table, stages=2, position="first", cycle=50.0)
    assert found[:3] == [fast] * 3
    assert found[3:] == rates(TABLE, stages=2, position="first", cycle=50.0)[3:]
    assert {curve(table, 2, "first", cycle=50.0)[j]["provenance"] for j in (1, 2, 3)} == {"measured"}


def test_more_layers_are_no_faster() -> None:
    slow = min(r for r in rates(TABLE, stages=2, position="mid", cycle=50.0) if r) / 2
    table = with_measured(
        TABLE, [rate(layers=2, position="mid", stages=2, cycle_ms=50.0, throughput_tok_per_s=slow)], WORK
    )
    cells = curve(table, 2, "mid", cycle=50.0)
    assert [cells[j]["throughput_tok_per_s"] for j in (2, 3, 4)] == [slow] * 3
    assert (cells[2]["provenance"], cells[3]["provenance"]) == ("measured", "fitted")
    # A stated cycle speaks of that cycle only.
    other = TABLE.filter(pc.and_(pc.equal(TABLE["stages"], 2), pc.less(TABLE["cycle_ms"], 50.0)))["cycle_ms"][0].as_py()
    assert rates(table, stages=2, position="mid", cycle=other) == rates(TABLE, stages=2, position="mid", cycle=other)


def test_where_the_model_has_nothing_the_row_must_say_how() -> None:
    bare = profile_workload(WORK, NODES, {GPU.gpu: GPU}, {}, max_stages=3)
    assert set(bare["reason"].to_pylist()) == {"unprofiled"}
    with pytest.raises(CoralError, match=r"measured\.csv, row 4, tp: no layout is known"):
        with_measured(bare, [rate()], WORK)
    table = with_measured(bare, [rate(layout=(1, 2, 1), batch=16)], WORK)
    cells = curve(table)
    assert [cells[j]["throughput_tok_per_s"] for j in range(1, 7)] == [1000.0] * 6
    # One layer cannot be two inner stages: the two GPUs are two replicas.
    assert [[cells[j][k] for k in ("tp", "pp", "replicas")] for j in (1, 2, 6)] == [[1, 1, 2], [1, 2, 1], [1, 2, 1]]
    assert workload_curves(table, 6).usable() == ("X100x2",)
    with pytest.raises(CoralError, match="a row for fewer layers than inner stages"):
        with_measured(bare, [rate(layers=1, layout=(1, 2, 1))], WORK)


def test_a_cycle_of_no_grid_is_refused_with_those_there_are() -> None:
    with pytest.raises(CoralError, match=r"row 4, cycle_ms: 77 is not a cycle of 1 stages.*use one of 100, 93\.4579"):
        with_measured(TABLE, [rate(cycle_ms=77.0)], WORK)
    third = rate(layers=2, position="mid", stages=3, cycle_ms=33.3, throughput_tok_per_s=10.0)  # 100 / 3
    assert curve(with_measured(TABLE, [third], WORK), 3, "mid", cycle=100 / 3)[2]["throughput_tok_per_s"] == 10.0


def test_rates_of_others_change_nothing() -> None:
    for other in (rate(model="acme/other"), rate(phase=Phase.PREFILL), rate(node_config="X100x8")):
        assert with_measured(TABLE, [other], WORK).equals(TABLE)
    assert with_measured(TABLE, [rate(stages=4, position="mid")], WORK, max_stages=3).equals(TABLE)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["first", "mid", "last"]), st.booleans(), st.floats(0.5, 5e4)),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_measured_the_table_stays_closed_and_sorted(given_rates: list) -> None:
    measured = []
    for layers, position, has_cycle, tok_per_s in given_rates:
        cycle = 50.0 if has_cycle else None
        measured.append(
            rate(layers=layers, position=position, stages=2, cycle_ms=cycle, throughput_tok_per_s=tok_per_s)
        )
    table = with_measured(TABLE, measured, WORK, max_stages=3)
    assert table.schema == PROFILE_SCHEMA
    workload_curves(table, 6)  # refuses curves that rise with layers and two rows of one cell
    keys = [(r["node_config"], r["stages"], -r["cycle_ms"], r["layers"]) for r in table.to_pylist()]
    assert len(set(zip(keys, table["position"].to_pylist(), strict=True))) == len(keys)
