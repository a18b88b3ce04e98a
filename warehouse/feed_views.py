"""Views of the feeds: what counts now, of all that was ever taken in."""

from __future__ import annotations

from warehouse.schema import Column, View

_PRICES = """
        SELECT s.scenario_id, split_part(s.region, '/', 1) AS provider, s.region, p.node_config, p.instance_type, p.market,
            p.price_usd_per_h, p.interrupt_per_h, p.network_gbit_per_s,
            coalesce(p.as_of, s.observed_at::DATE) AS as_of, p.is_list, p.source, s.observed_at
        FROM (
            FROM main.price_snapshots
            QUALIFY sequence = max(sequence) OVER (PARTITION BY scenario_id, region)
        ) s JOIN main.price_sets p ON p.set_id = s.set_id"""


def _corrected(table: str, key: str) -> str:
    """The latest word on each key."""
    return f"""
        FROM main.{table}
        QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY ingested_at DESC, ingest_id) = 1"""


FEED_VIEWS: tuple[View, ...] = (
    View(
        "price_feed",
        "Prices that count now in the regions a scenario's price feed tells of",
        _PRICES,
        ("price_snapshots", "price_sets"),
        (Column("provider", "VARCHAR", "cloud"),),
        ("scenario_id", "region", "instance_type", "node_config", "market"),
    ),
    View(
        "availability_feed",
        "Nodes that could be had as a scenario's feed told, by time of observation",
        _corrected("availability_observations", "scenario_id, region, node_config, market, observed_at"),
        ("availability_observations",),
        key=("scenario_id", "region", "node_config", "market", "observed_at"),
    ),
    View(
        "demand_feed",
        "Demand per window as a scenario's feed told; of windows that overlap the shortest counts",
        _corrected("demand_windows", "scenario_id, model, window_start, window_s"),
        ("demand_windows",),
        key=("scenario_id", "model", "window_start", "window_s"),
    ),
)
