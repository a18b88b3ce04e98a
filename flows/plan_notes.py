"""What a plan says of itself in words: its warnings, and why it differs from the version before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from catalogs.types import Provenance
from catalogs.wording import counted
from flows.rule_notes import rule_notes
from tasks.allocation.plan import NETWORK_FULL, PlanWarning

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from catalogs.types import NodeConfig
    from tasks.allocation.plan import Plan

# Said by the plan itself in its own words, and only of what it uses (plan_warnings).
_RESTATED = {"assumed_availability", "derived_offers", "rejected_rows"}
_REL_CHANGE = 1e-9
_FULL = 1e-3  # of a network's rate: what is closer to it is at it


def plan_warnings(loaded: LoadedScenario, plan: Plan, solver_note: str = "") -> tuple[PlanWarning, ...]:
    """Caveats of the scenario, then those of what the plan uses: assumed supply, derived offers, unfitted profiles."""
    notes = [PlanWarning(code=code, text=text) for code, text in loaded.warnings if code not in _RESTATED]
    if loaded.rejects:
        where = [f"{f.file} row {f.row}" for f in loaded.rejects]
        text = f"{counted(len(where), 'input row was', 'input rows were')} set aside: {_listed(where)}"
        notes.append(PlanWarning(code="rows_set_aside", text=text + "; reasons in the table `rejects`"))
    assumed = [f"{o.node_config} in {o.region}" for o in plan.offers if o.availability_basis.value == "assumed"]
    if assumed:
        text = f"nobody reports how many {_listed(assumed)} can be had: the scenario's default is assumed"
        notes.append(PlanWarning(code="assumed_availability", text=text))
    offers = {offer.offer_id: offer for offer in loaded.offers}
    derived = [f"{o.node_config} in {o.region}" for o in plan.offers if offers[o.offer_id].is_derived]
    if derived:
        text = f"not sold as such, price derived: {_listed(derived)}"
        notes.append(PlanWarning(code="derived_offers", text=text))
    notes += rule_notes(loaded, plan)
    policy = loaded.scenario.policy
    if plan.instances and not loaded.is_headroom_computed:
        text = (
            f"headroom is as stated ({policy.headroom.prefill:.3g} of the rate for prefill, {policy.headroom.decode:.3g} for "
            "decode): nothing was simulated to see whether the SLOs hold; `coral simulate` does"
        )
        notes.append(PlanWarning(code="not_simulated", text=text))
    if policy.safety_percentile is not None and plan.instances:
        errors = [i.rel_error for i in plan.instances]
        text = (
            f"every rate is lowered to what holds in {policy.safety_percentile:g} % of cases, given its relative error "
            f"({min(errors):.0%} to {max(errors):.0%} here)"
        )
        notes.append(PlanWarning(code="safety", text=text))
    if policy.measured_only:
        notes.append(PlanWarning(code="measured_only", text="only rates that are measured or fitted were considered"))
    for provenance in (Provenance.BORROWED, Provenance.DERIVED):
        used = [f"{i.workload} on {i.combination_id}" for i in plan.instances if i.provenance == provenance.value]
        if used:
            text = f"rates rest on {provenance.value} efficiency factors: {_listed(used)}"
            notes.append(PlanWarning(code=f"{provenance.value}_profiles", text=text))
    notes += _network_notes(loaded, plan)
    if solver_note:
        notes.append(PlanWarning(code="solver", text=solver_note))
    return tuple(notes)


def _network_notes(loaded: LoadedScenario, plan: Plan) -> list[PlanWarning]:
    """Which rates of the plan are what a node's network carries of KV and activations, and not what its GPUs do."""
    import numpy as np

    from flows.build_inputs import profile_settings
    from tasks.profiling.network import network_tok_per_s
    from tasks.profiling.shapes import ModelShape
    from tasks.templates.types import Position

    if loaded.scenario.library.mode == "paper":
        return []  # the paper's rates know no network
    workloads = {w.workload_id: w for w in loaded.workloads}
    shapes = {name: ModelShape(w.model, w.weight_dtype, w.kv_dtype) for name, w in workloads.items()}
    full = []
    for row in plan.instances:
        workload = workloads.get(row.workload_id)
        if workload is None or row.provenance == Provenance.MEASURED.value:
            continue
        settings = profile_settings(loaded, workload.model.model)
        for stage in row.stages:
            layers = np.array([stage.layers[1] - stage.layers[0] + 1])
            for node in (n for n in stage.nodes if n.node_config in loaded.node_configs):
                config = loaded.node_configs[node.node_config]
                world = (workload, shapes[row.workload_id], settings, config)
                most = float(network_tok_per_s(*world, Position[stage.position.upper()], layers)[0])
                if row.throughput_tok_per_s * node.share >= most * (1 - _FULL):
                    full.append(f"{row.workload} on {node.node_config} ({_speed(config)})")
    if not full:
        return []
    text = f"what the network carries (KV, activations) caps the rate, not the GPUs: {_listed(full)}"
    return [PlanWarning(code=NETWORK_FULL, text=text)]


