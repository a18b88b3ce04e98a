"""`coral doctor`: is what Coral rests on in order? Looks, changes nothing, and says what to do about what is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.errors import CoralError, LakeError
from catalogs.wording import counted

if TYPE_CHECKING:
    from catalogs.scenario_schema import Scenario
    from warehouse.connect import Lake

LITTLE_ROOM_BYTES = 2 << 30
NO_ROOM_BYTES = 200 << 20
_MOST_NAMED = 5
# How far the clock of who hands in a feed may be ahead of ours.
_CLOCKS = timedelta(minutes=5)


class Status(StrEnum):
    """``ok`` and ``note`` need nothing; ``warning`` should be seen to; ``stale``: plans rest on old input; ``failed``: it
    does not work as it is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    STALE = "stale"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: its ``area`` and ``name``, its status, what was found, and what to do."""

    area: str
    name: str
    status: Status
    found: str
    remedy: str = ""


def examine(lake_root: Path, scenarios: Sequence[str] = (), now: datetime | None = None) -> list[Check]:
    """All checks, in the order of what rests on what. ``scenarios`` (names or paths) say how old their feeds may be.

    Raises the catalogs' errors for a scenario that cannot be read.
    """
    from flows.doctor_installation import installation_checks
    from flows.doctor_processes import process_checks, server_checks

    now, known = now or datetime.now(UTC), _known(scenarios)
    return [
        *installation_checks(),
        _room(lake_root),
        *lake_checks(lake_root, now, known),
        *server_checks(lake_root),
        *process_checks(),
    ]


def exit_code(checks: Sequence[Check]) -> int:
    """Of CONTRACTS: 6 for the lake, 2 for anything else that does not work, 5 for stale input, else 0."""
    failed = {check.area for check in checks if check.status is Status.FAILED}
    if "lake" in failed:
        return LakeError.exit_code
    if failed:
        return CoralError.exit_code
    return 5 if any(check.status is Status.STALE for check in checks) else 0


def _room(lake_root: Path) -> Check:
    """Free space where the lake is, or will be."""
    folder = lake_root.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:,.1f} GiB free in {folder}"
    if free >= LITTLE_ROOM_BYTES:
        return Check("disk", "room", Status.OK, found)
    status = Status.FAILED if free < NO_ROOM_BYTES else Status.WARNING
    return Check("disk", "room", status, found, "free some; `coral gc --dry-run` shows what the lake no longer needs")


def lake_checks(lake_root: Path, now: datetime, scenarios: Mapping[str, Scenario]) -> Iterator[Check]:
    """The lake itself, what was left in it, its feeds and its runs."""
    from warehouse.connect import Lake
    from warehouse.land import leftover_temporaries

    try:
        if not Lake.exists(lake_root):
            yield Check(
                "lake", "lake", Status.NOTE, f"there is none in {lake_root.resolve()}", "`coral plan` makes one"
            )
            return
        with Lake.open(lake_root, read_only=True) as lake:
            yield Check("lake", "lake", Status.OK, f"{lake.root} is readable, of the schema of this coral")
            yield _files(lake)
            yield from _feeds(lake, now, scenarios)
            yield from _runs(lake, now)
    except CoralError as error:
        yield Check("lake", "lake", Status.FAILED, error.message, error.remedy)
    left = leftover_temporaries(lake_root)
    if left:
        found = f"{len(left)} temporary files of writers that have ended: {_some(left)}"
        yield Check("lake", "leftovers", Status.WARNING, found, "the next `coral build` or `coral gc` removes them")
    else:
        yield Check("lake", "leftovers", Status.OK, "no temporary files are left over")


def _files(lake: Lake) -> Check:
    from warehouse.catalog_faults import OWN_FILE_REMEDY
    from warehouse.health import broken_own_files, damaged_files_set_aside, missing_files

    broken, missing, damaged = broken_own_files(lake), missing_files(lake), damaged_files_set_aside(lake.root)
    if broken:
        found = f"{counted(len(broken), 'file')} of the lake's own tables missing or damaged: {_some(broken)}"
        return Check("lake", "files", Status.FAILED, found, OWN_FILE_REMEDY)
    if missing:
        found = f"{counted(len(missing), 'file')} of current libraries missing: {_some(missing)}"
        return Check("lake", "files", Status.FAILED, found, "run `coral build` again: it makes the same files anew")
    if damaged:
        found = f"all there; {counted(len(damaged), 'damaged one')} set aside: {_some(damaged)}"
        return Check("lake", "files", Status.WARNING, found, "check the disk; `coral gc` deletes them in time")
    return Check("lake", "files", Status.OK, "all files of current libraries and of the lake's own tables are there")


def _feeds(lake: Lake, now: datetime, scenarios: Mapping[str, Scenario]) -> Iterator[Check]:
    from warehouse.health import feed_ages

    for feed in feed_ages(lake):
        age = now - feed.observed_at
        name = f"{feed.kind} of {feed.scenario_id}"
        limit = allowed_age(scenarios.get(feed.scenario_id), feed.kind)
        is_ahead = age < timedelta()
        found = f"tells of {span(-age)} from now" if is_ahead else f"tells of {span(age)} ago"
        if is_ahead and -age > _CLOCKS and feed.kind != "demand":  # demand may be told of what is to come
            remedy = "check this machine's clock: what was seen cannot be still to come, and does not count till then"
            yield Check("feeds", name, Status.WARNING, found, remedy)
        elif age > limit:
            remedy = f"take in a newer file: `coral ingest {feed.kind} FILE`; at most {span(limit)} are allowed"
            yield Check("feeds", name, Status.STALE, found, remedy)
        else:
            yield Check("feeds", name, Status.OK, found)


def _runs(lake: Lake, now: datetime) -> Iterator[Check]:
    from warehouse.plan_states import open_proposals
    from warehouse.runs import last_runs

    for run in last_runs(lake):
        name = f"allocation of {run.scenario_id}"
        found = f"last run {run.outcome} {span(now - run.started_at)} ago" + (f": {run.note}" if run.note else "")
        if run.outcome == "failed":
            yield Check("runs", name, Status.WARNING, found, "the last plan stays current; mend what it names")
        elif run.outcome == "held_for_approval":
            waiting = list(open_proposals(lake.connection, run.scenario_id).values())
            which = f"{waiting[-1]} --scenario {run.scenario_id}" if waiting else ""
            remedy = (
                f"the last plan stays current; to take the new one: `coral plans approve {which}`" if waiting else ""
            )
            status, news = (Status.STALE, "") if waiting else (Status.OK, "; nothing waits any more")
            yield Check("runs", name, status, found + news, remedy)
        elif run.outcome.startswith("held"):
            yield Check(
                "runs", name, Status.STALE, found, "the last plan stays current; take in what is missing or old"
            )
        else:
            yield Check("runs", name, Status.OK, found)


def allowed_age(scenario: Scenario | None, kind: str) -> timedelta:
    """How old what a feed of ``kind`` tells may be: as the scenario says, else (None) as scenarios do that say nothing."""
    from catalogs.scenario_schema import FeedsSection, PolicySection

    feeds = FeedsSection() if scenario is None else scenario.feeds
    policy = PolicySection() if scenario is None else scenario.policy
    return {
        "prices": timedelta(hours=feeds.prices_hours),
        "availability": timedelta(minutes=feeds.availability_minutes),
        "demand": timedelta(minutes=feeds.demand_minutes),
        "fleet": timedelta(minutes=policy.fleet_max_age_minutes),
    }[kind]


def _known(scenarios: Sequence[str]) -> dict[str, Scenario]:
    """The scenarios at hand, by id: those given, and whatever ships. Raises the catalogs' errors for a given one."""
    from catalogs.scenario import load_scenario
    from catalogs.scenario_files import shipped_scenarios

    loaded = [load_scenario(name).scenario for name in (*shipped_scenarios(), *scenarios)]
    return {scenario.id: scenario for scenario in loaded}


def span(length: timedelta) -> str:
    """A length of time for a person."""
    seconds = length.total_seconds()
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
