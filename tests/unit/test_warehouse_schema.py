"""The lake's tables and views as described, as created, and as agreed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.schema import TEMPLATE_SCHEMA
from warehouse.connect import Lake
from warehouse.tables import TABLES
from warehouse.views import VIEWS

# The agreed columns, by hand: names that other programs may rely on.
AGREED = {
    "node_configs": "node_config gpu gpu_count memory_gib link network_gbit_per_s",
    "offers": "offer_id provider region node_config instance_type market price_usd_per_h interrupt_per_h is_derived as_of source",
    "availability": "region node_config market observed_at nodes basis",
    "quotas": "provider region family unit limit",
    "models": "model",
    "workloads": "workload_id model phase slo_ms",
    "demand": "scenario_id model window_start demand_req_per_s basis",
    "profiles": "profile_set_id node_config workload_id layers position stages cycle_ms throughput_tok_per_s reason tp pp "
    "replicas batch memory_used_gib provenance rel_error",
    "launch_profiles": "profile_set_id node_config workload_id layers position stages cycle_ms throughput_tok_per_s tp pp "
    "replicas batch memory_used_gib provenance rel_error",
    "libraries": "library_id profile_set_id n_max rho mode built_at is_current",
    "builds": "build_id library_id started_at status n_combinations n_templates solve_s "
    "sample_n sample_max_rel_diff code_version",
    "shards": "shard_id library_id workload_id path sha256 rows",
    "templates": "template_id library_id workload_id combination_id n_nodes throughput_mtok_per_s throughput_tok_per_s cycle_ms "
    "launch_class rel_error",
    "template_nodes": "template_id node_config nodes",
    "template_stages": "template_id stage node_slot node_config layer_start layer_end position share tp pp replicas batch",
    "template_frontier": "library_id filter_id template_id",
    "plans": "scenario_id plan_version library_id inputs_hash state status cost_usd_per_h init_usd lower_bound_usd_per_h gap "
    "theta solve_s price_as_of created_at reason",
    "plan_instances": "scenario_id plan_version region template_id market workload_id instances new_instances cost_usd_per_h",
    "plan_offers": "scenario_id plan_version offer_id nodes price_usd_per_h",
    "plan_shortfalls": "scenario_id plan_version workload_id missing_tok_per_s binding cheapest_extra",
    "allocation_runs": "run_id scenario_id plan_version outcome cost_now_usd_per_h input_ages_s",
    "fleet": "scenario_id observed_at region node_config market template_id nodes",
    "rejects": "ingest_id file row column value reason remedy",
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake.open(tmp_path_factory.mktemp("schema") / "lake") as opened:
        yield opened


@pytest.mark.parametrize("name", AGREED)
def test_agreed_columns_exist(lake: Lake, name: str) -> None:
    described = lake.connection.execute(f"DESCRIBE main.{name}").fetchall()
    assert set(AGREED[name].split()) - {row[0] for row in described} == set()


def test_stored_tables_are_as_described(lake: Lake) -> None:
    for table in TABLES.values():
        found = lake.connection.execute(f"DESCRIBE {table.qualified_name}").fetchall()
        # DuckDB spells the type its own way (TIMESTAMP WITH TIME ZONE), so let it read ours.
        said = [
            (
                c.name,
                lake.connection.execute(f"SELECT typeof(NULL::{c.type})").fetchone()[0],
                "YES" if c.nullable else "NO",
            )
            for c in table.columns
        ]
        assert [(row[0], row[1], row[2]) for row in found] == said, table.name


def test_dictionary_has_every_column_of_every_table_and_view(lake: Lake) -> None:
    listed = lake.connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'lake'"
    ).fetchall()
    described = lake.connection.execute(
        "SELECT table_name, column_name FROM data_dictionary WHERE column_name <> ''"
    ).fetchall()
    assert sorted(listed) == sorted(described)
    assert len(listed) > 300  # all of them, not none
    blank = lake.connection.execute("SELECT * FROM data_dictionary WHERE trim(description) = ''").fetchall()
    assert blank == []


def test_units_are_in_the_dictionary_where_they_are_in_the_name(lake: Lake) -> None:
    ends = {
        "_usd_per_h": "USD/h",
        "_tok_per_s": "tok/s",
        "_gib": "GiB",
        "_ms": "ms",
        "_usd": "USD",
        "_req_per_s": "req/s",
    }
    rows = lake.connection.execute("SELECT table_name, column_name, unit FROM data_dictionary").fetchall()
    checked = 0
    for table, column, unit in rows:
        for end, want in ends.items():
            if column.endswith(end) and not column.endswith("mtok_per_s"):
                assert unit == want, (table, column)
                checked += 1
    assert checked > 20


def test_landed_files_have_the_solvers_columns() -> None:
    assert [c.name for c in TABLES["solved_templates"].columns] == TEMPLATE_SCHEMA.names
    assert [c.name for c in TABLES["profile_rows"].columns] == ["profile_id", *PROFILE_SCHEMA.names, "launch_tp"]


def test_names_are_unique() -> None:
    names = [*TABLES, *(view.name for view in VIEWS)]
    assert len(names) == len(set(names))
