"""What a lake no longer needs: libraries that nothing uses, files that no library names, old results and old log rows.

Kept are the current library of every key, one that was current or built within the days asked for, and what a kept plan
needs: its library, the libraries that hold a template it runs, and what it was decided on (``frames/``). A plan is kept while
it is not superseded, while it is its scenario's newest or the last one applied, and for the days asked for after it was
superseded; what the fleet as last seen runs is kept too. Plan versions themselves are never deleted, nor runs that made one,
whatever becomes of the library they came from. Other runs, alerts that are over, rejected rows and earlier states of the fleet
go after the days asked for, and so do results that can be computed again (``why/``, ``headroom/``, ``simulations/``).
What feeds told before those days goes, but for the last word on everything (:mod:`warehouse.feed_gc`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import duckdb

from warehouse.catalog_faults import lake_errors
from warehouse.catalog_store import store_of
from warehouse.connect import Lake, transaction
from warehouse.feed_gc import OLD_FEED_ROWS
from warehouse.keys import KEY_FOLDER, named_in
from warehouse.land import DAMAGED_FOLDER, remove_temporaries, shard_folder
from warehouse.lock import write_lock
from warehouse.records import ShardKind, utc_now
from warehouse.results import FRAMES, SIMULATIONS, plan_result_id

_KEPT_PLANS = """
        SELECT scenario_id, plan_version, library_id FROM main.plans
        LEFT JOIN (
            SELECT scenario_id, arg_max(plan_version, since) AS applied FROM main.plan_states
            WHERE state = 'applied' GROUP BY scenario_id
        ) USING (scenario_id)
        QUALIFY state <> 'superseded' OR state_since >= $cutoff OR plan_version = applied
            OR plan_version = max(plan_version) OVER (PARTITION BY scenario_id)"""
_LAST_SEEN = "SELECT scenario_id, max(observed_at) AS observed_at FROM main.fleet GROUP BY scenario_id"

# Libraries that must stay; $cutoff = the moment before which things are old.
_NEEDED = f"""
    WITH events AS (
        SELECT library_id, lead(since) OVER (PARTITION BY library_key ORDER BY sequence) AS until
        FROM main.current_libraries
    ), kept_plans AS ({_KEPT_PLANS}), used_templates AS (
        SELECT DISTINCT template_id FROM main.plan_instances JOIN kept_plans USING (scenario_id, plan_version)
        UNION SELECT template_id FROM main.fleet JOIN ({_LAST_SEEN}) USING (scenario_id, observed_at)
    ), used_shards AS (
        SELECT DISTINCT shard_id FROM shards.solved_templates JOIN used_templates USING (template_id)
    )
    SELECT library_id FROM events WHERE until IS NULL OR until >= $cutoff
    UNION SELECT library_id FROM main.library_rows WHERE built_at >= $cutoff
    UNION SELECT library_id FROM kept_plans
    UNION SELECT library_id FROM main.shards JOIN used_shards USING (shard_id)"""  # noqa: S608 - constants

# Rows that only tell what was: per table, which of them go. The latest of their kind stay whatever their age.
_OLD_ROWS = {
    "allocation_runs": """logged_at < $cutoff AND outcome NOT IN ('published', 'held_for_approval') AND run_id NOT IN (
        SELECT arg_max(run_id, (started_at, logged_at)) FROM main.allocation_runs GROUP BY scenario_id
        UNION ALL SELECT arg_max(run_id, (started_at, logged_at)) FROM main.allocation_runs
            WHERE outcome = 'unchanged' GROUP BY scenario_id)""",
    "alert_events": '"at" < $cutoff AND event_id NOT IN (SELECT event_id FROM main.alerts WHERE is_open)',
    "alert_deliveries": '"at" < $cutoff',
    "rejects": "logged_at < $cutoff",
    "fleet": f"observed_at < $cutoff AND (scenario_id, observed_at) NOT IN ({_LAST_SEEN})",
    **OLD_FEED_ROWS,
}
_RECOMPUTED = ("why", "headroom", SIMULATIONS)


@dataclass(frozen=True, slots=True)
class Garbage:
    """What is not needed: ids of libraries, and files (relative to the lake's root) with their total size in ``bytes``.

    ``rows``: log rows, by table. ``kept_libraries`` stay. Temporary files of writers that have ended are removed as well,
    without being listed.
    """

    libraries: tuple[str, ...]
    files: tuple[str, ...]
    bytes: int
    kept_libraries: tuple[str, ...]
    rows: Mapping[str, int] = field(default_factory=dict)


def find_garbage(lake: Lake, keep_days: float, now: datetime | None = None) -> Garbage:
    """What :func:`collect_garbage` would delete; changes nothing. Raises ValueError for negative days."""
    if keep_days < 0:
        raise ValueError(f"keep_days is {keep_days}")
    cutoff = (now or utc_now()) - timedelta(days=keep_days)
    with lake_errors(lake.root):
        needed = {name for (name,) in lake.connection.execute(_NEEDED, {"cutoff": cutoff}).fetchall()}
        libraries = {name for (name,) in lake.connection.execute("SELECT library_id FROM main.library_rows").fetchall()}
        dropped, kept = sorted(libraries - needed), sorted(libraries & needed)
        loose = {*_loose_files(lake, kept, cutoff), *_old_results(lake, cutoff)}
        files = sorted({*_files_of(lake.connection, dropped, kept), *loose})
        rows = {name: n for name, where in _OLD_ROWS.items() if (n := _count(lake, name, where, cutoff))}
    sizes = [(lake.root / name).stat().st_size for name in files if (lake.root / name).is_file()]
    return Garbage(tuple(dropped), tuple(files), sum(sizes), tuple(kept), rows)


def collect_garbage(lake: Lake, keep_days: float, now: datetime | None = None) -> Garbage:
    """Delete what is not needed, under the write lock; returns what that was.

    Rows go in one transaction; then earlier snapshots of the lake are forgotten and files deleted, so a kill leaves files
    for the next call and never a row without its file. A build that runs meanwhile and had counted on a deleted file ends
    with LakeError and finds it missing when repeated. Raises LakeError for a lock that is held.
    """
    with write_lock(lake.root, "gc"), lake_errors(lake.root):
        garbage = find_garbage(lake, keep_days, now)
        cutoff = (now or utc_now()) - timedelta(days=keep_days)
        connection = lake.connection
        # Small deletions would be kept in the catalog, and the file with them.
        connection.execute("SET ducklake_default_data_inlining_row_limit = 0")
        if garbage.libraries or garbage.rows:
            with transaction(connection, f"gc: drop {len(garbage.libraries)} libraries and old log rows"):
                for name in garbage.rows:
                    connection.execute(f"DELETE FROM main.{name} WHERE {_OLD_ROWS[name]}", {"cutoff": cutoff})  # noqa: S608
                if garbage.libraries:
                    _delete_rows(connection, garbage.libraries)
        connection.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
        _spare_files_in_use(lake)
        connection.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
        for name in garbage.files:
            (lake.root / name).unlink(missing_ok=True)
        remove_temporaries(lake.root)
    return garbage


def _files_of(connection: duckdb.DuckDBPyConnection, dropped: Sequence[str], kept: Sequence[str]) -> set[str]:
    """Paths of the files of ``dropped`` libraries that no ``kept`` one shares."""
    return _paths(connection, dropped) - _paths(connection, kept)


def _paths(connection: duckdb.DuckDBPyConnection, libraries: Sequence[str]) -> set[str]:
    rows = connection.execute(
        """
        WITH given AS (SELECT library_id, profile_set_id FROM main.library_rows WHERE list_contains($ids, library_id))
        SELECT path FROM main.shards WHERE list_contains($ids, library_id)
        UNION SELECT path FROM main.frontiers WHERE list_contains($ids, library_id)
        UNION SELECT path FROM main.profile_sets WHERE profile_set_id IN (SELECT profile_set_id FROM given)""",
        {"ids": list(libraries)},
    ).fetchall()
    return {path for (path,) in rows}


def _loose_files(lake: Lake, kept: Sequence[str], cutoff: datetime) -> Iterator[str]:
    """Old files that no library names: landed by builds that ended early, set aside as damaged, keys, servers' logs."""
    is_old = _older_than(cutoff)
    known = {name for (name,) in lake.connection.execute(f"SELECT path FROM {_files(lake)}").fetchall()}  # noqa: S608
    needed = {Path(name).name for name in _paths(lake.connection, kept)}
    profiles = set()
    for kind in ShardKind:
        folder = shard_folder(lake.root, kind)
        for path in folder.glob("*.parquet"):
            if path.name not in known and path.name not in needed and is_old(path):
                yield str(path.relative_to(lake.root))
        yield from (str(p.relative_to(lake.root)) for p in (folder / DAMAGED_FOLDER).glob("*") if is_old(p))
        if kind is ShardKind.PROFILES:
            profiles = {name.rsplit("-", 1)[0] for name in needed if (folder / name).is_file()}
    for path in (lake.root / KEY_FOLDER).glob("*"):
        if is_old(path) and named_in(path) not in profiles:
            yield str(path.relative_to(lake.root))
    for path in (lake.root / "prefect").glob("*/*.log"):
        if is_old(path):
            yield str(path.relative_to(lake.root))


def _old_results(lake: Lake, cutoff: datetime) -> Iterator[str]:
    """Old results that can be computed again, and what plans were decided on that are not kept."""
    is_old = _older_than(cutoff)
    kept = lake.connection.execute(_KEPT_PLANS, {"cutoff": cutoff}).fetchall()
    frames = {plan_result_id(FRAMES, scenario_id, version) for scenario_id, version, _ in kept}
    for kind in (FRAMES, *_RECOMPUTED):
        for path in (lake.root / kind).glob("*"):
            if is_old(path) and not (kind == FRAMES and path.name.split("-", 1)[0] in frames):
                yield str(path.relative_to(lake.root))


def _count(lake: Lake, table: str, where: str, cutoff: datetime) -> int:
    sql = f"SELECT count(*) FROM main.{table} WHERE {where}"  # noqa: S608 - constants
    row = lake.connection.execute(sql, {"cutoff": cutoff}).fetchone()
    return 0 if row is None else int(row[0])


def _older_than(cutoff: datetime) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and path.stat().st_mtime < cutoff.timestamp()


def _delete_rows(connection: duckdb.DuckDBPyConnection, libraries: Sequence[str]) -> None:
    """Forget ``libraries``: their rows, and the rows of files that no other library names."""
    ids = [list(libraries)]
    for table in ("shards", "frontiers", "rate_quantiles", "current_libraries", "library_rows"):
        connection.execute(f"DELETE FROM main.{table} WHERE list_contains(?, library_id)", ids)  # noqa: S608 - own names
    connection.execute(
        "DELETE FROM main.profile_sets WHERE profile_set_id NOT IN (SELECT profile_set_id FROM main.library_rows)"
    )
    for table, column, mapping in (
        ("shards.solved_templates", "shard_id", "shards"),
        ("shards.profile_rows", "profile_id", "profile_sets"),
        ("shards.frontier_rows", "frontier_id", "frontiers"),
        ("main.frontier_slim", "frontier_id", "frontiers"),
        ("main.frontier_configs", "frontier_id", "frontiers"),
    ):
        connection.execute(
            f"DELETE FROM {table} WHERE {column} NOT IN (SELECT {column} FROM main.{mapping})"  # noqa: S608 - own names
        )


def _files(lake: Lake) -> str:
    return store_of(lake.root).metadata_table("ducklake_data_file")


def _spare_files_in_use(lake: Lake) -> None:
    """Take files that were registered again off the catalog's list of files to delete.

    After a kill between the transaction and the deletion, a build may find such a file and register it once more.
    """
    connection, to_delete = lake.connection, store_of(lake.root).metadata_table("ducklake_files_scheduled_for_deletion")
    used = connection.execute(f"SELECT path FROM {_files(lake)} WHERE end_snapshot IS NULL").fetchall()  # noqa: S608
    names = {Path(path).name for (path,) in used}
    listed = connection.execute(f"SELECT data_file_id, path FROM {to_delete}").fetchall()  # noqa: S608
    for file_id, path in listed:
        if Path(path).name in names:
            connection.execute(f"DELETE FROM {to_delete} WHERE data_file_id = ?", [file_id])  # noqa: S608
