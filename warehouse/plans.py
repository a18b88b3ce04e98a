"""Publishing plans: immutable versions, states as events, and a log of every run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb

from tasks.allocation.plan import Plan, PlanState, decision_hash
from warehouse.connect import Lake
from warehouse.lock import StillHeld
from warehouse.plan_states import add_state, current_decision, drop_proposals, make_current, open_proposals
from warehouse.read import plan_from_row
from warehouse.records import AllocationRun, PublishResult, ReferenceInputs, Reject, RunLog, RunOutcome, utc_now
from warehouse.reference import record_reference
from warehouse.rows import insert
from warehouse.tables import TABLES


def publish_plan(
    lake: Lake,
    plan: Plan,
    run: AllocationRun,
    reference: ReferenceInputs | None = None,
    *,
    guards: Sequence[str] = (),
    by: str = "coral",
    still_held: StillHeld | None = None,
    lock_timeout_s: float | None = None,
) -> PublishResult:
    """Publish ``plan`` as the scenario's next version, unless its decision is the current version's; log the run.

    The version and the state in ``plan`` are ignored: the version is assigned under the write lock, the state becomes
    published, and the version before becomes superseded, all in one transaction. With ``guards``, the reasons a person must
    hear first, it becomes a proposal instead, and the current version stays; a proposal of the same decision that is open
    already is not made again. Nothing is published, and the run is logged as superseded, when ``run.base_plan_version`` is
    no longer the current version and that one decides otherwise. Raises LakeError (locked, disk full, or ``still_held``
    finds that the run has lost its turn); nothing is published then.
    """
    if run.scenario_id != plan.scenario_id:
        raise ValueError(f"run of scenario {run.scenario_id} with a plan of {plan.scenario_id}")
    with lake.write(f"publish a plan of {plan.scenario_id}", lock_timeout_s=lock_timeout_s) as connection:
        current = current_decision(connection, plan.scenario_id)
        version, holding = (0, "") if current is None else current
        waiting = open_proposals(connection, plan.scenario_id)
        decision = decision_hash(plan)
        shown = version
        if decision == holding:  # also where another run has just published the very same
            outcome = RunOutcome.UNCHANGED
            drop_proposals(connection, plan.scenario_id, by, f"version {version} is the best choice again")
        elif run.base_plan_version is not None and run.base_plan_version != version:
            outcome = RunOutcome.SUPERSEDED
        elif guards and decision in waiting:
            outcome, shown = RunOutcome.HELD_FOR_APPROVAL, waiting[decision]
        else:
            outcome = RunOutcome.HELD_FOR_APPROVAL if guards else RunOutcome.PUBLISHED
            shown = _insert_version(connection, plan, decision, guards, by)
            version = version if guards else shown
            if reference is not None:
                record_reference(connection, reference, scenario_id=plan.scenario_id, plan_version=shown)
        log = RunLog(outcome, version or None, plan.cost_usd_per_h, plan.lower_bound_usd_per_h, plan.gap)
        _insert_run(connection, run, log)
        stays = _load(connection, plan.scenario_id, shown)
        if still_held is not None:
            still_held()
    return PublishResult(shown, outcome, stays)


def log_run(lake: Lake, run: AllocationRun, log: RunLog, *, lock_timeout_s: float | None = None) -> None:
    """Log a run that publishes nothing: held, or failed."""
    with lake.write(f"log run {run.run_id}", lock_timeout_s=lock_timeout_s) as connection:
        _insert_run(connection, run, log)


def log_rejects(lake: Lake, ingest_id: str, rejects: Sequence[Reject], *, lock_timeout_s: float | None = None) -> int:
    """Record input rows that were set aside; once per ``ingest_id``. Returns how many were written."""
    with lake.write(f"log rejects of {ingest_id}", lock_timeout_s=lock_timeout_s) as connection:
        if connection.execute("SELECT 1 FROM main.rejects WHERE ingest_id = ?", [ingest_id]).fetchone():
            return 0
        at = utc_now()
        rows = [{f: getattr(r, f) for f in r.__dataclass_fields__} for r in rejects]
        return insert(connection, "rejects", [{"ingest_id": ingest_id, "logged_at": at, **row} for row in rows])


def _load(connection: duckdb.DuckDBPyConnection, scenario_id: str, version: int) -> Plan | None:
    row = connection.execute(
        """
        SELECT d.document, p.state FROM main.plan_documents d JOIN main.plans p USING (scenario_id, plan_version)
        WHERE d.scenario_id = ? AND d.plan_version = ?""",
        [scenario_id, version],
    ).fetchone()
    return None if row is None else plan_from_row(*row)


def _insert_version(
    connection: duckdb.DuckDBPyConnection, plan: Plan, decision: str, guards: Sequence[str], by: str
) -> int:
    """The plan as the scenario's next version: proposed where there are ``guards``, else published and current."""
    row = connection.execute(
        "SELECT coalesce(max(plan_version), 0) FROM main.plan_rows WHERE scenario_id = ?", [plan.scenario_id]
    ).fetchone()
    assert row is not None  # an aggregate always has a row
    version = int(row[0]) + 1
    state = PlanState.PROPOSED if guards else PlanState.PUBLISHED
    _insert_plan(connection, plan.model_copy(update={"plan_version": version, "state": state}), decision)
    if guards:
        drop_proposals(connection, plan.scenario_id, by, f"version {version} is proposed instead")
        add_state(connection, plan.scenario_id, version, state, by, "; ".join(guards))
    else:
        make_current(connection, plan.scenario_id, version, state, by)
    return version


