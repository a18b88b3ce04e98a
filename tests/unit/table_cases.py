"""One sound row of every table, and how a spoilt one is read."""

from __future__ import annotations

import csv
import io

import pytest

from catalogs.gpus import GpuNames
from catalogs.tables import DATA_DIR, Table, parse_table, schema_names, schema_of

NAMES = GpuNames.build(
    ["L40S", "L4", "A10G", "T4", "H200-SXM", "A100-80GB-SXM", "A100-40GB-SXM", "H100-SXM"],
    [("any", "NVIDIA L40S", "L40S", "")],
    {"p5en.48xlarge": "H200-SXM"},
)

# Feeds have no shipped rows: one sound row each.
FEED_ROWS = {
    "layer_times": {
        "system": "h100_sxm",
        "model": "qwen3-32b",
        "tp": "2",
        "phase": "decode",
        "batch": "8",
        "isl": "512",
        "gemm": "0.2",
        "attn": "0.01",
        "moe": "0",
        "ar": "0.02",
        "ew": "0.01",
        "lm": "0.3",
    },
    "own_offers": {
        "region": "aws/eu-west-1",
        "node_config": "L40Sx4",
        "instance_type": "g6e.12xlarge",
        "market": "on_demand",
        "price_usd_per_h": "10.5",
        "interrupt_per_h": "0.1",
        "network_gbit_per_s": "100",
        "as_of": "2026-07-30",
        "source": "me",
    },
    "availability": {
        "region": "aws/eu-west-1",
        "node_config": "L40Sx4",
        "market": "on_demand",
        "observed_at": "2026-07-30T12:00:00Z",
        "nodes": "3",
    },
    "quotas": {
        "provider": "aws",
        "region": "aws/eu-west-1",
        "family": "G and VT",
        "unit": "vcpu",
        "limit": "96",
        "source": "console",
        "as_of": "2026-07-30",
    },
    "demand": {"model": "qwen3-32b", "window_start": "2026-07-30T12:00:00Z", "demand_req_per_s": "10"},
    "measured_rates": {
        "node_config": "L40Sx4",
        "model": "qwen3-32b",
        "phase": "decode",
        "layers": "20",
        "position": "mid",
        "stages": "3",
        "cycle_ms": "33",
        "throughput_tok_per_s": "1500.5",
        "tp": "2",
        "pp": "1",
        "replicas": "2",
        "batch": "64",
        "memory_used_gib": "40",
        "rel_error": "0.03",
        "as_of": "2026-07-30",
        "source": "vllm 0.24",
    },
    "calibration": {
        "gpu": "L40S",
        "model": "qwen3-32b",
        "phase": "decode",
        "derate": "0.9",
        "tp": "2",
        "batch": "32",
        "as_of": "2026-07-30",
        "source": "bench.json",
    },
    "fleet": {
        "region": "aws/eu-west-1",
        "instance_type": "g6e.12xlarge",
        "count": "3",
        "model": "qwen3-32b",
        "phase": "decode",
        "tp": "2",
        "pp": "1",
        "replicas": "2",
    },
    "fleet_state": {
        "observed_at": "2026-07-30T12:00:00Z",
        "region": "aws/eu-west-1",
        "node_config": "L40Sx4",
        "market": "on_demand",
        "template_id": "0123456789abcdef",
        "nodes": "3",
        "failed_nodes": "1",
    },
    "skypilot_vms": {
        "InstanceType": "g6e.12xlarge",
        "AcceleratorName": "L40S",
        "AcceleratorCount": "4",
        "Price": "10.49",
        "SpotPrice": "4.2",
        "Region": "eu-west-1",
        "AvailabilityZone": "euw1-az1",
    },
}


def sound_row(table: str) -> dict[str, str]:
    """A row without a fault, with a value in every column that has one anywhere in the shipped file."""
    if table in FEED_ROWS:
        return dict(FEED_ROWS[table])
    with (DATA_DIR / f"{table}.csv").open(encoding="utf-8", newline="") as handle:
        return next(csv.DictReader(handle))


def as_csv(*rows: dict[str, str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def read(table: str, *rows: dict[str, str]) -> Table:
    names = NAMES if table in FEED_ROWS or table == "offers" else None
    return parse_table(as_csv(*rows), table, encode_gpu=names.encode if names else None, label=f"{table}.csv")


COLUMNS = [pytest.param(t, c, id=f"{t}-{c.name}") for t in schema_names() for c in schema_of(t).columns]
NUMERIC = {"number", "integer"}


def with_value(table: str, column: str, value: str) -> Table:
    return read(table, {**sound_row(table), column: value})


def assert_one(read: Table, column: str, value: str, reason: str, *in_remedy: str) -> None:
    (finding,) = read.findings
    assert (finding.row, finding.column, finding.value, finding.reason) == (1, column, value, reason)
    assert read.rows == ()
    line = finding.line()
    assert "\n" not in line
    assert line.startswith(f"{read.file}, row 1, {column}: {reason}")
    for text in in_remedy:
        assert text in finding.remedy
