"""An explanation of a plan as text for a person. Pure functions from the document of :mod:`flows.why` to lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.render import Line, money, table, wrapped
from warehouse.rule_texts import rule_text

Document = Mapping[str, Any]
_SAME_USD = 0.005  # shown with two decimals, less is nothing


def why_lines(why: Document) -> list[Line]:
    """The whole of the explanation."""
    sections = [_head(why), _supply(why), _templates(why), _models(why), _rules(why)]
    return [line for section in sections for line in (*section, Line(""))][:-1]


def _head(why: Document) -> list[Line]:
    what = "USD/h, start-up charges of one hour included" if why["has_start_up"] else "USD/h of rent"
    text = f"Costs compare to this plan's {money(why['cost_usd_per_h'])} {what}."
    if why["is_short"]:
        text += " The plan cannot meet all demand: all this is at the demand that it does meet."
    if why["open_ends"]:
        text += f" Ranges: {why['open_ends']} answers that the time did not allow to close; the truth lies within."
    return [Line(f"Why version {why['plan_version']} of {why['scenario_id']} looks as it does", "bold"), *wrapped(text)]


def _supply(why: Document) -> list[Line]:
    lines = [Line("One node more or fewer", "bold")]
    if not why["supply"]:
        return [*lines, *wrapped("No supply binds: one node more of anything saves nothing.")]
    rows = [
        (
            row["region"],
            row["node_config"],
            f"{row['used']} of {row['nodes']}",
            money(row["dual_usd_per_h"]),
            change(row["more"], why) if row["more"] else "",
            change(row["fewer"], why) if row["fewer"] else "",
        )
        for row in why["supply"]
    ]
    header = ("region", "node", "used", "dual", "one more", "one fewer")
    text = (
        "Duals are shadow prices of the LP in USD/h per node; costs with one node more and fewer are solved anew, for the "
        "dearest. All other supplies have a dual of 0."
    )
    return [*lines, *map(Line, table(header, rows, right=(2, 3, 4, 5))), *wrapped(text, style="dim")]


def _templates(why: Document) -> list[Line]:
    rows = [
        (row["region"], row["workload"], f"{row['instances']} x {row['combination_id']}", change(row["cost"], why))
        for row in why["templates"]
    ]
    header = ("region", "workload", "in the plan", "without it")
    lines = [Line("Each template in use, and what the plan costs without it", "bold")]
    for line, row in zip(table(header, rows, right=(3,)), ({}, *why["templates"]), strict=True):
        lines += [Line(line), *_instead(row.get("instead", ()), row.get("region"))]
    return lines


def _models(why: Document) -> list[Line]:
    rows = [(row["model"], change(row["cost"], why)) for row in why["models"]]
    lines = [Line("Each model's next-best plan, with none of the templates it uses now", "bold")]
    for line, row in zip(table(("model", "costs"), rows, right=(1,)), ({}, *why["models"]), strict=True):
        lines += [Line(line), *_instead(row.get("instances", ()), None)]
    return lines


def _instead(rows: Sequence[Document], region: str | None) -> list[Line]:
    """What runs then: its phase where ``region`` is None, its region where that is another one than ``region``."""
    if not rows:
        return []
    parts = [
        f"{row['instances']} x {row['combination_id']}"
        + ("" if region else f" ({row['workload'].rpartition('/')[2]})")
        + ("" if row["region"] == region else f" in {row['region']}")
        for row in rows
    ]
    return wrapped("then " + ", ".join(parts), indent=6, style="dim")


def _rules(why: Document) -> list[Line]:
    if not why["rules"]:
        return []
    rows = [(change(row["cost"], why), rule_text(row["rule"], row["is_on"])) for row in why["rules"]]
    width = max(len(cost) for cost, _ in rows)
    return [Line("What rules cost", "bold"), *(Line(f"  {cost.rjust(width)}  {text}") for cost, text in rows)]


def change(cost: Document, why: Document) -> str:
    """A cost as the change from the plan's: ``+0.37``, ``+0.2..+0.9``, ``at least +0.2``, ``impossible``."""
    if cost["is_impossible"]:
        return "impossible"
    base = why["cost_usd_per_h"]
    low = _signed(cost["low"] - base)
    if cost["high"] is None:
        return f"at least {low}" if cost["low"] > base + _SAME_USD else "not known"
    high = _signed(cost["high"] - base)
    return high if low == high else f"{low}..{high}"


def _signed(value: float) -> str:
    return "0.00" if abs(value) < _SAME_USD else f"{value:+,.2f}"