def _insert_plan(connection: duckdb.DuckDBPyConnection, plan: Plan, decision: str) -> None:
    key = {"scenario_id": plan.scenario_id, "plan_version": plan.plan_version}
    insert(
        connection,
        "plan_rows",
        [
            {
                **key,
                "library_id": plan.inputs.library_id,
                "inputs_hash": plan.inputs.hash,
                "decision_hash": decision,
                "status": plan.status,
                "cost_usd_per_h": plan.cost_usd_per_h,
                "init_usd": plan.init_usd,
                "lower_bound_usd_per_h": plan.lower_bound_usd_per_h,
                "gap": plan.gap,
                "theta": plan.theta,
                "solve_s": plan.solve_s,
                "price_as_of": plan.inputs.price_as_of,
                "created_at": _timestamp(plan.created_at),
                "reason": plan.reason,
                "egress_usd_per_h": plan.egress_usd_per_h,
            }
        ],
    )
    insert(connection, "plan_documents", [{**key, "document": plan.model_dump_json(by_alias=True)}])
    for table, items in (
        ("plan_instances", plan.instances),
        ("plan_offers", plan.offers),
        ("plan_kv_transfers", plan.kv_transfers),
        ("plan_shortfalls", plan.shortfalls),
    ):
        insert(connection, table, [{**key, **_columns(table, item)} for item in items])


def _columns(table: str, item: Any) -> dict[str, Any]:
    """The attributes of a plan's part that its table has as columns."""
    return {
        c.name: getattr(item, c.name) for c in TABLES[table].columns if c.name not in {"scenario_id", "plan_version"}
    }


def _insert_run(connection: duckdb.DuckDBPyConnection, run: AllocationRun, log: RunLog) -> None:
    row = {name: getattr(log, name) for name in log.__dataclass_fields__}
    row |= {"run_id": run.run_id, "scenario_id": run.scenario_id, "inputs_hash": run.inputs_hash, "note": run.note}
    row |= {"input_ages_s": dict(run.input_ages_s), "started_at": run.started_at, "logged_at": utc_now()}
    insert(connection, "allocation_runs", [row])


def _timestamp(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError(f"plan's created_at {text!r} has no time zone")
    return value
