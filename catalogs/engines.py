"""What changes with the version of a serving engine: its defaults, and how a plan is launched with it."""

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


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """How ``engine`` is launched from ``version_from`` on; ``version`` is the one asked for.

    The KV connectors are those between prefill and decode instances: the usual one, and those that take several pipeline
    stages on the prefill or the decode side ('' = none does).
    """

    engine: str
    version: str
    version_from: str
    image: str
    connector: str
    prefill_pp_connector: str
    decode_pp_connector: str


def engine_launch(engine: str = "vllm", version: str | None = None) -> EngineLaunch:
    """The launch facts that hold for ``version`` (default: the newest known).

    Raises UnknownNameError for an engine, CoralError for a version that is no dotted number or older than all that are known.
    """
    table = read_table(DATA_DIR / "engine_launch.csv", "engine_launch").require_clean().rows
    rows = sorted((row for row in table if row["engine"] == engine), key=lambda row: _parts(row["version_from"]))
    if not rows:
        raise UnknownNameError("engine", engine, {row["engine"] for row in table})
    asked = version or rows[-1]["version_from"]
    known = [row for row in rows if _parts(row["version_from"]) <= _parts(asked)]
    if not known:
        first = rows[0]["version_from"]
        raise CoralError(
            f"how {engine} {asked} is launched is not known: its options are known from {first} on",
            remedy=f"export for {first} or newer with --engine-version",
        )
    row = known[-1]
    return EngineLaunch(
        engine,
        asked,
        row["version_from"],
        row["image"],
        row["connector"],
        row["prefill_pp_connector"] or "",
        row["decode_pp_connector"] or "",
    )


def _parts(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError as error:
        raise CoralError(f"engine version {version!r} is no dotted number", remedy="write it as 0.25.0") from error
