"""Registering libraries: all files and rows of a library in one transaction, so readers see the old or the new.

Publishing of plans is in :mod:`warehouse.plans`, offered here as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import duckdb

from catalogs.errors import LakeError
from catalogs.ids import short_hash
from warehouse.catalog_store import sql_text
from warehouse.connect import Lake
from warehouse.frontier import copy_slim
from warehouse.land import verify
from warehouse.plans import log_rejects, log_run, publish_plan
from warehouse.prices import renew_best_templates
from warehouse.records import BuildRecord, LandedShard, LibraryRecord, ReferenceInputs, ShardKind, utc_now
from warehouse.reference import record_reference
from warehouse.rows import insert
from warehouse.schema import SHARD_SCHEMA

__all__ = [
    "library_hash",
    "log_build",
    "log_rejects",
    "log_run",
    "make_current",
    "profile_set_id",
    "publish_plan",
    "register_library",
]

# Per kind of file: the table that maps it to its users, that table's id column, and the column naming the user.
_MAPPING = {
    ShardKind.TEMPLATES: ("shards", "shard_id", "library_id"),
    ShardKind.PROFILES: ("profile_sets", "profile_id", "profile_set_id"),
    ShardKind.FRONTIER: ("frontiers", "frontier_id", "library_id"),
}


def library_hash(shards: Iterable[LandedShard]) -> str:
    """Hash of a library's content: its shards' ids and bytes, whatever order or process they came in."""
    return short_hash(sorted([shard.shard_id, shard.sha256] for shard in shards))


def profile_set_id(profile_ids: Iterable[str]) -> str:
    """Hash of the profile files that belong together, order-free."""
    return short_hash(sorted(profile_ids))


def register_library(
    lake: Lake,
    library: LibraryRecord,
    shards: Sequence[LandedShard],
    profiles: Sequence[LandedShard],
    frontier: Sequence[LandedShard],
    build: BuildRecord,
    reference: ReferenceInputs | None = None,
    *,
    lock_timeout_s: float | None = None,
) -> str:
    """Register a library with its files and make it the current one of ``library.library_key``; returns its hash.

    One transaction: readers see the library whole or not at all. Repeating it changes nothing but adds the build's
    row (once per ``build_id``). Files that an earlier library registered are shared, not added twice.
    Raises LakeError when a file is missing or damaged, when the id is taken by a library of other content, when the
    lock is held, or when the disk is full.
    """
    given = {ShardKind.TEMPLATES: shards, ShardKind.PROFILES: profiles, ShardKind.FRONTIER: frontier}
    for kind, files in given.items():
        _check_files(lake, kind, files)
    content = library_hash(shards)
    with lake.write(f"register library {library.library_id}", lock_timeout_s=lock_timeout_s) as connection:
        _check_same_content(connection, library.library_id, content)
        for kind, files in given.items():
            user = library.profile_set_id if kind is ShardKind.PROFILES else library.library_id
            _register_files(connection, lake, kind, files, user)
        _insert_library(connection, library, content)
        _make_current(connection, library.library_key, library.library_id)
        if _record_build(connection, build) and reference is not None:
            record_reference(connection, reference, build_id=build.build_id, scenario_id=library.library_key)
    return content


def log_build(lake: Lake, build: BuildRecord, *, lock_timeout_s: float | None = None) -> None:
    """Record a build that registers nothing: a failed one."""
    with lake.write(f"log build {build.build_id}", lock_timeout_s=lock_timeout_s) as connection:
        _record_build(connection, build)


def make_current(lake: Lake, library_key: str, library_id: str, *, lock_timeout_s: float | None = None) -> None:
    """Make a registered library the current one of a key (a roll-back, or a second scenario that shares it)."""
    with lake.write(f"make {library_id} current for {library_key}", lock_timeout_s=lock_timeout_s) as connection:
        if not connection.execute("SELECT 1 FROM main.library_rows WHERE library_id = ?", [library_id]).fetchone():
            raise LakeError(f"library {library_id} is not in the lake", remedy="run `coral build` first")
        _make_current(connection, library_key, library_id)


def _check_files(lake: Lake, kind: ShardKind, files: Sequence[LandedShard]) -> None:
    for shard in files:
        if shard.kind is not kind:
            raise ValueError(f"{shard.path} holds {shard.kind.value}, not {kind.value}")
        verify(lake.root, shard)
    twice = [name for name, count in Counter(shard.shard_id for shard in files).items() if count > 1]
    if twice:
        raise ValueError(f"{kind.value} given twice: {twice}")


def _check_same_content(connection: duckdb.DuckDBPyConnection, library_id: str, content: str) -> None:
    row = connection.execute("SELECT library_hash FROM main.library_rows WHERE library_id = ?", [library_id]).fetchone()
    if row is not None and row[0] != content:
        raise LakeError(
            f"library {library_id} is already registered with other content (hash {row[0]}, now {content})",
            remedy="a changed solver needs a new solver_version; with the same version, build in a new lake",
        )


def _register_files(
    connection: duckdb.DuckDBPyConnection, lake: Lake, kind: ShardKind, files: Sequence[LandedShard], user: str
) -> None:
    """Add the files that are new to the kind's table and map all of them to ``user``."""
    mapping, id_column, user_column = _MAPPING[kind]
    registered: dict[str, tuple[str, str, int]] = {}
    users: set[str] = set()
    found = connection.execute(
        f"SELECT {id_column}, path, sha256, rows, {user_column} FROM main.{mapping}"  # noqa: S608 - own names
    ).fetchall()
    for shard_id, path, sha256, rows, its_user in found:
        registered[shard_id] = (path, sha256, rows)
        if its_user == user:
            users.add(shard_id)
    new_rows = []
    for shard in files:
        path, sha256, rows = registered.get(shard.shard_id, (shard.path, shard.sha256, shard.rows))
        if sha256 != shard.sha256:
            raise LakeError(
                f"{shard.path}: the lake already has {path} of other content for {kind.value} {shard.shard_id}",
                remedy="a changed solver needs a new version in its shard ids; with the same version, build in a new lake",
            )
        if shard.shard_id not in registered:
            _add_file(connection, lake, kind, shard)
        if shard.shard_id not in users:
            row: dict[str, str | int] = {user_column: user, id_column: shard.shard_id, "workload_id": shard.workload_id}
            row |= {"path": path, "sha256": sha256, "rows": rows}
            row |= {"filter_id": shard.filter_id} if kind is ShardKind.FRONTIER else {}
            new_rows.append(row)
    insert(connection, mapping, new_rows)
    if kind is ShardKind.FRONTIER:
        copy_slim(connection, [shard.shard_id for shard in files if shard.shard_id not in registered])


