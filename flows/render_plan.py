"""The plan as text for a person: what to rent, how each model is laid over it, what it costs, how good it is.

Pure functions from a :class:`tasks.allocation.plan.Plan` to lines (:mod:`flows.render`).
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from catalogs.wording import counted
from flows.render import HOURS_PER_MONTH, WIDTH, Line, money, number, percent_up, table, wrapped
from tasks.allocation.plan import NOT_COMPUTED, Plan, PlanInstance, PlanNode, PlanStage, PlanState, PlanWorkload
from tasks.allocation.types import SolveStatus
from tasks.templates.types import LaunchClass

if TYPE_CHECKING:
    from warehouse.records import PlanSummary

_STATUS_WORDS = {
    SolveStatus.OPTIMAL: "solved to the gap asked for",
    SolveStatus.GAP: "stopped at the gap or work limit",
    SolveStatus.TIME_LIMIT: "stopped by the time limit",
    SolveStatus.SHORTFALL: "DEMAND NOT MET",
}
_LAUNCH_WORDS = {
    LaunchClass.A: "one node: plain `vllm serve`",
    LaunchClass.B1: "one node per stage, alike in GPU count: multi-node vLLM with a layer partition",
    LaunchClass.B2: "one node per stage, unlike GPU counts: Ray only, unverified",
    LaunchClass.C: "several nodes in a stage, or unlike tensor parallelism: no stock engine",
}


def distance_to_best(plan: Plan) -> float | None:
    """How far above the best plan (at most): (cost + start-up - bound) / bound; None without a positive bound."""
    if plan.lower_bound_usd_per_h <= 0:
        return None
    objective = plan.cost_usd_per_h + plan.init_usd
    return max(0.0, objective - plan.lower_bound_usd_per_h) / plan.lower_bound_usd_per_h


def plan_lines(plan: Plan) -> list[Line]:
    """The whole of ``coral plans show``."""
    sections = [
        _title(plan),
        *(_workload_section(plan, workload) for workload in plan.workloads),
        _offers_section(plan),
        _transfer_section(plan),
        _cost_section(plan),
        _token_price_section(plan),
        _shortfall_section(plan),
        _warning_section(plan),
        _launch_section(plan),
    ]
    lines: list[Line] = []
    for section in sections:
        if section:
            lines += [*([Line("")] if lines else []), *section]
    return lines


def _title(plan: Plan) -> list[Line]:
    style = "bold red" if plan.status is SolveStatus.SHORTFALL else "bold"
    version = "a draft" if plan.state is PlanState.DRAFT else f"version {plan.plan_version} ({plan.state.value})"
    created = f"{datetime.fromisoformat(plan.created_at).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    head = f"Plan {plan.scenario_id}, {version}, {created}, prices of {plan.inputs.price_as_of}"
    lines = [Line(head, style)]
    return lines + (wrapped(plan.reason) if plan.reason else [])


def _workload_section(plan: Plan, workload: PlanWorkload) -> list[Line]:
    model, _, phase = workload.workload.rpartition("/")
    slo = "TTFT" if workload.phase == "prefill" else "TPOT"
    lines = [
        Line(f"{model} {phase}   {money(workload.cost_usd_per_h)} USD/h", "bold"),
        *wrapped(
            f"{slo} {number(workload.slo_ms)} ms; planned {number(workload.planned_tok_per_s)} tok/s "
            f"({number(workload.planned_req_per_s)} req/s); supplied {number(workload.supplied_tok_per_s)} tok/s "
            f"at headroom {workload.headroom:.2f} ({workload.headroom_basis})",
            style="dim",
        ),
    ]
    instances = [instance for instance in plan.instances if instance.workload_id == workload.workload_id]
    for instance in sorted(instances, key=_instance_order):
        lines += _instance_lines(instance)
    if not instances:
        lines.append(Line("  nothing to rent" if workload.planned_tok_per_s == 0 else "  no instance"))
    return lines


def _instance_order(instance: PlanInstance) -> tuple[str, str, str, str]:
    return instance.region, instance.market.value, instance.combination_id, instance.template_id


def _instance_lines(instance: PlanInstance) -> list[Line]:
    """One line for the instances (region, count, rate, price), then one per stage and kind of node."""
    new = f", {instance.new_instances} new" if instance.new_instances != instance.instances else ""
    market = "" if instance.market.value == "on_demand" else f" {instance.market.value}"
    each = "" if instance.instances == 1 else " each"
    left = "" if instance.delivered_share == 1 else f", {instance.delivered_share:.1%} of it after interruptions"
    head = (
        f"  {instance.region}{market}   {counted(instance.instances, 'instance')}{new}   "
        f"{number(instance.throughput_tok_per_s)} tok/s{each}{left}   {money(instance.cost_usd_per_h)} USD/h{each}   "
        f"launch class {instance.launch_class.value}"
    )
    spans = [f"[{stage.layers[0]}-{stage.layers[1]}]" for stage in instance.stages]
    width = max((len(span) for span in spans), default=0)
    lines = [Line(head)]
    for span, stage in zip(spans, instance.stages, strict=True):
        for row, text in enumerate(stage_texts(stage)):
            lines.append(Line(f"      {(span if row == 0 else '').ljust(width)} {text}"))
    return lines


def stage_texts(stage: PlanStage) -> list[str]:
    """``2x g6e.12xlarge (L40Sx4 tp4)`` per kind of node of the stage, with each node's share where kinds differ."""
    kinds = Counter(node.model_copy(update={"share": round(node.share, 6)}) for node in stage.nodes)
    texts = []
    for node, count in kinds.items():
        share = f", {node.share:.0%} of the requests{' each' if count > 1 else ''}" if len(kinds) > 1 else ""
        texts.append(f"{count}x {node.instance_type} ({node.node_config} {layout_text(node)}){share}")
    return texts


