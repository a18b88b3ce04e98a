"""From plan rows to commands: sizes, limits, connectors, and why a row is left out. Expected values are worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from export_cases import (
    INSIDE,
    MIXED,
    MODEL,
    NODES,
    OWNED,
    PREFILL,
    SHARED_STAGE,
    SIDE_BY_SIDE,
    SMALL,
    UNEQUAL,
    crossing,
    facts,
    instance,
    launch,
    node,
    plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.errors import CoralError
from catalogs.types import Phase
from tasks.exports.groups import launch_of
from tasks.exports.types import Group, ServedWorkload


def option(group: Group, name: str, server: int = 0) -> str:
    words = group.servers[server].arguments
    return words[words.index(f"--{name}") + 1]


def connector(group: Group) -> tuple[str, str]:
    config = json.loads(option(group, "kv-transfer-config"))
    return config["kv_connector"], config["kv_role"]


def test_a_pipeline_over_nodes_has_the_plans_layers_and_its_smallest_batch() -> None:
    group = launch(MIXED).groups[0]
    server = group.servers[0]
    assert (server.tensor, server.pipeline, server.env["VLLM_PP_LAYER_PARTITION"]) == (1, 4, "2,3,3,4")
    # The smallest batch, 8, in each of 4 stages; a pass is no smaller than the profile's 2,048 tokens.
    assert (option(group, "max-num-seqs"), option(group, "max-num-batched-tokens")) == ("32", "2048")
    # 32 sequences of 1,000 + 200 / 2 tokens are 35,200: more than the model takes.
    assert option(group, "max-model-len") == "8192"
    assert [n.instance_type for n in group.nodes] == ["g6.xlarge", "g6.xlarge", "g5.xlarge", "g6e.xlarge"]


def test_replicas_in_a_node_are_servers_of_their_own() -> None:
    group = launch(SIDE_BY_SIDE).groups[0]
    assert [(s.tensor, s.pipeline, s.port) for s in group.servers] == [(2, 1, 8000), (2, 1, 8001)]
    assert [s.side_channel["VLLM_NIXL_SIDE_CHANNEL_PORT"] for s in group.servers] == ["5600", "5601"]
    # A pass of 2,048 tokens meets ceil(2048 / 1000) + 1 = 4 prompts.
    assert (option(group, "max-num-seqs"), option(group, "max-num-batched-tokens")) == ("4", "2048")
    # The KV of a pass, 2,048, is less than the percentile's prompt and an answer: 3,000 + 200.
    assert option(group, "max-model-len") == "3200"
    assert "VLLM_PP_LAYER_PARTITION" not in group.servers[0].env


def test_room_beside_the_planned_batch_allows_longer_requests() -> None:
    used = {(SIDE_BY_SIDE["template_id"], 0, "L40Sx4"): 45.0 * 0.92 - 12 * 512 * 2 / 2 * 1000 / 2**30}
    group = launch(SIDE_BY_SIDE, memory_used_gib=used).groups[0]
    # Room for 1,000 tokens of 12 layers of 512 numbers of 2 bytes, halved by 2 GPUs, beside the 2,048 of a pass.
    assert option(group, "max-model-len") == "3200"
    used = {key: value - 12 * 512 * 2000 / 2**30 for key, value in used.items()}
    assert option(launch(SIDE_BY_SIDE, memory_used_gib=used).groups[0], "max-model-len") == "5048"


@pytest.mark.parametrize(
    ("layers", "pp", "parts"),
    [(13, 4, "3,3,4,3"), (7, 2, "4,3"), (11, 4, "3,3,3,2"), (12, 4, "3,3,3,3"), (10, 4, "2,3,3,2")],
)
def test_layers_inside_a_node_are_split_as_vllm_splits_them(layers: int, pp: int, parts: str) -> None:
    """Worked out from vLLM's own rule: what remains goes one each to the stages before the last, from the end."""
    row = instance("decode", [(0, layers - 1, [node("L40Sx4", tp=1, pp=pp, batch=4, replicas=4 // pp)])], "A")
    model = replace(SMALL, layers=layers)
    group = launch(row, models={MODEL: model}).groups[0]
    assert group.servers[0].env["VLLM_PP_LAYER_PARTITION"] == parts


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (SHARED_STAGE, "class C: stage 0 is 2 nodes that share its requests"),
        (UNEQUAL, "class B2: nodes of unequal GPU counts"),
        (
            instance("decode", [(0, 5, [node("L40Sx4", tp=4)]), (6, 11, [node("L40Sx4", tp=2, pp=2)])], "C"),
            "2 and 4 GPUs per",
        ),
        (
            instance("decode", [(0, 5, [node("L40Sx4", replicas=4)]), (6, 11, [node("L40Sx4", replicas=4)])], "C"),
            "4 copies",
        ),
    ],
)
def test_what_engines_do_not_launch_says_why_and_what_to_do(row: dict[str, Any], reason: str) -> None:
    group = launch(row).groups[0]
    assert not group.is_launchable
    assert reason in group.refusal
    assert "--launchable-only" in group.remedy


def test_prefill_and_decode_of_a_region_speak_through_one_connector_that_takes_their_pipelines() -> None:
    by_region = launch(SIDE_BY_SIDE, MIXED, OWNED)
    assert [connector(group) for group in by_region.groups] == [
        ("MooncakeConnector", "kv_producer"),
        ("MooncakeConnector", "kv_consumer"),  # four stages: only Mooncake takes them on the decode side
        ("NixlConnector", "kv_both"),  # another region
    ]
    piped = instance("prefill", [(0, 5, [node("L4x1", batch=512)]), (6, 11, [node("L4x1", batch=512)])], "B1")
    single = instance("decode", [(0, 11, [node("L40Sx1")])], "A")
    roles = [connector(group) for group in launch(piped, single).groups]
    assert roles == [("NixlPushConnector", "kv_producer"), ("NixlPushConnector", "kv_consumer")]


def test_regions_between_which_kv_moves_are_one_place() -> None:
    """Iowa's decode of one stage takes KV from Ohio, whose decode has four: all speak Mooncake; and compute as its T4 does."""
    rows = (SIDE_BY_SIDE, MIXED, instance("decode", [(0, 11, [node("T4x1")])], "A", region="gcp/us-central1"), OWNED)
    apart, joined = launch(*rows).groups, launch(*rows, moves=(crossing(1.0),)).groups
    assert [connector(group)[0] for group in apart] == ["MooncakeConnector"] * 2 + ["NixlConnector"] * 2
    assert [connector(group)[0] for group in joined] == ["MooncakeConnector"] * 3 + ["NixlConnector"]
    assert ["--dtype" in group.servers[0].arguments for group in apart] == [False, False, True, False]
    assert ["--dtype" in group.servers[0].arguments for group in joined] == [True, True, True, False]
    own = "own/frankfurt"
    chain = launch(*rows, moves=(crossing(1.0, "gcp/us-central1", own), crossing(1.0, "aws/us-east-2", own))).groups
    assert {connector(group)[0] for group in chain} == {"MooncakeConnector"}


def test_an_engine_without_such_a_connector_takes_no_decode_pipeline() -> None:
    groups = launch(SIDE_BY_SIDE, MIXED, version="0.25.0").groups
    assert [group.is_launchable for group in groups] == [True, False]
    assert groups[1].refusal == "vllm 0.25.0: NixlConnector takes no decode instance of 4 pipeline stages"
    assert "--engine-version" in groups[1].remedy


def test_one_gpu_without_bf16_makes_its_region_compute_in_half_precision() -> None:
    old = instance("decode", [(0, 11, [node("T4x1")])], "A")
    groups = launch(SIDE_BY_SIDE, old, OWNED).groups
    assert ["--dtype" in group.servers[0].arguments for group in groups] == [True, True, False]
    assert option(groups[0], "dtype") == "half"


@pytest.mark.parametrize(
    ("weights", "given", "words"),
    [
        ("bf16", {}, [MODEL, "--kv-cache-dtype"]),
        ("fp8", {}, [MODEL, "--quantization", "fp8"]),
        ("int4", {MODEL: "me/small-awq"}, ["me/small-awq", "--served-model-name", MODEL]),
    ],
)
def test_weights_in_another_format_than_published(weights: str, given: dict[str, str], words: list[str]) -> None:
    served = facts().workloads | {
        PREFILL: ServedWorkload(PREFILL, "s/prefill", MODEL, Phase.PREFILL, weights, "fp8", 1e3, 2e2, 3e3)
    }
    group = launch(SIDE_BY_SIDE, workloads=served, checkpoints=given).groups[0]
    assert list(group.servers[0].arguments[2 : 2 + len(words)]) == words
    assert option(group, "kv-cache-dtype") == "fp8"


def test_weights_that_nobody_publishes_are_asked_for() -> None:
    served = facts().workloads | {
        PREFILL: ServedWorkload(PREFILL, "s/prefill", MODEL, Phase.PREFILL, "int4", "bf16", 1e3, 2e2, 3e3)
    }
    group = launch(SIDE_BY_SIDE, workloads=served).groups[0]
    assert "is published in bf16" in group.refusal
    assert f"--checkpoint {MODEL}=" in group.remedy


def test_more_memory_than_the_engine_fills_is_refused() -> None:
    used = {(SIDE_BY_SIDE["template_id"], 0, "L40Sx4"): 42.0}  # of 45 x 0.92 = 41.4
    assert "42.0 GiB are needed" in launch(SIDE_BY_SIDE, memory_used_gib=used).groups[0].refusal


def test_a_launch_keeps_its_name_until_something_in_it_changes() -> None:
    name = launch(MIXED).groups[0].name
    assert launch(MIXED | {"throughput_tok_per_s": 7.0, "cost_usd_per_h": 9.0, "instances": 5}).groups[0].name == name
    assert launch(MIXED, version="0.34.0").groups[0].name != name
    assert launch(MIXED | {"region": "aws/us-west-2"}).groups[0].name != name
    twice = [group.name for group in launch(MIXED, MIXED | {"template_id": "other"}).groups]
    assert twice == [name, f"{name}-2"]


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1, max_size=80), st.sampled_from(["prefill", "decode"]))
def test_every_name_is_a_dns_label(alias: str, phase: str) -> None:
    served = {
        SIDE_BY_SIDE["workload_id"]: ServedWorkload(
            PREFILL, f"{alias}/{phase}", MODEL, Phase(phase), "bf16", "bf16", 1000.0, 200.0, 3000.0
        )
    }
    name = launch(SIDE_BY_SIDE, workloads=served).groups[0].name
    assert len(f"{name}-r10-999") <= 63
    assert name.replace("-", "").isalnum()
    assert name.isascii()
    assert name[0].isalpha()


def test_facts_that_the_lake_does_not_have_are_an_expected_outcome() -> None:
    with pytest.raises(CoralError, match="was planned for is not kept"):
        launch(MIXED, workloads={})
    with pytest.raises(CoralError, match="node configuration A10Gx1"):
        launch(MIXED, nodes={name: value for name, value in NODES.items() if name != "A10Gx1"})


def test_the_class_of_a_row_is_never_taken_on_trust() -> None:
    """A row that claims to be launchable and is not is caught by the engine's rules."""
    lying = INSIDE | {"stages": [{**INSIDE["stages"][0], "layers": [0, 10]}]}
    group = launch_of(plan(lying), facts()).groups[0]
    assert "sums to 11, the model has 12 layers" in group.refusal
