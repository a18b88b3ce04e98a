"""A static page with charts: one HTML file that holds its scripts and data, and forbids the browser to load anything else."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

import vl_convert
from altair.utils._importers import vl_version_for_vl_convert

# Okabe and Ito's colours: told apart by colour-blind readers, and by lightness in print.
BLUE, ORANGE, GREEN, VERMILION, GREY, INK = "#0072B2", "#E69F00", "#009E73", "#C2410C", "#8A8F98", "#1F2933"

# Whatever the page holds, nothing is fetched: no script, style, picture, font or request from anywhere.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #F5F6F8; color: #1F2933; font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 24px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 40px 0 12px; }
h3 { font-size: 16px; margin: 0; }
p { margin: 4px 0; }
.quiet { color: #52606D; }
.card { background: #FFF; border: 1px solid #DDE1E6; border-radius: 8px; padding: 16px; margin: 12px 0; }
.verdict { border-left: 6px solid #009E73; }
.verdict.missed { border-left-color: #C2410C; }
.grid { display: grid; gap: 8px 20px; grid-template-columns: repeat(4, minmax(0, 1fr)); margin-top: 8px; }
.pair { display: flex; flex-wrap: wrap; gap: 20px 32px; }
.pair > .wide { flex: 1 1 auto; max-width: 100%; }
.pair table { font-size: 13px; } .pair th { font-size: 12px; } .pair th, .pair td { padding: 5px 7px; }
.chart { min-width: 0; width: 100%; }
.chart.vega-embed { display: block; padding: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid #E6E9ED; white-space: nowrap; }
th { font-weight: 600; color: #52606D; font-size: 13px; }
th:first-child, td:first-child { text-align: left; }
td.bad { color: #A63A0A; font-weight: 600; }
td.good { color: #00684C; }
ul { margin: 4px 0; padding-left: 20px; }
nav a { margin-right: 16px; color: #005A8C; }
@media (max-width: 1100px) { .grid { grid-template-columns: repeat(2, minmax(0, 1fr)); } main { padding: 16px; } }
@media (max-width: 520px) { .grid { grid-template-columns: minmax(0, 1fr); } }
@media print { body { background: #FFF; } .card { break-inside: avoid; } }
"""

_DRAW = """
const specs = JSON.parse(document.getElementById("specs").textContent);
const options = {mode: "vega-lite", actions: false, renderer: "svg", tooltip: true};
Promise.all(Object.entries(specs).map(([id, spec]) => vegaEmbed("#" + id, spec, options)))
  .then(() => { document.body.dataset.drawn = "yes"; })
  .catch((error) => { console.error(error); throw error; });
"""


def escape(text: object) -> str:
    """``text`` as it may stand in HTML."""
    return html.escape(str(text))


def counted(number: int, one: str, many: str = "") -> str:
    """``1 row``, ``2 rows``; ``many`` where more than one is not ``one`` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def page(title: str, body: str, specs: Mapping[str, dict[str, Any]]) -> str:
    """The whole file. ``specs``: Vega-Lite charts by the id of the element of ``body`` each is drawn in."""
    scripts = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # An icon of its own, else the browser asks the server for one.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<main>{body}</main>",
            f'<script type="application/json" id="specs">{_data(json.dumps(specs, allow_nan=False))}</script>',
            f"<script>{_code(scripts)}</script>",
            f"<script>{_DRAW}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def _data(text: str) -> str:
    """JSON as the text of a script element: nothing in it may end the element."""
    return text.replace("</", "<\\/").replace("<!--", "<\\u0021--")


def _code(text: str) -> str:
    """A program as the text of a script element. Only in its strings can the end of one stand."""
    return text.replace("</script", "<\\/script")


def table(header: list[str], rows: list[list[tuple[str, str]]]) -> str:
    """An HTML table; a cell is (text, class). A column of text has its heading above the text."""
    kinds = [kind if kind in {"text", "wrap"} else "" for _, kind in rows[0]] if rows else [""] * len(header)
    head = "".join(
        f'<th scope="col" class="{"text" if kind else ""}">{escape(name)}</th>'
        for name, kind in zip(header, kinds, strict=True)
    )
    lines = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{escape(text)}</td>' for text, kind in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