def _add_file(connection: duckdb.DuckDBPyConnection, lake: Lake, kind: ShardKind, shard: LandedShard) -> None:
    path = lake.root / shard.path
    connection.execute(
        f"CALL ducklake_add_data_files('lake', {sql_text(kind.value)}, {sql_text(path)}, schema => {sql_text(SHARD_SCHEMA)})"
    )


def _insert_library(connection: duckdb.DuckDBPyConnection, library: LibraryRecord, content: str) -> None:
    if connection.execute("SELECT 1 FROM main.library_rows WHERE library_id = ?", [library.library_id]).fetchone():
        return
    insert(
        connection,
        "library_rows",
        [
            {
                "library_id": library.library_id,
                "profile_set_id": library.profile_set_id,
                "n_max": library.n_max,
                "rho": float(library.rho),
                "mode": library.mode,
                "solver_version": library.solver_version,
                "node_configs": library.node_configs,
                "demand_bar": dict(library.demand_bar),
                "library_hash": content,
                "built_at": utc_now(),
            }
        ],
    )
    _insert_quantiles(connection, library.library_id)


def _insert_quantiles(connection: duckdb.DuckDBPyConnection, library_id: str) -> None:
    """The rate distribution of a new library: percentiles 0..100 per workload, homogeneous and mixed."""
    connection.execute(
        """
        INSERT INTO main.rate_quantiles BY NAME
        SELECT library_id, workload_id, is_mixed, unnest(range(101))::INTEGER AS percentile,
            unnest(quantile_cont(throughput_tok_per_s, list_transform(range(101), p -> p / 100))) AS throughput_tok_per_s,
            count(*) AS templates
        FROM (FROM main.templates SELECT *, contains(combination_id, '+') AS is_mixed WHERE library_id = ?)
        GROUP BY library_id, workload_id, is_mixed""",
        [library_id],
    )


def _make_current(connection: duckdb.DuckDBPyConnection, library_key: str, library_id: str) -> None:
    row = connection.execute(
        "SELECT library_id, sequence FROM main.current_libraries WHERE library_key = ? ORDER BY sequence DESC LIMIT 1",
        [library_key],
    ).fetchone()
    current, sequence = row if row is not None else (None, 0)
    if current == library_id:
        return
    event = {"library_key": library_key, "library_id": library_id, "sequence": sequence + 1, "since": utc_now()}
    insert(connection, "current_libraries", [event])
    renew_best_templates(connection, library_key)


def _record_build(connection: duckdb.DuckDBPyConnection, build: BuildRecord) -> bool:
    """Insert the build's row unless it is there; returns whether it was new."""
    if connection.execute("SELECT 1 FROM main.builds WHERE build_id = ?", [build.build_id]).fetchone():
        return False
    insert(connection, "builds", [{name: getattr(build, name) for name in build.__dataclass_fields__}])
    return True
