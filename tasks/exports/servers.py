"""What each engine of an instance is called with: model, formats, degrees, limits, ports.

Notation: an instance of S stages on one node each, tp GPUs per tensor-parallel group and pp inner stages per node, is one
engine of P = S * pp pipeline stages; a decode instance holds P * b sequences, b the smallest batch of its stages, and a
prefill instance computes passes of b tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from catalogs.types import Phase
from tasks.allocation.plan import PlanInstance
from tasks.exports.rules import PARTITION
from tasks.exports.types import (
    HTTP_PORT,
    MASTER_PORT,
    MOONCAKE_PORT,
    NIXL_PORT,
    Facts,
    GroupNode,
    NotLaunchableError,
    ServedWorkload,
    Server,
)
from tasks.profiling.memory import ProfileSettings

_PACKAGED_FP8 = frozenset({"bf16", "fp16"})


def pipeline_stages(row: PlanInstance) -> int:
    """P: pipeline stages of the engine."""
    return sum(stage.nodes[0].pp for stage in row.stages)


def servers_of(
    row: PlanInstance, served: ServedWorkload, facts: Facts, connector: str, is_half: bool, limit: int
) -> tuple[Server, ...]:
    """The engines of an instance: one over all its nodes, or several alike on a single node. ``connector`` hands KV over
    ('' = nothing does), ``limit`` is the longest request. Raises NotLaunchableError where its weights are not to be had."""
    first = row.stages[0].nodes[0]
    pipeline, copies = pipeline_stages(row), first.replicas if len(row.stages) == 1 else 1
    sequences, tokens = _limits(row, served)
    arguments = [
        *_model_words(served, facts),
        *_dtype_words(served, facts, is_half),
        "--tensor-parallel-size", str(first.tp),
        "--pipeline-parallel-size", str(pipeline),
        "--gpu-memory-utilization", f"{facts.gpu_memory_utilization:g}",
        "--max-model-len", str(limit),
        "--max-num-seqs", str(sequences),
        "--max-num-batched-tokens", str(tokens),
    ]  # fmt: skip
    if facts.attention_backend:
        arguments += ["--attention-backend", facts.attention_backend]
    env = {PARTITION: ",".join(map(str, _partition(row)))} if pipeline > 1 else {}
    if connector:
        arguments += ["--kv-transfer-config", _transfer(connector, served.phase, facts)]
    return tuple(
        Server(
            k,
            first.tp,
            pipeline,
            HTTP_PORT + k,
            ("vllm", "serve", *arguments, "--host", "0.0.0.0", "--port", str(HTTP_PORT + k)),  # noqa: S104 - in the cluster
            env,
            _side_channel(connector, served.phase, k),
        )
        for k in range(copies)
    )


def _model_words(served: ServedWorkload, facts: Facts) -> list[str]:
    """The repository to load, under the model's own name, and quantisation on the fly where that is what was planned."""
    model = facts.models[served.model]
    given = facts.checkpoints.get(served.model)
    if given is not None:
        return [given, "--served-model-name", served.model]
    wanted, shipped = served.weight_dtype, model.shipped_dtype
    if wanted == shipped or {wanted, shipped} <= _PACKAGED_FP8:
        return [served.model]
    if wanted == "fp8" and shipped in _PACKAGED_FP8:
        return [served.model, "--quantization", "fp8"]
    raise NotLaunchableError(
        f"planned with weights in {wanted}, but {served.model} is published in {shipped}",
        f"name a repository of them: --checkpoint {served.model}=ORG/NAME",
    )


def _dtype_words(served: ServedWorkload, facts: Facts, is_half: bool) -> list[str]:
    words = ["--dtype", "half"] if is_half and served.weight_dtype != "mxfp4" else []
    return [*words, "--kv-cache-dtype", "fp8"] if served.kv_dtype == "fp8" else words


