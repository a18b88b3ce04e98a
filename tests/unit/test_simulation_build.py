"""Instances built from templates, against the profile they come from and hand calculation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from catalogs import load_scenario
from catalogs.errors import UnknownNameError
from catalogs.types import Phase, Workload
from tasks.profiling.profile import profile_workload
from tasks.simulation.arrivals import constant_lengths
from tasks.simulation.build import Hardware, InstanceBuilder, Member, StagePlan, inner_split
from tasks.simulation.pack import interpolate
from tasks.simulation.replay import replay

CONFIGS = ("L4x1", "L4x4", "L40Sx4", "A10Gx4", "H100-SXMx8")


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    loaded = load_scenario("paper-extended")
    configs = {name: loaded.node_configs[name] for name in CONFIGS}
    return Hardware(configs, loaded.catalog.gpus, loaded.catalog.efficiencies)


@pytest.fixture(scope="module")
def workloads() -> dict[str, Workload]:
    return {workload.alias: workload for workload in load_scenario("paper-extended").workloads}


def profile(workload: Workload, hardware: Hardware) -> list[dict]:
    table: pa.Table = profile_workload(
        workload, list(hardware.node_configs.values()), hardware.gpus, hardware.efficiencies, hardware.settings
    )
    return [row for row in table.to_pylist() if row["throughput_tok_per_s"] is not None]


def test_inner_split_is_vllms() -> None:
    """get_pp_indices: the remainder goes before the last stage, backwards."""
    assert inner_split(10, 4) == [2, 3, 3, 2]
    assert inner_split(9, 2) == [5, 4]
    assert inner_split(11, 4) == [3, 3, 3, 2]
    assert inner_split(8, 1) == [8]


@pytest.mark.parametrize("alias", ["qwen3-32b/decode", "gpt-oss-20b/decode", "phi-4/decode"])
def test_whole_model_decode_steps_fit_the_cycle_they_were_profiled_for(
    alias: str, hardware: Hardware, workloads: dict[str, Workload]
) -> None:
    """A node that holds all layers alone: step(batch, mean context) <= c / pp, and its memory holds pp * batch sequences."""
    workload = workloads[alias]
    builder, layers = InstanceBuilder(workload, hardware), workload.model.layers
    rows = [row for row in profile(workload, hardware) if row["layers"] == layers and row["stages"] == 1]
    assert rows
    context = workload.lengths.decode_context_mean
    for row in rows:
        member = Member(row["node_config"], 1.0, row["tp"], row["pp"], row["replicas"], row["batch"])
        instance = builder.build([StagePlan(0, layers - 1, (member,))], row["throughput_tok_per_s"], "x", "r")
        (node,) = instance.stages[0].nodes
        step_ms = interpolate(node.step, np.array([float(row["batch"])]), np.array([context]))[0, 0] * 1e3
        assert step_ms <= row["cycle_ms"] / row["pp"] * (1 + 1e-9)
        kept = builder.full_share * context + (1 - builder.full_share) * min(builder.window, context)
        assert node.kv_capacity_tokens >= row["pp"] * row["batch"] * kept * (1 - 1e-9)
        assert instance.rate_req_per_s == pytest.approx(row["throughput_tok_per_s"] / workload.lengths.output_mean)


def test_whole_model_prefill_passes_fit_the_cycle(hardware: Hardware, workloads: dict[str, Workload]) -> None:
    """A full pass of prompts of mean length, whose tokens attend half a prompt on average; 0.5 % for the knots between."""
    workload = workloads["phi-4/prefill"]
    builder, layers = InstanceBuilder(workload, hardware), workload.model.layers
    rows = [row for row in profile(workload, hardware) if row["layers"] == layers and row["stages"] == 1]
    assert rows
    for row in rows:
        member = Member(row["node_config"], 1.0, row["tp"], row["pp"], row["replicas"], row["batch"])
        instance = builder.build([StagePlan(0, layers - 1, (member,))], 1.0, "x", "r")
        keys = workload.lengths.prefill_context / 2
        step = interpolate(instance.stages[0].nodes[0].step, np.array([float(row["batch"])]), np.array([keys]))[0, 0]
        assert step * 1e3 <= row["cycle_ms"] / row["pp"] * 1.005


def test_a_prefix_cache_leaves_the_promised_rate_within_reach(
    hardware: Hardware, workloads: dict[str, Workload]
) -> None:
    """Rates count cached tokens as served; a simulator that computed them all would fall to 40 % of the rate."""
    workload = replace(workloads["phi-4/prefill"], prefix_hit_rate=0.6)
    layers, pairs = workload.model.layers, constant_lengths(workload.lengths)
    node = {"H100-SXMx8": hardware.node_configs["H100-SXMx8"]}  # its network is not what limits it
    (row, *_) = [
        row
        for row in profile(workload, replace(hardware, node_configs=node))
        if row["layers"] == layers and row["stages"] == 1
    ]
    member = Member(row["node_config"], 1.0, row["tp"], row["pp"], row["replicas"], row["batch"])
    instance = InstanceBuilder(workload, hardware).build(
        [StagePlan(0, layers - 1, (member,))], row["throughput_tok_per_s"], "x", "r"
    )
    result = replay(instance, workload.tokens_per_request, workload.slo_ms, pairs, offered_share=0.98)
    assert result.rate_share >= 0.97


def test_stages_add_up_to_the_whole(hardware: Hardware, workloads: dict[str, Workload]) -> None:
    """Two halves of a model on equal nodes take as long as the whole; embedding and head go with the ends."""
    workload = workloads["gpt-oss-20b/decode"]
    builder, layers = InstanceBuilder(workload, hardware), workload.model.layers
    member = Member("H100-SXMx8", 1.0, 1, 1, 8, 16)
    at = np.array([16.0]), np.array([500.0])

    def step(first: int, last: int) -> float:
        instance = builder.build([StagePlan(first, last, (member,))], 1.0, "x", "r")
        return float(interpolate(instance.stages[0].nodes[0].step, *at)[0, 0])

    assert step(0, 11) + step(12, 23) == pytest.approx(step(0, layers - 1))
    assert step(12, 23) > step(11, 22)  # the head


def test_decode_batches_pad_to_a_cuda_graph(hardware: Hardware, workloads: dict[str, Workload]) -> None:
    builder = InstanceBuilder(workloads["qwen3-32b/decode"], hardware)
    instance = builder.build([StagePlan(0, 63, (Member("L40Sx4", 1.0, 4, 1, 1, 64),))], 1.0, "x", "r")
    step = interpolate(instance.stages[0].nodes[0].step, np.array([8.0, 9.0, 15.0, 16.0]), np.array([700.0]))[:, 0]
    assert step[1] == pytest.approx(step[3], rel=1e-6)
    assert step[2] == pytest.approx(step[3], rel=1e-6)
    assert step[0] < step[1]


def test_a_template_row_keeps_its_shares_and_network(hardware: Hardware, workloads: dict[str, Workload]) -> None:
    """KV of Qwen3-32B: 2 x 8 heads x 128 x 2 bytes = 4,096 bytes per token and layer; activations 2 x 5,120."""
    members = [
        {"node_slot": 0, "node_config": "L4x4", "share": 0.25, "tp": 4, "pp": 1, "replicas": 1, "batch": 8},
        {"node_slot": 1, "node_config": "L40Sx4", "share": 0.75, "tp": 2, "pp": 1, "replicas": 2, "batch": 24},
    ]
    row = {
        "template_id": "t",
        "throughput_mtok_per_s": 126_000,
        "stages": [
            {"stage": 1, "layer_start": 32, "layer_end": 63, "members": members[:1]},
            {"stage": 0, "layer_start": 0, "layer_end": 31, "members": members},
        ],
    }
    instance = InstanceBuilder(workloads["qwen3-32b/decode"], hardware).from_row(row, "i", "r", active_from_s=5.0)
    assert [stage.layers for stage in instance.stages] == [32, 32]
    assert [(node.node_config, node.share, node.replicas) for node in instance.stages[0].nodes] == [
        ("L4x4", 0.25, 1),
        ("L40Sx4", 0.75, 2),
    ]
    assert instance.rate_req_per_s == pytest.approx(1.0)
    assert (instance.kv_bytes_per_token_layer, instance.activation_bytes_per_token) == (4096, 10240)
    gbit = hardware.node_configs["L4x4"].network_gbit_per_s
    assert gbit is not None
    assert instance.stages[0].nodes[0].network_bytes_per_s == pytest.approx(gbit / 8 * 0.8e9)
    assert (instance.template_id, instance.active_from_s, instance.phase) == ("t", 5.0, Phase.DECODE)


def test_unknown_configuration_is_named(hardware: Hardware, workloads: dict[str, Workload]) -> None:
    builder = InstanceBuilder(workloads["phi-4/decode"], hardware)
    with pytest.raises(UnknownNameError, match="'L4x3'"):
        builder.build([StagePlan(0, 39, (Member("L4x3", 1.0, 1, 1, 3, 8),))], 1.0, "x", "r")
