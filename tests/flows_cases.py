"""A scenario small enough to build in seconds, hostile folders, and watching of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

SMALL_SCENARIO = """\
schema: 1
id: small
price_as_of: 2025-05-01
offers:
  regions: [aws/us-east-2]
  markets: [on_demand]
  only_sold: true
  other_dates: drop
  include_gpus: [L40S, L4, A10G]
models:
  - model: microsoft/phi-4
    weight_dtype: bf16
    kv_dtype: bf16
    serving: disaggregated
    demand_req_per_s: 2
    lengths: {{input: 1155, output: 211}}
    slo: {{ttft_ms: {ttft_ms}, tpot_ms: 60, percentile: 99}}
  - model: openai/gpt-oss-20b
    weight_dtype: mxfp4
    kv_dtype: bf16
    serving: disaggregated
    demand_req_per_s: 2
    lengths: {{input: 2048, output: 28}}
    slo: {{ttft_ms: 900, tpot_ms: 30, percentile: 99}}
library: {{n_max: 3, rho: 12, mode: cycle}}
policy: {{shortage: uniform, headroom: auto, demand_percentile: 95, init_minutes: 6, interval_minutes: 60}}
availability: {{default_nodes: 16}}
"""

# One model on one GPU type, planned without simulation: built and planned in seconds.
TINY_SCENARIO = """\
schema: 1
id: tiny
price_as_of: 2025-05-01
offers: {regions: [aws/us-east-2], markets: [on_demand], only_sold: true, other_dates: drop, include_gpus: [L4]}
models:
  - model: openai/gpt-oss-20b
    weight_dtype: mxfp4
    kv_dtype: bf16
    serving: disaggregated
    lengths: {input: 2048, output: 28}
    slo: {ttft_ms: 1500, tpot_ms: 60, percentile: 99}
library: {n_max: 1, rho: 12, mode: cycle}
policy: {headroom: start, interval_minutes: 60, guards: {cost_rise_pct: null, demand_factor: null}}
availability: {default_nodes: 64}
demand: {file: demand.csv}
"""


def write_scenario(folder: Path, ttft_ms: float = 1200) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(SMALL_SCENARIO.format(ttft_ms=ttft_ms))
    return path


def write_tiny_scenario(folder: Path, req_per_s: float = 1) -> Path:
    write_demand(folder, req_per_s)
    path = folder / "scenario.yaml"
    path.write_text(TINY_SCENARIO)
    return path


def write_demand(folder: Path, req_per_s: float) -> None:
    """The feed of the tiny scenario."""
    row = f"openai/gpt-oss-20b,2025-05-01T00:00:00Z,{req_per_s}"
    (folder / "demand.csv").write_text(f"model,window_start,demand_req_per_s\n{row}\n")


def make_hostile(folder: Path) -> Path:
    """A working folder whose modules have our packages' names."""
    (folder / "home").mkdir(parents=True, exist_ok=True)
    for name in ("catalogs", "flows", "tasks", "warehouse", "dashboards"):
        (folder / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    return folder


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(pid: int) -> list[int]:
    """The process and everything it has started, as far as it still runs."""
    parent = psutil.Process(pid)
    return [pid, *(child.pid for child in parent.children(recursive=True))]


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(poll_s)
    return condition()


def contents(folder: Path) -> Mapping[str, bytes]:
    """Every landed file under a lake, by name."""
    return {path.name: path.read_bytes() for path in sorted((folder / "shards").rglob("*.parquet"))}
