"""What runs now, in the terms of the library that is planned from, and where that is known from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tasks.allocation.types import pool_name

if TYPE_CHECKING:
    from catalogs.lake_feeds import FleetNodes, ObservedFleet
    from catalogs.scenario import LoadedScenario
    from tasks.allocation.plan import Plan
    from warehouse.connect import Lake


class RunningBasis(StrEnum):
    """Where it is known from what runs, best first. ``NONE``: nothing is known to run."""

    FLEET = "fleet"
    LAST_APPLIED = "last_applied"
    LAST_PUBLISHED = "last_published"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Running:
    """``instances``: per workload id, counts by (pool name, template id) of the library asked for. ``plan_version``: the version
    they are taken from; ``observed_at``: when the fleet was seen."""

    instances: Mapping[str, Mapping[tuple[str, str], int]]
    basis: RunningBasis
    plan_version: int | None = None
    observed_at: datetime | None = None


NOTHING_RUNS = Running({}, RunningBasis.NONE)


@dataclass(frozen=True, slots=True)
class _Laid:
    """A template as it is laid out, whatever library it is of: two alike are one thing to start."""

    template_id: str
    workload_id: str
    combination_id: str
    layout: list[Any]


def what_runs(lake: Lake, library_id: str, loaded: LoadedScenario, current: Plan | None, now: datetime) -> Running:
    """The observed fleet, unless it was seen longer ago than the policy's ``fleet_max_age_minutes``; else the version last
    applied; else the current plan.

    A template's id changes with its library; an instance is the same one where the library ``library_id`` lays its workload
    over the same combination in the same way. What it lays out otherwise would have to start anew.
    """
    from warehouse import read
    from warehouse.feeds import observed_fleet
    from warehouse.plan_states import last_applied

    scenario_id = loaded.scenario.id
    oldest = now - timedelta(minutes=loaded.scenario.policy.fleet_max_age_minutes)
    fleet = observed_fleet(lake, scenario_id, now)
    if fleet is not None and fleet.observed_at >= oldest:
        return Running(_of_fleet(lake, library_id, fleet), RunningBasis.FLEET, observed_at=fleet.observed_at)
    applied = last_applied(lake, scenario_id)
    if applied is not None:
        plan = read.plan_version(lake, scenario_id, applied)
        return Running(_of_plan(lake, library_id, plan), RunningBasis.LAST_APPLIED, applied)
    if current is not None:
        return Running(_of_plan(lake, library_id, current), RunningBasis.LAST_PUBLISHED, current.plan_version)
    return NOTHING_RUNS


def with_plan_ids(lake: Lake, fleet: ObservedFleet, plan: Plan) -> tuple[FleetNodes, ...]:
    """The fleet's nodes, labelled with the plan's template ids where the plan has what they serve, laid out the same."""
    from warehouse import read

    laid = [_laid_by_plan(row) for row in plan.instances]
    own = {row.template_id for row in laid}
    others = {row.template_id for row in fleet.nodes} - own - {""}
    same = {
        old.template_id: new.template_id
        for old in map(_laid_by_row, read.known_templates(lake, sorted(others)).to_pylist())
        for new in laid
        if _is_same(old, new)
    }
    return tuple(replace(row, template_id=same.get(row.template_id, row.template_id)) for row in fleet.nodes)


def _of_plan(lake: Lake, library_id: str, plan: Plan) -> dict[str, dict[tuple[str, str], int]]:
    laid = {row.template_id: _laid_by_plan(row) for row in plan.instances}
    counts = Counter[tuple[str, str]]()
    for row in plan.instances:
        counts[pool_name(row.region, row.market), row.template_id] += row.instances
    is_own = plan.inputs.library_id == library_id
    return _in_library(lake, "" if is_own else library_id, laid, counts)


def _of_fleet(lake: Lake, library_id: str, fleet: ObservedFleet) -> dict[str, dict[tuple[str, str], int]]:
    """Whole instances of the templates the lake knows; nodes beyond them, and those that serve nothing known, run nothing."""
    from warehouse import read

    seen: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in fleet.nodes:
        seen[pool_name(row.region, row.market), row.template_id][row.node_config] += row.nodes
    found = read.known_templates(lake, sorted({template_id for _, template_id in seen} - {""})).to_pylist()
    needs = {row["template_id"]: {n["node_config"]: n["nodes"] for n in row["nodes"]} for row in found}
    counts = Counter(
        {
            (pool, name): min(nodes[config] // need for config, need in needs[name].items())
            for (pool, name), nodes in seen.items()
            if name in needs
        }
    )
    return _in_library(lake, library_id, {row["template_id"]: _laid_by_row(row) for row in found}, counts)


def _in_library(
    lake: Lake, library_id: str, laid: Mapping[str, _Laid], counts: Mapping[tuple[str, str], int]
) -> dict[str, dict[tuple[str, str], int]]:
    """Counts per workload with the library's template ids; ``library_id`` '' = they are its own."""
    same = _same_layouts(lake, library_id, laid) if library_id else {}
    running: dict[str, dict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for (pool, template_id), count in counts.items():
        if count:
            running[laid[template_id].workload_id][pool, same.get(template_id, template_id)] += count
    return running


def _same_layouts(lake: Lake, library_id: str, laid: Mapping[str, _Laid]) -> dict[str, str]:
    """The library's template id by the id in ``laid``, for those that it has, or has with the same stages."""
    from warehouse import read

    found = {name: name for name in read.templates_in(lake, library_id, sorted(laid))}
    others = [row for name, row in laid.items() if name not in found]
    for workload_id in sorted({row.workload_id for row in others}):
        slim = read.library_templates(lake, library_id, workload_id)
        pairs = zip(slim["template_id"].to_pylist(), slim["combination_id"].to_pylist(), strict=True)
        wanted = {row.combination_id for row in others if row.workload_id == workload_id}
        rows = read.templates_by_id(lake, [name for name, nodes in pairs if nodes in wanted]).to_pylist()
        for new in map(_laid_by_row, rows):
            found |= {old.template_id: new.template_id for old in others if _is_same(old, new)}
    return found


def _is_same(one: _Laid, other: _Laid) -> bool:
    return (one.workload_id, one.combination_id) == (other.workload_id, other.combination_id) and (
        one.layout == other.layout
    )


def _laid_by_plan(row: Any) -> _Laid:
    layout = _layout((s.layers, (n.model_dump() for n in s.nodes)) for s in row.stages)
    return _Laid(row.template_id, row.workload_id, row.combination_id, layout)


def _laid_by_row(row: Mapping[str, Any]) -> _Laid:
    layout = _layout(((s["layer_start"], s["layer_end"]), s["members"]) for s in row["stages"])
    return _Laid(row["template_id"], row["workload_id"], row["combination_id"], layout)


def _layout(stages: Iterable[tuple[tuple[int, int], Iterable[dict[str, Any]]]]) -> list[Any]:
    """What has to be started: per stage its layers and its nodes with their inner layout, in any order."""
    inner = ("node_config", "tp", "pp", "replicas")
    return [(tuple(layers), sorted(tuple(node[name] for name in inner) for node in nodes)) for layers, nodes in stages]
