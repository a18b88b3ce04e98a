"""What a plan says of the rules it was made under, where they act: spot, N+1, replicas, pins, budget, quotas, discounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalogs.offers import is_discounted
from catalogs.types import Market
from catalogs.wording import counted
from tasks.allocation.plan import PlanWarning

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario, ModelPlanDemand
    from tasks.allocation.plan import Plan

_BINDS = 1e-3  # a budget with less than this share left


def rule_notes(loaded: LoadedScenario, plan: Plan) -> list[PlanWarning]:
    """One note per kind of rule that acts in the plan."""
    texts = {
        "rules": _models(loaded),
        "spot_used": _spot(loaded, plan),
        "budget": _budget(loaded, plan),
        "quota_spent": _quotas(loaded, plan),
        "discount": _discounts(loaded, plan),
        "cross_region_kv": _kv(loaded, plan),
    }
    return [PlanWarning(code=code, text=text) for code, text in texts.items() if text]


def _models(loaded: LoadedScenario) -> str:
    """The rules of each model that has any, alike ones told together."""
    by_rule: dict[str, list[str]] = {}
    for demand in loaded.model_demands:
        rules = _rules_of(loaded, demand)
        if rules:
            by_rule.setdefault("; ".join(rules), []).append(demand.alias)
    return ". ".join(f"{', '.join(aliases)}: {rules}" for rules, aliases in by_rule.items())


def _rules_of(loaded: LoadedScenario, demand: ModelPlanDemand) -> list[str]:
    has_spot = any(offer.market is Market.SPOT for offer in loaded.offers)
    rules = []
    if demand.min_regions > 1:
        rules.append(f"in at least {demand.min_regions} regions")
    if demand.min_replicas > 1:
        rules.append(f"at least {demand.min_replicas} instances of each phase in every region that serves it")
    if demand.n_plus_one:
        rules.append("what a region serves is served without the largest instance of a phase (N+1)")
    if has_spot and demand.max_spot_share < 1:
        most = f"at most {demand.max_spot_share:.0%}" if demand.max_spot_share else "none"
        rules.append(f"{most} of what a region serves rests on spot")
    if demand.node_configs is not None:
        rules.append(f"only on {', '.join(demand.node_configs)}")
    if demand.excluded:
        rules.append(f"not on {', '.join(demand.excluded)}")
    return rules


def _spot(loaded: LoadedScenario, plan: Plan) -> str:
    used = [row for row in plan.offers if row.market is Market.SPOT]
    if not used:
        return ""
    offers = {offer.offer_id: offer for offer in loaded.offers}
    policy = loaded.scenario.policy
    nodes = sum(row.nodes for row in used)
    delivered = [row.delivered_share for row in plan.instances if row.market is Market.SPOT]
    text = (
        f"{counted(nodes, 'machine')} on spot may be taken back at any time; an instance is then down "
        f"for {60 * policy.spot_recovery_h:g} minutes, so spot instances count {min(delivered):.1%} of their rate or more"
    )
    if any(offers[row.offer_id].interrupt_per_h is None for row in used):
        text += f"; how often is not known: {policy.spot_interrupt_per_h:g} times per hour and machine is assumed"
    return text


def _budget(loaded: LoadedScenario, plan: Plan) -> str:
    budget = loaded.scenario.policy.budget_usd_per_h
    if budget is None:
        return ""
    if plan.cost_usd_per_h < budget * (1 - _BINDS) and not any("budget" in row.binding for row in plan.shortfalls):
        return f"the rent may be {budget:,.2f} USD/h at most; it does not bind"
    served = "" if plan.theta >= 1 else ": the plan serves the most it can for that"
    return f"the rent may be {budget:,.2f} USD/h at most, which binds{served}"


def _kv(loaded: LoadedScenario, plan: Plan) -> str:
    if loaded.scenario.policy.cross_region_kv is None:
        return ""
    if not plan.kv_transfers:
        return "KV may cross regions; none does in this plan"
    return (
        f"KV crosses regions for {plan.egress_usd_per_h:,.2f} USD/h; how long it takes counts in no latency: allow for it in the "
        "SLOs, and see that the network between them carries it"
    )


def _quotas(loaded: LoadedScenario, plan: Plan) -> str:
    spent = []
    for limit in loaded.quota_limits:
        quota = limit.quota
        taken = [
            (row.nodes, limit.units[row.node_config])
            for row in plan.offers
            if row.region == quota.region and row.market is not Market.OWNED and row.node_config in limit.units
        ]
        used = sum(nodes * units for nodes, units in taken)
        if taken and used + min(units for _, units in taken) > quota.limit:
            spent.append(f"{quota.family} {quota.unit} in {quota.region} ({used} of {quota.limit})")
    return f"no room for another machine of those used: {', '.join(spent)}" if spent else ""


def _discounts(loaded: LoadedScenario, plan: Plan) -> str:
    rented, discounts = {row.offer_id for row in plan.offers}, loaded.scenario.offers.discount_pct
    offers = [offer for offer in loaded.offers if offer.offer_id in rented]
    less = sorted({offer.provider for offer in offers if is_discounted(offer, discounts)})
    own = sum(not is_discounted(offer, discounts) for offer in offers if offer.provider in less)
    cut = ", ".join(f"{discounts[name]:g} % ({name})" for name in less)
    but = f"; {counted(own, 'price is your own and takes', 'prices are your own and take')} none" if own else ""
    return f"prices are list prices less {cut}{but}" if cut else ""
