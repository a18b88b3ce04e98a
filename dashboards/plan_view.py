"""The page of a plan as pieces of HTML: headline, replicas, what to rent, what changed, shadow prices, what is short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.page import counted, escape, table
from dashboards.picture import gpu_of, replica
from dashboards.plan_data import instance_changes, per_million, short
from warehouse.rule_texts import rule_text

Row = dict[str, Any]
_MONTH_H = 730
_SAME_USD = 0.005
_NARROW_STAGES = 3  # pictures of so many fit beside each other; the phases of a model with more are one below the other
_STATUS = {
    "optimal": "proven best, within the gap asked for",
    "gap": "a better plan may exist, by the gap at most",
    "time_limit": "the time ran out",
    "shortfall": "to the best plan for what is met",
}


def headline(plan: Row, current: int | None) -> str:
    """Cost, gap, demand met and machines, large enough to be seen from afar; ``current`` is the version that holds."""
    cost = plan["cost_usd_per_h"]
    if current is None:
        holds = "no version holds now"
    else:
        holds = "the version that holds now" if plan["plan_version"] == current else f"version {current} holds now"
    met = plan["theta"]
    status = str(plan["status"])
    cards = [
        _card("Cost", f"{cost:,.2f}", "USD/h", _cost_note(plan)),
        _card("Gap", f"{plan['gap']:.2%}", "", _STATUS.get(status, status)),
        _card("Demand met", f"{met:.0%}" if met >= 1 else f"{met:.1%}", "", _demand(plan), is_bad=met < 1),
        _card("Machines", f"{sum(row['nodes'] for row in plan['offers']):,}", "", _machines(plan)),
    ]  # fmt: skip
    return (
        f'<div class="head"><h1>{escape(plan["scenario_id"])} <span class="quiet">version {plan["plan_version"]}, '
        f"{escape(plan['state'])}</span></h1>"
        f'<p class="quiet">Made {_time(plan["created_at"])} with prices of {escape(plan["inputs"]["price_as_of"])}; '
        f'{holds}</p>{_waiting(plan)}</div><div class="cards">{"".join(cards)}</div>'
    )


def _cost_note(plan: Row) -> str:
    month = f"{plan['cost_usd_per_h'] * _MONTH_H:,.0f} USD per month (730 h)"
    egress = plan.get("egress_usd_per_h") or 0.0
    return f"{month}; {egress:,.2f} USD/h of it moves KV between regions" if egress else month


def _waiting(plan: Row) -> str:
    """What a proposal waits for."""
    if plan["state"] != "proposed":
        return ""
    command = f"coral plans approve {plan['plan_version']} --scenario {plan['scenario_id']}"
    return f'<p class="news">Waits for approval: {escape(plan["state_note"])}. <code>{escape(command)}</code></p>'


def _card(name: str, value: str, unit: str, note: str, *, is_bad: bool = False) -> str:
    return (
        f'<div class="tile{" bad" if is_bad else ""}"><div class="name">{escape(name)}</div>'
        f'<div class="value">{"✕ " if is_bad else ""}{escape(value)} <small>{escape(unit)}</small></div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def _demand(plan: Row) -> str:
    if plan["shortfalls"]:
        return f"{counted(len(plan['shortfalls']), 'workload is', 'workloads are')} short, see below"
    models = {short(row["workload"]): row["planned_req_per_s"] for row in plan["workloads"]}
    return f"{counted(len(models), 'model')}, {sum(models.values()):,.1f} req/s planned"


def _machines(plan: Row) -> str:
    gpus: dict[str, int] = {}
    for row in plan["offers"]:
        gpu, count = gpu_of(row["node_config"])
        gpus[gpu] = gpus.get(gpu, 0) + count * row["nodes"]
    return ", ".join(f"{count} {gpu}" for gpu, count in sorted(gpus.items())) or "none"


def _time(text: str) -> str:
    return f"{escape(text[:16].replace('T', ' '))} UTC"


_NOT_LAUNCHABLE = "not_launchable"


def price_per_token(plan: Row) -> str:
    """USD per million tokens of each model."""
    rows = [
        [(model, ""), (_usd(prefill), ""), (_usd(decode), "")]
        for model, prefill, decode in per_million(plan)
    ]  # fmt: skip
    return _section("USD per million tokens", table(["model", "input (prefill)", "output (decode)"], rows))


def _rate(value: float) -> str:
    """Tokens per second; a small rate keeps its fraction."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _usd(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4f}"


