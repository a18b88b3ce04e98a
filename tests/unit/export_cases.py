"""A small plan of every launch class, on made-up machines of six kinds, with the facts to launch it."""

from __future__ import annotations

from typing import Any

from catalogs.engines import engine_launch
from catalogs.types import Phase
from tasks.allocation.plan import Plan
from tasks.allocation.types import KvLink, ModelDemand, SharedQuota
from tasks.exports.groups import launch_of
from tasks.exports.types import Facts, Launch, ModelFacts, NodeFacts, PlanRules, ServedWorkload

MODEL = "acme/small-12b"
PREFILL, DECODE = "1111111111111111", "2222222222222222"
# 12 layers, 16 heads over 4 KV heads of 64: 2 * 4 * 64 = 512 numbers per token and layer.
SMALL = ModelFacts(MODEL, 12, 16, 4, 512, 8192, "bf16", (8192,), has_latent_kv=False, quant_block=0)
NODES = {
    "L4x1": NodeFacts("L4", 1, 22.5, has_native_bf16=True),
    "L4x2": NodeFacts("L4", 2, 22.5, has_native_bf16=True),
    "A10Gx1": NodeFacts("A10G", 1, 22.5, has_native_bf16=True),
    "L40Sx1": NodeFacts("L40S", 1, 45.0, has_native_bf16=True),
    "L40Sx4": NodeFacts("L40S", 4, 45.0, has_native_bf16=True),
    "T4x1": NodeFacts("T4", 1, 15.0, has_native_bf16=False),
}
MACHINES = {
    "L4x1": "g6.xlarge",
    "L4x2": "g2-standard-24",
    "A10Gx1": "g5.xlarge",
    "L40Sx1": "g6e.xlarge",
    "L40Sx4": "g6e.12xlarge",
    "T4x1": "g4dn.xlarge",
}


def node(
    config: str, *, tp: int = 1, pp: int = 1, replicas: int = 1, batch: int = 8, share: float = 1.0
) -> dict[str, Any]:
    layout = {"tp": tp, "pp": pp, "replicas": replicas, "batch": batch, "share": share}
    return {"node_config": config, "instance_type": MACHINES[config], **layout}


def instance(
    phase: str, stages: list[tuple[int, int, list[dict[str, Any]]]], launch_class: str, **changes: Any
) -> dict[str, Any]:
    """One row of a plan; ``stages``: (first layer, last layer, nodes). Template ids tell rows apart."""
    nodes = [n["node_config"] for _, _, of_stage in stages for n in of_stage]
    combination = "+".join(f"{config}*{nodes.count(config)}" for config in sorted(set(nodes)))
    return {
        "region": "aws/us-east-2",
        "template_id": f"{phase}-{combination}",
        "combination_id": combination,
        "workload": f"small-12b/{phase}",
        "workload_id": PREFILL if phase == "prefill" else DECODE,
        "instances": 1,
        "new_instances": 1,
        "market": "on_demand",
        "throughput_tok_per_s": 1000.0,
        "cost_usd_per_h": 4.0,
        "launch_class": launch_class,
        "cycle_ms": 25.0,
        "provenance": "fitted",
        "rel_error": 0.1,
        "stages": [
            {"layers": [first, last], "position": "only" if len(stages) == 1 else "mid", "nodes": of_stage}
            for first, last, of_stage in stages
        ],
        **changes,
    }


# Two engines side by side on one node; a pipeline over three machine types; a pipeline inside a node; and what is left out.
SIDE_BY_SIDE = instance(
    "prefill", [(0, 11, [node("L40Sx4", tp=2, replicas=2, batch=2048)])], "A", throughput_tok_per_s=20_000.0
)
MIXED = instance(
    "decode",
    [
        (0, 1, [node("L4x1", batch=8)]),
        (2, 4, [node("L4x1", batch=10)]),
        (5, 7, [node("A10Gx1", batch=9)]),
        (8, 11, [node("L40Sx1", batch=12)]),
    ],
    "B1",
    instances=2,
)
INSIDE = instance(
    "decode",
    [(0, 11, [node("L4x2", pp=2, batch=16)])],
    "A",
    region="gcp/us-central1",
    market="spot",
    instances=3,
    throughput_tok_per_s=500.0,
)
SHARED_STAGE = instance(
    "prefill", [(0, 5, [node("L4x1", share=0.5), node("L4x1", share=0.5)]), (6, 11, [node("A10Gx1")])], "C"
)
UNEQUAL = instance("decode", [(0, 5, [node("L40Sx1")]), (6, 11, [node("L40Sx4", pp=4)])], "B2")
OWNED = instance("decode", [(0, 11, [node("L40Sx4", tp=4)])], "A", region="own/frankfurt", market="owned")
ROWS = (SIDE_BY_SIDE, MIXED, INSIDE, SHARED_STAGE, UNEQUAL, OWNED)


