"""Readers of request traces: Azure, BurstGPT and Mooncake files and our own Parquet, row by row.

A bad row is rejected with its reason and the rest is kept; a file without a good row, or of no known form, raises.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from catalogs.cells import plain_number
from catalogs.derive import raw_data_dir
from catalogs.errors import CoralError, Finding, InputError, UnknownNameError
from catalogs.scenario_schema import MOST_TOKENS
from catalogs.texts import UnreadableError, is_regular_file, parse_json
from catalogs.types import Lengths

# Column names (lower case) that tell the formats apart: time, input, output.
_AZURE = ("timestamp", "contexttokens", "generatedtokens")
_BURST_GPT = ("timestamp", "request tokens", "response tokens")
_MOONCAKE = ("timestamp", "input_length", "output_length")
_OWN = ("timestamp_s", "input_tokens", "output_tokens")
_MODEL = "model"
# Traces of the raw data collection by the names they may be asked for.
_SHARED = {
    "azure-conv": "azure_llm_2023_conv",
    "azure-code": "azure_llm_2023_code",
    "mooncake": "mooncake_conversation",
    "mooncake-synthetic": "mooncake_synthetic",
    "azure-conv-2023": "azure_llm_2023_conv",
    "azure-code-2023": "azure_llm_2023_code",
    "mooncake-conversation": "mooncake_conversation",
    "arxiv-summarization": "vidur_arxiv_lengths",
}
_PACKED = frozenset({".gz", ".zip", ".zst", ".bz2", ".xz"})
# Clock times are counted from here.
_CLOCK_ZERO = datetime(2000, 1, 1, tzinfo=UTC)
# Beyond any clock, in seconds: also one that counts in milliseconds.
_LATEST_S = 1e13


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of a trace in order of arrival, arrays [n]. ``arrival_s`` starts at 0; None = the file has lengths only.

    ``models`` are the names in the file's own ``model`` column, each with the row it first stands in; ``model[i]`` indexes
    them. Both are empty where the trace says nothing of models. ``start`` is when the first request came, by the file's own
    clock (Azure's); None where it counts from an unknown moment.
    """

    name: str
    arrival_s: NDArray[np.float64] | None
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    rejected: tuple[Finding, ...] = ()
    models: tuple[tuple[str, int], ...] = ()
    model: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    start: datetime | None = None

    def lengths(self, percentile: float) -> Lengths:
        """The moments that rates depend on; ``input_at_percentile`` is the prompt at that percentile (0..100),
        a length that some request has."""
        i, o = self.input_tokens.astype(np.float64), self.output_tokens.astype(np.float64)
        return Lengths(
            input_mean=float(i.mean()),
            output_mean=float(o.mean()),
            input_sq_mean=float((i**2).mean()),
            output_sq_mean=float((o**2).mean()),
            cross_mean=float((i * o).mean()),
            input_at_percentile=float(np.percentile(i, percentile, method="higher")),
            source=self.name,
        )

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(input, output) tokens, to sample their joint distribution from."""
        return self.input_tokens, self.output_tokens


def trace_path(name_or_path: str | Path) -> Path:
    """The file of a known trace's name (in the raw data collection), or the path itself.

    Raises UnknownNameError for what is neither, CoralError where the collection is not on this machine.
    """
    path, name = Path(name_or_path), str(name_or_path)
    if is_regular_file(path):
        return path
    if name in _SHARED:
        known = raw_data_dir() / "traces" / f"{_SHARED[name]}.parquet"
        if known.is_file():
            return known
        raise CoralError(
            f"the trace {name} is not in {raw_data_dir()}",
            remedy="set CORAL_SHARED_DATA to the folder of the raw data collection, or give the path of a trace file",
        )
    if path.suffix or len(path.parts) > 1:
        raise _no_file(path)
    raise UnknownNameError("trace", name, _SHARED)


def is_trace_heading(names: Iterable[str]) -> bool:
    """Whether a CSV or Parquet file of these columns is meant as a trace, sound or not: one of them is a trace's alone."""
    known = {*_AZURE, *_BURST_GPT, *_OWN} - {"timestamp"}
    return any(name.strip().lower() in known for name in names)


