"""``coral backfill``: the library of a scenario as if it offered more GPU types. Shards of the others are shared."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from catalogs.errors import CoralError
from catalogs.scenario_extend import load_extended
from flows.build import build_library
from flows.feeds import feed_reader
from flows.settings import BuildResult, BuildSettings, Progress


def backfill_library(settings: BuildSettings, gpus: Sequence[str], progress: Progress | None = None) -> BuildResult:
    """Build and register the library with ``gpus`` added; it becomes the current one of ``settings.library_key``.

    Only shards of GPU sets with a new type are computed; files of the old library stay byte for byte, and readers see
    the old library or the new one. Raises what :func:`~flows.build.build_library` and
    :func:`~catalogs.scenario_extend.load_extended` raise.
    """
    if settings.library_key is not None and not settings.library_key.strip():
        raise CoralError("--as needs a name", remedy="give one, such as --as with-h200")
    feeds = feed_reader(settings.lake_root, datetime.now(UTC))
    return build_library(settings, progress, load_extended(settings.scenario, gpus, feeds=feeds))
