"""The cells of a CSV table: what a column allows, and a text cell as a typed value or a fault with its remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Protocol

from catalogs.errors import CoralError, UnknownNameError, close_matches
from catalogs.ids import NODE_CONFIG_REMEDY, node_config_id, split_node_config

_SPELLINGS_OF_NOTHING = frozenset({"null", "none", "na", "n/a", "nan", "-"})
_HAS_DIGIT = re.compile(r"\d")
# Digits of ours alone, and nothing between them: Python's own float() takes 1_000 and other scripts' digits.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
# Dates of prices, demand and measurements; what lies outside is a slip.
FIRST_YEAR, LAST_YEAR = 2000, 2100
_INTERVAL = re.compile(r"^(0 or )?([\[(])([^,|]*),([^,|]*)([\])])$")


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``required``: ``yes`` = a value in every row, ``no`` = may be absent or blank, ``nullable`` = the
    column must be there and blank means *unknown* (NULL, NaN and dashes are refused: a broken export writes them too)."""

    name: str
    type: str
    unit: str
    required: str
    allowed: str
    key: bool
    description: str
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    or_zero: bool = False

    @property
    def wants(self) -> str:
        """What a right value looks like, in words: ``a number in USD/h in (0, 1000]``."""
        kinds = {
            "number": "a number",
            "integer": "a whole number",
            "flag": "0 or 1",
            "date": "a date such as 2026-07-30",
            "timestamp": "a UTC time such as 2026-07-30T12:00:00Z",
            "gpu": "a GPU id",
            "node_config": "a node configuration such as L40Sx2",
            "text": "a text",
        }
        unit = f" in {self.unit}" if self.unit else ""
        if self.choices:
            return "one of: " + ", ".join(self.choices)
        allowed = self.allowed.replace("or ", "or in ") if self.or_zero else f"in {self.allowed}"
        return kinds[self.type] + unit + (f" {allowed}" if self.allowed else "")


class CellError(Exception):
    """Why a cell is refused and what to write instead; the reader makes a finding of it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class GpuEncoder(Protocol):
    """Turns a spelling into a canonical GPU id, with the row's instance type as a help (see catalogs.gpus)."""

    def __call__(self, name: str, *, instance_type: str = "") -> str:
        """The canonical id, or an error of the catalogs.errors family."""


def says_nothing(cell: str) -> bool:
    """Whether a cell is blank or spells nothing: NULL, NaN, None, a dash."""
    text = cell.strip().lower()
    return text == "" or text in _SPELLINGS_OF_NOTHING


def column_from_row(row: Mapping[str, str]) -> Column:
    """A column from a row of a schema file."""
    allowed = row["allowed"]
    extra: dict[str, Any] = {}
    if match := _INTERVAL.match(allowed):
        or_zero, left, low, high, right = match.groups()
        extra = {
            "low": float(low) if low.strip() else -math.inf,
            "high": float(high) if high.strip() else math.inf,
            "low_open": left == "(",
            "high_open": right == ")",
            "or_zero": bool(or_zero),
        }
    elif allowed:
        extra = {"choices": tuple(allowed.split("|"))}
    return Column(
        row["column"],
        row["type"],
        row["unit"],
        row["required"],
        allowed,
        row["key"] == "1",
        row["description"],
        **extra,
    )


