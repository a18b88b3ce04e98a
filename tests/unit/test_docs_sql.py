"""The statements in docs/sql.md, run as they stand on a small lake whose answers are known by hand."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from warehouse_cases import (
    build_record,
    land_frontier,
    land_profile,
    library_record,
    new_lake,
    plan,
    run,
    template_id,
    templates,
)

from catalogs.scenario import load_scenario
from catalogs.types import Market, Offer
from warehouse.land import write_shard
from warehouse.plans import publish_plan
from warehouse.publish import register_library
from warehouse.records import ReferenceInputs
from warehouse.sql import query

GUIDE = Path(__file__).parents[2] / "docs/sql.md"
STATEMENTS = {
    heading: sql
    for heading, sql in re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```sql\n(.*?)```", GUIDE.read_text(), re.S | re.M)
}
MTOK_PER_S = {
    "L40Sx4*1": 5_000,
    "L4x4*1": 2_000,
    "L40Sx4*1+L4x4*1": 8_000,
    "H100-SXMx1*1": 6_000,
    "L40Sx4*2": 10_500,
}
PRICES = {"a": {"L40Sx4": 10.0, "L4x4": 4.0, "H100-SXMx1": 12.0}, "b": {"H100-SXMx1": 6.0}}
WORKLOAD = load_scenario("core").workloads[0]
NAME = (WORKLOAD.model.model, WORKLOAD.phase.value)


def offer(region: str, config: str, usd_per_h: float) -> Offer:
    day = date(2026, 7, 30)
    return Offer(
        f"{region}/{config}", "aws", region, config, "m", Market.ON_DEMAND, usd_per_h, None, False, day, "list"
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two libraries, of which the second is not the current one of `core`, and one plan."""
    root = tmp_path_factory.mktemp("lake")
    name = WORKLOAD.workload_id
    offers = [offer(region, config, usd) for region, sold in PRICES.items() for config, usd in sold.items()]
    with new_lake(root) as lake:
        for library, rates in (("other", {"L40Sx4*1": 9_000_000}), ("lib1", MTOK_PER_S)):
            shard = write_shard(root, templates(f"s_{library}", name, rates), f"s_{library}")
            frontier = land_frontier(root, f"f_{library}", name, [template_id(f"s_{library}", text) for text in rates])
            profiles = [land_profile(root, name)]
            register_library(
                lake,
                library_record(library, profiles, "elsewhere" if library == "other" else "core"),
                [shard],
                profiles,
                [frontier],
                build_record(library, library),
                ReferenceInputs(offers=offers, workloads=[WORKLOAD], models=[WORKLOAD.model]),
            )
        publish_plan(lake, plan(), run("r1"))
    return root


def answer(root: Path, heading: str) -> list[tuple[object, ...]]:
    (sql,) = (sql for title, sql in STATEMENTS.items() if title.startswith(heading))
    return [tuple(row.values()) for row in query(root, sql).to_pylist()]


def test_every_statement_is_tested() -> None:
    assert GUIDE.read_text().count("```sql") == len(STATEMENTS) == 5


def test_most_tokens_per_usd(root: Path) -> None:
    rows = answer(root, "Most tokens per USD")
    # Region a: 8 tok/s for 14 USD/h, against 0.5 to 0.525 tok/s per USD/h of the others. Region b sells H100 alone.
    assert [row[:4] for row in rows] == [(*NAME, "a", "L40Sx4*1+L4x4*1"), (*NAME, "b", "H100-SXMx1*1")]
    assert [row[5] for row in rows] == pytest.approx([14 / 0.0288, 6 / 0.0216])


def test_without_h100(root: Path) -> None:
    rows = answer(root, "All templates without H100")
    assert [row[1:] for row in rows] == [
        ("L40Sx4*2", 10.5),
        ("L40Sx4*1+L4x4*1", 8.0),
        ("L40Sx4*1", 5.0),
        ("L4x4*1", 2.0),
    ]


def test_one_spare_node_away(root: Path) -> None:
    """With one L40Sx4 and one L4x4: what takes just these is possible already."""
    rows = answer(root, "Templates one spare node away")
    assert [row[1:] for row in rows] == [("L40Sx4*2", 10.5, "L40Sx4"), ("H100-SXMx1*1", 6.0, "H100-SXMx1")]


def test_rates_of_homogeneous_against_mixed(root: Path) -> None:
    rows = answer(root, "Rates of homogeneous")
    assert [row[2] for row in rows] == list(range(101))
    assert {row[4] for row in rows} == {8.0}
    # Homogeneous: 2, 5, 6 and 10.5 tok/s.
    assert [rows[percentile][3] for percentile in (0, 50, 100)] == [2.0, 5.5, 10.5]


def test_what_the_plan_runs(root: Path) -> None:
    rows = answer(root, "What the newest plan runs")
    assert [(row[0], row[2], row[3]) for row in rows] == [("aws/us-east-2", "L40Sx4*1", 2)]
    assert [row[4:] for row in rows] == [(2469.0, 10.0)]
