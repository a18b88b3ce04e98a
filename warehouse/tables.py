"""The stored tables of the lake, described column by column: the data dictionary as data. Here: libraries and files.

Three kinds: records (small, written row by row), reference rows (catalog facts kept once each by ``content_id``, a hash of
the row), and tables of landed files (schema ``shards``). Readers use the views of :mod:`warehouse.views`.
"""

from __future__ import annotations

import pyarrow as pa

from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.schema import TEMPLATE_SCHEMA
from warehouse.feed_tables import FEED_TABLES
from warehouse.plan_tables import PLAN_TABLES
from warehouse.records import ShardKind
from warehouse.reference_tables import REFERENCE_TABLES
from warehouse.schema import SHARD_SCHEMA, TOK_S, USD_H, Column, Table, columns_from_arrow, key, maybe

# A cell's best layout and, beside it, others that can be launched in a pipeline of nodes: one tp for all of its stages.
PROFILE_FILE_SCHEMA = pa.schema(
    [
        pa.field("profile_id", pa.string(), nullable=False),
        *PROFILE_SCHEMA,
        pa.field("launch_tp", pa.int8(), nullable=False),
    ]
)
FRONTIER_FILE_SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("frontier_id", "filter_id", "workload_id", "template_id")]
)
FILE_SCHEMAS: dict[ShardKind, pa.Schema] = {
    ShardKind.TEMPLATES: TEMPLATE_SCHEMA,
    ShardKind.PROFILES: PROFILE_FILE_SCHEMA,
    ShardKind.FRONTIER: FRONTIER_FILE_SCHEMA,
}

_TEMPLATE_COLUMNS = {
    "shard_id": ("hash of the inputs of the shard this template was solved in", ""),
    "template_id": ("h(shard_id, combination_id[, 'launchable']): equal placements keep it across libraries", ""),
    "workload_id": ("workload the template serves", ""),
    "combination_id": ("node configurations and counts, e.g. H100-SXMx2*3+L40Sx1*3", ""),
    "n_nodes": ("nodes of the template", "nodes"),
    "n_stages": ("pipeline stages", "stages"),
    "throughput_mtok_per_s": ("rate of one instance, rounded down", "milli-tok/s"),
    "cycle_ms": ("common cycle at which all stages advance", "ms"),
    "launch_class": ("how far stock engines can launch it: A, B1, B2, C", ""),
    "provenance": ("weakest ground of the profiles used: measured, fitted, borrowed, derived", ""),
    "rel_error": ("expected relative error of the rate", "fraction"),
    "nodes": ("node configurations with their counts", ""),
    "stages": ("stages in order, each with its layers (inclusive), position and member nodes", ""),
}
_PROFILE_COLUMNS = {
    "profile_id": ("hash of the file's profile rows: of one workload and GPU type", ""),
    "node_config": ("node configuration", ""),
    "workload_id": ("workload", ""),
    "layers": ("layers the node holds", "layers"),
    "position": ("place in the pipeline: only, first, mid, last", ""),
    "stages": ("stages of the pipeline", "stages"),
    "cycle_ms": ("cycle the rate holds for", "ms"),
    "throughput_tok_per_s": ("rate; NULL = infeasible, then reason says why; never rises with layers", TOK_S),
    "reason": ("why infeasible: memory, kv_cache, slo, layout, unprofiled", ""),
    "tp": ("tensor-parallel degree inside the node", "GPUs"),
    "pp": ("pipeline-parallel degree inside the node", ""),
    "replicas": ("data-parallel replicas inside the node", ""),
    "batch": ("sequences (decode) or tokens (prefill) per micro-batch", ""),
    "memory_used_gib": ("GPU memory used on the node", "GiB"),
    "provenance": ("ground of the figure: measured, fitted, borrowed, derived", ""),
    "rel_error": ("expected relative error", "fraction"),
    "launch_tp": (
        "0 = best layout of the cell, else tp of another layout, of one replica, that engines can launch",
        "GPUs",
    ),
}
_FRONTIER_COLUMNS = {
    "frontier_id": ("hash of what this frontier was computed from", ""),
    "filter_id": ("which templates were allowed", ""),
    "workload_id": ("workload", ""),
    "template_id": ("template that survives", ""),
}

