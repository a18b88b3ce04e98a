"""Reads tables (CSV, Parquet) by a schema that is data too: by column name, every fault at once, nothing coerced silently.

A schema file ``data/schemas/<table>.csv`` has one row per column: name, type, unit, whether a value is required, the
allowed interval or choices, whether it belongs to the key, and a description. The same file feeds the documentation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from catalogs.cells import GPU_TYPES, CellError, Column, GpuEncoder, column_from_row, parse_cell, says_nothing
from catalogs.errors import Finding, InputError, close_matches
from catalogs.texts import UnreadableError, read_text

DATA_DIR = Path(__file__).parent / "data"
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
# A million rows.
_MOST_MIB = 64


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


@cache
def schema_of(table: str) -> Schema:
    """The schema of a shipped table, from ``data/schemas/<table>.csv``."""
    path = DATA_DIR / "schemas" / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as handle:
        return Schema(table, tuple(column_from_row(row) for row in csv.DictReader(handle)))


def schema_names() -> tuple[str, ...]:
    """Names of all tables that have a schema."""
    return tuple(sorted(path.stem for path in (DATA_DIR / "schemas").glob("*.csv")))


@dataclass(frozen=True, slots=True)
class Reading:
    """How a table is read. ``encode_gpu`` turns a spelling into the canonical GPU id (raises UnknownNameError); None = GPU
    columns stay as written. ``takes_nothing``: NULL, NaN and the like mean unknown as a blank does, where that is allowed.
    ``takes_columns``: columns the schema does not know are passed over."""

    encode_gpu: GpuEncoder | None = None
    takes_nothing: bool = False
    takes_columns: bool = False


def read_table(
    path: Path, table: str, *, encode_gpu: GpuEncoder | None = None, label: str = "", how: Reading | None = None
) -> Table:
    """Read the CSV (or, by its suffix, Parquet) file at ``path`` as ``table``.

    ``how`` (default: strictly, with ``encode_gpu``) says what is taken. ``label`` is how messages name the file (default:
    its name). A file that cannot be read at all gives one finding and no rows.
    """
    label = label or path.name
    try:
        lines = read_lines(path)
    except UnreadableError as error:
        return _unreadable(label, error.reason, error.remedy)
    return _parse_lines(lines, table, how or Reading(encode_gpu), label)


def parse_table(
    text: str,
    table: str,
    *,
    encode_gpu: GpuEncoder | None = None,
    label: str = "input.csv",
    how: Reading | None = None,
) -> Table:
    """:func:`read_table` on text. Lines that start with ``#`` and blank lines are comments."""
    try:
        return _parse_lines(_csv_lines(text), table, how or Reading(encode_gpu), label)
    except UnreadableError as error:
        return _unreadable(label, error.reason, error.remedy)


def read_lines(path: Path) -> list[list[str]]:
    """The cells of a CSV or Parquet file as texts, the heading first; empty for an empty file. Raises UnreadableError."""
    if path.suffix.lower() in PARQUET_SUFFIXES:
        from catalogs.parquet_texts import parquet_lines

        return parquet_lines(path)
    absent = f"create it (coral init DIR writes an example) at {path}"
    return _csv_lines(read_text(path, most_mib=_MOST_MIB, kind="CSV file", absent=absent))


def column_names(path: Path) -> list[str]:
    """The heading of a CSV or Parquet file. Raises UnreadableError."""
    if path.suffix.lower() in PARQUET_SUFFIXES:
        from catalogs.parquet_texts import parquet_columns

        return parquet_columns(path)
    lines = read_lines(path)
    return [cell.strip() for cell in lines[0]] if lines else []


