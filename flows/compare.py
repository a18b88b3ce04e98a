"""``coral compare``: what runs today against the current plan: cost, predicted rates, and the steps from one to the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError
from catalogs.fleet import FleetRow, read_fleet
from catalogs.types import Phase
from flows.build_inputs import resolve_inputs
from flows.planning_inputs import check_demand_known
from flows.settings import BuildSettings
from tasks.allocation.migration import Crossing, Steps, Unit, order_steps
from tasks.allocation.types import ModelDemand
from tasks.profiling.evaluate import LayoutRate, layout_rate, stage_layers
from tasks.profiling.layouts import Layout

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from tasks.allocation.plan import Plan, PlanInstance

_Signature = tuple[Any, ...]
_SAME = 1e-6  # relative


@dataclass(frozen=True)
class WorkloadNow:
    """A workload today and in the plan, all in tok/s: ``planned`` demand, rates within the SLO before headroom, and the share
    of them that is planned with (the current plan's headroom)."""

    workload: str
    planned_tok_per_s: float
    today_tok_per_s: float
    plan_tok_per_s: float
    headroom: float

    @property
    def utilization(self) -> float | None:
        """Demand / what today's machines serve with headroom; None where they serve nothing."""
        capacity = self.today_tok_per_s * self.headroom
        return self.planned_tok_per_s / capacity if capacity > 0 else None


@dataclass(frozen=True)
class Comparison:
    """All of it. ``rates`` are of one instance, in the order of ``fleet``; ``kept`` counts instances that are in both;
    ``notes`` say why workloads serve nothing, or less than their machines could."""

    plan: Plan
    fleet: tuple[FleetRow, ...]
    rates: tuple[LayoutRate, ...]
    workloads: tuple[WorkloadNow, ...]
    steps: Steps
    kept: int
    notes: tuple[str, ...] = ()

    @property
    def cost_usd_per_h(self) -> float:
        """Rent today."""
        return math.fsum(row.usd_per_h for row in self.fleet)

    @property
    def saving_usd_per_h(self) -> float:
        """Rent today less the plan's."""
        return self.cost_usd_per_h - self.plan.cost_usd_per_h


def compare(settings: BuildSettings, fleet_file: Path) -> Comparison:
    """Compare what ``fleet_file`` says runs with the scenario's current plan.

    Raises InputError with every fault of the file, CoralError where it does not exist or no plan is published, HeldError where
    a demand is unknown.
    """
    from flows.feeds import load_with_feeds
    from warehouse import read
    from warehouse.connect import Lake

    loaded = load_with_feeds(settings.scenario, settings.lake_root)
    fleet = read_fleet(fleet_file, loaded)
    check_demand_known(loaded)
    with Lake.open(settings.lake_root, read_only=True) as lake:
        plan = read.current_plan(lake, loaded.scenario.id)
    if plan is None:
        raise CoralError(
            f"no plan of {loaded.scenario.id} is published to compare with",
            remedy=f"run `coral plan --scenario {settings.scenario}` first",
        )
    rates = fleet_rates(settings, loaded, fleet)
    steps, kept = _steps(loaded, fleet, rates, plan)
    notes = (*_absent(loaded, fleet, fleet_file.name), *_apart(loaded, fleet, rates, plan))
    return Comparison(plan, fleet, rates, _workloads(loaded, fleet, rates, plan), steps, kept, notes)


def fleet_rates(settings: BuildSettings, loaded: LoadedScenario, fleet: tuple[FleetRow, ...]) -> tuple[LayoutRate, ...]:
    """Tokens/s within the SLO of one instance of every row, by the performance model."""
    inputs = resolve_inputs(settings, loaded)
    items = {item.workload_id: item for item in inputs.workloads}
    return tuple(
        layout_rate(
            row.workload,
            row.node,
            loaded.catalog.gpus[row.node.gpu],
            loaded.catalog.efficiencies.get(row.node.gpu),
            _layout(row),
            machines=row.machines,
            settings=inputs.settings_of(items[row.workload.workload_id]),
            mode=inputs.mode,
        )
        for row in fleet
    )


def _layout(row: FleetRow) -> Layout:
    """The layout on each machine of a row."""
    return Layout(pp=row.pp // row.machines, tp=row.tp, replicas=row.replicas)


def _headroom(loaded: LoadedScenario, plan: Plan) -> dict[str, float]:
    """By workload id: the plan's share of a workload of that name, else the scenario's."""
    as_planned = {row.workload: row.headroom for row in plan.workloads}
    return {w.workload_id: as_planned.get(w.alias, loaded.headroom(w.phase)) for w in loaded.workloads}


def _workloads(
    loaded: LoadedScenario, fleet: tuple[FleetRow, ...], rates: tuple[LayoutRate, ...], plan: Plan
) -> tuple[WorkloadNow, ...]:
    demand = {name: d.planned_req_per_s or 0.0 for d in loaded.model_demands for name in d.workload_ids}
    headroom = _headroom(loaded, plan)
    rows = []
    for w in loaded.workloads:
        today = math.fsum(
            rate.tok_per_s * row.instances for row, rate in zip(fleet, rates, strict=True) if row.workload is w
        )
        then = math.fsum(i.throughput_tok_per_s * i.instances for i in plan.instances if i.workload == w.alias)
        planned = demand[w.workload_id] * w.tokens_per_request
        rows.append(WorkloadNow(w.alias, planned, today, then, headroom[w.workload_id]))
    return tuple(rows)


def _absent(loaded: LoadedScenario, fleet: tuple[FleetRow, ...], file: str) -> list[str]:
    """That no machine is for a workload which is asked for."""
    wanted = {name for d in loaded.model_demands if d.planned_req_per_s for name in d.workload_ids}
    here = {row.workload.workload_id for row in fleet}
    absent = [w.alias for w in loaded.workloads if w.workload_id in wanted - here]
    return [f"no row of {file} is for {', '.join(absent)}"] if absent else []


def _apart(loaded: LoadedScenario, fleet: tuple[FleetRow, ...], rates: tuple[LayoutRate, ...], plan: Plan) -> list[str]:
    """That a model's phases run in different regions between which its KV does not cross: together they serve less."""
    if loaded.scenario.policy.cross_region_kv is not None:
        return []
    headroom, notes = _headroom(loaded, plan), []
    tokens = {w.workload_id: w.tokens_per_request for w in loaded.workloads}
    for demand in loaded.model_demands:
        served: dict[tuple[str, str], float] = {}
        for row, rate in zip(fleet, rates, strict=True):
            name = row.workload.workload_id
            if name in demand.workload_ids:
                req_per_s = rate.tok_per_s * row.instances * headroom[name] / tokens[name]
                served[name, row.offer.region] = served.get((name, row.offer.region), 0.0) + req_per_s
        regions = {region for _, region in served}
        each = [math.fsum(served.get((name, r), 0.0) for r in regions) for name in demand.workload_ids]
        together = math.fsum(min(served.get((name, r), 0.0) for name in demand.workload_ids) for r in regions)
        least = min(min(each), demand.planned_req_per_s or 0.0)
        if together < least * (1 - _SAME):
            notes.append(
                f"{demand.alias}: its phases are in different regions, and KV does not cross them: together they serve "
                f"{together:.3g} of {demand.planned_req_per_s:.3g} req/s"
            )
    return notes


def _steps(
    loaded: LoadedScenario, fleet: tuple[FleetRow, ...], rates: tuple[LayoutRate, ...], plan: Plan
) -> tuple[Steps, int]:
    """Steps from the fleet to the plan, and how many instances stay as they are."""
    headroom = _headroom(loaded, plan)
    by_alias = {w.alias: w for w in loaded.workloads}
    goal = [row for row in plan.instances if row.workload in by_alias]
    left = {_plan_signature(row): row.instances for row in goal}
    today: list[Unit] = []
    kept: list[Unit] = []
    price: dict[tuple[str, str], float] = {}
    for row, rate in zip(fleet, rates, strict=True):
        share = headroom[row.workload.workload_id] / row.workload.tokens_per_request
        kind = row.offer.instance_type
        price[row.offer.region, kind] = row.offer.price_usd_per_h
        same = min(row.instances, left.get(_fleet_signature(row), 0))
        for many, units in ((same, kept), (row.instances - same, today)):
            if many:
                units.append(
                    Unit(
                        _fleet_name(row),
                        row.offer.region,
                        row.workload.workload_id,
                        {kind: row.machines},
                        rate.tok_per_s * share,
                        row.machines * row.offer.price_usd_per_h,
                        many,
                    )
                )
        if same:
            left[_fleet_signature(row)] -= same
    wanted = []
    for instance in goal:
        many = left[_plan_signature(instance)]
        workload = by_alias[instance.workload]
        if many:
            share = headroom[workload.workload_id] / workload.tokens_per_request
            wanted.append(
                Unit(
                    f"{instance.workload} on {instance.combination_id}",
                    instance.region,
                    workload.workload_id,
                    _machines(instance),
                    instance.throughput_tok_per_s * share,
                    instance.cost_usd_per_h,
                    many,
                )
            )
    price |= {(o.region, o.instance_type): o.price_usd_per_h for o in plan.offers}
    capacity: dict[tuple[str, str], int] = {}
    for (region, _, _), offer in loaded.by_market.items():  # the steps do not tell markets apart
        machine = region, offer.instance_type
        capacity[machine] = capacity.get(machine, 0) + loaded.nodes_of(offer)[0]
    demands = [
        ModelDemand(d.model, d.planned_req_per_s or 0.0, d.workload_ids, d.regions) for d in loaded.model_demands
    ]
    steps = order_steps(today, wanted, capacity, demands, price, kept, _crossings(loaded, plan))
    return steps, sum(unit.instances for unit in kept)


def _crossings(loaded: LoadedScenario, plan: Plan) -> list[Crossing]:
    """Where the plan has KV cross regions, of models that the scenario has with both phases."""
    phase = {w.workload_id: w.phase for w in loaded.workloads}
    sides = {d.model: {phase[name]: name for name in d.workload_ids} for d in loaded.model_demands}
    return [
        Crossing(t.model, own[Phase.PREFILL], own[Phase.DECODE], t.from_region, t.to_region, t.req_per_s)
        for t in plan.kv_transfers
        if (own := sides.get(t.model, {})).keys() >= {Phase.PREFILL, Phase.DECODE}
    ]


def _machines(instance: PlanInstance) -> dict[str, int]:
    found: dict[str, int] = {}
    for stage in instance.stages:
        for node in stage.nodes:
            found[node.instance_type] = found.get(node.instance_type, 0) + 1
    return found


def _plan_signature(row: PlanInstance) -> _Signature:
    stages = tuple(
        (stage.layers[1] - stage.layers[0] + 1, tuple((n.instance_type, n.tp, n.pp, n.replicas) for n in stage.nodes))
        for stage in row.stages
    )
    return row.region, row.workload, stages


def _fleet_signature(row: FleetRow) -> _Signature:
    layout = _layout(row)
    node = (row.offer.instance_type, layout.tp, layout.pp, layout.replicas)
    layers = stage_layers(row.workload.model.layers, layout.pp, row.machines)
    return row.offer.region, row.workload.alias, tuple((n, (node,)) for n in layers)


def _fleet_name(row: FleetRow) -> str:
    machines = f"{row.machines} x " if row.machines > 1 else ""
    return f"{row.workload.alias} on {machines}{row.node.node_config} {layout_text(row)}"


def layout_text(row: FleetRow) -> str:
    """``tp4``, ``tp2 pp2 dp2``: as plans write layouts."""
    parts = [
        f"tp{row.tp}",
        *([f"pp{row.pp}"] if row.pp > 1 else []),
        *([f"dp{row.replicas}"] if row.replicas > 1 else []),
    ]
    return " ".join(parts)


def comparison_document(found: Comparison) -> dict[str, Any]:
    """As JSON types."""
    return {
        "scenario_id": found.plan.scenario_id,
        "plan_version": found.plan.plan_version,
        "cost_today_usd_per_h": found.cost_usd_per_h,
        "cost_plan_usd_per_h": found.plan.cost_usd_per_h,
        "saving_usd_per_h": found.saving_usd_per_h,
        "fleet": [
            {
                "region": row.offer.region,
                "instance_type": row.offer.instance_type,
                "node_config": row.node.node_config,
                "count": row.count,
                "workload": row.workload.alias,
                "tp": row.tp,
                "pp": row.pp,
                "replicas": row.replicas,
                "usd_per_h": row.usd_per_h,
                "tok_per_s": rate.tok_per_s * row.instances,
                "reason": rate.reason,
            }
            for row, rate in zip(found.fleet, found.rates, strict=True)
        ],
        "workloads": [{**asdict(row), "utilization": row.utilization} for row in found.workloads],
        "notes": list(found.notes),
        "kept_instances": found.kept,
        "steps": [
            {
                "action": step.action.value,
                "what": step.unit.name,
                "region": step.unit.region,
                "instances": step.instances,
                "rents": dict(step.rents),
                "returns": dict(step.returns),
                "rent_usd_per_h": step.rent_usd_per_h,
                "covers": step.covers if math.isfinite(step.covers) else None,
            }
            for step in found.steps.steps
        ],
        "short": [
            {"region": region, "instance_type": kind, "machines": n} for (region, kind), n in found.steps.short.items()
        ],
    }


def machines_text(machines: Mapping[str, int]) -> str:
    """``2 g6.xlarge, 1 g5.xlarge``."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(machines.items()))