LANDED_TABLES = (
    Table(
        ShardKind.TEMPLATES,
        "Solved templates as landed, one row each with nested nodes and stages; shared by libraries",
        columns_from_arrow(TEMPLATE_SCHEMA, _TEMPLATE_COLUMNS, {"template_id"}),
        SHARD_SCHEMA,
    ),
    Table(
        ShardKind.PROFILES,
        "Profile tables as landed, one per workload; shared by libraries",
        columns_from_arrow(
            PROFILE_FILE_SCHEMA,
            _PROFILE_COLUMNS,
            {"profile_id", "node_config", "workload_id", "layers", "position", "stages", "cycle_ms", "launch_tp"},
        ),
        SHARD_SCHEMA,
    ),
    Table(
        ShardKind.FRONTIER,
        "Frontiers as landed: templates no cheaper mix of their parts can replace, per workload and filter",
        columns_from_arrow(FRONTIER_FILE_SCHEMA, _FRONTIER_COLUMNS, {"frontier_id", "template_id"}),
        SHARD_SCHEMA,
    ),
)

_FRONTIER = key("frontier_id", "VARCHAR", "hash of what the frontier was computed from")
_TEMPLATE = key("template_id", "VARCHAR", "template")

LIBRARY_TABLES = (
    Table(
        "input_sets",
        "Which reference rows make up a set; set_id is a hash of its row ids",
        (
            key("set_id", "VARCHAR", "set"),
            Column("table_name", "VARCHAR", "reference table"),
            key("content_id", "VARCHAR", "row of that table"),
        ),
    ),
    Table(
        "input_uses",
        "Which sets of reference rows a build or a plan version was computed from",
        (
            Column("build_id", "VARCHAR", "build; '' for a plan"),
            Column("scenario_id", "VARCHAR", "scenario; '' for a build in a lake of older versions"),
            Column("plan_version", "BIGINT", "plan version; 0 for a build"),
            Column("table_name", "VARCHAR", "reference table"),
            Column("set_id", "VARCHAR", "set"),
            Column("used_at", "TIMESTAMPTZ", "when", "UTC"),
        ),
    ),
    Table(
        "profile_sets",
        "Profile files that belong together; profile_set_id is a hash of the profile ids",
        (
            key("profile_set_id", "VARCHAR", "profile set"),
            key("profile_id", "VARCHAR", "profile file: of one workload and GPU type"),
            Column("workload_id", "VARCHAR", "workload"),
            Column("path", "VARCHAR", "file, relative to the lake's root"),
            Column("sha256", "VARCHAR", "hash of the file"),
            Column("rows", "BIGINT", "rows of the file", "rows"),
        ),
    ),
    Table(
        "library_rows",
        "Template libraries",
        (
            key("library_id", "VARCHAR", "library"),
            Column("profile_set_id", "VARCHAR", "profiles it was solved with"),
            Column("n_max", "INTEGER", "most nodes per template", "nodes"),
            Column("rho", "DOUBLE", "most memory per template, as a multiple of the model's"),
            Column("mode", "VARCHAR", "cycle or paper"),
            Column("solver_version", "VARCHAR", "version of the placement solver"),
            Column("node_configs", "VARCHAR[]", "node configurations considered"),
            Column("demand_bar", "MAP(VARCHAR, DOUBLE)", "workload -> largest demand its frontier is valid for", TOK_S),
            Column("library_hash", "VARCHAR", "hash of its shards' content"),
            Column("built_at", "TIMESTAMPTZ", "when it was registered", "UTC"),
        ),
    ),
    Table(
        "current_libraries",
        "Which library became the current one of a key, and when; the latest row of a key holds",
        (
            key("library_key", "VARCHAR", "scenario id, or another key"),
            Column("library_id", "VARCHAR", "library"),
            key("sequence", "BIGINT", "1, 2, ... per key"),
            Column("since", "TIMESTAMPTZ", "from when", "UTC"),
        ),
    ),
    Table(
        "builds",
        "Runs of a build",
        (
            key("build_id", "VARCHAR", "build"),
            Column("library_id", "VARCHAR", "library"),
            Column("started_at", "TIMESTAMPTZ", "start", "UTC"),
            Column("finished_at", "TIMESTAMPTZ", "end", "UTC"),
            Column("status", "VARCHAR", "complete or failed"),
            Column("n_combinations", "BIGINT", "combinations looked at"),
            Column("n_templates", "BIGINT", "templates found"),
            Column("n_shards_computed", "BIGINT", "shards computed in this run"),
            Column("n_shards_reused", "BIGINT", "shards found finished"),
            Column("solve_s", "DOUBLE", "time spent solving, over all workers", "s"),
            Column("sample_n", "BIGINT", "placements re-solved by the reference ILP"),
            maybe("sample_max_rel_diff", "DOUBLE", "largest difference of the sample; NULL = no sample", "fraction"),
            Column("code_version", "VARCHAR", "version of the code"),
        ),
    ),
    Table(
        "shards",
        "Files of solved templates and the libraries that use them",
        (
            key("shard_id", "VARCHAR", "hash of the shard's inputs"),
            key("library_id", "VARCHAR", "library"),
            Column("workload_id", "VARCHAR", "workload"),
            Column("path", "VARCHAR", "file, relative to the lake's root"),
            Column("sha256", "VARCHAR", "hash of the file"),
            Column("rows", "BIGINT", "templates in the file", "rows"),
        ),
    ),
    Table(
        "frontiers",
        "Files of frontiers and the libraries that use them",
        (
            key("frontier_id", "VARCHAR", "hash of what the frontier was computed from"),
            key("library_id", "VARCHAR", "library"),
            Column("workload_id", "VARCHAR", "workload"),
            Column("filter_id", "VARCHAR", "which templates were allowed"),
            Column("path", "VARCHAR", "file, relative to the lake's root"),
            Column("sha256", "VARCHAR", "hash of the file"),
            Column("rows", "BIGINT", "templates in the file", "rows"),
        ),
    ),
    Table(
        "rate_quantiles",
        "Distribution of templates' rates, homogeneous against mixed, computed once per library",
        (
            key("library_id", "VARCHAR", "library"),
            key("workload_id", "VARCHAR", "workload"),
            key("is_mixed", "BOOLEAN", "templates of more than one node configuration"),
            key("percentile", "INTEGER", "share of the templates with at most this rate", "%"),
            Column("throughput_tok_per_s", "DOUBLE", "rate of one instance, before headroom", TOK_S),
            Column("templates", "BIGINT", "templates of this kind"),
        ),
    ),
    Table(
        "frontier_slim",
        "Frontier templates as the allocation needs them, copied from their shards once per frontier",
        (
            _FRONTIER,
            _TEMPLATE,
            Column("workload_id", "VARCHAR", "workload"),
            Column("combination_id", "VARCHAR", "node configurations and counts"),
            Column("n_nodes", "SMALLINT", "nodes of the template", "nodes"),
            Column("throughput_mtok_per_s", "BIGINT", "rate of one instance, rounded down", "milli-tok/s"),
            Column("cycle_ms", "DOUBLE", "common cycle at which all stages advance", "ms"),
            Column("launch_class", "VARCHAR", "how far stock engines can launch it: A, B1, B2, C"),
            Column("provenance", "VARCHAR", "weakest ground of the profiles used"),
            Column("rel_error", "DOUBLE", "expected relative error of the rate", "fraction"),
            Column("counts", "DOUBLE[]", "nodes per configuration, in the order of frontier_configs", "nodes"),
        ),
    ),
    Table(
        "frontier_configs",
        "Order of the node configurations in frontier_slim.counts",
        (
            _FRONTIER,
            key("position", "INTEGER", "place in counts, from 1"),
            Column("node_config", "VARCHAR", "node configuration"),
        ),
    ),
    Table(
        "region_prices",
        "Cheapest offer per scenario, region, market and node configuration, as the scenario's newest build or plan read them",
        (
            key("scenario_id", "VARCHAR", "scenario whose prices these are"),
            key("region", "VARCHAR", "provider/region"),
            key("market", "VARCHAR", "on_demand, spot or owned"),
            key("node_config", "VARCHAR", "node configuration"),
            Column("price_usd_per_h", "DOUBLE", "price of the cheapest machine", USD_H),
            Column("offer_id", "VARCHAR", "the offer; the first by id of equally cheap ones"),
        ),
    ),
    Table(
        "best_templates",
        "The template of most tokens per USD per scenario, workload, region and market, of the scenario's current library at "
        "its region_prices. A mix of its parts cannot do better, so the frontier has it",
        (
            Column("library_id", "VARCHAR", "the scenario's current library"),
            key("scenario_id", "VARCHAR", "scenario whose prices these are; a library may serve several"),
            key("filter_id", "VARCHAR", "which templates were allowed"),
            key("workload_id", "VARCHAR", "workload"),
            key("region", "VARCHAR", "provider/region"),
            key("market", "VARCHAR", "on_demand, spot or owned"),
            Column("template_id", "VARCHAR", "template"),
            Column("combination_id", "VARCHAR", "node configurations and counts"),
            Column("throughput_tok_per_s", "DOUBLE", "rate of one instance, before headroom", TOK_S),
            Column("price_usd_per_h", "DOUBLE", "price of one instance", USD_H),
            Column("usd_per_million_tok", "DOUBLE", "price per million tokens at full rate", "USD"),
        ),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table for table in (*LANDED_TABLES, *REFERENCE_TABLES, *LIBRARY_TABLES, *FEED_TABLES, *PLAN_TABLES)
}
