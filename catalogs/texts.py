"""Reads and writes users' files. What is handed in may be anything (a folder, a device, a file too large, another encoding,
JSON nested without end); what cannot be read is told with its reason and remedy, and the caller makes a finding of it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from catalogs.errors import CoralError, clipped

MIB = 2**20
# Far deeper than any configuration or result file; below what recursive code can follow.
_DEEPEST = 64


class UnreadableError(Exception):
    """Why a file cannot be read and what to do; the reader makes a finding of it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def is_regular_file(path: Path) -> bool:
    """Whether a plain file is there; False also for a name that no file can have (too long, a zero byte)."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def read_text(path: Path, *, most_mib: int, kind: str, absent: str = "") -> str:
    """The text of a regular file of at most ``most_mib`` MiB in UTF-8. ``kind`` is what it should be (``YAML file``) and
    ``absent`` the remedy where nothing is there. Raises UnreadableError."""
    try:
        # A pipe would be waited for, a device read without end.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
                raise UnreadableError(f"is {what}", f"name a {kind}")
            content = file.read(most_mib * MIB + 1)
    except FileNotFoundError:
        raise UnreadableError("the file does not exist", absent or f"put a {kind} at {path}") from None
    except IsADirectoryError:
        raise UnreadableError("is a folder", f"name a {kind}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"cannot be read: {why}", f"name a {kind} that can be read") from None
    if len(content) > most_mib * MIB:
        raise UnreadableError(f"is larger than {most_mib} MiB", f"name a {kind}, or split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte {error.start} is {content[error.start]:#04x}"
        raise UnreadableError(f"cannot be read as UTF-8 text: {where}", f"save it as a UTF-8 {kind}") from None


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all, making its folders. Raises CoralError naming what cannot be written."""
    part = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            part.unlink(missing_ok=True)
        why = error.strerror if isinstance(error, OSError) else str(error)
        remedy = "name a folder that can be written to"
        raise CoralError(f"{clipped(str(path))} cannot be written: {why}", remedy=remedy) from error


def parse_json(text: str, remedy: str, *, first_line: int = 1) -> Any:
    """The document in ``text``, which begins in ``first_line`` of its file. Raises UnreadableError for what is not JSON, is
    nested more than 64 deep, or holds a number of thousands of digits."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableError(f"is not JSON (line {first_line + error.lineno - 1}: {error.msg})", remedy) from None
    except RecursionError:
        raise UnreadableError(f"is nested more than {_DEEPEST} deep", remedy) from None
    except ValueError:  # Python's own limit for digits of a whole number
        raise UnreadableError("holds a number of thousands of digits", remedy) from None
    if _is_deep(document):
        raise UnreadableError(f"is nested more than {_DEEPEST} deep", remedy)
    return document


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_DEEPEST):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)
