"""Factors changed on purpose, and rates at drawn speeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from profiling_cases import EFF, EXPERTS, GPU, node, workload

from catalogs.types import Phase
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.perturb import Inputs, drawn_speed, factor_names, perturbed, template_rates
from tasks.profiling.profile import profile_workload
from tasks.templates.schema import STAGE_TYPE

BASE = Inputs({"X100": EFF}, ProfileSettings())
WORK = {
    "prefill": workload(EXPERTS, Phase.PREFILL, 40.0),
    "decode": workload(EXPERTS, Phase.DECODE, 8.0),
}


def best(inputs: Inputs, phase: str) -> float:
    table = profile_workload(WORK[phase], [node(2)], {GPU.gpu: GPU}, inputs.efficiencies, inputs.settings, max_stages=1)
    return max(r or 0.0 for r in table["throughput_tok_per_s"].to_pylist())


@pytest.mark.parametrize("factor", factor_names(["X100"]))
def test_better_is_never_slower_and_worse_never_faster(factor: str) -> None:
    for phase in WORK:
        worse, base, better = (best(perturbed(BASE, factor, r), phase) for r in (0.7, 1.0, 1.4))
        assert worse <= base <= better
    assert perturbed(BASE, factor, 1.0) == BASE or "speed of" in factor


def test_each_factor_changes_what_it_is_named_after() -> None:
    eff = perturbed(BASE, "dense compute", 0.5).efficiencies["X100"]
    assert eff == replace(EFF, mfu_gemm=0.4)
    eff = perturbed(BASE, "all-reduce", 2.0).efficiencies["X100"]
    assert eff.all_reduce[2] == (0.0025, 400.0)
    eff = perturbed(BASE, "experts", 0.5).efficiencies["X100"]
    assert (eff.moe_bf16.mfu, eff.moe_bf16.mbu, eff.moe_bf16.tau_ms) == (0.3, 0.45, 0.03)
    settings = perturbed(BASE, "decode de-rating", 0.5).settings
    stated = BASE.settings
    assert (settings.decode_derate, settings.prefill_derate) == (stated.decode_derate / 2, stated.prefill_derate)
    assert perturbed(BASE, "usable memory", 2.0).settings.gpu_memory_utilization == 0.99
    assert perturbed(BASE, "speed of X100", 0.5).settings.derate(Phase.DECODE, "X100") == stated.decode_derate / 2
    assert perturbed(BASE, "speed of X100", 0.5).settings.derate(Phase.DECODE, "Y200") == stated.decode_derate
    with pytest.raises(KeyError):
        perturbed(BASE, "luck", 2.0)


def test_a_benchmarked_derating_moves_with_the_stated_one() -> None:
    own = Inputs({}, ProfileSettings(calibration=(("X100", "decode", 0.8), ("X100", "prefill", 0.7))))
    assert perturbed(own, "decode de-rating", 0.5).settings.derate(Phase.DECODE, "X100") == 0.4
    assert perturbed(own, "decode de-rating", 0.5).settings.derate(Phase.PREFILL, "X100") == 0.7
    assert perturbed(own, "speed of X100", 0.5).settings.derate(Phase.PREFILL, "X100") == 0.35


def test_drawn_speeds_have_the_stated_mean_error() -> None:
    z = np.random.default_rng(3).standard_normal(40_000)
    speeds = np.array([drawn_speed(0.08, float(value)) for value in z])
    assert np.abs(np.log(speeds)).mean() == pytest.approx(0.08, rel=0.02)
    assert drawn_speed(0.08, 0.0) == drawn_speed(0.0, 2.0) == 1.0


def test_rates_of_a_placement_by_hand() -> None:
    """Stage 1: an L4 of 10 and an L40S of 30; stage 2: an L40S of 35. At L40S x 0.5: min(10 + 15, 17.5)."""

    def member(slot: int, config: str, rate: int) -> dict:
        own = {"node_slot": slot, "node_config": config, "throughput_mtok_per_s": rate, "share": 1.0}
        return {**own, "tp": 1, "pp": 1, "replicas": 1, "batch": 1}

    def stage(number: int, *members: dict) -> dict:
        where = {"stage": number, "layer_start": 0, "layer_end": 1, "position": "mid"}
        return {**where, "members": list(members)}

    stages = [
        [stage(0, member(0, "L4x1", 10_000), member(1, "L40Sx2", 30_000)), stage(1, member(2, "L40Sx2", 35_000))],
        [stage(0, member(0, "L4x1", 9_000))],
    ]
    table = pa.table({"stages": pa.array(stages, pa.list_(STAGE_TYPE))})
    assert template_rates(table, {"L4": 1.0, "L40S": 1.0}).tolist() == [35_000, 9_000]
    assert template_rates(table, {"L4": 1.0, "L40S": 0.5}).tolist() == [17_500, 9_000]
    assert template_rates(table, {"L4": 0.1, "L40S": 1.0}).tolist() == [31_000, 900]
    assert template_rates(table.slice(0, 0), {}).tolist() == []
