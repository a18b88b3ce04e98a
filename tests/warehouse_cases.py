"""Small hand-made libraries and plans for tests of the lake."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pyarrow as pa

from catalogs.ids import parse_combination_id, short_hash
from tasks.allocation.plan import Plan
from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.schema import TEMPLATE_SCHEMA
from warehouse.connect import Lake
from warehouse.land import content_hash, write_shard
from warehouse.publish import profile_set_id, register_library
from warehouse.records import AllocationRun, BuildRecord, BuildStatus, LandedShard, LibraryRecord, ShardKind
from warehouse.tables import FRONTIER_FILE_SCHEMA

QWEN = "1111111111111111"
PHI = "2222222222222222"
START = datetime(2026, 7, 30, 12, 0, tzinfo=UTC)


@cache
def _pattern() -> Path:
    """An empty lake, made once: copying it is quicker than making another, and a lake can be moved."""
    folder = tempfile.mkdtemp(prefix="coral-lake-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Lake.open(folder).close()
    return Path(folder)


def new_lake(root: Path) -> Lake:
    """A fresh lake in ``root``, open for writing."""
    shutil.copytree(_pattern(), root, dirs_exist_ok=True)
    return Lake.open(root, create=False)


def template_id(shard_id: str, combination: str) -> str:
    return short_hash([shard_id, combination])


def templates(shard_id: str, workload_id: str, rates_mtok_per_s: Mapping[str, int]) -> pa.Table:
    """One stage per node, ten layers each, for combinations such as ``H100-SXMx1*1+L40Sx4*2``."""
    rows = []
    for combination, rate in rates_mtok_per_s.items():
        counts = parse_combination_id(combination)
        nodes = [config for config, count in counts.items() for _ in range(count)]
        stages = [
            {
                "stage": slot,
                "layer_start": 10 * slot,
                "layer_end": 10 * slot + 9,
                "position": "only" if len(nodes) == 1 else "mid",
                "members": [
                    {
                        "node_slot": slot,
                        "node_config": config,
                        "share": 1.0,
                        "throughput_mtok_per_s": rate,
                        "tp": 1,
                        "pp": 1,
                        "replicas": 1,
                        "batch": 16,
                    }
                ],
            }
            for slot, config in enumerate(nodes)
        ]
        rows.append(
            {
                "shard_id": shard_id,
                "template_id": template_id(shard_id, combination),
                "workload_id": workload_id,
                "combination_id": combination,
                "n_nodes": len(nodes),
                "n_stages": len(nodes),
                "throughput_mtok_per_s": rate,
                "cycle_ms": 20.0,
                "launch_class": "A" if len(nodes) == 1 else "B2",
                "provenance": "fitted",
                "rel_error": 0.1,
                "nodes": [{"node_config": config, "nodes": count} for config, count in counts.items()],
                "stages": stages,
            }
        )
    return pa.Table.from_pylist(rows, schema=TEMPLATE_SCHEMA)


def profile(workload_id: str, rate_tok_per_s: float = 100.0) -> pa.Table:
    """Two rows: feasible with one layer, out of memory with two."""
    common = {"node_config": "L40Sx4", "workload_id": workload_id, "position": "only", "stages": 1, "cycle_ms": 20.0}
    common |= {"provenance": "fitted", "rel_error": 0.1}
    feasible = {"layers": 1, "throughput_tok_per_s": rate_tok_per_s, "tp": 4, "pp": 1, "replicas": 1, "batch": 8}
    rows = [common | feasible | {"memory_used_gib": 12.5}, common | {"layers": 2, "reason": "memory"}]
    return pa.Table.from_pylist(rows, schema=PROFILE_SCHEMA)


def land_profile(root: Path, workload_id: str, rate_tok_per_s: float = 100.0) -> LandedShard:
    table = profile(workload_id, rate_tok_per_s)
    return write_shard(root, table, content_hash(table), kind=ShardKind.PROFILES)


def land_frontier(root: Path, frontier_id: str, workload_id: str, template_ids: list[str]) -> LandedShard:
    rows = [
        {"frontier_id": frontier_id, "filter_id": "all", "workload_id": workload_id, "template_id": template}
        for template in template_ids
    ]
    table = pa.Table.from_pylist(rows, schema=FRONTIER_FILE_SCHEMA)
    return write_shard(root, table, frontier_id, kind=ShardKind.FRONTIER)


def build_record(build_id: str, library_id: str) -> BuildRecord:
    return BuildRecord(build_id, library_id, START, BuildStatus.COMPLETE, 4, 3, 2, 0, 1.5, 2, 0.0, "test")


def library_record(library_id: str, profiles: list[LandedShard], key: str = "core") -> LibraryRecord:
    ids = profile_set_id(p.shard_id for p in profiles)
    return LibraryRecord(library_id, key, ids, 6, 12.0, "cycle", "exact-1", ("H100-SXMx1", "L40Sx4"), {QWEN: 5000.0})


def register(lake: Lake, library_id: str, shards: list[LandedShard], build_id: str = "", key: str = "core") -> str:
    """A library with these shards, one profile table and a frontier of nothing but its first template per shard."""
    profiles = [land_profile(lake.root, QWEN)]
    return register_library(
        lake,
        library_record(library_id, profiles, key),
        shards,
        profiles,
        [],
        build_record(build_id or library_id, library_id),
    )


def run(run_id: str, scenario_id: str = "core", base: int | None = None) -> AllocationRun:
    return AllocationRun(run_id, scenario_id, START, "inputs-" + run_id, base, {"prices": 60.0})


def plan(scenario_id: str = "core", instances: int = 2, cost_usd_per_h: float = 10.0) -> Plan:
    """``instances`` of one template in one region."""
    node = {
        "node_config": "L40Sx4",
        "instance_type": "g6e.12xlarge",
        "tp": 4,
        "pp": 1,
        "replicas": 1,
        "batch": 8,
        "share": 1.0,
    }
    instance = {
        "region": "aws/us-east-2",
        "template_id": "aaaaaaaaaaaaaaaa",
        "combination_id": "L40Sx4*1",
        "workload": "qwen3-32b/decode",
        "workload_id": QWEN,
        "instances": instances,
        "new_instances": instances,
        "market": "on_demand",
        "throughput_tok_per_s": 1234.5,
        "cost_usd_per_h": cost_usd_per_h / instances,
        "launch_class": "A",
        "cycle_ms": 20.0,
        "provenance": "fitted",
        "rel_error": 0.1,
        "stages": [{"layers": [0, 63], "position": "only", "nodes": [node]}],
    }
    offer = {
        "offer_id": "o1",
        "region": "aws/us-east-2",
        "node_config": "L40Sx4",
        "instance_type": "g6e.12xlarge",
        "market": "on_demand",
        "nodes": instances,
        "price_usd_per_h": cost_usd_per_h / instances,
        "availability_nodes": 8,
        "availability_basis": "assumed",
    }
    shortfall = {
        "workload": "qwen3-32b/prefill",
        "workload_id": PHI,
        "missing_tok_per_s": 1.5,
        "binding": "L40Sx4 in aws/us-east-2",
        "cheapest_extra": "1 x L40Sx4",
    }
    baselines = {
        "homo_optimal_usd_per_h": 20.0,
        "homo_optimal_lower_bound_usd_per_h": 20.0,
        "homo_greedy_usd_per_h": None,
    }
    return Plan.model_validate(
        {
            "scenario_id": scenario_id,
            "plan_version": 0,
            "status": "gap",
            "state": "draft",
            "cost_usd_per_h": cost_usd_per_h,
            "init_usd": 0.5,
            "lower_bound_usd_per_h": cost_usd_per_h - 0.01,
            "gap": 0.001,
            "theta": 1.0,
            "theta_upper": 1.0,
            "solve_s": 0.25,
            "created_at": "2026-07-30T12:00:00+00:00",
            "reason": "first plan",
            "inputs": {"hash": "inputs", "price_as_of": "2026-07-30", "library_id": "lib1"},
            "baselines": baselines,
            "workloads": [],
            "instances": [instance],
            "offers": [offer],
            "shortfalls": [shortfall],
            "warnings": [],
        }
    )
