"""Reading the lake: typed values and Arrow tables, never half a library, never half a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from catalogs.errors import LakeError, UnknownNameError
from tasks.allocation.plan import Plan
from warehouse.catalog_faults import lake_errors
from warehouse.connect import Lake, all_threads
from warehouse.records import LibraryRecord, PlanSummary

_SLIM = "template_id, combination_id, n_nodes, throughput_mtok_per_s, cycle_ms, launch_class, provenance, rel_error"

_PLAN = "d.document, p.state FROM main.plan_documents d JOIN main.plans p USING (scenario_id, plan_version)"


_NO_VERSION = 2**63  # nor is any larger number; none fits a column


def _rows(lake: Lake, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    with lake_errors(lake.root):
        return lake.connection.execute(sql, list(parameters)).fetchall()


def _arrow(lake: Lake, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
    with lake_errors(lake.root):
        return lake.connection.execute(sql, list(parameters)).to_arrow_table()


def current_library_id(lake: Lake, library_key: str) -> str | None:
    """Id of the current library of a key (a scenario id), or None when none was built."""
    rows = _rows(
        lake,
        "SELECT library_id FROM main.current_libraries WHERE library_key = ? ORDER BY sequence DESC LIMIT 1",
        [library_key],
    )
    return rows[0][0] if rows else None


def current_library(lake: Lake, key_or_id: str) -> LibraryRecord | None:
    """The current library of a key, else the library with that id, else None."""
    library_id = current_library_id(lake, key_or_id) or key_or_id
    rows = _rows(
        lake,
        """SELECT library_id, profile_set_id, n_max, rho, mode, solver_version, node_configs, demand_bar
        FROM main.library_rows WHERE library_id = ?""",
        [library_id],
    )
    if not rows:
        return None
    library_id, profile_set, n_max, rho, mode, solver_version, configs, demand_bar = rows[0]
    key = key_or_id if key_or_id != library_id else ""
    return LibraryRecord(
        library_id, key, profile_set, n_max, rho, mode, solver_version, tuple(configs), dict(demand_bar or {})
    )


def library_content_hash(lake: Lake, library_id: str) -> str | None:
    """The hash a library was registered with, or None when it is not in the lake."""
    rows = _rows(lake, "SELECT library_hash FROM main.library_rows WHERE library_id = ?", [library_id])
    return rows[0][0] if rows else None


def library_templates(lake: Lake, library_id: str, workload_id: str) -> pa.Table:
    """All templates of a workload, slim (no stages), fastest first; the unpruned set."""
    with all_threads(lake.connection):
        return _arrow(
            lake,
            f"""SELECT {_SLIM} FROM main.templates WHERE library_id = ? AND workload_id = ?
            ORDER BY throughput_mtok_per_s DESC, template_id""",  # noqa: S608 - a constant
            [library_id, workload_id],
        )


def frontier_templates(lake: Lake, library_id: str, workload_id: str, filter_id: str) -> pa.Table:
    """Templates on the frontier of a workload under a filter, slim (no stages), fastest first.

    ``counts`` holds the nodes per configuration, in the order :func:`frontier_node_configs` gives. Raises LakeError
    when no such frontier was registered: an empty table means that one was, and nothing survives.
    """
    with all_threads(lake.connection):
        return _arrow(
            lake,
            f"""SELECT {_SLIM}, counts FROM main.frontier_slim WHERE frontier_id = ?
            ORDER BY throughput_mtok_per_s DESC, template_id""",  # noqa: S608 - a constant
            [_frontier_id(lake, library_id, workload_id, filter_id)],
        )


def frontier_node_configs(lake: Lake, library_id: str, workload_id: str, filter_id: str) -> list[str]:
    """Node configurations in the order of ``counts`` of :func:`frontier_templates`."""
    rows = _rows(
        lake,
        "SELECT node_config FROM main.frontier_configs WHERE frontier_id = ? ORDER BY position",
        [_frontier_id(lake, library_id, workload_id, filter_id)],
    )
    return [name for (name,) in rows]


def _frontier_id(lake: Lake, library_id: str, workload_id: str, filter_id: str) -> str:
    known = dict(
        _rows(
            lake,
            "SELECT filter_id, frontier_id FROM main.frontiers WHERE library_id = ? AND workload_id = ?",
            [library_id, workload_id],
        )
    )
    if filter_id not in known:
        raise LakeError(
            f"library {library_id} has no frontier {filter_id!r} of workload {workload_id} "
            f"(it has: {', '.join(sorted(known)) or 'none'})",
            remedy="build the library with this filter",
        )
    return str(known[filter_id])


def known_templates(lake: Lake, template_ids: Sequence[str]) -> pa.Table:
    """Whole templates, nodes and stages nested as in TEMPLATE_SCHEMA, one per id that the lake has, in the order of the
    ids."""
    wanted = list(dict.fromkeys(template_ids))
    # list_contains is pushed into the scan, which then skips the nested columns of other rows; a join or IN is not.
    return _arrow(
        lake,
        """FROM shards.solved_templates WHERE list_contains(?::VARCHAR[], template_id)
        ORDER BY list_position(?::VARCHAR[], template_id)""",
        [wanted, wanted],
    )


def templates_by_id(lake: Lake, template_ids: Sequence[str]) -> pa.Table:
    """As :func:`known_templates`. Raises UnknownNameError for an id the lake does not have."""
    wanted = list(dict.fromkeys(template_ids))
    table = known_templates(lake, wanted)
    if table.num_rows != len(wanted):
        found = set(table.column("template_id").to_pylist())
        missing = next(name for name in wanted if name not in found)
        raise UnknownNameError("template", missing, found)
    return table


def templates_in(lake: Lake, library_id: str, template_ids: Sequence[str]) -> set[str]:
    """Those of the ids that a library has."""
    sql = "SELECT template_id FROM main.templates WHERE library_id = ? AND list_contains(?::VARCHAR[], template_id)"
    return {name for (name,) in _rows(lake, sql, [library_id, list(template_ids)])} if template_ids else set()


def profiles(lake: Lake, profile_set_id: str, workload_id: str) -> pa.Table:
    """The profile rows of a workload, as PROFILE_SCHEMA."""
    return _arrow(
        lake,
        "SELECT * EXCLUDE (profile_set_id) FROM main.profiles WHERE profile_set_id = ? AND workload_id = ?",
        [profile_set_id, workload_id],
    )


def plan_from_row(document: str, state: str) -> Plan:
    """A stored plan with the state it is in now."""
    return Plan.model_validate(json.loads(document) | {"state": state})


def current_plan(lake: Lake, scenario_id: str) -> Plan | None:
    """The scenario's current plan (:mod:`warehouse.plan_states`), or None before the first."""
    version = current_version(lake, scenario_id)
    return None if version is None else plan_version(lake, scenario_id, version)


