"""Plans as pictures: each replica drawn as its pipeline, stage by stage with layers and nodes, in SVG.

``python -m dashboards.picture PLAN.json OUT.svg`` draws a whole plan (``coral plans picture`` calls it); the dashboards use
:func:`replica`. The picture loads nothing, and colour never says alone what text does not say too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from dashboards.page import INK, counted, escape

Row = Mapping[str, Any]

QUIET, LINE = "#52606D", "#C5CCD3"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
# Okabe and Ito's colours, in the order in which GPU types take them; dark enough to be seen on white as an edge.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A6D00", "#4D4D4D")
_GPU_OF = re.compile(r"^(.*)x(\d+)$")

_STAGE_W, _GAP, _CHIP_H, _CHIP_GAP, _HEAD_H, _BAR_H = 152, 22, 50, 6, 20, 8
_PER_ROW = 4  # stages side by side: four fit a page of 800 pixels
_ROW_GAP = 12
_MAX_TEXT = 23


def gpu_of(node_config: str) -> tuple[str, int]:
    """GPU type and count of a node configuration: ``L40Sx4`` -> ("L40S", 4)."""
    match = _GPU_OF.match(node_config)
    return (match[1], int(match[2])) if match else (node_config, 1)


def gpu_colours(plans: Iterable[Row]) -> dict[str, str]:
    """A colour for every GPU type the plans use, the same one wherever the plans are shown together."""
    gpus = sorted(
        {
            gpu_of(node["node_config"])[0]
            for plan in plans
            for instance in plan["instances"]
            for stage in instance["stages"]
            for node in stage["nodes"]
        }
    )
    return {gpu: _PALETTE[i % len(_PALETTE)] for i, gpu in enumerate(gpus)}


def replica(instance: Row, colours: Mapping[str, str]) -> str:
    """One replica as an SVG of its own, in its natural size."""
    body, width, height = _pipeline(instance["stages"], colours)
    label = escape(f"{instance['workload']} on {instance['combination_id']}: {_spoken(instance['stages'])}")
    return (
        f'<svg class="replica" role="img" aria-label="{label}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}">{body}</svg>'
    )


def _spoken(stages: Sequence[Row]) -> str:
    """The pipeline in words, for readers that see no pictures."""
    return "; ".join(
        f"layers {stage['layers'][0]} to {stage['layers'][1]} on "
        + " and ".join(f"{count} {node['node_config']}" for count, node in _grouped(stage["nodes"]))
        for stage in stages
    )


def _grouped(nodes: Sequence[Row]) -> list[tuple[int, Row]]:
    """Nodes that are alike, counted, in order."""
    return [(len(list(alike)), node) for node, alike in groupby(nodes, key=dict)]


def _pipeline(stages: Sequence[Row], colours: Mapping[str, str]) -> tuple[str, int, int]:
    """(SVG, width, height) of a pipeline: a bar with the share of the layers, and below it each stage with its nodes."""
    columns = min(len(stages), _PER_ROW)
    width = columns * _STAGE_W + (columns - 1) * _GAP
    parts = [_layer_bar(stages, colours, width)]
    top = _BAR_H + 8
    for start in range(0, len(stages), _PER_ROW):
        row = stages[start : start + _PER_ROW]
        height = _HEAD_H + max(len(_grouped(stage["nodes"])) for stage in row) * (_CHIP_H + _CHIP_GAP)
        for column, stage in enumerate(row):
            left = column * (_STAGE_W + _GAP)
            parts.append(_stage(stage, colours, left, top))
            if start + column + 1 < len(stages):
                parts.append(_arrow(left + _STAGE_W + 3, top + _HEAD_H + _CHIP_H // 2))
        top += height + _ROW_GAP
    return "".join(parts), width, top - _ROW_GAP - _CHIP_GAP + 2


def _layer_bar(stages: Sequence[Row], colours: Mapping[str, str], width: int) -> str:
    total = stages[-1]["layers"][1] + 1
    parts = []
    for stage in stages:
        first, last = stage["layers"]
        left, right = width * first / total, width * (last + 1) / total
        colour = colours[gpu_of(stage["nodes"][0]["node_config"])[0]]
        parts.append(
            f'<rect x="{left + 0.75:.1f}" y="0" width="{right - left - 1.5:.1f}" height="{_BAR_H}" rx="2" fill="{colour}"/>'
        )
    return "".join(parts)


def _stage(stage: Row, colours: Mapping[str, str], left: int, top: int) -> str:
    first, last = stage["layers"]
    layers = f"layers {first}–{last}" if last > first else f"layer {first}"
    parts = [_text(left, top + 13, layers, size=12, fill=QUIET)]
    is_shared = len(stage["nodes"]) > 1
    for number, (count, node) in enumerate(_grouped(stage["nodes"])):
        y = top + _HEAD_H + number * (_CHIP_H + _CHIP_GAP)
        parts.append(_chip(node, count, is_shared, colours, left, y))
    return "".join(parts)


def _chip(node: Row, count: int, is_shared: bool, colours: Mapping[str, str], left: int, top: int) -> str:
    gpu, gpus = gpu_of(node["node_config"])
    colour = colours[gpu]
    name = f"{gpus} × {gpu}" if count == 1 else f"{count} nodes, {gpus} × {gpu}"
    layout = [f"TP {node['tp']}"]
    layout += [f"PP {node['pp']}"] if node["pp"] > 1 else []
    layout += [f"DP {node['replicas']}"] if node["replicas"] > 1 else []
    layout += [f"{node['share']:.0%}{' each' if count > 1 else ''}"] if is_shared else []
    return (
        f"<g><title>{escape(node['node_config'])}, {escape(node['instance_type'])}, batch {node['batch']}</title>"
        f'<rect x="{left + 0.5}" y="{top + 0.5}" width="{_STAGE_W - 1}" height="{_CHIP_H - 1}" rx="5" fill="{colour}" '
        f'fill-opacity="0.12" stroke="{LINE}"/>'
        f'<rect x="{left}" y="{top}" width="5" height="{_CHIP_H}" rx="2.5" fill="{colour}"/>'
        + _text(left + 13, top + 16, name, size=13, weight=600)
        + _text(left + 13, top + 30, node["instance_type"], size=11)
        + _text(left + 13, top + 43, " · ".join(layout), size=11, fill=QUIET)
        + "</g>"
    )


def _arrow(left: float, y: float) -> str:
    right = left + _GAP - 8
    return (
        f'<path d="M{left} {y}H{right}M{right - 5} {y - 4}L{right} {y}L{right - 5} {y + 4}" fill="none" '
        f'stroke="{QUIET}" stroke-width="1.5"/>'
    )


def _text(
    x: float, y: float, text: str, *, size: int, fill: str = INK, weight: int = 400, is_whole: bool = False
) -> str:
    """A line of text; one of a chip is cut where it would not fit, ``is_whole`` never."""
    shown = text if is_whole or len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}">{escape(shown)}</text>'


_LABEL_W, _MARGIN, _TITLE_H, _ITEM_HEAD_H, _ITEM_GAP, _INNER_W = 128, 20, 58, 42, 36, 690


def plan_picture(plan: Row) -> str:
    """A whole plan: a band per model, in it each kind of replica with its phase, count, cost, region and pipeline."""
    colours = gpu_colours([plan])
    order = [row["workload"] for row in plan["workloads"]]
    instances = sorted(plan["instances"], key=lambda row: (order.index(row["workload"]), row["region"]))
    parts, top = [], _TITLE_H + _MARGIN
    width = 2 * _MARGIN + _LABEL_W + _INNER_W
    for model, rows in groupby(instances, key=lambda row: str(row["workload"]).rpartition("/")[0]):
        parts.append(f'<path d="M{_MARGIN} {top - 12}H{width - _MARGIN}" stroke="{LINE}"/>')
        parts.append(_text(_MARGIN, top + 14, model, size=14, weight=600))
        body, top = _band(list(rows), colours, top)
        parts.append(body)
    top += _MARGIN - 24
    machines = sum(row["nodes"] for row in plan["offers"])
    regions = sorted({row["region"] for row in plan["offers"]})
    head = f"Plan of {plan['scenario_id']}, version {plan['plan_version']}: {plan['cost_usd_per_h']:,.2f} USD/h"
    under = (
        f"{counted(machines, 'machine')} in {counted(len(regions), 'region')}, prices of "
        f"{plan['inputs']['price_as_of']}; within {plan['gap']:.2%} of the best plan this library can express"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
        f'font-family="{escape(FONT)}" role="img"><title>{escape(head)}</title>'
        f'<rect width="100%" height="100%" rx="8" fill="#FFFFFF"/>'
        + _text(_MARGIN, _MARGIN + 14, head, size=18, weight=600, is_whole=True)
        + _text(_MARGIN, _MARGIN + 35, under, size=12, fill=QUIET, is_whole=True)
        + "".join(parts)
        + "</svg>\n"
    )


def _band(rows: Sequence[Row], colours: Mapping[str, str], top: int) -> tuple[str, int]:
    """(SVG, where the next band begins): replicas side by side as long as they fit, then below."""
    parts, left, tallest = [], 0, 0
    for row in rows:
        body, width, height = _pipeline(row["stages"], colours)
        width = max(width, 190)
        if left and left + width > _INNER_W:
            top, left, tallest = top + tallest + 18, 0, 0
        parts.append(f'<g transform="translate({_MARGIN + _LABEL_W + left},{top})">{_head(row)}')
        parts.append(f'<g transform="translate(0,{_ITEM_HEAD_H})">{body}</g></g>')
        left += width + _ITEM_GAP
        tallest = max(tallest, height + _ITEM_HEAD_H)
    return "".join(parts), top + tallest + 24


def _head(row: Row) -> str:
    """What stands over a pipeline: phase, how many, at what cost, where."""
    count, cost = row["instances"], row["cost_usd_per_h"]
    phase = str(row["workload"]).rpartition("/")[2]
    each = f"{count} × {cost:,.2f} USD/h" if count > 1 else f"{cost:,.2f} USD/h"
    return _text(0, 13, f"{phase} · {each}", size=13, is_whole=True) + _text(0, 29, row["region"], size=12, fill=QUIET)


def main(arguments: list[str]) -> int:
    """Draw the plan in the first file (JSON, as `coral plans show --json` prints it) into the second."""
    source, out = map(Path, arguments)
    out.write_text(plan_picture(json.loads(source.read_text())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