def layout_text(node: PlanNode) -> str:
    """A node's inner layout: ``tp4``, ``tp2 pp2``, ``tp2 dp2`` (dp = replicas in one node)."""
    parts = [f"tp{node.tp}"]
    if node.pp > 1:
        parts.append(f"pp{node.pp}")
    if node.replicas > 1:
        parts.append(f"dp{node.replicas}")
    return " ".join(parts)


def _offers_section(plan: Plan) -> list[Line]:
    if not plan.offers:
        return []
    rows = [
        (
            offer.region,
            offer.instance_type if offer.market.value == "on_demand" else f"{offer.instance_type} {offer.market.value}",
            offer.node_config,
            str(offer.nodes),
            f"{offer.availability_nodes} {offer.availability_basis.value}",
            money(offer.price_usd_per_h),
            money(offer.price_usd_per_h * offer.nodes),
        )
        for offer in sorted(plan.offers, key=lambda offer: (offer.region, offer.instance_type, offer.offer_id))
    ]
    header = ("region", "instance type", "node", "rent", "available", "USD/h each", "USD/h")
    return [Line("To rent", "bold"), *map(Line, table(header, rows, right=(3, 4, 5, 6)))]


def _transfer_section(plan: Plan) -> list[Line]:
    rows = []
    for t in plan.kv_transfers:
        amounts = map(number, (t.req_per_s, t.gbit_per_s, t.usd_per_gb))
        rows.append((t.model, t.from_region, t.to_region, *amounts, money(t.usd_per_h)))
    header = ("model", "prefill in", "decode in", "req/s", "Gbit/s", "USD/GB", "USD/h")
    return [Line("KV between regions", "bold"), *map(Line, table(header, rows, right=(3, 4, 5, 6)))] if rows else []


