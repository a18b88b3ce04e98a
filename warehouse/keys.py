"""Which file was computed from which inputs: a small text file per hash of inputs, naming the file's id. No DuckDB here."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from warehouse.faults import disk_errors

KEY_FOLDER = "keys"


def known_profile(lake_root: Path, key: str) -> str | None:
    """The id of the profile file once computed from the inputs with hash ``key``, or None."""
    try:
        return named_in(lake_root / KEY_FOLDER / key) or None
    except FileNotFoundError:
        return None


def named_in(key_file: Path) -> str:
    """The file's id that a key file names; what is damaged names none that there is."""
    return key_file.read_text(errors="replace").strip()


def remember_profile(lake_root: Path, key: str, profile_id: str) -> None:
    """Record that the inputs with hash ``key`` give the profile file ``profile_id``; whole or not at all. Raises LakeError
    when the disk is full."""
    folder = lake_root / KEY_FOLDER
    temporary = temporary_file(folder, key)
    with disk_errors(lake_root):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(profile_id)
            temporary.replace(folder / key)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def temporary_file(folder: Path, name: str) -> Path:
    """A path beside ``name`` for it to be written to first; it tells the writer's host and process."""
    return folder / f"{name}@{socket.gethostname()}@{os.getpid()}@{time.monotonic_ns()}.tmp"
