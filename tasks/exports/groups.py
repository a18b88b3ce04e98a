"""From a plan to launch groups: what each instance runs on which node, within which limits, and why some cannot be launched.

Notation: an instance of S stages on one node each, tp GPUs per tensor-parallel group and pp inner stages per node, is one
engine of P = S * pp pipeline stages; a decode instance holds P * b sequences, b the smallest batch of its stages, and a
prefill instance computes passes of b tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from catalogs.errors import CoralError
from catalogs.ids import short_hash
from catalogs.types import Phase
from tasks.allocation.plan import Plan, PlanInstance, PlanStage
from tasks.exports.rules import PARTITION, refusals
from tasks.exports.types import (
    HTTP_PORT,
    MASTER_PORT,
    MOONCAKE_PORT,
    NIXL_PORT,
    Facts,
    Group,
    GroupNode,
    Launch,
    ServedWorkload,
    Server,
)
from tasks.profiling.memory import ProfileSettings
from tasks.templates.types import LaunchClass

_LONGEST_ALIAS = 32
_RUNTIME = "plan with --launchable-only, or run it on a runtime that lays stages out by itself"
_PACKAGED_FP8 = frozenset({"bf16", "fp16"})


class _NotLaunchableError(Exception):
    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def launch_of(plan: Plan, facts: Facts) -> Launch:
    """The plan's groups, in the plan's order. Raises CoralError where a fact about a workload, a model or a node is missing."""
    served = [_served(row, facts) for row in plan.instances]
    connectors = _connectors(plan.instances, served, facts)
    halves = _half_precision(plan.instances, served, facts)
    groups = []
    for row, workload in zip(plan.instances, served, strict=True):
        where = (row.region, workload.model)
        groups.append(_group(row, workload, facts, connectors[where], where in halves))
    return Launch(plan, facts, _with_unique_names(groups))


def _served(row: PlanInstance, facts: Facts) -> ServedWorkload:
    served = facts.workloads.get(row.workload_id)
    if served is None or served.model not in facts.models:
        raise CoralError(
            f"what {row.workload} was planned for is not kept in this lake",
            remedy="export a plan published by this version of coral, or give --scenario the file it was made from",
        )
    missing = [n.node_config for stage in row.stages for n in stage.nodes if n.node_config not in facts.nodes]
    if missing:
        raise CoralError(
            f"node configuration {missing[0]} of {row.workload} is not kept in this lake",
            remedy="give --scenario the file the plan was made from",
        )
    return served


# ---- what instances of one model in one region must agree on ------------------------------------------------------------


def _connectors(
    rows: Sequence[PlanInstance], served: Sequence[ServedWorkload], facts: Facts
) -> dict[tuple[str, str], str]:
    """KV connector per (region, model): prefill and decode must speak the same. One that takes the pipelines there are,
    else the usual one; '' where nothing is handed over."""
    stages: dict[tuple[str, str], dict[Phase, int]] = {}
    for row, workload in zip(rows, served, strict=True):
        if row.launch_class in (LaunchClass.A, LaunchClass.B1):
            most = stages.setdefault((row.region, workload.model), {})
            most[workload.phase] = max(most.get(workload.phase, 1), _pipeline(row))
    engine, found = facts.engine, {}
    for row, workload in zip(rows, served, strict=True):
        where = (row.region, workload.model)
        most = stages.get(where, {})
        if workload.phase is Phase.AGGREGATED:
            found[where] = ""
        elif most.get(Phase.DECODE, 1) > 1:
            found[where] = engine.decode_pp_connector or engine.connector
        elif most.get(Phase.PREFILL, 1) > 1:
            found[where] = engine.prefill_pp_connector or engine.connector
        else:
            found[where] = engine.connector
    return found


def _half_precision(
    rows: Sequence[PlanInstance], served: Sequence[ServedWorkload], facts: Facts
) -> frozenset[tuple[str, str]]:
    """(region, model) where a GPU without bf16 takes part: all must compute in fp16 then, for the KV that is handed over."""
    return frozenset(
        (row.region, workload.model)
        for row, workload in zip(rows, served, strict=True)
        if any(not facts.nodes[n.node_config].has_native_bf16 for stage in row.stages for n in stage.nodes)
    )


def _pipeline(row: PlanInstance) -> int:
    return sum(stage.nodes[0].pp for stage in row.stages)


# ---- one group ---------------------------------------------------------------------------------------------------------


def _group(row: PlanInstance, served: ServedWorkload, facts: Facts, connector: str, is_half: bool) -> Group:
    nodes = tuple(_nodes(row, facts))
    try:
        _check_class(row)
        limit = _max_model_len(row, served, nodes, facts)
        servers = _servers(row, served, facts, connector, is_half, limit)
        _check_rules(nodes, servers, served, facts)
        _check_memory(nodes, facts)
    except _NotLaunchableError as refused:
        layout = [stage.model_dump(mode="json") for stage in row.stages]
        name = _name(served, [row.region, row.market.value, layout])
        return Group(name, row, served, nodes, (), 0, refused.reason, refused.remedy)
    content = [
        row.region,
        row.market.value,
        [[node.node_config, node.instance_type] for node in nodes],
        [[*server.arguments, *(f"{k}={v}" for k, v in sorted(server.env.items()))] for server in servers],
        [facts.engine.engine, facts.engine.version],
    ]
    return Group(_name(served, content), row, served, nodes, servers, limit)


def _name(served: ServedWorkload, content: object) -> str:
    """A DNS label that begins with a letter: model, phase, and a hash of what is launched, so that an unchanged launch keeps
    its name."""
    alias = re.sub(r"[^a-z0-9]+", "-", served.alias.rpartition("/")[0].lower())[:_LONGEST_ALIAS].strip("-")
    head = alias if alias[:1].isalpha() else f"model-{alias}".rstrip("-")
    return f"{head}-{served.phase.value}-{short_hash(content)[:8]}"


def _with_unique_names(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Two rows that launch the same (templates that differ in their figures alone) get names of their own."""
    from dataclasses import replace

    seen: dict[str, int] = {}
    named = []
    for group in groups:
        seen[group.name] = seen.get(group.name, 0) + 1
        named.append(group if seen[group.name] == 1 else replace(group, name=f"{group.name}-{seen[group.name]}"))
    return tuple(named)


