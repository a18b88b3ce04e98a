"""What a person must be told of a scenario that plans itself: the conditions that hold now, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from catalogs.scenario_schema import PolicySection
from tasks.allocation.drift import Drift
from tasks.allocation.plan import Plan

_INTERVALS = 3  # a plan that no run has confirmed for so many intervals is old


class AlarmKind(StrEnum):
    """What is wrong."""

    SHORTFALL = "shortfall"
    GAP = "gap"
    PLAN_AGE = "plan_age"
    STALE_INPUT = "stale_input"
    FAILED_RUN = "failed_run"
    DRIFT = "drift"
    APPROVAL = "approval"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One condition that holds. ``subject``: of which workload or input, '' = of the scenario."""

    kind: AlarmKind
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of a scenario. ``plan``: the current one; ``confirmed_at``: when a run or a person last made it or chose it
    again. ``last_outcome``, ``last_note``: of the latest run that was executed. ``gap``: the least of those that decided lately.
    ``input_ages_s``: ages by now. ``drift``: as the fleet was seen ``drift_since_s`` after the plan became current; None where
    none was seen since. ``proposal``: the version that waits for approval, and why."""

    plan: Plan | None
    confirmed_at: datetime | None = None
    last_outcome: str = ""
    last_note: str = ""
    gap: float | None = None
    input_ages_s: Mapping[str, float] = field(default_factory=dict)
    drift: Drift | None = None
    drift_since_s: float | None = None
    proposal: tuple[int, str] | None = None


def alarms(seen: Watched, policy: PolicySection, max_age_s: Mapping[str, float], now: datetime) -> tuple[Alarm, ...]:
    """The conditions that hold at ``now``: at most one per kind and subject. ``max_age_s``: how old an input may be, by name;
    inputs without a limit are never stale."""
    return tuple([*_of_plan(seen, policy, now), *_of_runs(seen, policy, max_age_s)])


def _of_plan(seen: Watched, policy: PolicySection, now: datetime) -> Iterator[Alarm]:
    if seen.plan is None:
        return
    version = f"version {seen.plan.plan_version}"
    for row in seen.plan.shortfalls:
        text = f"{version} leaves {row.missing_tok_per_s:,.0f} tok/s of {row.workload} unmet; binding: {row.binding}"
        yield Alarm(AlarmKind.SHORTFALL, row.workload, text)
    limit_min = policy.alerts.plan_age_minutes or _INTERVALS * policy.interval_minutes
    if seen.confirmed_at is not None:
        age_min = (now - seen.confirmed_at).total_seconds() / 60
        if age_min > limit_min:
            text = f"no run has confirmed {version} for more than {limit_min:g} minutes"
            yield Alarm(AlarmKind.PLAN_AGE, "", text)
    drift, grace_min = seen.drift, policy.alerts.drift_minutes
    if drift is None or seen.drift_since_s is None or grace_min is None:
        return
    if not drift.is_empty and seen.drift_since_s > grace_min * 60:
        text = f"the fleet differs from {version}: {drift.matched_nodes} of {drift.planned_nodes} planned nodes run"
        yield Alarm(AlarmKind.DRIFT, "", text)


def _of_runs(seen: Watched, policy: PolicySection, max_age_s: Mapping[str, float]) -> Iterator[Alarm]:
    most = policy.alerts.gap_pct
    if seen.gap is not None and most is not None and seen.gap > most / 100:
        yield Alarm(AlarmKind.GAP, "", f"the last plan may be {seen.gap:.2%} from the best, more than {most:g} %")
    for name, age_s in sorted(seen.input_ages_s.items()):
        limit_s = max_age_s.get(name)
        if limit_s is not None and age_s > limit_s:
            yield Alarm(AlarmKind.STALE_INPUT, name, f"{name} are older than {limit_s / 3600:g} hours")
    if seen.last_outcome == "failed":
        yield Alarm(AlarmKind.FAILED_RUN, "", f"the last run failed: {seen.last_note}"[:300])
    if approval := approval_alarm(seen.proposal):
        yield approval


def approval_alarm(proposal: tuple[int, str] | None) -> Alarm | None:
    """That a proposal (version, why it waits) asks for a person; None without one."""
    if proposal is None:
        return None
    version, why = proposal
    return Alarm(AlarmKind.APPROVAL, "", f"version {version} waits for `coral plans approve {version}`: {why}")