def _limits(row: PlanInstance, served: ServedWorkload) -> tuple[int, int]:
    """(sequences, tokens per pass) that the profile's batch stands for.

    A decode engine's passes are as large as the profile assumed, or its sequences. A prefill pass of b tokens meets at most
    ceil(b / mean prompt) + 1 prompts, in each of the P passes under way.
    """
    batch, pipeline = _batch(row), pipeline_stages(row)
    if served.phase is Phase.PREFILL:
        prompts = pipeline * (math.ceil(batch / max(served.input_mean, 1.0)) + 1)
        return max(1, min(prompts, batch)), batch
    sequences = batch * pipeline
    return sequences, max(sequences, ProfileSettings().decode_pass_tokens)


def _partition(row: PlanInstance) -> list[int]:
    """Layers of each of the P pipeline stages. Inside a node they are split as the profile did and vLLM does by default: evenly,
    what remains to the stages before the last."""
    parts = []
    for stage in row.stages:
        layers, inner = stage.layers[1] - stage.layers[0] + 1, stage.nodes[0].pp
        base, rest = divmod(layers, inner)
        parts += [base + (inner - 1 - rest <= i < inner - 1) for i in range(inner)]
    return parts


def _transfer(connector: str, phase: Phase, facts: Facts) -> str:
    side = "kv_producer" if phase is Phase.PREFILL else "kv_consumer"
    role = "kv_both" if connector == facts.engine.connector else side
    return json.dumps({"kv_connector": connector, "kv_role": role}, separators=(",", ":"))


def _side_channel(connector: str, phase: Phase, k: int) -> Mapping[str, str]:
    """Ports of the handshake between prefill and decode, one per server of a node."""
    if connector.startswith("Nixl"):
        return {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(NIXL_PORT + k)}
    if connector.startswith("Mooncake") and phase is Phase.PREFILL:
        return {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(MOONCAKE_PORT + k)}
    return {}


def rank_words(n_nodes: int, rank: str, master: str) -> list[str]:
    """What the command adds on one of several nodes; nothing on a single one. The ranks after the first have no API server
    and say so with ``--headless`` besides."""
    if n_nodes == 1:
        return []
    return ["--nnodes", str(n_nodes), "--node-rank", rank, "--master-addr", master, "--master-port", str(MASTER_PORT)]


def max_model_len(row: PlanInstance, served: ServedWorkload, nodes: Sequence[GroupNode], facts: Facts) -> int:
    """Tokens of the longest request: as many as the KV of the planned batch and the memory left beside it hold in every node,
    at least a request of the SLO percentile's prompt, at most what the model takes."""
    batch, pipeline, model = _batch(row), pipeline_stages(row), facts.models[served.model]
    if served.phase is Phase.PREFILL:
        held = float(batch * pipeline)
    else:
        held = batch * pipeline * (served.input_mean + served.output_mean / 2)
    room = min(_room_tokens(node, row, served, facts) for node in nodes)
    least = served.input_at_percentile + served.output_mean
    return min(model.max_position, math.ceil(max(held + room, least)))


def _room_tokens(node: GroupNode, row: PlanInstance, served: ServedWorkload, facts: Facts) -> float:
    """Tokens of one sequence for whose KV a GPU of the node has room beside the planned batch; 0 where its use is not known.
    Every layer is taken to see all of the sequence, which is the safe side for windows."""
    if node.memory_used_gib is None:
        return 0.0
    planned, model = row.stages[0].nodes[0], facts.models[served.model]
    bytes_each = 1 if served.kv_dtype == "fp8" else 2
    copies = 1 if model.has_latent_kv else min(planned.tp, model.kv_heads)
    layers = math.ceil((node.layers[1] - node.layers[0] + 1) / planned.pp)
    free_gib = facts.nodes[node.node_config].memory_gib * facts.gpu_memory_utilization - node.memory_used_gib
    return max(free_gib, 0.0) * 2**30 / (layers * model.kv_width * bytes_each / copies)


def _batch(row: PlanInstance) -> int:
    return min(node.batch for stage in row.stages for node in stage.nodes)