def _nodes(row: PlanInstance, facts: Facts) -> Iterable[GroupNode]:
    rank = 0
    for s, stage in enumerate(row.stages):
        for node in stage.nodes:
            yield GroupNode(
                rank,
                node.node_config,
                node.instance_type,
                facts.nodes[node.node_config].gpu_count,
                stage.layers,
                node.share,
                facts.memory_used_gib.get((row.template_id, s, node.node_config)),
            )
            rank += 1


def _check_class(row: PlanInstance) -> None:
    """Raise for what stock engines do not launch (ANCHORS, launch classes)."""
    if row.launch_class is LaunchClass.B2:
        raise _NotLaunchableError(
            "class B2: nodes of unequal GPU counts in one pipeline, which only Ray places and nobody has shown to start",
            _RUNTIME,
        )
    if row.launch_class is LaunchClass.C:
        raise _NotLaunchableError(f"class C: {_class_c_reason(row.stages)}", _RUNTIME)


def _class_c_reason(stages: Sequence[PlanStage]) -> str:
    wide = [i for i, stage in enumerate(stages) if len(stage.nodes) > 1]
    if wide:
        return f"stage {wide[0]} is {len(stages[wide[0]].nodes)} nodes that share its requests; engines have one node per stage"
    nodes = [node for stage in stages for node in stage.nodes]
    copies = [node for node in nodes if node.replicas > 1]
    if copies:
        return f"{copies[0].node_config} runs {copies[0].replicas} copies of its stage; engines have one per stage"
    degrees = sorted({node.tp for node in nodes})
    return (
        f"stages of {' and '.join(map(str, degrees))} GPUs per tensor-parallel group; engines have one degree for all"
    )


def _max_model_len(row: PlanInstance, served: ServedWorkload, nodes: Sequence[GroupNode], facts: Facts) -> int:
    """Tokens of the longest request: as many as the KV of the planned batch and the memory left beside it hold in every node,
    at least a request of the SLO percentile's prompt, at most what the model takes."""
    batch, pipeline, model = _batch(row), _pipeline(row), facts.models[served.model]
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


def _servers(
    row: PlanInstance, served: ServedWorkload, facts: Facts, connector: str, is_half: bool, limit: int
) -> tuple[Server, ...]:
    first = row.stages[0].nodes[0]
    pipeline, copies = _pipeline(row), first.replicas if len(row.stages) == 1 else 1
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
    raise _NotLaunchableError(
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
    batch, pipeline = _batch(row), _pipeline(row)
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


def _check_rules(nodes: Sequence[GroupNode], servers: Sequence[Server], served: ServedWorkload, facts: Facts) -> None:
    """Raise unless every command of every rank is one that the engine accepts."""
    for server in servers:
        for node in nodes:
            argv = [*server.arguments[1:], *rank_words(len(nodes), str(node.rank), "head")]
            argv += ["--headless"] if node.rank else []
            found = refusals(
                argv,
                server.env,
                facts.models[served.model],
                facts.engine,
                gpus_on_node=node.gpu_count // len(servers),
                is_prefill=served.phase is Phase.PREFILL,
            )
            if found:
                raise _NotLaunchableError(
                    f"{facts.engine.engine} {facts.engine.version}: {found[0]}", _remedy(found[0])
                )


def _remedy(reason: str) -> str:
    return (
        "export for a newer engine with --engine-version"
        if "KV connector" in reason or "takes no" in reason
        else _RUNTIME
    )


def _check_memory(nodes: Sequence[GroupNode], facts: Facts) -> None:
    for node in nodes:
        room = facts.nodes[node.node_config].memory_gib * facts.gpu_memory_utilization
        if node.memory_used_gib is not None and node.memory_used_gib > room * (1 + 1e-6):
            raise _NotLaunchableError(
                f"{node.memory_used_gib:.1f} GiB are needed on a GPU of {node.node_config}, "
                f"{facts.engine.engine} {facts.engine.version} fills {room:.1f} GiB",
                "plan with this engine version in the scenario",
            )
