"""Planned is not running: the machines of a plan against those that were seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from catalogs.ids import parse_combination_id
from catalogs.lake_feeds import FleetNodes
from tasks.allocation.plan import Plan

_Key = tuple[str, str, str, str]  # region, node_config, market, template_id


@dataclass(frozen=True, slots=True)
class DriftRow:
    """Nodes of one (region, node_config, market, template) that are planned and that run; ``template_id`` '' = serving nothing
    known. ``workload`` '' where the plan does not have the template."""

    region: str
    node_config: str
    market: str
    template_id: str
    workload: str
    planned_nodes: int
    running_nodes: int

    @property
    def difference_nodes(self) -> int:
        """Running less planned: negative = missing, positive = too many."""
        return self.running_nodes - self.planned_nodes


@dataclass(frozen=True, slots=True)
class Drift:
    """``rows`` that differ, and how many nodes are planned, and of those run. ``is_labelled``: the fleet says which template
    its nodes serve; where it says so of none, nodes are compared whatever they serve, and all ``template_id`` are ''."""

    rows: tuple[DriftRow, ...]
    planned_nodes: int
    matched_nodes: int
    is_labelled: bool

    @property
    def is_empty(self) -> bool:
        """The plan runs, and nothing else does."""
        return not self.rows


def find_drift(plan: Plan, fleet: Iterable[FleetNodes]) -> Drift:
    """The differences between ``plan`` and the nodes of ``fleet``, which carry the plan's template ids."""
    seen = [row for row in fleet if row.nodes]
    is_labelled = any(row.template_id for row in seen) or not seen
    planned: Counter[_Key] = Counter()
    workloads: dict[str, str] = {}
    for instance in plan.instances:
        workloads[instance.template_id] = instance.workload
        label = instance.template_id if is_labelled else ""
        for config, nodes in parse_combination_id(instance.combination_id).items():
            planned[instance.region, config, instance.market.value, label] += nodes * instance.instances
    running: Counter[_Key] = Counter()
    for row in seen:
        running[row.region, row.node_config, row.market.value, row.template_id] += row.nodes
    rows = tuple(
        DriftRow(*key, workloads.get(key[3], ""), planned[key], running[key])
        for key in sorted(planned.keys() | running.keys())
        if planned[key] != running[key]
    )
    matched = sum(min(nodes, running[key]) for key, nodes in planned.items())
    return Drift(rows, planned.total(), matched, is_labelled)
