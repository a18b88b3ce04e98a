"""What can be told of a lake's state without changing it: missing files, leftovers, how old its feeds are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from warehouse.catalog_faults import OWN_FOLDER, lake_errors
from warehouse.catalog_store import store_of
from warehouse.connect import Lake
from warehouse.land import DAMAGED_FOLDER
from warehouse.schema import SHARD_SCHEMA


@dataclass(frozen=True, slots=True)
class FeedAge:
    """The moment that a scenario's latest accepted file of a kind tells of."""

    scenario_id: str
    kind: str
    observed_at: datetime


def missing_files(lake: Lake) -> list[str]:
    """Files that a current library names and that are not there (relative to the lake's root)."""
    with lake_errors(lake.root):
        rows = lake.connection.execute(
            """WITH used AS (
                SELECT library_id, profile_set_id FROM main.library_rows
                WHERE library_id IN (
                    SELECT library_id FROM main.current_libraries
                    QUALIFY sequence = max(sequence) OVER (PARTITION BY library_key)
                )
            )
            SELECT path FROM main.shards SEMI JOIN used USING (library_id)
            UNION SELECT path FROM main.frontiers SEMI JOIN used USING (library_id)
            UNION SELECT path FROM main.profile_sets SEMI JOIN used USING (profile_set_id) ORDER BY path"""
        ).fetchall()
    return [path for (path,) in rows if not (lake.root / path).is_file()]


def broken_own_files(lake: Lake) -> list[str]:
    """Files of the catalog's own tables (``main/``) that are not there, or of another size than they were written with."""
    store = store_of(lake.root)
    own = {name: store.metadata_table(f"ducklake_{name}") for name in ("data_file", "delete_file", "table", "schema")}
    files = " UNION ALL ".join(
        f"SELECT table_id, path, file_size_bytes FROM {own[kind]} WHERE end_snapshot IS NULL AND path_is_relative"  # noqa: S608 - own names
        for kind in ("data_file", "delete_file")
    )
    with lake_errors(lake.root):
        rows = lake.connection.execute(
            f"""SELECT s.path || t.path || f.path, f.file_size_bytes FROM ({files}) f
            JOIN (SELECT table_id, schema_id, path FROM {own["table"]} WHERE end_snapshot IS NULL) t USING (table_id)
            JOIN (SELECT schema_id, path FROM {own["schema"]} WHERE schema_name = '{OWN_FOLDER}') s USING (schema_id)
            ORDER BY ALL"""  # noqa: S608 - own names
        ).fetchall()
    return [path for path, size in rows if not _is_whole(lake.root / path, size)]


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def damaged_files_set_aside(root: Path) -> list[str]:
    """Files that a build found damaged, moved away and made anew (relative to ``root``)."""
    return sorted(str(path.relative_to(root)) for path in root.glob(f"{SHARD_SCHEMA}/*/{DAMAGED_FOLDER}/*"))


def feed_ages(lake: Lake) -> list[FeedAge]:
    """Per scenario and kind of feed that was ever taken in, by name."""
    with lake_errors(lake.root):
        rows = lake.connection.execute(
            """SELECT scenario_id, kind, max(observed_at) FROM main.ingests WHERE observed_at IS NOT NULL
            GROUP BY ALL ORDER BY ALL"""
        ).fetchall()
    return [FeedAge(*row) for row in rows]
