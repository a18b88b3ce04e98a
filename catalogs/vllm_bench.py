"""Reader of ``vllm bench serve --save-result`` files (also one result a line, as ``--append-result`` writes).

Of the file are used: ``model_id``, ``completed``, ``failed``, ``duration``, ``total_input_tokens``,
``total_output_tokens``, ``request_throughput``, ``output_throughput``, ``mean_ttft_ms``, ``mean_tpot_ms``,
``max_concurrency``, ``date``; with ``--save-detailed`` also ``input_lens`` and ``output_lens``. The file does not say what
it ran on: give ``--metadata gpu=L40S tp=2`` to the benchmark, or the same as options here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catalogs.errors import Finding, InputError, clipped
from catalogs.scenario_schema import MOST_TOKENS
from catalogs.texts import UnreadableError, parse_json, read_text
from catalogs.types import Lengths

# A run in which more requests than this failed measures something else.
_MOST_FAILED = 0.02
# With --save-detailed a run of a million requests takes 100 MiB.
_MOST_MIB = 256
# Beyond any count, rate (tok/s) or time (ms) of a run.
_MOST = 1e12
_REMEDY = "give the file that `vllm bench serve --save-result` wrote"


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run. Times in ms, rates per second; ``lengths`` of the requests served. ``metadata``: gpu and tp where given."""

    file: str
    line: int
    model_id: str
    completed: int
    request_per_s: float
    output_tok_per_s: float
    mean_ttft_ms: float
    mean_tpot_ms: float
    max_concurrency: int | None
    lengths: Lengths
    ran_on: date | None
    metadata: Mapping[str, str]

    @property
    def decoding(self) -> float:
        """Mean number of sequences in decode: output rate x time per output token (Little's law)."""
        return self.output_tok_per_s * self.mean_tpot_ms / 1000


def read_bench(path: Path) -> list[BenchResult]:
    """All runs in a file. Raises InputError naming the field that is missing or impossible, and the line of the run."""
    try:
        text = read_text(path, most_mib=_MOST_MIB, kind="result file of `vllm bench serve`")
    except UnreadableError as error:
        raise InputError([Finding(path.name, 0, "", "", error.reason, error.remedy)]) from None
    runs = []
    for line, document in _documents(path.name, text):
        runs.append(_Run(path.name, line, document).result())
    if not runs:
        raise InputError([Finding(path.name, 0, "", "", "is empty", _REMEDY)])
    return runs


def _documents(file: str, text: str) -> list[tuple[int, Mapping[str, Any]]]:
    try:
        found = [(1, parse_json(text, _REMEDY))]
    except UnreadableError:
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    found.append((number, parse_json(line, _REMEDY, first_line=number)))
                except UnreadableError as error:
                    raise InputError([Finding(file, number, "", "", error.reason, error.remedy)]) from None
    for number, document in found:
        if not isinstance(document, Mapping):
            raise InputError([Finding(file, number, "", "", "is not a JSON object", _REMEDY)])
    return found


class _Run:
    def __init__(self, file: str, line: int, document: Mapping[str, Any]) -> None:
        self.file, self.line, self.document = file, line, document

    def fault(self, field: str, reason: str, remedy: str = _REMEDY) -> InputError:
        value = self.document.get(field)
        shown = "" if value is None or isinstance(value, list) else str(value)
        return InputError([Finding(self.file, self.line, field, shown, reason, remedy)])

    def number(self, field: str) -> float:
        """A finite number above 0: a rate or time of 0 is a run that measured nothing."""
        value = self.document.get(field)
        if value is None:
            raise self.fault(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise self.fault(field, "is not a number")
        if value > _MOST:
            raise self.fault(field, "is larger than any run gives")
        if value <= 0:
            raise self.fault(field, "is zero" if value == 0 else "is negative", "repeat the run: it measured nothing")
        return float(value)

    def result(self) -> BenchResult:
        model_id = self.document.get("model_id")
        if not isinstance(model_id, str) or not model_id:
            raise self.fault("model_id", "is missing")
        completed, failed = int(self.number("completed")), self.document.get("failed") or 0
        if not isinstance(failed, int) or not 0 <= failed <= _MOST or failed > _MOST_FAILED * (completed + failed):
            raise self.fault("failed", f"of {completed} completed requests", "repeat the run: too many requests failed")
        concurrency = self.document.get("max_concurrency")
        run = BenchResult(
            file=self.file,
            line=self.line,
            model_id=model_id,
            completed=completed,
            request_per_s=self.number("request_throughput"),
            output_tok_per_s=self.number("output_throughput"),
            mean_ttft_ms=self.number("mean_ttft_ms"),
            mean_tpot_ms=self.number("mean_tpot_ms"),
            max_concurrency=concurrency if isinstance(concurrency, int) else None,
            lengths=self.lengths(completed),
            ran_on=self.date(),
            metadata={key: str(v) for key, v in self.document.items() if key in ("gpu", "tp", "pp", "kv_dtype")},
        )
        stated = completed / self.number("duration")
        if abs(run.request_per_s / stated - 1) > 0.05:
            raise self.fault(
                "request_throughput", f"is not completed / duration = {stated:.4g}", "do not edit the file"
            )
        return run

    def tokens(self, field: str, values: list[Any]) -> NDArray[np.float64]:
        """A list of lengths, [n]; 0 = the request failed."""
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_TOKENS:
                raise self.fault(field, f"holds {clipped(repr(value), 40)}, wanted tokens from 0 to {MOST_TOKENS}")
        return np.array(values, dtype=np.float64)

    def lengths(self, completed: int) -> Lengths:
        """Moments of the requests served; of their means where the file has no list of them."""
        inputs, outputs = self.document.get("input_lens"), self.document.get("output_lens")
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) > 0:
            i, o = self.tokens("input_lens", inputs), self.tokens("output_lens", outputs)
            served = (i > 0) & (o > 0)
            if served.any():
                i, o = i[served], o[served]
                squares = (float((i**2).mean()), float((o**2).mean()), float((i * o).mean()))
                return Lengths(float(i.mean()), float(o.mean()), *squares, float(i.max()), self.file)
        prompt, output = self.number("total_input_tokens"), self.number("total_output_tokens")
        return Lengths.constant(prompt / completed, output / completed, self.file)

    def date(self) -> date | None:
        try:
            return datetime.strptime(str(self.document.get("date")), "%Y%m%d-%H%M%S").date()
        except ValueError:
            return None
