"""Each condition by hand: just not, and just."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cli_plan_example import example_plan

from catalogs.scenario_schema import AlertsSection, PolicySection
from tasks.allocation.drift import Drift, DriftRow
from tasks.allocation.watch import Alarm, Watched, alarms

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
POLICY = PolicySection(interval_minutes=60)
QUIET = Watched(example_plan(), NOW - timedelta(minutes=180), "unchanged", "", 0.01, {"prices": 3600.0})
LESS = Drift((DriftRow("r", "L4x1", "on_demand", "", "", 3, 2),), 3, 2, False)
SHORT = {
    "workload": "phi-4/decode",
    "workload_id": "1" * 16,
    "missing_tok_per_s": 1234.5,
    "binding": "L40Sx4",
    "cheapest_extra": "",
}


def found(seen: Watched, policy: PolicySection = POLICY) -> list[tuple[str, str]]:
    return [
        (alarm.kind.value, alarm.subject) for alarm in alarms(seen, policy, {"prices": 3600.0, "demand": 60.0}, NOW)
    ]


def test_nothing_holds_at_the_limits() -> None:
    assert found(QUIET) == []
    assert found(Watched(None)) == []
    assert found(replace(QUIET, drift=LESS, drift_since_s=1800.0)) == []
    assert found(replace(QUIET, drift=LESS)) == [], "the fleet was not seen since"
    assert found(replace(QUIET, drift=Drift((), 3, 3, True), drift_since_s=1e6)) == []
    assert found(replace(QUIET, input_ages_s={"catalog": 1e9})) == [], "an input without a limit"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (replace(QUIET, plan=example_plan(shortfalls=[SHORT])), ("shortfall", "phi-4/decode")),
        (replace(QUIET, gap=0.0101), ("gap", "")),
        (replace(QUIET, confirmed_at=NOW - timedelta(minutes=180, seconds=1)), ("plan_age", "")),
        (replace(QUIET, input_ages_s={"prices": 3601.0}), ("stale_input", "prices")),
        (replace(QUIET, last_outcome="failed", last_note="no plan was found"), ("failed_run", "")),
        (replace(QUIET, drift=LESS, drift_since_s=1801.0), ("drift", "")),
        (replace(QUIET, proposal=(4, "cost rises")), ("approval", "")),
    ],
)
def test_each_condition(seen: Watched, expected: tuple[str, str]) -> None:
    assert found(seen) == [expected]


def test_what_is_null_is_never_told() -> None:
    never = POLICY.model_copy(update={"alerts": AlertsSection(gap_pct=None, drift_minutes=None, plan_age_minutes=600)})
    late = replace(QUIET, gap=0.9, drift=LESS, drift_since_s=1e6, confirmed_at=NOW - timedelta(minutes=599))
    assert found(late, never) == []


def test_the_text_says_what_to_do() -> None:
    (alarm,) = alarms(replace(QUIET, proposal=(4, "cost rises by 30%")), POLICY, {}, NOW)
    assert alarm == Alarm(alarm.kind, "", "version 4 waits for `coral plans approve 4`: cost rises by 30%")
