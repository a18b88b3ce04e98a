"""Charts of a simulation: latency against its SLO, queues and goodput over time, how busy nodes are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from dashboards.page import BLUE, GREY, INK, ORANGE, VERMILION

Row = dict[str, Any]
_HEIGHT = 190
_NAMES = {"prefill": "time to first token", "decode": "time per output token"}


def _finish(chart: Any, title: str, subtitle: str, height: int = _HEIGHT) -> Row:
    """The chart as wide as its place on the page, in the page's type; as a Vega-Lite specification."""
    done = (
        chart.properties(
            width="container",
            height=height,
            title=alt.TitleParams(
                title, subtitle=subtitle, anchor="start", fontSize=13, subtitleFontSize=12, color=INK, offset=8
            ),
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
        .configure(font="system-ui, Segoe UI, Roboto, sans-serif", background="#FFFFFF")
        .configure_title(subtitleColor="#52606D")
        .configure_axis(
            labelFontSize=11, titleFontSize=11, titleFontWeight="normal", labelColor=INK, titleColor="#52606D",
            gridColor="#E6E9ED", domainColor="#9AA5B1", tickColor="#9AA5B1",
        )
        .configure_view(stroke=None)
        .configure_legend(labelFontSize=11, titleFontSize=11, symbolSize=120)
    )  # fmt: skip
    spec: Row = done.to_dict()
    # A name of the format, not an address to load; without it nothing on the page even looks like one.
    spec.pop("$schema", None)
    return spec


def latency_chart(row: Row, grid: Sequence[float]) -> Row:
    """Share of requests within each latency, with the SLO and the percentile it is asked for."""
    slo, asked, total = row["slo_ms"], row["slo_percentile"] / 100, row["requests"]
    shares = [below / total for below in row["below"]]
    first = max(0, next((i for i, share in enumerate(shares) if share > 0.001), 0) - 1)
    last = next((i for i, share in enumerate(shares) if share >= shares[-1]), len(shares) - 1)
    # The SLO is in the picture wherever the requests are.
    ends = min(grid[first], 0.5), max(grid[min(last + 1, len(grid) - 1)], 2.0)
    points = [{"ms": g * slo, "share": s} for g, s in zip(grid, shares, strict=True) if ends[0] <= g <= ends[1]]
    domain = [ends[0] * slo, ends[1] * slo]
    x = alt.X(
        "ms:Q",
        title=f"{_NAMES[row['phase']]}, ms",
        scale=alt.Scale(type="log", domain=domain, nice=False),
        axis=alt.Axis(values=_round_values(*domain), format=",~r", labelOverlap=True, labelSeparation=6),
    )
    y = alt.Y("share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
    colour = VERMILION if row["is_met"] is False else BLUE
    curve = (
        alt.Chart(alt.Data(values=points))
        .mark_line(color=colour, strokeWidth=2.5, interpolate="monotone")
        .encode(
            x=x,
            y=y,
            tooltip=[alt.Tooltip("ms:Q", format=",.3~r"), alt.Tooltip("share:Q", format=".2%", title="within")],
        )
    )
    limit = alt.Chart(alt.Data(values=[{"ms": slo}])).mark_rule(color=INK, strokeDash=[5, 3]).encode(x=x)
    level = alt.Chart(alt.Data(values=[{"share": asked}])).mark_rule(color=GREY, strokeDash=[2, 3]).encode(y=y)
    met = row["met"] / total
    mark = (
        alt.Chart(alt.Data(values=[{"ms": slo, "share": met}]))
        .mark_point(shape="circle" if row["is_met"] else "cross", filled=True, size=90, color=colour, opacity=1)
        .encode(x=x, y=y)
    )
    verdict = "kept" if row["is_met"] else "MISSED"
    subtitle = f"SLO {slo:,g} ms: {floor_percent(met)} within ({row['slo_percentile']:g} %), {verdict}"
    return _finish(alt.layer(level, limit, curve, mark), _NAMES[row["phase"]].capitalize(), subtitle)


def _round_values(low: float, high: float) -> list[float]:
    """Values of 1, 2 and 5 times powers of ten between ``low`` and ``high``; fewer where there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**decade for decade in decades for step in steps]
        kept = [value for value in values if low <= value <= high]
        if len(kept) <= 6:
            break
    return kept


def queue_chart(time_s: Sequence[float], queues: Sequence[tuple[str, Sequence[float]]], window_s: float) -> Row:
    """Requests waiting over time, one line per phase."""
    values = [
        {"minute": t / 60, "waiting": n, "phase": phase}
        for phase, waiting in queues
        for t, n in zip(time_s, waiting, strict=True)
    ]
    names = ["prefill", "decode"]
    most = max((n for _, waiting in queues for n in waiting), default=0.0)
    form = "~s" if most >= 10 else ".2~f"
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line(strokeWidth=1.75)
        .encode(
            x=alt.X("minute:Q", title="minute", axis=alt.Axis(tickCount=6, grid=False)),
            y=alt.Y("waiting:Q", title=None, axis=alt.Axis(tickCount=5, format=form)),
            color=alt.Color(
                "phase:N", title=None, scale=alt.Scale(domain=names, range=[BLUE, ORANGE]), legend=_legend()
            ),
            strokeDash=alt.StrokeDash(
                "phase:N", scale=alt.Scale(domain=names, range=[[1, 0], [4, 2]]), legend=_legend()
            ),
            tooltip=["phase:N", alt.Tooltip("minute:Q", format=".1f"), alt.Tooltip("waiting:Q", format=",.2f")],
        )
    )
    return _finish(chart, "Queue", f"requests waiting for a node, means over {window_s:g} s")


def goodput_chart(time_s: Sequence[float], offered: Sequence[float], good: Sequence[float], window_s: float) -> Row:
    """Requests per second as they come, and those that meet both SLOs: where all do, the narrow line lies on the wide one."""
    names = ["offered", "within both SLOs"]
    color = alt.Color("what:N", title=None, scale=alt.Scale(domain=names, range=[GREY, BLUE]), legend=_legend())
    lines = [
        alt.Chart(
            alt.Data(
                values=[{"minute": t / 60, "rate": rate, "what": what} for t, rate in zip(time_s, rates, strict=True)]
            )
        )
        .mark_line(strokeWidth=width)
        .encode(
            x=alt.X("minute:Q", title="minute of arrival", axis=alt.Axis(tickCount=6, grid=False)),
            y=alt.Y("rate:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)),
            color=color,
            tooltip=["what:N", alt.Tooltip("minute:Q", format=".1f"), alt.Tooltip("rate:Q", format=".2f")],
        )
        for what, rates, width in zip(names, (offered, good), (5, 1.75), strict=True)
    ]
    chart = alt.layer(*lines)
    return _finish(chart, "Goodput", f"requests per second, means over {window_s:g} s")


def _legend() -> alt.Legend:
    return alt.Legend(orient="bottom", direction="horizontal", offset=4, symbolStrokeWidth=2.5)


def utilization_chart(nodes: Sequence[Row], order: Sequence[str]) -> Row:
    """How busy each node is: one mark per node, a row per workload and node configuration."""
    values: list[Row] = []
    seen: dict[tuple[str, str], int] = {}
    for node in nodes:
        name = f"{node['workload']} · {node['node_config']}"
        # Nodes at one value side by side, in a fixed pattern.
        number = seen.setdefault((name, f"{node['utilization']:.2f}"), 0)
        seen[name, f"{node['utilization']:.2f}"] += 1
        values.append(
            {
                "row": name,
                "phase": "prefill" if node["workload"].endswith("/prefill") else "decode",
                "busy": node["utilization"],
                "side": ((number + 1) // 2) * (1 if number % 2 else -1) / 6 % 1 if number else 0.0,
                "region": node["region"],
                "instance": node["instance"],
                "stage": node["stage"] + 1,
                "requests": node["mean_requests"],
            }
        )
    rows = sorted({value["row"] for value in values}, key=lambda name: (order.index(name.split(" · ")[0]), name))
    names = ["prefill", "decode"]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_point(filled=True, size=80, opacity=0.8)
        .encode(
            x=alt.X(
                "busy:Q", title="share of time busy", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=6)
            ),
            y=alt.Y("row:N", sort=rows, title=None, axis=alt.Axis(labelLimit=320, grid=True)),
            color=alt.Color("phase:N", title=None, scale=alt.Scale(domain=names, range=[BLUE, ORANGE]), legend=_legend()),
            shape=alt.Shape(
                "phase:N", scale=alt.Scale(domain=names, range=["circle", "square"]), legend=_legend()
            ),
            yOffset=alt.YOffset("side:Q", scale=alt.Scale(domain=[-1, 1])),
            tooltip=[
                "instance:N", "region:N", "stage:Q",
                alt.Tooltip("busy:Q", format=".1%"), alt.Tooltip("requests:Q", format=".1f", title="requests at it"),
            ],
        )
    )  # fmt: skip
    return _finish(chart, "", "", height=34 * len(rows) + 10)


def floor_percent(share: float) -> str:
    """A share in per cent, rounded down to hundredths: what is not all never reads 100 %."""
    return f"{int(share * 10_000 + 1e-9) / 100:.2f} %"
