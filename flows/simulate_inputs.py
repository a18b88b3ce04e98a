"""What a simulation is asked for: the published plan, its workloads and hardware, and streams of requests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, close_matches_remedy
from catalogs.ids import short_hash
from catalogs.scenario import LoadedScenario, load_scenario
from catalogs.types import Phase, Workload
from flows.runner import code_hash

if TYPE_CHECKING:
    from catalogs.traces import Trace
    from tasks.allocation.plan import Plan
    from tasks.simulation.build import Hardware
    from tasks.simulation.streams import ModelStream

WARM_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """One call of ``coral simulate``. ``traces``: FILE or NAME (a stream for all models), or MODEL=FILE (one model's part
    of every stream). ``rates``: R or MODEL=R in requests/s, instead of the planned ones. ``is_poisson``: Poisson arrivals
    with the traces' lengths. ``counts_transfer``: TTFT includes the KV's way to the decode instance, as a client sees it."""

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
    threads: int = field(default_factory=lambda: max(1, min(os.cpu_count() or 1, 8)))


@dataclass(frozen=True)
class Stream:
    """One stream to replay: a short name, what it is in words, and the requests of each model."""

    name: str
    text: str
    models: tuple[ModelStream, ...]

    def key(self) -> list[Any]:
        """What decides its requests, but for the seed."""
        return [[m.model, m.rate_req_per_s, _digest(m)] for m in self.models]


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
                "code": code_hash(("tasks.simulation", "tasks.profiling")),
            }
        )


def resolve(settings: SimulateSettings) -> SimulateInputs:
    """The inputs of a call. Raises the catalogs' errors for scenarios, traces and names, LakeError, and CoralError for a
    plan that was made for other workloads than the scenario has now."""
    if settings.seeds < 1 or not 0 < settings.minutes <= 24 * 60:
        raise CoralError(
            "a simulation needs a seed and some minutes", remedy="give --seeds >= 1, 0 < --minutes <= 1440"
        )
    loaded = load_scenario(settings.scenario)
    plan = published_plan(settings.lake_root, loaded.scenario.id, settings.plan_version, settings.scenario)
    by_id = {workload.workload_id: workload for workload in loaded.workloads}
    _refuse_stale(plan, by_id)
    workloads = {row.workload_id: by_id[row.workload_id] for row in plan.workloads}
    models = {workload.model.model: workload.model.alias for workload in workloads.values()}
    streams, notes = _streams(settings, plan, workloads, models)
    return SimulateInputs(
        plan=plan,
        workloads=workloads,
        hardware={model: _hardware(loaded, plan, model) for model in models},
        streams=streams,
        duration_s=settings.minutes * 60 + WARM_UP_S,
        counts_transfer=settings.counts_transfer,
        notes=(*notes, *_plan_notes(plan)),
    )


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


def _hardware(loaded: LoadedScenario, plan: Plan, model: str) -> Hardware:
    """What the plan's nodes are made of, with the de-ratings that benchmarks of ``model`` gave."""
    from catalogs.engines import engine_version
    from tasks.profiling.memory import ProfileSettings
    from tasks.simulation.build import Hardware

    used = {node.node_config for row in plan.instances for stage in row.stages for node in stage.nodes}
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


def _plan_notes(plan: Plan) -> list[str]:
    """What of the plan the simulation takes on trust."""
    measured = sorted({row.workload for row in plan.instances if row.provenance == "measured"})
    if not measured:
        return []
    return [f"rates of {', '.join(measured)} are measured; their passes are simulated with modelled times"]


def _streams(
    settings: SimulateSettings, plan: Plan, workloads: Mapping[str, Workload], models: Mapping[str, str]
) -> tuple[tuple[Stream, ...], list[str]]:
    """One stream per trace given for all models, else one that is Poisson; and what to say about them."""
    planned = {row.model: row.planned_req_per_s for row in plan.workloads}
    rates = planned | _rates(settings.rates, models)
    notes: list[str] = []
    own, shared = _split_traces(settings.traces, models)
    own_traces = {model: (name, _read(name, notes)) for model, name in own.items()}
    at = "planned rates" if not settings.rates else "given rates"
    streams = []
    for name in shared or [""]:
        trace = _read(name, notes) if name else None
        parts = []
        for model, rate in rates.items():
            label, used = own_traces.get(model, (name, trace))
            if used is not None and used.models:
                used = _part_of(used, label, model, models, plan, notes)
                rate = rate if used is not None else 0.0
            parts.append(_model_stream(model, rate, used, label, settings.is_poisson, workloads, notes))
        whole = Path(name).stem if name else "poisson"
        kind = "Poisson with its lengths" if settings.is_poisson and name else "its own arrivals"
        text = f"trace {whole}, {kind}, at {at}" if name else f"Poisson at {at}"
        mixed = "".join(f"; {models[model]}: trace {Path(label).stem}" for model, (label, _) in own_traces.items())
        streams.append(Stream(whole + ("+own" if mixed else ""), text + mixed, tuple(parts)))
    return tuple(streams), list(dict.fromkeys(notes))


