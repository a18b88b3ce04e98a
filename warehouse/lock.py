"""One writer at a time: a file lock the kernel releases when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catalogs.errors import CoralError, LakeError

LOCK_FILE = "write.lock"
TIMEOUT_VARIABLE = "CORAL_LOCK_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 30.0
_POLL_S = 0.05


def default_timeout_s() -> float:
    """How long a writer waits for another: environment variable CORAL_LOCK_TIMEOUT_S, else 30 s. Raises CoralError."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return _DEFAULT_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise CoralError(f"{TIMEOUT_VARIABLE}={text!r} is not a number of seconds", remedy="write 30, or unset it")
    return value


@contextmanager
def write_lock(root: Path, what: str, timeout_s: float | None = None) -> Iterator[None]:
    """Hold the write lock of the lake in ``root``; the file names holder and purpose.

    Raises LakeError (exit 6) where the folder cannot be written, and after ``timeout_s`` (None:
    :func:`default_timeout_s`), naming the process that holds it. Two handles of one process exclude each other as well;
    the lock is not re-entrant.
    """
    timeout_s = default_timeout_s() if timeout_s is None else timeout_s
    try:
        descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise LakeError(
            f"the lake in {root} cannot be written ({error.strerror})",
            remedy="make the folder writable, or use another --lake",
        ) from error
    try:
        _acquire(descriptor, root, timeout_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {what}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # releases the lock


def _acquire(descriptor: int, root: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _locked(descriptor, root, timeout_s) from None
            time.sleep(_POLL_S)
        else:
            return


def _locked(descriptor: int, root: Path, timeout_s: float) -> LakeError:
    pid, _, what = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    holder = f"process {pid} ({what})" if pid else "another process"
    return LakeError(
        f"the lake in {root} is locked by {holder}; waited {timeout_s:g} s",
        remedy=f"wait until it has finished, or end {'process ' + pid if pid else 'it'} and try again",
    )
