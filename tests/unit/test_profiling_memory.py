"""Memory against published values: what drivers report, what engines fill, what models hold, what vLLM had left for KV."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st
from profiling_cases import GIB, GPU, SPEC, catalog

from catalogs.engines import engine_version, engine_versions
from catalogs.errors import CoralError, UnknownNameError
from catalogs.layer_times import _HELIX_GPUS, _helix_llama
from catalogs.types import Phase
from tasks.profiling.memory import MemoryModel, ProfileSettings
from tasks.profiling.shapes import ModelShape

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def test_engines_fill_what_their_version_says() -> None:
    assert engine_version().gpu_memory_utilization == 0.92
    assert engine_version("vllm", "0.30.1").gpu_memory_utilization == 0.92
    assert engine_version("vllm", "0.25.0").gpu_memory_utilization == 0.92
    assert engine_version("vllm", "0.12.0").gpu_memory_utilization == 0.9
    assert engine_version("vllm", "0.4.3").gpu_memory_utilization == 0.9  # older than any row: the oldest
    with pytest.raises(UnknownNameError, match="unknown engine 'vlm'"):
        engine_version("vlm")
    with pytest.raises(CoralError, match="is no dotted number"):
        engine_version("vllm", "newest")


def test_settings_without_an_engine_are_the_newest_ones() -> None:
    assert ProfileSettings().gpu_memory_utilization == engine_versions()[-1].gpu_memory_utilization
    older = ProfileSettings.of_engine(engine_version("vllm", "0.12.0"), decode_derate=0.9)
    assert (older.gpu_memory_utilization, older.decode_derate) == (0.9, 0.9)


@pytest.mark.parametrize(("version", "share"), [("0.12.0", 0.9), ("0.25.0", 0.92)])
def test_the_share_is_of_total_memory(version: str, share: float) -> None:
    # An L40S: the driver reports 46,068 MiB, not the 48 GB of the data sheet. Graphs are captured for decode only.
    gpu = catalog().gpus["L40S"]
    assert gpu.memory_gib == pytest.approx(46068 / 1024, abs=1e-5)
    shape = ModelShape(SPEC, "bf16", "bf16")
    settings = ProfileSettings.of_engine(engine_version("vllm", version), engine_reserve_gib=0.8, cuda_graph_gib=0.7)
    for phase, reserve in ((Phase.DECODE, 1.5), (Phase.PREFILL, 0.8)):
        usable = MemoryModel(gpu, shape, phase, settings).usable_bytes / GIB
        assert usable == pytest.approx(46068 / 1024 * share - reserve, abs=1e-4)


def test_published_weights() -> None:
    # 32.76 B parameters of Qwen3-32B at two bytes; its embedding and head are 1.56 GB each, 1.6 layers. gpt-oss-120b's
    # repository holds 65.2 GB, 61 GiB; Qwen3-235B-A22B 470 GB in bf16.
    qwen = ModelShape(catalog().models["Qwen/Qwen3-32B"], "bf16", "bf16")
    assert qwen.weight_bytes == pytest.approx(2 * 32.76e9, rel=2e-3)
    assert qwen.lm_head_bytes(1) == pytest.approx(1.556e9, rel=1e-3)
    assert qwen.lm_head_bytes(1) / qwen.layer_weight_bytes(qwen.kinds[0], 1) == pytest.approx(1.6, abs=0.02)
    assert ModelShape(catalog().models["openai/gpt-oss-120b"], "mxfp4", "bf16").weight_bytes == pytest.approx(
        65.2e9, rel=0.01
    )
    moe = ModelShape(catalog().models["Qwen/Qwen3-235B-A22B"], "bf16", "bf16")
    assert moe.weight_bytes == pytest.approx(470e9, rel=0.01)


def test_ends_lie_where_they_are() -> None:
    shape = ModelShape(SPEC, "bf16", "bf16")
    end = 32000 * 1024 * 2
    assert shape.end_bytes(has_embedding=True, has_head=False, tp=1) == end
    assert shape.end_bytes(has_embedding=True, has_head=True, tp=2) == end
    assert shape.end_bytes(has_embedding=False, has_head=False, tp=1) == 0


def test_activations_of_a_pass() -> None:
    # n (2f + 4h) 2 / t: 12,288 values a token of two bytes
    memory = MemoryModel(GPU, ModelShape(SPEC, "bf16", "bf16"), Phase.PREFILL, ProfileSettings())
    assert memory.activation_bytes_per_token(1) == (2 * 4096 + 4 * 1024) * 2
    assert memory.activation_bytes_per_token(4) == (2 * 4096 + 4 * 1024) * 2 / 4


# (GiB of weights, of its largest pass, left for KV, GPUs) as vLLM 0.11.0 logged them on H100s of 79.18 GiB, 0.9 of them
# used, taken to run with its defaults there: 8,192 tokens a pass, 1,024 sequences. The bytes per logit were read off these
# logs, so this checks that one figure serves all of them and tensor parallelism does not split it. Left out: gpt-oss-120b,
# whose row adds up at a share of 0.95 only, and a multimodal model, which draws in less.
LOGGED = {
    "Qwen/Qwen3-32B": [(61.03, 5.64, 4.45, 1), (30.59, 5.64, 34.49, 2)],
    "meta-llama/Meta-Llama-3.1-8B": [(14.99, 4.76, 51.38, 1)],
    "meta-llama/Meta-Llama-3.1-70B": [(33.88, 4.84, 32.00, 2)],
    "openai/gpt-oss-20b": [(13.47, 7.38, 50.28, 1)],
}
FORMATS = {"openai/gpt-oss-20b": "mxfp4", "meta-llama/Meta-Llama-3.1-70B": "fp8"}


@pytest.mark.parametrize("name", sorted(LOGGED))
def test_what_vllm_logs_of_its_largest_pass(name: str) -> None:
    # Drawing 1,024 tokens takes more than computing 8,192; it grows with the vocabulary, not with the model, and no tensor
    # parallelism splits it.
    gpu = replace(catalog().gpus["H100-SXM"], memory_gib=79.18)
    shape = ModelShape(catalog().models[name], FORMATS.get(name, "bf16"), "bf16")
    settings = ProfileSettings(gpu_memory_utilization=0.9, cuda_graph_gib=0.0, decode_pass_tokens=8192)
    memory = MemoryModel(gpu, shape, Phase.DECODE, settings)
    for weights, largest, left, tp in LOGGED[name]:
        ours = float(memory.pass_bytes(np.array([1024.0]), 1, tp, has_head=True)[0])
        assert ours / GIB == pytest.approx(largest, rel=0.03)
        # What is left differs by the engine's own reserve: logged 0.13 GiB on one GPU, 0.55 on two; 0.8 here.
        assert (memory.usable_bytes - ours) / GIB - weights == pytest.approx(left - 0.45, abs=0.35)


def test_a_decode_engine_keeps_room_for_its_largest_pass() -> None:
    # Activations 24,576 bytes a token; 32,000 logits of 38.5 bytes a sequence, 1.232 MB.
    memory = MemoryModel(GPU, ModelShape(SPEC, "bf16", "bf16"), Phase.DECODE, ProfileSettings())

    def kept(batch: float, in_flight: int, tp: int, *, has_head: bool) -> float:
        return float(memory.pass_bytes(np.array([batch]), in_flight, tp, has_head=has_head)[0])

    assert kept(8, 1, 1, has_head=False) == 2048 * 24576
    assert kept(8, 1, 4, has_head=False) == 2048 * 24576 / 4
    assert kept(8, 1, 1, has_head=True) == 2048 * 24576  # 8 x 1.232 MB is less than 50.3 MB
    assert kept(64, 1, 4, has_head=True) == kept(16, 4, 4, has_head=True) == 64 * 32000 * 38.5
    assert kept(4096, 1, 1, has_head=False) == 4096 * 24576
    assert kept(512, 8, 1, has_head=True) == 2048 * 32000 * 38.5  # no more are drawn at once than the budget
    prefill = MemoryModel(GPU, ModelShape(SPEC, "bf16", "bf16"), Phase.PREFILL, ProfileSettings())
    assert float(prefill.pass_bytes(np.array([8.0]), 4, 1, has_head=True)[0]) == 8 * 24576


@settings_(max_examples=200, deadline=None)
@given(
    free=st.floats(1e6, 1e11),
    sequence=st.floats(1e3, 1e9),
    in_flight=st.integers(1, 24),
    tp=st.sampled_from([1, 2, 8]),
    has_head=st.booleans(),
)
def test_the_largest_batch_just_fits(free: float, sequence: float, in_flight: int, tp: int, has_head: bool) -> None:
    memory = MemoryModel(GPU, ModelShape(SPEC, "bf16", "bf16"), Phase.DECODE, ProfileSettings())
    most = float(
        memory.largest_decode_batch(np.array([free]), np.array([sequence]), in_flight, tp, has_head=has_head)[0]
    )

    def used(batch: float) -> float:
        kept = memory.pass_bytes(np.array([batch]), in_flight, tp, has_head=has_head)
        return batch * sequence + float(kept[0])

    if most > 0:
        assert used(most) == pytest.approx(free, rel=1e-9)
        assert used(1.01 * most) > free
    else:
        assert used(0.0) >= free * (1 - 1e-9)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared measurements are not here: set CORAL_SHARED_DATA")
def test_what_vllm_had_left_for_kv() -> None:
    # Helix logged vLLM's KV blocks by the layers a node holds. Besides KV an engine keeps room for its largest pass: here
    # that of the prompts it was timed with, 7,500 to 11,250 tokens.
    passes: dict[tuple[str, str], int] = defaultdict(int)
    with (SHARED / "perf" / "helix_layer_times.csv").open(encoding="utf-8", newline="") as handle:
        for line in csv.DictReader(handle):
            if line["phase"] == "prefill":
                key = line["gpu"], line["model"]
                passes[key] = max(passes[key], int(line["batch_tokens"]))
    models = {"llama1_30b": _helix_llama(6656, 17920, 52, 52, 60), "llama2_70b": _helix_llama(8192, 28672, 64, 8, 80)}
    settings = ProfileSettings.of_engine(engine_version("vllm", "0.4.0"))
    over: dict[str, list[float]] = defaultdict(list)
    with (SHARED / "perf" / "helix_node_profile.csv").open(encoding="utf-8", newline="") as handle:
        for line in csv.DictReader(handle):
            card, _, count = line["gpu"].partition("x")
            gpus, layers = int(count or 1), int(line["layers_held"])
            shape = ModelShape(models[line["model"]], "fp16", "fp16")
            memory = MemoryModel(catalog().gpus[_HELIX_GPUS[card]], shape, Phase.DECODE, settings)
            free = memory.usable_bytes - layers * memory.layer_bytes(gpus)[0]
            free -= passes[line["gpu"], line["model"]] * memory.activation_bytes_per_token(gpus)
            logged = 16 * float(line["vllm_blocks"]) * layers * shape.kv_bytes_per_token_layer(gpus)
            over[line["gpu"]].append((free - logged) / GIB)
    assert sum(len(each) for each in over.values()) > 100
    for gpu, each in over.items():
        # A V100 was timed with longer prompts than its memory was logged for.
        assert max(abs(value) for value in each) < (2.0 if gpu == "V100" else 0.8), gpu
    assert abs(np.mean([value for gpu, each in over.items() if gpu != "V100" for value in each])) < 0.3
