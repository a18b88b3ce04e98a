"""Landing of Parquet files, done by workers: pyarrow only, no DuckDB.

A file is written under a temporary name, flushed to disk and renamed, so a file under its final name is complete. That
name carries the hash of its bytes, ``shards/<table>/<shard_id>-<sha256[:16]>.parquet``: whether it is intact can be
told without any record. Equal rows give equal bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catalogs.errors import LakeError
from warehouse.faults import disk_errors
from warehouse.keys import KEY_FOLDER, temporary_file
from warehouse.records import LandedShard, ShardKind
from warehouse.schema import SHARD_SCHEMA
from warehouse.tables import FILE_SCHEMAS

_WORKLOAD = b"coral.workload_id"
_FILTER = b"coral.filter_id"
_ID = re.compile(r"^[A-Za-z0-9_.]+$")
_NAME_HASH_DIGITS = 16
_ROW_GROUP_ROWS = 122_880
_UNIQUE = frozenset({"template_id", "combination_id"})  # a dictionary of these makes files larger and slower
DAMAGED_FOLDER = "damaged"


def shard_folder(root: str | os.PathLike[str], kind: ShardKind) -> Path:
    """Where files of ``kind`` lie."""
    return Path(root).expanduser().resolve() / SHARD_SCHEMA / kind.value


def write_shard(
    root: str | os.PathLike[str],
    table: pa.Table,
    shard_id: str,
    *,
    kind: ShardKind = ShardKind.TEMPLATES,
    workload_id: str = "",
    filter_id: str = "",
) -> LandedShard:
    """Write ``table`` as the file of ``shard_id`` and return its path relative to ``root``, hash and row count.

    ``table`` must have the kind's columns and types (order is free); all rows belong to one workload (and a frontier's
    to one filter), which must be given for a table without rows. A profile table comes without ``profile_id``: the
    shard's id fills it; without ``launch_tp`` its rows are best layouts (0). Raises ValueError for a table of another
    form, LakeError when the disk is full.
    """
    if not _ID.match(shard_id):
        raise ValueError(f"{shard_id!r} is not a shard id")
    conformed = _conform(table, kind, shard_id)
    workload = _single(conformed, "workload_id") or workload_id
    if not workload or (workload_id and workload != workload_id):
        raise ValueError(f"shard {shard_id}: rows of workload {workload!r}, expected {workload_id!r}")
    metadata = {_WORKLOAD: workload.encode()}
    if kind is ShardKind.FRONTIER:
        filter_id = _single(conformed, "filter_id") or filter_id
        if not filter_id:
            raise ValueError(f"frontier {shard_id} has no rows: give its filter_id")
        metadata[_FILTER] = filter_id.encode()
    folder = shard_folder(root, kind)
    base = Path(root).expanduser().resolve()
    with disk_errors(base):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = temporary_file(folder, shard_id)
        try:
            _write_parquet(conformed, metadata, temporary)
            sha256 = file_sha256(temporary)
            final = folder / f"{shard_id}-{sha256[:_NAME_HASH_DIGITS]}.parquet"
            temporary.replace(final)
            _sync_folder(folder)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return LandedShard(shard_id, workload, str(final.relative_to(base)), sha256, conformed.num_rows, kind, filter_id)


def find_shard(
    root: str | os.PathLike[str], shard_id: str, *, kind: ShardKind = ShardKind.TEMPLATES
) -> LandedShard | None:
    """The complete file of ``shard_id``, or None. A damaged one is moved to ``damaged/`` and counts as absent."""
    base = Path(root).expanduser().resolve()
    folder = shard_folder(base, kind)
    for path in sorted(folder.glob(f"{shard_id}-*.parquet")):
        landed = _verified(base, path, shard_id, kind)
        if landed is not None:
            return landed
        _set_aside(path)
    return None


def read_landed(
    root: str | os.PathLike[str], files: Sequence[LandedShard], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of landed files of one kind, in the order of the files, as written (a profile without its id column).

    ``files`` must not be empty. Raises LakeError when a file is gone.
    """
    base = Path(root).expanduser().resolve()
    kept = list(columns) if columns else [name for name in FILE_SCHEMAS[files[0].kind].names if name != "profile_id"]
    try:
        with disk_errors(base):
            return pa.concat_tables([pq.read_table(base / file.path, columns=kept) for file in files])
    except FileNotFoundError as error:
        raise LakeError(f"a landed file is gone: {error}", remedy="run `coral build` again") from error


