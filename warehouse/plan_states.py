"""The life of plan versions: which one is current, and what moves it on.

A version never changes; its states are events, and the latest one holds. At most one version of a scenario is current (its
state is published, approved, applied or partial); the view ``plans`` says which. All others are proposed or superseded:

- published: current since it was made. proposed: waits, since a guard rail asks a person;
- proposed -> approved (``approve``): current. superseded -> published (``rollback``): current again;
- current -> applied or partial: all or part of it runs, as the fleet or whoever starts machines says;
- whatever becomes current supersedes the version before and every proposal: those were decided against another one;
- a version that a person let wait until another took its place never was current: it runs nowhere and is rolled back to never.
"""

from __future__ import annotations

from datetime import datetime

import duckdb

from catalogs.errors import CoralError, UnknownNameError
from tasks.allocation.plan import PlanState
from warehouse.connect import Lake
from warehouse.plan_tables import CURRENT_STATES
from warehouse.records import utc_now
from warehouse.rows import insert


def current_decision(connection: duckdb.DuckDBPyConnection, scenario_id: str) -> tuple[int, str] | None:
    """Version and decision hash of the current plan; None before the first."""
    row = connection.execute(
        "SELECT plan_version, decision_hash FROM main.plans WHERE scenario_id = ? AND is_current", [scenario_id]
    ).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def open_proposals(connection: duckdb.DuckDBPyConnection, scenario_id: str) -> dict[str, int]:
    """Versions that wait for approval, by decision hash."""
    rows = connection.execute(
        "SELECT decision_hash, plan_version FROM main.plans WHERE scenario_id = ? AND state = 'proposed' ORDER BY 2",
        [scenario_id],
    ).fetchall()
    return dict(rows)


def add_state(
    connection: duckdb.DuckDBPyConnection,
    scenario_id: str,
    plan_version: int,
    state: PlanState,
    by: str,
    note: str = "",
) -> None:
    """Append an event to a version's life."""
    row = connection.execute(
        "SELECT coalesce(max(sequence), 0) FROM main.plan_states WHERE scenario_id = ? AND plan_version = ?",
        [scenario_id, plan_version],
    ).fetchone()
    assert row is not None  # an aggregate always has a row
    event = {"scenario_id": scenario_id, "plan_version": plan_version, "sequence": row[0] + 1}
    insert(connection, "plan_states", [event | {"state": state, "since": utc_now(), "by": by, "note": note}])


def drop_proposals(connection: duckdb.DuckDBPyConnection, scenario_id: str, by: str, note: str, but: int = 0) -> None:
    """Supersede every open proposal except version ``but``."""
    for version in open_proposals(connection, scenario_id).values():
        if version != but:
            add_state(connection, scenario_id, version, PlanState.SUPERSEDED, by, note)


def make_current(
    connection: duckdb.DuckDBPyConnection,
    scenario_id: str,
    plan_version: int,
    state: PlanState,
    by: str,
    note: str = "",
) -> None:
    """``plan_version`` becomes current in ``state``; the version before and all proposals are superseded."""
    before = current_decision(connection, scenario_id)
    instead = f"version {plan_version} is current"
    drop_proposals(connection, scenario_id, by, instead, but=plan_version)
    if before is not None and before[0] != plan_version:
        add_state(connection, scenario_id, before[0], PlanState.SUPERSEDED, by, instead)
    add_state(connection, scenario_id, plan_version, state, by, note)


def approve_plan(
    lake: Lake, scenario_id: str, plan_version: int, *, by: str, lock_timeout_s: float | None = None
) -> None:
    """Make a proposed version current. Raises UnknownNameError for a version there is not, CoralError for one that waits for
    no approval; under the write lock, so of two approvals at once one is refused."""
    with lake.write(f"{scenario_id}: approve version {plan_version}", lock_timeout_s=lock_timeout_s) as connection:
        state = _state(connection, scenario_id, plan_version)
        if state is not PlanState.PROPOSED:
            raise _not_proposed(connection, scenario_id, plan_version, state)
        make_current(connection, scenario_id, plan_version, PlanState.APPROVED, by)


def roll_back_plan(
    lake: Lake, scenario_id: str, plan_version: int, *, by: str, lock_timeout_s: float | None = None
) -> int:
    """Make a version that was current before current again; returns the version it replaces.

    Raises UnknownNameError for a version there is not, CoralError for the current one and for one that never was current.
    """
    with lake.write(f"{scenario_id}: roll back to version {plan_version}", lock_timeout_s=lock_timeout_s) as connection:
        state = _state(connection, scenario_id, plan_version)
        if state is PlanState.PROPOSED:
            raise CoralError(
                f"version {plan_version} of {scenario_id} was never current: it waits for approval",
                remedy=f"run `coral plans approve {plan_version} --scenario {scenario_id}`",
            )
        if state is not PlanState.SUPERSEDED:
            raise CoralError(
                f"version {plan_version} of {scenario_id} is current already ({state.value})",
                remedy="name an earlier one: `coral plans list` has them",
            )
        held = _once_current(connection, scenario_id)
        if plan_version not in held:
            earlier = ", ".join(str(version) for version in held)
            raise CoralError(
                f"version {plan_version} of {scenario_id} was proposed and never approved: a rollback goes to a version "
                "that was current",
                remedy=f"use one of: {earlier}",
            )
        current = current_decision(connection, scenario_id)
        before = current[0] if current else 0
        note = f"{ROLLED_BACK} {before}"
        make_current(connection, scenario_id, plan_version, PlanState.PUBLISHED, by, note)
        return before


