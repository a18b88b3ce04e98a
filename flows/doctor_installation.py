"""Is the installation what it was tested as: Python, our own code, the packages at their pinned versions, extensions."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from catalogs.errors import CoralError
from flows.doctor import Check, Status
from flows.runner import DISTRIBUTION, code_hash

_AREA = "installation"
_LEAST_PYTHON = (3, 11)


def installation_checks() -> Iterator[Check]:
    """Nothing here needs a lake or a server."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _LEAST_PYTHON:
        yield Check(_AREA, "python", Status.FAILED, version, "use Python 3.11 or newer")
    else:
        yield Check(_AREA, "python", Status.OK, version)
    yield _own_code()
    yield _packages()
    yield _extensions()


def _own_code() -> Check:
    mark = code_hash()
    if ":" in mark:  # shadowed or missing, and which
        remedy = "install coral-planner, and set PYTHONSAFEPATH=1 so that nothing in the working folder goes before it"
        return Check(_AREA, "coral", Status.FAILED, mark, remedy)
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return Check(_AREA, "coral", Status.FAILED, f"{DISTRIBUTION} is not installed", "pip install -e .")
    return Check(_AREA, "coral", Status.OK, f"version {version}, code {mark}")


def pins_file() -> Path:
    """Where the tested versions stand: beside our packages, in a checkout."""
    return Path(__file__).parents[1] / "constraints.txt"


def _packages() -> Check:
    try:
        lines = pins_file().read_text().splitlines()
    except FileNotFoundError:
        found = "no constraints.txt beside the packages: versions cannot be compared with those tested"
        return Check(
            _AREA, "packages", Status.NOTE, found, "install from a checkout with `make setup` to have them compared"
        )
    pins = dict(line.split("==", 1) for line in lines if "==" in line)
    others, missing = [], _missing_packages()
    for name, wanted in sorted(pins.items()):
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # pinned for those who install it
        if have != wanted:
            others.append(f"{name} {have} (tested: {wanted})")
    remedy = "pip install -c constraints.txt -e ."
    if missing:
        return Check(_AREA, "packages", Status.FAILED, f"not installed: {', '.join(missing)}", remedy)
    if others:
        return Check(_AREA, "packages", Status.WARNING, f"other versions than tested: {', '.join(others)}", remedy)
    return Check(_AREA, "packages", Status.OK, f"all of {len(pins)} pins that are installed are at their version")


def _missing_packages() -> list[str]:
    """What we cannot do without and is not installed."""
    from packaging.requirements import Requirement

    missing = []
    for text in importlib.metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
    return missing


def _extensions() -> Check:
    from warehouse.connect import extensions_in_words

    try:
        return Check(_AREA, "duckdb", Status.OK, extensions_in_words())
    except CoralError as error:
        return Check(_AREA, "duckdb", Status.FAILED, error.message, error.remedy)
