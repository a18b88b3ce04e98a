"""Tables of what `coral ingest` takes in, per scenario: prices, availability, demand, and a log of the files read.

Rows are only ever added. A later row of the same key corrects an earlier one; the views of :mod:`warehouse.feed_views`
show what counts. The observed fleet and the rejected rows are in :mod:`warehouse.plan_tables`.
"""

from __future__ import annotations

from warehouse.schema import USD_H, Column, Table, key, maybe

_SCENARIO = key("scenario_id", "VARCHAR", "scenario the feed belongs to")
_INGEST = Column("ingest_id", "VARCHAR", "file it came in with")
_INGESTED_AT = Column(
    "ingested_at", "TIMESTAMPTZ", "when it was taken in; of two rows of a key the later counts", "UTC"
)

FEED_TABLES = (
    Table(
        "ingests",
        "Files handed to `coral ingest`, with how many of their rows were accepted, held and rejected",
        (
            key("ingest_id", "VARCHAR", "reading of a file"),
            Column("content_id", "VARCHAR", "hash of the file's bytes and of how it was to be read"),
            Column("kind", "VARCHAR", "prices, availability, demand or fleet"),
            Column("scenario_id", "VARCHAR", "scenario"),
            Column("file", "VARCHAR", "name of the file"),
            maybe("observed_at", "TIMESTAMPTZ", "what moment the file tells of; NULL = no row was accepted", "UTC"),
            _INGESTED_AT,
            Column("n_rows", "BIGINT", "rows of the file", "rows"),
            Column("n_accepted", "BIGINT", "rows taken in", "rows"),
            Column("n_held", "BIGINT", "rows held for confirmation", "rows"),
            Column("n_rejected", "BIGINT", "rows set aside; with the held ones in `rejects`", "rows"),
            Column("n_changed", "BIGINT", "rows written because they say something new", "rows"),
            Column("note", "VARCHAR", "what a person should know"),
        ),
    ),
    Table(
        "price_snapshots",
        "When a price feed told of a region, and which set of prices then held in it: all it offers, nothing else",
        (
            _SCENARIO,
            key("region", "VARCHAR", "provider/region"),
            key("sequence", "BIGINT", "1, 2, ... per scenario and region; the latest holds"),
            Column("observed_at", "TIMESTAMPTZ", "when the prices held", "UTC"),
            Column("set_id", "VARCHAR", "hash of the prices"),
            _INGEST,
        ),
    ),
    Table(
        "price_sets",
        "Prices of a region, kept once however often they are seen again",
        (
            key("set_id", "VARCHAR", "hash of the set's rows"),
            key("instance_type", "VARCHAR", "the cloud's name of the machine"),
            key("node_config", "VARCHAR", "node configuration"),
            key("market", "VARCHAR", "on_demand, spot or owned"),
            Column("price_usd_per_h", "DOUBLE", "price of the whole machine", USD_H),
            maybe("interrupt_per_h", "DOUBLE", "expected interruptions; NULL = unknown", "1/h"),
            maybe("network_gbit_per_s", "DOUBLE", "network of the machine; NULL = as in the catalog", "Gbit/s"),
            maybe("as_of", "DATE", "date the price held for; NULL = that of the snapshot"),
            Column("is_list", "BOOLEAN", "a list price, from which a negotiated discount comes off"),
            Column("source", "VARCHAR", "where the price comes from"),
        ),
    ),
    Table(
        "availability_observations",
        "Nodes that could be had, as a feed told",
        (
            _SCENARIO,
            key("region", "VARCHAR", "provider/region"),
            key("node_config", "VARCHAR", "node configuration"),
            key("market", "VARCHAR", "on_demand, spot or owned"),
            key("observed_at", "TIMESTAMPTZ", "when it was seen", "UTC"),
            maybe("nodes", "BIGINT", "nodes; NULL = unknown, which is not zero", "nodes"),
            _INGEST,
            _INGESTED_AT,
        ),
    ),
    Table(
        "demand_windows",
        "Demand per window, as a feed told or as counted in a request trace",
        (
            _SCENARIO,
            key("model", "VARCHAR", "model"),
            key("window_start", "TIMESTAMPTZ", "start of the window", "UTC"),
            key("window_s", "DOUBLE", "length of the window", "s"),
            maybe("demand_req_per_s", "DOUBLE", "mean request rate; NULL = unknown, which is not zero", "req/s"),
            Column("minute_counts", "INTEGER[]", "requests in each minute, where a trace was counted; else empty"),
            maybe("input_mean", "DOUBLE", "mean prompt, to three digits; NULL = not told", "tokens"),
            maybe("output_mean", "DOUBLE", "mean answer", "tokens"),
            maybe("input_sq_mean", "DOUBLE", "mean of the squared prompt", "tokens^2"),
            maybe("output_sq_mean", "DOUBLE", "mean of the squared answer", "tokens^2"),
            maybe("cross_mean", "DOUBLE", "mean of prompt times answer", "tokens^2"),
            maybe("input_at_percentile", "DOUBLE", "prompt at the SLO's percentile", "tokens"),
            _INGEST,
            _INGESTED_AT,
        ),
    ),
)
