"""What of the feeds a lake no longer needs: what was told long ago, but for the last word on everything."""

from __future__ import annotations

_LAST_SNAPSHOTS = "SELECT (scenario_id, region, max(sequence)) FROM main.price_snapshots GROUP BY scenario_id, region"
_OLD_SNAPSHOT = f"observed_at < $cutoff AND (scenario_id, region, sequence) NOT IN ({_LAST_SNAPSHOTS})"

# Per table: the rows that go; $cutoff = the moment before which things are old. Demand stays a year longer, as far back as a
# forecast may look (demand.history_days); the last file of a kind says when its feed was last heard of.
OLD_FEED_ROWS = {
    "price_snapshots": _OLD_SNAPSHOT,
    "price_sets": f"set_id NOT IN (SELECT set_id FROM main.price_snapshots WHERE NOT ({_OLD_SNAPSHOT}))",  # noqa: S608
    "availability_observations": """observed_at < $cutoff AND (scenario_id, region, node_config, market, observed_at) NOT IN (
        SELECT (scenario_id, region, node_config, market, max(observed_at)) FROM main.availability_observations
        GROUP BY scenario_id, region, node_config, market)""",
    "demand_windows": "window_start < $cutoff - INTERVAL 366 DAY",
    "ingests": """ingested_at < $cutoff AND ingest_id NOT IN (
        SELECT arg_max(ingest_id, ingested_at) FROM main.ingests WHERE observed_at IS NOT NULL GROUP BY scenario_id, kind
    ) AND ingest_id NOT IN (
        SELECT arg_max(ingest_id, observed_at) FROM main.fleet GROUP BY scenario_id)""",
}
