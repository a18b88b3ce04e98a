"""Where scenario files are: the shipped ones by name, a user's by path, and those that were meant where a path is wrong."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from catalogs.errors import CoralError, UnknownNameError, close_matches, close_matches_remedy
from catalogs.tables import DATA_DIR

SCENARIO_DIR = DATA_DIR / "scenarios"
_SCENARIO = "scenario.yaml"  # what `coral init` calls it
_YAML = (".yaml", ".yml")
_MOST_ENTRIES = 1_000  # of a folder that are looked at


def shipped_scenarios() -> tuple[str, ...]:
    """Names of the shipped scenarios."""
    return tuple(sorted(path.stem for path in SCENARIO_DIR.glob("*.yaml")))


def scenario_path(name_or_path: str | Path) -> Path:
    """The file of a shipped name, or the path itself (a folder means its ``scenario.yaml``). Raises UnknownNameError and, for
    what can only be a path, CoralError; both name what is nearest, of the shipped and of what lies where the path points."""
    path = Path(name_or_path)
    if path.is_dir():
        path = path / _SCENARIO
    if path.is_file():
        return path
    name = str(name_or_path)
    if name in shipped_scenarios():
        return SCENARIO_DIR / f"{name}.yaml"
    if path.suffix in _YAML or len(path.parts) > 1:
        what, remedy = "is no regular file", "check the path, or run `coral init DIR`"
        if not path.exists():
            what, near = "does not exist", close_matches(name, _scenarios_beside(path))
            remedy = close_matches_remedy(name, near) if near else remedy
        raise CoralError(f"scenario file {str(path)!r} {what}", remedy=remedy)
    own = close_matches(name, _scenarios_beside(path))
    raise UnknownNameError("scenario", name, (*shipped_scenarios(), *own))


def _scenarios_beside(path: Path) -> list[str]:
    """Scenarios, as one would write them, in the folder that ``path`` would be in: files, and folders with one. Where there is
    no such folder, files of the same name in those beside it."""
    is_there = path.parent.is_dir()
    try:
        with os.scandir(path.parent if is_there else path.parent.parent) as entries:
            here = [path.parent / entry.name for entry in islice(entries, _MOST_ENTRIES)]
    except OSError:
        return []
    if not is_there:
        folders = [path.parent.with_name(entry.name) for entry in here]
        return sorted(str(folder / path.name) for folder in folders if (folder / path.name).is_file())
    files = [str(entry) for entry in here if entry.suffix in _YAML and entry.is_file()]
    return sorted([*files, *(str(entry) for entry in here if (entry / _SCENARIO).is_file())])