def _split_traces(given: Sequence[str], models: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(file of each model that has its own, traces for all models). An ``=`` in an existing path is no model's name."""
    own: dict[str, str] = {}
    shared: list[str] = []
    for item in given:
        name, sign, file = item.partition("=")
        if sign and not Path(item).exists():
            own[find_model(name, models)] = file
        else:
            shared.append(item)
    return own, list(dict.fromkeys(shared))


def find_model(name: str, models: Mapping[str, str]) -> str:
    """The id of a model given by id or alias. Raises UnknownNameError for one that is not in the plan."""
    for model, alias in models.items():
        if name.strip().lower() in (model.lower(), alias.lower()):
            return model
    raise UnknownNameError("model", name, models.values(), where="models of the plan")


def _rates(given: Sequence[str], models: Mapping[str, str]) -> dict[str, float]:
    """Requests/s per model from ``R`` (all models) and ``MODEL=R`` (which win)."""
    overall: dict[str, float] = {}
    single: dict[str, float] = {}
    for item in given:
        name, sign, text = item.rpartition("=")
        try:
            rate = float(text)
        except ValueError:
            rate = float("nan")
        if not 0 <= rate < float("inf"):
            raise CoralError(f"--rate {item}: not a rate", remedy="give requests per second, or MODEL=RATE")
        if sign:
            single[find_model(name, models)] = rate
        else:
            overall = dict.fromkeys(models, rate)
    return overall | single


def _read(name: str, notes: list[str]) -> Trace:
    from catalogs.traces import read_trace, trace_path

    trace = read_trace(trace_path(name))
    if trace.rejected:
        notes.append(f"{len(trace.rejected)} rows set aside, first: {trace.rejected[0].line()}")
    return trace


def _part_of(
    trace: Trace, label: str, model: str, models: Mapping[str, str], plan: Plan, notes: list[str]
) -> Trace | None:
    """The rows of ``model`` in a trace that names models; None = it has none. Raises InputError where it names others."""
    from dataclasses import replace

    names = {name.lower(): i for i, (name, _) in enumerate(trace.models)}
    planned = {text.lower() for pair in models.items() for text in pair}
    unknown = [(name, row) for name, row in trace.models if name.lower() not in planned]
    if unknown:
        reason = f"is not a model of plan {plan.plan_version} of {plan.scenario_id}"
        raise InputError(
            [
                Finding(Path(label).name, row, "model", name, reason, close_matches_remedy(name, models.values()))
                for name, row in unknown
            ]
        )
    wanted = [names[text.lower()] for text in (model, models[model]) if text.lower() in names]
    mask = [number in wanted for number in trace.model.tolist()]
    if not any(mask):
        notes.append(f"{Path(label).name} has no requests of {models[model]}: it stays idle")
        return None
    times = None if trace.arrival_s is None else trace.arrival_s[mask]
    return replace(
        trace, arrival_s=times, input_tokens=trace.input_tokens[mask], output_tokens=trace.output_tokens[mask]
    )


def _model_stream(
    model: str,
    rate: float,
    trace: Trace | None,
    label: str,
    is_poisson: bool,
    workloads: Mapping[str, Workload],
    notes: list[str],
) -> ModelStream:
    """Requests of one model from its trace, or Poisson with the scenario's lengths."""
    import numpy as np

    from tasks.simulation.streams import ModelStream

    if rate == 0:
        one = np.ones(1, dtype=np.int64)
        return ModelStream(model, 0.0, one, one)
    if trace is None:
        return ModelStream(model, rate, *_scenario_pairs(model, workloads, notes))
    if is_poisson:
        return ModelStream(model, rate, *trace.pairs())
    file = Path(label).name
    if trace.arrival_s is None:
        raise InputError([Finding(file, 0, "timestamp_s", "", "has no arrival times", "give --poisson with it")])
    if not trace.arrival_s[-1] > trace.arrival_s[0]:
        remedy = "give a longer trace, or --poisson to use its lengths only"
        raise InputError([Finding(file, 0, "timestamp_s", "", "all requests come at one moment", remedy)])
    return ModelStream(model, rate, *trace.pairs(), trace.arrival_s)


def _scenario_pairs(model: str, workloads: Mapping[str, Workload], notes: list[str]) -> tuple[Any, Any]:
    """Lengths as the scenario states them: of its trace where that is at hand, else draws with the same moments."""
    from catalogs.traces import read_trace, trace_path
    from tasks.simulation.streams import moment_pairs

    workload = next(w for w in workloads.values() if w.model.model == model and w.phase is Phase.PREFILL)
    lengths = workload.lengths
    name = lengths.source.removeprefix("trace ")
    if name != lengths.source:
        try:
            return read_trace(trace_path(name)).pairs()
        except CoralError:
            notes.append(f"lengths of {name} are drawn from its moments: the trace itself is not on this machine")
    inputs, outputs = moment_pairs(lengths)
    if len(inputs) == 1:
        alias = workload.model.alias
        notes.append(f"every request of {alias} has the stated means, {inputs[0]} and {outputs[0]} tokens")
    return inputs, outputs


def _digest(stream: ModelStream) -> str:
    digest = hashlib.sha256(b"poisson" if stream.arrival_s is None else stream.arrival_s.tobytes())
    digest.update(stream.input_tokens.tobytes() + b"|" + stream.output_tokens.tobytes())
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    import json

    return json.loads(json.dumps(value, default=str))
