"""`coral migrate`: what it renews, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dashboard_cases import library_lake
from warehouse_cases import QWEN, new_lake, plan, profile, register, run, templates

from catalogs.errors import LakeError
from tasks.allocation.plan import PlanTransfer
from warehouse.catalog_store import CATALOG_FILE, VERSION_FILE
from warehouse.connect import Lake
from warehouse.land import shard_folder, write_shard
from warehouse.migrate import migrate_lake
from warehouse.plans import publish_plan
from warehouse.read import list_plans
from warehouse.records import ShardKind
from warehouse.schema import LAKE_SCHEMA_VERSION
from warehouse.sql import query


def test_views_are_renewed_and_data_stays(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        register(lake, "lib", [write_shard(tmp_path, templates("s1", QWEN, {"L40Sx4*1": 5_000}), "s1")])
        with lake.write("an older coral's view") as connection:
            connection.execute("CREATE OR REPLACE VIEW main.templates AS SELECT 1 AS a")
            connection.execute("DROP TABLE main.rejects")
    assert migrate_lake(tmp_path) == LAKE_SCHEMA_VERSION
    rows = query(tmp_path, "SELECT library_id, combination_id FROM templates").to_pylist()
    assert rows == [{"library_id": "lib", "combination_id": "L40Sx4*1"}]
    assert query(tmp_path, "SELECT * FROM rejects").num_rows == 0
    twice = query(tmp_path, "SELECT table_name, column_name FROM data_dictionary GROUP BY ALL HAVING count(*) > 1")
    assert twice.num_rows == 0


def test_version_1_had_profiles_without_launchable_layouts(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        path = shard_folder(tmp_path, ShardKind.PROFILES) / "p1.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = profile(QWEN)
        pq.write_table(table.add_column(0, "profile_id", pa.array(["p1"] * len(table))), path, store_schema=False)
        lake.connection.execute("DROP VIEW main.profiles; DROP VIEW main.launch_profiles")
        lake.connection.execute("ALTER TABLE shards.profile_rows DROP COLUMN launch_tp")
        lake.connection.execute(f"CALL ducklake_add_data_files('lake', 'profile_rows', '{path}', schema => 'shards')")
        lake.connection.execute(
            "INSERT INTO main.profile_sets BY NAME SELECT 'set' AS profile_set_id, 'p1' AS profile_id, "
            f"'{QWEN}' AS workload_id, 'p1.parquet' AS path, '' AS sha256, 2 AS rows"
        )
    (tmp_path / VERSION_FILE).write_text('{"schema_version": 1}')
    assert migrate_lake(tmp_path) == 1
    assert migrate_lake(tmp_path) == LAKE_SCHEMA_VERSION, "once more does no harm"
    rows = query(tmp_path, "SELECT layers, tp FROM profiles ORDER BY layers").to_pylist()
    assert rows == [{"layers": 1, "tp": 4}, {"layers": 2, "tp": None}]
    with Lake.open(tmp_path) as lake:
        register(lake, "lib", [write_shard(tmp_path, templates("s1", QWEN, {"L40Sx4*1": 5_000}), "s1")])


def test_version_3_had_plan_states_without_a_reason(tmp_path: Path) -> None:
    with new_lake(tmp_path) as lake:
        publish_plan(lake, plan(), run("r1"))
        lake.connection.execute("DROP VIEW main.plans")
        lake.connection.execute("ALTER TABLE main.plan_states DROP COLUMN note")
    (tmp_path / VERSION_FILE).write_text('{"schema_version": 3}')
    assert migrate_lake(tmp_path) == 3
    with Lake.open(tmp_path) as lake:
        assert list_plans(lake, "core")[0].is_current
        publish_plan(lake, plan(instances=3), run("r2"), guards=("cost rises",))
    rows = query(tmp_path, "SELECT plan_version, state, state_note FROM plans ORDER BY 1").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, "published", ""), (2, "proposed", "cost rises")]


def test_version_6_had_prices_in_views(tmp_path: Path) -> None:
    library_lake(tmp_path).close()
    asked = (
        "SELECT region, combination_id, usd_per_million_tok FROM best_templates WHERE scenario_id = 'core' ORDER BY 1"
    )
    before = query(tmp_path, asked).to_pylist()
    with Lake.open(tmp_path) as lake:
        for name in ("region_prices", "best_templates"):
            lake.connection.execute(f"DROP TABLE main.{name}")
            lake.connection.execute(f"CREATE VIEW main.{name} AS SELECT 1 AS a")
    (tmp_path / VERSION_FILE).write_text('{"schema_version": 6}')
    assert migrate_lake(tmp_path) == 6
    assert query(tmp_path, asked).to_pylist() == before
    assert [row["combination_id"] for row in before] == ["L40Sx4*1+L4x4*1", "H100-SXMx1*1"]
    assert migrate_lake(tmp_path) == LAKE_SCHEMA_VERSION, "once more does no harm"


@pytest.mark.parametrize("version", [5, 7])
def test_versions_to_7_had_no_kv_between_regions(tmp_path: Path, version: int) -> None:
    with new_lake(tmp_path) as lake:
        publish_plan(lake, plan(), run("r1"))
        lake.connection.execute("DROP VIEW main.plans")
        lake.connection.execute(
            "ALTER TABLE main.plan_rows DROP COLUMN egress_usd_per_h; DROP TABLE main.plan_kv_transfers"
        )
    (tmp_path / VERSION_FILE).write_text(f'{{"schema_version": {version}}}')
    assert migrate_lake(tmp_path) == version
    row = {
        "model": "m",
        "from_region": "a/b",
        "to_region": "a/c",
        "req_per_s": 2.0,
        "gbit_per_s": 1.6,
        "usd_per_gb": 0.005,
    }
    moves = {"egress_usd_per_h": 3.6, "kv_transfers": (PlanTransfer(**row, usd_per_h=3.6),)}
    with Lake.open(tmp_path) as lake:
        publish_plan(lake, plan(instances=3).model_copy(update=moves), run("r2"))
    rows = query(tmp_path, "SELECT plan_version, egress_usd_per_h FROM plans ORDER BY 1").to_pylist()
    assert [tuple(r.values()) for r in rows] == [(1, 0.0), (2, 3.6)]
    (kept,) = query(tmp_path, "SELECT * FROM plan_kv_transfers").to_pylist()
    assert kept == {"scenario_id": "core", "plan_version": 2, **row, "usd_per_h": 3.6}


@pytest.mark.parametrize(
    ("version", "way_out"),
    [(LAKE_SCHEMA_VERSION + 1, "the version of coral that made it"), (0, "a new folder")],
)
def test_a_version_no_migration_leads_from_is_refused(tmp_path: Path, version: int, way_out: str) -> None:
    new_lake(tmp_path).close()
    (tmp_path / VERSION_FILE).write_text(json.dumps({"schema_version": version}))
    before = (tmp_path / CATALOG_FILE).read_bytes()
    with pytest.raises(LakeError, match=way_out) as caught:
        migrate_lake(tmp_path)
    assert caught.value.exit_code == 6
    assert (tmp_path / CATALOG_FILE).read_bytes() == before
    assert json.loads((tmp_path / VERSION_FILE).read_text()) == {"schema_version": version}


def test_no_lake_is_told_and_none_made(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no lake"):
        migrate_lake(tmp_path / "none")
    assert not Lake.exists(tmp_path / "none")
