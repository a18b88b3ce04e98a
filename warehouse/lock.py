"""Locks across processes: a file the kernel unlocks when its holder ends, however it ends.

One writer at a time has the lake's ``write.lock``; one allocation at a time has ``allocate-<scenario>.lock``. Where the
catalog is in PostgreSQL, holders may be on several machines: there it is an advisory lock of the database instead
(:mod:`warehouse.postgres_lock`), which ends with its holder's connection. Such a lock can end under its holder, which asks
before it commits.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from catalogs.errors import CoralError, LakeError
from warehouse.catalog_store import store_of
from warehouse.faults import disk_errors, disk_full, is_full

LOCK_FILE = "write.lock"
TIMEOUT_VARIABLE = "CORAL_LOCK_TIMEOUT_S"
_DEFAULT_TIMEOUT_S = 30.0
_POLL_S = 0.05
_LONGEST_POLL_S = 1.0


# Raises LockLostError where the lock is not held any more.
StillHeld = Callable[[], None]


class LockedError(LakeError):
    """Another process kept a lock longer than the caller would wait."""


class LockLostError(LakeError):
    """A lock ended under its holder: what it was about to write is not written."""


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
def write_lock(root: Path, what: str, timeout_s: float | None = None) -> Iterator[StillHeld]:
    """Hold the write lock of the lake in ``root``; the file names holder and purpose. Gives what to ask before committing
    whether it is still held.

    Raises LakeError (exit 6) where the folder cannot be written, and LockedError after ``timeout_s`` (None:
    :func:`default_timeout_s`), naming the process that holds it. Two handles of one process exclude each other as well;
    the lock is not re-entrant.
    """
    with _lock(root, LOCK_FILE, f"the lake in {root} is locked", what, timeout_s) as still_held:
        yield still_held


@contextmanager
def allocation_lock(root: Path, scenario_id: str, what: str, timeout_s: float | None = None) -> Iterator[StillHeld]:
    """Hold the right to allocate ``scenario_id``: whoever has it reads its inputs, decides and publishes, alone. Gives what
    to ask before publishing whether it is still held.

    Held over minutes, beside the write lock, which the holder takes for each of its own short transactions. Raises as
    :func:`write_lock` does.
    """
    name = f"allocate-{scenario_id}.lock"
    with _lock(root, name, f"{scenario_id} is being allocated", what, timeout_s) as still_held:
        yield still_held


@contextmanager
def copy_lock(root: Path, timeout_s: float | None = None) -> Iterator[StillHeld]:
    """Hold the right to copy the lake in ``root`` elsewhere. Raises as :func:`write_lock` does."""
    with _lock(root, "copy.lock", f"the lake in {root} is being copied", "copy", timeout_s) as still_held:
        yield still_held


@contextmanager
def _lock(root: Path, name: str, state: str, what: str, timeout_s: float | None) -> Iterator[StillHeld]:
    timeout_s = default_timeout_s() if timeout_s is None else timeout_s
    store = store_of(root)
    if store.is_postgres:
        from warehouse.postgres_lock import advisory_lock

        with advisory_lock(root, store, name, what) as lock:
            acquire(lock.is_taken, lock.holder, state, timeout_s)
            yield partial(_refuse_lost, lock.is_held, what, "the database was restarted, or has ended the connection")
        return
    with _file_lock(root, name, state, what, timeout_s) as is_held:
        yield partial(_refuse_lost, is_held, what, f"{root / name} was removed")


def _refuse_lost(is_held: Callable[[], bool], what: str, why: str) -> None:
    if not is_held():
        raise LockLostError(
            f"{what}: the lock was lost meanwhile ({why}), so nothing is written", remedy="run it again"
        )


@contextmanager
def _file_lock(root: Path, name: str, state: str, what: str, timeout_s: float) -> Iterator[Callable[[], bool]]:
    try:
        descriptor = os.open(root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if is_full(error):
            raise disk_full(root) from error
        raise LakeError(
            f"the lake in {root} cannot be written ({error.strerror})",
            remedy="make the folder writable, or use another --lake",
        ) from error
    try:
        acquire(lambda: _try(descriptor), lambda: _holder(descriptor), state, timeout_s)
        with disk_errors(root):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {what}\n".encode(), 0)
        yield lambda: os.fstat(descriptor).st_nlink > 0
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # releases the lock


def acquire(is_taken: Callable[[], bool], holder: Callable[[], str], state: str, timeout_s: float) -> None:
    """Try until ``is_taken`` says that the lock is ours. Raises LockedError, naming the ``holder``, after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    poll_s = _POLL_S
    while not is_taken():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            who = holder()
            raise LockedError(
                f"{state} by {who or 'another process'}; waited {timeout_s:g} s",
                remedy=f"wait until it has finished, or end {who.partition(' (')[0] or 'it'} and try again",
            )
        time.sleep(min(poll_s, left_s))
        poll_s = min(poll_s * 1.1, _LONGEST_POLL_S)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    pid, _, what = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    return f"process {pid} ({what})" if pid else ""