def with_launch_rows(best: pa.Table, launch: pa.Table) -> pa.Table:
    """Two profile tables of a workload (PROFILE_SCHEMA) as one, to be landed: best layouts, launchable ones beside them."""
    field = FILE_SCHEMAS[ShardKind.PROFILES].field("launch_tp")
    none = pa.repeat(pa.scalar(0, field.type), best.num_rows)
    return pa.concat_tables(
        [best.append_column(field, none), launch.append_column(field, launch["tp"].cast(field.type))]
    )


def read_profiles(root: str | os.PathLike[str], files: Sequence[LandedShard]) -> tuple[pa.Table, pa.Table]:
    """Landed profile files of one workload as the two tables of :func:`with_launch_rows`. Raises LakeError when one is
    gone."""
    rows = read_landed(root, files)
    is_best = pc.equal(rows["launch_tp"], 0)
    rows = rows.drop_columns("launch_tp")
    return rows.filter(is_best), rows.filter(pc.invert(is_best))


def leftover_temporaries(root: str | os.PathLike[str], *, max_age_s: float = 86_400.0) -> list[str]:
    """Files (relative to ``root``) that interrupted writers left behind; a build that runs elsewhere keeps its own.

    A file counts when its writer was a process of this host that no longer runs, or when it is older than ``max_age_s``.
    """
    oldest_kept = time.time() - max_age_s
    base = Path(root).expanduser().resolve()
    paths = sorted([*base.glob(f"{SHARD_SCHEMA}/*/*.tmp"), *base.glob(f"{KEY_FOLDER}/*.tmp")])
    return [
        str(path.relative_to(base))
        for path in paths
        if _writer_has_ended(path.name) or _modified_at(path) < oldest_kept
    ]


def remove_temporaries(root: str | os.PathLike[str], *, max_age_s: float = 86_400.0) -> list[str]:
    """Delete what :func:`leftover_temporaries` lists, and return the files' names."""
    base = Path(root).expanduser().resolve()
    removed = []
    for name in leftover_temporaries(base, max_age_s=max_age_s):
        (base / name).unlink(missing_ok=True)
        removed.append(Path(name).name)
    return removed


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # its writer has just finished
        return time.time()


