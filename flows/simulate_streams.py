"""Streams of requests to replay: what the options --trace, --rate and --poisson ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, close_matches_remedy
from catalogs.types import Phase
from catalogs.wording import counted

if TYPE_CHECKING:
    from catalogs.scenario import LoadedScenario
    from catalogs.traces import Trace
    from flows.simulate_inputs import SimulateSettings
    from tasks.allocation.plan import Plan
    from tasks.simulation.streams import ModelStream


# Notes that begin alike are told as one.
_STATED = "every request has the stated mean prompt and answer: "
_SCALED = "the clock of traces is scaled to the rates, bursts with it: "
# A run takes about 0.3 kB for each.
MOST_REQUESTS = 20_000_000


@dataclass(frozen=True)
class Stream:
    """One stream to replay: a short name, what it is in words, and the requests of each model."""

    name: str
    text: str
    models: tuple[ModelStream, ...]

    def key(self) -> list[Any]:
        """What decides its requests, but for the seed."""
        return [[m.model, m.rate_req_per_s, _digest(m)] for m in self.models]


def make_streams(
    settings: SimulateSettings, plan: Plan, loaded: LoadedScenario, models: Mapping[str, str]
) -> tuple[tuple[Stream, ...], list[str]]:
    """One stream per trace given for all models, else one that is Poisson; and what to say about them.

    ``models``: alias by id, those of the plan. Raises the catalogs' errors for traces, names and rates.
    """
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
            parts.append(_model_stream(model, rate, used, label, settings.is_poisson, loaded, notes))
            if parts[-1].arrival_s is not None:
                notes.append(_scaled(parts[-1], models[model], Path(label).name, settings.duration_s))
        whole = Path(name).stem if name else "poisson"
        kind = "Poisson with its lengths" if settings.is_poisson and name else "its own arrivals"
        text = f"trace {whole}, {kind}, at {at}" if name else f"Poisson at {at}"
        mixed = "".join(f"; {models[model]}: trace {Path(label).stem}" for model, (label, _) in own_traces.items())
        streams.append(Stream(whole + ("+own" if mixed else ""), text + mixed, tuple(parts)))
        _refuse_too_many(streams[-1], settings)
    return tuple(streams), _joined(notes)


def _refuse_too_many(stream: Stream, settings: SimulateSettings) -> None:
    count = sum(part.rate_req_per_s for part in stream.models) * settings.duration_s
    if count > MOST_REQUESTS:
        raise CoralError(
            f"{stream.text}: {settings.minutes:g} minutes of it are about {count:.2g} requests",
            remedy=f"give a lower --rate or fewer --minutes: {MOST_REQUESTS:,} requests at most",
        )


def _scaled(part: ModelStream, alias: str, file: str, duration_s: float) -> str:
    """How the trace of ``part`` is brought to its rate, for the notes."""
    assert part.arrival_s is not None
    n, length_s = len(part.arrival_s), float(part.arrival_s[-1] - part.arrival_s[0])
    faster = part.rate_req_per_s / ((n - 1) / length_s)
    times = part.rate_req_per_s * duration_s / n
    again = f", its {n:,} requests {times:,.3g} times over" if times > 1 else ""
    return f"{_SCALED}{file} {faster:,.3g} times as fast for {alias}{again}"


def _joined(notes: Sequence[str]) -> list[str]:
    """Each note once, those that begin alike as one."""
    joined = []
    for start, end in (("", ""), (_SCALED, ""), (_STATED, " tokens")):
        mine = [note.removeprefix(start) for note in dict.fromkeys(notes) if _start_of(note) == start]
        joined += [start + "; ".join(mine) + end] if start and mine else mine
    return joined


def _start_of(note: str) -> str:
    return next((start for start in (_STATED, _SCALED) if note.startswith(start)), "")


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
        notes.append(f"{counted(len(trace.rejected), 'row')} set aside, first: {trace.rejected[0].line()}")
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
    loaded: LoadedScenario,
    notes: list[str],
) -> ModelStream:
    """Requests of one model from its trace, or Poisson with the scenario's lengths."""
    import numpy as np

    from tasks.simulation.streams import ModelStream

    if rate == 0:
        one = np.ones(1, dtype=np.int64)
        return ModelStream(model, 0.0, one, one)
    if trace is None:
        return ModelStream(model, rate, *scenario_pairs(model, loaded, notes))
    if is_poisson:
        return ModelStream(model, rate, *trace.pairs())
    file = Path(label).name
    if trace.arrival_s is None:
        raise InputError([Finding(file, 0, "timestamp_s", "", "has no arrival times", "give --poisson with it")])
    if not trace.arrival_s[-1] > trace.arrival_s[0]:
        remedy = "give a longer trace, or --poisson to use its lengths only"
        raise InputError([Finding(file, 0, "timestamp_s", "", "all requests come at one moment", remedy)])
    return ModelStream(model, rate, *trace.pairs(), trace.arrival_s)


def scenario_pairs(model: str, loaded: LoadedScenario, notes: list[str]) -> tuple[Any, Any]:
    """Lengths as the scenario states them: of its trace where that is at hand, else draws with the same moments."""
    from catalogs.traces import read_trace, trace_path
    from tasks.simulation.streams import moment_pairs

    workload = next(w for w in loaded.workloads if w.model.model == model and w.phase is Phase.PREFILL)
    own = next((s for s in loaded.scenario.models if loaded.catalog.model(s.model).model == model), None)
    if own is not None and own.lengths.file is not None:
        return read_trace(loaded.path.parent / own.lengths.file).pairs()
    if own is not None and own.lengths.trace is not None:
        try:
            return read_trace(trace_path(own.lengths.trace)).pairs()
        except CoralError:
            notes.append(f"lengths of {own.lengths.trace} are drawn from its moments: the trace itself is not here")
    inputs, outputs = moment_pairs(workload.lengths)
    if len(inputs) == 1:
        alias = workload.model.alias
        notes.append(f"{_STATED}{alias} {inputs[0]} and {outputs[0]}")
    return inputs, outputs


def _digest(stream: ModelStream) -> str:
    digest = hashlib.sha256(b"poisson" if stream.arrival_s is None else stream.arrival_s.tobytes())
    digest.update(stream.input_tokens.tobytes() + b"|" + stream.output_tokens.tobytes())
    return digest.hexdigest()[:16]