def _csv_lines(text: str) -> list[list[str]]:
    try:
        read = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UnreadableError(f"is not a CSV file: {error}", "save it as a UTF-8 CSV file") from None
    return [cells for cells in read if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#")]


def _parse_lines(lines: Sequence[list[str]], table: str, how: Reading, label: str) -> Table:
    schema = schema_of(table)
    if not lines:
        wanted = ",".join(column.name for column in schema.columns if column.required != "no")
        return _unreadable(label, "the file is empty", f"give at least the heading {wanted}")
    header = [cell.strip() for cell in lines[0]]
    file_findings = _header_findings(label, header, schema, how.takes_columns)
    state = _Rows(label, schema, header, how)
    for number, cells in enumerate(lines[1:], start=1):
        state.add(number, cells)
    if any(column.required != "no" and column.name in state.absent for column in schema.columns):
        state.rows, state.numbers = [], []  # no row has what it must
    return Table(
        label, tuple(state.rows), tuple(state.numbers), tuple(file_findings), tuple(state.findings), len(lines) - 1
    )


def _unreadable(label: str, reason: str, remedy: str) -> Table:
    return Table(label, (), (), (Finding(label, 0, "", "", reason, remedy),), (), 0)


def _header_findings(label: str, header: Sequence[str], schema: Schema, takes_columns: bool) -> list[Finding]:
    known = schema.by_name
    missing = [c for c in schema.columns if c.required != "no" and c.name not in header]
    for sign, text in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and sign in header[0]:
            return [Finding(label, 0, "", "", f"columns are separated by {text}", "separate them by commas")]
    is_odd = bool(missing) or (not takes_columns and not set(header) <= set(known))
    if is_odd and (other := _other_table(header, schema)):
        wanted = ",".join(c.name for c in schema.columns if c.required != "no")
        return [Finding(label, 0, "", "", f"has the columns of {other}", f"give a file with the columns {wanted}")]
    findings, renamed = [], set()
    for name in dict.fromkeys(header):
        if header.count(name) > 1:
            findings.append(Finding(label, 0, name, "", "the column is there twice", "keep one of them"))
        if name not in known and not takes_columns:
            near = close_matches(name, [c.name for c in missing] or known, n=1)
            renamed |= set(near)
            remedy = _renaming(name, known[near[0]]) if near else "remove it; known columns: " + ", ".join(known)
            findings.append(Finding(label, 0, name, "", "unknown column", remedy))
    findings += [
        Finding(label, 0, c.name, "", "the column is missing", f"add it: {c.wants} ({c.description})")
        for c in missing
        if c.name not in renamed  # one slip is one fault
    ]
    return findings


def _renaming(name: str, column: Column) -> str:
    """A column that is named after another unit (``price_eur_per_h``) must not take over its values."""
    says_more = not set(name.lower().split("_")) <= set(column.name.split("_"))
    unit = f" if its values are in {column.unit}, else convert them too" if column.unit and says_more else ""
    return f"rename it to {column.name}{unit}"


# What the feeds are called where a file of one is given for another.
_FEEDS = {"own_offers": "prices", "availability": "availability", "demand": "demand", "fleet_state": "fleet state"}


def _other_table(header: Sequence[str], schema: Schema) -> str:
    """The feed of which ``header`` is a whole heading; blank where there is none."""
    for table, feed in _FEEDS.items():
        columns = schema_of(table).columns
        needed = {column.name for column in columns if column.required != "no"}
        if table != schema.table and needed <= set(header) <= {column.name for column in columns}:
            return feed
    return ""


@dataclass
class _Rows:
    label: str
    schema: Schema
    header: list[str]
    how: Reading
    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seen: dict[tuple[Any, ...], int] = field(default_factory=dict)
    parsed: dict[tuple[int, str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = self.schema.by_name
        self.columns = [(i, known[name]) for i, name in enumerate(self.header) if name in known]
        self.absent = {c.name: None for c in self.schema.columns if c.name not in self.header}
        self.key = tuple(name for name in self.schema.key if name in self.header)
        if any(known[name].required != "no" and name in self.absent for name in self.schema.key):
            self.key = ()  # without all of its key no row can be told from another
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
                # The same few texts stand in most rows of a column; a sound one is parsed once.
                asked = (index, cells[index], machine if column.type in GPU_TYPES else "")
                if asked not in self.parsed:
                    self.parsed[asked] = self.parse(cells[index], column, machine)
                values[column.name] = self.parsed[asked]
            except CellError as error:
                good = False
                self.fault(number, column.name, cells[index].strip(), error.reason, error.remedy)
        if good and self.is_new(number, values):
            self.rows.append(values)
            self.numbers.append(number)

    def parse(self, cell: str, column: Column, machine: str) -> Any:
        if self.how.takes_nothing and column.required == "nullable" and says_nothing(cell):
            return None
        return parse_cell(cell, column, self.how.encode_gpu, machine)

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
