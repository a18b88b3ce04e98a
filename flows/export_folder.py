"""A folder written as a whole: it replaces an earlier one of its kind that nobody has touched, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from catalogs.errors import CoralError, clipped
from catalogs.texts import UnreadableError, parse_json, read_text

MANIFEST = "EXPORT.json"
_KIND = "coral export"
_REMEDY = "name a new folder with --out, or move yours away; nothing was written"


def check_folder(out: Path) -> None:
    """Raise CoralError unless ``out`` is absent, an empty folder, or an export of which no file was added or edited."""
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise CoralError(f"{clipped(str(out))} is not a folder", remedy=_REMEDY)
    held = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if not path.is_dir() or path.is_symlink()}
    if not held:
        return
    known = _manifest(out)
    if known is None:
        first = min(held)
        raise CoralError(f"{clipped(str(out))} holds {clipped(first)}, which no export wrote", remedy=_REMEDY)
    for name, path in sorted(held.items()):
        if name == MANIFEST:
            continue
        if name not in known:
            raise CoralError(f"{clipped(str(out))} holds {clipped(name)}, which no export wrote", remedy=_REMEDY)
        if path.is_symlink() or _digest(path.read_bytes()) != known[name]:
            raise CoralError(f"{clipped(str(path))} was edited since it was exported", remedy=_REMEDY)


def write_folder(out: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` (path in the folder -> text) as ``out``: complete under another name first, then renamed into place.

    Scripts become executable. Raises as :func:`check_folder`, and CoralError where the folder cannot be written; what was
    there then stays.
    """
    check_folder(out)
    out = out.resolve()
    part, old = (out.with_name(f".{out.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
    try:
        _fill(part, files)
        if out.exists():
            out.replace(old)
        try:
            part.replace(out)
        except BaseException:
            if old.exists():
                old.replace(out)
            raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CoralError(
            f"{clipped(str(out))} cannot be written: {why}", remedy="name another folder with --out"
        ) from error
    finally:
        for path in (part, old):
            shutil.rmtree(path, ignore_errors=True)


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    contents = {name: text.encode() for name, text in files.items()}
    manifest = {"kind": _KIND, "files": {name: _digest(content) for name, content in sorted(contents.items())}}
    contents[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if path.suffix == ".sh":
            path.chmod(0o755)


def _manifest(out: Path) -> dict[str, str] | None:
    with contextlib.suppress(UnreadableError):
        document = parse_json(read_text(out / MANIFEST, most_mib=16, kind="JSON file"), "")
        if isinstance(document, dict) and document.get("kind") == _KIND and isinstance(document.get("files"), dict):
            return document["files"]
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
