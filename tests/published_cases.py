"""A lake with two published plans of a real model, and what they were made from: for what reads plans back."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from warehouse_cases import START, new_lake, plan, run

from catalogs import load_catalog
from catalogs.types import Lengths, Phase, Workload
from tasks.allocation.plan import Plan
from warehouse.plans import publish_plan
from warehouse.records import ReferenceInputs

SCENARIO = "my-prod"
AGE_S = 7200.0


def workloads() -> tuple[Workload, ...]:
    model = load_catalog().model("qwen3-32b")
    lengths = Lengths.constant(600.0, 100.0)
    prefill = Workload(model, "bf16", "bf16", Phase.PREFILL, 1600.0, 99.0, lengths)
    return prefill, replace(prefill, phase=Phase.DECODE, slo_ms=100.0)


def plan_of(decode_instances: int, cost_usd_per_h: float) -> Plan:
    """Prefill on one L40Sx4, decode on as many as asked."""
    template = plan(SCENARIO, decode_instances, cost_usd_per_h).model_dump(mode="json", by_alias=True)
    prefill, decode = workloads()

    def row(workload: Workload, instances: int) -> dict[str, Any]:
        given = template["instances"][0]
        return given | {
            "workload": workload.alias,
            "workload_id": workload.workload_id,
            "template_id": f"{workload.phase.value:x<16}",
            "instances": instances,
            "new_instances": instances,
        }

    template["instances"] = [row(prefill, 1), row(decode, decode_instances)]
    template["offers"][0]["nodes"] = 1 + decode_instances
    template["shortfalls"] = []
    template["workloads"] = [
        {
            "workload": w.alias,
            "workload_id": w.workload_id,
            "model": w.model.model,
            "phase": w.phase.value,
            "slo_ms": w.slo_ms,
            "planned_req_per_s": 2.0,
            "planned_tok_per_s": 2.0 * w.tokens_per_request,
            "supplied_tok_per_s": 1234.5 * 0.8 * n,
            "headroom": 0.8,
            "cost_usd_per_h": 5.0,
            "usd_per_million_tok": 1.5,
        }
        for w, n in ((prefill, 1), (decode, decode_instances))
    ]
    return Plan.model_validate(template)


def publish(root: Path, decode_instances: int, cost_usd_per_h: float, run_id: str) -> None:
    """Publish a plan, with a run whose prices are ``AGE_S`` old."""
    from warehouse.connect import Lake

    catalog = load_catalog()
    prefill, decode = workloads()
    reference = ReferenceInputs(
        node_configs=[catalog.node_configs["L40Sx4"]], models=[prefill.model], workloads=[prefill, decode]
    )
    with Lake.open(root) as lake:
        made = replace(run(run_id, SCENARIO), input_ages_s={"prices": AGE_S}, started_at=START)
        publish_plan(lake, plan_of(decode_instances, cost_usd_per_h), made, reference)


@cache
def _pattern() -> Path:
    """Made once: copying it is quicker than publishing again."""
    folder = Path(tempfile.mkdtemp(prefix="coral-published-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    new_lake(folder).close()
    publish(folder, 2, 30.0, "one")
    publish(folder, 3, 40.0, "two")
    return folder


def published_lake(root: Path) -> Path:
    """Version 1: 2 decode instances; version 2, the current one: 3."""
    shutil.copytree(_pattern(), root, dirs_exist_ok=True)
    return root
