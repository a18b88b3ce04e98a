"""What a user is told when nothing serves a workload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiling_cases import EFF, EXPERTS, GIB, GPU, SPEC, WINDOWED, catalog, node, workload

from catalogs.types import Lengths, Phase
from tasks.profiling.cycles import Mode
from tasks.profiling.explain import explain_infeasible, memory_needed_gib, tightest_slo_ms
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import profile_workload
from tasks.profiling.schema import Infeasible
from tasks.profiling.tightest import ANY_COMBINATION, Combinations

SMALL = ProfileSettings(max_prefill_tokens=1024, cuda_graph_batch_sizes=(1, 2, 4, 8))


def is_served(work, configs, gpus, stages: int, mode: Mode = Mode.CYCLE) -> bool:
    """Whether the table holds a pipeline of one node per stage: read row by row, apart from the explanation's search."""
    most: dict[tuple, int] = {}
    for row in profile_workload(work, configs, gpus, {"X100": EFF}, SMALL, mode, stages).to_pylist():
        if row["throughput_tok_per_s"]:
            key = (row["stages"], row["cycle_ms"], row["position"])
            most[key] = max(most.get(key, 0), row["layers"])
    for s, cycle, _ in list(most):
        names = ["only"] if s == 1 else ["first"] + ["mid"] * (s - 2) + ["last"]
        parts = [most.get((s, cycle, name), 0) for name in names]
        if all(parts) and sum(parts) >= work.model.layers:
            return True
    return False


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    stages=st.integers(1, 4),
    memory_gib=st.sampled_from([1.85, 1.95, 2.2, 80.0]),
    network=st.sampled_from([1.0, 1e5]),
    input_mean=st.sampled_from([512.0, 12000.0]),
    mode=st.sampled_from(list(Mode)),
)
def test_the_tightest_slo_is_where_the_table_begins(
    spec, phase: Phase, stages: int, memory_gib: float, network: float, input_mean: float, mode: Mode
) -> None:
    gpu = replace(GPU, memory_gib=memory_gib)
    gpus, configs = {"X100": gpu}, [node(1, network, gpu), node(2, network, gpu)]
    work = workload(spec, phase, 1.0, Lengths.constant(input_mean, 128.0))
    tightest = tightest_slo_ms(work, configs, gpus, {"X100": EFF}, SMALL, stages, mode)
    if tightest is None:
        assert not is_served(replace(work, slo_ms=1e7), configs, gpus, stages, mode)
        return
    assert is_served(replace(work, slo_ms=tightest * 1.0001), configs, gpus, stages, mode)
    assert not is_served(replace(work, slo_ms=tightest * 0.9999), configs, gpus, stages, mode)


def test_the_tightest_slo_heeds_what_may_stand_together() -> None:
    """By region and by memory: what only the excluded could reach is not promised."""
    gpu = replace(GPU, memory_gib=80.0)
    gpus, effs = {"X100": gpu}, {"X100": EFF}
    configs = [node(1, 1e5, gpu), node(2, 1e5, gpu), node(4, 1e5, gpu)]
    work = workload(SPEC, Phase.DECODE, 1.0)

    def tightest(combinations: Combinations = ANY_COMBINATION, stages: int = 1) -> float | None:
        return tightest_slo_ms(work, configs, gpus, effs, SMALL, stages, combinations=combinations)

    alone = [tightest_slo_ms(work, [config], gpus, effs, SMALL, 1) for config in configs]
    assert all(slo is not None for slo in alone)
    assert tightest() == min(alone)
    assert len(set(alone)) == 3
    # One set per region: each configuration alone, or the two small ones.
    for number, config in enumerate(configs):
        assert tightest(Combinations(((config.node_config,),))) == alone[number]
    assert tightest(Combinations((("X100x1", "X100x2"), ("X100x1",)))) == min(alone[:2])
    # 80 GiB a GPU: a limit of 200 GiB leaves out four GPUs, 100 GiB leaves one, 50 GiB none.
    assert tightest(Combinations(None, 200 * 1024)) == min(alone[:2])
    assert tightest(Combinations(None, 100 * 1024)) == alone[0]
    assert tightest(Combinations(None, 50 * 1024)) is None
    # Two nodes of one GPU each are within 200 GiB as well.
    both = tightest_slo_ms(work, configs[:1], gpus, effs, SMALL, 2)
    assert tightest(Combinations(None, 200 * 1024), stages=2) == min(*alone[:2], both)