def current_version(lake: Lake, scenario_id: str) -> int | None:
    """Number of the scenario's current plan, or None before the first."""
    rows = _rows(lake, "SELECT plan_version FROM main.plans WHERE scenario_id = ? AND is_current", [scenario_id])
    return int(rows[0][0]) if rows else None


def newest_version(lake: Lake, scenario_id: str) -> int:
    """The highest version that was ever given out, current or not; 0 before the first."""
    sql = "SELECT coalesce(max(plan_version), 0) FROM main.plan_rows WHERE scenario_id = ?"
    return int(_rows(lake, sql, [scenario_id])[0][0])


def plan_version(lake: Lake, scenario_id: str, version: int) -> Plan:
    """A plan version, current or not. Raises UnknownNameError, naming the versions there are."""
    sql = f"SELECT {_PLAN} WHERE p.scenario_id = ? AND p.plan_version = ?"
    rows = _rows(lake, sql, [scenario_id, version]) if 0 < version < _NO_VERSION else []
    if not rows:
        known = [str(p.plan_version) for p in list_plans(lake, scenario_id)]
        raise UnknownNameError("plan version", str(version), known, where=f"scenario {scenario_id}")
    return plan_from_row(*rows[0])


def list_plans(lake: Lake, scenario_id: str | None = None) -> list[PlanSummary]:
    """Plan versions of a scenario (of all scenarios for None), newest first per scenario."""
    rows = _rows(
        lake,
        """SELECT scenario_id, plan_version, state, is_current, status, cost_usd_per_h, lower_bound_usd_per_h, gap, theta,
            library_id, price_as_of, created_at, reason
        FROM main.plans WHERE ? IS NULL OR scenario_id = ? ORDER BY scenario_id, plan_version DESC""",
        [scenario_id, scenario_id],
    )
    return [PlanSummary(*row) for row in rows]


def profile_memory(lake: Lake, library_id: str, workload_ids: Sequence[str], cycles_ms: Sequence[float]) -> pa.Table:
    """GPU memory used by the cells of a library's profiles at these cycles: workload_id, node_config, layers, position,
    stages, cycle_ms, tp, memory_used_gib. Empty where the library is gone; cells of measured rates may lack the figure."""
    return _arrow(
        lake,
        """SELECT p.workload_id, p.node_config, p.layers, p.position, p.stages, p.cycle_ms, p.tp, p.memory_used_gib
        FROM (FROM main.profiles UNION ALL BY NAME FROM main.launch_profiles) p
        JOIN main.library_rows l ON l.profile_set_id = p.profile_set_id
        WHERE l.library_id = ? AND list_contains(?::VARCHAR[], p.workload_id) AND list_contains(?::DOUBLE[], p.cycle_ms)
            AND p.memory_used_gib IS NOT NULL""",
        [library_id, list(workload_ids), list(cycles_ms)],
    )
