"""What the API answers from: one open lake that request threads share, read-only, and opened anew after a fault."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from catalogs.errors import LakeError, UnknownNameError
from tasks.allocation.plan import Plan
from warehouse import read
from warehouse.connect import Lake
from warehouse.records import PlanSummary
from warehouse.runs import LastRun, last_runs, run_counts

T = TypeVar("T")


class PlanReader:
    """Reads plans from the lake in ``root``. Each call sees what was committed before it; a writer is never waited for.

    Opening takes half a second, asking milliseconds: so the lake stays open, and one thread at a time asks it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = Lock()
        self._lake: Lake | None = None

    def ask(self, question: Callable[[Lake], T]) -> T:
        """The answer of ``question``. Raises what it raises, LakeError where the lake cannot be read; the next call then
        opens it anew."""
        with self._lock:
            if self._lake is None:
                self._lake = Lake.open(self.root, read_only=True)
            try:
                return question(self._lake)
            except LakeError:
                self._close()
                raise

    def close(self) -> None:
        """Close the lake; the next call opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._lake is not None:
            self._lake.close()
            self._lake = None

    # ---- plans ---------------------------------------------------------------------------------------------------

    def scenarios(self) -> dict[str, list[PlanSummary]]:
        """Plan versions by scenario, newest first."""
        found: dict[str, list[PlanSummary]] = {}
        for summary in self.ask(read.list_plans):
            found.setdefault(summary.scenario_id, []).append(summary)
        return found

    def plans(self, scenario_id: str) -> list[PlanSummary]:
        """Plan versions of a scenario, newest first. Raises UnknownNameError."""
        known = self.scenarios()
        if scenario_id not in known:
            raise UnknownNameError("scenario", scenario_id, known)
        return known[scenario_id]

    def plan(self, scenario_id: str, version: int | None = None) -> Plan:
        """A plan version, the current one for None. Raises UnknownNameError for a scenario or version that is not there."""
        self.plans(scenario_id)
        if version is not None:
            return self.ask(lambda lake: read.plan_version(lake, scenario_id, version))
        plan = self.ask(lambda lake: read.current_plan(lake, scenario_id))
        assert plan is not None  # of plans there are, one is current
        return plan

    # ---- monitoring ----------------------------------------------------------------------------------------------

    def runs(self) -> tuple[dict[str, LastRun], dict[tuple[str, str], int]]:
        """(latest run by scenario, runs by scenario and outcome)."""
        return self.ask(lambda lake: ({run.scenario_id: run for run in last_runs(lake)}, run_counts(lake)))

    def health(self, now: datetime, max_age_s: float | None) -> dict[str, Any]:
        """Ages of every scenario's plan and of what it was made from; ``status`` ok, or stale where no run has decided within
        ``max_age_s``. Ages of inputs grow from the run that read them last."""
        runs, _ = self.runs()
        scenarios = []
        for scenario_id, summaries in self.scenarios().items():
            current = next(summary for summary in summaries if summary.is_current)
            run = runs.get(scenario_id)
            decided_s = None if run is None or run.decided_at is None else age_s(run.decided_at, now)
            is_stale = max_age_s is not None and (decided_s is None or decided_s > max_age_s)
            scenarios.append(
                {
                    "scenario_id": scenario_id,
                    "status": "stale" if is_stale else "ok",
                    "plan_version": current.plan_version,
                    "state": current.state,
                    "plan_age_s": age_s(current.created_at, now),
                    "decided_age_s": decided_s,
                    "proposed_versions": [s.plan_version for s in summaries if s.state == "proposed"],
                    "last_run": None
                    if run is None
                    else {"outcome": run.outcome, "age_s": age_s(run.started_at, now), "note": run.note},
                    "input_age_s": {} if run is None else input_ages_s(run, now),
                }
            )
        is_any_stale = any(row["status"] == "stale" for row in scenarios)
        return {"status": "stale" if is_any_stale else "ok", "max_age_s": max_age_s, "scenarios": scenarios}


def age_s(moment: datetime, now: datetime) -> float:
    """Seconds from ``moment`` to ``now``."""
    return round((now - moment.astimezone(UTC)).total_seconds(), 3)


def input_ages_s(run: LastRun, now: datetime) -> dict[str, float]:
    """Age of each input now: its age when a run read it last, and the time since."""
    since = 0.0 if run.inputs_read_at is None else age_s(run.inputs_read_at, now)
    return {name: round(age + since, 3) for name, age in sorted(run.input_ages_s.items())}
