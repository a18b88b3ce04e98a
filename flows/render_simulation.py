"""A simulation as text for a person: what each workload's requests waited, whether its SLO holds, how busy its nodes are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from catalogs.wording import counted
from flows.render import WIDTH, Line, number, table

_MISSED = "bold red"
_VERDICT = {True: "kept", False: "MISSED", None: "idle"}
_LOST = {
    "no_prefill_instance": "found no prefill instance",
    "no_decode_instance": "found no decode instance in their region",
    "too_long": "were longer than any instance's KV memory",
}
Row = Mapping[str, Any]


def simulation_lines(document: Row) -> list[Line]:
    """The whole of ``coral simulate``; lines of at most 100 columns for names of usual length."""
    seeds = {stream["seeds"] for stream in document["streams"]}
    lines = [
        Line(
            f"Simulation of {document['scenario_id']}, plan {document['plan_version']} "
            f"({document['cost_usd_per_h']:,.2f} USD/h): {number(document['minutes'])} minutes"
            + (f", {max(seeds)} seeds" if max(seeds) > 1 else ""),
            "bold",
        ),
        Line(f"  latency: of prefill TTFT, {_ttft_text(document)}; of decode TPOT from there on"),
        Line("  load: tokens asked for per rate stored for the templates; busy: share of time that passes run"),
    ]
    if document["change"] is not None:
        lines.insert(1, Line(f"  {change_text(document)}"))
    for stream in document["streams"]:
        lines += [Line(""), Line(stream["text"], "bold"), *_workloads(stream), Line(""), *_models(stream["models"])]
        if document["change"] is not None:
            lines += [
                Line(""),
                Line(f"during the change ({window_text(document)})", "bold"),
                *_models(stream["change"]),
            ]
    return [*lines, Line(""), *_verdict(document)]


def change_text(document: Row) -> str:
    """The change of plans in words."""
    change = document["change"]
    return (
        f"starts on plan {change['from_plan_version']} ({change['from_cost_usd_per_h']:,.2f} USD/h); plan "
        f"{document['plan_version']} is asked for at minute {number(change['switch_minute'])}, its new instances are up "
        f"{number(change['startup_minutes'])} minutes later"
    )


def window_text(document: Row) -> str:
    """The time that counts as the change, in minutes."""
    change = document["change"]
    end = change["switch_minute"] + change["startup_minutes"] + change["settle_minutes"]
    return f"minutes {number(change['switch_minute'])} to {number(min(end, document['minutes']))}"


def _ttft_text(document: Row) -> str:
    if document["counts_transfer"]:
        return "with the KV's way to the decode instance"
    return "without the KV's way to the decode instance"


def _workloads(stream: Row) -> list[Line]:
    header = ("workload", "SLO ms", "p50", "p95", "p99", "within", "asked", "", "req/s", "load", "busy", "queue", "max")
    rows, missed = [], []
    for row in stream["workloads"]:
        at = row["latency_ms"]
        rows.append(
            (
                row["workload"],
                number(row["slo_ms"]),
                *(_ms(at[name]) for name in ("p50", "p95", "p99")),
                share(row["attained"]),
                f"{number(row['slo_percentile'])} %",
                _VERDICT[row["is_met"]],
                number(row["goodput_req_per_s"]),
                _percent(row["load"]),
                _percent(row["utilization_mean"]),
                number(row["queue_mean"]),
                number(row["queue_max"]),
            )
        )
        missed.append(row["is_met"] is False)
    texts = table(header, rows, right=range(1, len(header)))
    return [Line(texts[0])] + [Line(text, _MISSED if bad else "") for text, bad in zip(texts[1:], missed, strict=True)]


def _models(models: Sequence[Row]) -> list[Line]:
    header = ("model", "requests", "offered req/s", "goodput req/s", "within both", "worst seed", "KV transfer p99 ms")
    rows = [
        (
            row["alias"],
            f"{row['requests']:,}",
            number(row["offered_req_per_s"]),
            number(row["goodput_req_per_s"]),
            share(row["attained"]),
            share(row["attained_worst"]),
            _ms(row["kv_transfer_ms"]["p99"]),
        )
        for row in models
    ]
    lines = [Line(text) for text in table(header, rows, right=range(1, len(header)))]
    for row in models:
        for reason, count in row["lost"].items():
            lines.append(Line(f"  {row['alias']}: {counted(count, 'request')} {_LOST.get(reason, reason)}", _MISSED))
    return lines


def _verdict(document: Row) -> list[Line]:
    rows = [row for stream in document["streams"] for row in stream["workloads"]]
    missed = [row["workload"] for row in rows if row["is_met"] is False]
    idle = sum(row["is_met"] is None for row in rows)
    if idle == len(rows):
        return [Line("no request came: this says nothing of the SLOs")]
    if not missed:
        return [Line(f"every workload{' that got requests' if idle else ''} keeps its SLO", "green")]
    where = " in one stream or more" if len(document["streams"]) > 1 else ""
    text = f"SLO missed{where} by {', '.join(dict.fromkeys(missed))}"
    return [Line(part, _MISSED) for part in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]


def share(value: float | None) -> str:
    """A share in per cent, rounded down to hundredths: one that is not all is never shown as 100 %."""
    return "-" if value is None else f"{int(value * 10_000 + 1e-9) / 100:.2f} %"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def _ms(value: float | None) -> str:
    return "-" if value is None else number(value)


def validation_lines(document: Row) -> list[Line]:
    """The whole of ``coral simulate --validate``."""
    lines = [Line("The simulator against what was measured", "bold")]
    rows = [
        (
            row["set"], row["case"], row["what"], f"{number(row['measured'])} {row['unit']}",
            f"{number(row['simulated'])} {row['unit']}", f"{row['error_pct']:+.1f} %",
        )
        for row in document["rows"]
    ]  # fmt: skip
    header = ("set", "case", "what", "measured", "simulated", "error")
    lines += [Line(text) for text in table(header, rows, right=(3, 4, 5))]
    lines += [Line(""), Line("Errors", "bold")]
    rows = [
        (
            row["set"], row["kind"], str(row["n"]), f"{row['mean_abs_error_pct']:.1f} %",
            f"{row['mean_error_pct']:+.1f} %", f"{row['largest_error_pct']:+.1f} %",
        )
        for row in document["summary"]
    ]  # fmt: skip
    header = ("set", "kind", "comparisons", "mean size", "mean", "largest")
    lines += [Line(text) for text in table(header, rows, right=(2, 3, 4, 5))]
    own = f"Helix's own simulator is {document['helix_simulator_vs_prototype_pct']:.1f} % off its prototype on average."
    lines += [Line(f"  {own}"), Line(""), Line("Not validated", "bold")]
    for text in document["unvalidated"]:
        lines += [Line(part) for part in textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ")]
    return lines
