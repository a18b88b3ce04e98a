"""Expected outcomes, as one small family: each says what, where, why and what to do.

Anything outside this family is a bug and keeps its traceback. The command line prints a member as one line (or one
line per finding) and exits with its ``exit_code``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class CoralError(Exception):
    """An outcome a user can cause and mend. ``exit_code`` is that of CONTRACTS (2 = usage or bad input)."""

    exit_code = 2

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. To fix: {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state: the members differ in what their constructors take, and errors travel between processes."""
        return _restore, (type(self), self.args, self.__dict__.copy())


def _restore(kind: type[CoralError], args: tuple[Any, ...], state: dict[str, Any]) -> CoralError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in an input: file, row (1 = first data row, 0 = the file itself), column or key path, value, why, remedy.

    In a YAML file ``row`` is the line.
    """

    file: str
    row: int
    column: str
    value: str
    reason: str
    remedy: str

    @property
    def unit(self) -> str:
        """What ``row`` counts."""
        return "line" if self.file.endswith((".yaml", ".yml")) else "row"

    def line(self) -> str:
        """The finding as one line for a person, whatever characters the input's own names hold."""
        column = f", {clipped(self.column)}" if self.column else ""
        where = clipped(self.file) + (f", {self.unit} {self.row}" if self.row else "") + column
        value = f" (got {clipped(self.value)!r})" if self.value != "" else ""
        return printable(f"{where}: {self.reason}{value}. To fix: {self.remedy}")


def finding_lines(
    findings: Sequence[Finding], *, most: int = 20, everything: str = "`coral validate --json` lists all"
) -> list[str]:
    """A line per fault for a person: the first ``most``, then how many more there are and how to have them all
    (``everything``). The same fault in several rows is one line."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        # A row of too many cells is its own value; entries of a list differ in their numbers.
        value = finding.value if finding.column else ""
        column = re.sub(r"\[\d+\]", "", finding.column)
        alike.setdefault((finding.file, column, value, finding.reason, finding.remedy), []).append(finding)
    groups = list(alike.values())
    lines = [_group_line(group) for group in groups[:most]]
    left = sum(len(group) for group in groups[most:])
    if left:
        lines.append(f"... and {left:,} more: {everything} {len(findings):,}")
    return lines


_ROWS_NAMED = 5


def _group_line(group: Sequence[Finding]) -> str:
    """The line of the first, with the rows that have the same fault."""
    line = group[0].line()
    if len(group) == 1:
        return line
    rows = ", ".join(str(finding.row) for finding in group[1 : 1 + _ROWS_NAMED])
    more = ", ..." if len(group) > 1 + _ROWS_NAMED else ""
    unit = group[0].unit if len(group) == 2 else group[0].unit + "s"
    return f"{line} [the same in {len(group) - 1:,} more {unit}: {rows}{more}]"


def printable(text: str) -> str:
    """``text`` with an escape for every character that would move a terminal's cursor or cannot be encoded."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def clipped(text: str, most: int = 100) -> str:
    """``text``, its end replaced by dots where it is longer than a message should be."""
    return text if len(text) <= most else text[: most - 3] + "..."


class InputError(CoralError):
    """One or more faults in catalogs or scenario files; all of them, not just the first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(finding.line() for finding in self.findings))


class UnknownNameError(CoralError):
    """A name (GPU, model, scenario, table, ...) that is not in its list; offers close matches."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "") -> None:
        self.kind, self.name = kind, name
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}unknown {kind} {name!r}", remedy=close_matches_remedy(name, known, kind))


class NothingFitsError(CoralError):
    """No template exists for a workload: memory (names the GiB missing), SLO (names the tightest reachable), or no profile."""


class ShortfallError(CoralError):
    """Demand cannot be met with the capacity there is."""

    exit_code = 4


class HeldError(CoralError):
    """Nothing was decided because an input is unknown or stale; the last plan stays."""

    exit_code = 5


class StaleError(HeldError):
    """Nothing was decided because an input is older than the scenario allows; the last plan stays."""


class LakeError(CoralError):
    """The lake is locked, missing, or of another schema version."""

    exit_code = 6


def close_matches(name: str, known: Iterable[str], n: int = 3) -> list[str]:
    """Known names nearest to ``name``, ignoring case and punctuation; best first.

    A name that holds ``name``, or is held by it, is near whatever its length (``llama-3.3-70b`` is the beginning of one,
    ``Qwen3-32B`` the end of another); the other names by their likeness to it, as a whole or without an organisation.
    """
    scored = [(*_likeness(name, candidate), candidate) for candidate in dict.fromkeys(known)]
    least = max([_CUTOFF, *(score - _WINDOW for score, _, _ in scored)])
    near = sorted((row for row in scored if row[0] >= least), key=lambda row: (-row[0], -row[1]))
    return [candidate for *_, candidate in near[:n]]


def with_close_matches(names: Iterable[str], known: Collection[str], most: int = 3) -> str:
    """Unknown names for a note, each once, in order: ``aws/us-est-2 (near aws/us-east-2 or aws/us-west-2), x and 4 more``."""
    unique = list(dict.fromkeys(names))
    shown = [
        f"{clipped(name)} (near {' or '.join(near)})"
        if (near := close_matches(name, sorted(known), n=2))
        else clipped(name)
        for name in unique[:most]
    ]
    return ", ".join(shown) + (f" and {len(unique) - most} more" if len(unique) > most else "")


_CUTOFF = 0.5
_WINDOW = 0.25  # names that are much less like than the best are no help beside it
_SHORTEST_PART = 3  # letters: shorter ones are in too many names


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _likeness(name: str, candidate: str) -> tuple[float, float]:
    """(best of the whole and the part after a slash, of the whole): 0 to 1 by difflib, above 1 where one holds the other.

    The part alone counts only for who wrote no slash.
    """
    asked, scores = _letters(name), []
    for part in (candidate if "/" in name else candidate.rpartition("/")[2], candidate):
        other = _letters(part)
        shorter, longer = sorted((asked, other), key=len)
        is_part = len(shorter) >= _SHORTEST_PART and shorter in longer
        scores.append(difflib.SequenceMatcher(None, other, asked).ratio() + is_part)
    return max(scores), scores[-1]


# The command that lists all names of a kind.
_LISTS = {
    "model": "coral models list",
    "GPU": "coral gpus list",
    "region": "coral regions list",
    "scenario": "coral scenarios list",
    "node configuration": "coral configs list",
}
_MOST_NAMES = 12


def close_matches_remedy(name: str, known: Iterable[str], kind: str = "") -> str:
    """A remedy sentence: the close matches, or the known names when nothing is close: of many the first, and the command that
    lists those of this ``kind``."""
    names = sorted(set(known))
    matches = close_matches(name, names)
    if matches:
        return "did you mean " + " or ".join(matches) + "?"
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown += f", ... (`{_LISTS[kind]}` has them all)" if kind in _LISTS else ", ..."
    return f"use one of: {shown}" if names else "none is known here"
