"""What a simulation is asked for: the published plan, its workloads and hardware, and streams of requests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError
from catalogs.ids import short_hash
from catalogs.scenario import LoadedScenario
from catalogs.types import Workload
from flows.feeds import load_with_feeds
from flows.runner import code_hash
from flows.simulate_streams import Stream, make_streams

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan
    from tasks.simulation.build import Hardware

WARM_UP_S = 60.0
# After a change of plans new instances fill and stopped ones drain: attainment "during the change" counts this much more.
SETTLE_S = 120.0


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """One call of ``coral simulate``. ``traces``: FILE or NAME (a stream for all models), or MODEL=FILE (one model's part
    of every stream). ``rates``: R or MODEL=R in requests/s, instead of the planned ones. ``is_poisson``: Poisson arrivals
    with the traces' lengths. ``counts_transfer``: TTFT includes the KV's way to the decode instance, as a client sees it.
    ``from_plan_version``: that plan runs first, and ``plan_version`` is asked for ``switch_minutes`` into the counted time
    (None = a third of it); new instances are up ``startup_minutes`` later (None = the scenario's ``init_minutes``)."""

    scenario: str | Path
    lake_root: Path
    plan_version: int | None = None
    traces: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    is_poisson: bool = False
    minutes: float = 30.0
    seeds: int = 1
    counts_transfer: bool = True
    dask_address: str | None = None
    from_plan_version: int | None = None
    switch_minutes: float | None = None
    startup_minutes: float | None = None
    threads: int = field(default_factory=lambda: max(1, min(os.cpu_count() or 1, 8)))

    @property
    def duration_s(self) -> float:
        """What is simulated, the warm-up included."""
        return self.minutes * 60 + WARM_UP_S


@dataclass(frozen=True, slots=True)
class PlanChange:
    """``before`` runs until the plan simulated is asked for at ``switch_s`` (warm-up included) and up ``startup_s`` later."""

    before: Plan
    switch_s: float
    startup_s: float

    @property
    def window_s(self) -> tuple[float, float]:
        """From the switch until stopped instances have drained, by and large: what the change touches."""
        return self.switch_s, self.switch_s + self.startup_s + SETTLE_S

    def figures(self) -> dict[str, Any]:
        """For the document: JSON types, minutes of the counted time."""
        return {
            "from_plan_version": self.before.plan_version,
            "from_cost_usd_per_h": self.before.cost_usd_per_h,
            "switch_minute": round((self.switch_s - WARM_UP_S) / 60, 6),
            "startup_minutes": round(self.startup_s / 60, 6),
            "settle_minutes": SETTLE_S / 60,
        }


@dataclass(frozen=True)
class SimulateInputs:
    """Everything a run is computed from. ``hardware`` per model: de-ratings from benchmarks are a model's own."""

    plan: Plan
    workloads: Mapping[str, Workload]
    hardware: Mapping[str, Hardware]
    streams: tuple[Stream, ...]
    duration_s: float
    counts_transfer: bool
    notes: tuple[str, ...]
    change: PlanChange | None = None

    def run_id(self, stream: Stream, seed: int) -> str:
        """Name of the result of ``stream`` with ``seed``: the hash of all that decides it, our code included."""
        return short_hash(
            {
                "instances": [row.model_dump(mode="json") for row in self.plan.instances],
                "hardware": {model: _plain(asdict(hardware)) for model, hardware in self.hardware.items()},
                "workloads": sorted(self.workloads),
                "stream": stream.key(),
                "seed": seed,
                "duration_s": self.duration_s,
                "warm_up_s": WARM_UP_S,
                "counts_transfer": self.counts_transfer,
                "change": None if self.change is None else _change_key(self.change),
                "code": code_hash(("tasks.simulation", "tasks.profiling")),
            }
        )


def resolve(settings: SimulateSettings) -> SimulateInputs:
    """The inputs of a call. Raises the catalogs' errors for scenarios, traces and names, LakeError, and CoralError for a
    plan that was made for other workloads than the scenario has now."""
    if settings.seeds < 1 or not 0 < settings.minutes <= 24 * 60:
        raise CoralError(
            f"{settings.seeds} seeds of {settings.minutes:g} minutes cannot be simulated",
            remedy="give --seeds >= 1, 0 < --minutes <= 1440",
        )
    loaded = load_with_feeds(settings.scenario, settings.lake_root)
    plan = published_plan(settings.lake_root, loaded.scenario.id, settings.plan_version, settings.scenario)
    by_id = {workload.workload_id: workload for workload in loaded.workloads}
    _refuse_stale(plan, by_id)
    change = _plan_change(settings, loaded, plan)
    plans = [plan] if change is None else [plan, change.before]
    _refuse_stale(plans[-1], by_id)
    workloads = {row.workload_id: by_id[row.workload_id] for each in plans for row in each.workloads}
    # Requests are for the models of the plan simulated; another plan's instances need their hardware all the same.
    models = {by_id[row.workload_id].model.model: by_id[row.workload_id].model.alias for row in plan.workloads}
    used = {
        node.node_config for each in plans for row in each.instances for stage in row.stages for node in stage.nodes
    }
    streams, notes = make_streams(settings, plan, loaded, models)
    return SimulateInputs(
        plan=plan,
        workloads=workloads,
        hardware={w.model.model: hardware_of(loaded, used, w.model.model) for w in workloads.values()},
        streams=streams,
        duration_s=settings.duration_s,
        counts_transfer=settings.counts_transfer,
        notes=(*notes, *_plan_notes(plan, by_id), *_change_notes(settings, plan, change)),
        change=change,
    )


def _plan_change(settings: SimulateSettings, loaded: LoadedScenario, plan: Plan) -> PlanChange | None:
    if settings.from_plan_version is None:
        if settings.switch_minutes is not None or settings.startup_minutes is not None:
            raise CoralError(
                "--switch-at and --startup are for a change of plans", remedy="give --from-plan VERSION with them"
            )
        return None
    switch = settings.minutes / 3 if settings.switch_minutes is None else settings.switch_minutes
    startup = loaded.scenario.policy.init_minutes if settings.startup_minutes is None else settings.startup_minutes
    if not 0 <= switch < settings.minutes or not 0 <= startup <= 24 * 60:
        raise CoralError(
            f"a change after {switch:g} minutes with {startup:g} minutes of start-up does not lie in {settings.minutes:g}",
            remedy="give --switch-at in [0, --minutes) and --startup in [0, 1440]",
        )
    before = published_plan(settings.lake_root, loaded.scenario.id, settings.from_plan_version, settings.scenario)
    if before.plan_version == plan.plan_version:
        raise CoralError(
            f"plan {plan.plan_version} cannot change to itself", remedy="give --plan and --from-plan different versions"
        )
    return PlanChange(before, WARM_UP_S + switch * 60, startup * 60)


def _change_notes(settings: SimulateSettings, plan: Plan, change: PlanChange | None) -> list[str]:
    if change is None or change.switch_s + change.startup_s < settings.duration_s:
        return []
    up = (change.switch_s + change.startup_s - WARM_UP_S) / 60
    return [
        f"new instances of plan {plan.plan_version} are up at minute {up:.3g}, after the {settings.minutes:g} simulated: give "
        "more --minutes to see it alone"
    ]


def _change_key(change: PlanChange) -> list[Any]:
    rows = [row.model_dump(mode="json") for row in change.before.instances]
    return [rows, change.switch_s, change.startup_s]


def published_plan(lake_root: Path, scenario_id: str, version: int | None, asked: str | Path) -> Plan:
    """A published plan, the newest for version None. Raises LakeError, UnknownNameError for a version that is not there, and
    CoralError where nothing is published."""
    from warehouse.connect import Lake
    from warehouse.read import current_plan, plan_version

    with Lake.open(lake_root, read_only=True) as lake:
        plan = current_plan(lake, scenario_id) if version is None else plan_version(lake, scenario_id, version)
    if plan is None:
        raise CoralError(
            f"no plan of {scenario_id} is published in {lake_root}", remedy=f"run `coral plan --scenario {asked}` first"
        )
    if not plan.instances:
        raise CoralError(
            f"plan {plan.plan_version} of {scenario_id} rents nothing", remedy="simulate a plan that serves some demand"
        )
    return plan


def _refuse_stale(plan: Plan, known: Mapping[str, Workload]) -> None:
    gone = [row.workload for row in plan.workloads if row.workload_id not in known]
    if gone:
        raise CoralError(
            f"plan {plan.plan_version} of {plan.scenario_id} was made for other workloads than the scenario has now: "
            f"{', '.join(gone)}",
            remedy="run `coral plan` for the scenario as it is, or simulate with the scenario file the plan was made from",
        )


def hardware_of(loaded: LoadedScenario, used: Iterable[str], model: str) -> Hardware:
    """What the configurations ``used`` are made of, with the de-ratings that benchmarks of ``model`` gave."""
    from catalogs.engines import engine_version
    from tasks.profiling.memory import ProfileSettings
    from tasks.simulation.build import Hardware

    catalog = loaded.catalog
    configs = {**catalog.node_configs, **loaded.node_configs}
    gpus = {configs[name].gpu for name in used if name in configs}
    stated = loaded.scenario.engine
    own = tuple((c.gpu, c.phase.value, c.derate) for c in loaded.calibrations if c.model == model)
    return Hardware(
        {name: configs[name] for name in sorted(used) if name in configs},
        {name: catalog.gpus[name] for name in sorted(gpus)},
        {name: catalog.efficiencies[name] for name in sorted(gpus) if name in catalog.efficiencies},
        ProfileSettings.of_engine(engine_version(stated.name, stated.version), calibration=own),
    )


def _plan_notes(plan: Plan, workloads: Mapping[str, Workload]) -> list[str]:
    """That the plan is not the one that runs; what of it the simulation takes on trust."""
    from tasks.allocation.plan import PlanState

    name, notes = f"version {plan.plan_version} of {plan.scenario_id}", []
    if plan.state is PlanState.PROPOSED:
        notes.append(f"{name} is a proposal: it waits for `coral plans approve {plan.plan_version}`")
    if plan.state is PlanState.SUPERSEDED:
        notes.append(f"{name} is superseded: another version is current")
    measured = sorted({row.workload for row in plan.instances if row.provenance == "measured"})
    if measured:
        notes.append(f"rates of {', '.join(measured)} are measured; their passes are simulated with modelled times")
    served = [workloads[row.workload_id] for row in plan.workloads]
    hits = {workload.model.alias: workload.prefix_hit_rate for workload in served if workload.prefix_hit_rate}
    if hits:
        stated = ", ".join(f"{alias} {hit * 100:.3g} %" for alias, hit in hits.items())
        notes.append(f"of every prompt the stated part is in the prefix cache, whatever came before: {stated}")
    return notes


def _plain(value: Any) -> Any:
    import json

    return json.loads(json.dumps(value, default=str))
