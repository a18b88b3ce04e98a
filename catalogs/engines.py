"""Serving engines' defaults that change with their version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from catalogs.errors import CoralError, UnknownNameError
from catalogs.tables import DATA_DIR, read_table


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """Defaults of ``engine`` from ``version_from`` on. ``gpu_memory_utilization``: share of a GPU's total memory."""

    engine: str
    version_from: str
    gpu_memory_utilization: float


@cache
def engine_versions() -> tuple[EngineVersion, ...]:
    """All rows of the engines table, oldest first."""
    rows = read_table(DATA_DIR / "engines.csv", "engines").require_clean().rows
    versions = [EngineVersion(r["engine"], r["version_from"], r["gpu_memory_utilization"]) for r in rows]
    return tuple(sorted(versions, key=lambda version: (version.engine, _parts(version.version_from))))


def engine_version(engine: str = "vllm", version: str | None = None) -> EngineVersion:
    """The row that holds for ``version`` (default: the newest). A version before the first row takes that row.

    Raises UnknownNameError for an engine, CoralError for a version that is no dotted number.
    """
    rows = [row for row in engine_versions() if row.engine == engine]
    if not rows:
        raise UnknownNameError("engine", engine, {row.engine for row in engine_versions()})
    if version is None:
        return rows[-1]
    asked = _parts(version)
    return next((row for row in reversed(rows) if _parts(row.version_from) <= asked), rows[0])


def _parts(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError as error:
        raise CoralError(f"engine version {version!r} is no dotted number", remedy="write it as 0.25.0") from error
