"""The statements in docs/sql.md, run as they stand on a small lake whose answers are known by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dashboard_cases import WORKLOAD, library_lake
from warehouse_cases import plan, run

from warehouse.plans import publish_plan
from warehouse.recipes import RECIPES, Recipe, about
from warehouse.sql import query

GUIDE = Path(__file__).parents[2] / "docs/sql.md"
STATEMENTS = {
    heading: sql
    for heading, sql in re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```sql\n(.*?)```", GUIDE.read_text(), re.S | re.M)
}
NAME = (WORKLOAD.model.model, WORKLOAD.phase.value)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two libraries, of which the second is another scenario's, with other prices; and two plans."""
    root = tmp_path_factory.mktemp("lake")
    with library_lake(root) as lake:
        publish_plan(lake, plan(), run("r1"))
        publish_plan(lake, plan(instances=3, cost_usd_per_h=24.0), run("r2"))
    return root


def answer(root: Path, heading: str) -> list[tuple[object, ...]]:
    (sql,) = (sql for title, sql in STATEMENTS.items() if title.startswith(heading))
    return [tuple(row.values()) for row in query(root, sql).to_pylist()]


def test_every_statement_is_tested() -> None:
    assert GUIDE.read_text().count("```sql") == len(STATEMENTS) == 6


def test_the_page_has_the_statements_that_the_dashboard_offers() -> None:
    assert {title: sql.rstrip() for title, sql in STATEMENTS.items()} == {row.title: row.sql for row in RECIPES}


def test_a_statement_for_another_scenario() -> None:
    assert about(Recipe("t", "WHERE a = 'core' OR b = 'core'"), "o'clock") == "WHERE a = 'o''clock' OR b = 'o''clock'"


def test_most_tokens_per_usd(root: Path) -> None:
    rows = answer(root, "Most tokens per USD")
    # Region a: 8 tok/s for 14 USD/h, against 0.5 to 0.525 tok/s per USD/h of the others. Region b sells H100 alone.
    assert [row[:4] for row in rows] == [(*NAME, "a", "L40Sx4*1+L4x4*1"), (*NAME, "b", "H100-SXMx1*1")]
    assert [row[5] for row in rows] == pytest.approx([14 / 0.0288, 6 / 0.0216])


def test_without_h100(root: Path) -> None:
    rows = answer(root, "All templates without H100")
    assert sorted(row[1:] for row in rows) == [
        ("L40Sx4*1", 5.0),
        ("L40Sx4*1+L4x4*1", 8.0),
        ("L40Sx4*2", 10.5),
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
    rows = answer(root, "What the current plan runs")
    assert [(row[0], row[2], row[3]) for row in rows] == [("aws/us-east-2", "L40Sx4*1", 3)]
    assert [row[4:] for row in rows] == [(3 * 1234.5, 24.0)]


def test_how_versions_changed(root: Path) -> None:
    rows = answer(root, "How cost, gap and machines changed")
    assert [(row[0], row[2], row[3], row[5], row[6]) for row in rows] == [
        (1, "superseded", 10.0, None, 2),
        (2, "published", 24.0, 14.0, 3),
    ]
