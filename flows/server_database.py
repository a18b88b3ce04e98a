"""The empty database of a Prefect server, kept with the installation.

A new server database goes through all of prefect's schema migrations: some 6 s of processor, each time a lake is new. The
first server that has done so leaves a copy of its still empty database beside the installed packages, named by prefect's
version; later ones start from it. Without a copy (the first time, or where the installation cannot be written) a server
migrates as ever, and one started from a copy still checks that its schema is the newest.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

_NAME = "prefect.db"


def kept_copy() -> Path:
    """Where this installation keeps the empty database of its prefect."""
    return Path(sys.prefix) / "share" / "coral" / f"prefect-{version('prefect')}.db"


def is_new(home: Path) -> bool:
    """Whether a server in ``home`` would begin without a database."""
    return not (home / _NAME).exists()


def begin_with_copy(home: Path) -> None:
    """Give a new server in ``home`` the kept database, if there is one; a damaged one is deleted.

    Call with the slot's lock held.
    """
    kept = kept_copy()
    if not is_new(home) or not kept.exists():
        return
    try:
        _copy(kept, home / _NAME)
    except sqlite3.DatabaseError:
        with contextlib.suppress(OSError):
            kept.unlink()
    except OSError:
        pass  # no room or no leave: the server will say what it lacks


def keep_copy(home: Path) -> None:
    """Keep the database of a server that has just started with none, unless one is kept or cannot be."""
    kept = kept_copy()
    if kept.exists():
        return
    with contextlib.suppress(OSError, sqlite3.Error):
        kept.parent.mkdir(parents=True, exist_ok=True)
        _copy(home / _NAME, kept)


def _copy(source: Path, target: Path) -> None:
    """Copy a database, also one in use, so that ``target`` is whole or not there."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(descriptor)
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as from_,
            contextlib.closing(sqlite3.connect(name)) as to,
        ):
            from_.backup(to)
            to.execute("PRAGMA journal_mode=DELETE")  # one file, whoever reads it
            is_empty = to.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
            if is_empty or to.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError(f"{source} is damaged")
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)