def read_trace(path: str | Path) -> Trace:
    """Reads a trace by its own columns: Azure or BurstGPT CSV, Mooncake JSON lines, or Parquet with ``input_tokens``,
    ``output_tokens`` and, where known, ``timestamp_s``. This own form (also as CSV) may name a ``model`` per row; BurstGPT's
    column of that name says which of OpenAI's models answered, and is left alone.

    Rows without tokens (BurstGPT's failed requests have 0 response tokens), with unreadable values or times are in
    ``rejected``. Raises InputError for a missing file, an unknown form, or no usable row.
    """
    path = Path(path)
    if not is_regular_file(path):
        raise _no_file(path)
    if path.suffix.lower() in _PACKED:
        raise _file_error(path, "is packed", "unpack it: a trace is CSV, JSON lines or Parquet")
    try:
        return _read(path)
    except (UnicodeDecodeError, OverflowError, csv.Error, pa.ArrowException) as error:
        text = " ".join(str(error).split())
        raise _file_error(path, f"cannot be read: {text}", "save it as UTF-8 CSV, JSON lines or Parquet") from error


@dataclass(slots=True)
class _Rows:
    """Good rows as they come. ``models``: name -> row it first stands in; ``firsts``: that row, per row."""

    times: list[float] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    models: dict[str, int] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    rejected: list[Finding] = field(default_factory=list)


def _read(path: Path) -> Trace:
    columns, rows, time_of = _open(path)
    names_models = columns[1:] == _OWN[1:]
    kept = _Rows()
    for number, row in enumerate(rows, start=1):
        if row is None:
            continue
        try:
            if isinstance(row, _RowError):
                raise row
            time_s = time_of(row.get(columns[0])) if columns[0] else math.nan
            tokens = _tokens(row, columns[1]), _tokens(row, columns[2])
            name = _model(row) if names_models and _MODEL in row else ""
        except _RowError as error:
            kept.rejected.append(Finding(path.name, number, error.column, error.value, error.reason, error.remedy))
            continue
        kept.firsts.append(kept.models.setdefault(name, number))
        kept.times.append(time_s)
        kept.inputs.append(tokens[0])
        kept.outputs.append(tokens[1])
    if not kept.inputs:
        raise InputError(kept.rejected[:5] or [_finding(path, "no rows", "give a trace with at least one request")])
    trace = Trace(path.stem, np.array(kept.times), np.array(kept.inputs), np.array(kept.outputs), tuple(kept.rejected))
    if set(kept.models) != {""}:
        index = {first: i for i, first in enumerate(kept.models.values())}
        trace = replace(trace, models=tuple(kept.models.items()), model=np.array([index[row] for row in kept.firsts]))
    if time_of is _clock:
        trace = replace(trace, start=_CLOCK_ZERO + timedelta(seconds=min(kept.times)))
    return _by_arrival(trace) if columns[0] else replace(trace, arrival_s=None)


def _by_arrival(trace: Trace) -> Trace:
    assert trace.arrival_s is not None
    order = np.argsort(trace.arrival_s, kind="stable")
    return replace(
        trace,
        arrival_s=trace.arrival_s[order] - trace.arrival_s[order[0]],
        input_tokens=trace.input_tokens[order],
        output_tokens=trace.output_tokens[order],
        model=trace.model[order] if trace.models else trace.model,
    )


