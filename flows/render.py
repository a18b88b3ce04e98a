"""Text for a person: lines of at most 100 columns (ids longer than a column are never cut), tables, figures.

The same data gives the same text; colour is added by the caller, from ``Line.style``, on a terminal only.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 100
HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output; ``style`` is a rich style name, used on a terminal only."""

    text: str
    style: str = ""


def to_text(lines: Iterable[Line]) -> str:
    """The lines without style, joined."""
    return "\n".join(line.text for line in lines)


def number(value: float) -> str:
    """Three significant digits below 100, whole and with thousands separators from there on: 6,210 / 42.7 / 0.128."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def money(value: float) -> str:
    """USD with two decimals, four below 0.1."""
    return f"{value:,.4f}" if 0 < abs(value) < 0.1 else f"{value:,.2f}"


def percent_up(fraction: float) -> str:
    """A fraction as per cent, two decimals, rounded up: a distance to the optimum is never understated."""
    hundredths = math.ceil(max(0.0, fraction) * 10_000 - 1e-9)
    return f"{hundredths / 100:.2f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int], indent: int = 2) -> list[str]:
    """Columns padded to their widest cell, two spaces apart; columns listed in ``right`` are right-aligned."""
    grid = [header, *rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(header))]

    def cell(row: Sequence[str], column: int) -> str:
        pad = str.rjust if column in right else str.ljust
        return pad(row[column], widths[column])

    return [(" " * indent + "  ".join(cell(row, c) for c in range(len(header)))).rstrip() for row in grid]


def wrapped(text: str, *, indent: int = 2, style: str = "") -> list[Line]:
    """``text`` over as many lines as it needs; words (ids, numbers) are never broken."""
    parts = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Line(part, style) for part in parts]
