"""Questions people ask the lake, with their SQL: shown in docs/sql.md and on the dashboard, run as tests.

Each runs as it stands on a lake that holds the scenario ``core``; :func:`about` puts another scenario's name in.
"""

from __future__ import annotations

from dataclasses import dataclass

from warehouse.catalog_store import sql_text

_EXAMPLE = "'core'"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A question and the statement that answers it."""

    title: str
    sql: str


def about(recipe: Recipe, scenario_id: str) -> str:
    """The statement for another scenario."""
    return recipe.sql.replace(_EXAMPLE, sql_text(scenario_id))


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "Most tokens per USD, per workload and region, at today's prices",
        """\
SELECT w.model, w.phase, b.region, b.combination_id,
    b.throughput_tok_per_s, b.usd_per_million_tok
FROM best_templates b
JOIN workloads w USING (workload_id)
WHERE b.scenario_id = 'core' AND b.filter_id = 'all'
    AND b.market = 'on_demand'
ORDER BY w.model, w.phase, b.region""",
    ),
    Recipe(
        "All templates without H100",
        """\
SELECT t.workload_id, t.combination_id, t.throughput_tok_per_s
FROM templates t
JOIN libraries l USING (library_id)
WHERE list_contains(l.library_keys, 'core')
    AND NOT contains(t.combination_id, 'H100')""",
    ),
    Recipe(
        "Templates one spare node away",
        """\
WITH have(node_config, nodes) AS (VALUES ('L40Sx4', 1), ('L4x4', 1)),
held AS (
    SELECT r.frontier_id,
        list(c.node_config ORDER BY c.position) AS node_configs,
        list(coalesce(h.nodes, 0)::DOUBLE ORDER BY c.position) AS nodes,
        list((h.nodes IS NULL)::INTEGER::DOUBLE ORDER BY c.position) AS is_other
    FROM frontiers r
    JOIN libraries l USING (library_id)
    JOIN frontier_configs c USING (frontier_id)
    LEFT JOIN have h USING (node_config)
    WHERE list_contains(l.library_keys, 'core') AND r.filter_id = 'all'
    GROUP BY r.frontier_id
), near AS (
    SELECT f.workload_id, f.combination_id,
        f.throughput_mtok_per_s / 1000.0 AS throughput_tok_per_s,
        unnest(h.node_configs) AS node_config,
        unnest(f.counts) - unnest(h.nodes) AS missing
    FROM frontier_slim f
    JOIN held h USING (frontier_id)
    WHERE f.n_nodes <= list_sum(h.nodes) + 1
        AND list_inner_product(f.counts, h.is_other) <= 1
)
SELECT workload_id, combination_id, throughput_tok_per_s,
    max(node_config) FILTER (missing > 0) AS node_to_add
FROM near
GROUP BY workload_id, combination_id, throughput_tok_per_s
HAVING sum(greatest(missing, 0)) = 1
ORDER BY workload_id, throughput_tok_per_s DESC""",
    ),
    Recipe(
        "Rates of homogeneous against mixed templates (the paper's figure 1b)",
        """\
SELECT w.model, w.phase, q.percentile,
    max(q.throughput_tok_per_s)
        FILTER (NOT q.is_mixed) AS homogeneous_tok_per_s,
    max(q.throughput_tok_per_s) FILTER (q.is_mixed) AS mixed_tok_per_s
FROM rate_quantiles q
JOIN libraries l USING (library_id)
JOIN workloads w USING (workload_id)
WHERE list_contains(l.library_keys, 'core')
GROUP BY w.model, w.phase, q.percentile
ORDER BY w.model, w.phase, q.percentile""",
    ),
    Recipe(
        "What the current plan runs, and where",
        """\
SELECT i.region, i.workload_id, i.combination_id, i.instances,
    i.instances * i.throughput_tok_per_s AS tok_per_s,
    i.instances * i.cost_usd_per_h AS usd_per_h
FROM plan_instances i
JOIN plans p USING (scenario_id, plan_version)
WHERE i.scenario_id = 'core' AND p.is_current
ORDER BY usd_per_h DESC""",
    ),
    Recipe(
        "How cost, gap and machines changed from version to version",
        """\
SELECT p.plan_version, p.created_at, p.state, p.cost_usd_per_h, p.gap,
    p.cost_usd_per_h - lag(p.cost_usd_per_h)
        OVER (ORDER BY p.plan_version) AS change_usd_per_h,
    o.machines
FROM plans p
LEFT JOIN (
    SELECT scenario_id, plan_version, sum(nodes)::BIGINT AS machines
    FROM plan_offers GROUP BY ALL
) o USING (scenario_id, plan_version)
WHERE p.scenario_id = 'core'
ORDER BY p.plan_version""",
    ),
)
