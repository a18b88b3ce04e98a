"""Read-only SQL: what it answers, and every way out, closed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warehouse_cases import QWEN, new_lake, plan, register, run, templates

from catalogs.errors import CoralError, LakeError, UnknownNameError
from warehouse.land import write_shard
from warehouse.plans import publish_plan
from warehouse.sql import SqlError, SqlLimits, SqlSession, query, truncated_at


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql")
    root = folder / "lake"
    with new_lake(root) as lake:
        rates = {"L40Sx4*1": 5_000, "H100-SXMx1*1": 6_000, "H100-SXMx1*1+L40Sx4*2": 7_500}
        register(lake, "lib1", [write_shard(root, templates("s1", QWEN, rates), "s1")])
        publish_plan(lake, plan(), run("r1"))
    (folder / "outside.csv").write_text("a,b\n1,2\n")
    (folder / "outside.json").write_text('{"a": 1}')
    with sqlite3.connect(folder / "outside.db") as other:
        other.execute("CREATE TABLE secret (a)")
    other.close()
    return root


@pytest.fixture(scope="module")
def session(root: Path) -> Iterator[SqlSession]:
    with SqlSession(root) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) AS n FROM templates", [{"n": 3}]),
        ("select 1 as a;", [{"a": 1}]),
        ("-- a note\nWITH t AS (SELECT 2 AS a) SELECT a FROM t", [{"a": 2}]),
        ("FROM range(2) t(i)", [{"i": 0}, {"i": 1}]),
        ("VALUES (1)", [{"col0": 1}]),
        ("SELECT sum(nodes)::INT AS n FROM template_nodes WHERE node_config = 'L40Sx4'", [{"n": 3}]),
        ("SELECT count(*) AS n FROM template_stages", [{"n": 5}]),
        ("SELECT template_id IS NULL AS x FROM templates WHERE combination_id NOT LIKE '%L40S%'", [{"x": False}]),
        ("SELECT unit FROM data_dictionary WHERE table_name = 'plans' AND column_name = 'init_usd'", [{"unit": "USD"}]),
        ("SELECT plan_version FROM plans AT (VERSION => 1)", []),
        (
            "PIVOT plans ON state IN ('published') USING count(*) GROUP BY scenario_id",
            [{"scenario_id": "core", "published": 1}],
        ),
        ("SELECT unnest([1, 2]) AS a, getvariable('x') AS b", [{"a": 1, "b": None}, {"a": 2, "b": None}]),
    ],
)
def test_it_answers(session: SqlSession, sql: str, rows: list[dict]) -> None:
    assert session.query(sql).to_pylist() == rows


@pytest.mark.parametrize("sql", ["SHOW TABLES", "DESCRIBE templates", "SUMMARIZE plans", "SHOW ALL TABLES"])
def test_it_describes(session: SqlSession, sql: str) -> None:
    assert session.query(sql).num_rows > 5


WAYS_OUT = [
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{root}/out.csv'",
    "COPY (SELECT 1) TO '{root}/shards/out.parquet'",
    "COPY plan_rows FROM '{folder}/outside.csv'",
    "EXPORT DATABASE '{folder}/out'",
    "IMPORT DATABASE '{folder}/out'",
    "ATTACH '{folder}/out.duckdb'",
    "ATTACH '{folder}/outside.db' AS other (TYPE sqlite)",
    "DETACH lake",
    "USE memory",
    "SELECT * FROM read_csv('{folder}/outside.csv')",
    "SELECT * FROM read_csv_auto('{folder}/outside.csv')",
    "SELECT * FROM read_text('{folder}/outside.csv')",
    "SELECT * FROM read_blob('{root}/catalog.sqlite')",
    "SELECT * FROM read_json('{folder}/outside.json')",
    "SELECT * FROM read_parquet('{root}/shards/solved_templates/*.parquet')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM sniff_csv('{folder}/outside.csv')",
    "SELECT * FROM '{folder}/outside.csv'",
    "SELECT * FROM '{folder}/outside.json'",
    "DESCRIBE SELECT * FROM '{folder}/outside.csv'",
    "SUMMARIZE '{folder}/outside.csv'",
    "SELECT (SELECT max(a) FROM (FROM read_csv('{folder}/outside.csv')))",
    "SELECT 1 WHERE 1 IN (SELECT a FROM read_csv('{folder}/outside.csv'))",
    "WITH t AS MATERIALIZED (FROM read_csv('{folder}/outside.csv')) FROM t",
    "SELECT * FROM plans UNION ALL BY NAME SELECT * FROM read_csv('{folder}/outside.csv')",
    "SELECT * FROM sqlite_scan('{folder}/outside.db', 'secret')",
    "SELECT * FROM SQLITE_SCAN('{folder}/outside.db', 'secret')",
    "SELECT * FROM \"sqlite_scan\"('{folder}/outside.db', 'secret')",
    "SELECT * FROM main.sqlite_scan('{folder}/outside.db', 'secret')",
    "SELECT * FROM sqlite_query('{folder}/outside.db', 'SELECT 1')",
    "SELECT * FROM sqlite_attach('{folder}/outside.db')",
    "SELECT * FROM query('SELECT * FROM sqlite_scan(''{folder}/outside.db'', ''secret'')')",
    "SELECT * FROM query_table('{folder}/outside.csv')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM read_csv(''x'')'))",
    "SELECT * FROM histogram('{folder}/outside.csv', 'a')",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{folder}/evil.duckdb_extension'",
    "SELECT * FROM read_text('http://127.0.0.1:9/x')",
    "SELECT * FROM 'http://127.0.0.1:9/x.csv'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET enable_external_access",
    "SET VARIABLE x = 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{folder}/out.csv'",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_settings()",
    "SELECT write_log('x')",
    "SELECT sleep_ms(100000)",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "CREATE SECRET (TYPE s3)",
    "INSERT INTO rejects SELECT 'i', 'f', 1, 'c', 'v', 'r', 'r', now()",
    "UPDATE plan_rows SET cost_usd_per_h = 0",
    "DELETE FROM plan_rows",
    "MERGE INTO plan_rows USING plan_rows AS s ON true WHEN MATCHED THEN DELETE",
    "DROP TABLE plan_rows",
    "ALTER TABLE plan_rows ADD COLUMN x INT",
    "TRUNCATE plan_rows",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "EXPLAIN ANALYZE SELECT 1",
    "CALL ducklake_expire_snapshots('lake', older_than => now())",
    "SELECT * FROM ducklake_expire_snapshots('lake', older_than => now())",
    "SELECT * FROM __ducklake_metadata_lake.main.ducklake_snapshot",
    "SELECT * FROM __DUCKLAKE_Metadata_lake.MAIN.ducklake_snapshot",
    "FROM (SUMMARIZE __DUCKLAKE_METADATA_LAKE.main.ducklake_snapshot)",
    "SELECT * FROM ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "SELECT * FROM ducklake_delete_orphaned_files('lake', cleanup_all => true)",
    "SELECT * FROM ducklake_add_data_files('lake', 'plan_rows', '{folder}/outside.csv')",
    "SELECT * FROM ducklake_set_commit_message('lake', 'x', 'y')",
    "PIVOT plans ON state IN (SELECT a FROM sqlite_scan('{folder}/outside.db', 'secret')) USING count(*)",
    "SELECT 1 LIMIT (SELECT a FROM sqlite_scan('{folder}/outside.db', 'secret'))",
    "FROM session",  # a Python variable of the caller
    "PIVOT plans ON state USING count(*)",  # makes a type: two statements
    "",
    ";",
]


@pytest.mark.parametrize("sql", WAYS_OUT)
def test_every_way_out_is_closed(session: SqlSession, root: Path, sql: str) -> None:
    def files() -> dict[str, bytes]:
        return {
            str(p): p.read_bytes() for p in root.parent.rglob("*") if p.is_file() and p.suffix not in {".sqlite-shm"}
        }

    before = files()
    with pytest.raises(CoralError) as caught:
        session.query(sql.format(folder=root.parent, root=root))
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    assert files() == before
    assert session.query("SELECT count(*) AS n FROM plans").to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    ("sql", "kind", "name", "match"),
    [
        ("SELECT * FROM templats", "table", "templats", "templates"),
        ("SELECT * FROM main.plan_instance", "table", "plan_instance", "plan_instances"),
        ("SELECT libary_id FROM templates", "column", "libary_id", "library_id"),
        ("SELECT t.launch_clas FROM templates t", "column", "launch_clas", "launch_class"),
        ("SELECT medain(gap) FROM plans", "function", "medain", "median"),
    ],
)
def test_mistyped_names_get_close_matches(session: SqlSession, sql: str, kind: str, name: str, match: str) -> None:
    with pytest.raises(UnknownNameError, match="did you mean") as caught:
        session.query(sql)
    assert (caught.value.kind, caught.value.name) == (kind, name)
    assert match in caught.value.remedy


def test_a_wrong_statement_is_one_line(session: SqlSession) -> None:
    with pytest.raises(SqlError, match="syntax error") as caught:
        session.query("SELECT\n  1 FORM plans x y")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-20],
        lambda data: data[:-300] + bytes(200) + data[-100:],
        lambda data: data[:4] + bytes(1000) + data[1004:],
    ],
    ids=["empty", "start", "half", "no end", "zeros in the footer", "zeros in the data"],
)
def test_a_damaged_file_is_no_fault_of_the_statement(
    root: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    copy = shutil.copytree(root, tmp_path / "lake")
    [shard] = (copy / "shards" / "solved_templates").glob("*.parquet")
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(LakeError, match="missing or damaged") as caught:
        query(copy, "SELECT * FROM templates")
    assert "coral build" in str(caught.value)


def test_a_damaged_table_of_the_catalog_is_not_said_to_be_built_again(root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "lake")
    [own] = (copy / "main" / "data_dictionary").glob("*.parquet")
    own.unlink()
    with pytest.raises(LakeError, match="missing or damaged") as caught:
        query(copy, "SELECT * FROM data_dictionary")
    assert "restore the folder from a backup" in str(caught.value)


def test_limits(root: Path) -> None:
    with SqlSession(root, SqlLimits(max_rows=2, timeout_s=0.3, memory_mib=64)) as small:
        cut = small.query("SELECT combination_id FROM templates ORDER BY 1")
        assert cut.num_rows == truncated_at(cut) == 2
        whole = small.query("SELECT 1 UNION ALL SELECT 2")
        assert (whole.num_rows, truncated_at(whole)) == (2, None)
        assert small.query("SELECT 1 WHERE false").num_rows == 0
        with pytest.raises(SqlError, match=r"longer than 0\.3 s"):
            small.query("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
        assert small.query("SELECT 1 AS a").to_pylist() == [{"a": 1}]  # still usable
    with SqlSession(root, SqlLimits(memory_mib=64)) as tight, pytest.raises(SqlError, match="more than 64 MiB"):
        tight.query("SELECT list(range) FROM range(40000000)")
    with SqlSession(root, SqlLimits(max_rows=None, memory_mib=64)) as tight:  # rows that leave DuckDB count as well
        with pytest.raises(SqlError, match="result has more than 64 MiB"):
            tight.query("SELECT range FROM range(1000000000000)")
        assert tight.query("SELECT 1 AS a").to_pylist() == [{"a": 1}]
    assert query(root, "SELECT range FROM range(100001)", SqlLimits(max_rows=None)).num_rows == 100_001
    assert truncated_at(query(root, "SELECT range FROM range(100001)")) == 100_000


def test_an_earlier_snapshot(root: Path) -> None:
    snapshots = query(root, "SELECT snapshot_id, commit_message FROM lake.snapshots() ORDER BY 1").to_pylist()
    before_plan = snapshots[-2]["snapshot_id"]
    assert snapshots[-2]["commit_message"] == "register library lib1"
    sql = "SELECT (SELECT count(*) FROM plans) AS plans, (SELECT count(*) FROM templates) AS templates"
    assert query(root, sql, snapshot=before_plan).to_pylist() == [{"plans": 0, "templates": 3}]
    assert query(root, sql).to_pylist() == [{"plans": 1, "templates": 3}]
    for snapshot in (0, 10_000):
        with pytest.raises(LakeError, match=f"no snapshot {snapshot}"):
            query(root, "SELECT 1", snapshot=snapshot)


def test_no_lake(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no lake"):
        query(tmp_path / "none", "SELECT 1")
    assert not (tmp_path / "none").exists()
