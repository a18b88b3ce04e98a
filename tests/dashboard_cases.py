"""A small lake for the dashboards: a library of five templates in two regions, and two plans of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

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
from tasks.allocation.plan import Plan
from warehouse.connect import Lake
from warehouse.land import write_shard
from warehouse.plans import publish_plan
from warehouse.publish import register_library
from warehouse.records import ReferenceInputs

MTOK_PER_S = {
    "L40Sx4*1": 5_000,
    "L4x4*1": 2_000,
    "L40Sx4*1+L4x4*1": 8_000,
    "H100-SXMx1*1": 6_000,
    "L40Sx4*2": 10_500,
}
PRICES = {"a": {"L40Sx4": 10.0, "L4x4": 4.0, "H100-SXMx1": 12.0}, "b": {"H100-SXMx1": 6.0}}
WORKLOAD = load_scenario("core").workloads[0]


def offer(region: str, config: str, usd_per_h: float) -> Offer:
    day = date(2026, 7, 30)
    return Offer(
        f"{region}/{config}", "aws", region, config, "m", Market.ON_DEMAND, usd_per_h, None, False, day, "list"
    )


def offers() -> list[Offer]:
    return [offer(region, config, usd) for region, sold in PRICES.items() for config, usd in sold.items()]


def library_lake(root: Path) -> Lake:
    """Two libraries of the same nodes; the second is not the current one of `core`, and everything costs a tenth there."""
    name = WORKLOAD.workload_id
    lake = new_lake(root)
    for library, rates in (("lib1", MTOK_PER_S), ("other", {"L40Sx4*1": 9_000_000})):
        shard = write_shard(root, templates(f"s_{library}", name, rates), f"s_{library}")
        frontier = land_frontier(root, f"f_{library}", name, [template_id(f"s_{library}", text) for text in rates])
        profiles = [land_profile(root, name)]
        is_other = library == "other"
        sold = [replace(row, price_usd_per_h=row.price_usd_per_h / 10) for row in offers()] if is_other else offers()
        register_library(
            lake,
            library_record(library, profiles, "elsewhere" if is_other else "core"),
            [shard],
            profiles,
            [frontier],
            build_record(library, library),
            ReferenceInputs(offers=sold, workloads=[WORKLOAD], models=[WORKLOAD.model]),
        )
    return lake


def shown_plan(instances: int, req_per_s: float, at: str, reason: str, cost_usd_per_h: float) -> Plan:
    """``instances`` replicas of qwen3-32b/decode, and what of prefill is short."""
    workload: dict[str, Any] = {
        "workload": "qwen3-32b/decode", "workload_id": "1111111111111111", "model": "Qwen/Qwen3-32B", "phase": "decode",
        "slo_ms": 100.0, "planned_req_per_s": req_per_s, "planned_tok_per_s": 126.0 * req_per_s,
        "supplied_tok_per_s": 1_111.0 * instances, "headroom": 0.9, "cost_usd_per_h": cost_usd_per_h,
        "usd_per_million_tok": 2.7561,
    }  # fmt: skip
    made = plan(instances=instances, cost_usd_per_h=cost_usd_per_h).model_dump(by_alias=True)
    made |= {"workloads": [workload], "created_at": at, "reason": reason, "theta": 0.95, "status": "shortfall"}
    made["warnings"] = [{"code": "assumed_availability", "text": "nobody reports <how many> can be had"}]
    return Plan.model_validate(made)


def plan_inputs() -> ReferenceInputs:
    """What the plans were made from: the library's prices, and one of the region where they rent."""
    return ReferenceInputs(offers=[*offers(), offer("aws/us-east-2", "L40Sx4", 10.0)])


def dashboard_lake(root: Path) -> None:
    """The library, and two versions of a plan of `core`."""
    with library_lake(root) as lake:
        inputs = plan_inputs()
        first = shown_plan(1, 8.0, "2026-07-30T12:00:00+00:00", "first plan", 10.0)
        second = shown_plan(2, 16.0, "2026-07-30T13:00:00+00:00", "demand of qwen3-32b changed", 20.0)
        publish_plan(lake, first, run("r1"), inputs)
        publish_plan(lake, second, run("r2"), inputs)
