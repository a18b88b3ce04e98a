"""Guard rails: what a person must hear before a plan becomes current, because a broken input may be behind it."""

from __future__ import annotations

from catalogs.scenario_schema import GuardsSection
from tasks.allocation.plan import Plan

# Two figures closer than this are one: they were summed in another order.
_SAME = 1e-9


def guard_reasons(
    plan: Plan, current: Plan | None, rails: GuardsSection, *, is_rolled_back: bool = False
) -> tuple[str, ...]:
    """Why ``plan`` must wait for approval, as sentences' parts; empty where it need not. The first plan never waits.

    - rent rises by more than ``cost_rise_pct`` over the current plan's, as published;
    - a workload's capacity (headroom x rate, tok/s) falls by more than ``capacity_fall_pct`` beyond what its demand falls by;
    - a model's planned demand is more than ``demand_factor`` times the current plan's, or less than that part of it (0: always);
    - ``is_rolled_back``: the current version is current by a rollback, so a person has overruled the planner.

    A model that is new or gone is a change of the scenario, not of a feed: only its cost counts.
    """
    if current is None:
        return ()
    reasons = [
        *_cost(plan, current, rails.cost_rise_pct),
        *_capacity(plan, current, rails.capacity_fall_pct),
        *_demand(plan, current, rails.demand_factor),
    ]
    if is_rolled_back:
        reasons.append(f"version {current.plan_version} is current by a rollback")
    return tuple(reasons)


def _cost(plan: Plan, current: Plan, rise_pct: float | None) -> list[str]:
    before, after = current.cost_usd_per_h, plan.cost_usd_per_h
    if rise_pct is None or after <= before * (1 + rise_pct / 100) * (1 + _SAME):
        return []
    more = f"by {after / before - 1:.0%}, more than {rise_pct:g} %" if before else "from nothing"
    return [f"cost rises {more}: {before:,.2f} -> {after:,.2f} USD/h"]


def _capacity(plan: Plan, current: Plan, fall_pct: float | None) -> list[str]:
    if fall_pct is None:
        return []
    reasons = []
    now = {row.workload: row for row in plan.workloads}
    for old in current.workloads:
        new = now.get(old.workload)
        if new is None or old.supplied_tok_per_s <= 0:
            continue
        of_demand = min(new.planned_tok_per_s / old.planned_tok_per_s, 1.0) if old.planned_tok_per_s > 0 else 1.0
        least = (1 - fall_pct / 100) * of_demand * old.supplied_tok_per_s
        if new.supplied_tok_per_s < least * (1 - _SAME):
            fall = 1 - new.supplied_tok_per_s / old.supplied_tok_per_s
            reasons.append(
                f"capacity of {old.workload} falls by {fall:.0%}, more than {fall_pct:g} % beyond its demand: "
                f"{old.supplied_tok_per_s:,.0f} -> {new.supplied_tok_per_s:,.0f} tok/s"
            )
    return reasons


def _demand(plan: Plan, current: Plan, factor: float | None) -> list[str]:
    if factor is None:
        return []
    before, after = ({row.model: row.planned_req_per_s for row in p.workloads} for p in (current, plan))
    reasons = []
    for model, old in before.items():
        new = after.get(model)
        if new is None or old <= 0 or old / factor * (1 - _SAME) <= new <= old * factor * (1 + _SAME):
            continue
        reasons.append(f"demand of {model} moves more than {factor:g}x: {old:.4g} -> {new:.4g} req/s")
    return reasons
