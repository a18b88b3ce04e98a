"""Recording of catalog facts: each row once, by content; and which rows a build or a plan was computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from typing import Any

import duckdb
import pyarrow as pa

from catalogs.ids import short_hash
from catalogs.types import Workload
from warehouse.prices import store_prices
from warehouse.records import ReferenceInputs, utc_now
from warehouse.rows import insert, plain
from warehouse.tables import TABLES

_TABLE_OF = {
    "node_configs": "node_config_rows",
    "offers": "offer_rows",
    "availability": "availability_rows",
    "quotas": "quota_rows",
    "models": "model_rows",
    "workloads": "workload_rows",
    "demand": "demand_rows",
}


def record_reference(
    connection: duckdb.DuckDBPyConnection,
    inputs: ReferenceInputs,
    *,
    build_id: str = "",
    scenario_id: str = "",
    plan_version: int = 0,
) -> dict[str, str]:
    """Record ``inputs`` as used by a build or a plan version, inside the caller's transaction.

    Rows already in the lake are not written again, nor is the list of a set of rows seen before. Offers become the
    scenario's prices. Returns the set id per table.
    """
    sets: dict[str, str] = {}
    for name, table_name in _TABLE_OF.items():
        rows = [_row(table_name, value) for value in getattr(inputs, name)]
        if rows:
            sets[table_name] = _record(connection, table_name, rows)
    used_at = utc_now()
    insert(
        connection,
        "input_uses",
        [
            {
                "build_id": build_id,
                "scenario_id": scenario_id,
                "plan_version": plan_version,
                "table_name": table_name,
                "set_id": set_id,
                "used_at": used_at,
            }
            for table_name, set_id in sets.items()
        ],
    )
    if scenario_id and inputs.offers:
        store_prices(connection, scenario_id, inputs.offers)
    return sets


def _record(connection: duckdb.DuckDBPyConnection, table_name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Append the rows that are new and the membership of the set when it is new; returns the set's id."""
    by_id = {str(row["content_id"]): row for row in rows}
    set_id = short_hash([table_name, *sorted(by_id)])
    if connection.execute("SELECT 1 FROM main.input_sets WHERE set_id = ? LIMIT 1", [set_id]).fetchone():
        return set_id
    known = connection.execute(
        f"SELECT content_id FROM main.{table_name} WHERE content_id IN (SELECT unnest(?))",  # noqa: S608 - own names
        [list(by_id)],
    ).fetchall()
    for (content_id,) in known:
        del by_id[content_id]
    insert(connection, table_name, by_id.values())
    members = {str(row["content_id"]) for row in rows}
    insert(
        connection,
        "input_sets",
        [{"set_id": set_id, "table_name": table_name, "content_id": member} for member in sorted(members)],
    )
    return set_id


def _row(table_name: str, value: Any) -> dict[str, Any]:
    """A catalog dataclass as a row of ``table_name``: the columns it has by name, its content hash, the time."""
    given = _values(value)
    columns = [c.name for c in TABLES[table_name].columns if c.name not in {"content_id", "recorded_at"}]
    missing = [name for name in columns if name not in given]
    if missing:
        raise ValueError(f"{type(value).__name__} has no {missing} for {table_name}")
    row = {name: plain(given[name]) for name in columns}
    return {"content_id": short_hash({k: _json(v) for k, v in row.items()}), "recorded_at": utc_now(), **row}


def _values(value: Any) -> dict[str, Any]:
    """All fields of a dataclass; a workload's model, lengths and derived names are flattened."""
    assert is_dataclass(value)
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Workload):
        lengths = {f.name: getattr(value.lengths, f.name) for f in fields(value.lengths)}
        names = {"alias": value.alias, "tokens_per_request": value.tokens_per_request}
        given = {**lengths, **given, **names, "model": value.model.model}
    return given


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | datetime) else value


def plan_inputs(connection: duckdb.DuckDBPyConnection, scenario_id: str, plan_version: int, name: str) -> pa.Table:
    """The reference rows a plan version was computed from. ``name`` is a field of :class:`ReferenceInputs`."""
    table_name = _TABLE_OF[name]
    return connection.execute(
        f"""
        SELECT r.* EXCLUDE (content_id)
        FROM main.input_uses u
        JOIN main.input_sets s USING (set_id)
        JOIN main.{table_name} r ON r.content_id = s.content_id
        WHERE u.scenario_id = ? AND u.plan_version = ? AND u.table_name = ?
        ORDER BY ALL""",  # noqa: S608 - own names
        [scenario_id, plan_version, table_name],
    ).to_arrow_table()
