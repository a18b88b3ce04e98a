"""The page of a library as a chart and pieces of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from dashboards.library_data import CLASSES, mark, shown
from dashboards.page import BLUE, counted, escape, table
from dashboards.plan_charts import finish

Row = dict[str, Any]
_KINDS = ("mixed", "one kind of node")
_COLOURS = ("#D55E00", BLUE)
_BEST = 12


def counts(rows: Sequence[Row]) -> str:
    """How many templates pass the filters, and what the best of each kind costs."""
    if not rows:
        return "<p><b>No template passes these filters.</b> Take a filter away, or another region.</p>"
    parts = [f"<b>{len(rows):,}</b> templates"]
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault("mixed" if "+" in row["combination_id"] else "one kind of node", row)
    parts += [
        f"best {kind} {row['usd_per_million_tok']:,.4f} USD per million tokens" for kind, row in sorted(found.items())
    ]
    drawn = len(shown(rows))
    if drawn < len(rows):
        parts.append(f"{drawn:,} of them drawn")
    return f"<p>{'; '.join(parts)}</p>"


def scatter(rows: Sequence[Row]) -> Any:
    """Templates as million tokens per USD against their rate; mixed and unmixed differ by colour and shape."""
    x = alt.X(
        "tokens_per_s:Q",
        title="rate of one replica, tokens per second",
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=_axis(),
    )
    y = alt.Y(
        "million_tok_per_usd:Q", title="million tokens per USD", scale=alt.Scale(zero=True), axis=_axis(tickCount=5)
    )
    drawn = [mark(row) for row in reversed(shown(rows))]
    size, opacity = (90, 0.9) if len(drawn) < 100 else (50, 0.7) if len(drawn) < 1_000 else (30, 0.5)
    chart = (
        alt.Chart(alt.Data(values=drawn))
        .mark_point(filled=True, size=size, opacity=opacity)
        .encode(
            x=x, y=y,
            color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=_KINDS, range=_COLOURS), legend=_legend()),
            shape=alt.Shape("kind:N", title=None, scale=alt.Scale(domain=_KINDS, range=["diamond", "circle"]), legend=_legend()),
            tooltip=[
                alt.Tooltip("nodes:N"), alt.Tooltip("tokens_per_s:Q", title="tok/s", format=",.0f"),
                alt.Tooltip("usd_per_h:Q", title="USD/h", format=",.2f"), alt.Tooltip("region:N"),
                alt.Tooltip("usd_per_million_tok:Q", title="USD per million", format=",.4f"),
                alt.Tooltip("launch_class:N", title="launch class"),
            ],
        )
    )  # fmt: skip
    return finish(
        chart,
        "Tokens per USD against rate",
        "each mark is a template; right = more per replica, up = cheaper",
        height=380,
    )


def _axis(**more: Any) -> alt.Axis:
    return alt.Axis(format="~s", labelOverlap=True, labelSeparation=8, **more)


def _legend() -> alt.Legend:
    return alt.Legend(orient="top", direction="horizontal", offset=4, symbolSize=110, symbolOpacity=1)


def best(rows: Sequence[Row]) -> str:
    """The templates of most tokens per USD."""
    cells = [
        [
            (row["combination_id"].replace("+", " + "), ""), (row["launch_class"], "text"), (row["region"], "text"),
            (f"{row['throughput_tok_per_s']:,.0f}", ""), (f"{row['price_usd_per_h']:,.2f}", ""),
            (f"{row['usd_per_million_tok']:,.4f}", ""), (row["provenance"], "text"),
        ]
        for row in rows[:_BEST]
    ]  # fmt: skip
    header = ["nodes", "class", "region", "tok/s", "USD/h", "USD per million", "rates"]
    classes = "; ".join(CLASSES.values())
    return (
        f'<section class="card"><h2>The {min(_BEST, len(rows))} of most tokens per USD</h2>{table(header, cells)}'
        f'<p class="quiet">Launch classes: {escape(classes)}.</p></section>'
    )


def answer(rows: Sequence[Row], columns: Sequence[str], cut_at: int | None) -> str:
    """Rows of a statement as a table; NULL, and an empty text, are told apart."""
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    note = f"the first {counted(cut_at, 'row')}" if cut_at is not None else counted(len(rows), "row")
    return f'{table(list(columns), cells)}<p class="quiet">{note}</p>'


def _cell(value: Any) -> tuple[str, str]:
    if value is None:
        return "NULL", "text quiet"
    if isinstance(value, bool):
        return str(value).lower(), "text"
    if isinstance(value, int):
        return f"{value:,}", ""
    if isinstance(value, float):
        return f"{value:,.6g}", ""
    return str(value), "text"
