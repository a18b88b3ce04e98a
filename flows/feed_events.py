"""What follows when a feed has changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warehouse.records import IngestRecord


def feed_changed(lake_root: Path, record: IngestRecord) -> None:
    """Called once after an ingest that said something new, when all of it is in the lake.

    ``record.kind``, ``record.scenario_id`` and ``record.observed_at`` say what changed for whom. Must not raise for what is
    not running: the rows are in, and whoever reads the lake next finds them.
    """
