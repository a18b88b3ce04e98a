"""A looser SLO leaves every cycle worth having: what a combination of nodes serves does not fall with it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiling_cases import EFF, EXPERTS, GPU, SPEC, WINDOWED, catalog, node, workload

from catalogs.types import Lengths, Phase
from tasks.profiling.cycles import Mode, cycle_grid
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import profile_workload
from tasks.templates.combinations import enumerate_combinations
from tasks.templates.curves import curves_from_profiles
from tasks.templates.exact import prepare, solve_many

SLOS_MS = (30.0, 40.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 1000.0, 1e5)
CONFIGS = ("A10Gx8", "H100-SXMx1", "L40Sx1", "L40Sx2", "L4x1", "L4x2")


@cache
def best_rates(model: str, phase: Phase, slo_ms: float) -> np.ndarray:
    """The best rate of every combination of at most three nodes of real GPUs, mtok/s."""
    known = catalog()
    lengths = Lengths.constant(621.0, 126.0)
    work = workload(known.models[model], phase, slo_ms, lengths, weight_dtype="bf16")
    configs = [known.node_configs[name] for name in CONFIGS]
    table = profile_workload(work, configs, known.gpus, known.efficiencies, max_stages=3)
    curves = curves_from_profiles(table, work.model.layers)
    counts = enumerate_combinations([1] * len(CONFIGS), [range(len(CONFIGS))], 3, 3)
    # Configurations without a row of a rate keep their place: the table is of all of them, sorted.
    assert curves.node_configs == tuple(sorted(CONFIGS))
    return solve_many(prepare(curves, 3), counts).throughput_mtok_per_s


def test_a_looser_tpot_lowers_no_combination_by_much() -> None:
    """Over SLOs that people ask for: no combination loses more than the distance of two rungs, a tenth, and together they
    lose less than a hundredth, whatever tighter SLO it is compared with."""
    best = np.zeros(1)
    for slo_ms in SLOS_MS:
        found = best_rates("Qwen/Qwen3-32B", Phase.DECODE, slo_ms)
        best = np.maximum(best, found)
        served = best > 0
        lost = 1 - found[served] / best[served]
        assert lost.max(initial=0.0) <= 0.10
        assert lost.mean() <= 0.01 if served.any() else True
    assert served.sum() > 20


def test_a_looser_ttft_lowers_no_combination_by_much() -> None:
    best = np.zeros(1)
    for slo_ms in (800.0, 1600.0, 3000.0, 20000.0, 1e6):
        found = best_rates("Qwen/Qwen3-32B", Phase.PREFILL, slo_ms)
        best = np.maximum(best, found)
        lost = 1 - found[best > 0] / best[best > 0]
        assert lost.max(initial=0.0) <= 0.03
    assert (best > 0).sum() > 20


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    gpus=st.sampled_from([1, 2, 4, 8]),
    memory_gib=st.floats(1.9, 8.0),
    slo_ms=st.floats(1.0, 500.0),
    looser=st.floats(1.0, 1000.0),
)
def test_a_node_alone_never_loses_by_a_looser_slo(spec, gpus: int, memory_gib, slo_ms: float, looser: float) -> None:
    """It waits for no other stage, so its own cycle is always among those it can choose: exact, for every pair of SLOs."""
    sizes = ProfileSettings(cuda_graph_batch_sizes=(1, 2, 4, 8, 16, 32))
    gpu = replace(GPU, memory_gib=memory_gib)

    def rates(slo: float) -> dict[int, float]:
        work = workload(spec, Phase.DECODE, slo)
        table = profile_workload(work, [node(gpus, 1e5, gpu)], {"X100": gpu}, {"X100": EFF}, sizes, max_stages=1)
        found: dict[int, float] = {}
        for row in table.to_pylist():
            found[row["layers"]] = max(found.get(row["layers"], 0.0), row["throughput_tok_per_s"] or 0.0)
        return found

    tight, loose = rates(slo_ms), rates(slo_ms * looser)
    assert all(loose.get(layers, 0.0) >= rate for layers, rate in tight.items())


@settings(max_examples=200, deadline=None)
@given(phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]), stages=st.integers(1, 8), slo_ms=st.floats(0.5, 1e6))
def test_every_grid_falls_and_holds_the_shares_of_its_slo(phase: Phase, stages: int, slo_ms: float) -> None:
    sizes = ProfileSettings()
    grid = cycle_grid(workload(SPEC, phase, slo_ms), stages, sizes, Mode.CYCLE)
    assert np.all(np.diff(grid) < 0)
    assert grid[-1] > 0
    shares = (
        [slo_ms / (stages + m) for m in sizes.prefill_passes]
        if phase is Phase.PREFILL
        else [slo_ms / stages / d for d in sizes.decode_cycle_divisors]
    )
    assert all(np.isclose(grid, share, rtol=1e-8).any() for share in shares)
    assert grid[0] == pytest.approx(shares[0])
    assert len(grid) <= 64  # a template's cycle is kept in eight bits, and every cycle costs rows


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_the_cycle_of_a_tighter_slo_stays_to_be_chosen(stages: int) -> None:
    sizes = ProfileSettings()
    for tight, loose in pairwise(SLOS_MS[:-1]):
        grid = cycle_grid(workload(SPEC, Phase.DECODE, loose), stages, sizes, Mode.CYCLE)
        assert np.isclose(grid, tight / stages, rtol=1e-8).any()
    for slo_ms in (100.0, 317.0, 4000.0, 1e5):
        grid = cycle_grid(workload(SPEC, Phase.DECODE, slo_ms), stages, sizes, Mode.CYCLE) * stages
        inner = grid[(grid >= 30) & (grid <= 1000)]
        # What any combination can lose by a looser SLO is bounded by the distance to the next cycle above.
        assert max(longer / shorter for longer, shorter in pairwise(inner)) < 1.34
