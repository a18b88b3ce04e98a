"""Takes a file of prices, availability, demand or fleet state into the lake: `coral ingest`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, Finding, InputError
from catalogs.ids import short_hash
from catalogs.lake_feeds import FeedKind
from catalogs.scenario import LoadedScenario, load_scenario
from flows.drift import note_what_runs
from flows.feed_events import feed_changed
from flows.feeds import load_with_feeds

if TYPE_CHECKING:
    from warehouse.connect import Lake
    from warehouse.ingest import FeedContent
    from warehouse.records import IngestRecord, Reject


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """A file to take in for a scenario. ``provider``: whose SkyPilot catalog it is; ``as_of``: the moment a file without
    dates tells of (default: when it was written); ``is_confirmed``: implausible prices and an empty fleet are right;
    ``model``, ``start``: whose trace it is and when it began; ``window_minutes``: length of a demand window (default: the
    scenario's)."""

    kind: FeedKind
    file: Path
    scenario: str | Path
    lake_root: Path
    provider: str | None = None
    as_of: datetime | None = None
    is_confirmed: bool = False
    model: str | None = None
    start: datetime | None = None
    window_minutes: int | None = None


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What became of a file: as logged, with the findings of rows held and set aside, and notes for a person.
    ``unit``: what was counted, one of it."""

    record: IngestRecord
    held: tuple[Finding, ...]
    rejects: tuple[Finding, ...]
    notes: tuple[str, ...]
    unit: str = "row"


@dataclass(frozen=True)
class Reading:
    """A file as read by one of :mod:`flows.ingest_kinds`, before it is written."""

    content: FeedContent
    observed_at: datetime | None
    n_rows: int
    held: tuple[Finding, ...] = ()
    n_held: int = 0
    rejects: tuple[Finding, ...] = ()
    n_rejected: int = 0
    notes: tuple[str, ...] = ()
    unit: str = "row"
    options: tuple[str, ...] = ()


def ingest(request: IngestRequest, now: datetime | None = None) -> IngestResult:
    """Read the file, take in its sound rows in one transaction, log the others; the same file again changes nothing.

    Raises InputError where the file as a whole cannot be used (logged, nothing else changes), CoralError where an option is
    missing, LakeError.
    """
    from warehouse.connect import Lake

    now = now or datetime.now(UTC)
    loaded = _load(request, now)
    digest = _digest(request.file)
    try:
        with Lake.open(request.lake_root) as lake:
            read = _reader(request.kind)(request, loaded, lake, now)
            result = _record(lake, request, loaded, read, digest, now)
            state = note_what_runs(lake, loaded.scenario.id) if request.kind is FeedKind.FLEET else None
    except InputError as error:
        _log_refused(request, loaded, digest, error, now)
        raise
    if state is not None:
        result = replace(result, notes=(*result.notes, f"the current plan is {state}"))
    if result.record.n_changed and (told := feed_changed(request.lake_root, result.record)):
        return replace(result, notes=(*result.notes, told))
    return result


def _load(request: IngestRequest, now: datetime) -> LoadedScenario:
    """The scenario with its feeds, or as it is before the first prices of a region were taken in."""
    try:
        return load_with_feeds(request.scenario, request.lake_root, now)
    except InputError:
        return load_scenario(request.scenario, now)


def _reader(kind: FeedKind) -> Callable[[IngestRequest, LoadedScenario, Lake, datetime], Reading]:
    from flows import ingest_kinds

    return {
        FeedKind.PRICES: ingest_kinds.read_prices,
        FeedKind.AVAILABILITY: ingest_kinds.read_availability,
        FeedKind.DEMAND: ingest_kinds.read_demand,
        FeedKind.FLEET: ingest_kinds.read_fleet,
    }[kind]


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CoralError(f"{path} cannot be read: {why}", remedy="check the path") from None


def _record(
    lake: Lake, request: IngestRequest, loaded: LoadedScenario, read: Reading, digest: str, now: datetime
) -> IngestResult:
    from warehouse.ingest import record_ingest

    record = _log_line(
        request,
        loaded,
        digest,
        options=read.options,
        observed_at=read.observed_at,
        n_rows=read.n_rows,
        n_accepted=read.n_rows - read.n_held - read.n_rejected,
        n_held=read.n_held,
        n_rejected=read.n_rejected,
        note="; ".join(read.notes),
    )
    logged = record_ingest(lake, record, read.content, _rejects((*read.held, *read.rejects)), at=now)
    return IngestResult(logged, read.held, read.rejects, read.notes, read.unit)


def _log_line(
    request: IngestRequest, loaded: LoadedScenario, digest: str, *, options: tuple[str, ...] = (), **columns: Any
) -> IngestRecord:
    from warehouse.records import IngestRecord

    scenario_id = loaded.scenario.id
    content_id = short_hash([request.kind.value, scenario_id, digest, request.is_confirmed, *options])
    name = request.file.name
    return IngestRecord("", content_id, request.kind, scenario_id, name, **columns)


def _rejects(findings: tuple[Finding, ...]) -> list[Reject]:
    from warehouse.records import Reject

    return [Reject(f.file, f.row, f.column, f.value, f.reason, f.remedy) for f in findings]


def _log_refused(request: IngestRequest, loaded: LoadedScenario, digest: str, error: InputError, now: datetime) -> None:
    """Log a file that could not be used as a whole: what was there before stays."""
    from warehouse.connect import Lake
    from warehouse.ingest import FeedContent, record_ingest

    record = _log_line(
        request,
        loaded,
        digest,
        observed_at=None,
        n_rows=0,
        n_accepted=0,
        n_held=0,
        n_rejected=0,
        note="refused as a whole",
    )
    with Lake.open(request.lake_root) as lake:
        record_ingest(lake, record, FeedContent(), _rejects(error.findings), at=now)