def parse_cell(cell: str, column: Column, encode_gpu: GpuEncoder | None = None, instance_type: str = "") -> Any:
    """The typed value of one cell, None for a blank that is allowed. Raises CellError."""
    text = cell.strip()
    if text == "" or (column.type != "text" and text.lower() in _SPELLINGS_OF_NOTHING):
        if text == "" and column.required != "yes":
            return None
        or_blank = {
            "no": "; leave the cell empty where there is none",
            "nullable": "; leave the cell empty where it is unknown",
        }.get(column.required, "; blank never counts as 0")
        raise CellError("is blank" if text == "" else "is not a value", f"give {column.wants}{or_blank}")
    if column.type in _GPU_PARSERS:
        return _GPU_PARSERS[column.type](text, encode_gpu, instance_type)
    value = _PARSERS[column.type](text, column)
    if column.choices and text not in column.choices:
        near = close_matches(text, column.choices, n=1)
        raise CellError("is not an allowed value", f"did you mean {near[0]}?" if near else f"use {column.wants}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_interval(value, column)
    return value


def _check_interval(value: float, column: Column) -> None:
    too_low = value < column.low or (column.low_open and value == column.low)
    too_high = value > column.high or (column.high_open and value == column.high)
    if not (too_low or too_high) or (column.or_zero and value == 0):
        return
    if value < 0 <= column.low:
        reason = "is negative"
    elif value == 0:
        reason = "is zero"
    else:
        reason = "is too low" if too_low else "is too high"
    check = f"; check the unit, the column is in {column.unit}" if column.unit and value else ""
    raise CellError(reason, f"give {column.wants}{check}")


def plain_number(text: str) -> float | None:
    """``text`` as a number, which may be infinite where it overflows; None where it is not written as one."""
    return float(text) if _NUMBER.fullmatch(text) else None


def _number(text: str, column: Column) -> float:
    value = plain_number(text)
    if value is None and not _INFINITE.fullmatch(text):
        if _HAS_DIGIT.search(text):
            unit = f" (the column is in {column.unit})" if column.unit else ""
            raise CellError("is not a plain number", f"write the number without unit or separator{unit}")
        raise CellError("is not a number", f"give {column.wants}")
    if value is None or math.isinf(value):
        raise CellError("is not finite", f"give {column.wants}")
    return value


def _integer(text: str, column: Column) -> int:
    value = _number(text, column)
    if value != int(value):
        raise CellError("is not a whole number", f"give {column.wants}")
    return int(value)


def _flag(text: str, column: Column) -> bool:
    if text not in {"0", "1"}:
        raise CellError("is neither 0 nor 1", f"give {column.wants}")
    return text == "1"


def _date(text: str, column: Column) -> date:
    try:
        return plain_date(text)
    except ValueError as error:
        raise CellError(str(error), f"give {column.wants}") from None


def plain_date(text: str) -> date:
    """``2026-07-30`` as a date. Raises ValueError, saying why, for another form, a day that is not in the calendar, and
    years before 2000 or after 2100."""
    if not _DATE.fullmatch(text):
        raise ValueError("is not a date")
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ValueError("is a day that is not in the calendar") from None
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise ValueError(f"is not in the years {FIRST_YEAR} to {LAST_YEAR}")
    return day


def _timestamp(text: str, column: Column) -> datetime:
    try:
        value = datetime.fromisoformat(text) if _DATE.match(text) and text.isascii() else None
    except ValueError:
        value = None
    if value is None:
        raise CellError("is not a time", f"give {column.wants}")
    if not FIRST_YEAR <= value.year <= LAST_YEAR:  # also where a time zone would leave the calendar
        raise CellError(f"is not in the years {FIRST_YEAR} to {LAST_YEAR}", f"give {column.wants}")
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _text(text: str, column: Column) -> str:
    return text


def _gpu(text: str, encode_gpu: GpuEncoder | None, instance_type: str) -> str:
    if encode_gpu is None:
        return text
    try:
        return encode_gpu(text, instance_type=instance_type)
    except UnknownNameError as error:
        raise CellError("unknown GPU", error.remedy) from None
    except CoralError as error:
        raise CellError(error.message, error.remedy) from None


def _node_config(text: str, encode_gpu: GpuEncoder | None, instance_type: str) -> str:
    try:
        gpu, count = split_node_config(text)
    except ValueError:
        raise CellError("is not a node configuration", NODE_CONFIG_REMEDY) from None
    return node_config_id(_gpu(gpu, encode_gpu, instance_type), count)


_PARSERS: dict[str, Callable[[str, Column], Any]] = {
    "number": _number,
    "integer": _integer,
    "flag": _flag,
    "date": _date,
    "timestamp": _timestamp,
    "text": _text,
}
_GPU_PARSERS = {"gpu": _gpu, "node_config": _node_config}
GPU_TYPES = frozenset(_GPU_PARSERS)
