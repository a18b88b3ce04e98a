"""What one scenario's prices make of its library: the cheapest node per region, and the template of most tokens per USD.

Both are tables, written in the transaction that brings other prices or makes another library the current one. A query would
have to price every frontier template in every region, and to find out whose prices hold: seconds of processor on a library of
a million templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from catalogs.types import Offer
from warehouse.rows import insert, plain
from warehouse.tables import TABLES
from warehouse.views import CURRENT_LIBRARIES

_SLIM = "frontier_id, template_id, workload_id, combination_id, throughput_mtok_per_s, counts"
_Row = dict[str, object]


def store_prices(connection: duckdb.DuckDBPyConnection, scenario_id: str, offers: Iterable[Offer]) -> None:
    """Make these offers' the scenario's prices, in the caller's transaction; of equal prices the first offer by id counts."""
    cheapest: dict[tuple[str, str, str], tuple[float, str]] = {}
    for offer in offers:
        at = (offer.region, str(plain(offer.market)), offer.node_config)
        price = (offer.price_usd_per_h, offer.offer_id)
        cheapest[at] = min(price, cheapest.get(at, price))
    names = TABLES["region_prices"].arrow_schema().names
    rows = [dict(zip(names, (scenario_id, *at, *price), strict=True)) for at, price in sorted(cheapest.items())]
    if _replace(connection, "region_prices", scenario_id, rows):
        renew_best_templates(connection, scenario_id)


def renew_best_templates(connection: duckdb.DuckDBPyConnection, scenario_id: str) -> None:
    """Find the best templates of the scenario's current library at its prices anew, in the caller's transaction.

    A mix of a template's parts costs what the parts cost, so what is not on the frontier cannot be best. Of equal ones the
    fastest counts, then the first by id.
    """
    prices = connection.execute(
        "SELECT region, market, node_config, price_usd_per_h FROM main.region_prices WHERE scenario_id = ?",
        [scenario_id],
    ).fetchall()
    _replace(connection, "best_templates", scenario_id, _best_templates(connection, scenario_id, prices))


def renew_all_prices(connection: duckdb.DuckDBPyConnection) -> None:
    """Both tables anew for every scenario, from the offers that its newest build or plan read."""
    prices = connection.execute(
        """SELECT scenario_id, region, market, node_config, min(price_usd_per_h) AS price_usd_per_h,
            arg_min(offer_id, (price_usd_per_h, offer_id)) AS offer_id
        FROM main.scenario_offers GROUP BY ALL ORDER BY ALL"""
    ).to_arrow_table()
    for scenario_id in prices["scenario_id"].unique().to_pylist():
        rows = [row for row in prices.to_pylist() if row["scenario_id"] == scenario_id]
        _replace(connection, "region_prices", scenario_id, rows)
        renew_best_templates(connection, scenario_id)


def _replace(connection: duckdb.DuckDBPyConnection, name: str, scenario_id: str, rows: Sequence[_Row]) -> bool:
    """Put ``rows`` in place of the scenario's; False, and nothing is written, when they are the same."""
    columns = TABLES[name].arrow_schema().names
    held = connection.execute(
        f"SELECT {', '.join(columns)} FROM main.{name} WHERE scenario_id = ?",  # noqa: S608 - own names
        [scenario_id],
    ).fetchall()
    if sorted(held) == sorted(tuple(row[column] for column in columns) for row in rows):
        return False
    if held:
        connection.execute(f"DELETE FROM main.{name} WHERE scenario_id = ?", [scenario_id])  # noqa: S608 - own names
    insert(connection, name, rows)
    return True


def _best_templates(
    connection: duckdb.DuckDBPyConnection, scenario_id: str, prices: Sequence[tuple[str, str, str, float]]
) -> list[_Row]:
    """The rows of ``best_templates``; ``prices`` in USD/h by region, market and node configuration."""
    if not prices:
        return []
    frontiers = connection.execute(
        f"""SELECT f.frontier_id, f.library_id, f.filter_id FROM main.frontiers f
        JOIN ({CURRENT_LIBRARIES}) k USING (library_id) WHERE k.scenario_id = ? ORDER BY ALL""",  # noqa: S608 - a constant
        [scenario_id],
    ).fetchall()
    if not frontiers:
        return []
    ids = [[frontier_id for frontier_id, _, _ in frontiers]]
    configs: dict[str, list[str]] = {frontier_id: [] for frontier_id, _, _ in frontiers}
    for frontier_id, name in connection.execute(
        """SELECT frontier_id, node_config FROM main.frontier_configs WHERE list_contains(?, frontier_id)
        ORDER BY frontier_id, position""",
        ids,
    ).fetchall():
        configs[frontier_id].append(name)
    slim = connection.execute(
        f"SELECT {_SLIM} FROM main.frontier_slim WHERE list_contains(?, frontier_id)",  # noqa: S608 - a constant
        ids,
    ).to_arrow_table()
    of_frontier = slim["frontier_id"].combine_chunks().dictionary_encode()
    row_of = {name: number for number, name in enumerate(of_frontier.dictionary.to_pylist())}
    codes = of_frontier.indices.to_numpy()
    price_of = {(region, market, name): usd_per_h for region, market, name, usd_per_h in prices}
    places = sorted({(region, market) for region, market, _, _ in prices})
    found: list[_Row] = []
    for frontier_id, library_id, filter_id in frontiers:
        if frontier_id in row_of:
            usd = np.array([[price_of.get((*at, name), np.nan) for at in places] for name in configs[frontier_id]])
            head = {"library_id": library_id, "scenario_id": scenario_id, "filter_id": filter_id}
            rows = slim.take(np.flatnonzero(codes == row_of[frontier_id]))
            found += [head | row for row in _best_per_place(rows, places, usd)]
    return found


def _best_per_place(slim: pa.Table, places: Sequence[tuple[str, str]], usd: np.ndarray) -> list[_Row]:
    """The best template of one frontier in every place (region, market) that sells one whole.

    ``usd`` [configurations, places]: price of a node in USD/h, NaN where it is not sold.
    """
    counts = slim["counts"].combine_chunks().flatten().to_numpy().reshape(slim.num_rows, -1)
    mtok_per_s = slim["throughput_mtok_per_s"].to_numpy()
    is_sold = counts @ np.isnan(usd) == 0
    cost = np.where(is_sold, counts @ np.nan_to_num(usd), np.inf)
    usd_per_mtok = cost / mtok_per_s[:, None]
    found: list[_Row] = []
    for number, (region, market) in enumerate(places):
        equal = np.flatnonzero(usd_per_mtok[:, number] == usd_per_mtok[:, number].min())
        if not is_sold[equal[0], number]:
            continue  # not a single one is sold whole here
        rows = slim.take(equal).drop_columns(["frontier_id", "counts"]).to_pylist()
        best, at = min(
            zip(rows, equal, strict=True), key=lambda pair: (-pair[0]["throughput_mtok_per_s"], pair[0]["template_id"])
        )
        rate, price = best.pop("throughput_mtok_per_s"), float(cost[at, number])
        best |= {"region": region, "market": market, "throughput_tok_per_s": rate / 1000, "price_usd_per_h": price}
        found.append(best | {"usd_per_million_tok": price / (rate * 3.6e-6)})
    return found
