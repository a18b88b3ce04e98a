"""``coral whatif``: the plan as it would be with other demand, SLOs, prices or supply. Nothing is published or built unasked.

The headroom is that of the current plan: simulating anew what a changed plan would run takes longer than an answer may. Where
the lake holds simulations of the very instances chosen they count; the rest is said.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, LakeError
from flows.headroom import SimulatedHeadroom
from flows.plan_frame import find_frame, set_aside_of
from flows.planning import choose, plan_document, solve
from flows.planning_inputs import PlanningInputs, planning_inputs
from flows.running import what_runs
from flows.settings import BuildSettings, Progress, progress_stage
from flows.whatif_changes import Changed, WhatIf, apply_changes
from tasks.allocation.plan import Plan, PlanBaselines
from tasks.allocation.share_search import LEAST
from tasks.allocation.shares import uses, with_headroom, without_templates
from tasks.allocation.types import AllocationResult

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from warehouse.connect import Lake

_ROUNDS = 8  # choices without templates that are known not to keep their SLO
_SAME = 1e-9


@dataclass(frozen=True)
class WhatIfAnswer:
    """The current plan, the plan under the changes (a draft), the changes in words, and caveats."""

    before: Plan
    after: Plan
    changes: tuple[str, ...]
    notes: tuple[str, ...]


def what_if(
    settings: BuildSettings, asked: WhatIf, progress: Progress, *, simulate: bool = False, build: bool = False
) -> WhatIfAnswer:
    """Plan with the changes ``asked``, against the current plan. ``simulate``: settle the headroom as `coral plan` does.
    ``build``: build the part of the library that changed SLOs need.

    Raises InputError with every fault of the options, CoralError where no plan is published or a part of the library is not
    built, and what planning raises.
    """
    from flows.feeds import load_with_feeds
    from warehouse import read
    from warehouse.connect import Lake

    now = datetime.now(UTC)
    loaded = load_with_feeds(settings.scenario, settings.lake_root, now)
    changed = apply_changes(loaded, asked)
    library_id = _library(settings, loaded, changed, progress, build=build)
    with Lake.open(settings.lake_root, read_only=True) as lake:
        current = read.current_plan(lake, loaded.scenario.id)
        if current is None:
            raise CoralError(
                f"no plan of {loaded.scenario.id} is published to compare with",
                remedy=f"run `coral plan --scenario {settings.scenario}` first",
            )
        with progress_stage(progress, "allocate"):
            running = what_runs(lake, library_id, changed.loaded, current, now)
            inputs = planning_inputs(changed.loaded, lake, library_id, running)
            if simulate:
                choice = choose(changed.loaded, lake, library_id, inputs)
                inputs, result, notes = choice.inputs, choice.result, [warning.text for warning in choice.notes]
            else:
                inputs, result, notes = _choose_as_known(changed.loaded, lake, inputs, current)
            nothing = PlanBaselines(
                homo_optimal_usd_per_h=None, homo_optimal_lower_bound_usd_per_h=None, homo_greedy_usd_per_h=None
            )
            plan = plan_document(changed.loaded, lake, library_id, current, inputs, result, nothing, (), now)
    return WhatIfAnswer(current, plan, changed.texts, (*changed.notes, *_drift(loaded, current), *notes))


def _library(
    settings: BuildSettings, loaded: LoadedScenario, changed: Changed, progress: Progress, *, build: bool
) -> str:
    """The library to choose from. Demand, prices and supply need none of their own; a changed SLO does."""
    from flows.build import build_library, registered_library

    if not changed.slo_changes:
        return registered_library(settings, loaded)
    if build:
        key = f"{loaded.scenario.id}@whatif"
        return build_library(replace(settings, library_key=key), progress, changed.for_library).library_id
    try:
        return registered_library(settings, changed.for_library)
    except LakeError:
        raise
    except CoralError as error:
        registered_library(settings, loaded)  # says so where nothing is built at all
        options = " ".join(f"--slo {shlex.quote(change)}" for change in changed.slo_changes)
        raise CoralError(
            f"the library has no templates of {', '.join(changed.slo_changes)} (ms)",
            remedy=f"build that part first: `coral whatif --scenario {settings.scenario} {options} --build`; "
            "the other workloads' templates are kept",
        ) from error


def _choose_as_known(
    loaded: LoadedScenario, lake: Lake, inputs: PlanningInputs, current: Plan
) -> tuple[PlanningInputs, AllocationResult, list[str]]:
    """The solver's answer at the current plan's headroom, without the templates that its search set aside or that the lake's
    simulations show not to keep their SLO at it."""
    if not loaded.is_headroom_computed:
        return inputs, solve(inputs.problem), []
    as_planned = {row.workload: row.headroom for row in current.workloads}
    alias = {c.workload_id: c.alias for c in inputs.problem.candidates}
    share = {name: as_planned[a] for name, a in alias.items() if a in as_planned}
    frame = find_frame(lake.root, current.scenario_id, current.plan_version)
    out = {name: ids for name, ids in (set_aside_of(frame) if frame else {}).items() if name in alias}
    known = SimulatedHeadroom(loaded, lake, simulates=False)
    for _ in range(_ROUNDS):
        problem = with_headroom(inputs.problem, share)
        problem = without_templates(problem, out) if out else problem
        result = solve(problem)
        safe, used = known(result), uses(problem, result)
        short = [name for name in used if name in safe and used[name] > safe[name] * (1 + _SAME)]
        if not short:
            break
        for name in short:
            bad = frozenset(row.template_id for row in result.instances if row.workload_id == name)
            candidates = next(c for c in problem.candidates if c.workload_id == name)
            if len(candidates.template_ids) > len(bad):
                out[name] = out.get(name, frozenset()) | bad
            else:
                share[name] = max(safe[name], LEAST)
    notes = _headroom_notes(alias, used, safe, short)
    return replace(inputs, problem=problem, set_aside=out), result, notes


def _headroom_notes(
    alias: Mapping[str, str], used: Mapping[str, float], safe: Mapping[str, float], short: list[str]
) -> list[str]:
    notes = []
    if short:
        listed = ", ".join(sorted(alias[name] for name in short))
        notes.append(f"in simulation {listed} would not keep the SLO at this use: give --simulate for a plan that does")
    unknown = sorted(alias[name] for name in used if name not in safe)
    if unknown:
        notes.append(
            f"planned with the current plan's headroom, not simulated on these instances: {', '.join(unknown)}; "
            "give --simulate to settle it as `coral plan` does"
        )
    return notes


def _drift(loaded: LoadedScenario, plan: Plan) -> list[str]:
    """What has changed by itself since the current plan was made, which the differences then include."""
    planned = {row.model: row.planned_req_per_s for row in plan.workloads}
    moved = [
        f"demand of {demand.alias}"
        for demand in loaded.model_demands
        if demand.planned_req_per_s is not None
        and abs(demand.planned_req_per_s - planned.get(demand.model, 0.0)) > _SAME * demand.planned_req_per_s
    ]
    for row in plan.offers:
        offer = loaded.by_market.get((row.region, row.market, row.node_config))
        if offer is None or offer.price_usd_per_h != row.price_usd_per_h:
            moved.append(f"price of {row.node_config} in {row.region}")
        elif loaded.nodes_of(offer)[0] != row.availability_nodes:
            moved.append(f"supply of {row.node_config} in {row.region}")
    if not moved:
        return []
    return [f"since version {plan.plan_version} other inputs have changed too: {', '.join(moved)}"]


def answer_document(answer: WhatIfAnswer) -> dict[str, Any]:
    """As JSON types; ``plan`` is the whole draft."""
    from tasks.allocation.plan_diff import diff_plans

    def figures(plan: Plan) -> dict[str, Any]:
        return {
            "cost_usd_per_h": plan.cost_usd_per_h,
            "init_usd": plan.init_usd,
            "lower_bound_usd": plan.lower_bound_usd_per_h,
            "gap": plan.gap,
            "status": plan.status.value,
            "theta": plan.theta,
            "shortfalls": [row.model_dump(mode="json") for row in plan.shortfalls],
        }

    return {
        "scenario_id": answer.before.scenario_id,
        "plan_version": answer.before.plan_version,
        "changes": list(answer.changes),
        "notes": list(answer.notes),
        "before": figures(answer.before),
        "after": figures(answer.after),
        "cost_delta_usd_per_h": answer.after.cost_usd_per_h - answer.before.cost_usd_per_h,
        "workloads": [
            {"workload": name, "before": use_of(answer.before, name), "after": use_of(answer.after, name)}
            for name in workload_names(answer)
        ],
        "instances": diff_plans(answer.before, answer.after).document()["rows"],
        "plan": answer.after.model_dump(by_alias=True, mode="json"),
    }


def workload_names(answer: WhatIfAnswer) -> list[str]:
    """Workloads of either plan, in the current one's order."""
    return list(dict.fromkeys(row.workload for plan in (answer.before, answer.after) for row in plan.workloads))


def use_of(plan: Plan, workload: str) -> dict[str, Any]:
    """Rent, instances and GPUs by type of a workload in a plan."""
    from catalogs.ids import split_node_config

    gpus: dict[str, int] = {}
    rows = [row for row in plan.instances if row.workload == workload]
    for row in rows:
        for stage in row.stages:
            for node in stage.nodes:
                gpu, count = split_node_config(node.node_config)
                gpus[gpu] = gpus.get(gpu, 0) + row.instances * count
    return {
        "cost_usd_per_h": sum(row.cost_usd_per_h * row.instances for row in rows),
        "instances": sum(row.instances for row in rows),
        "gpus": dict(sorted(gpus.items())),
    }
