"""What the page of a library shows: its templates with rate and price, as filters ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.lake import LakeReader, Row
from warehouse.catalog_store import sql_text

# Marks in one chart: more cannot be told apart and take long to draw.
MAX_POINTS = 3_000
CLASSES = {
    "A": "A: one node, plain vLLM",
    "B1": "B1: a node per stage, alike in GPU count",
    "B2": "B2: a node per stage, unlike in GPU count",
    "C": "C: no stock engine",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which templates: of a scenario's current library and workload, sold in ``region`` ("" = the cheapest that sells it).

    ``gpus``: only templates of these GPU types alone; empty = any. ``mixed``: "all", "one kind" or "mixed" node
    configurations. ``classes``: launch classes; empty = any. ``frontier_only``: those that no mix of smaller ones replaces.
    """

    scenario_id: str
    workload_id: str
    region: str = ""
    gpus: tuple[str, ...] = ()
    mixed: str = "all"
    classes: tuple[str, ...] = ()
    frontier_only: bool = False


def libraries(lake: LakeReader) -> list[Row]:
    """Scenarios with a current library, the one built last first."""
    return lake.rows(
        """SELECT unnest(library_keys) AS scenario_id, library_id, n_max, rho, mode, built_at
        FROM libraries WHERE is_current ORDER BY built_at DESC, scenario_id"""
    )


def workloads(lake: LakeReader, scenario_id: str) -> list[Row]:
    """Workloads of the scenario's library with the number of their templates."""
    return lake.rows(
        f"""SELECT w.workload_id, w.alias, w.slo_ms, w.phase, sum(s.rows)::BIGINT AS templates
        FROM shards s
        JOIN libraries l USING (library_id)
        JOIN workloads w ON w.workload_id = s.workload_id
        WHERE list_contains(l.library_keys, {sql_text(scenario_id)})
        GROUP BY ALL ORDER BY w.alias, w.workload_id"""
    )


def regions(lake: LakeReader, scenario_id: str) -> list[str]:
    """Regions whose prices are known for the scenario."""
    rows = lake.rows(
        f"SELECT DISTINCT region FROM region_prices WHERE scenario_id = {sql_text(scenario_id)} ORDER BY region"
    )
    return [row["region"] for row in rows]


def gpus(lake: LakeReader, scenario_id: str) -> list[str]:
    """GPU types of the library's node configurations."""
    rows = lake.rows(
        f"""SELECT DISTINCT regexp_replace(node_config, 'x[0-9]+$', '') AS gpu
        FROM (SELECT unnest(node_configs) AS node_config FROM libraries
            WHERE list_contains(library_keys, {sql_text(scenario_id)})) ORDER BY gpu"""
    )
    return [row["gpu"] for row in rows]


def templates_sql(chosen: Filter) -> str:
    """The statement that lists the templates: the page shows it, so that it can be changed and run."""
    conditions = [f"t.workload_id = {sql_text(chosen.workload_id)}"]
    if chosen.frontier_only:
        conditions.append(
            "t.template_id IN (SELECT template_id FROM template_frontier WHERE filter_id = 'all' "
            f"AND workload_id = {sql_text(chosen.workload_id)})"
        )
    if chosen.gpus:
        names = ", ".join(sql_text(name) for name in chosen.gpus)
        conditions.append(
            "len(list_filter(regexp_extract_all(t.combination_id, '([^+]+)x[0-9]+[*]', 1), "
            f"gpu -> NOT list_contains([{names}], gpu))) = 0"
        )
    if chosen.mixed != "all":
        conditions.append(("" if chosen.mixed == "mixed" else "NOT ") + "contains(t.combination_id, '+')")
    if chosen.classes:
        conditions.append(f"t.launch_class IN ({', '.join(sql_text(name) for name in chosen.classes)})")
    where = "\n        AND ".join(conditions)
    region = f"\n        AND p.region = {sql_text(chosen.region)}" if chosen.region else ""
    scenario = sql_text(chosen.scenario_id)
    return f"""WITH chosen AS (
    SELECT t.*
    FROM templates t JOIN libraries l ON l.library_id = t.library_id AND list_contains(l.library_keys, {scenario})
    WHERE {where}
),
nodes AS (
    SELECT template_id, node_config, nodes, count(*) OVER (PARTITION BY template_id) AS kinds
    FROM template_nodes WHERE template_id IN (SELECT template_id FROM chosen)
),
sold AS (  -- a region sells a template whole, or not at all
    SELECT n.template_id, p.region, sum(n.nodes * p.price_usd_per_h) AS price_usd_per_h
    FROM nodes n JOIN region_prices p ON p.node_config = n.node_config
    WHERE p.scenario_id = {scenario} AND p.market = 'on_demand'{region}
    GROUP BY n.template_id, p.region HAVING count(*) = max(n.kinds)
)
SELECT c.template_id, c.combination_id, c.n_nodes, c.launch_class, c.provenance, s.region, c.throughput_tok_per_s,
    s.price_usd_per_h, s.price_usd_per_h / (c.throughput_tok_per_s * 0.0036) AS usd_per_million_tok,
    c.throughput_tok_per_s * 0.0036 / s.price_usd_per_h AS million_tok_per_usd
FROM chosen c JOIN sold s ON s.template_id = c.template_id
QUALIFY row_number() OVER (PARTITION BY c.template_id ORDER BY s.price_usd_per_h, s.region) = 1
ORDER BY million_tok_per_usd DESC, c.template_id"""


def shown(rows: Sequence[Row]) -> list[Row]:
    """At most MAX_POINTS of the templates: the best half of that whole, of the rest every so many."""
    if len(rows) <= MAX_POINTS:
        return list(rows)
    half = MAX_POINTS // 2
    step = -(-(len(rows) - half) // half)
    return [*rows[:half], *rows[half::step]]


def mark(row: Row) -> dict[str, Any]:
    """A template as the chart draws it."""
    return {
        "tokens_per_s": row["throughput_tok_per_s"], "million_tok_per_usd": row["million_tok_per_usd"],
        "nodes": row["combination_id"], "kind": "mixed" if "+" in row["combination_id"] else "one kind of node",
        "launch_class": row["launch_class"], "usd_per_h": row["price_usd_per_h"], "region": row["region"],
        "usd_per_million_tok": row["usd_per_million_tok"],
    }  # fmt: skip
