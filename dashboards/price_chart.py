"""A static chart of the prices that a scenario's plans paid. ``python -m dashboards.price_chart PRICES.json OUT.svg``.

The input is a list of ``{"at": ISO time, "what": machine, "price_usd_per_h": number}``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import altair as alt

from dashboards.page import BLUE, GREY, INK, ORANGE, VERMILION

_SIZE = (640, 240)
_COLOURS = [BLUE, ORANGE, VERMILION, GREY]


def chart(prices: list[dict[str, Any]]) -> alt.Chart:
    """One line per machine over the time of the plan that pays it; a point per plan."""
    names = sorted({row["what"] for row in prices})
    return (
        alt.Chart(alt.Data(values=prices))
        .mark_line(point=True, interpolate="step-after")
        .encode(
            x=alt.X("at:T", title="plan published (UTC)", scale=alt.Scale(type="utc")),
            y=alt.Y("price_usd_per_h:Q", title="USD/h for one machine", scale=alt.Scale(zero=True)),
            color=alt.Color(
                "what:N",
                title=None,
                # Four colours that everybody tells apart; more machines take the scheme's.
                scale=alt.Scale(domain=names, range=_COLOURS[: len(names)])
                if len(names) <= len(_COLOURS)
                else alt.Scale(domain=names),
            ),
        )
        .properties(width=_SIZE[0], height=_SIZE[1], title="Prices paid")
        .configure(font="system-ui, Segoe UI, Roboto, sans-serif", background="#FFFFFF")
        .configure_title(color=INK, anchor="start", fontSize=13)
    )


def main(arguments: list[str]) -> None:
    """Draw the prices of the first file into the second."""
    source, out = arguments
    chart(json.loads(Path(source).read_text())).save(out, format="svg")


if __name__ == "__main__":
    main(sys.argv[1:])
