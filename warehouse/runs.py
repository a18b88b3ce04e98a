"""The log of allocation runs: the latest run of each scenario, how runs have ended, who has decided; and what plans paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warehouse.catalog_faults import lake_errors
from warehouse.connect import Lake
from warehouse.records import ANSWERED, DECIDED


@dataclass(frozen=True, slots=True)
class LastRun:
    """The latest run of a scenario. ``input_ages_s``: age of each input at the start of the latest run that read them, which
    started at ``inputs_read_at`` (None = no run has). ``decided_at``: start of the latest run that decided, i.e. published or
    proposed a version or found that the current one stays."""

    scenario_id: str
    outcome: str
    started_at: datetime
    note: str
    decided_at: datetime | None
    inputs_read_at: datetime | None
    input_ages_s: dict[str, float]


def last_runs(lake: Lake) -> list[LastRun]:
    """One row per scenario that was ever run, by id."""
    with lake_errors(lake.root):
        rows = lake.connection.execute(
            """
            SELECT scenario_id, arg_max(outcome, started_at), max(started_at), arg_max(note, started_at),
                max(started_at) FILTER (list_contains(?::VARCHAR[], outcome)),
                max(started_at) FILTER (cardinality(input_ages_s) > 0),
                arg_max(input_ages_s, started_at) FILTER (cardinality(input_ages_s) > 0)
            FROM main.allocation_runs GROUP BY scenario_id ORDER BY scenario_id""",
            [list(DECIDED)],
        ).fetchall()
    return [
        LastRun(scenario, outcome, started, note, decided, read, dict(ages or {}))
        for scenario, outcome, started, note, decided, read, ages in rows
    ]


def run_counts(lake: Lake) -> dict[tuple[str, str], int]:
    """Number of runs by (scenario, outcome)."""
    with lake_errors(lake.root):
        rows = lake.connection.execute(
            "SELECT scenario_id, outcome, count(*) FROM main.allocation_runs GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    return {(scenario, outcome): count for scenario, outcome, count in rows}


def _rows(lake: Lake, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with lake_errors(lake.root):
        return lake.connection.execute(sql, list(parameters)).fetchall()


def answered_since(lake: Lake, scenario_id: str, moment: datetime) -> str | None:
    """Id of an allocation run of the scenario that began at ``moment`` or later and answered: it decided, or found that its
    inputs (no older than ``moment``) hold the plan. None where there is none."""
    rows = _rows(
        lake,
        """SELECT run_id FROM main.allocation_runs WHERE scenario_id = ? AND started_at >= ?
        AND list_contains(?::VARCHAR[], outcome) ORDER BY started_at DESC LIMIT 1""",
        [scenario_id, moment, list(ANSWERED)],
    )
    return rows[0][0] if rows else None


def regret_since(lake: Lake, scenario_id: str, since: datetime, now: datetime) -> tuple[float, datetime | None]:
    """(USD that the plan current since ``since`` has cost beyond the best, when the last run began that decided by ``now``).

    Each run that kept the plan found how far it was from the best, ``gap`` of its cost; that held until the next run that
    decided. None: no run has decided since.
    """
    rows = _rows(
        lake,
        """SELECT coalesce(sum(gap * cost_now_usd_per_h * hours) FILTER (outcome = 'unchanged'), 0.0), max(started_at) FROM (
            SELECT gap, cost_now_usd_per_h, outcome, started_at,
                epoch(lead(started_at, 1, $3::TIMESTAMPTZ) OVER (ORDER BY started_at) - started_at) / 3600 AS hours
            FROM main.allocation_runs
            WHERE scenario_id = $1 AND logged_at >= $2 AND started_at <= $3 AND list_contains($4::VARCHAR[], outcome)
        )""",
        [scenario_id, since, now, list(DECIDED)],
    )
    return float(rows[0][0]), rows[0][1]


def version_before(lake: Lake, scenario_id: str, version: int) -> int | None:
    """The newest version below ``version`` that was ever current, or None; a proposal that nobody approved never was."""
    rows = _rows(
        lake,
        """SELECT max(plan_version) FROM main.plan_states
        WHERE scenario_id = ? AND plan_version < ? AND state IN ('published', 'approved', 'applied')""",
        [scenario_id, version],
    )
    return None if rows[0][0] is None else int(rows[0][0])


def has_run(lake: Lake, run_id: str) -> bool:
    """Whether an allocation run of that id is logged."""
    return bool(_rows(lake, "SELECT 1 FROM main.allocation_runs WHERE run_id = ?", [run_id]))


def prices_paid(lake: Lake, scenario_id: str, versions: int) -> list[dict[str, Any]]:
    """What the scenario's last ``versions`` plans pay for one machine, oldest first: rows of ``at`` (ISO time of the plan),
    ``what`` (machine, region, market) and ``price_usd_per_h``."""
    rows = _rows(
        lake,
        """SELECT DISTINCT p.created_at, o.instance_type || ', ' || o.region || CASE o.market WHEN 'on_demand' THEN ''
            ELSE ', ' || o.market END AS what, o.price_usd_per_h
        FROM main.plan_offers o JOIN main.plan_rows p USING (scenario_id, plan_version)
        WHERE scenario_id = ? AND plan_version > (SELECT max(plan_version) FROM main.plan_rows WHERE scenario_id = ?) - ?
        ORDER BY p.created_at, what""",
        [scenario_id, scenario_id, versions],
    )
    return [{"at": at.isoformat(), "what": what, "price_usd_per_h": price} for at, what, price in rows]
