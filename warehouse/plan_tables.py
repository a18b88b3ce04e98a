"""Tables of plans, runs, the fleet and rejected input, described column by column."""

from __future__ import annotations

from warehouse.schema import TOK_S, USD_H, Column, Table, key, maybe

# A version in one of these states is current; warehouse.plan_states sees to it that a scenario has one at most.
CURRENT_STATES = "'published', 'approved', 'applied', 'partial'"

_SCENARIO = key("scenario_id", "VARCHAR", "scenario")
_VERSION = key("plan_version", "BIGINT", "1, 2, ... per scenario")

PLAN_TABLES = (
    Table(
        "plan_rows",
        "Plan versions, never changed",
        (
            _SCENARIO,
            _VERSION,
            Column("library_id", "VARCHAR", "library it was chosen from"),
            Column("inputs_hash", "VARCHAR", "hash of all inputs"),
            Column("decision_hash", "VARCHAR", "hash of what it says to rent and run"),
            Column("status", "VARCHAR", "optimal, gap, time_limit or shortfall"),
            Column("cost_usd_per_h", "DOUBLE", "rent, and what moving KV between regions costs", USD_H),
            Column("init_usd", "DOUBLE", "charge for starting new instances", "USD"),
            Column("lower_bound_usd_per_h", "DOUBLE", "no plan of this library costs less", USD_H),
            Column("gap", "DOUBLE", "distance to the bound, within this library and these profiles", "fraction"),
            Column("theta", "DOUBLE", "share of the demand that is met", "fraction"),
            Column("solve_s", "DOUBLE", "time to solve", "s"),
            Column("price_as_of", "VARCHAR", "date of the prices"),
            Column("created_at", "TIMESTAMPTZ", "when it was made", "UTC"),
            Column("reason", "VARCHAR", "why it differs from the one before"),
            Column("egress_usd_per_h", "DOUBLE", "of the cost, what moving KV between regions costs", USD_H),
        ),
    ),
    Table(
        "plan_states",
        "Life of a plan version as events; the latest event holds",
        (
            _SCENARIO,
            _VERSION,
            key("sequence", "BIGINT", "1, 2, ... per plan version"),
            Column("state", "VARCHAR", "proposed, published, approved, applied, partial or superseded"),
            Column("since", "TIMESTAMPTZ", "from when", "UTC"),
            Column("by", "VARCHAR", "who or what"),
            Column("note", "VARCHAR", "why"),
        ),
    ),
    Table(
        "plan_documents",
        "The plan as one JSON document",
        (_SCENARIO, _VERSION, Column("document", "VARCHAR", "plan JSON, schema version inside")),
    ),
    Table(
        "plan_instances",
        "Instances to run",
        (
            _SCENARIO,
            _VERSION,
            key("region", "VARCHAR", "provider/region"),
            key("template_id", "VARCHAR", "template"),
            key("market", "VARCHAR", "on_demand, spot or owned"),
            Column("workload_id", "VARCHAR", "workload"),
            Column("combination_id", "VARCHAR", "node configurations and counts"),
            Column("instances", "BIGINT", "instances"),
            Column("new_instances", "BIGINT", "of them not running before"),
            Column("throughput_tok_per_s", "DOUBLE", "rate of one instance, before headroom", TOK_S),
            Column("cost_usd_per_h", "DOUBLE", "rent of one instance", USD_H),
        ),
    ),
    Table(
        "plan_offers",
        "Machines to rent",
        (
            _SCENARIO,
            _VERSION,
            key("offer_id", "VARCHAR", "offer"),
            Column("region", "VARCHAR", "provider/region"),
            Column("node_config", "VARCHAR", "node configuration"),
            Column("instance_type", "VARCHAR", "the cloud's name of the machine"),
            Column("market", "VARCHAR", "on_demand, spot or owned"),
            Column("nodes", "BIGINT", "machines", "nodes"),
            Column("price_usd_per_h", "DOUBLE", "price of one", USD_H),
            Column("availability_nodes", "BIGINT", "machines that could be had", "nodes"),
            Column("availability_basis", "VARCHAR", "feed, quota or assumed"),
        ),
    ),
    Table(
        "plan_kv_transfers",
        "Requests that prefill in one region and decode in another",
        (
            _SCENARIO,
            _VERSION,
            key("model", "VARCHAR", "model"),
            key("from_region", "VARCHAR", "where they prefill, provider/region"),
            key("to_region", "VARCHAR", "where they decode, provider/region"),
            Column("req_per_s", "DOUBLE", "rate of such requests", "req/s"),
            Column("gbit_per_s", "DOUBLE", "bandwidth that their KV takes", "Gbit/s"),
            Column("usd_per_gb", "DOUBLE", "price of what leaves the region", "USD/GB"),
            Column("usd_per_h", "DOUBLE", "what moving it costs", USD_H),
        ),
    ),
    Table(
        "plan_shortfalls",
        "Demand a plan leaves unmet",
        (
            _SCENARIO,
            _VERSION,
            key("workload_id", "VARCHAR", "workload"),
            Column("missing_tok_per_s", "DOUBLE", "missing rate", TOK_S),
            Column("binding", "VARCHAR", "what is short"),
            Column("cheapest_extra", "VARCHAR", "cheapest supply that would close it"),
        ),
    ),
    Table(
        "allocation_runs",
        "Every allocation run, published or not",
        (
            key("run_id", "VARCHAR", "run"),
            Column("scenario_id", "VARCHAR", "scenario"),
            maybe("plan_version", "BIGINT", "version that holds after the run; NULL = none"),
            Column(
                "outcome",
                "VARCHAR",
                "published, unchanged, held_unknown_demand, held_stale, held_for_approval, superseded or failed",
            ),
            maybe("cost_now_usd_per_h", "DOUBLE", "cost of the decision at the prices of the run", USD_H),
            maybe("lower_bound_usd_per_h", "DOUBLE", "bound found by the run", USD_H),
            maybe("gap", "DOUBLE", "gap found by the run", "fraction"),
            Column("inputs_hash", "VARCHAR", "hash of the inputs; '' = not read"),
            Column("input_ages_s", "MAP(VARCHAR, DOUBLE)", "age of each input at the start", "s"),
            Column("started_at", "TIMESTAMPTZ", "start", "UTC"),
            Column("logged_at", "TIMESTAMPTZ", "end", "UTC"),
            Column("note", "VARCHAR", "what a person should know"),
        ),
    ),
    Table(
        "alert_events",
        "Alerts as events: each fires once and clears once",
        (
            key("event_id", "VARCHAR", "event; receivers tell repeats by it"),
            Column("sequence", "BIGINT", "1, 2, ... in the order of events"),
            Column("scenario_id", "VARCHAR", "scenario"),
            Column("kind", "VARCHAR", "shortfall, gap, plan_age, stale_input, failed_run, drift or approval"),
            Column("subject", "VARCHAR", "workload or input it is of; '' = the scenario"),
            Column("event", "VARCHAR", "fired or cleared"),
            Column("at", "TIMESTAMPTZ", "when", "UTC"),
            Column("text", "VARCHAR", "what holds, or held"),
        ),
    ),
    Table(
        "alert_deliveries",
        "Attempts to tell the webhook of an alert's event; the address is not kept",
        (
            key("event_id", "VARCHAR", "event"),
            key("at", "TIMESTAMPTZ", "when", "UTC"),
            Column("outcome", "VARCHAR", "claimed, delivered or failed"),
            Column("detail", "VARCHAR", "the answer's status, or what went wrong"),
        ),
    ),
    Table(
        "fleet",
        "Nodes seen running; all of a scenario's at each `observed_at`",
        (
            _SCENARIO,
            key("observed_at", "TIMESTAMPTZ", "when", "UTC"),
            key("region", "VARCHAR", "provider/region"),
            key("node_config", "VARCHAR", "node configuration"),
            key("market", "VARCHAR", "on_demand, spot or owned"),
            key("template_id", "VARCHAR", "template they serve; '' = none"),
            Column("nodes", "BIGINT", "nodes", "nodes"),
            Column("failed_nodes", "BIGINT", "nodes asked for beside them that could not be had", "nodes"),
            Column("ingest_id", "VARCHAR", "file it came in with; '' = none"),
        ),
    ),
    Table(
        "rejects",
        "Input rows set aside, and why",
        (
            key("ingest_id", "VARCHAR", "reading of inputs"),
            key("file", "VARCHAR", "file"),
            key("row", "BIGINT", "row, 1 = first data row, 0 = the file itself"),
            Column("column", "VARCHAR", "column or key"),
            Column("value", "VARCHAR", "value as written"),
            Column("reason", "VARCHAR", "why it was set aside"),
            Column("remedy", "VARCHAR", "what to do"),
            Column("logged_at", "TIMESTAMPTZ", "when", "UTC"),
        ),
    ),
    Table(
        "data_dictionary",
        "Every table, view and column of this lake with unit and meaning",
        (
            key("table_name", "VARCHAR", "table or view"),
            key("column_name", "VARCHAR", "column; '' describes the table"),
            Column("kind", "VARCHAR", "table or view"),
            Column("type", "VARCHAR", "DuckDB type"),
            Column("unit", "VARCHAR", "unit; '' = none"),
            Column("is_key", "BOOLEAN", "part of the key"),
            Column("description", "VARCHAR", "what it means"),
        ),
    ),
)