def _cost_section(plan: Plan) -> list[Line]:
    month = plan.cost_usd_per_h * HOURS_PER_MONTH
    rows = [
        ("total", f"{money(plan.cost_usd_per_h)} USD/h, {month:,.0f} USD per month ({HOURS_PER_MONTH} h)"),
        *(
            [("KV transfer", f"{money(plan.egress_usd_per_h)} USD/h of it, between regions")]
            if plan.kv_transfers
            else []
        ),
        ("start-up", f"{money(plan.init_usd)} USD once, for the new instances"),
        *([("running", _running_text(plan))] if plan.inputs.running_basis != "none" else []),
        ("lower bound", _bound_text(plan)),
        ("gap", _gap_text(plan)),
    ]
    if plan.theta < 1:
        rows.append(("demand met", _demand_met(plan)))
    if plan.baselines.full_use_usd_per_h is not None:
        extra = plan.cost_usd_per_h - plan.baselines.full_use_usd_per_h
        rows.append(("headroom", f"{money(extra)} USD/h of it, so that requests that crowd keep their SLOs"))
    rows += _baseline_rows(plan)
    width = max(len(name) for name, _ in rows)
    lines = [Line("Cost", "bold"), *(Line(f"  {name.ljust(width)}  {text}") for name, text in rows)]
    if plan.baselines.note:
        lines += wrapped(plan.baselines.note)
    return lines


def _demand_met(plan: Plan) -> str:
    """The common share where one was shared out (it has a certified limit), else the share of each model."""
    if plan.theta > 0 and plan.theta_upper < 1:
        at = " at this headroom" if any(row.headroom_basis == "simulated" for row in plan.workloads) else ""
        return f"{plan.theta:.1%} of every model's; at most {plan.theta_upper:.1%} is possible{at}"
    missing = {row.workload_id: row.missing_tok_per_s for row in plan.shortfalls}
    shares: dict[str, float] = {}
    for row in plan.workloads:
        if row.planned_tok_per_s > 0:
            share = 1 - missing.get(row.workload_id, 0.0) / row.planned_tok_per_s
            name = row.workload.split("/")[0]
            shares[name] = min(share, shares.get(name, 1.0))
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _running_text(plan: Plan) -> str:
    """What was taken to run already, which costs no start-up."""
    inputs = plan.inputs
    if inputs.running_observed_at is not None:
        seen = datetime.fromisoformat(inputs.running_observed_at).astimezone(UTC)
        return f"as the fleet seen at {seen:%Y-%m-%d %H:%M} UTC"
    basis = inputs.running_basis.replace("_", " ")
    version = "" if inputs.running_plan_version is None else f", version {inputs.running_plan_version}"
    return f"as the plan {basis}{version}; no fleet is observed"


def _bound_text(plan: Plan) -> str:
    """The bound, and what it bounds: start-up charges are part of what the solver minimises."""
    solved = _STATUS_WORDS.get(plan.status, plan.status.value)
    if plan.init_usd == 0:
        return f"{money(plan.lower_bound_usd_per_h)} USD/h; {solved}"
    first_hour = money(plan.cost_usd_per_h + plan.init_usd)
    return f"{money(plan.lower_bound_usd_per_h)} USD of {first_hour} with start-up; {solved}"


def _gap_text(plan: Plan) -> str:
    distance = distance_to_best(plan)
    if distance is None:
        return "0.00 %: nothing to rent" if plan.cost_usd_per_h == 0 else "unknown: there is no lower bound"
    at = " at this headroom" if any(row.headroom_basis == "simulated" for row in plan.workloads) else ""
    return f"within {percent_up(distance)} % of the best plan this library can express{at}"


def _baseline_rows(plan: Plan) -> list[tuple[str, str]]:
    baselines = plan.baselines
    bound = baselines.homo_optimal_lower_bound_usd_per_h
    optimal = baselines.homo_optimal_usd_per_h
    proven = (
        f", at least {money(bound)}" if bound is not None and optimal is not None and bound < optimal * 0.9995 else ""
    )
    if baselines.note.startswith(NOT_COMPUTED):
        return []  # the note says why
    return [
        ("homo-optimal", _against(plan, optimal) + proven),
        ("paper's homo", _against(plan, baselines.homo_greedy_usd_per_h)),
    ]