def _speed(config: NodeConfig) -> str:
    return "unknown" if config.network_gbit_per_s is None else f"{config.network_gbit_per_s:g} Gbit/s"


def left_out_notes(loaded: LoadedScenario) -> tuple[PlanWarning, ...]:
    """One line each, where there are any: of the configurations on offer for a model that is planned for, those that have no
    profile; and those of which one node alone would prefill it in time, but for its network. What a user has measured is left
    out of both."""
    from flows.build_inputs import profile_settings
    from tasks.profiling.left_out import ruled_out_by_network, unprofiled

    lacking: dict[str, list[str]] = {}
    slow: dict[str, list[str]] = {}
    for demand in loaded.model_demands:
        if not demand.planned_req_per_s:
            continue
        measured = {row.node_config for row in loaded.measured if row.model == demand.model}
        offered = {offer.node_config for offer in loaded.offers if offer.region in demand.regions}
        asked = offered - measured - set(demand.excluded)
        names = sorted(asked if demand.node_configs is None else asked & set(demand.node_configs))
        nodes, world = [loaded.node_configs[name] for name in names], (loaded.catalog.gpus, loaded.catalog.efficiencies)
        settings, mode = profile_settings(loaded, demand.model), loaded.scenario.library.mode
        workloads = [w for w in loaded.workloads if w.workload_id in demand.workload_ids]
        for node in unprofiled(workloads[0], nodes, *world):
            lacking.setdefault(node.node_config, []).append(demand.alias)
        for node in (n for w in workloads for n in ruled_out_by_network(w, nodes, *world, settings, mode)):
            slow.setdefault(f"{node.node_config} ({_speed(node)})", []).append(demand.alias)
    everyone = [demand.alias for demand in loaded.model_demands if demand.planned_req_per_s]
    texts = {
        "unprofiled": f"no profile, so never rented: {_by_models(lacking, everyone)}; `coral profiles add` takes measurements",
        "network": f"configs ruled out for prefill on one node by their network: {_by_models(slow, everyone)}. The node would be "
        "in time but for handing over the KV. Decode is not ruled out",
    }
    found = {"unprofiled": lacking, "network": slow}
    return tuple(PlanWarning(code=code, text=text) for code, text in texts.items() if found[code])


def _by_models(models: Mapping[str, list[str]], everyone: list[str]) -> str:
    """``L4x1, L4x2; A10Gx1 for phi-4``: those of the same models together, without the models where it is all of them."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, of in sorted(models.items()):
        alike.setdefault(tuple(of), []).append(name)
    return "; ".join(
        ", ".join(names) + ("" if list(of) == everyone else f" for {', '.join(of)}") for of, names in alike.items()
    )


def plan_reason(loaded: LoadedScenario, plan: Plan, last: Plan | None) -> str:
    """Why this version: which inputs changed since the last one, or that it is the first."""
    if last is None:
        return "first plan"
    changes = []
    if plan.inputs.library_id != last.inputs.library_id:
        changes.append("the template library changed")
    changes += _demand_changes(plan, last)
    changes += _price_changes(plan, last)
    sold = {(offer.region, offer.market, offer.node_config, offer.instance_type) for offer in loaded.offers}
    gone = [
        f"{row.instance_type} in {row.region}"
        for row in last.offers
        if (row.region, row.market, row.node_config, row.instance_type) not in sold
    ]
    if gone:
        changes.append(f"{_listed(gone)} {'is' if len(set(gone)) == 1 else 'are'} not on offer any more")
    before, after = ({o.offer_id: o.availability_nodes for o in p.offers} for p in (last, plan))
    supply = sorted(key for key in before.keys() & after.keys() if before[key] != after[key])
    if supply:
        changes.append(f"supply of {_listed(supply)} changed")
    return "; ".join(changes) or "other inputs changed"


def _demand_changes(plan: Plan, last: Plan) -> list[str]:
    before = {row.workload: row.planned_req_per_s for row in last.workloads if row.phase != "decode"}
    after = {row.workload: row.planned_req_per_s for row in plan.workloads if row.phase != "decode"}
    changes = []
    for workload in sorted(before.keys() | after.keys()):
        old, new = before.get(workload), after.get(workload)
        model = workload.split("/")[0]
        if old is None or new is None:
            changes.append(f"{model} {'added' if old is None else 'removed'}")
        elif abs(new - old) > _REL_CHANGE * max(old, new):
            changes.append(f"demand of {model} {old:.4g} -> {new:.4g} req/s")
    return changes


def _price_changes(plan: Plan, last: Plan) -> list[str]:
    before = {row.offer_id: row.price_usd_per_h for row in last.offers}
    moved = [
        row.offer_id for row in plan.offers if row.price_usd_per_h != before.get(row.offer_id, row.price_usd_per_h)
    ]
    if moved:
        return [f"prices of {_listed(moved)} changed"]
    if plan.inputs.price_as_of != last.inputs.price_as_of:
        return [f"prices of {plan.inputs.price_as_of} instead of {last.inputs.price_as_of}"]
    return []


def _listed(names: list[str], most: int = 3) -> str:
    """``a, b, c and 4 more``, without repeats, in order."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + more