ROLLED_BACK = "rolled back from version"


def mark_running(
    lake: Lake,
    scenario_id: str,
    plan_version: int,
    *,
    is_whole: bool,
    by: str,
    note: str = "",
    lock_timeout_s: float | None = None,
) -> bool:
    """Record that all (``is_whole``) or part of a version runs; whether that is news.

    A version that has been superseded meanwhile stays so: its applied event counts as the last thing applied. Raises
    UnknownNameError for a version there is not, CoralError for one that waits for approval or never got it.
    """
    state = PlanState.APPLIED if is_whole else PlanState.PARTIAL
    with lake.write(
        f"{scenario_id} version {plan_version}: {state.value}", lock_timeout_s=lock_timeout_s
    ) as connection:
        before = _state(connection, scenario_id, plan_version)
        if before is PlanState.PROPOSED:
            raise CoralError(
                f"version {plan_version} of {scenario_id} waits for approval: nothing of it should run",
                remedy=f"run `coral plans approve {plan_version} --scenario {scenario_id}` first",
            )
        if before is PlanState.SUPERSEDED and plan_version not in _once_current(connection, scenario_id):
            raise CoralError(
                f"version {plan_version} of {scenario_id} was proposed and never approved: nothing of it should run",
                remedy="if something does, take in what runs with `coral ingest fleet`: `coral drift` then lists it",
            )
        if before is state or (
            before is PlanState.SUPERSEDED and _last_running(connection, scenario_id) == (plan_version, state)
        ):
            return False
        add_state(connection, scenario_id, plan_version, state, by, note)
        if before is PlanState.SUPERSEDED:
            add_state(
                connection, scenario_id, plan_version, PlanState.SUPERSEDED, by, "applied after it was superseded"
            )
    return True


def last_applied(lake: Lake, scenario_id: str) -> int | None:
    """The version that was last said to run as a whole, current or not; None where none was."""
    row = lake.connection.execute(
        """SELECT plan_version FROM main.plan_states WHERE scenario_id = ? AND state = 'applied'
        ORDER BY since DESC, plan_version DESC LIMIT 1""",
        [scenario_id],
    ).fetchone()
    return None if row is None else int(row[0])


def current_since(lake: Lake, scenario_id: str, plan_version: int) -> datetime:
    """When a version that is or was current last became so."""
    row = lake.connection.execute(
        """SELECT max(since) FROM main.plan_states
        WHERE scenario_id = ? AND plan_version = ? AND state IN ('published', 'approved')""",
        [scenario_id, plan_version],
    ).fetchone()
    if row is None or row[0] is None:
        raise ValueError(f"version {plan_version} of {scenario_id} never was current")
    since: datetime = row[0]
    return since


def is_rolled_back(lake: Lake, scenario_id: str) -> bool:
    """Whether the current version is current by a rollback: a person overruled the planner."""
    row = lake.connection.execute(
        f"""SELECT note FROM main.plan_states JOIN main.plans p USING (scenario_id, plan_version)
        WHERE scenario_id = ? AND p.is_current AND plan_states.state IN ({CURRENT_STATES})
            AND plan_states.state NOT IN ('applied', 'partial')
        ORDER BY sequence DESC LIMIT 1""",  # noqa: S608 - a constant
        [scenario_id],
    ).fetchone()
    return row is not None and str(row[0]).startswith(ROLLED_BACK)


def _state(connection: duckdb.DuckDBPyConnection, scenario_id: str, plan_version: int) -> PlanState:
    known = dict(
        connection.execute(
            "SELECT plan_version, state FROM main.plans WHERE scenario_id = ? ORDER BY plan_version", [scenario_id]
        ).fetchall()
    )
    if plan_version not in known:
        raise UnknownNameError("plan version", str(plan_version), map(str, known), where=f"scenario {scenario_id}")
    return PlanState(known[plan_version])


def _once_current(connection: duckdb.DuckDBPyConnection, scenario_id: str) -> list[int]:
    """Versions that are or were current: published or approved, whatever has run of them."""
    rows = connection.execute(
        """SELECT DISTINCT plan_version FROM main.plan_states
        WHERE scenario_id = ? AND state IN ('published', 'approved') ORDER BY 1""",
        [scenario_id],
    ).fetchall()
    return [version for (version,) in rows]


def _last_running(connection: duckdb.DuckDBPyConnection, scenario_id: str) -> tuple[int, str] | None:
    row = connection.execute(
        """SELECT plan_version, state FROM main.plan_states
        WHERE scenario_id = ? AND state IN ('applied', 'partial') ORDER BY since DESC, plan_version DESC LIMIT 1""",
        [scenario_id],
    ).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def _not_proposed(
    connection: duckdb.DuckDBPyConnection, scenario_id: str, plan_version: int, state: PlanState
) -> CoralError:
    what = f"version {plan_version} of {scenario_id}"
    if state is not PlanState.SUPERSEDED:
        return CoralError(
            f"{what} is current already ({state.value})",
            remedy="there is nothing to approve; `coral plans list` shows all",
        )
    waiting = list(open_proposals(connection, scenario_id).values())
    if waiting:
        remedy = f"version {waiting[-1]} waits for approval now"
    elif plan_version in _once_current(connection, scenario_id):
        remedy = f"`coral plans rollback {plan_version} --scenario {scenario_id}` makes it current again"
    else:
        remedy = f"run `coral plan --scenario {scenario_id}`: it proposes what holds today"
    return CoralError(f"{what} is superseded and waits for no approval", remedy=remedy)