def _against(plan: Plan, baseline_usd_per_h: float | None) -> str:
    """A baseline's cost and how many times this plan's it is (not where this plan serves only part of the demand)."""
    if baseline_usd_per_h is None:
        return "none found"
    is_comparable = plan.cost_usd_per_h > 0 and plan.theta >= 1
    factor = f" ({baseline_usd_per_h / plan.cost_usd_per_h:.2f}x this plan)" if is_comparable else ""
    return f"{money(baseline_usd_per_h)} USD/h{factor}"


def _token_price_section(plan: Plan) -> list[Line]:
    """Prefill's cost over input tokens and decode's (or aggregated's) over output tokens, per model."""
    by_model: dict[str, dict[str, float | None]] = {}
    for workload in plan.workloads:
        alias = workload.workload.rpartition("/")[0]
        side = "input" if workload.phase == "prefill" else "output"
        by_model.setdefault(alias, {})[side] = workload.usd_per_million_tok
    if not by_model:
        return []

    def shown(prices: dict[str, float | None], side: str) -> str:
        price = prices.get(side)
        return "-" if price is None else f"{price:.4f}"

    rows = [(alias, shown(prices, "input"), shown(prices, "output")) for alias, prices in by_model.items()]
    header = ("model", "input (prefill)", "output (decode)")
    return [Line("USD per million tokens", "bold"), *map(Line, table(header, rows, right=(1, 2)))]


def _shortfall_section(plan: Plan) -> list[Line]:
    if not plan.shortfalls:
        return []
    lines = [Line("Shortfalls: demand that this supply cannot meet", "bold red")]
    for shortfall in plan.shortfalls:
        text = (
            f"{shortfall.workload}: {number(shortfall.missing_tok_per_s)} tok/s missing; binding: {shortfall.binding}"
        )
        extra = f"; cheapest extra: {shortfall.cheapest_extra}" if shortfall.cheapest_extra else ""
        lines += wrapped(text + extra)
    return lines


def _warning_section(plan: Plan) -> list[Line]:
    if not plan.warnings:
        return []
    lines = [Line("Warnings", "bold yellow")]
    for warning in plan.warnings:
        lines += wrapped(f"{warning.code}: {warning.text}")
    return lines


def _launch_section(plan: Plan) -> list[Line]:
    """What the launch classes in the plan mean, and how many instances are of each."""
    counts = Counter[LaunchClass]()
    for instance in plan.instances:
        counts[instance.launch_class] += instance.instances
    if not counts:
        return []
    rows = [(name.value, str(counts[name]), text) for name, text in _LAUNCH_WORDS.items() if counts[name]]
    header = ("class", "instances", "how stock engines launch it")
    return [Line("Launch classes", "bold"), *map(Line, table(header, rows, right=(1,)))]


def plan_list_lines(summaries: Sequence[PlanSummary]) -> list[Line]:
    """The whole of ``coral plans list``; reasons are shortened to the line, ``plans show`` has them in full."""
    header = ("scenario", "version", "state", "status", "USD/h", "gap %", "prices of", "created (UTC)", "reason")
    rows = [
        (
            summary.scenario_id,
            str(summary.plan_version),
            summary.state,
            summary.status,
            money(summary.cost_usd_per_h),
            percent_up(summary.gap),
            summary.price_as_of,
            f"{summary.created_at.astimezone(UTC):%Y-%m-%d %H:%M}",
            "",
        )
        for summary in summaries
    ]
    lines = table(header, rows, right=(1, 4, 5), indent=0)
    room = max(12, WIDTH - lines[0].index("reason"))
    reasons = ["", *(textwrap.shorten(summary.reason, room, placeholder="...") for summary in summaries)]
    start = lines[0].index("reason")
    return [Line((line.ljust(start) + reason).rstrip()) for line, reason in zip(lines, reasons, strict=True)]
