"""From a plan to launch groups: what each instance runs on which node, within which limits, and why some cannot be launched.

What each engine is called with is in :mod:`tasks.exports.servers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from catalogs.errors import CoralError
from catalogs.ids import short_hash
from catalogs.types import Phase
from tasks.allocation.plan import Plan, PlanInstance, PlanStage
from tasks.exports.rules import refusals
from tasks.exports.servers import max_model_len, pipeline_stages, rank_words, servers_of
from tasks.exports.supply import meeting_places
from tasks.exports.types import Facts, Group, GroupNode, Launch, NotLaunchableError, ServedWorkload, Server
from tasks.templates.types import LaunchClass

_LONGEST_ALIAS = 32
_RUNTIME = "plan with --launchable-only, or run it on a runtime that lays stages out by itself"


def launch_of(plan: Plan, facts: Facts) -> Launch:
    """The plan's groups, in the plan's order. Raises CoralError where a fact about a workload, a model or a node is missing."""
    served = [_served(row, facts) for row in plan.instances]
    places = meeting_places(plan)
    where = [
        (places.get((row.region, w.model), (row.region,)), w.model)
        for row, w in zip(plan.instances, served, strict=True)
    ]
    connectors = _connectors(plan.instances, served, where, facts)
    halves = _half_precision(plan.instances, where, facts)
    groups = [
        _group(row, workload, facts, connectors[place], place in halves)
        for row, workload, place in zip(plan.instances, served, where, strict=True)
    ]
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


# ---- what instances of one model must agree on that hand KV to each other ------------------------------------------------

_Place = tuple[tuple[str, ...], str]
"""(regions between which the model's KV moves, model): mostly of one region."""


def _connectors(
    rows: Sequence[PlanInstance], served: Sequence[ServedWorkload], where: Sequence[_Place], facts: Facts
) -> dict[_Place, str]:
    """KV connector per place: prefill and decode must speak the same. One that takes the pipelines there are, else the usual
    one; '' where nothing is handed over."""
    stages: dict[_Place, dict[Phase, int]] = {}
    for row, workload, place in zip(rows, served, where, strict=True):
        if row.launch_class in (LaunchClass.A, LaunchClass.B1):
            most = stages.setdefault(place, {})
            most[workload.phase] = max(most.get(workload.phase, 1), pipeline_stages(row))
    engine, found = facts.engine, {}
    for workload, place in zip(served, where, strict=True):
        most = stages.get(place, {})
        if workload.phase is Phase.AGGREGATED:
            found[place] = ""
        elif most.get(Phase.DECODE, 1) > 1:
            found[place] = engine.decode_pp_connector or engine.connector
        elif most.get(Phase.PREFILL, 1) > 1:
            found[place] = engine.prefill_pp_connector or engine.connector
        else:
            found[place] = engine.connector
    return found


def _half_precision(rows: Sequence[PlanInstance], where: Sequence[_Place], facts: Facts) -> frozenset[_Place]:
    """Places where a GPU without bf16 takes part: all must compute in fp16 then, for the KV that is handed over."""
    return frozenset(
        place
        for row, place in zip(rows, where, strict=True)
        if any(not facts.nodes[n.node_config].has_native_bf16 for stage in row.stages for n in stage.nodes)
    )


# ---- one group ---------------------------------------------------------------------------------------------------------


def _group(row: PlanInstance, served: ServedWorkload, facts: Facts, connector: str, is_half: bool) -> Group:
    nodes = tuple(_nodes(row, facts))
    try:
        _check_class(row)
        limit = max_model_len(row, served, nodes, facts)
        servers = servers_of(row, served, facts, connector, is_half, limit)
        _check_rules(nodes, servers, served, facts)
        _check_memory(nodes, facts)
    except NotLaunchableError as refused:
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
    """Raise for what stock engines do not launch: classes B2 and C."""
    if row.launch_class is LaunchClass.B2:
        raise NotLaunchableError(
            "class B2: nodes of unequal GPU counts in one pipeline, which only Ray places and nobody has shown to start",
            _RUNTIME,
        )
    if row.launch_class is LaunchClass.C:
        raise NotLaunchableError(f"class C: {_class_c_reason(row.stages)}", _RUNTIME)


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
                raise NotLaunchableError(f"{facts.engine.engine} {facts.engine.version}: {found[0]}", _remedy(found[0]))


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
            raise NotLaunchableError(
                f"{node.memory_used_gib:.1f} GiB are needed on a GPU of {node.node_config}, "
                f"{facts.engine.engine} {facts.engine.version} fills {room:.1f} GiB",
                "plan with this engine version in the scenario",
            )