def crossing(req_per_s: float, source: str = "aws/us-east-2", target: str = "gcp/us-central1") -> dict[str, Any]:
    """KV of the model that crosses regions; what it takes and costs is made up."""
    ends = {"model": MODEL, "from_region": source, "to_region": target}
    return {**ends, "req_per_s": req_per_s, "gbit_per_s": 1.0, "usd_per_gb": 0.01, "usd_per_h": 4.5}


def plan(*rows: dict[str, Any], version: int = 3, spare_nodes: int = 5, moves: tuple[dict[str, Any], ...] = ()) -> Plan:
    """A plan of these rows with the offers they need, of each of which ``spare_nodes`` more can be had."""
    rows = rows or ROWS
    needed: dict[tuple[str, str, str], int] = {}
    for row in rows:
        for stage in row["stages"]:
            for n in stage["nodes"]:
                key = (row["region"], n["node_config"], row["market"])
                needed[key] = needed.get(key, 0) + row["instances"]
    supplied = {name: sum(r["instances"] * r["throughput_tok_per_s"] for r in rows if r["workload_id"] == name)
                for name in (PREFILL, DECODE)}  # fmt: skip
    return Plan.model_validate(
        {
            "schema": 1,
            "scenario_id": "small",
            "plan_version": version,
            "status": "optimal",
            "state": "published",
            "cost_usd_per_h": 40.0,
            "init_usd": 0.0,
            "lower_bound_usd_per_h": 40.0,
            "gap": 0.0,
            "theta": 1.0,
            "theta_upper": 1.0,
            "solve_s": 0.1,
            "created_at": "2026-07-30T12:00:00+00:00",
            "reason": "first plan",
            "inputs": {"hash": "h", "price_as_of": "2026-07-30", "library_id": "l", "engine": "vllm"},
            "baselines": {
                "homo_optimal_usd_per_h": None,
                "homo_optimal_lower_bound_usd_per_h": None,
                "homo_greedy_usd_per_h": None,
            },
            "workloads": [
                {
                    "workload": f"small-12b/{phase}",
                    "workload_id": workload_id,
                    "model": MODEL,
                    "phase": phase,
                    "slo_ms": 50.0,
                    "planned_req_per_s": 4.0,
                    "planned_tok_per_s": planned,
                    "supplied_tok_per_s": 0.8 * supplied[workload_id],
                    "headroom": 0.8,
                    "cost_usd_per_h": 20.0,
                    "usd_per_million_tok": 1.0,
                }
                for phase, workload_id, planned in (("prefill", PREFILL, 4000.0), ("decode", DECODE, 2800.0))
            ],
            "instances": list(rows),
            "offers": [
                {
                    "offer_id": f"{region}/{config}/{market}",
                    "region": region,
                    "node_config": config,
                    "instance_type": MACHINES[config],
                    "market": market,
                    "nodes": count,
                    "price_usd_per_h": 1.0,
                    "availability_nodes": count + spare_nodes,
                    "availability_basis": "feed",
                }
                for (region, config, market), count in needed.items()
            ],
            "shortfalls": [],
            "warnings": [],
            "kv_transfers": list(moves),
        }
    )


def rules(
    req_per_s: float = 4.0,
    quotas: tuple[SharedQuota, ...] = (),
    budget: float | None = None,
    links: tuple[KvLink, ...] = (),
    **of_model: Any,
) -> PlanRules:
    """What the plan was made under: the demand of the model, and rules of its own."""
    demand = ModelDemand(MODEL, req_per_s, (PREFILL, DECODE), ("aws/us-east-2", "gcp/us-central1"), **of_model)
    return PlanRules({MODEL: demand}, quotas, budget, links)


def facts(version: str = "0.33.0", **changes: Any) -> Facts:
    served = {
        PREFILL: ServedWorkload(
            PREFILL, "small-12b/prefill", MODEL, Phase.PREFILL, "bf16", "bf16", 1000.0, 200.0, 3000.0
        ),
        DECODE: ServedWorkload(DECODE, "small-12b/decode", MODEL, Phase.DECODE, "bf16", "bf16", 1000.0, 200.0, 3000.0),
    }
    given = {"workloads": served, "models": {MODEL: SMALL}, "nodes": NODES, "engine": engine_launch("vllm", version)}
    given["rules"] = rules()
    return Facts(**{**given, "gpu_memory_utilization": 0.92, **changes})


def launch(
    *rows: dict[str, Any], version: str = "0.33.0", moves: tuple[dict[str, Any], ...] = (), **changes: Any
) -> Launch:
    return launch_of(plan(*rows, moves=moves), facts(version, **changes))
