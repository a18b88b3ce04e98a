"""The profiles table: one row per (node configuration, layers, position, stage count, cycle) of a workload."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa


class Infeasible(StrEnum):
    """Why a node cannot hold a stage. ``UNPROFILED``: its GPU has no factors for this model; never extrapolated."""

    MEMORY = "memory"
    KV_CACHE = "kv_cache"
    SLO = "slo"
    LAYOUT = "layout"
    UNPROFILED = "unprofiled"


_dictionary = pa.dictionary(pa.int32(), pa.string())

# throughput_tok_per_s is NULL where infeasible (then `reason` says why) and closed: non-increasing in layers.
PROFILE_SCHEMA = pa.schema(
    [
        pa.field("node_config", pa.string(), nullable=False),
        pa.field("workload_id", pa.string(), nullable=False),
        pa.field("layers", pa.int16(), nullable=False),
        pa.field("position", pa.string(), nullable=False),  # only | first | mid | last
        pa.field("stages", pa.int8(), nullable=False),
        pa.field("cycle_ms", pa.float64(), nullable=False),
        pa.field("throughput_tok_per_s", pa.float64()),
        pa.field("reason", pa.string()),
        pa.field("tp", pa.int8()),
        pa.field("pp", pa.int8()),
        pa.field("replicas", pa.int8()),
        pa.field("batch", pa.int32()),
        pa.field("memory_used_gib", pa.float64()),
        pa.field("provenance", pa.string(), nullable=False),
        pa.field("rel_error", pa.float64(), nullable=False),
    ]
)