class _RowError(Exception):
    def __init__(self, column: str, value: object, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.column, self.value, self.reason, self.remedy = column, "" if value is None else str(value), reason, remedy


_Row = Mapping[str, object]
# A blank line is None: it counts where lines are numbered, and nowhere else.
_Opened = tuple[tuple[str, str, str], Iterable[_Row | _RowError | None], Callable[[object], float]]


def _open(path: Path) -> _Opened:
    """The (time, input, output) columns, the rows as mappings with lower-case keys, and the reader of a time."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        table = pq.read_table(path)
        names = set(table.column_names)
        if not {_OWN[1], _OWN[2]} <= names:
            raise _file_error(path, f"columns {sorted(names)}", f"name them {', '.join(_OWN)}")
        columns = (_OWN[0] if _OWN[0] in names else "", _OWN[1], _OWN[2])
        kept = [c for c in (*columns, _MODEL) if c in names]
        return columns, table.select(kept).to_pylist(), _seconds
    if suffix in (".jsonl", ".json"):
        return _MOONCAKE, _json_rows(path), _milliseconds
    lines = _csv_lines(path)
    header = [name.strip().lower() for name in next(lines, [])]
    if not any(header):
        raise _file_error(path, "is empty" if path.stat().st_size == 0 else "begins with a blank line", _CSV_FORMS)
    for known, reader in ((_AZURE, _clock), (_BURST_GPT, _seconds), (_OWN, _seconds)):
        if set(known) <= set(header):
            twice = [name for name in ((*known, _MODEL) if known is _OWN else known) if header.count(name) > 1]
            if twice:
                raise _file_error(
                    path, f"has the column {twice[0]} {header.count(twice[0])} times", "leave one of them"
                )
            return known, (dict(zip(header, line, strict=False)) if line else None for line in lines), reader
    separators = [text for text, sign in (("semicolons", ";"), ("tabs", "\t")) if sign in "".join(header)]
    remedy = f"separate columns by commas, not {separators[0]}" if separators else _CSV_FORMS
    raise _file_error(path, f"unknown columns {', '.join(header)}", remedy)


_CSV_FORMS = (
    f"begin with {','.join(_OWN)}; Azure's TIMESTAMP,ContextTokens,GeneratedTokens and BurstGPT's Timestamp,...,Request "
    "tokens,Response tokens will do as well"
)


def _csv_lines(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.reader(file)


def _json_rows(path: Path) -> Iterator[_Row | _RowError | None]:
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            try:
                row = parse_json(line, "") if line.strip() else None
            except UnreadableError:
                row = line
            is_row = row is None or isinstance(row, dict)
            yield row if is_row else _RowError("", line.strip(), "not a JSON object", "write one object a line")


def _tokens(row: _Row, column: str) -> int:
    value = row.get(column)
    number = plain_number(str(value).strip())
    if number is None:
        raise _RowError(column, value, "not a number of tokens", "give a whole number above 0")
    if not 1 <= number <= MOST_TOKENS or number != int(number):
        raise _RowError(column, value, "not a whole number of tokens from 1 up", "drop the row: it asks for no work")
    return int(number)


def _model(row: _Row) -> str:
    value = row.get(_MODEL)
    name = "" if value is None else str(value).strip()
    if not name:
        raise _RowError(
            _MODEL, value, "is blank", "name the model, or leave the column out to replay all for each model"
        )
    return name


def _seconds(value: object, unit: str = "seconds") -> float:
    number = plain_number(str(value).strip())
    if number is None or not 0 <= number <= _LATEST_S:
        raise _RowError("timestamp", value, "not a time", f"give {unit} from the start, >= 0")
    return number


def _milliseconds(value: object) -> float:
    return _seconds(value, "milliseconds") / 1e3


def _clock(value: object) -> float:
    """Azure writes 7 decimals of a second; datetime reads at most 6."""
    text = str(value).strip()
    head, dot, tail = text.partition(".")
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    text = head + dot + digits[:6] + tail[len(digits) :] if dot else head
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _RowError("timestamp", value, "not a time", "write it as 2023-11-16 18:15:46.68") from None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _CLOCK_ZERO).total_seconds()


def _finding(path: Path, reason: str, remedy: str) -> Finding:
    return Finding(path.name, 0, "", "", reason, remedy)


def _no_file(path: Path) -> InputError:
    reason = "is a folder" if path.is_dir() else "is no regular file" if path.exists() else "no such file"
    return _file_error(path, reason, "give the path of a trace: CSV, JSON lines or Parquet")


def _file_error(path: Path, reason: str, remedy: str) -> InputError:
    return InputError([_finding(path, reason, remedy)])
