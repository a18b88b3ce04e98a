"""Node counts of an export, read back from its own files, against the plan's."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import yaml

from tasks.allocation.plan import Plan
from tasks.exports import kubernetes, skypilot, vllm
from tasks.exports.routing import nodes_of
from tasks.exports.types import Launch, Refusal

Nodes = Counter[tuple[str, str]]


def check_counts(launch: Launch, target: str, files: Mapping[str, str], refused: Sequence[Refusal]) -> None:
    """Raise RuntimeError (a bug) unless nodes in ``files`` and of groups left out are the plan's, per (region, configuration)."""
    counted = _COUNTS[target](launch, files)
    counted.update(nodes_of([refusal.group for refusal in refused]))
    planned: Nodes = Counter()
    for offer in launch.plan.offers:
        planned[offer.region, offer.node_config] += offer.nodes
    if counted != planned:
        wrong = sorted(
            f"{key}: {counted[key]} of {planned[key]}" for key in counted | planned if counted[key] != planned[key]
        )
        raise RuntimeError(f"the {target} export does not hold the plan's nodes: {'; '.join(wrong)}")


def instance_types(plan: Plan) -> dict[tuple[str, str], str]:
    """Node configuration by (region, instance type)."""
    return {(offer.region, offer.instance_type): offer.node_config for offer in plan.offers}


def _in_commands(launch: Launch, files: Mapping[str, str]) -> Nodes:
    rows = csv.DictReader(files[vllm.INVENTORY].splitlines())
    return Counter((row["region"], row["node_config"]) for row in rows)


def _in_skypilot(launch: Launch, files: Mapping[str, str]) -> Nodes:
    starts = files[f"{skypilot.TARGET}/launch.sh"].splitlines()
    configs = instance_types(launch.plan)
    nodes: Nodes = Counter()
    for path, text in files.items():
        if not path.startswith(f"{skypilot.TARGET}/") or not path.endswith(".yaml"):
            continue
        times = sum(path.removeprefix(f"{skypilot.TARGET}/") in line for line in starts if line.startswith("sky "))
        for task in yaml.safe_load_all(text):
            if "resources" in task:
                region = task["resources"]["infra"]
                nodes[region, configs[region, task["resources"]["instance_type"]]] += times * task["num_nodes"]
    return nodes


def _in_kubernetes(launch: Launch, files: Mapping[str, str]) -> Nodes:
    configs = instance_types(launch.plan)
    nodes: Nodes = Counter()
    regions = {region.replace("/", "_"): region for region, _ in configs}
    for path, text in files.items():
        if not path.startswith(f"{kubernetes.TARGET}/") or not path.endswith(".yaml"):
            continue
        region = regions[path.split("/")[1]]
        for document in yaml.safe_load_all(text):
            if document["kind"] == "LeaderWorkerSet":
                template, replicas = document["spec"]["leaderWorkerTemplate"], document["spec"]["replicas"]
                leader = template.get("leaderTemplate", template["workerTemplate"])
                for pod, count in ((leader, 1), (template["workerTemplate"], template["size"] - 1)):
                    kind = pod["spec"]["nodeSelector"][kubernetes.INSTANCE_TYPE]
                    nodes[region, configs[region, kind]] += replicas * count
    return +nodes  # without the zeros of sets that have no workers


_COUNTS: dict[str, Callable[[Launch, Mapping[str, str]], Nodes]] = {
    "vllm": _in_commands,
    "skypilot": _in_skypilot,
    "kubernetes": _in_kubernetes,
}
