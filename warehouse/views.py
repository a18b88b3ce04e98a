"""The views people and programs query: what is current of the facts, libraries with their templates, plans with states.

Files are shared between libraries, so the views join them with the tables that say which library uses which file.
"""

from __future__ import annotations

from warehouse.feed_views import FEED_VIEWS
from warehouse.plan_tables import CURRENT_STATES
from warehouse.schema import TOK_S, USD_H, Column, View

_LAST_USED = Column("last_used_at", "TIMESTAMPTZ", "when a build or plan last used the row; NULL = never", "UTC")


def _current(name: str, source: str, key: tuple[str, ...], description: str, order: str = "") -> View:
    """The latest row per key: by the date it holds for (``order``), then by last use, then by when it was recorded."""
    sql = f"""
        SELECT r.* EXCLUDE (content_id), u.last_used_at
        FROM main.{source} r
        LEFT JOIN (
            SELECT s.content_id, max(i.used_at) AS last_used_at
            FROM main.input_sets s JOIN main.input_uses i USING (set_id) GROUP BY s.content_id
        ) u USING (content_id)
        QUALIFY row_number() OVER (
            PARTITION BY {", ".join(f"r.{column}" for column in key)}
            ORDER BY {order}u.last_used_at DESC NULLS LAST, r.recorded_at DESC, r.content_id
        ) = 1"""  # noqa: S608 - names from this module
    return View(name, description, sql, (source,), (_LAST_USED,), key)


_BY_DATE = "r.as_of DESC, "

# The library that is current for each key; for a scenario, its id is the key.
CURRENT_LIBRARIES = """
            SELECT library_key AS scenario_id, library_id FROM main.current_libraries
            QUALIFY sequence = max(sequence) OVER (PARTITION BY library_key)"""
# The offers that the scenario's newest build or plan read. Builds of older lakes name no scenario: their library does.
_SCENARIO_OFFERS = f"""
        SELECT x.scenario_id, r.* EXCLUDE (content_id, recorded_at)
        FROM (
            SELECT coalesce(nullif(u.scenario_id, ''), k.scenario_id) AS scenario_id, u.set_id
            FROM main.input_uses u
            LEFT JOIN main.builds b ON b.build_id = u.build_id AND u.scenario_id = ''
            LEFT JOIN ({CURRENT_LIBRARIES}) k ON k.library_id = b.library_id
            WHERE u.table_name = 'offer_rows'
            QUALIFY row_number() OVER (
                PARTITION BY coalesce(nullif(u.scenario_id, ''), k.scenario_id) ORDER BY u.used_at DESC, u.set_id
            ) = 1
        ) x
        JOIN main.input_sets s ON s.set_id = x.set_id
        JOIN main.offer_rows r ON r.content_id = s.content_id
        WHERE x.scenario_id IS NOT NULL"""  # noqa: S608 - constants

_NOT_SOLD = 1e9  # USD/h: stands for "not sold here" inside the product below, and is filtered out after it
# Per frontier, scenario, region and market: prices in the order of frontier_slim.counts, so that a price is one inner
# product.
_PRICE_VECTORS = f"""
            WITH o AS MATERIALIZED (FROM main.region_prices)
            SELECT f.library_id, f.filter_id, f.frontier_id, f.workload_id, r.scenario_id, r.region, r.market,
                list(coalesce(o.price_usd_per_h, {_NOT_SOLD}) ORDER BY c.position) AS prices
            FROM main.frontiers f
            JOIN ({CURRENT_LIBRARIES}) k ON k.library_id = f.library_id
            JOIN main.frontier_configs c ON c.frontier_id = f.frontier_id
            JOIN (SELECT DISTINCT scenario_id, region, market FROM o) r ON r.scenario_id = k.scenario_id
            LEFT JOIN o ON o.scenario_id = r.scenario_id AND o.region = r.region
                AND o.market = r.market AND o.node_config = c.node_config
            GROUP BY ALL"""  # noqa: S608 - constants
_SCENARIO = Column("scenario_id", "VARCHAR", "scenario whose prices these are; a library may serve several")
_PRICED = (
    _SCENARIO,
    Column("region", "VARCHAR", "provider/region"),
    Column("market", "VARCHAR", "on_demand, spot or owned"),
    Column("throughput_tok_per_s", "DOUBLE", "rate of one instance, before headroom", TOK_S),
    Column("price_usd_per_h", "DOUBLE", "price of one instance", USD_H),
    Column("usd_per_million_tok", "DOUBLE", "price per million tokens at full rate", "USD"),
)

