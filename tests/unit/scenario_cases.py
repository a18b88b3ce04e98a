"""A sound scenario to spoil, value by value, and what its numbers count in."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from catalogs import validate_path
from catalogs.errors import Finding

SOUND: dict[str, Any] = {
    "schema": 1,
    "id": "mine",
    "price_as_of": "2025-05-01",
    "offers": {
        "regions": ["aws/us-west-2", "aws/us-east-1"],
        "markets": ["on_demand"],
        "only_sold": True,
        "discount_pct": {"aws": 5},
        "date_tolerance_days": 31,
        "exclude_gpus": ["T4"],
    },
    "models": [
        {
            "model": "qwen3-8b",
            "weight_dtype": "bf16",
            "kv_dtype": "bf16",
            "serving": "disaggregated",
            "demand_req_per_s": 4,
            "lengths": {"input": 621, "output": 126},
            "slo": {"ttft_ms": 1000, "tpot_ms": 50, "percentile": 99},
            "regions": ["aws/us-west-2"],
            "min_regions": 1,
            "min_replicas": 1,
            "max_spot_share": 0,
            "prefix_hit_rate": 0.1,
            "weight": 1,
        }
    ],
    "library": {"n_max": 3, "rho": 12, "mode": "cycle"},
    "policy": {
        "shortage": "uniform",
        "headroom": {"prefill": 0.8, "decode": 0.9},
        "demand_percentile": 95,
        "max_spot_share": 0,
        "spot_interrupt_per_h": 0.05,
        "spot_recovery_minutes": 6,
        "init_minutes": 6,
        "interval_minutes": 60,
        "budget_usd_per_h": 100,
    },
    "availability": {"default_nodes": 8},
}

Path_ = tuple[str | int, ...]


def with_value(path: Path_, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(SOUND)
    inner: Any = raw
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return raw


def without(path: Path_) -> dict[str, Any]:
    raw = copy.deepcopy(SOUND)
    inner: Any = raw
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return raw


def check(tmp_path: Path, raw: Any) -> list[Finding]:
    path = tmp_path / "scenario.yaml"
    path.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw, sort_keys=False))
    return validate_path(path)


def key(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def assert_one(findings: list[Finding], path: Path_, value: str, reason: str, remedy: str = "") -> None:
    (finding,) = findings
    assert (finding.file, finding.column, finding.value) == ("scenario.yaml", key(path), value)
    assert finding.reason == reason
    assert finding.row > 0
    assert remedy in finding.remedy
    assert finding.line().startswith(f"scenario.yaml, line {finding.row}, {key(path)}: {reason}")
    assert "\n" not in finding.line()


M: Path_ = ("models", 0)
NUMBERS: dict[Path_, tuple[bool, str]] = {  # path -> (zero allowed, a word of the unit in the remedy)
    (*M, "demand_req_per_s"): (True, "requests per second"),
    (*M, "lengths", "input"): (False, "tokens"),
    (*M, "lengths", "output"): (False, "tokens"),
    (*M, "slo", "ttft_ms"): (False, "milliseconds"),
    (*M, "slo", "tpot_ms"): (False, "milliseconds"),
    (*M, "slo", "percentile"): (False, "percent"),
    (*M, "min_regions"): (False, ""),
    (*M, "min_replicas"): (False, ""),
    (*M, "max_spot_share"): (True, ""),
    (*M, "prefix_hit_rate"): (True, ""),
    (*M, "weight"): (False, ""),
    ("offers", "discount_pct", "aws"): (True, ""),
    ("offers", "date_tolerance_days"): (True, "days"),
    ("library", "n_max"): (False, ""),
    ("library", "rho"): (False, ""),
    ("policy", "headroom", "prefill"): (False, ""),
    ("policy", "headroom", "decode"): (False, ""),
    ("policy", "demand_percentile"): (False, "percent"),
    ("policy", "max_spot_share"): (True, ""),
    ("policy", "spot_interrupt_per_h"): (True, "interruptions"),
    ("policy", "spot_recovery_minutes"): (True, "minutes"),
    ("policy", "init_minutes"): (True, "minutes"),
    ("policy", "interval_minutes"): (False, "minutes"),
    ("policy", "budget_usd_per_h"): (False, "USD per hour"),
    ("availability", "default_nodes"): (True, "nodes"),
}
