"""How a lake grows under a run every few minutes, and what `coral gc` leaves of it.

    python benchmarks/lake_growth.py                       # 240 runs (a day at 6 minutes), stated for 30 days
    python benchmarks/lake_growth.py --runs 720 --changes-a-day 12

Every run observes a fleet, logs itself, and publishes nothing unless its decision changed, as it does a few times a day, with the
reference inputs and the frame of the decision. Sizes are of all files of the lake. ``gc`` is called as if --keep-days were over.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tasks.allocation.plan import Plan
from warehouse.connect import Lake
from warehouse.gc import collect_garbage
from warehouse.plans import publish_plan
from warehouse.records import AllocationRun
from warehouse.results import FRAMES, plan_result_id, write_result
from warehouse.rows import insert

MONTH_RUNS = 30 * 240


def plan_of(number: int, instances: int = 12) -> Plan:
    """A plan of ``instances`` kinds of instances, three nodes each; ``number`` makes its decision another one."""
    node = {
        "node_config": "L40Sx4",
        "instance_type": "g6e.12xlarge",
        "tp": 4,
        "pp": 1,
        "replicas": 1,
        "batch": 8,
        "share": 1.0,
    }
    stages = [{"layers": [10 * s, 10 * s + 9], "position": "mid", "nodes": [node]} for s in range(3)]
    common: dict[str, Any] = {"region": "aws/us-east-2", "market": "on_demand"}
    rate = {"throughput_tok_per_s": 1234.5, "cost_usd_per_h": 5.0, "launch_class": "B1", "cycle_ms": 20.0}
    made = {"provenance": "fitted", "rel_error": 0.1, "stages": stages, "new_instances": 1}
    rows = [
        {
            **common, **rate, **made, "template_id": f"{i:016x}", "combination_id": "L40Sx4*3", "workload": f"m{i}/decode",
            "workload_id": f"{i:016x}", "instances": 1 + (number if i == 0 else 0),
        }
        for i in range(instances)
    ]  # fmt: skip
    offer = {
        **common,
        "offer_id": "o1",
        "node_config": "L40Sx4",
        "instance_type": "g6e.12xlarge",
        "nodes": 3 * instances,
    }
    offer |= {"price_usd_per_h": 5.0, "availability_nodes": 64, "availability_basis": "feed"}
    head = {"scenario_id": "growth", "plan_version": 0, "status": "gap", "state": "draft", "cost_usd_per_h": 60.0}
    head |= {
        "init_usd": 0.5,
        "lower_bound_usd_per_h": 59.9,
        "gap": 0.001,
        "theta": 1.0,
        "theta_upper": 1.0,
        "solve_s": 0.2,
    }
    head |= {"created_at": datetime.now(UTC).isoformat(), "reason": "demand moved"}
    baselines = {
        "homo_optimal_usd_per_h": 70.0,
        "homo_optimal_lower_bound_usd_per_h": 70.0,
        "homo_greedy_usd_per_h": 90.0,
    }
    inputs = {"hash": "inputs", "price_as_of": "2026-11-30", "library_id": "lib"}
    lists: dict[str, list[Any]] = {"workloads": [], "shortfalls": [], "warnings": []}
    return Plan.model_validate(
        {**head, **lists, "inputs": inputs, "baselines": baselines, "instances": rows, "offers": [offer]}
    )


def size(root: Path) -> int:
    """Bytes of all files under ``root``."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def grow(lake: Lake, runs: int, every: int, fleet_rows: int) -> None:
    """``runs`` runs, every ``every``-th with another decision."""
    start = datetime.now(UTC)
    frame = {"supply": [["aws/us-east-2", f"L40Sx{i}", 5.0, 64, "feed"] for i in range(200)]}
    for number in range(runs):
        at = start + timedelta(seconds=number)
        seen = {"scenario_id": "growth", "observed_at": at, "region": "aws/us-east-2", "node_config": "L40Sx4"}
        seen |= {"market": "on_demand", "nodes": 3, "failed_nodes": 0, "ingest_id": ""}
        with lake.write("observe") as connection:
            insert(connection, "fleet", [seen | {"template_id": f"{i:016x}"} for i in range(fleet_rows)])
        run = AllocationRun(f"{number:032x}", "growth", at, "0" * 16, None, {"prices": 60.0, "demand": 60.0})
        done = publish_plan(lake, plan_of(number // every), run)
        if number % every == 0:
            write_result(lake.root, plan_result_id(FRAMES, "growth", done.plan_version), frame, FRAMES)


def main() -> None:
    """Grow, collect, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=240)
    parser.add_argument("--changes-a-day", type=int, default=12)
    parser.add_argument("--fleet-rows", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Lake.open(folder) as lake:
        empty = size(Path(folder))
        started = time.process_time()
        grow(lake, options.runs, 240 // options.changes_a_day, options.fleet_rows)
        spent_s = time.process_time() - started
        grown = size(Path(folder))
        a_run = (grown - empty) / options.runs
        print(
            f"{options.runs} runs, {options.changes_a_day} changes a day: {empty / 2**20:.1f} -> {grown / 2**20:.1f} MiB, "
            f"{a_run / 2**10:.1f} KiB and {1000 * spent_s / options.runs:.0f} ms of processor a run; "
            f"30 days at 6 minutes: {a_run * MONTH_RUNS / 2**20:,.0f} MiB"
        )
        garbage = collect_garbage(lake, 0, datetime.now(UTC) + timedelta(days=1))
        left = size(Path(folder))
        kept = (left - empty) / options.runs
        rows = ", ".join(f"{count} of {name}" for name, count in garbage.rows.items())
        print(
            f"after gc {left / 2**20:.1f} MiB, {kept / 2**10:.1f} KiB a run; {len(garbage.files)} files and rows gone: {rows}"
        )


if __name__ == "__main__":
    main()