def shortfalls(plan: Row) -> str:
    """What demand is not met, what binds, what would close it; what cannot be launched; and the caveats of the plan."""
    parts = []
    if plan["shortfalls"]:
        rows = [
            [
                (row["workload"], ""), (_rate(row["missing_tok_per_s"]), "bad"), (row["binding"], "wrap"),
                (row["cheapest_extra"] or "–", "wrap"),
            ]
            for row in plan["shortfalls"]
        ]  # fmt: skip
        header = ["workload", "missing tok/s", "what is short", "cheapest supply that would close it"]
        parts.append(f'<div class="card missed"><b>✕ Not all demand is met.</b>{table(header, rows)}</div>')
    parts += [
        f'<p class="news"><b>Not launchable as it is.</b> {escape(row["text"].replace("`", ""))}</p>'
        for row in plan["warnings"]
        if row["code"] == _NOT_LAUNCHABLE
    ]
    if plan["warnings"]:
        items = "".join(f"<li><b>{escape(row['code'])}</b>: {escape(row['text'])}</li>" for row in plan["warnings"])
        count = len(plan["warnings"])
        parts.append(
            f'<details class="card"><summary>{counted(count, "caveat")}: what this plan assumes'
            f"</summary><ul>{items}</ul></details>"
        )
    return "".join(parts)


def replicas(plan: Row, colours: Mapping[str, str]) -> str:
    """Every model with its replicas drawn: how many, where, at what rate and cost, and their pipelines."""
    parts = []
    wide = {row["workload"] for row in plan["instances"] if len(row["stages"]) > _NARROW_STAGES}
    wide_models = {row["model"] for row in plan["workloads"] if row["workload"] in wide}
    for workload in plan["workloads"]:
        rows = [row for row in plan["instances"] if row["workload"] == workload["workload"]]
        drawn = "".join(_replica(row, colours) for row in rows) or '<p class="quiet">nothing runs</p>'
        kind = "card whole" if workload["model"] in wide_models else "card"
        head = f"<h3>{escape(workload['workload'])}</h3>{_workload(workload)}"
        parts.append(f'<div class="{kind}">{head}<div class="flow">{drawn}</div></div>')
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{escape(gpu)}</span>' for gpu, colour in colours.items()
    )
    return (
        f'<h2>What runs</h2><p class="quiet">A replica is a pipeline: the bar shows how the model\'s layers are split over its '
        f"stages, each box is one node. Requests pass from left to right.</p>"
        f'<div class="legend">{legend}</div><div class="works">{"".join(parts)}</div>'
    )  # fmt: skip


def _workload(row: Row) -> str:
    slo = "TTFT" if row["phase"] == "prefill" else "TPOT"
    said = (
        f"{row['cost_usd_per_h']:,.2f} USD/h · {slo} {row['slo_ms']:,g} ms · planned {row['planned_tok_per_s']:,.0f} tok/s "
        f"({row['planned_req_per_s']:,.1f} req/s), supplied {row['supplied_tok_per_s']:,.0f} at {row['headroom']:.0%} use"
    )
    return f'<p class="quiet">{escape(said)}</p>'


def _replica(row: Row, colours: Mapping[str, str]) -> str:
    count = row["instances"]
    market = "" if row["market"] == "on_demand" else f" · {row['market']}"
    head = f"{counted(count, 'replica')} in {row['region']}{market}"
    each = " each" if count > 1 else ""
    under = (
        f"{row['throughput_tok_per_s']:,.0f} tok/s{each} · {row['cost_usd_per_h']:,.2f} USD/h{each} · class "
        f"{row['launch_class']} · rates {row['provenance']}, ±{row['rel_error']:.0%}"
    )
    return (
        f'<figure><figcaption><b>{escape(head)}</b><br><span class="quiet">{escape(under)}</span></figcaption>'
        f"{replica(row, colours)}</figure>"
    )


def machines(plan: Row) -> str:
    """What to rent, and how much of what can be had that is."""
    rows = []
    for row in plan["offers"]:
        share = row["nodes"] / row["availability_nodes"] if row["availability_nodes"] else 1.0
        rows.append(
            [
                (row["region"], ""), (row["instance_type"], "text"), (row["node_config"], "text"),
                (f"{row['nodes']:,}", ""), (f"{row['availability_nodes']:,} {row['availability_basis']}", ""),
                (f"{share:.0%}", "bad" if share >= 1 else ""), (f"{row['price_usd_per_h']:,.2f}", ""),
                (f"{row['nodes'] * row['price_usd_per_h']:,.2f}", ""),
            ]
        )  # fmt: skip
    header = ["region", "instance type", "node", "rent", "can be had", "used", "USD/h each", "USD/h"]
    return _section("Machines to rent", table(header, rows))