VIEWS: tuple[View, ...] = (
    _current("node_configs", "node_config_rows", ("node_config",), "Node configurations, latest facts", _BY_DATE),
    _current("offers", "offer_rows", ("offer_id",), "Machines for rent at the latest known price", _BY_DATE),
    _current(
        "availability",
        "availability_rows",
        ("region", "node_config", "market", "observed_at"),
        "Nodes that can be had, by time of observation",
    ),
    _current("quotas", "quota_rows", ("provider", "region", "family"), "Limits per region and family, latest"),
    _current("models", "model_rows", ("model",), "Model shapes, latest facts", _BY_DATE),
    _current("workloads", "workload_rows", ("workload_id",), "Workloads templates were solved for"),
    _current("demand", "demand_rows", ("scenario_id", "model", "window_start"), "Demand per model and window, latest"),
    View(
        "profiles",
        "Rates of node configurations per workload, layers, position, stages and cycle",
        """
        SELECT p.profile_set_id, r.* EXCLUDE (profile_id, launch_tp)
        FROM main.profile_sets p JOIN shards.profile_rows r ON r.profile_id = p.profile_id
        WHERE r.launch_tp = 0""",
        ("profile_sets", "profile_rows"),
        key=("profile_set_id", "node_config", "workload_id", "layers", "position", "stages", "cycle_ms"),
    ),
    View(
        "launch_profiles",
        "Rates of layouts of one replica that are not the best of their cell (profiles has that), for pipelines of nodes "
        "with one tp, which is all that stock engines launch",
        """
        SELECT p.profile_set_id, r.* EXCLUDE (profile_id, launch_tp)
        FROM main.profile_sets p JOIN shards.profile_rows r ON r.profile_id = p.profile_id
        WHERE r.launch_tp > 0""",
        ("profile_sets", "profile_rows"),
        key=("profile_set_id", "node_config", "workload_id", "layers", "position", "stages", "cycle_ms", "tp"),
    ),
    View(
        "libraries",
        "Template libraries; is_current where it is the current one of any key",
        """
        SELECT l.*, c.library_keys IS NOT NULL AS is_current, coalesce(c.library_keys, []) AS library_keys
        FROM main.library_rows l
        LEFT JOIN (
            SELECT library_id, list(library_key ORDER BY library_key) AS library_keys
            FROM (
                FROM main.current_libraries
                QUALIFY sequence = max(sequence) OVER (PARTITION BY library_key)
            ) GROUP BY library_id
        ) c ON c.library_id = l.library_id""",
        ("library_rows",),
        (
            Column("is_current", "BOOLEAN", "the current library of at least one key"),
            Column("library_keys", "VARCHAR[]", "keys it is the current library of"),
        ),
        ("library_id",),
    ),
    View(
        "templates",
        "Templates of every library; joins to template_nodes and template_stages by template_id",
        """
        SELECT t.template_id, s.library_id, t.workload_id, t.combination_id, t.n_nodes, t.n_stages,
            t.throughput_mtok_per_s, t.throughput_mtok_per_s / 1000.0 AS throughput_tok_per_s, t.cycle_ms,
            t.launch_class, t.provenance, t.rel_error, t.shard_id
        FROM shards.solved_templates t JOIN main.shards s ON s.shard_id = t.shard_id""",
        ("solved_templates", "shards"),
        (Column("throughput_tok_per_s", "DOUBLE", "rate of one instance, before headroom", TOK_S),),
        ("library_id", "template_id"),
    ),
    View(
        "template_nodes",
        "Node configurations of each template with their counts",
        """
        SELECT template_id, n.node_config AS node_config, n.nodes AS nodes
        FROM (SELECT template_id, unnest(nodes) AS n FROM shards.solved_templates)""",
        ("solved_templates",),
        (
            Column("node_config", "VARCHAR", "node configuration"),
            Column("nodes", "SMALLINT", "nodes of it in the template", "nodes"),
        ),
        ("template_id", "node_config"),
    ),
    View(
        "template_stages",
        "Stages of each template, one row per node: layers (inclusive), layout and share of the stage's rate",
        """
        SELECT template_id, st.stage AS stage, m.node_slot AS node_slot, m.node_config AS node_config,
            st.layer_start AS layer_start, st.layer_end AS layer_end, st.position AS position, m.share AS share,
            m.throughput_mtok_per_s AS throughput_mtok_per_s, m.tp AS tp, m.pp AS pp, m.replicas AS replicas,
            m.batch AS batch
        FROM (
            SELECT template_id, st, unnest(st.members) AS m
            FROM (SELECT template_id, unnest(stages) AS st FROM shards.solved_templates)
        )""",
        ("solved_templates",),
        (
            Column("stage", "TINYINT", "stage, from 0"),
            Column("node_slot", "SMALLINT", "node of the template, from 0"),
            Column("node_config", "VARCHAR", "node configuration"),
            Column("layer_start", "SMALLINT", "first layer"),
            Column("layer_end", "SMALLINT", "last layer, inclusive"),
            Column("position", "VARCHAR", "only, first, mid or last"),
            Column("share", "DOUBLE", "part of the stage's rate this node serves", "fraction"),
            Column("throughput_mtok_per_s", "BIGINT", "rate of this node in the stage", "milli-tok/s"),
            Column("tp", "TINYINT", "tensor-parallel degree inside the node", "GPUs"),
            Column("pp", "TINYINT", "pipeline-parallel degree inside the node"),
            Column("replicas", "TINYINT", "data-parallel replicas inside the node"),
            Column("batch", "INTEGER", "sequences (decode) or tokens (prefill) per micro-batch"),
        ),
        ("template_id", "stage", "node_slot"),
    ),
    View(
        "template_frontier",
        "Templates that no cheaper mix of their parts can replace, per library and filter",
        """
        SELECT f.library_id, r.filter_id, r.template_id, r.workload_id
        FROM main.frontiers f JOIN shards.frontier_rows r ON r.frontier_id = f.frontier_id""",
        ("frontiers", "frontier_rows"),
        key=("library_id", "filter_id", "template_id"),
    ),
    View(
        "plans",
        "Plan versions with the state each is in now, and which one is current",
        f"""
        SELECT p.*, s.state, s.since AS state_since, s.note AS state_note,
            s.state IN ({CURRENT_STATES}) AND row_number() OVER (
                PARTITION BY p.scenario_id
                ORDER BY s.state IN ({CURRENT_STATES}) DESC, s.since DESC, p.plan_version DESC
            ) = 1 AS is_current
        FROM main.plan_rows p
        JOIN (
            FROM main.plan_states
            QUALIFY sequence = max(sequence) OVER (PARTITION BY scenario_id, plan_version)
        ) s ON s.scenario_id = p.scenario_id AND s.plan_version = p.plan_version""",  # noqa: S608 - constants
        ("plan_rows", "plan_states"),
        (
            Column("state_since", "TIMESTAMPTZ", "since when it is in this state", "UTC"),
            Column("state_note", "VARCHAR", "why it is in this state"),
            Column("is_current", "BOOLEAN", "the version that holds; one per scenario"),
        ),
        ("scenario_id", "plan_version"),
    ),
    View(
        "alerts",
        "Alerts with the event each has come to; open where that is fired",
        """
        SELECT *, event = 'fired' AS is_open FROM main.alert_events
        QUALIFY row_number() OVER (PARTITION BY scenario_id, kind, subject ORDER BY sequence DESC) = 1""",
        ("alert_events",),
        (Column("is_open", "BOOLEAN", "it holds"),),
        ("scenario_id", "kind", "subject"),
    ),
    View(
        "scenario_offers",
        "Machines for rent as the scenario's newest build or plan read them",
        _SCENARIO_OFFERS,
        ("offer_rows",),
        (_SCENARIO,),
        ("scenario_id", "offer_id"),
    ),
    View(
        "frontier_prices",
        "Frontier templates of a scenario's current library with the price of one instance in every region that sells it "
        "whole, at the latest prices of that scenario",
        f"""
        SELECT p.library_id, p.scenario_id, p.filter_id, p.workload_id, p.region, p.market, t.template_id, t.combination_id,
            t.throughput_mtok_per_s / 1000.0 AS throughput_tok_per_s,
            list_inner_product(t.counts, p.prices) AS price_usd_per_h,
            list_inner_product(t.counts, p.prices) / (t.throughput_mtok_per_s * 0.0000036) AS usd_per_million_tok
        FROM ({_PRICE_VECTORS}) p
        JOIN main.frontier_slim t ON t.frontier_id = p.frontier_id AND t.workload_id = p.workload_id
        WHERE list_inner_product(t.counts, p.prices) < {_NOT_SOLD}""",  # noqa: S608 - constants
        ("frontiers", "frontier_slim"),
        _PRICED,
        ("library_id", "scenario_id", "filter_id", "region", "market", "template_id"),
    ),
    *FEED_VIEWS,
)
