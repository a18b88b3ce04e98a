"""A hand-made plan of the small scenario, published without building a library: what ``coral simulate`` needs to run."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows_cases import write_scenario

from catalogs.scenario import load_scenario
from tasks.allocation.plan import Plan

sys.path.insert(0, str(Path(__file__).parent / "unit"))

from cli_plan_example import example_plan

REGION = "aws/us-east-2"
# Per workload: (node configuration, tp, replicas, batch, promised requests/s); far more than the demand of 2 requests/s.
NODES = {
    "phi-4/prefill": ("L40Sx4", 1, 4, 4096, 12.0),
    "phi-4/decode": ("L40Sx4", 2, 2, 32, 12.0),
    "gpt-oss-20b/prefill": ("L40Sx4", 1, 4, 4096, 24.0),
    "gpt-oss-20b/decode": ("L40Sx4", 1, 4, 8, 48.0),
}


def small_plan(scenario: Path) -> Plan:
    """One instance of one node per workload of the small scenario."""
    workloads, instances = [], []
    for workload in load_scenario(scenario).workloads:
        config, tp, replicas, batch, rate = NODES[workload.alias]
        tokens = workload.tokens_per_request
        workloads.append(
            {
                "workload": workload.alias,
                "workload_id": workload.workload_id,
                "model": workload.model.model,
                "phase": workload.phase.value,
                "slo_ms": workload.slo_ms,
                "planned_req_per_s": 2.0,
                "planned_tok_per_s": 2.0 * tokens,
                "supplied_tok_per_s": rate * tokens,
                "headroom": 1.0,
                "cost_usd_per_h": 1.0,
                "usd_per_million_tok": 1.0,
            }
        )
        node = {
            "node_config": config, "instance_type": "g6e", "tp": tp, "pp": 1, "replicas": replicas, "batch": batch,
            "share": 1.0,
        }  # fmt: skip
        stage = {"layers": [0, workload.model.layers - 1], "position": "only", "nodes": [node]}
        instances.append(_instance(workload.alias, workload.workload_id, config, rate * tokens, stage))
    return example_plan(scenario_id="small", plan_version=1, workloads=workloads, instances=instances)


def _instance(alias: str, workload_id: str, config: str, rate: float, stage: dict[str, Any]) -> dict[str, Any]:
    return {
        "region": REGION, "template_id": workload_id, "combination_id": f"{config}*1", "workload": alias,
        "workload_id": workload_id, "instances": 1, "new_instances": 1, "market": "on_demand",
        "throughput_tok_per_s": rate, "cost_usd_per_h": 1.0, "launch_class": "A", "cycle_ms": 50.0,
        "provenance": "fitted", "rel_error": 0.05, "stages": [stage],
    }  # fmt: skip


def publish_next_plan(folder: Path) -> None:
    """Version 2 of the small plan: two phi-4 prefill instances of another template in place of the one."""
    from warehouse.connect import Lake
    from warehouse.plans import publish_plan
    from warehouse.records import AllocationRun

    plan = small_plan(folder / "scenario.yaml")
    first, *others = plan.instances
    new = first.model_copy(update={"template_id": "other", "instances": 2, "new_instances": 2})
    plan = plan.model_copy(update={"plan_version": 2, "instances": (new, *others)})
    run = AllocationRun("run2", "small", datetime(2026, 8, 2, tzinfo=UTC), base_plan_version=1)
    with Lake.open(folder / ".coral") as lake:
        publish_plan(lake, plan, run)


def publish_small_plan(folder: Path, text: str | None = None) -> Path:
    """The scenario's file in ``folder`` (or ``text`` in its place), its plan published as version 1 in ``folder/.coral``."""
    from warehouse.connect import Lake
    from warehouse.plans import publish_plan
    from warehouse.records import AllocationRun

    scenario = write_scenario(folder)
    if text is not None:
        scenario.write_text(text)
    with Lake.open(folder / ".coral") as lake:
        publish_plan(lake, small_plan(scenario), AllocationRun("run", "small", datetime(2026, 8, 1, tzinfo=UTC)))
    return scenario
