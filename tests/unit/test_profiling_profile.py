"""The profiles table as published: schema, order, compact rows, reasons, provenance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profiling_cases import EFF, EXPERTS, GPU, SPEC, catalog, node, workload

from catalogs.errors import UnknownNameError
from catalogs.types import Lengths, Phase
from tasks.profiling.cells import Cells
from tasks.profiling.cycles import Mode
from tasks.profiling.left_out import ruled_out_by_network, unprofiled
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import best_rates, profile_workload
from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.profiling.shapes import ModelShape

SMALL = ProfileSettings(max_prefill_tokens=1024, cuda_graph_batch_sizes=(1, 2, 4, 8, 16, 32))
POSITIONS = ["only", "first", "mid", "last"]


def table(work, configs=None, gpus=None, effs=None, **kwargs):
    configs = configs or [node(2), node(1)]
    return profile_workload(
        work, configs, gpus or {"X100": GPU}, {"X100": EFF} if effs is None else effs, SMALL, **kwargs
    )


def test_schema_order_and_determinism() -> None:
    work = workload(SPEC, Phase.DECODE, 10.0)
    found = table(work, max_stages=3)
    assert found.schema == PROFILE_SCHEMA
    rows = found.to_pylist()
    key = [(r["node_config"], r["stages"], POSITIONS.index(r["position"]), -r["cycle_ms"], r["layers"]) for r in rows]
    assert key == sorted(key)
    assert len(set(key)) == len(key)
    assert {r["workload_id"] for r in rows} == {work.workload_id}
    assert {(r["stages"], r["position"]) for r in rows} == {(1, "only")} | {
        (s, p) for s in (2, 3) for p in ("first", "mid", "last")
    }
    assert table(work, [node(1), node(2)], max_stages=3).equals(found)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
def test_rows_are_compact_closed_and_complete(phase: Phase, mode: Mode) -> None:
    gpu = replace(GPU, memory_gib=2.2)
    work = workload(SPEC, phase, 6.0)
    rows = table(work, [node(2, 1e5, gpu)], {"X100": gpu}, max_stages=3, mode=mode).to_pylist()
    series: dict[tuple, list[dict]] = {}
    for row in rows:
        series.setdefault((row["stages"], row["position"], row["cycle_ms"]), []).append(row)
    cycles = 1 if mode is Mode.PAPER else 13 if phase is Phase.PREFILL else 10
    assert len(series) == 7 * cycles
    for found in series.values():
        assert [row["layers"] for row in found] == list(range(1, len(found) + 1))
        *feasible, last = found
        values = [row["throughput_tok_per_s"] for row in feasible]
        assert all(value > 0 for value in values)
        assert values == sorted(values, reverse=True)
        assert all(row["reason"] is None and row["tp"] * row["pp"] * row["replicas"] == 2 for row in feasible)
        assert all(row["pp"] <= row["layers"] and row["batch"] >= 1 for row in feasible)
        assert all(row["memory_used_gib"] <= 2.2 for row in feasible)
        if last["throughput_tok_per_s"] is None:
            assert last["reason"] in {"memory", "kv_cache", "slo", "layout"}
            assert last["tp"] is last["batch"] is last["memory_used_gib"] is None
        else:
            assert last["layers"] == 6


def test_the_table_says_what_the_arrays_say() -> None:
    work = workload(EXPERTS, Phase.PREFILL, 20.0)
    cells = Cells(work, SMALL, Mode.CYCLE, 2)
    found = best_rates(node(2), GPU, EFF, ModelShape(EXPERTS, "bf16", "bf16"), cells)
    assert found is not None
    rows = table(work, [node(2)], max_stages=2).to_pylist()
    assert len(rows) > 100
    for row in rows:
        if row["throughput_tok_per_s"] is None:
            continue
        combo = next(
            i for i, (s, p) in enumerate(cells.combos) if (s, p.name.lower()) == (row["stages"], row["position"])
        )
        cycle = list(cells.cycle_ms[combo]).index(row["cycle_ms"])
        at = (combo, cycle, row["layers"] - 1)
        layout = found.layouts[found.layout[at]]
        assert row["throughput_tok_per_s"] == found.rate_tok_per_s[at]
        assert (row["tp"], row["pp"], row["replicas"], row["batch"]) == (
            layout.tp,
            layout.pp,
            layout.replicas,
            found.batch[at],
        )


def reasons_at_full(work, gpu=GPU) -> set[str | None]:
    """The reasons in the rows of a single stage."""
    rows = table(work, [node(1, 1e5, gpu)], {"X100": gpu}, max_stages=1).to_pylist()
    return {row["reason"] for row in rows if row["reason"]}


def test_a_single_stage_is_closed_over_cycles() -> None:
    """With one stage a row holds the best of all cycles up to its own, with that cell's layout and batch."""
    gpu = replace(GPU, memory_gib=2.2)
    work = workload(SPEC, Phase.DECODE, 30.0)
    rows = [r for r in table(work, [node(2, 1e5, gpu)], {"X100": gpu}).to_pylist() if r["throughput_tok_per_s"]]
    own_cycles = set()
    for layers in range(1, 7):
        alone = [row for row in rows if (row["stages"], row["layers"]) == (1, layers)]
        assert [row["cycle_ms"] for row in alone] == sorted((row["cycle_ms"] for row in alone), reverse=True)
        values = [row["throughput_tok_per_s"] for row in alone]
        assert values == sorted(values, reverse=True)
        for row in alone:
            own = row["replicas"] * row["pp"] * row["batch"] / row["throughput_tok_per_s"] * 1000
            assert own <= row["cycle_ms"] * (1 + 1e-9)
            own_cycles.add((layers, round(own, 6)))
    # Memory holds so few sequences that allowing more time changes nothing: the node keeps to what its batch takes.
    assert len(own_cycles) < 6 * len(SMALL.decode_cycle_divisors)
    middle = [row for row in rows if (row["stages"], row["position"], row["layers"]) == (3, "mid", 2)]
    assert [row["throughput_tok_per_s"] for row in middle] != sorted(
        (row["throughput_tok_per_s"] for row in middle), reverse=True
    )  # a pipeline's cycles stay apart