def _writer_has_ended(name: str) -> bool:
    parts = name.split("@")
    if len(parts) != 4 or not parts[2].isdigit():
        return False
    if parts[1] != socket.gethostname():
        return False
    try:
        os.kill(int(parts[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(root: Path, shard: LandedShard) -> None:
    """Raise LakeError unless the shard's file is there, whole, with the recorded hash."""
    path = root / shard.path
    if not path.is_file():
        raise LakeError(
            f"shard file {shard.path} is missing", remedy="run `coral build` again: it computes the shard anew"
        )
    if file_sha256(path) != shard.sha256:
        raise LakeError(
            f"shard file {shard.path} is damaged: its hash is not the recorded one",
            remedy="run `coral build` again: it sets the file aside and computes the shard anew",
        )


def content_hash(table: pa.Table) -> str:
    """First 16 hex digits of a hash over the values of ``table``, row order included; not of any file format.

    Two tables of equal schema and values hash alike however they are chunked or sliced.
    """
    digest = hashlib.sha256(str(table.schema.remove_metadata()).encode())
    for name in table.column_names:
        values = table.column(name).combine_chunks()
        digest.update(name.encode() + b"\0" + len(values).to_bytes(8, "little"))
        _digest_column(digest, values)
    return digest.hexdigest()[:16]


def _digest_column(digest: hashlib._Hash, values: pa.Array) -> None:
    """Feed nulls as a mask and values with nulls zeroed, so that what lies under a null does not matter."""
    digest.update(pc.is_null(values).cast(pa.int8()).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_string(values.type):
        filled = pc.fill_null(values, "")
        digest.update(pc.binary_length(filled).to_numpy(zero_copy_only=False).tobytes())
        # One list of all strings, joined: their bytes in a row, without a Python string for each.
        whole = pa.ListArray.from_arrays(pa.array([0, len(filled)], pa.int32()), filled)
        digest.update(pc.binary_join(whole, "")[0].as_buffer())
    else:
        digest.update(pc.fill_null(values, pa.scalar(0, values.type)).to_numpy(zero_copy_only=False).tobytes())


def _conform(table: pa.Table, kind: ShardKind, shard_id: str) -> pa.Table:
    """``table`` with exactly the kind's columns in order, in one chunk; a profile table gets its constant columns."""
    schema = FILE_SCHEMAS[kind]
    if kind is ShardKind.PROFILES:
        for name, value in (("profile_id", shard_id), ("launch_tp", 0)):
            if name not in table.column_names:
                field = schema.field(name)
                table = table.append_column(field, pa.repeat(pa.scalar(value, field.type), table.num_rows))
    if set(table.column_names) != set(schema.names):
        odd = sorted(set(table.column_names) ^ set(schema.names))
        raise ValueError(f"shard {shard_id}: columns {odd} missing or unknown for {kind.value}")
    table = table.select(schema.names)
    for have, want in zip(table.schema, schema, strict=True):
        if have.type != want.type:
            raise ValueError(f"shard {shard_id}: column {want.name} is {have.type}, must be {want.type}")
        if not want.nullable and table.column(want.name).null_count:
            raise ValueError(f"shard {shard_id}: column {want.name} has blanks")
    return table.cast(schema).combine_chunks()


def _single(table: pa.Table, column: str) -> str:
    """The one value of a column; '' for no rows; ValueError for several."""
    values = table.column(column).unique().to_pylist()
    if len(values) > 1:
        raise ValueError(f"a shard holds one {column}, this table has {values}")
    return values[0] if values else ""


def _write_parquet(table: pa.Table, metadata: dict[bytes, bytes], path: Path) -> None:
    """Fixed settings: equal tables give equal bytes with one pyarrow version."""
    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            table.schema,
            version="2.6",
            compression="zstd",
            compression_level=3,
            use_dictionary=[column for column in _leaves(table.schema) if column not in _UNIQUE],
            write_statistics=True,
            store_schema=False,
        ) as writer:
            writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
            writer.add_key_value_metadata(metadata)
        file.flush()
        os.fsync(file.fileno())


def _leaves(schema: pa.Schema) -> list[str]:
    """Parquet's names of the columns' leaves: ``stages.list.element.members.list.element.tp``."""

    def below(name: str, type_: pa.DataType) -> list[str]:
        if pa.types.is_list(type_):
            return below(f"{name}.list.element", type_.value_type)
        if pa.types.is_struct(type_):
            return [leaf for f in type_ for leaf in below(f"{name}.{f.name}", f.type)]
        return [name]

    return [leaf for f in schema for leaf in below(f.name, f.type)]


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_aside(path: Path) -> None:
    target = path.parent / DAMAGED_FOLDER
    target.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another worker was quicker
        path.replace(target / f"{path.name}.{time.time_ns()}")


def _verified(base: Path, path: Path, shard_id: str, kind: ShardKind) -> LandedShard | None:
    sha256 = file_sha256(path)
    if path.stem != f"{shard_id}-{sha256[:_NAME_HASH_DIGITS]}":
        return None
    metadata = pq.read_metadata(path)
    values = metadata.metadata or {}
    workload, filter_id = values.get(_WORKLOAD, b"").decode(), values.get(_FILTER, b"").decode()
    return LandedShard(shard_id, workload, str(path.relative_to(base)), sha256, metadata.num_rows, kind, filter_id)
