"""Results of computations that a lake keeps as JSON files: named by the hash of what they were computed from.

``simulations/<result_id>-<sha256[:16]>.json``: written under a temporary name and renamed, so a file under its final name
is complete; the hash in its name tells whether it is intact. What is there need not be computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from catalogs.errors import LakeError
from catalogs.ids import short_hash
from warehouse.faults import disk_errors

SIMULATIONS, FRAMES = "simulations", "frames"
_ID = re.compile(r"^[0-9a-f]{8,64}$")
_NAME_HASH_DIGITS = 16


def plan_result_id(kind: str, scenario_id: str, plan_version: int) -> str:
    """The id of a result of its kind that belongs to a plan version."""
    return short_hash([kind, scenario_id, plan_version])


def write_result(
    root: str | os.PathLike[str], result_id: str, document: Any, kind: str = SIMULATIONS, *, instead_of: Any = None
) -> Path:
    """Keep ``document`` (JSON types only) as the result of ``result_id``; its path. Equal documents give equal bytes.
    Then delete the kept document ``instead_of``, where one is named that differs.

    Raises ValueError for NaN in it or an id that is no hash, LakeError when the disk is full.
    """
    if not _ID.match(result_id):
        raise ValueError(f"{result_id!r} is not a result id")
    content = _content(document)
    folder = _folder(root, kind)
    final = folder / f"{result_id}-{_digest(content)}.json"
    with disk_errors(Path(root)):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{result_id}.{os.getpid()}.{id(document)}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if instead_of is not None and instead_of != document:
            (folder / f"{result_id}-{_digest(_content(instead_of))}.json").unlink(missing_ok=True)
    return final


def can_keep(root: str | os.PathLike[str], kind: str = SIMULATIONS) -> bool:
    """Whether results of a kind may be written; False in a lake that may only be read."""
    folder = _folder(root, kind)
    return os.access(folder if folder.is_dir() else folder.parent, os.W_OK | os.X_OK)


def find_result(root: str | os.PathLike[str], result_id: str, kind: str = SIMULATIONS) -> Any | None:
    """The document of ``result_id``, or None where there is none; a damaged file is deleted and counts as none."""
    for path in sorted(_folder(root, kind).glob(f"{result_id}-*.json")):
        content = path.read_bytes()
        if path.stem == f"{result_id}-{_digest(content)}":
            return json.loads(content)
        path.unlink(missing_ok=True)
    return None


def read_result(root: str | os.PathLike[str], result_id: str, kind: str = SIMULATIONS) -> Any:
    """The document of ``result_id``. Raises LakeError where there is none."""
    document = find_result(root, result_id, kind)
    if document is None:
        raise LakeError(
            f"there is no result {result_id} in {_folder(root, kind)}", remedy="run the command that makes it again"
        )
    return document


def _folder(root: str | os.PathLike[str], kind: str) -> Path:
    return Path(root).expanduser().resolve() / kind


def _content(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_NAME_HASH_DIGITS]


def result_about(root: str | os.PathLike[str], kind: str, **about: Any) -> Any | None:
    """The newest intact document of ``kind`` that holds these values, or None; nothing is changed or deleted."""
    newest_first = sorted(_folder(root, kind).glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in newest_first:
        content = path.read_bytes()
        if not path.stem.endswith(f"-{_digest(content)}"):
            continue
        document = json.loads(content)
        if isinstance(document, dict) and about.items() <= document.items():
            return document
    return None