def test_each_reason_fires_alone() -> None:
    decode = workload(SPEC, Phase.DECODE, 1e5)
    assert reasons_at_full(decode) == set()
    assert reasons_at_full(decode, replace(GPU, memory_gib=1.9)) == {"memory"}
    long = replace(decode, lengths=Lengths.constant(60000.0, 10.0))
    assert reasons_at_full(long, replace(GPU, memory_gib=2.05)) == {"kv_cache"}
    assert reasons_at_full(replace(decode, slo_ms=0.05)) == {"slo"}


def test_unprofiled_is_one_marker_row() -> None:
    work = workload(SPEC, Phase.DECODE, 20.0)
    old = replace(GPU, has_native_bf16=False)
    for gpus, effs in (({"X100": GPU}, {}), ({"X100": old}, {"X100": EFF})):
        rows = table(work, [node(4)], gpus, effs).to_pylist()
        assert len(rows) == 1
        row = rows[0]
        assert (row["reason"], row["layers"], row["stages"], row["position"]) == ("unprofiled", 1, 1, "only")
        assert row["throughput_tok_per_s"] is row["tp"] is row["batch"] is None
        assert row["cycle_ms"] == 20.0
    # Experts without factors; the same GPU serves the dense model.
    bare = {"X100": replace(EFF, moe_bf16=None)}
    experts = table(workload(EXPERTS, Phase.DECODE, 20.0), [node(1)], effs=bare).to_pylist()
    assert [row["reason"] for row in experts] == ["unprofiled"]
    assert table(work, [node(1)], effs=bare).num_rows > 1


def test_a_gpu_that_is_not_in_the_catalog_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="X200x1"):
        table(workload(SPEC, Phase.DECODE, 20.0), [replace(node(1), gpu="X200", node_config="X200x1")])


def test_layouts_without_all_reduce_factors_are_left_out() -> None:
    eff = {"X100": replace(EFF, all_reduce={})}
    rows = table(workload(SPEC, Phase.DECODE, 20.0), [node(4)], effs=eff).to_pylist()
    assert {row["tp"] for row in rows if row["tp"]} == {1}


def test_shipped_old_gpus_are_unprofiled_for_bf16() -> None:
    known = catalog()
    work = workload(known.models["Qwen/Qwen3-8B"], Phase.DECODE, 100.0)
    configs = [known.node_configs[name] for name in ("T4x1", "V100-16GB-SXM2x1") if name in known.node_configs]
    assert configs
    rows = profile_workload(work, configs, known.gpus, known.efficiencies).to_pylist()
    assert [row["reason"] for row in rows] == ["unprofiled"] * len(configs)


def test_phi_4_rows_never_carry_tp_4_or_8() -> None:
    known = catalog()
    work = workload(known.models["microsoft/phi-4"], Phase.DECODE, 60.0, Lengths.constant(1155.0, 211.0))
    configs = [known.node_configs[name] for name in ("L4x4", "L4x8", "H100-SXMx8")]
    rows = profile_workload(work, configs, known.gpus, known.efficiencies, max_stages=2)
    assert set(rows["tp"].drop_null().to_pylist()) == {1, 2}


