"""Reads CSV tables by a schema that is data too: by column name, every fault at once, nothing coerced silently.

A schema file ``data/schemas/<table>.csv`` has one row per column: name, type, unit, whether a value is required, the
allowed interval or choices, whether it belongs to the key, and a description. The same file feeds the documentation.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, close_matches
from catalogs.ids import node_config_id, split_node_config

DATA_DIR = Path(__file__).parent / "data"

_SPELLINGS_OF_NOTHING = frozenset({"null", "none", "na", "n/a", "nan", "-"})
_NUMBER_WITH_UNIT = re.compile(r"^[^\d+-]*([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)\s*[^\d.,\s].*$|^[^\d+-]+\d")
_INTERVAL = re.compile(r"^([\[(])([^,|]*),([^,|]*)([\])])$")


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``required``: ``yes`` = a value in every row, ``no`` = may be absent or blank, ``nullable`` = the
    column must be there and blank, NULL or NaN means *unknown*."""

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
        return kinds[self.type] + unit + (f" in {self.allowed}" if self.allowed else "")


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table, in file order."""

    table: str
    columns: tuple[Column, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns; two rows may not agree in all of them."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def by_name(self) -> dict[str, Column]:
        """Columns by name."""
        return {column.name: column for column in self.columns}


@dataclass(frozen=True, slots=True)
class Table:
    """What was read: accepted rows with their row numbers (1 = first data row), faults of the file, and faults of rows
    (a row with a fault is not among the accepted)."""

    file: str
    rows: tuple[dict[str, Any], ...]
    row_numbers: tuple[int, ...]
    file_findings: tuple[Finding, ...]
    row_findings: tuple[Finding, ...]
    rows_seen: int

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All faults, those of the file first."""
        return self.file_findings + self.row_findings

    def require_clean(self) -> Table:
        """The table itself, or InputError with every fault: for files in which a bad row cannot be set aside."""
        if self.findings:
            raise InputError(self.findings)
        return self


class _CellError(Exception):
    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


class GpuEncoder(Protocol):
    """Turns a spelling into a canonical GPU id, with the row's instance type as a help (see catalogs.gpus)."""

    def __call__(self, name: str, *, instance_type: str = "") -> str:
        """The canonical id, or an error of the catalogs.errors family."""


@cache
def schema_of(table: str) -> Schema:
    """The schema of a shipped table, from ``data/schemas/<table>.csv``."""
    path = DATA_DIR / "schemas" / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as handle:
        return Schema(table, tuple(_column(row) for row in csv.DictReader(handle)))


def schema_names() -> tuple[str, ...]:
    """Names of all tables that have a schema."""
    return tuple(sorted(path.stem for path in (DATA_DIR / "schemas").glob("*.csv")))


