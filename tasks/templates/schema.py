"""Shard files: one row per solved template, its nodes and stages nested so that one file is the whole template.

A row holds nothing that depends on the library it is published in: a shard is shared by every library whose inputs for
it are equal, byte for byte. A combination has its best placement, with ``template_id`` = h(shard_id, combination_id), and
where stock engines cannot launch that one (``launch_class`` B2 or C) perhaps also the best they can (class B1), with
``template_id`` = h(shard_id, combination_id, "launchable"). Rows are sorted by combination, the best placement first.
"""

from __future__ import annotations

import pyarrow as pa

NODE_TYPE = pa.struct(
    [
        pa.field("node_config", pa.string()),
        pa.field("nodes", pa.int16()),
    ]
)
# One entry per node of the stage; `node_slot` numbers the template's nodes, `share` is the node's part of the stage's rate.
MEMBER_TYPE = pa.struct(
    [
        pa.field("node_slot", pa.int16()),
        pa.field("node_config", pa.string()),
        pa.field("share", pa.float64()),
        pa.field("throughput_mtok_per_s", pa.int64()),
        pa.field("tp", pa.int8()),
        pa.field("pp", pa.int8()),
        pa.field("replicas", pa.int8()),
        pa.field("batch", pa.int32()),
    ]
)
STAGE_TYPE = pa.struct(
    [
        pa.field("stage", pa.int8()),
        pa.field("layer_start", pa.int16()),
        pa.field("layer_end", pa.int16()),
        pa.field("position", pa.string()),
        pa.field("members", pa.list_(MEMBER_TYPE)),
    ]
)
TEMPLATE_SCHEMA = pa.schema(
    [
        pa.field("shard_id", pa.string(), nullable=False),
        pa.field("template_id", pa.string(), nullable=False),
        pa.field("workload_id", pa.string(), nullable=False),
        pa.field("combination_id", pa.string(), nullable=False),
        pa.field("n_nodes", pa.int16(), nullable=False),
        pa.field("n_stages", pa.int16(), nullable=False),
        pa.field("throughput_mtok_per_s", pa.int64(), nullable=False),
        pa.field("cycle_ms", pa.float64(), nullable=False),
        pa.field("launch_class", pa.string(), nullable=False),
        pa.field("provenance", pa.string(), nullable=False),
        pa.field("rel_error", pa.float64(), nullable=False),
        pa.field("nodes", pa.list_(NODE_TYPE), nullable=False),
        pa.field("stages", pa.list_(STAGE_TYPE), nullable=False),
    ]
)
