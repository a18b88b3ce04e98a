"""``coral drift``: the observed fleet against the current plan; and what it says of the plan's state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from catalogs.errors import CoralError, HeldError
from flows.running import with_plan_ids
from tasks.allocation.drift import Drift, find_drift

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan
    from warehouse.connect import Lake


@dataclass(frozen=True, slots=True)
class DriftReport:
    """``plan`` is the current one, and has been since ``plan_since``; the fleet was seen at ``observed_at``, and
    ``rows_set_aside`` rows of it could not be read: where there are any, it may be larger than it looks."""

    plan: Plan
    plan_since: datetime
    observed_at: datetime
    rows_set_aside: int
    drift: Drift

    @property
    def is_after_plan(self) -> bool:
        """Whether the fleet was seen after the plan became current; before, a difference says nothing of it."""
        return self.observed_at >= self.plan_since

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "scenario_id": self.plan.scenario_id,
            "plan_version": self.plan.plan_version,
            "plan_state": self.plan.state.value,
            "plan_since": self.plan_since.isoformat(),
            "observed_at": self.observed_at.isoformat(),
            "rows_set_aside": self.rows_set_aside,
            "is_labelled": self.drift.is_labelled,
            "is_empty": self.drift.is_empty,
            "planned_nodes": self.drift.planned_nodes,
            "matched_nodes": self.drift.matched_nodes,
            "rows": [{**asdict(row), "difference_nodes": row.difference_nodes} for row in self.drift.rows],
        }


def drift_report(lake: Lake, scenario_id: str) -> DriftReport:
    """The latest observed fleet against the current plan. Raises CoralError where no plan is published, HeldError where no
    fleet was ever observed: that nothing is known is not that nothing runs."""
    report = find_report(lake, scenario_id)
    if isinstance(report, DriftReport):
        return report
    if report == "plan":
        raise CoralError(f"no plan of {scenario_id} is published", remedy=f"run `coral plan --scenario {scenario_id}`")
    raise HeldError(
        f"no fleet of {scenario_id} was ever observed: what runs is unknown",
        remedy=f"take it in with `coral ingest fleet FILE --scenario {scenario_id}`",
    )


def find_report(lake: Lake, scenario_id: str) -> DriftReport | str:
    """The report, or what it lacks: ``plan`` or ``fleet``."""
    from warehouse import read
    from warehouse.feeds import observed_fleet
    from warehouse.plan_states import current_since

    plan = read.current_plan(lake, scenario_id)
    if plan is None:
        return "plan"
    fleet = observed_fleet(lake, scenario_id)
    if fleet is None:
        return "fleet"
    found = find_drift(plan, with_plan_ids(lake, fleet, plan))
    since = current_since(lake, scenario_id, plan.plan_version)
    return DriftReport(plan, since, fleet.observed_at, fleet.rows_set_aside, found)


def note_what_runs(lake: Lake, scenario_id: str) -> str | None:
    """Record what the observed fleet says of the current plan: ``applied`` when it runs and nothing else does, ``partial``
    when part of it runs or has run. The new state; None where it is no news.

    A fleet that was seen before the plan became current says nothing of it, nor one that was not read whole.
    """
    from warehouse.plan_states import mark_running

    report = find_report(lake, scenario_id)
    if not isinstance(report, DriftReport) or not report.is_after_plan or report.rows_set_aside:
        return None
    drift, was = report.drift, report.plan.state.value
    if not drift.is_empty and not drift.matched_nodes and was not in ("applied", "partial"):
        return None
    note = f"{drift.matched_nodes} of {drift.planned_nodes} nodes run, seen at {report.observed_at:%Y-%m-%d %H:%M} UTC"
    version = report.plan.plan_version
    is_new = mark_running(lake, scenario_id, version, is_whole=drift.is_empty, by="fleet", note=note)
    return ("applied" if drift.is_empty else "partial") if is_new else None