def test_provenance_and_errors_are_carried() -> None:
    known = catalog()
    work = workload(known.models["Qwen/Qwen3-32B"], Phase.DECODE, 100.0, Lengths.constant(621.0, 126.0))
    configs = [known.node_configs[name] for name in ("H100-SXMx2", "A10Gx8", "L4x8")]
    rows = profile_workload(work, configs, known.gpus, known.efficiencies, max_stages=2).to_pylist()
    by_config = {
        name: {(r["tp"], r["provenance"]) for r in rows if r["node_config"] == name and r["tp"]}
        for name in ("H100-SXMx2", "A10Gx8", "L4x8")
    }
    assert {provenance for _, provenance in by_config["H100-SXMx2"]} == {"fitted"}
    assert {provenance for _, provenance in by_config["A10Gx8"]} == {"derived"}
    # L4's all-reduce over 4 and 8 GPUs stands on L40S measurements.
    assert {(tp, p) for tp, p in by_config["L4x8"] if tp and tp > 2} <= {(4, "borrowed"), (8, "borrowed")}
    assert {r["rel_error"] for r in rows if r["node_config"] == "H100-SXMx2"} == {
        known.efficiencies["H100-SXM"].rel_error["decode"]
    }
    unknown = replace(known.node_configs["H100-SXMx2"], network_gbit_per_s=None)
    rows = profile_workload(work, [unknown], known.gpus, known.efficiencies, max_stages=1).to_pylist()
    assert {row["provenance"] for row in rows if row["tp"]} == {"derived"}


def test_ground_that_nobody_measured_says_so_with_its_error() -> None:
    """A10G is derived, the 4-bit experts of an A100 are borrowed from an L40S: both with more than a fitted GPU's error."""
    cat = catalog()

    def ground(gpu: str, model: str, weight_dtype: str) -> set[tuple[str, float]]:
        work = workload(cat.models[model], Phase.DECODE, 200.0, weight_dtype=weight_dtype)
        node_config = node(1, 100.0, cat.gpus[gpu])
        table = profile_workload(work, [node_config], cat.gpus, cat.efficiencies, max_stages=2)
        rows = [row for row in table.to_pylist() if row["throughput_tok_per_s"] is not None]
        return {(row["provenance"], row["rel_error"]) for row in rows}

    ((a10g, error),) = ground("A10G", "microsoft/phi-4", "bf16")
    assert (a10g, error) == ("derived", cat.efficiencies["A10G"].rel_error["decode"])
    assert error > 0.2
    assert ground("A100-80GB-SXM", "openai/gpt-oss-20b", "mxfp4") == {("borrowed", 0.25)}
    ((bf16, measured),) = ground("A100-80GB-SXM", "openai/gpt-oss-20b", "bf16")
    assert (bf16, measured) == ("fitted", cat.efficiencies["A100-80GB-SXM"].rel_error["decode"])


def test_all_reduce_of_the_small_a100_is_borrowed() -> None:
    """Its tensor-parallel layouts say borrowed; one GPU alone stands on its own fit."""
    cat = catalog()
    gpu = cat.gpus["A100-40GB-SXM"]
    work = workload(cat.models["Qwen/Qwen3-32B"], Phase.DECODE, 60.0)
    table = profile_workload(work, [node(8, 400.0, gpu)], cat.gpus, cat.efficiencies, max_stages=1)
    grounds = {(row["tp"] > 1, row["provenance"]) for row in table.to_pylist() if row["tp"] is not None}
    assert (True, "borrowed") in grounds
    assert (True, "fitted") not in grounds
    assert (False, "borrowed") not in grounds


def test_what_would_prefill_alone_but_for_its_network() -> None:
    """KV of a prompt of 512 tokens: 6 layers x 512 x 2 x 4 heads x 64 x 2 bytes = 3.15 MB, at 80 % of 1 Gbit/s 31.5 ms of the
    20 ms allowed, at 100 Gbit/s 0.3 ms. Of 100 MB of memory nothing is left beside 180 MB of weights, whatever the network."""
    work = workload(SPEC, Phase.PREFILL, 20.0)
    slow, fast = node(1, 1.0), node(2, 100.0)
    small = replace(GPU, gpu="S1", memory_gib=0.1)
    configs = [slow, fast, node(1, 1.0, small)]
    world = ({"X100": GPU, "S1": small}, {"X100": EFF, "S1": EFF}, ProfileSettings())
    assert ruled_out_by_network(work, configs, *world) == (slow,)
    assert ruled_out_by_network(replace(work, slo_ms=100.0), configs, *world) == ()
    assert ruled_out_by_network(replace(work, phase=Phase.DECODE, slo_ms=20.0), configs, *world) == ()
    assert ruled_out_by_network(work, configs, *world, mode=Mode.PAPER) == (), "the paper's profile knows no network"


def test_what_has_no_factors_for_a_model() -> None:
    """aibrix#507: a machine without a profile must get nothing, and be named."""
    work, dense = workload(EXPERTS, Phase.DECODE, 50.0), workload(SPEC, Phase.DECODE, 50.0)
    other = replace(GPU, gpu="Y100")
    configs, gpus = [node(1), node(2), node(1, gpu=other)], {"X100": GPU, "Y100": other}
    assert unprofiled(dense, configs, gpus, {"X100": EFF}) == (configs[2],)
    no_experts = replace(EFF, moe_bf16=None)
    assert unprofiled(dense, configs[:2], gpus, {"X100": no_experts}) == ()
    assert unprofiled(work, configs[:2], gpus, {"X100": no_experts}) == tuple(configs[:2])
    rows = table(work, configs, gpus, {"X100": no_experts}).to_pylist()
    assert {row["reason"] for row in rows} == {"unprofiled"}, "as the profile has it"
