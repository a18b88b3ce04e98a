"""A lake with about a million made-up templates: 12 workloads, 20 node configurations, up to six nodes each."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from catalogs.ids import short_hash
from catalogs.scenario import load_scenario
from catalogs.types import Market, NodeConfig, Offer
from tasks.templates.schema import MEMBER_TYPE, NODE_TYPE, STAGE_TYPE, TEMPLATE_SCHEMA
from warehouse.connect import Lake
from warehouse.land import write_shard
from warehouse.publish import register_library
from warehouse.records import BuildRecord, BuildStatus, LandedShard, LibraryRecord, ReferenceInputs, ShardKind
from warehouse.tables import FRONTIER_FILE_SCHEMA

GPUS = {"A100-80GB-SXM": 3.0, "H100-SXM": 5.5, "L4": 0.7, "L40S": 1.7, "A10G": 1.1}  # USD per GPU and hour
CONFIGS = tuple(f"{gpu}x{count}" for gpu in GPUS for count in (1, 2, 4, 8))
SCENARIO = load_scenario("extended")
WORKLOADS = tuple(workload.workload_id for workload in SCENARIO.workloads)  # six models, two phases each
REGIONS = ("aws/us-east-2", "aws/eu-west-1", "gcp/us-central1")
N_MAX = 6
DAY = date(2026, 7, 30)
SHARDS_PER_WORKLOAD = 4


def combinations(n: int, seed: int) -> np.ndarray:
    """``n`` different combinations as counts per configuration [n, 20], one to six nodes each."""
    every = np.array(
        [c for size in range(1, N_MAX + 1) for c in itertools.combinations_with_replacement(range(20), size)],
        dtype=object,
    )
    chosen = np.sort(np.random.default_rng(seed).choice(len(every), n, replace=False))
    counts = np.zeros((n, len(CONFIGS)), np.int16)
    for row, index in enumerate(chosen):
        for config in every[index]:
            counts[row, config] += 1
    return counts


def template_table(shard_id: str, workload_id: str, counts: np.ndarray, seed: int) -> pa.Table:
    """Templates of these combinations, one stage per node in order, with rates that grow with the GPUs."""
    rng = np.random.default_rng(seed)
    n = len(counts)
    row, config = np.nonzero(counts)
    per_pair = counts[row, config]
    names = pa.array(CONFIGS)
    pair_of_template = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]).astype(np.int32)
    n_nodes = counts.sum(1).astype(np.int16)
    node_start = np.concatenate([[0], np.cumsum(n_nodes)]).astype(np.int32)
    node_config = names.take(pa.array(np.repeat(config, per_pair)))
    slot = (np.arange(node_start[-1]) - np.repeat(node_start[:-1], n_nodes)).astype(np.int16)
    texts = _texts(row, config, per_pair, pair_of_template)
    ids = [short_hash([shard_id, text]) for text in texts]
    size = counts @ np.array([float(name.rsplit("x", 1)[1]) for name in CONFIGS])
    rate = (size * rng.uniform(200, 900, n) * 1000).astype(np.int64)
    node_rate = np.repeat(rate, n_nodes)
    ones, total = np.ones(len(slot), np.int8), len(slot)
    members = pa.StructArray.from_arrays(
        [
            pa.array(slot),
            node_config,
            pa.array(np.ones(total)),
            pa.array(node_rate),
            *(pa.array(ones),) * 3,
            pa.array(np.full(total, 16, np.int32)),
        ],
        fields=list(MEMBER_TYPE),
    )
    stages = pa.StructArray.from_arrays(
        [
            pa.array(slot.astype(np.int8)),
            pa.array((slot * 10).astype(np.int16)),
            pa.array((slot * 10 + 9).astype(np.int16)),
            pa.array(np.where(slot == 0, "first", "mid").astype(str)),
            pa.ListArray.from_arrays(pa.array(np.arange(total + 1, dtype=np.int32)), members),
        ],
        fields=list(STAGE_TYPE),
    )
    nodes = pa.StructArray.from_arrays([names.take(pa.array(config)), pa.array(per_pair)], fields=list(NODE_TYPE))
    columns = {
        "shard_id": pa.array([shard_id] * n),
        "template_id": pa.array(ids),
        "workload_id": pa.array([workload_id] * n),
        "combination_id": pa.array(texts),
        "n_nodes": pa.array(n_nodes),
        "n_stages": pa.array(n_nodes),
        "throughput_mtok_per_s": pa.array(rate),
        "cycle_ms": pa.array(np.full(n, 20.0)),
        "launch_class": pa.array(rng.choice(["A", "B1", "B2", "C"], n)),
        "provenance": pa.array(["fitted"] * n),
        "rel_error": pa.array(np.full(n, 0.1)),
        "nodes": pa.ListArray.from_arrays(pa.array(pair_of_template), nodes),
        "stages": pa.ListArray.from_arrays(pa.array(node_start), stages),
    }
    return pa.table(columns, schema=TEMPLATE_SCHEMA)


def _texts(row: np.ndarray, config: np.ndarray, count: np.ndarray, start: np.ndarray) -> list[str]:
    """Combination ids, configurations in name order."""
    parts = [f"{CONFIGS[k]}*{m}" for k, m in zip(config, count, strict=True)]
    return ["+".join(sorted(parts[a:b])) for a, b in itertools.pairwise(start)]


def offers() -> list[Offer]:
    """One offer per region and configuration."""
    return [
        Offer(
            f"{region}/{name}", region.split("/")[0], region, name, name.lower(), Market.ON_DEMAND,
            round(GPUS[name.rsplit("x", 1)[0]] * int(name.rsplit("x", 1)[1]) * (1 + i / 10), 4), None, False, DAY, "made up",
        )
        for i, region in enumerate(REGIONS)
        for name in CONFIGS
    ]  # fmt: skip


def make(root: Path, n_per_workload: int = 90_000) -> dict[str, float]:
    """Make the lake; returns seconds for landing and for registering, and the number of templates."""
    started = time.perf_counter()
    shards: list[LandedShard] = []
    frontier: list[LandedShard] = []
    for w, workload in enumerate(WORKLOADS):
        counts = combinations(n_per_workload, seed=w)
        survivors: list[str] = []
        for s, part in enumerate(np.array_split(counts, SHARDS_PER_WORKLOAD)):
            shard_id = short_hash([workload, s, len(part)])
            table = template_table(shard_id, workload, part, seed=100 * w + s)
            shards.append(write_shard(root, table, shard_id))
            survivors += table.column("template_id").to_pylist()[::5]
        frontier_id = short_hash([workload, "frontier", n_per_workload])
        columns = [[frontier_id] * len(survivors), ["all"] * len(survivors), [workload] * len(survivors), survivors]
        rows = pa.table(dict(zip(FRONTIER_FILE_SCHEMA.names, columns, strict=True)), schema=FRONTIER_FILE_SCHEMA)
        frontier.append(write_shard(root, rows, frontier_id, kind=ShardKind.FRONTIER))
    landed = time.perf_counter()
    n = sum(shard.rows for shard in shards)
    now = datetime.now(UTC)
    library = LibraryRecord("big", SCENARIO.scenario.id, "none", N_MAX, 12.0, "cycle", "synthetic", CONFIGS)
    build = BuildRecord("b1", "big", now, BuildStatus.COMPLETE, n, n, len(shards), 0, 0.0, 0, None, "synthetic")
    nodes = [NodeConfig(c, *_split(c), 80.0, "pcie", None, False, "made up", DAY) for c in CONFIGS]
    with Lake.open(root) as lake:
        reference = ReferenceInputs(node_configs=nodes, offers=offers(), workloads=SCENARIO.workloads)
        register_library(lake, library, shards, [], frontier, build, reference)
    return {"land_s": landed - started, "register_s": time.perf_counter() - landed, "templates": n}


def _split(name: str) -> tuple[str, int]:
    gpu, _, count = name.rpartition("x")
    return gpu, int(count)
