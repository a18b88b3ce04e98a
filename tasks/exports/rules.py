"""A local copy of the rules by which vLLM refuses a command, applied to the words of the command themselves.

Independent of how the commands are made: it reads what will be typed. Sources: vLLM 0.25.0 and 0.33.0, ``ModelConfig``
(heads), ``ParallelConfig`` and ``EngineArgs`` (ranks), ``get_pp_indices`` (layers per stage), ``SchedulerConfig`` (batches),
the KV connectors' own checks; block-wise fp8 and grouped int4 from vllm#17569 and the quantisation layers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from catalogs.engines import EngineLaunch
from catalogs.wording import counted
from tasks.exports.types import ModelFacts

PARTITION = "VLLM_PP_LAYER_PARTITION"


class _RefusedError(Exception):
    """The command line itself is not one of the engine's."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _RefusedError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vllm", add_help=False, allow_abbrev=False)
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    for name, default in (
        ("tensor-parallel-size", 1), ("pipeline-parallel-size", 1), ("nnodes", 1), ("node-rank", 0), ("master-port", 0),
        ("port", 8000), ("max-model-len", None), ("max-num-seqs", None), ("max-num-batched-tokens", None),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    for name in ("host", "master-addr", "kv-transfer-config", "attention-backend", "served-model-name"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], default="auto")
    parser.add_argument("--dtype", choices=["auto", "half", "bfloat16"], default="auto")
    parser.add_argument("--quantization", choices=["fp8"])
    parser.add_argument("--headless", action="store_true")
    return parser


def refusals(
    argv: Sequence[str],
    env: Mapping[str, str],
    model: ModelFacts,
    engine: EngineLaunch,
    *,
    gpus_on_node: int,
    is_prefill: bool,
) -> list[str]:
    """Why the engine would not start with this command on a node of ``gpus_on_node`` visible GPUs; empty = it would."""
    try:
        given = _parser().parse_args(list(argv))
    except _RefusedError as error:
        return [str(error)]
    found = [*_shape(given, model), *_ranks(given, gpus_on_node), *_layers(given, env, model), *_batches(given, model)]
    if given.kv_transfer_config is not None:
        found += _transfer(given, engine, is_prefill)
    return found


def _shape(given: Any, model: ModelFacts) -> list[str]:
    tensor = given.tensor_parallel_size
    if tensor < 1:
        return ["tensor-parallel size below 1"]
    found = []
    if model.heads % tensor:
        found.append(f"{model.heads} attention heads do not divide by {tensor}")
    if not model.has_latent_kv and model.kv_heads % tensor and tensor % model.kv_heads:
        found.append(f"{model.kv_heads} KV heads neither divide by {tensor} nor replicate to it")
    for width in model.sharded:
        if width % tensor:
            found.append(f"a width of {width} does not divide by {tensor}")
        elif model.quant_block and tensor > 1 and width // tensor % model.quant_block:
            found.append(
                f"a shard of {width} over {tensor} is no multiple of the quantisation block {model.quant_block}"
            )
    return found


def _ranks(given: Any, gpus_on_node: int) -> list[str]:
    world = given.tensor_parallel_size * given.pipeline_parallel_size
    if given.nnodes < 1 or world % given.nnodes:
        return [f"{counted(world, 'rank does', 'ranks do')} not divide over {counted(given.nnodes, 'node')}"]
    found = []
    if world // given.nnodes != gpus_on_node:
        found.append(f"{counted(world // given.nnodes, 'rank')} per node on {counted(gpus_on_node, 'GPU')}")
    if not 0 <= given.node_rank < given.nnodes:
        found.append(f"node rank {given.node_rank} of {counted(given.nnodes, 'node')}")
    if given.nnodes > 1 and not given.master_addr:
        found.append("several nodes without a master address")
    if given.headless != (given.node_rank > 0):
        found.append("the API server belongs on rank 0 alone")
    return found


def _layers(given: Any, env: Mapping[str, str], model: ModelFacts) -> list[str]:
    stages = given.pipeline_parallel_size
    if not 1 <= stages <= model.layers:
        return [f"{stages} pipeline stages for {model.layers} layers"]
    text = env.get(PARTITION)
    if text is None:
        return []
    parts = [int(part) for part in text.split(",")]
    found = []
    if len(parts) != stages:
        found.append(f"{PARTITION}={text} has {len(parts)} entries for {stages} stages")
    if sum(parts) != model.layers:
        found.append(f"{PARTITION}={text} sums to {sum(parts)}, the model has {model.layers} layers")
    if min(parts) < 1:
        found.append(f"{PARTITION}={text} leaves a stage empty")
    return found


def _batches(given: Any, model: ModelFacts) -> list[str]:
    found = []
    sequences, tokens = given.max_num_seqs, given.max_num_batched_tokens
    if sequences is not None and tokens is not None and not 1 <= sequences <= tokens:
        found.append(f"max-num-seqs {sequences} is not within 1 and max-num-batched-tokens {tokens}")
    if given.max_model_len is not None and not 1 <= given.max_model_len <= model.max_position:
        found.append(f"max-model-len {given.max_model_len} is beyond the model's {model.max_position}")
    if not 0 < given.gpu_memory_utilization <= 1:
        found.append(f"gpu-memory-utilization {given.gpu_memory_utilization} is no share")
    return found


def _transfer(given: Any, engine: EngineLaunch, is_prefill: bool) -> list[str]:
    config = json.loads(given.kv_transfer_config)
    name, role = config.get("kv_connector"), config.get("kv_role")
    if name not in {engine.connector, engine.prefill_pp_connector, engine.decode_pp_connector} - {""}:
        return [f"KV connector {name} is not one of {engine.engine} {engine.version}"]
    if role not in {"kv_both", "kv_producer" if is_prefill else "kv_consumer"}:
        return [f"KV role {role} for {'prefill' if is_prefill else 'decode'}"]
    if given.pipeline_parallel_size == 1:
        return []
    takes = (engine.decode_pp_connector, engine.prefill_pp_connector) if is_prefill else (engine.decode_pp_connector,)
    if name not in takes:
        side = "prefill" if is_prefill else "decode"
        return [f"{name} takes no {side} instance of {given.pipeline_parallel_size} pipeline stages"]
    return []
