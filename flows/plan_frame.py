"""What a published plan was decided on, kept beside it in the lake: enough to solve its problem again, changed or not.

Templates are not kept: the plan's library has them. Which of them the search for headroom set aside is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError
from catalogs.scenario_schema import PolicySection
from catalogs.types import Basis, Market, Phase
from flows.candidates import candidates, library_candidates
from tasks.allocation.prepare import Capacity, WorkloadInput, build_problem, workload_candidates
from tasks.allocation.shares import without_templates
from tasks.allocation.types import (
    AllocationProblem,
    KvLink,
    ModelDemand,
    Pool,
    SharedQuota,
    Shortage,
    WorkloadCandidates,
)
from warehouse.results import FRAMES, find_result, plan_result_id, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from tasks.allocation.plan import Plan
    from warehouse.connect import Lake

_VERSION = 2


def frame_of(
    problem: AllocationProblem,
    library_id: str,
    policy: PolicySection,
    set_aside: Mapping[str, frozenset[str]],
) -> dict[str, Any]:
    """The frame of a decision over ``problem`` (settled headroom, ``set_aside`` templates already out) as JSON types."""
    fields = ("workload_id", "alias", "model", "tokens_per_request", "headroom")
    return {
        "version": _VERSION,
        "library_id": library_id,
        "policy": policy.model_dump(mode="json"),
        "workloads": [
            {"phase": c.phase.value, **{name: getattr(c, name) for name in fields}} for c in problem.candidates
        ],
        "regions": list(problem.regions),
        "node_configs": list(problem.node_configs),
        "supply": [
            [
                pool.name,
                config,
                float(problem.price_usd_per_h[p, k]),
                int(problem.capacity_nodes[p, k]),
                basis.value,
                0.0 if problem.outage is None else float(problem.outage[p, k]),
            ]
            for p, pool in enumerate(problem.pools)
            for k, config in enumerate(problem.node_configs)
            if (basis := problem.capacity_basis.get((pool.name, config))) is not None
        ],
        "pools": [[pool.region, pool.market.value] for pool in problem.pools],
        "demands": [asdict(demand) for demand in problem.demands],
        "init_share": problem.init_share,
        "running": [[*key, count] for key, count in sorted(problem.running.items())],
        "shortage": problem.shortage.value,
        "quotas": [{**asdict(quota), "units": dict(quota.units)} for quota in problem.quotas],
        "budget_usd_per_h": problem.budget_usd_per_h,
        "links": [asdict(link) for link in problem.links],
        "set_aside": {name: sorted(ids) for name, ids in sorted(set_aside.items())},
    }


def keep_frame(root: Path, scenario_id: str, plan_version: int, frame: Mapping[str, Any]) -> None:
    """Keep the frame of a plan version, unless there is one: a version is decided once. Raises LakeError (disk full)."""
    if find_frame(root, scenario_id, plan_version) is None:
        write_result(root, plan_result_id(FRAMES, scenario_id, plan_version), dict(frame), FRAMES)


def find_frame(root: Path, scenario_id: str, plan_version: int) -> dict[str, Any] | None:
    """The frame of a plan version; None where none was kept."""
    found = find_result(root, plan_result_id(FRAMES, scenario_id, plan_version), FRAMES)
    return found if isinstance(found, dict) and found.get("version") == _VERSION else None


def read_frame(root: Path, plan: Plan) -> dict[str, Any]:
    """The frame of ``plan``. Raises CoralError where none was kept."""
    frame = find_frame(root, plan.scenario_id, plan.plan_version)
    if frame is None:
        raise CoralError(
            f"version {plan.plan_version} of {plan.scenario_id} was published without what its problem can be solved "
            "from again",
            remedy=f"run `coral plan --scenario {plan.scenario_id}`: the version that holds then is explained",
        )
    return frame


def set_aside_of(frame: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Templates the search for headroom set aside, by workload id."""
    return {name: frozenset(ids) for name, ids in frame["set_aside"].items()}


def problem_of_frame(lake: Lake, frame: Mapping[str, Any], **policy: object) -> AllocationProblem:
    """The problem of a frame, with its templates read from the library; ``policy`` replaces rules of the policy.

    Raises LakeError where the library is gone, NothingFitsError where a changed policy leaves a workload no template.
    """
    rules = PolicySection.model_validate({**frame["policy"], **policy})
    workloads = _workloads(frame)
    running = {(region, template_id): int(count) for region, template_id, count in frame["running"]}
    ids = {template_id for _, template_id in running}
    problem = build_problem(
        workloads=workloads,
        templates={w.workload_id: candidates(lake, frame["library_id"], w, ids, rules) for w in workloads},
        regions=frame["regions"],
        node_configs=frame["node_configs"],
        pools=[Pool(region, Market(market)) for region, market in frame["pools"]],
        price_usd_per_h={(pool, config): price for pool, config, price, _, _, _ in frame["supply"]},
        capacity={(pool, config): Capacity(n, Basis(basis)) for pool, config, _, n, basis, _ in frame["supply"]},
        outage={(pool, config): lost for pool, config, _, _, _, lost in frame["supply"] if lost > 0},
        demands=demands_of(frame),
        init_share=frame["init_share"],
        running=running,
        shortage=Shortage(frame["shortage"]),
        quotas=quotas_of(frame),
        budget_usd_per_h=frame["budget_usd_per_h"],
        links=links_of(frame),
    )
    return without_templates(problem, set_aside_of(frame)) if frame["set_aside"] else problem


def library_of_frame(lake: Lake, frame: Mapping[str, Any], workload_id: str) -> WorkloadCandidates:
    """All templates of a workload that the frame's policy allows and the search for headroom did not set aside."""
    rules = PolicySection.model_validate(frame["policy"])
    workload = next(w for w in _workloads(frame) if w.workload_id == workload_id)
    rows = library_candidates(lake, frame["library_id"], workload, rules)
    found = workload_candidates(workload, rows, frame["node_configs"])
    gone = set_aside_of(frame).get(workload_id, frozenset())
    keep = [i for i, template_id in enumerate(found.template_ids) if template_id not in gone]
    return WorkloadCandidates(
        found.workload_id,
        found.alias,
        found.model,
        found.phase,
        found.tokens_per_request,
        found.headroom,
        tuple(found.template_ids[i] for i in keep),
        found.counts[keep],
        found.throughput_mtok_per_s[keep],
    )


def demands_of(frame: Mapping[str, Any]) -> list[ModelDemand]:
    """The planned demand of each model, with its rules."""
    return [ModelDemand(**{name: _retupled(value) for name, value in row.items()}) for row in frame["demands"]]


def quotas_of(frame: Mapping[str, Any]) -> list[SharedQuota]:
    """Quotas over several configurations."""
    return [SharedQuota(**quota) for quota in frame["quotas"]]


def links_of(frame: Mapping[str, Any]) -> list[KvLink]:
    """Between which regions KV may cross."""
    return [KvLink(**link) for link in frame.get("links", [])]


def _retupled(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _workloads(frame: Mapping[str, Any]) -> list[WorkloadInput]:
    return [WorkloadInput(**{**row, "phase": Phase(row["phase"])}) for row in frame["workloads"]]
