"""Kubernetes: LeaderWorkerSets, one folder of manifests per region, i.e. per cluster.

A set has at most two pod shapes, the leader's and the workers'. So the nodes of an instance, in rank order, are cut into
sets of a leader of any type and workers of one type; an instance of more types is several sets of as many replicas, whose
groups of equal index belong together: pods of later sets find rank 0 as the first set's leader of their own index
(``SET-INDEX.SET``, the name the set's headless service gives it). Facts: LeaderWorkerSet v1 API and its labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalogs.types import Market
from tasks.exports.shell import figures_text, folder_of, server_text
from tasks.exports.tables import yaml_text
from tasks.exports.types import Group, GroupNode, Launch, Server

TARGET = "kubernetes"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
SET_NAME = "leaderworkerset.sigs.k8s.io/name"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
NODE_CONFIGS = "coral/node-configs"
_SPOT = {
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),
    "gcp": ("cloud.google.com/gke-spot", "true"),
    "azure": ("kubernetes.azure.com/scalesetpriority", "spot"),
}


def kubernetes_files(launch: Launch) -> dict[str, str]:
    """Path in the export -> text."""
    files: dict[str, str] = {}
    for group in launch.groups:
        if group.is_launchable:
            folder = f"{TARGET}/{folder_of(group.row.region)}"
            text = yaml_text(_documents(group, launch))
            files[f"{folder}/{group.name}.yaml"] = "\n".join(figures_text(group)) + "\n" + text
    return files


def sets_of(group: Group) -> list[tuple[int, int]]:
    """[first, last) ranks of each LeaderWorkerSet: a leader of any type, then workers of one type, as far as that goes.

    No fewer sets do: whatever ranks a set has, its first ranks are a set as well.
    """
    found: list[tuple[int, int]] = []
    first = 0
    types = [node.instance_type for node in group.nodes]
    while first < len(types):
        last = first + 1
        while last < len(types) and types[last] == types[first + 1]:
            last += 1
        found.append((first, last))
        first = last
    return found


def _documents(group: Group, launch: Launch) -> list[dict[str, Any]]:
    sets = sets_of(group)
    names = [group.name if first == 0 else f"{group.name}-r{first}" for first, _ in sets]
    documents = [
        _set(group, launch, first, last, name, names[0]) for (first, last), name in zip(sets, names, strict=True)
    ]
    return [*documents, _service(group, names[0])]


def _set(group: Group, launch: Launch, first: int, last: int, name: str, first_set: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": group.name, "app.kubernetes.io/part-of": "coral"}
    template: dict[str, Any] = {"size": last - first, "restartPolicy": "RecreateGroupOnPodRestart"}
    leader = _pod(group, launch, group.nodes[first], first_set, rank=str(first))
    if last - first > 1:
        template["leaderTemplate"] = leader
        worker = group.nodes[first + 1]
        template["workerTemplate"] = _pod(group, launch, worker, first_set, rank=f"$(({first} + LWS_WORKER_INDEX))")
    else:
        template["workerTemplate"] = leader
    configs = ",".join(node.node_config for node in group.nodes[first:last])
    plan = f"{launch.plan.scenario_id}/{launch.plan.plan_version}"
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels, "annotations": {"coral/plan": plan, NODE_CONFIGS: configs}},
        "spec": {"replicas": group.row.instances, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template},
    }


def _pod(group: Group, launch: Launch, node: GroupNode, first_set: str, *, rank: str) -> dict[str, Any]:
    serves = rank == "0"
    labels = {"app.kubernetes.io/name": group.name, "coral/serves": "true" if serves else "false"}
    return {
        "metadata": {"labels": labels},
        "spec": {
            "nodeSelector": _node_selector(group, node),
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [
                _container(group, server, launch, node, first_set, rank=rank, serves=serves) for server in group.servers
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }


def _node_selector(group: Group, node: GroupNode) -> dict[str, str]:
    selector = {INSTANCE_TYPE: node.instance_type}
    if group.row.market is Market.SPOT:
        key, value = _SPOT.get(group.row.region.partition("/")[0], ("coral/market", "spot"))
        selector[key] = value
    return selector


def _container(
    group: Group, server: Server, launch: Launch, node: GroupNode, first_set: str, *, rank: str, serves: bool
) -> dict[str, Any]:
    engine = launch.facts.engine
    container: dict[str, Any] = {
        "name": f"vllm-{server.index}",
        "image": f"{engine.image}:v{engine.version}",
        "command": ["/bin/sh", "-c"],
        "args": [_script(group, server, first_set, rank=rank)],
        "env": _env(group),
        "resources": {"limits": {"nvidia.com/gpu": str(node.gpu_count // len(group.servers))}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - in the container
    }
    if serves:
        container["ports"] = [{"name": f"http-{server.index}", "containerPort": server.port}]
        # A model takes minutes to load; after that ten silent minutes are a fault.
        probe: Mapping[str, Any] = {"httpGet": {"path": "/health", "port": server.port}, "periodSeconds": 10}
        container["startupProbe"] = {**probe, "failureThreshold": 360}
        container["readinessProbe"] = {**probe, "failureThreshold": 3}
    return container


def _env(group: Group) -> list[dict[str, Any]]:
    def of_pod(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    env = [of_pod("NODE_IP", "status.podIP")]
    if len(group.nodes) > 1:
        env.append(of_pod("GROUP_INDEX", f"metadata.labels['{GROUP_INDEX}']"))
    token = {"name": "hf-token", "key": "token", "optional": True}
    return [*env, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}}]


def _script(group: Group, server: Server, first_set: str, *, rank: str) -> str:
    lines = []
    headless = "" if rank == "0" else "--headless"
    word = rank
    if len(group.nodes) > 1:
        lines.append(f'HEAD_IP="{first_set}-$GROUP_INDEX.{first_set}"')
        if rank.startswith("$"):
            lines.append(f"NODE_RANK={rank}")
            word = "$NODE_RANK"
    # The container sees its own GPUs alone: they need no choosing.
    text = server_text(
        group, server, rank=word, master="$HEAD_IP", headless=headless, node_address="$NODE_IP", sees_all=False
    )
    return "\n".join([*lines, f"exec env {text}", ""])


def _service(group: Group, first_set: str) -> dict[str, Any]:
    """One name for the group's API servers; a router that keeps to weights addresses the leaders one by one instead."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{group.name}-api", "labels": {"app.kubernetes.io/part-of": "coral"}},
        "spec": {
            "selector": {SET_NAME: first_set, WORKER_INDEX: "0"},
            "ports": [{"name": f"http-{server.index}", "port": server.port} for server in group.servers],
        },
    }
