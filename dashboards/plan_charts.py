"""Cost, demand and prices over time: three charts above one another whose time axes are one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import altair as alt

from dashboards.page import INK
from dashboards.picture import QUIET

Row = dict[str, Any]

# Okabe and Ito's; a seventh series and more differ by their dashes, and each is named at its end.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#B35C93", "#8A6D00", "#4D4D4D")
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
_MOST = 8  # lines in one chart
_AXIS_W = 52
_AND = ", "  # between the names of series drawn as one


def course_charts(course: dict[str, list[Row]], selected: datetime) -> list[tuple[str, Any]]:
    """(name, chart) of cost, demand and prices; ``course`` as :func:`dashboards.plan_data.course` gives it, ``selected`` is
    when the version on the page was made."""
    times = [row["time"] for name in ("cost", "demand", "price", "seen", "told") for row in course[name]]
    if not times:
        return []
    first, last = min(times), max(times)
    span = max(last - first, timedelta(minutes=1))
    domain = [_iso(first - span * 0.02), _iso(last + span * 0.02)]
    drawn: tuple[tuple[str, str, list[Row], bool], ...] = (
        ("cost", "Cost of the plan, USD/h", [], False),
        ("demand", "Demand planned for, req/s", course["seen"], False),
        ("price", "Price of the machines rented, USD/h", course["told"], True),
    )
    return [
        (name, _steps(course[name], domain, selected, title, seen, is_log=is_log))
        for name, title, seen, is_log in drawn
        if course[name]
    ]


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")


def _values(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "time": _iso(row["time"])} for row in rows]


def _steps(
    rows: Sequence[Row],
    domain: list[str],
    selected: datetime,
    title: str,
    seen: Sequence[Row] = (),
    *,
    is_log: bool = False,
) -> Any:
    """Lines that hold their value until the next version; ``seen`` are single points behind them, as a feed told."""
    rows, left_out = _largest(rows)
    drawn = {row["name"] for row in rows}
    rows, told = _merged(rows, [row for row in seen if row["name"] in drawn])
    names = list(dict.fromkeys(row["name"] for row in rows))
    colours = [SERIES[i % len(SERIES)] for i in range(len(names))]
    dashes = [_DASHES[(i // len(SERIES)) % len(_DASHES)] for i in range(len(names))]
    # Nothing but UTC on the page: a reader's own zone would move the axis away from the tables.
    x = alt.X(
        "time:T",
        title=None,
        scale=alt.Scale(type="utc", domain=domain, nice=False),
        axis=alt.Axis(grid=False, tickCount=6, labelOverlap=True, labelFlush=True, format=_time_format(domain)),
    )
    scale = alt.Scale(type="log", nice=False, padding=8) if is_log else alt.Scale(zero=True, nice=True)
    ticks = _round_values([row["value"] for row in [*rows, *told]]) if is_log else alt.Undefined
    y = alt.Y(
        "value:Q",
        title=None,
        scale=scale,
        axis=alt.Axis(values=ticks, tickCount=4, minExtent=_AXIS_W, maxExtent=_AXIS_W, format=",~r"),
    )
    legend = _legend(names)
    colour = alt.Color("name:N", title=None, sort=names, scale=alt.Scale(domain=names, range=colours), legend=legend)
    dash = alt.StrokeDash("name:N", title=None, sort=names, scale=alt.Scale(domain=names, range=dashes), legend=legend)
    tooltip = [
        alt.Tooltip("name:N", title=" "),
        alt.Tooltip("value:Q", format=",.2f", title="value"),
        alt.Tooltip("version:Q", title="version"),
        alt.Tooltip("utchoursminutes(time):T", title="time", format="%Y-%m-%d %H:%M UTC"),
    ]
    base = alt.Chart(alt.Data(values=_values(rows)))
    layers = []
    if told:
        layers.append(
            alt.Chart(alt.Data(values=_values(told)))
            .mark_point(size=14, opacity=0.45)
            .encode(x=x, y=y, color=colour, tooltip=[*tooltip[:2], tooltip[-1]])
        )
    rule = alt.Chart(alt.Data(values=[{"time": _iso(selected)}]))
    layers += [
        rule.mark_rule(color=INK, strokeDash=[3, 3], opacity=0.7).encode(x=x),
        base.mark_line(interpolate="step-after", strokeWidth=2.25).encode(x=x, y=y, color=colour, strokeDash=dash),
        base.transform_filter("datum.version !== null")
        .mark_point(filled=True, size=46, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]
    notes = [f"the {_MOST} highest; {left_out} more are left out"] if left_out else []
    if told:
        notes.append("small points: as a feed told" + (", before any discount" if is_log else ""))
    return finish(alt.layer(*layers), title, "; ".join(notes), height=150)


def _time_format(domain: Sequence[str]) -> str:
    """Hours where the axis covers less than two days, else dates."""
    first, last = map(datetime.fromisoformat, domain)
    return "%b %d %H:%M" if last - first < timedelta(days=2) else "%Y-%m-%d"


def _round_values(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten that lie among ``values``."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    steps = [step * 10.0**decade for decade in range(-3, 4) for step in (1, 2, 5)]
    return [value for value in steps if low * 0.95 <= value <= high * 1.05]


def _largest(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """The series of the highest last values, and how many are left out."""
    last = {row["name"]: row["value"] for row in rows}
    kept = sorted(last, key=lambda name: (-last[name], name))[:_MOST]
    return [row for row in rows if row["name"] in kept], len(last) - len(kept)


def _merged(rows: Sequence[Row], told: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """``rows`` and ``told`` with series that agree in every value as one, under all their names: else one hides the others."""
    values: dict[str, list[tuple[str, Any, float]]] = {}
    for kind, some in (("row", rows), ("told", told)):
        for row in some:
            values.setdefault(row["name"], []).append((kind, row["time"], row["value"]))
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, series in values.items():
        alike.setdefault(tuple(series), []).append(name)
    whole = {name: _AND.join(names) for names in alike.values() for name in names}
    first = {names[0] for names in alike.values()}
    merged = [[{**row, "name": whole[row["name"]]} for row in some if row["name"] in first] for some in (rows, told)]
    return merged[0], merged[1]


def _legend(names: Sequence[str]) -> alt.Legend | None:
    if len(names) < 2 and not any(_AND in name for name in names):
        return None
    return alt.Legend(
        orient="bottom", direction="horizontal", columns=4, offset=6, symbolType="stroke", symbolStrokeWidth=3
    )


def finish(chart: Any, title: str, subtitle: str = "", *, height: int) -> Any:
    """As wide as its place, in the page's type."""
    return (
        chart.properties(
            width="container",
            height=height,
            title=alt.TitleParams(
                title, subtitle=subtitle or alt.Undefined, anchor="start", fontSize=14, subtitleFontSize=12, color=INK, offset=8
            ),
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
            background="#FFFFFF",
            usermeta={"embedOptions": {"actions": False}},
        )
        .configure(font="system-ui, Segoe UI, Roboto, sans-serif")
        .configure_title(subtitleColor=QUIET)
        .configure_axis(
            labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelColor=INK, titleColor=QUIET,
            gridColor="#E6E9ED", domainColor="#9AA5B1", tickColor="#9AA5B1",
        )
        .configure_view(stroke=None)
        .configure_legend(labelFontSize=12, titleFontSize=12, symbolSize=140, labelLimit=260)
    )  # fmt: skip