def _column(row: Mapping[str, str]) -> Column:
    allowed = row["allowed"]
    extra: dict[str, Any] = {}
    if match := _INTERVAL.match(allowed):
        left, low, high, right = match.groups()
        extra = {
            "low": float(low) if low.strip() else -math.inf,
            "high": float(high) if high.strip() else math.inf,
            "low_open": left == "(",
            "high_open": right == ")",
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


def read_table(path: Path, table: str, *, encode_gpu: GpuEncoder | None = None, label: str = "") -> Table:
    """Read the CSV at ``path`` as ``table``.

    ``encode_gpu`` turns a spelling into the canonical GPU id (raises UnknownNameError); without it GPU columns stay as
    written. ``label`` is how messages name the file (default: its name). A file that cannot be read at all gives one
    finding and no rows.
    """
    label = label or path.name
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return _unreadable(label, "the file does not exist", f"create it (coral init DIR writes an example) at {path}")
    except (OSError, UnicodeDecodeError) as error:
        return _unreadable(label, f"cannot be read as UTF-8 text: {error}", "save it as a UTF-8 CSV file")
    return parse_table(text, table, encode_gpu=encode_gpu, label=label)


def parse_table(text: str, table: str, *, encode_gpu: GpuEncoder | None = None, label: str = "input.csv") -> Table:
    """:func:`read_table` on text. Lines that start with ``#`` and blank lines are comments."""
    schema = schema_of(table)
    reader = csv.reader(io.StringIO(text))
    lines = [cells for cells in reader if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#")]
    if not lines:
        wanted = ",".join(column.name for column in schema.columns if column.required != "no")
        return _unreadable(label, "the file is empty", f"give at least the heading {wanted}")
    header = [cell.strip() for cell in lines[0]]
    file_findings = _header_findings(label, header, schema)
    state = _Rows(label, schema, header, encode_gpu)
    for number, cells in enumerate(lines[1:], start=1):
        state.add(number, cells)
    return Table(
        label, tuple(state.rows), tuple(state.numbers), tuple(file_findings), tuple(state.findings), len(lines) - 1
    )


def _unreadable(label: str, reason: str, remedy: str) -> Table:
    return Table(label, (), (), (Finding(label, 0, "", "", reason, remedy),), (), 0)


def _header_findings(label: str, header: Sequence[str], schema: Schema) -> list[Finding]:
    known = schema.by_name
    missing = [c for c in schema.columns if c.required != "no" and c.name not in header]
    findings = []
    for name in dict.fromkeys(header):
        if header.count(name) > 1:
            findings.append(Finding(label, 0, name, "", "the column is there twice", "keep one of them"))
        if name not in known:
            near = close_matches(name, [c.name for c in missing] or known, n=1)
            remedy = f"rename it to {near[0]}" if near else "remove it; known columns: " + ", ".join(known)
            findings.append(Finding(label, 0, name, "", "unknown column", remedy))
    findings += [
        Finding(label, 0, c.name, "", "the column is missing", f"add it: {c.wants} ({c.description})") for c in missing
    ]
    return findings


@dataclass
class _Rows:
    label: str
    schema: Schema
    header: list[str]
    encode_gpu: GpuEncoder | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seen: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = self.schema.by_name
        self.columns = [(i, known[name]) for i, name in enumerate(self.header) if name in known]
        self.absent = {c.name: None for c in self.schema.columns if c.name not in self.header}
        self.key = tuple(name for name in self.schema.key if name in self.header)
        self.instance_type_at = self.header.index("instance_type") if "instance_type" in self.header else None

    def add(self, number: int, cells: list[str]) -> None:
        if len(cells) != len(self.header):
            reason = f"the row has {len(cells)} cells, the heading {len(self.header)}"
            self.fault(
                number, "", ",".join(cells), reason, "put quotes around a text with a comma, or add the missing cells"
            )
            return
        values: dict[str, Any] = dict(self.absent)
        good = True
        machine = cells[self.instance_type_at].strip() if self.instance_type_at is not None else ""
        for index, column in self.columns:
            try:
                values[column.name] = parse_cell(cells[index], column, self.encode_gpu, machine)
            except _CellError as error:
                good = False
                self.fault(number, column.name, cells[index].strip(), error.reason, error.remedy)
        if good and self.is_new(number, values):
            self.rows.append(values)
            self.numbers.append(number)

    def is_new(self, number: int, values: Mapping[str, Any]) -> bool:
        if not self.key:
            return True
        key = tuple(values[name] for name in self.key)
        first = self.seen.setdefault(key, number)
        if first == number:
            return True
        shown = ", ".join(str(part) for part in key)
        self.fault(number, "+".join(self.key), shown, f"duplicate of row {first}", "keep one row for each key")
        return False

    def fault(self, number: int, column: str, value: str, reason: str, remedy: str) -> None:
        self.findings.append(Finding(self.label, number, column, value, reason, remedy))


def parse_cell(cell: str, column: Column, encode_gpu: GpuEncoder | None = None, instance_type: str = "") -> Any:
    """The typed value of one cell, None for a blank that is allowed. Raises an internal fault that the reader reports."""
    text = cell.strip()
    if text == "" or (column.type != "text" and text.lower() in _SPELLINGS_OF_NOTHING):
        if column.required == "nullable" or (column.required == "no" and text == ""):
            return None
        what = "is blank" if text == "" else "is not a value"
        or_blank = (
            "; leave the cell empty where there is none" if column.required == "no" else "; blank never counts as 0"
        )
        raise _CellError(what, f"give {column.wants}{or_blank}")
    if column.type in _GPU_PARSERS:
        return _GPU_PARSERS[column.type](text, encode_gpu, instance_type)
    value = _PARSERS[column.type](text, column)
    if column.choices and text not in column.choices:
        near = close_matches(text, column.choices, n=1)
        raise _CellError("is not an allowed value", f"did you mean {near[0]}?" if near else f"use {column.wants}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_interval(value, column)
    return value


def _check_interval(value: float, column: Column) -> None:
    too_low = value < column.low or (column.low_open and value == column.low)
    too_high = value > column.high or (column.high_open and value == column.high)
    if not (too_low or too_high):
        return
    if value < 0 <= column.low:
        reason = "is negative"
    elif value == 0:
        reason = "is zero"
    else:
        reason = "is too low" if too_low else "is too high"
    check = f"; check the unit, the column is in {column.unit}" if column.unit and value else ""
    raise _CellError(reason, f"give {column.wants}{check}")


def _number(text: str, column: Column) -> float:
    try:
        value = float(text)
    except ValueError:
        if _NUMBER_WITH_UNIT.match(text):
            unit = f" (the column is in {column.unit})" if column.unit else ""
            raise _CellError("is not a plain number", f"write the number without unit or separator{unit}") from None
        raise _CellError("is not a number", f"give {column.wants}") from None
    if not math.isfinite(value):
        raise _CellError("is not finite", f"give {column.wants}")
    return value


def _integer(text: str, column: Column) -> int:
    value = _number(text, column)
    if value != int(value):
        raise _CellError("is not a whole number", f"give {column.wants}")
    return int(value)


def _flag(text: str, column: Column) -> bool:
    if text not in {"0", "1"}:
        raise _CellError("is neither 0 nor 1", f"give {column.wants}")
    return text == "1"


def _date(text: str, column: Column) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _CellError("is not a date", f"give {column.wants}") from None


def _timestamp(text: str, column: Column) -> datetime:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise _CellError("is not a time", f"give {column.wants}") from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _text(text: str, column: Column) -> str:
    return text


def _gpu(text: str, encode_gpu: GpuEncoder | None, instance_type: str) -> str:
    if encode_gpu is None:
        return text
    try:
        return encode_gpu(text, instance_type=instance_type)
    except UnknownNameError as error:
        raise _CellError("unknown GPU", error.remedy) from None
    except CoralError as error:
        raise _CellError(error.message, error.remedy) from None


def _node_config(text: str, encode_gpu: GpuEncoder | None, instance_type: str) -> str:
    try:
        gpu, count = split_node_config(text)
    except ValueError:
        raise _CellError(
            "is not a node configuration", "write the GPU id, an x and the count, such as L40Sx2"
        ) from None
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
