"""The list of plan versions as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from flows.render import WIDTH, to_text
from flows.render_plan import plan_list_lines
from warehouse.records import PlanSummary


def summary(version: int, **changes: object) -> PlanSummary:
    fields = {
        "scenario_id": "core",
        "plan_version": version,
        "state": "published",
        "is_current": True,
        "status": "optimal",
        "cost_usd_per_h": 1052.5,
        "lower_bound_usd_per_h": 1052.4,
        "gap": 0.000095,
        "theta": 1.0,
        "library_id": "lib",
        "price_as_of": "2026-07-30",
        "created_at": datetime(2026, 8, 1, 14, 30, tzinfo=timezone(timedelta(hours=2))),
        "reason": "first plan",
    }
    return PlanSummary(**{**fields, **changes})


def test_one_row_per_version_with_cost_gap_and_utc_time() -> None:
    header, row = to_text(plan_list_lines([summary(1)])).splitlines()
    assert header.split()[:3] == ["scenario", "version", "state"]
    cells = " ".join(row.split())
    assert cells == "core 1 published optimal 1,052.50 0.01 2026-07-30 2026-08-01 12:30 first plan"


def test_reasons_are_shortened_to_the_line() -> None:
    lines = plan_list_lines([summary(1), summary(12, reason="a price fell and so did another one " * 9)])
    assert max(len(line.text) for line in lines) <= WIDTH
    assert lines[2].text.endswith("...")
    assert lines[1].text.index("first plan") == lines[0].text.index("reason")


def test_no_plan_is_a_header_alone() -> None:
    assert len(plan_list_lines([])) == 1
    assert summary(1).created_at.astimezone(UTC).hour == 12
