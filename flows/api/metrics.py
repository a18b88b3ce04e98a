"""The current plans as Prometheus metrics, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from flows.api.reader import PlanReader, input_ages_s
from tasks.allocation.plan import Plan

_PLAN = (
    ("coral_plan_version", "Current plan version", lambda plan: plan.plan_version),
    (
        "coral_plan_cost_usd_per_hour",
        "Cost of the current plan: rent, and KV between regions",
        lambda plan: plan.cost_usd_per_h,
    ),
    (
        "coral_plan_lower_bound_usd_per_hour",
        "No plan of its library costs less",
        lambda plan: plan.lower_bound_usd_per_h,
    ),
    ("coral_plan_gap_ratio", "Distance to the bound", lambda plan: plan.gap),
    ("coral_plan_demand_met_ratio", "Share of the demand that is met", lambda plan: plan.theta),
    (
        "coral_plan_created_timestamp_seconds",
        "When the current plan was made",
        lambda plan: datetime.fromisoformat(plan.created_at).timestamp(),
    ),
)
_WORKLOAD = (
    ("coral_workload_planned_tokens_per_second", "Rate planned for", lambda row: row.planned_tok_per_s),
    ("coral_workload_supplied_tokens_per_second", "Rate supplied, after headroom", lambda row: row.supplied_tok_per_s),
    ("coral_workload_cost_usd_per_hour", "Rent of the workload's instances", lambda row: row.cost_usd_per_h),
)


def metrics_text(reader: PlanReader, now: datetime) -> bytes:
    """All metrics in Prometheus' text format. Raises LakeError."""
    registry = CollectorRegistry()
    registry.register(_Collector(reader, now))
    return generate_latest(registry)


class _Collector:
    def __init__(self, reader: PlanReader, now: datetime) -> None:
        self._reader, self._now = reader, now

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: registering must not read the lake."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of every scenario's current plan, then those of runs."""
        plans = [self._reader.plan(scenario) for scenario in self._reader.scenarios()]
        for name, text, value in _PLAN:
            yield _gauge(name, text, ("scenario",), [((plan.scenario_id,), value(plan)) for plan in plans])
        for name, text, value in _WORKLOAD:
            rows = [((plan.scenario_id, row.workload), value(row)) for plan in plans for row in plan.workloads]
            yield _gauge(name, text, ("scenario", "workload"), rows)
        yield _shortfalls(plans)
        yield _counts(plans)
        yield _nodes(plans)
        yield from self._runs()

    def _runs(self) -> Iterator[Metric]:
        runs, counts = self._reader.runs()
        started = [((name,), run.started_at.timestamp()) for name, run in runs.items()]
        yield _gauge("coral_last_run_timestamp_seconds", "Start of the latest allocation run", ("scenario",), started)
        decided = [((name,), run.decided_at.timestamp()) for name, run in runs.items() if run.decided_at is not None]
        text = "Start of the latest allocation run that decided"
        yield _gauge("coral_last_decision_timestamp_seconds", text, ("scenario",), decided)
        ages = [((name, key), age) for name, run in runs.items() for key, age in input_ages_s(run, self._now).items()]
        yield _gauge("coral_input_age_seconds", "Age of an input", ("scenario", "input"), ages)
        total = CounterMetricFamily("coral_allocation_runs", "Allocation runs", labels=("scenario", "outcome"))
        for key, count in counts.items():
            total.add_metric(key, count)
        yield total


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _shortfalls(plans: Iterable[Plan]) -> Metric:
    """0 where nothing is missing: a series that comes and goes cannot be watched."""
    rows = []
    for plan in plans:
        missing = {row.workload_id: row.missing_tok_per_s for row in plan.shortfalls}
        rows += [((plan.scenario_id, row.workload), missing.get(row.workload_id, 0.0)) for row in plan.workloads]
    return _gauge("coral_workload_missing_tokens_per_second", "Rate that is not met", ("scenario", "workload"), rows)


def _counts(plans: Iterable[Plan]) -> Metric:
    found: Counter[tuple[str, ...]] = Counter()
    for plan in plans:
        for row in plan.instances:
            found[plan.scenario_id, row.region, row.workload, row.market.value, row.launch_class.value] += row.instances
    labels = ("scenario", "region", "workload", "market", "launch_class")
    return _gauge("coral_plan_instances", "Instances to run", labels, found.items())


def _nodes(plans: Iterable[Plan]) -> Metric:
    found: Counter[tuple[str, ...]] = Counter()
    for plan in plans:
        for row in plan.offers:
            found[plan.scenario_id, row.region, row.node_config, row.market.value] += row.nodes
    return _gauge("coral_plan_nodes", "Nodes to rent", ("scenario", "region", "node_config", "market"), found.items())
