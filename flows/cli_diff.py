"""The difference of two plans as text."""

from __future__ import annotations

from flows.render import Line, money, table
from tasks.allocation.plan_diff import PlanDiff


def change_lines(diff: PlanDiff, *, changed_only: bool = False) -> list[Line]:
    """The table of instances to add, keep and remove; empty where there is none (``changed_only``: or none changes)."""
    rows = [
        (
            row.region,
            row.workload,
            row.combination_id if row.market == "on_demand" else f"{row.combination_id} ({row.market})",
            f"+{row.add}" if row.add else "",
            str(row.keep) if row.keep else "",
            f"-{row.remove}" if row.remove else "",
            "laid out anew" if row.is_laid_out_anew else "",
        )
        for row in diff.rows
        if not changed_only or row.add or row.remove or row.is_laid_out_anew
    ]
    header = ("region", "workload", "combination", "add", "keep", "remove", "")
    return [Line(text) for text in table(header, rows, right=(3, 4, 5))] if rows else []


def diff_lines(diff: PlanDiff) -> list[Line]:
    """The whole of ``coral plans diff``."""
    lines = [Line(f"Plan {diff.scenario_id}, version {diff.before} -> {diff.after}", "bold"), *change_lines(diff)]
    delta = diff.cost_delta_usd_per_h
    sign = "-" if delta < 0 else "+"
    lines.append(
        Line(
            f"  cost {money(diff.cost_before_usd_per_h)} -> {money(diff.cost_after_usd_per_h)} USD/h "
            f"({sign}{money(abs(delta))} USD/h)"
        )
    )
    if diff.is_empty:
        lines.append(Line("  no difference"))
    return lines