def kv_moves(plan: Row) -> str:
    """Requests that prefill in one region and decode in another; nothing where none do."""
    moves = plan.get("kv_transfers") or []
    if not moves:
        return ""
    rows = [
        [
            (row["model"], ""), (row["from_region"], "text"), (row["to_region"], "text"), (f"{row['req_per_s']:,.2f}", ""),
            (f"{row['gbit_per_s']:,.2f}", ""), (f"{row['usd_per_gb']:,.4g}", ""), (f"{row['usd_per_h']:,.2f}", ""),
        ]
        for row in moves
    ]  # fmt: skip
    header = ["model", "prefill in", "decode in", "req/s", "Gbit/s", "USD per GB", "USD/h"]
    return _section("KV between regions", table(header, rows))


def changes(before: Row | None, after: Row, why: Sequence[str]) -> str:
    """What the version does otherwise than the one before, and what of the inputs differs."""
    if before is None:
        return _section("What changed", '<p class="quiet">This is the first version.</p>')
    delta = after["cost_usd_per_h"] - before["cost_usd_per_h"]
    head = (
        f"<p>Version {before['plan_version']} → {after['plan_version']}: "
        f"{before['cost_usd_per_h']:,.2f} → {after['cost_usd_per_h']:,.2f} USD/h (<b>{delta:+,.2f}</b>).</p>"
    )
    said = [*([after["reason"]] if after["reason"] else []), *why]
    reasons = "".join(f"<li>{escape(text)}</li>" for text in said) or "<li>no input that is shown here differs</li>"
    rows = [
        [
            (row["workload"], ""), (row["region"], "text"),
            (_nodes(row), "wrap"),
            (f"+{row['add']}" if row["add"] else "", "good"), (str(row["keep"] or ""), ""),
            (f"−{row['remove']}" if row["remove"] else "", "bad"),
        ]
        for row in instance_changes(before, after)
    ]  # fmt: skip
    body = table(["workload", "region", "nodes of a replica", "add", "keep", "remove"], rows)
    return _section(
        "What changed, and why", f'{head}<h3>Why</h3><ul>{reasons}</ul><h3>What</h3>{body}'
    )  # fmt: skip


def _nodes(row: Row) -> str:
    market = "" if row["market"] == "on_demand" else f" ({row['market']})"
    return str(row["combination_id"]).replace("+", " + ") + market


def shadow_prices(why: Row | None, plan: Row) -> str:
    """What a node more or fewer is worth, and what rules cost; or the command that finds it out."""
    title = "Shadow prices"
    if why is None:
        command = f"coral plans show {plan['plan_version']} --scenario {plan['scenario_id']} --why"
        return _section(
            title,
            f"<p>Not computed for this version yet. Ten seconds once: <code>{escape(command)}</code></p>",
        )
    supply_rows = [
        [
            (row["region"], ""), (row["node_config"], "text"), (f"{row['used']} of {row['nodes']}", ""),
            (f"{row['dual_usd_per_h']:,.2f}", ""), (_range(row["more"], why["cost_usd_per_h"]), ""),
            (_range(row["fewer"], why["cost_usd_per_h"]), ""),
        ]
        for row in sorted(why["supply"], key=lambda row: -row["dual_usd_per_h"])
    ]  # fmt: skip
    header = ["region", "node", "used", "price per node, USD/h", "one more", "one fewer"]
    note = '<p class="quiet">What the plan would save with one node more of a kind; changes in USD/h.</p>'
    supply = (
        note + table(header, supply_rows)
        if supply_rows
        else "<p>No supply binds: one node more of anything saves nothing.</p>"
    )
    rules = [
        [(rule_text(row["rule"], row["is_on"]), "wrap"), (_range(row["cost"], why["cost_usd_per_h"]), "")] for row in why["rules"]
    ]  # fmt: skip
    parts = [_section(title, supply)]
    if rules:
        parts.append(_section("What rules cost", table(["the plan", "change, USD/h"], rules)))
    return f'<div class="pair{"" if supply_rows else " even"}">{"".join(parts)}</div>'


def _range(cost: Row | None, base: float) -> str:
    """A changed cost as the difference to the plan's: one figure, a range, or what is known of it."""
    if cost is None:
        return "–"
    if cost["is_impossible"]:
        return "impossible"
    low = _signed(cost["low"] - base)
    if cost["high"] is None:
        return f"at least {low}" if cost["low"] > base + _SAME_USD else "not known"
    high = _signed(cost["high"] - base)
    if low == high:
        return high
    return f"{low} to {high}" if cost["low"] > 0 else f"at most {high}"


def _signed(value: float) -> str:
    return "0.00" if abs(value) < _SAME_USD else f"{value:+,.2f}"


def _section(title: str, body: str) -> str:
    return f'<section class="card"><h2>{escape(title)}</h2>{body}</section>'
