"""The three standard streams of a command, whatever it was started with: closed, full, or read by one who leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from catalogs.errors import CoralError


class StdoutError(Exception):
    """Data could not be written to stdout. ``is_reader_gone``: a pipe whose reader has left, which is no fault."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"stdout cannot be written: {error.strerror}. To fix: free some room, or send it elsewhere")
        self.is_reader_gone = isinstance(error, BrokenPipeError)


def settle_streams() -> None:
    """Give the streams that were closed before the start a place, so that no file we open gets their number.

    Nothing is read from a closed stdin and messages to a closed stderr are dropped. Raises CoralError where stdout is
    closed: data would be lost.
    """
    is_out_closed = sys.stdout is None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - open until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if is_out_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        raise CoralError("stdout is closed", remedy="send it to a file, or to /dev/null where it is not wanted")


@contextmanager
def stdout_errors() -> Iterator[None]:
    """Turn the system's errors of the block, which writes to stdout, into StdoutError."""
    try:
        yield
    except OSError as error:
        raise StdoutError(error) from error


def flush_stdout() -> None:
    """Write what is still held back; Python itself would do it too late to say what went wrong. Raises StdoutError."""
    with stdout_errors():
        sys.stdout.flush()


def give_up_stdout() -> None:
    """Write what is still held back, or leave it where that fails: the error has been told."""
    try:
        flush_stdout()
    except StdoutError:
        leave_stdout()


def leave_stdout() -> None:
    """Point stdout elsewhere, so that Python's own flush at the end is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
