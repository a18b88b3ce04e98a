"""The local copy of the engine's rules: a sound command passes, and each fault is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from export_cases import SMALL

from catalogs.engines import engine_launch
from catalogs.errors import CoralError
from tasks.exports.rules import refusals

# 16 heads, 4 KV heads, 12 layers.
SOUND = "serve acme/m --tensor-parallel-size 2 --pipeline-parallel-size 3 --nnodes 3 --node-rank 0 --master-addr h"
ENV = {"VLLM_PP_LAYER_PARTITION": "4,4,4"}
NEW = engine_launch("vllm", "0.33.0")


def found(
    text: str, env: dict[str, str] | None = None, gpus: int = 2, *, is_prefill: bool = False, **model: object
) -> str:
    facts = replace(SMALL, **model)
    given = ENV if env is None else env
    return "; ".join(refusals(text.split(), given, facts, NEW, gpus_on_node=gpus, is_prefill=is_prefill))


def test_a_sound_command_passes() -> None:
    assert found(SOUND) == ""
    assert found(f"{SOUND.replace('rank 0', 'rank 2')} --headless") == ""
    assert found("serve acme/m --tensor-parallel-size 8", {}, gpus=8) == ""  # 4 KV heads, replicated twice


@pytest.mark.parametrize(
    ("text", "changes", "fault"),
    [
        ("serve m --tensor-parallel-size 3", {"gpus": 3, "env": {}}, "16 attention heads do not divide by 3"),
        ("serve m --tensor-parallel-size 4", {"gpus": 4, "env": {}, "kv_heads": 10}, "10 KV heads neither divide by 4"),
        ("serve m --tensor-parallel-size 8", {"gpus": 8, "env": {}, "sharded": (1540,)}, "a width of 1540"),
        # Qwen3-235B-A22B-FP8 at 8 GPUs: 1,536 / 8 = 192 is no multiple of 128 (vllm#17569).
        ("serve m --tensor-parallel-size 8", {"gpus": 8, "env": {}, "sharded": (1536,), "quant_block": 128}, "block 128"),
        ("serve m --pipeline-parallel-size 13", {"gpus": 13, "env": {}}, "13 pipeline stages for 12 layers"),
        (SOUND, {"env": {"VLLM_PP_LAYER_PARTITION": "6,6"}}, "has 2 entries for 3 stages"),
        (SOUND, {"env": {"VLLM_PP_LAYER_PARTITION": "4,4,5"}}, "sums to 13"),
        (SOUND, {"env": {"VLLM_PP_LAYER_PARTITION": "0,6,6"}}, "leaves a stage empty"),
        (SOUND, {"gpus": 4}, "2 ranks per node on 4 GPUs"),
        (SOUND.replace("nnodes 3", "nnodes 4"), {}, "6 ranks do not divide over 4 nodes"),
        (SOUND.replace("rank 0", "rank 3") + " --headless", {}, "node rank 3 of 3 nodes"),
        (SOUND.replace(" --master-addr h", ""), {}, "without a master address"),
        (SOUND.replace("rank 0", "rank 1"), {}, "rank 0 alone"),
        (SOUND + " --max-num-seqs 64 --max-num-batched-tokens 32", {}, "max-num-seqs 64"),
        (SOUND + " --max-model-len 8193", {}, "beyond the model's 8192"),
        (SOUND + " --gpu-memory-utilization 1.2", {}, "is no share"),
        (SOUND + " --tensor-paralel-size 2", {}, "unrecognized arguments"),
        (SOUND + " --max-num-seqs many", {}, "invalid int value"),
        (SOUND + ' --kv-transfer-config {"kv_connector":"Pigeon","kv_role":"kv_both"}', {}, "Pigeon is not one of"),
        (SOUND + ' --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_producer"}', {}, "KV role kv_producer"),
        (SOUND + ' --kv-transfer-config {"kv_connector":"NixlPushConnector","kv_role":"kv_consumer"}', {}, "takes no decode"),
        (
            SOUND + ' --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}',
            {"is_prefill": True},
            "takes no prefill",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_found(text: str, changes: dict, fault: str) -> None:
    assert fault in found(text, **changes)


def test_pipelines_that_a_connector_takes() -> None:
    mooncake = SOUND + ' --kv-transfer-config {"kv_connector":"MooncakeConnector","kv_role":"%s"}'
    assert found(mooncake % "kv_consumer") == found(mooncake % "kv_producer", is_prefill=True) == ""
    push = SOUND + ' --kv-transfer-config {"kv_connector":"NixlPushConnector","kv_role":"kv_producer"}'
    assert found(push, is_prefill=True) == ""


def test_an_engine_older_than_what_is_known_is_refused() -> None:
    with pytest.raises(CoralError, match=r"how vllm 0\.6\.4 is launched is not known"):
        engine_launch("vllm", "0.6.4")
    assert (engine_launch("vllm", "0.29.1").version_from, engine_launch().version) == ("0.25.0", "0.33.0")
