"""The log of allocation runs, as a monitor reads it: the latest run of each scenario, and how runs have ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from warehouse.catalog_faults import lake_errors
from warehouse.connect import Lake


@dataclass(frozen=True, slots=True)
class LastRun:
    """The latest run of a scenario. ``input_ages_s``: age of each input at the start of the latest run that read them, which
    started at ``inputs_read_at`` (None = no run has). ``decided_at``: start of the latest run that decided, i.e. published a
    version or found that the current one stays."""

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
                max(started_at) FILTER (outcome IN ('published', 'unchanged')),
                max(started_at) FILTER (cardinality(input_ages_s) > 0),
                arg_max(input_ages_s, started_at) FILTER (cardinality(input_ages_s) > 0)
            FROM main.allocation_runs GROUP BY scenario_id ORDER BY scenario_id"""
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
