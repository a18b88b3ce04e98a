"""What the last build of a library counted."""

from __future__ import annotations

from dataclasses import fields

from warehouse.catalog_faults import lake_errors
from warehouse.connect import Lake
from warehouse.records import BuildRecord, BuildStatus


def last_build(lake: Lake, library_id: str) -> BuildRecord | None:
    """The latest complete build of a library, or None when the lake has none."""
    names = [field.name for field in fields(BuildRecord)]
    with lake_errors(lake.root):
        row = lake.connection.execute(
            f"SELECT {', '.join(names)} FROM main.builds WHERE library_id = ? AND status = ? "  # noqa: S608 - own names
            "ORDER BY started_at DESC LIMIT 1",
            [library_id, BuildStatus.COMPLETE.value],
        ).fetchone()
    if row is None:
        return None
    values = dict(zip(names, row, strict=True))
    return BuildRecord(**{**values, "status": BuildStatus(values["status"])})


def library_shard_count(lake: Lake, library_id: str) -> int:
    """How many files of templates a library has; 0 when it is not in the lake."""
    with lake_errors(lake.root):
        row = lake.connection.execute("SELECT count(*) FROM main.shards WHERE library_id = ?", [library_id]).fetchone()
    return int(row[0]) if row else 0
