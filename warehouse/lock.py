"""Locks across processes: a file the kernel unlocks when its holder ends, however it ends.

One writer at a time has the lake's ``write.lock``; one allocation at a time has ``allocate-<scenario>.lock``.
"""

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
_LONGEST_POLL_S = 1.0


class LockedError(LakeError):
    """Another process kept a lock longer than the caller would wait."""


def default_timeout_s() -> float:
    """How long to wait for another's lock: environment variable CORAL_LOCK_TIMEOUT_S, else 30 s. Raises CoralError."""
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

    Raises LakeError (exit 6) where the folder cannot be written, and LockedError after ``timeout_s`` (None:
    :func:`default_timeout_s`), naming the process that holds it. Two handles of one process exclude each other as well;
    the lock is not re-entrant.
    """
    with _file_lock(root, LOCK_FILE, f"the lake in {root} is locked", what, timeout_s):
        yield


@contextmanager
def allocation_lock(root: Path, scenario_id: str, what: str, timeout_s: float | None = None) -> Iterator[None]:
    """Hold the right to allocate ``scenario_id``: whoever has it reads its inputs, decides and publishes, alone.

    Held over minutes, beside the write lock, which the holder takes for each of its own short transactions. Raises as
    :func:`write_lock` does.
    """
    with _file_lock(root, f"allocate-{scenario_id}.lock", f"{scenario_id} is being allocated", what, timeout_s):
        yield


@contextmanager
def _file_lock(root: Path, name: str, state: str, what: str, timeout_s: float | None) -> Iterator[None]:
    timeout_s = default_timeout_s() if timeout_s is None else timeout_s
    try:
        descriptor = os.open(root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise LakeError(
            f"the lake in {root} cannot be written ({error.strerror})",
            remedy="make the folder writable, or use another --lake",
        ) from error
    try:
        _acquire(descriptor, state, timeout_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {what}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # releases the lock


def _acquire(descriptor: int, state: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    poll_s = _POLL_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise _locked(descriptor, state, timeout_s) from None
            time.sleep(min(poll_s, left_s))
            poll_s = min(poll_s * 1.1, _LONGEST_POLL_S)
        else:
            return


def _locked(descriptor: int, state: str, timeout_s: float) -> LockedError:
    pid, _, what = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    holder = f"process {pid} ({what})" if pid else "another process"
    return LockedError(
        f"{state} by {holder}; waited {timeout_s:g} s",
        remedy=f"wait until it has finished, or end {'process ' + pid if pid else 'it'} and try again",
    )
