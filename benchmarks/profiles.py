"""Times the profiles table of a scenario: ``python benchmarks/profiles.py [SCENARIO] [--mode paper]``.

Prints per workload the rows, the feasible share and the seconds on one core, then the totals.
"""

from __future__ import annotations

import argparse
import time

import pyarrow.compute as pc

from catalogs import load_scenario
from tasks.profiling.cycles import Mode
from tasks.profiling.profile import profile_workload


def main() -> None:
    """Profile every workload of the scenario on all its node configurations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="?", default="paper-extended")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default=Mode.CYCLE.value)
    arguments = parser.parse_args()
    loaded = load_scenario(arguments.scenario)
    configs = list(loaded.node_configs.values())
    print(
        f"{arguments.scenario}: {len(loaded.workloads)} workloads x {len(configs)} configurations, mode {arguments.mode}"
    )
    rows, start = 0, time.perf_counter()
    for workload in loaded.workloads:
        begin = time.perf_counter()
        catalog = loaded.catalog
        table = profile_workload(workload, configs, catalog.gpus, catalog.efficiencies, mode=arguments.mode)
        feasible = pc.sum(pc.is_valid(table["throughput_tok_per_s"])).as_py()
        seconds = time.perf_counter() - begin
        print(
            f"{workload.alias:28} {table.num_rows:>8} rows  {feasible / table.num_rows:6.1%} feasible  {seconds:6.2f} s"
        )
        rows += table.num_rows
    print(f"{'total':28} {rows:>8} rows  {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
