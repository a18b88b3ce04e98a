"""What the page of a plan shows: versions, documents, inputs over time, what differs between two versions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dashboards.lake import LakeReader, Row
from warehouse.catalog_store import sql_text
from warehouse.results import result_about

# A course of more versions than this would be unreadable; the newest are shown.
MAX_VERSIONS = 200
_WHY = "why"


def scenarios(lake: LakeReader) -> list[str]:
    """Scenarios with a plan, the one planned last first."""
    rows = lake.rows("SELECT scenario_id FROM plans GROUP BY scenario_id ORDER BY max(created_at) DESC, scenario_id")
    return [row["scenario_id"] for row in rows]


def versions(lake: LakeReader, scenario_id: str) -> list[Row]:
    """The versions of a scenario, newest first: state, status, cost, bound, gap, theta, time, reason, whether it holds."""
    return lake.rows(
        f"""SELECT plan_version, state, status, cost_usd_per_h, init_usd, lower_bound_usd_per_h, gap, theta, created_at,
            reason, library_id, is_current
        FROM plans WHERE scenario_id = {sql_text(scenario_id)}
        ORDER BY plan_version DESC LIMIT {MAX_VERSIONS}"""
    )


def plan_documents(lake: LakeReader, scenario_id: str) -> dict[int, Row]:
    """The plan JSON of each of those versions, oldest first, each with the state it is in now and why (``state_note``)."""
    rows = lake.rows(
        f"""SELECT plan_version, d.document, p.state, p.state_note
        FROM plan_documents d JOIN plans p USING (scenario_id, plan_version)
        WHERE scenario_id = {sql_text(scenario_id)}
        ORDER BY plan_version DESC LIMIT {MAX_VERSIONS}"""
    )
    return {
        row["plan_version"]: json.loads(row["document"]) | {"state": row["state"], "state_note": row["state_note"]}
        for row in reversed(rows)
    }


def version_before(documents: dict[int, Row], plan: Row, current: int | None) -> Row | None:
    """What to compare a version with: a proposal with what holds, another with the version made before it."""
    is_proposal = plan["state"] == "proposed" and current is not None
    return documents.get(current if is_proposal and current else plan["plan_version"] - 1)


def explanation(lake: LakeReader, scenario_id: str, plan_version: int) -> Row | None:
    """What `coral plans show --why` found out about this version, or None where it was not asked yet."""
    found = result_about(lake.root, _WHY, scenario_id=scenario_id, plan_version=plan_version)
    return found if isinstance(found, dict) else None


def prices_by_version(lake: LakeReader, scenario_id: str) -> list[Row]:
    """The cheapest price per region, node configuration and market that each version was planned with."""
    return lake.rows(
        f"""SELECT u.plan_version, p.created_at, r.region, r.node_config, r.market, min(r.price_usd_per_h) AS price_usd_per_h
        FROM input_uses u
        JOIN plans p ON p.scenario_id = u.scenario_id AND p.plan_version = u.plan_version
        JOIN input_sets s ON s.set_id = u.set_id
        JOIN offer_rows r ON r.content_id = s.content_id
        WHERE u.scenario_id = {sql_text(scenario_id)} AND u.table_name = 'offer_rows'
        GROUP BY ALL ORDER BY u.plan_version, r.region, r.node_config, r.market"""
    )


def prices_seen(lake: LakeReader, scenario_id: str) -> list[Row]:
    """The cheapest price per region, node configuration and market each time a feed told of the region, oldest first; also
    those that no version was planned with. None where prices are the catalog's."""
    known = lake.rows("SELECT 1 FROM data_dictionary WHERE table_name = 'price_snapshots' LIMIT 1")
    if not known:
        return []
    return lake.rows(
        f"""SELECT s.observed_at, s.region, p.node_config, p.market, min(p.price_usd_per_h) AS price_usd_per_h
        FROM price_snapshots s JOIN price_sets p USING (set_id)
        WHERE s.scenario_id = {sql_text(scenario_id)}
        GROUP BY ALL ORDER BY s.observed_at DESC, s.region, p.node_config, p.market LIMIT 20000"""
    )[::-1]


def demand_seen(lake: LakeReader, scenario_id: str) -> list[Row]:
    """Demand per model and window as a feed told it; none where demand is only stated in the scenario."""
    known = lake.rows("SELECT 1 FROM data_dictionary WHERE table_name = 'demand_feed' LIMIT 1")
    source = "demand_feed" if known else "demand"
    basis = "" if known else "AND basis = 'feed'"
    return lake.rows(
        f"""SELECT model, window_start, demand_req_per_s FROM {source}
        WHERE scenario_id = {sql_text(scenario_id)} AND demand_req_per_s IS NOT NULL {basis}
        ORDER BY model, window_start DESC LIMIT 5000"""
    )


