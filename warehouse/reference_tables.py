"""Tables of catalog facts, kept once each by ``content_id``; the current facts are in the views without ``_rows``."""

from __future__ import annotations

from warehouse.schema import USD_H, Column, Table, key, maybe

_CONTENT_ID = key("content_id", "VARCHAR", "hash of the row's content")
_RECORDED_AT = Column("recorded_at", "TIMESTAMPTZ", "when the row first entered the lake", "UTC")
_SOURCE = Column("source", "VARCHAR", "where the figure comes from")
_AS_OF = Column("as_of", "DATE", "date the figure holds for")

REFERENCE_TABLES = (
    Table(
        "node_config_rows",
        "Node configurations",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("node_config", "VARCHAR", "GPU type x count"),
            Column("gpu", "VARCHAR", "canonical GPU id"),
            Column("gpu_count", "INTEGER", "GPUs in the node", "GPUs"),
            Column("memory_gib", "DOUBLE", "memory of all GPUs", "GiB"),
            Column("link", "VARCHAR", "link between the GPUs"),
            maybe("network_gbit_per_s", "DOUBLE", "network of the machine; NULL = unknown", "Gbit/s"),
            Column("is_derived", "BOOLEAN", "no cloud sells this count"),
            _SOURCE,
            _AS_OF,
        ),
    ),
    Table(
        "offer_rows",
        "Machines for rent, with price",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("offer_id", "VARCHAR", "offer"),
            Column("provider", "VARCHAR", "cloud"),
            Column("region", "VARCHAR", "provider/region"),
            Column("node_config", "VARCHAR", "node configuration"),
            Column("instance_type", "VARCHAR", "the cloud's name of the machine"),
            Column("market", "VARCHAR", "on_demand, spot or owned"),
            Column("price_usd_per_h", "DOUBLE", "price of the whole machine", USD_H),
            maybe("interrupt_per_h", "DOUBLE", "expected interruptions; NULL = unknown", "1/h"),
            Column("is_derived", "BOOLEAN", "derived from another count, not sold"),
            _AS_OF,
            _SOURCE,
        ),
    ),
    Table(
        "availability_rows",
        "Nodes that can be had, as observed",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("region", "VARCHAR", "provider/region"),
            Column("node_config", "VARCHAR", "node configuration"),
            Column("market", "VARCHAR", "on_demand, spot or owned"),
            Column("observed_at", "VARCHAR", "when it was observed", "UTC"),
            maybe("nodes", "BIGINT", "nodes; NULL = unknown, which is not zero", "nodes"),
            Column("basis", "VARCHAR", "feed, quota or assumed"),
        ),
    ),
    Table(
        "quota_rows",
        "Limits a provider sets per region and family",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("provider", "VARCHAR", "cloud"),
            Column("region", "VARCHAR", "provider/region"),
            Column("family", "VARCHAR", "family of machines"),
            Column("unit", "VARCHAR", "vcpu, gpu or node"),
            Column("limit", "BIGINT", "limit, in the unit of its row"),
        ),
    ),
    Table(
        "model_rows",
        "Model shapes",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("model", "VARCHAR", "model"),
            Column("alias", "VARCHAR", "short name"),
            Column("layers", "INTEGER", "layers", "layers"),
            Column("hidden", "INTEGER", "hidden size"),
            Column("intermediate", "INTEGER", "MLP size"),
            Column("heads", "INTEGER", "attention heads"),
            Column("kv_heads", "INTEGER", "key-value heads"),
            Column("head_dim", "INTEGER", "size of a head"),
            Column("vocab", "INTEGER", "vocabulary"),
            Column("n_experts", "INTEGER", "experts; 0 = dense"),
            Column("experts_per_token", "INTEGER", "experts per token"),
            Column("moe_intermediate", "INTEGER", "size of an expert"),
            Column("shipped_dtype", "VARCHAR", "weight format as shipped"),
            Column("max_position", "INTEGER", "longest context", "tokens"),
            _SOURCE,
            _AS_OF,
        ),
    ),
    Table(
        "workload_rows",
        "What templates are solved for: a model, phase and SLO",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("workload_id", "VARCHAR", "workload"),
            Column("alias", "VARCHAR", "readable name, qwen3-32b/decode"),
            Column("model", "VARCHAR", "model"),
            Column("weight_dtype", "VARCHAR", "weight format"),
            Column("kv_dtype", "VARCHAR", "KV cache format"),
            Column("phase", "VARCHAR", "prefill, decode or aggregated"),
            Column("slo_ms", "DOUBLE", "TTFT for prefill, TPOT for decode", "ms"),
            Column("slo_percentile", "DOUBLE", "percentile the SLO holds at", "%"),
            Column("input_mean", "DOUBLE", "mean prompt", "tokens"),
            Column("output_mean", "DOUBLE", "mean answer", "tokens"),
            Column("input_at_percentile", "DOUBLE", "prompt that must meet the SLO alone", "tokens"),
            Column("prefix_hit_rate", "DOUBLE", "share of prompt tokens found in the cache", "fraction"),
            Column("tokens_per_request", "DOUBLE", "tokens of this phase per request", "tokens"),
        ),
    ),
    Table(
        "demand_rows",
        "Demand per model and window",
        (
            _CONTENT_ID,
            _RECORDED_AT,
            Column("scenario_id", "VARCHAR", "scenario"),
            Column("model", "VARCHAR", "model"),
            Column("window_start", "TIMESTAMPTZ", "start of the window", "UTC"),
            maybe("demand_req_per_s", "DOUBLE", "request rate; NULL = unknown, which is not zero", "req/s"),
            Column("basis", "VARCHAR", "feed, stated or assumed"),
        ),
    ),
)
