"""The static report of a simulation: ``python -m dashboards.simulation_report SIMULATION.json OUT.html``.

Reads the document that ``coral simulate --json`` prints; writes one HTML file that needs no network.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dashboards.page import escape, page, table
from dashboards.simulation_charts import (
    floor_percent,
    goodput_chart,
    latency_chart,
    queue_chart,
    utilization_chart,
)

Row = dict[str, Any]
_LATENCY = ["workload", "SLO ms", "p50 ms", "p95 ms", "p99 ms", "within", "asked", ""]
_USE = ["workload", "goodput req/s", "nodes", "load", "busy", "queue mean", "queue max"]


def report(document: Row) -> str:
    """The report as HTML."""
    specs: dict[str, Row] = {}
    parts = [_head(document)]
    streams = document["streams"]
    if len(streams) > 1:
        links = "".join(f'<a href="#stream{i}">{escape(stream["text"])}</a>' for i, stream in enumerate(streams))
        parts.append(f"<nav>{links}</nav>")
    parts += [_stream(document, i, specs) for i in range(len(streams))]
    parts.append(_foot(document))
    return page(f"Simulation of {document['scenario_id']}, plan {document['plan_version']}", "".join(parts), specs)


def _head(document: Row) -> str:
    rows = [row for stream in document["streams"] for row in stream["workloads"] if row["is_met"] is not None]
    missed = list(dict.fromkeys(row["workload"] for row in rows if not row["is_met"]))
    if missed:
        verdict = (
            f"<b>✕ {len(missed)} of {len({row['workload'] for row in rows})} workloads miss their SLO:</b> "
            + escape(", ".join(missed))
        )
    else:
        verdict = "<b>✓ Every workload keeps its SLO.</b>"
    seeds = max(stream["seeds"] for stream in document["streams"])
    runs = f"{document['minutes']:g} minutes" + (f", {seeds} seeds" if seeds > 1 else "")
    return (
        f"<h1>Simulation of {escape(document['scenario_id'])}, plan {document['plan_version']}</h1>"
        f'<p class="quiet">{document["cost_usd_per_h"]:,.2f} USD/h at prices of {escape(document["price_as_of"])}; '
        f"{runs}</p>{_change(document)}"
        f'<div class="card verdict{" missed" if missed else ""}">{verdict}</div>'
    )


def _change(document: Row) -> str:
    change = document["change"]
    if change is None:
        return ""
    start, startup = change["switch_minute"], change["startup_minutes"]
    return (
        f'<p class="quiet">Starts on plan {change["from_plan_version"]} ({change["from_cost_usd_per_h"]:,.2f} USD/h); plan '
        f"{document['plan_version']} is asked for at minute {start:g}, its new instances are up {startup:g} minutes later."
        "</p>"
    )


def _stream(document: Row, number: int, specs: dict[str, Row]) -> str:
    stream = document["streams"][number]
    text = stream["text"][0].upper() + stream["text"][1:]
    parts = [f'<h2 id="stream{number}">{escape(text)}</h2>', f'<div class="card">{_summary(stream)}</div>']
    for index, model in enumerate(stream["models"]):
        parts.append(_model(document, stream, model, f"s{number}m{index}", specs))
    name = f"s{number}use"
    specs[name] = utilization_chart(stream["nodes"], [row["workload"] for row in stream["workloads"]])
    parts.append(
        '<div class="card"><h3>How busy each node is</h3>'
        '<p class="quiet">One mark per node. Decode nodes run passes whenever a sequence is in flight: see their load above '
        f'for what is left.</p><div class="chart" id="{name}"></div></div>'
    )
    return "".join(parts)


def _summary(stream: Row) -> str:
    """What was waited, and what was used; one row per workload in both."""
    latency, use = [], []
    for row in stream["workloads"]:
        state = {True: ("✓ kept", "good"), False: ("✕ missed", "bad"), None: ("idle", "")}[row["is_met"]]
        share = row["attained"]
        name = (row["workload"], "")
        times = [(_ms(row["latency_ms"][p]), "") for p in ("p50", "p95", "p99")]
        within = ("–" if share is None else floor_percent(share), "bad" if row["is_met"] is False else "")
        latency.append([name, (f"{row['slo_ms']:,g}", ""), *times, within, (f"{row['slo_percentile']:g} %", ""), state])
        cells = [
            f"{row['goodput_req_per_s']:.2f}", str(row["nodes"]), _percent(row["load"]), _percent(row["utilization_mean"]),
            _count(row["queue_mean"]), f"{row['queue_max']:,.0f}",
        ]  # fmt: skip
        use.append([name, *((text, "") for text in cells)])
    return f'<div class="pair">{table(_LATENCY, latency)}{table(_USE, use)}</div>'


def _model(document: Row, stream: Row, model: Row, name: str, specs: dict[str, Row]) -> str:
    mine = [row for row in stream["workloads"] if row["model"] == model["model"] and row["requests"]]
    series = stream["series"]
    course = next(row for row in series["models"] if row["alias"] == model["alias"])
    for row in mine:
        specs[f"{name}{row['phase']}"] = latency_chart(row, document["cdf_grid"])
    queues = [
        (row["workload"].rsplit("/", 1)[1], row["queue"])
        for row in series["workloads"]
        if row["workload"] in {w["workload"] for w in mine}
    ]
    specs[f"{name}queue"] = queue_chart(series["time_s"], queues, series["window_s"])
    specs[f"{name}good"] = goodput_chart(
        series["time_s"], course["offered_req_per_s"], course["goodput_req_per_s"], series["window_s"]
    )
    charts = "".join(f'<div class="chart" id="{id_}"></div>' for id_ in specs if id_.startswith(name))
    both = "no requests" if model["attained"] is None else f"{floor_percent(model['attained'])} within both SLOs"
    for row in stream.get("change", ()):
        if row["alias"] == model["alias"] and row["attained"] is not None:
            both += f"; {floor_percent(row['attained'])} of {row['requests']:,} during the change"
    lost = "".join(f"; {count:,} {reason.replace('_', ' ')}" for reason, count in model["lost"].items())
    return (
        f'<div class="card"><h3>{escape(model["alias"])}</h3><p class="quiet">{model["requests"]:,} requests, {both}'
        f'{escape(lost)}</p><div class="grid">{charts}</div></div>'
    )


def _foot(document: Row) -> str:
    ttft = (
        "Time to first token includes the way of the KV to the decode instance"
        if document["counts_transfer"]
        else "Time to first token ends with prefill; the way of the KV to the decode instance counts nowhere"
    )
    notes = [
        f"{ttft}; time per output token runs from there on, wait for a slot included.",
        "Load is tokens asked for over the rate stored for the templates; busy is the share of time that passes run.",
        f"The first {document['warm_up_s']:g} s are not counted. Shares are over all seeds, percentiles and use are means "
        "over seeds, the course over time is the first seed's.",
        *document["notes"],
        "Times are simulated from the profiles the plan was made with, not measured.",
    ]
    items = "".join(f"<li>{escape(note[:1].upper() + note[1:])}</li>" for note in notes)
    return f'<h2>How to read this</h2><div class="card"><ul>{items}</ul></div>'


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def main(arguments: list[str]) -> int:
    """Draw the report of the document in the first file into the second."""
    source, out = map(Path, arguments)
    out.write_text(report(json.loads(source.read_text())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