def course(
    documents: dict[int, Row],
    prices: Sequence[Row],
    seen: Sequence[Row],
    told: Sequence[Row],
    now: datetime,
) -> dict[str, list[Row]]:
    """Cost, demand and prices as series (time, value, name) on one time axis; what was planned last holds until ``now``.

    Prices are of the machines that some version rents; ``seen`` is the demand and ``told`` are the prices that feeds gave, of
    all moments: a price that moved between two versions shows.
    """
    cost: list[Row] = []
    demand: list[Row] = []
    for version, plan in documents.items():
        at = _instant(plan["created_at"])
        about = {"time": at, "version": version}
        cost.append({**about, "value": plan["cost_usd_per_h"], "name": "plan"})
        rates = {row["model"]: row for row in plan["workloads"]}
        demand += [
            {**about, "value": row["planned_req_per_s"], "name": short(row["workload"])} for row in rates.values()
        ]
    rented = {
        (row["region"], row["node_config"], row["market"]) for plan in documents.values() for row in plan["offers"]
    }
    paid = [
        {
            "time": _utc(row["created_at"]), "version": row["plan_version"], "value": row["price_usd_per_h"],
            "name": _machine(row),
        }
        for row in prices
        if (row["region"], row["node_config"], row["market"]) in rented
    ]  # fmt: skip
    told_prices = [
        {"time": _utc(row["observed_at"]), "value": row["price_usd_per_h"], "name": _machine(row)}
        for row in told
        if (row["region"], row["node_config"], row["market"]) in rented
    ]
    told_demand = [
        {"time": _utc(row["window_start"]), "value": row["demand_req_per_s"], "name": row["model"].rpartition("/")[2].lower()}
        for row in seen
    ]  # fmt: skip
    series = {"cost": cost, "demand": demand, "price": paid}
    return {name: _held(rows, now) for name, rows in series.items()} | {"seen": told_demand, "told": told_prices}


def _machine(row: Row) -> str:
    market = "" if row["market"] == "on_demand" else f" {row['market']}"
    return f"{row['node_config']} {row['region'].partition('/')[2]}{market}"


def _held(rows: list[Row], now: datetime) -> list[Row]:
    """``rows`` and, for each name, its last value once more at ``now``, which is no version's."""
    last = {row["name"]: row for row in rows}
    return [*rows, *({**row, "time": max(now, row["time"]), "version": None} for row in last.values())]


def _instant(text: str) -> datetime:
    return _utc(datetime.fromisoformat(text))


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


def short(workload: str) -> str:
    """The model of a workload's readable name: ``phi-4/decode`` -> ``phi-4``."""
    return workload.rpartition("/")[0]


def instance_changes(before: Row | None, after: Row) -> list[Row]:
    """Replicas to add, keep and remove per region, workload, combination and market, those that change first."""
    counts: tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]] = (Counter(), Counter())
    for counter, plan in zip(counts, (before, after), strict=True):
        for row in plan["instances"] if plan else ():
            counter[row["region"], row["workload"], row["combination_id"], row["market"]] += row["instances"]
    old, new = counts
    rows = [
        {
            "region": key[0], "workload": key[1], "combination_id": key[2], "market": key[3],
            "add": max(new[key] - old[key], 0), "keep": min(old[key], new[key]), "remove": max(old[key] - new[key], 0),
        }
        for key in old.keys() | new.keys()
    ]  # fmt: skip
    order = {row["workload"]: i for i, row in enumerate(after["workloads"])}
    return sorted(
        rows,
        key=lambda row: (
            not (row["add"] or row["remove"]),
            order.get(row["workload"], 0),
            row["region"],
            row["combination_id"],
        ),
    )


def input_changes(before: Row | None, after: Row, prices: Sequence[Row]) -> list[str]:
    """What of the inputs differs between two versions, in words: demand, headroom, prices, library."""
    if before is None:
        return []
    said = []
    was = {row["workload"]: row for row in before["workloads"]}
    now = {row["workload"]: row for row in after["workloads"]}
    for model in dict.fromkeys(short(name) for name in [*now, *was]):
        rates = [
            next((r["planned_req_per_s"] for n, r in rows.items() if short(n) == model), None) for rows in (was, now)
        ]
        if rates[0] is None or rates[1] is None:
            said.append(f"{model}: {'new' if rates[0] is None else 'no longer served'}")
        elif abs(rates[1] - rates[0]) > 0.005 * rates[0]:
            said.append(f"demand of {model}: {rates[0]:,.1f} → {rates[1]:,.1f} req/s ({rates[1] / rates[0] - 1:+.0%})")
    for name in (name for name in now if name in was):
        shares = was[name]["headroom"], now[name]["headroom"]
        if abs(shares[1] - shares[0]) >= 0.005:
            said.append(f"use planned of {name}: {shares[0]:.0%} → {shares[1]:.0%} of its rate")
    said += _price_changes(before, after, prices)
    if before["inputs"]["library_id"] != after["inputs"]["library_id"]:
        said.append("the library of templates was built anew")
    return said


def _price_changes(before: Row, after: Row, prices: Sequence[Row]) -> list[str]:
    """Prices that differ, of machines that one of the two rents."""
    rented = {(row["region"], row["node_config"], row["market"]) for plan in (before, after) for row in plan["offers"]}
    by_version: dict[int, dict[tuple[str, str, str], float]] = {}
    for row in prices:
        key = row["region"], row["node_config"], row["market"]
        by_version.setdefault(row["plan_version"], {})[key] = row["price_usd_per_h"]
    old, new = (by_version.get(plan["plan_version"], {}) for plan in (before, after))
    return [
        f"price of {key[1]} in {key[0]}: {old[key]:,.2f} → {new[key]:,.2f} USD/h ({new[key] / old[key] - 1:+.0%})"
        for key in sorted(rented & old.keys() & new.keys())
        if abs(new[key] - old[key]) > 1e-6 and old[key]
    ]


def per_million(plan: Row) -> list[tuple[str, float | None, float | None]]:
    """(model, USD per million tokens of prefill or alone, of decode); None where none are served."""
    found: dict[str, dict[str, Any]] = {}
    for row in plan["workloads"]:
        found.setdefault(short(row["workload"]), {})[row["phase"]] = row["usd_per_million_tok"]
    return [(model, by.get("prefill", by.get("aggregated")), by.get("decode")) for model, by in found.items()]
