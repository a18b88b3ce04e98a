"""How long questions to a library of about a million templates take, on an open connection.

    python benchmarks/sql.py [--templates-per-workload 90000] [--lake DIR]

Prints milliseconds (best of the repeats, and the first) of wall clock and of processor time over all threads: on a busy
machine the latter divided by the cores is what an idle one would take. Target: 100 ms.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from synthetic_lake import SCENARIO, WORKLOADS, make

from warehouse.connect import Lake
from warehouse.read import frontier_templates, templates_by_id
from warehouse.recipes import RECIPES, about
from warehouse.sql import SqlSession, query

REPEATS = 7
ONE = f"library_id = 'big' AND workload_id = '{WORKLOADS[0]}'"
QUESTIONS = {
    "templates per workload": "SELECT workload_id, count(*), max(throughput_tok_per_s) FROM templates "
    "WHERE library_id = 'big' GROUP BY 1",
    "fastest ten of a workload": f"SELECT combination_id, throughput_tok_per_s FROM templates WHERE {ONE} "
    "ORDER BY throughput_tok_per_s DESC LIMIT 10",
    "ten cheapest of a workload in a region": f"SELECT * FROM frontier_prices WHERE {ONE} AND region = 'aws/us-east-2' "
    "ORDER BY usd_per_million_tok LIMIT 10",
    "templates without H100, per workload": "SELECT workload_id, count(*), max(throughput_tok_per_s) FROM templates "
    "WHERE library_id = 'big' AND NOT contains(combination_id, 'H100') GROUP BY 1",
    "stages of one template": f"SELECT * FROM template_stages WHERE template_id = (SELECT min(template_id) FROM templates "
    f"WHERE {ONE})",
    "templates per node configuration": "SELECT node_config, count(*) FROM template_nodes GROUP BY 1",
}


def measured(name: str, ask: object) -> None:
    """Call ``ask`` several times and print its times."""
    wall, cpu = [], []
    rows = 0
    for _ in range(REPEATS):
        started, used = time.perf_counter(), time.process_time()
        rows = ask().num_rows  # type: ignore[operator]
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    print(f"{name:42s} {min(wall) * 1e3:8.1f} {wall[0] * 1e3:8.1f} {min(cpu) * 1e3:8.1f} {rows:8d}")


def main() -> None:
    """Make the lake where there is none, then ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates-per-workload", type=int, default=90_000)
    parser.add_argument("--lake", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = options.lake or Path(folder) / "lake"
        if not Lake.exists(root):
            made = make(root, options.templates_per_workload)
            print(", ".join(f"{name} {value:,.1f}" for name, value in made.items()))
        print(f"{'question':42s} {'wall':>8s} {'first':>8s} {'cpu':>8s} {'rows':>8s}")
        with SqlSession(root) as session:
            documented = {recipe.title[:42]: about(recipe, SCENARIO.scenario.id) for recipe in RECIPES}
            for name, sql in (documented | QUESTIONS).items():
                measured(name, lambda sql=sql: session.query(sql))
        with Lake.open(root, read_only=True) as lake:
            frontier = frontier_templates(lake, "big", WORKLOADS[0], "all")
            ids = frontier.column("template_id").to_pylist()[:20]
            measured("read: frontier of a workload", lambda: frontier_templates(lake, "big", WORKLOADS[0], "all"))
            measured("read: twenty templates whole", lambda: templates_by_id(lake, ids))
        measured("a query with a connection of its own", lambda: query(root, "SELECT count(*) FROM templates"))


if __name__ == "__main__":
    main()
