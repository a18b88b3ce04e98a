"""Libraries: files shared, rows never doubled, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from warehouse_cases import (
    PHI,
    QWEN,
    build_record,
    land_frontier,
    land_profile,
    library_record,
    new_lake,
    profile,
    register,
    template_id,
    templates,
)

from catalogs.errors import LakeError, UnknownNameError
from catalogs.types import Market, Offer
from warehouse.connect import Lake
from warehouse.land import with_launch_rows, write_shard
from warehouse.publish import library_hash, log_build, make_current, profile_set_id, register_library
from warehouse.read import (
    current_library,
    current_library_id,
    frontier_node_configs,
    frontier_templates,
    library_content_hash,
    library_templates,
    profiles,
    templates_by_id,
)
from warehouse.records import BuildStatus, LandedShard, ReferenceInputs, ShardKind
from warehouse.tables import FRONTIER_FILE_SCHEMA

OLD = {"L40Sx4*1": 5_000, "H100-SXMx1*1+L40Sx4*2": 7_500}
NEW = {"H200-SXMx1*1": 9_001}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with new_lake(tmp_path) as opened:
        yield opened


def shard(lake: Lake, shard_id: str, rates: dict[str, int], workload_id: str = QWEN) -> LandedShard:
    return write_shard(lake.root, templates(shard_id, workload_id, rates), shard_id, workload_id=workload_id)


def rows(lake: Lake, sql: str) -> list[tuple]:
    return lake.connection.execute(sql).fetchall()


def test_a_library_can_be_read_whole(lake: Lake) -> None:
    content = register(lake, "lib1", [shard(lake, "s1", OLD), shard(lake, "s2", {"L40Sx4*2": 3_000}, PHI)])
    assert rows(lake, "SELECT combination_id, throughput_tok_per_s, workload_id FROM templates ORDER BY ALL") == [
        ("H100-SXMx1*1+L40Sx4*2", 7.5, QWEN),
        ("L40Sx4*1", 5.0, QWEN),
        ("L40Sx4*2", 3.0, PHI),
    ]
    mixed = template_id("s1", "H100-SXMx1*1+L40Sx4*2")
    assert rows(lake, f"SELECT node_config, nodes FROM template_nodes WHERE template_id = '{mixed}' ORDER BY ALL") == [
        ("H100-SXMx1", 1),
        ("L40Sx4", 2),
    ]
    # Three nodes, a stage each, ten layers each.
    assert rows(
        lake,
        f"SELECT stage, node_slot, node_config, layer_start, layer_end FROM template_stages "
        f"WHERE template_id = '{mixed}' ORDER BY ALL",
    ) == [(0, 0, "H100-SXMx1", 0, 9), (1, 1, "L40Sx4", 10, 19), (2, 2, "L40Sx4", 20, 29)]
    assert library_content_hash(lake, "lib1") == content
    assert library_content_hash(lake, "lib2") is None
    record = current_library(lake, "core")
    assert record is not None
    assert (record.library_id, record.n_max, record.rho, record.node_configs) == (
        "lib1",
        6,
        12.0,
        ("H100-SXMx1", "L40Sx4"),
    )
    assert record.demand_bar == {QWEN: 5000.0}
    assert current_library(lake, "lib1") == replace(record, library_key="")
    assert current_library(lake, "other") is None
    assert rows(lake, "SELECT status, n_templates, sample_max_rel_diff FROM builds") == [("complete", 3, 0.0)]


def test_a_shared_shard_is_stored_once_and_keeps_its_ids(lake: Lake) -> None:
    old = shard(lake, "s1", OLD)
    register(lake, "lib1", [old])
    ids = rows(lake, "SELECT template_id FROM templates ORDER BY 1")
    register(lake, "lib2", [old, shard(lake, "s3", NEW)])
    assert rows(lake, "SELECT library_id, count(*) FROM templates GROUP BY 1 ORDER BY 1") == [("lib1", 2), ("lib2", 3)]
    assert rows(lake, "SELECT count(*) FROM shards.solved_templates") == [(3,)]
    assert rows(lake, "SELECT template_id FROM templates WHERE library_id = 'lib1' ORDER BY 1") == ids
    assert set(ids) < set(rows(lake, "SELECT template_id FROM templates WHERE library_id = 'lib2'"))
    assert rows(lake, "SELECT count(*) FROM template_nodes") == [(1 + 2 + 1,)]
    assert rows(lake, "SELECT library_id, is_current, library_keys FROM libraries ORDER BY 1") == [
        ("lib1", False, []),
        ("lib2", True, ["core"]),
    ]
    assert library_templates(lake, "lib1", QWEN).column("throughput_mtok_per_s").to_pylist() == [7_500, 5_000]


def test_registering_again_changes_nothing_but_logs_the_build(lake: Lake) -> None:
    shards = [shard(lake, "s1", OLD)]
    first = register(lake, "lib1", shards)
    assert register(lake, "lib1", shards) == first
    assert register(lake, "lib1", shards[::-1], build_id="b2") == first
    counts = "SELECT (SELECT count(*) FROM {}), (SELECT count(*) FROM {}), (SELECT count(*) FROM {})"
    assert rows(lake, counts.format("templates", "profiles", "current_libraries")) == [(2, 2, 1)]
    assert rows(lake, "SELECT build_id FROM builds ORDER BY 1") == [("b2",), ("lib1",)]


def test_current_is_per_key_and_can_go_back(lake: Lake) -> None:
    register(lake, "lib1", [shard(lake, "s1", OLD)], key="core")
    register(lake, "lib2", [shard(lake, "s3", NEW)], key="extended")
    assert (current_library_id(lake, "core"), current_library_id(lake, "extended")) == ("lib1", "lib2")
    make_current(lake, "core", "lib2")
    assert rows(lake, "SELECT library_id, library_keys FROM libraries ORDER BY 1") == [
        ("lib1", []),
        ("lib2", ["core", "extended"]),
    ]
    make_current(lake, "core", "lib1")
    assert current_library_id(lake, "core") == "lib1"
    with pytest.raises(LakeError, match="not in the lake"):
        make_current(lake, "core", "lib9")


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_a_bad_file_registers_nothing(lake: Lake, fault: str) -> None:
    register(lake, "lib1", [shard(lake, "s1", OLD)])
    before = lake.snapshot()
    good, bad = shard(lake, "s2", NEW), shard(lake, "s3", NEW)
    if fault == "missing":
        (lake.root / bad.path).unlink()
    else:
        (lake.root / bad.path).write_bytes(b"PAR1")
    with pytest.raises(LakeError, match=f"{bad.path} is {fault}"):
        register(lake, "lib2", [good, bad])
    assert lake.snapshot() == before
    assert current_library_id(lake, "core") == "lib1"


def test_other_content_under_a_known_id_is_refused(lake: Lake) -> None:
    register(lake, "lib1", [shard(lake, "s1", OLD)])
    with pytest.raises(LakeError, match="already registered with other content"):
        register(lake, "lib1", [shard(lake, "s1", OLD), shard(lake, "s2", NEW)])
    changed = shard(lake, "s1", {"L40Sx4*1": 5_001})
    with pytest.raises(LakeError, match="of other content"):
        register(lake, "lib2", [changed])
    assert rows(lake, "SELECT library_id, count(*) FROM templates GROUP BY 1") == [("lib1", 2)]


def test_wrong_kinds_and_doubles_are_bugs(lake: Lake) -> None:
    profile_file = land_profile(lake.root, QWEN)
    one = shard(lake, "s1", OLD)
    with pytest.raises(ValueError, match="holds profile_rows"):
        register(lake, "lib1", [profile_file])
    with pytest.raises(ValueError, match="given twice"):
        register(lake, "lib1", [one, one])


def test_an_empty_shard_is_a_shard(lake: Lake) -> None:
    register(lake, "lib1", [shard(lake, "s1", {})])
    assert rows(lake, "SELECT rows FROM shards") == [(0,)]
    assert library_templates(lake, "lib1", QWEN).num_rows == 0


def test_profile_sets_share_unchanged_profiles(lake: Lake) -> None:
    qwen, phi, faster = land_profile(lake.root, QWEN), land_profile(lake.root, PHI), land_profile(lake.root, PHI, 200.0)
    one = shard(lake, "s1", OLD)
    for library_id, files in (("lib1", [qwen, phi]), ("lib2", [faster, qwen])):
        register_library(
            lake, library_record(library_id, files), [one], files, [], build_record(library_id, library_id)
        )
    first, second = profile_set_id([phi.shard_id, qwen.shard_id]), profile_set_id([qwen.shard_id, faster.shard_id])
    assert first != second
    sql = (
        "SELECT workload_id, throughput_tok_per_s FROM profiles WHERE profile_set_id = '{}' AND layers = 1 ORDER BY ALL"
    )
    assert rows(lake, sql.format(first)) == [(QWEN, 100.0), (PHI, 100.0)]
    assert rows(lake, sql.format(second)) == [(QWEN, 100.0), (PHI, 200.0)]
    assert rows(lake, "SELECT count(*) FROM shards.profile_rows") == [(6,)]
    table = profiles(lake, first, PHI)
    assert sorted(table.column("reason").to_pylist(), key=str) == [None, "memory"]
    assert table.column("throughput_tok_per_s").null_count == 1  # infeasible is NULL, not zero


def test_launchable_layouts_have_a_view_of_their_own(lake: Lake) -> None:
    best = profile(QWEN)
    launch = best.slice(0, 1).set_column(
        best.schema.get_field_index("tp"), best.schema.field("tp"), pa.array([2], pa.int8())
    )
    file = write_shard(lake.root, with_launch_rows(best, launch), "p1", kind=ShardKind.PROFILES)
    register_library(lake, library_record("lib1", [file]), [], [file], [], build_record("b1", "lib1"))
    assert rows(lake, "SELECT layers, tp FROM profiles ORDER BY layers") == [(1, 4), (2, None)]
    assert rows(lake, "SELECT layers, tp FROM launch_profiles") == [(1, 2)]
    assert profiles(lake, profile_set_id(["p1"]), QWEN).num_rows == 2


def test_frontier_of_a_library(lake: Lake) -> None:
    one = shard(lake, "s1", OLD)
    files = [land_profile(lake.root, QWEN)]
    best = template_id("s1", "H100-SXMx1*1+L40Sx4*2")
    frontier = [land_frontier(lake.root, "f1", QWEN, [best])]
    for library_id in ("lib1", "lib2"):  # the second shares the frontier's file
        register_library(
            lake, library_record(library_id, files), [one], files, frontier, build_record(library_id, library_id)
        )
    table = frontier_templates(lake, "lib1", QWEN, "all")
    assert table.column("template_id").to_pylist() == [best]
    assert rows(lake, "SELECT library_id, filter_id, template_id FROM template_frontier ORDER BY ALL") == [
        ("lib1", "all", best),
        ("lib2", "all", best),
    ]
    with pytest.raises(LakeError, match=r"no frontier 'launchable' .* \(it has: all\)"):
        frontier_templates(lake, "lib1", QWEN, "launchable")


def price(region: str, node_config: str, usd_per_h: float) -> Offer:
    name = f"{region} {node_config} {usd_per_h}"
    day = date(2026, 7, 30)
    return Offer(name, "aws", region, node_config, "m", Market.ON_DEMAND, usd_per_h, None, False, day, "list")


def test_prices_of_frontier_templates(lake: Lake) -> None:
    """Region a sells both nodes, region b only one of them (at two prices, of which the lower counts)."""
    one = shard(lake, "s1", OLD)
    files = [land_profile(lake.root, QWEN)]
    single, mixed = template_id("s1", "L40Sx4*1"), template_id("s1", "H100-SXMx1*1+L40Sx4*2")
    frontier = [land_frontier(lake.root, "f1", QWEN, [single, mixed])]
    offers = [
        price("a", "L40Sx4", 10.0),
        price("a", "H100-SXMx1", 3.0),
        price("b", "L40Sx4", 9.0),
        price("b", "L40Sx4", 8.0),
    ]
    register_library(
        lake,
        library_record("lib1", files),
        [one],
        files,
        frontier,
        build_record("b1", "lib1"),
        ReferenceInputs(offers=offers),
    )
    prices = rows(
        lake, "SELECT region, template_id, price_usd_per_h FROM frontier_prices ORDER BY region, price_usd_per_h"
    )
    assert prices == [("a", single, 10.0), ("a", mixed, 23.0), ("b", single, 8.0)]
    best = rows(
        lake,
        "SELECT library_id, filter_id, region, template_id, usd_per_million_tok FROM best_templates ORDER BY region",
    )
    # 5 tok/s = 0.018 million tokens per hour; 7.5 tok/s for 23 USD/h would be 0.85 USD more per 1,000 tokens.
    assert [row[:4] for row in best] == [("lib1", "all", "a", single), ("lib1", "all", "b", single)]
    assert [row[4] for row in best] == pytest.approx([10 / 0.018, 8 / 0.018])
    table = frontier_templates(lake, "lib1", QWEN, "all")
    assert frontier_node_configs(lake, "lib1", QWEN, "all") == ["H100-SXMx1", "L40Sx4"]
    assert table.select(["template_id", "counts"]).to_pylist() == [
        {"template_id": mixed, "counts": [1.0, 2.0]},
        {"template_id": single, "counts": [0.0, 1.0]},
    ]


def test_a_frontier_of_unknown_templates_is_refused(lake: Lake) -> None:
    one, files = shard(lake, "s1", OLD), [land_profile(lake.root, QWEN)]
    frontier = [land_frontier(lake.root, "f1", QWEN, [template_id("s1", "L40Sx4*1"), "nope"])]
    with pytest.raises(ValueError, match="1 unknown templates, such as nope"):
        register_library(lake, library_record("lib1", files), [one], files, frontier, build_record("b1", "lib1"))
    assert rows(lake, "SELECT count(*) FROM templates") == [(0,)]


def test_an_empty_frontier_is_known_and_empty(lake: Lake) -> None:
    one, files = shard(lake, "s1", {}), [land_profile(lake.root, QWEN)]
    empty = pa.Table.from_pylist([], schema=FRONTIER_FILE_SCHEMA)
    frontier = [write_shard(lake.root, empty, "f1", kind=ShardKind.FRONTIER, workload_id=QWEN, filter_id="all")]
    register_library(lake, library_record("lib1", files), [one], files, frontier, build_record("b1", "lib1"))
    assert frontier_templates(lake, "lib1", QWEN, "all").num_rows == 0
    assert frontier_node_configs(lake, "lib1", QWEN, "all") == []
    assert rows(lake, "SELECT count(*) FROM rate_quantiles") == [(0,)]


def test_distribution_of_rates(lake: Lake) -> None:
    rates = {f"L40Sx4*{n}": 1_000 * n for n in range(1, 6)} | {"H100-SXMx1*1+L40Sx4*1": 7_000}
    register(lake, "lib1", [shard(lake, "s1", rates)])
    sql = "SELECT is_mixed, percentile, throughput_tok_per_s, templates FROM rate_quantiles WHERE percentile IN (0, 25, 90, 100)"
    # 1..5 tok/s: the 25th percentile is 2, the 90th is 4.6 (linear between 4 and 5).
    assert rows(lake, f"{sql} ORDER BY ALL") == [
        (False, 0, 1.0, 5),
        (False, 25, 2.0, 5),
        (False, 90, pytest.approx(4.6), 5),
        (False, 100, 5.0, 5),
        *[(True, p, 7.0, 1) for p in (0, 25, 90, 100)],
    ]
    register(lake, "lib1", [shard(lake, "s1", rates)], build_id="again")
    assert rows(lake, "SELECT count(*) FROM rate_quantiles") == [(202,)]


def test_templates_by_id_come_whole_and_in_order(lake: Lake) -> None:
    register(lake, "lib1", [shard(lake, "s1", OLD), shard(lake, "s2", NEW, PHI)])
    wanted = [template_id("s2", "H200-SXMx1*1"), template_id("s1", "L40Sx4*1")]
    table = templates_by_id(lake, [*wanted, wanted[0]])
    assert table.column("template_id").to_pylist() == wanted
    expected = [templates("s2", PHI, NEW).to_pylist()[0], templates("s1", QWEN, OLD).to_pylist()[0]]
    assert table.to_pylist() == expected
    with pytest.raises(UnknownNameError, match="unknown template 'nope'"):
        templates_by_id(lake, [wanted[0], "nope"])
    assert templates_by_id(lake, []).num_rows == 0


def test_library_hash_is_of_content_not_of_order(lake: Lake) -> None:
    a, b = shard(lake, "s1", OLD), shard(lake, "s2", NEW)
    assert library_hash([a, b]) == library_hash([b, a])
    other = replace(b, sha256="0" * 64)
    assert len({library_hash([a]), library_hash([a, b]), library_hash([a, other])}) == 3


def test_a_failed_build_is_logged_alone(lake: Lake) -> None:
    log_build(lake, replace(build_record("b1", "lib1"), status=BuildStatus.FAILED, sample_max_rel_diff=None))
    assert rows(lake, "SELECT status, sample_max_rel_diff FROM builds") == [("failed", None)]
    assert current_library_id(lake, "core") is None