def explain(work, configs=None, gpu=GPU, effs=None, stages: int = 2):
    effs = {"X100": EFF} if effs is None else effs
    return explain_infeasible(work, configs or [node(1, 1e5, gpu)], {"X100": gpu}, effs, SMALL, stages)


def test_a_served_workload_needs_no_explanation() -> None:
    assert explain(workload(SPEC, Phase.DECODE, 20.0)) is None


def test_the_slo_is_the_reason() -> None:
    found = explain(workload(SPEC, Phase.DECODE, 0.01))
    assert found is not None
    assert found.reason is Infeasible.SLO
    assert found.tightest_slo_ms is not None
    assert found.missing_gib == 0
    assert "six/decode: a TPOT of 0.01 ms cannot be met; the tightest reachable is" in found.text


def test_limits_on_combinations_are_the_reason() -> None:
    work = workload(SPEC, Phase.DECODE, 20.0)
    found = explain_infeasible(
        work, [node(1)], {"X100": GPU}, {"X100": EFF}, SMALL, 2, combinations=Combinations(None, 50 * 1024)
    )
    assert found is not None
    assert found.is_by_library
    assert found.tightest_slo_ms is None
    assert "no combination of up to 2 nodes" in found.text


def test_memory_is_the_reason_and_the_missing_gib_are_named() -> None:
    gpu = replace(GPU, memory_gib=1.6826)  # 0.048 GiB after 1.5 GiB of reserve: a layer is 0.029, an end 0.061
    found = explain(workload(SPEC, Phase.DECODE, 1e6), gpu=gpu)
    assert found is not None
    assert found.reason is Infeasible.MEMORY
    assert found.tightest_slo_ms is None
    room = 2 * (1.6826 * 0.92 - 1.5)
    assert found.largest_gib == pytest.approx(room)
    layer = 2 * (1024 * 24 * 64 + 1024 * 1024 + 3 * 1024 * 4096 + 2048)
    weights = (6 * layer + 2 * 32000 * 1024 * 2) / GIB
    assert found.needed_gib == pytest.approx(weights + 6 * 1024 * 576 / GIB)
    assert found.missing_gib >= found.needed_gib - room
    assert "GiB missing" in found.text


def test_the_kv_cache_is_the_reason() -> None:
    gpu = replace(GPU, memory_gib=2.05)
    found = explain(workload(SPEC, Phase.DECODE, 1e6, Lengths.constant(300000.0, 10.0)), gpu=gpu)
    assert found is not None
    assert found.reason is Infeasible.KV_CACHE
    assert found.missing_gib > 1


def test_missing_profiles_are_the_reason() -> None:
    found = explain(workload(SPEC, Phase.DECODE, 20.0), effs={})
    assert found is not None
    assert found.reason is Infeasible.UNPROFILED
    assert "X100: no efficiency factors" in found.text
    old = explain(workload(SPEC, Phase.DECODE, 20.0), gpu=replace(GPU, has_native_bf16=False))
    assert old is not None
    assert old.reason is Infeasible.UNPROFILED
    assert "no bf16 units" in old.text


def test_a_real_model_that_nothing_holds() -> None:
    known = catalog()
    work = workload(known.models["meta-llama/Meta-Llama-3.1-405B"], Phase.DECODE, 100.0)
    configs = [known.node_configs[name] for name in ("L4x8", "L40Sx1")]
    found = explain_infeasible(work, configs, known.gpus, known.efficiencies, max_stages=2)
    assert found is not None
    assert found.reason is Infeasible.MEMORY
    assert found.largest == "L4x8"
    # 811.7 GB of weights are 756 GiB; two nodes of 8 x (22.49 x 0.92 - 1.5) GiB are 307. Layers of 5.94 GiB go in whole
    # beside the ends of 3.9: 50 of 126 fit, and 76 are left.
    assert "76 of 126 layers stay out" in found.text
    assert found.missing_gib == pytest.approx(76 * 756 / 126, rel=0.01)
    assert memory_needed_gib(work) == pytest.approx(811.7e9 / GIB, rel=0.01)
