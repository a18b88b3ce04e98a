"""The slim copy of a frontier: what the allocation and price queries read instead of a million whole templates."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from warehouse.connect import all_threads
from warehouse.rows import insert, insert_arrow

_COLUMNS = "workload_id, combination_id, n_nodes, throughput_mtok_per_s, cycle_ms, launch_class, provenance, rel_error"


def copy_slim(connection: duckdb.DuckDBPyConnection, frontier_ids: Sequence[str]) -> None:
    """Fill ``frontier_slim`` and ``frontier_configs`` for frontiers just registered, in the caller's transaction.

    Raises ValueError when a frontier names a template that no registered shard has.
    """
    if not frontier_ids:
        return
    with all_threads(connection):
        slim = connection.execute(
            f"""
        SELECT r.frontier_id, r.template_id, {", ".join("t." + name for name in _COLUMNS.split(", "))}, t.nodes
        FROM (FROM shards.frontier_rows WHERE frontier_id IN (SELECT unnest(?::VARCHAR[]))) r
        LEFT JOIN shards.solved_templates t ON t.template_id = r.template_id
        ORDER BY r.frontier_id, t.throughput_mtok_per_s DESC, r.template_id""",  # noqa: S608 - a constant
            [list(frontier_ids)],
        ).to_arrow_table()
    unknown = slim.filter(slim.column("combination_id").is_null())
    if unknown.num_rows:
        raise ValueError(f"a frontier names {unknown.num_rows} unknown templates, such as {unknown['template_id'][0]}")
    configs, counts = node_counts(slim.column("nodes"))
    insert_arrow(connection, "frontier_slim", slim.drop_columns("nodes").append_column("counts", counts))
    insert(
        connection,
        "frontier_configs",
        [
            {"frontier_id": frontier_id, "position": position, "node_config": config}
            for frontier_id in frontier_ids
            for position, config in enumerate(configs, start=1)
        ],
    )


def node_counts(nodes: pa.ChunkedArray) -> tuple[list[str], pa.Array]:
    """Node configurations (sorted) of templates' ``nodes``, and per template the nodes of each: list<double> [n][k]."""
    lists = nodes.combine_chunks()
    flat = lists.flatten()
    encoded = flat.field("node_config").dictionary_encode()
    names = encoded.dictionary.to_pylist()
    configs = sorted(names)
    place = np.array([configs.index(name) for name in names], np.int64)
    row = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy(zero_copy_only=False))
    counts = np.zeros((len(lists), len(configs)))
    counts[row, place[encoded.indices.to_numpy(zero_copy_only=False)]] = flat.field("nodes").to_numpy(
        zero_copy_only=False
    )
    offsets = np.arange(len(lists) + 1, dtype=np.int32) * np.int32(len(configs))
    return configs, pa.ListArray.from_arrays(pa.array(offsets), pa.array(counts.ravel()))
