"""One reader per kind of feed: from a file to what is taken in, held and set aside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, with_close_matches
from catalogs.lake_feeds import DemandObservation
from catalogs.texts import UnreadableError
from catalogs.types import Phase
from catalogs.wording import counted
from flows.ingest import IngestRequest, Reading
from warehouse.ingest import FeedContent, FleetObservation

if TYPE_CHECKING:
    from pathlib import Path

    from catalogs.scenario import LoadedScenario
    from catalogs.traces import Trace
    from warehouse.connect import Lake


_TABLE_COLUMNS = {"window_start", "demand_req_per_s"}


def _rows_of(findings: Iterable[Finding]) -> set[int]:
    """Rows of the file that findings speak of; those of the file as a whole are none."""
    return {finding.row for finding in findings if finding.row}


def _refuse_future(what: str, observed_at: datetime, now: datetime) -> None:
    if observed_at > now + timedelta(minutes=5):
        raise CoralError(
            f"the {what} would be of {observed_at:%Y-%m-%d %H:%M} UTC, which is in the future",
            remedy="give --as-of with the moment of what was seen",
        )


def _require_rows(file: Path, rows_seen: int) -> None:
    """A file of a heading alone is a broken export: it says nothing, not that there is nothing. Raises InputError."""
    if not rows_seen:
        remedy = "give at least one row; what was known stays"
        raise InputError([Finding(file.name, 0, "", "", "has no row", remedy)])


def read_prices(request: IngestRequest, loaded: LoadedScenario, lake: Lake, now: datetime) -> Reading:
    """Prices as of the moment asked for, else when the file was written; judged against the last ones in the lake."""
    from catalogs.price_checks import judge_prices
    from catalogs.price_feeds import read_price_file
    from warehouse.feeds import price_snapshots

    observed_at = request.as_of or datetime.fromtimestamp(request.file.stat().st_mtime, UTC).replace(microsecond=0)
    _refuse_future("prices", observed_at, now)
    observed_at = min(observed_at, now)  # another machine's clock may be ahead of ours by a little
    last = price_snapshots(lake, loaded.scenario.id)
    read = read_price_file(request.file, loaded.catalog, request.provider, observed_at, now)
    _require_rows(request.file, read.rows_seen)
    judged = judge_prices(read, last, loaded.catalog, observed_at, is_confirmed=request.is_confirmed)
    rejects = (*read.rejects, *judged.rejects)
    rejected = _rows_of(read.rejects) | judged.rejected_rows
    regions = {row.price.offer.region for row in read.rows}
    notes = list(read.notes)
    used = [region for region in loaded.scenario.offers.regions if region in regions]
    if regions and not used:
        notes.append(f"none of its regions is one of the scenario's ({', '.join(loaded.scenario.offers.regions)})")
    notes += _unheard_of(regions, loaded)
    if loaded.scenario.offers.feed is None:
        notes.append("the scenario does not use them: set offers.feed: lake")
    return Reading(
        FeedContent(prices=judged.snapshots),
        observed_at if judged.snapshots else None,
        read.rows_seen,
        judged.held,
        len(judged.held_rows - rejected),
        rejects,
        len(rejected),
        tuple(notes),
        options=(observed_at.isoformat(), request.provider or ""),
    )


def _unheard_of(regions: set[str], loaded: LoadedScenario) -> list[str]:
    """A note on regions of a price file of which neither the catalog nor the scenario has heard: they may be misspelt. What
    earlier files told of does not count, since it may be misspelt alike."""
    known = {*loaded.catalog.regions, *loaded.scenario.offers.regions}
    unknown = sorted(regions - known)
    if not unknown:
        return []
    shown = with_close_matches(unknown, known)
    return [f"neither the catalog nor the scenario knows {shown}: taken in all the same, check how it is spelt"]


def _names(loaded: LoadedScenario) -> tuple[set[str], set[str]]:
    """Regions and node configurations that a feed may speak of."""
    offers = (*loaded.catalog.offers, *loaded.offers)
    regions = {offer.region for offer in offers} | set(loaded.regions) | set(loaded.feeds.prices)
    priced = {price.offer.node_config for s in loaded.feeds.prices.values() for price in s.prices}
    return regions, set(loaded.catalog.node_configs) | set(loaded.node_configs) | priced


def read_availability(request: IngestRequest, loaded: LoadedScenario, lake: Lake, now: datetime) -> Reading:
    """Nodes that can be had, by time of observation."""
    from catalogs.state_feeds import read_availability_file

    read = read_availability_file(request.file, loaded.catalog, *_names(loaded), now)
    _require_rows(request.file, read.rows_seen)
    notes = [] if loaded.scenario.availability.feed else ["the scenario does not use it: set availability.feed: lake"]
    unknown = sum(row.nodes is None for row in read.rows)
    if unknown:
        notes.append(
            f"{counted(unknown, 'row says', 'rows say')} that the number is unknown: quota or default_nodes counts there"
        )
    return Reading(
        FeedContent(availability=read.rows),
        max((datetime.fromisoformat(row.observed_at) for row in read.rows), default=None),
        read.rows_seen,
        rejects=read.rejects,
        n_rejected=len(_rows_of(read.rejects)),
        notes=tuple(notes),
    )


def read_demand(request: IngestRequest, loaded: LoadedScenario, lake: Lake, now: datetime) -> Reading:
    """Demand per window: told by a table, or counted in a request trace."""
    section = loaded.scenario.demand
    minutes = request.window_minutes or (section.window_minutes if section else 60)
    window = timedelta(minutes=minutes)
    reading = (
        _demand_table(request, loaded, window) if _is_table(request) else _demand_of_trace(request, loaded, window)
    )
    notes = list(reading.notes)
    if section is None or section.feed is None:
        notes.append("the scenario does not use it: set demand: {feed: lake} and take out demand_req_per_s")
    unknown = sum(row.req_per_s is None for row in reading.content.demand)
    if unknown:
        notes.append(
            f"{counted(unknown, 'window says', 'windows say')} that the demand is unknown: the last plan is held there"
        )
    served = {demand.model for demand in loaded.model_demands}
    if others := sorted({row.model for row in reading.content.demand} - served):
        notes.append(f"the scenario does not serve {', '.join(others)}: kept, not used")
    notes += _overlapping(loaded, lake, reading.content.demand, window)
    notes += _drift(loaded, reading.content.demand)
    options = (str(minutes), request.model or "", request.start.isoformat() if request.start else "")
    return Reading(
        reading.content,
        max((row.window_start for row in reading.content.demand), default=None),
        reading.n_rows,
        rejects=reading.rejects,
        n_rejected=reading.n_rejected,
        notes=tuple(notes),
        unit=reading.unit,
        options=options,
    )


def _overlapping(loaded: LoadedScenario, lake: Lake, rows: Sequence[DemandObservation], window: timedelta) -> list[str]:
    """That windows of one length overlap, among each other or with what was told before: their length may be another."""
    from tasks.demand.windows import overlaps
    from warehouse.feeds import demand_history

    if not rows:
        return []
    starts = [row.window_start for row in rows]
    known = demand_history(lake, loaded.scenario.id, min(starts) - window, max(starts) + window)
    found = overlaps(rows, [row for windows in known.values() for row in windows])
    if not found:
        return []
    first, second = found[0]
    minutes, apart = (s / 60 for s in (first.window_s, (second.window_start - first.window_start).total_seconds()))
    alias = {demand.model: demand.alias for demand in loaded.model_demands}
    text = (
        f"windows of {minutes:g} minutes overlap: {alias.get(first.model, first.model)} at {first.window_start:%Y-%m-%d %H:%M} "
        f"and {second.window_start:%H:%M}"
        + (f", and {len(found) - 1:,} more" if len(found) > 1 else "")
        + "; while both last "
        "the one that began last counts"
    )
    if apart >= 1 and apart.is_integer():
        text += f". Where each lasts {apart:g} min, give --window-minutes {apart:g}, or window_minutes under demand"
    return [text]


def _is_table(request: IngestRequest) -> bool:
    from catalogs.tables import column_names
    from catalogs.traces import is_trace_heading

    if request.file.suffix.lower() in {".jsonl", ".json"}:
        return False
    try:
        columns = set(column_names(request.file))
        return bool(_TABLE_COLUMNS & columns) or not is_trace_heading(columns)
    except UnreadableError as error:
        raise InputError([Finding(request.file.name, 0, "", "", error.reason, error.remedy)]) from None


def _demand_table(request: IngestRequest, loaded: LoadedScenario, window: timedelta) -> Reading:
    from catalogs.state_feeds import read_demand_file

    served = [demand.model for demand in loaded.model_demands]
    read = read_demand_file(request.file, loaded.catalog, served, window)
    _require_rows(request.file, read.rows_seen)
    rejects = read.rejects
    return Reading(
        FeedContent(demand=read.rows),
        None,
        read.rows_seen,
        rejects=rejects,
        n_rejected=len(_rows_of(rejects)),
    )


def _demand_of_trace(request: IngestRequest, loaded: LoadedScenario, window: timedelta) -> Reading:
    from catalogs.traces import read_trace
    from tasks.demand.windows import count_windows

    trace = read_trace(request.file)
    start = request.start or trace.start
    if trace.arrival_s is None:
        remedy = "give a trace with the times of its requests"
        raise InputError([Finding(request.file.name, 0, "", "", "has lengths but no times", remedy)])
    if start is None:
        raise CoralError(
            f"{request.file.name} counts from its first request and does not say when that was",
            remedy="give --start 2026-07-30T12:00:00Z",
        )
    rejects = list(trace.rejected)
    windows: list[DemandObservation] = []
    left_out = 0
    refused = 0
    for model, part, begins, bad in _by_model(request, loaded, trace, start):
        if bad is not None:
            rejects.append(bad)
            refused += len(part.input_tokens)
            continue
        found = count_windows(part, model, begins, window.total_seconds(), _percentile(loaded, model))
        windows += found.windows
        left_out += len(found.left_out)
    notes = []
    if left_out:
        notes.append(
            f"{counted(left_out, 'window is', 'windows are')} left out: the trace covers less than half of each"
        )
    if not windows and not refused:
        minutes = window.total_seconds() / 60
        remedy = "give a longer trace, or shorter windows with --window-minutes"
        reason = f"covers no window of {minutes:g} minutes by half"
        raise InputError([Finding(request.file.name, 0, "", "", reason, remedy)])
    return Reading(
        FeedContent(demand=windows),
        None,
        len(trace.input_tokens) + len(trace.rejected),
        rejects=tuple(rejects),
        n_rejected=len(trace.rejected) + refused,
        notes=tuple(notes),
        unit="request",
    )


def _by_model(
    request: IngestRequest, loaded: LoadedScenario, trace: Trace, start: datetime
) -> Iterable[tuple[str, Trace, datetime, Finding | None]]:
    """(model id, its requests, when they began, why they cannot be used) of each model in the trace."""
    from tasks.demand.windows import of_model

    if request.model is not None or not trace.models:
        yield _asked_model(request, loaded), trace, start, None
        return
    for index, (name, row) in enumerate(trace.models):
        part, later = of_model(trace, index)
        try:
            yield loaded.catalog.model(name).model, part, start + later, None
        except UnknownNameError as error:
            yield name, part, start, Finding(request.file.name, row, "model", name, "unknown model", error.remedy)


def _asked_model(request: IngestRequest, loaded: LoadedScenario) -> str:
    if request.model is not None:
        return loaded.catalog.model(request.model).model
    models = [demand.model for demand in loaded.model_demands]
    if len(models) == 1:
        return models[0]
    raise CoralError(
        f"{request.file.name} does not say which model its requests are for",
        remedy=f"give --model (one of {', '.join(demand.alias for demand in loaded.model_demands)})",
    )


def _percentile(loaded: LoadedScenario, model: str) -> float:
    return next((w.slo_percentile for w in loaded.workloads if w.model.model == model), 99.0)


def _drift(loaded: LoadedScenario, windows: Iterable[DemandObservation]) -> list[str]:
    from catalogs.length_drift import drift_notes

    seen = {window.model: window.lengths for window in windows if window.lengths is not None}
    prefill = [workload for workload in loaded.workloads if workload.phase is not Phase.DECODE]
    return [f"{code}: {text}" for code, text in drift_notes(prefill, seen)]


def read_fleet(request: IngestRequest, loaded: LoadedScenario, lake: Lake, now: datetime) -> Reading:
    """All machines that ran at a moment; of a heading alone, that none did."""
    from catalogs.state_feeds import read_fleet_file
    from catalogs.tables import column_names

    read, at = read_fleet_file(request.file, loaded.catalog, *_names(loaded), now)
    held: tuple[Finding, ...] = ()
    observations = [FleetObservation(moment, nodes) for moment, nodes in sorted(at.items())]
    moment = request.as_of
    if read.rows_seen == 0:
        reason = "has no row: it says that nothing runs"
        remedy = "if that is right, ingest it again with --confirm; the last fleet known stays till then"
        if request.is_confirmed:
            # The same heading says it of another moment each time: it is another observation, though not another file.
            moment = request.as_of or now
            _refuse_future("fleet", moment, now)
            observations = [FleetObservation(moment, ())]
        else:
            held = (Finding(request.file.name, 0, "", "", reason, remedy),)
    notes = []
    if observations and not {"template_id", "failed_nodes"} & set(column_names(request.file)):
        notes.append("its columns are those of availability: make sure that it tells what runs, not what can be had")
    if read.rejects and observations:
        notes.append("the fleet may be larger than it looks: rows were set aside")
    return Reading(
        FeedContent(fleet=observations),
        max((o.observed_at for o in observations), default=None),
        read.rows_seen,
        held,
        0,
        read.rejects,
        len(_rows_of(read.rejects)),
        tuple(notes),
        options=(moment.isoformat() if moment else "",),
    )
