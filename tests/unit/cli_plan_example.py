"""A hand-written plan: two models, three kinds of node, two regions; every figure can be checked by eye."""

from __future__ import annotations

from typing import Any

from tasks.allocation.plan import Plan

QWEN_PREFILL = {
    "region": "aws/us-east-2",
    "template_id": "aaaaaaaaaaaaaaaa",
    "combination_id": "H100-SXMx1*1+L40Sx4*2",
    "workload": "qwen3-32b/prefill",
    "workload_id": "1111111111111111",
    "instances": 2,
    "new_instances": 1,
    "market": "on_demand",
    "throughput_tok_per_s": 4321.5,
    "cost_usd_per_h": 20.0,
    "launch_class": "B2",
    "cycle_ms": 400.0,
    "provenance": "fitted",
    "rel_error": 0.08,
    "stages": [
        {
            "layers": [0, 31],
            "position": "first",
            "nodes": [
                {
                    "node_config": "L40Sx4",
                    "instance_type": "g6e.12xlarge",
                    "tp": 4,
                    "pp": 1,
                    "replicas": 1,
                    "batch": 512,
                    "share": 0.5,
                }
            ]
            * 2,
        },
        {
            "layers": [32, 63],
            "position": "last",
            "nodes": [
                {
                    "node_config": "H100-SXMx1",
                    "instance_type": "p5.4xlarge",
                    "tp": 1,
                    "pp": 1,
                    "replicas": 1,
                    "batch": 1024,
                    "share": 1.0,
                }
            ],
        },
    ],
}
QWEN_DECODE = {
    "region": "aws/us-east-2",
    "template_id": "bbbbbbbbbbbbbbbb",
    "combination_id": "H100-SXMx1*1+L40Sx4*1",
    "workload": "qwen3-32b/decode",
    "workload_id": "2222222222222222",
    "instances": 1,
    "new_instances": 1,
    "market": "on_demand",
    "throughput_tok_per_s": 1500.0,
    "cost_usd_per_h": 12.5,
    "launch_class": "C",
    "cycle_ms": 100.0,
    "provenance": "fitted",
    "rel_error": 0.08,
    "stages": [
        {
            "layers": [0, 63],
            "position": "only",
            "nodes": [
                {
                    "node_config": "L40Sx4",
                    "instance_type": "g6e.12xlarge",
                    "tp": 2,
                    "pp": 1,
                    "replicas": 2,
                    "batch": 64,
                    "share": 0.4,
                },
                {
                    "node_config": "H100-SXMx1",
                    "instance_type": "p5.4xlarge",
                    "tp": 1,
                    "pp": 1,
                    "replicas": 1,
                    "batch": 96,
                    "share": 0.6,
                },
            ],
        }
    ],
}
EXAMPLE: dict[str, Any] = {
    "schema": 1,
    "scenario_id": "example",
    "plan_version": 3,
    "status": "optimal",
    "state": "published",
    "cost_usd_per_h": 52.5,
    "init_usd": 0.5,
    "lower_bound_usd_per_h": 52.99,
    "gap": 0.01 / 53.0,
    "theta": 1.0,
    "theta_upper": 1.0,
    "solve_s": 0.4,
    "created_at": "2026-08-01T12:00:00Z",
    "reason": "first plan",
    "inputs": {"hash": "abc", "price_as_of": "2026-07-30", "library_id": "lib"},
    "baselines": {
        "homo_optimal_usd_per_h": 84.0,
        "homo_optimal_lower_bound_usd_per_h": 84.0,
        "homo_greedy_usd_per_h": None,
        "note": "greedy homogeneous replicas miss Qwen3-32B",
    },
    "workloads": [
        {
            "workload": "qwen3-32b/prefill",
            "workload_id": "1111111111111111",
            "model": "Qwen/Qwen3-32B",
            "phase": "prefill",
            "slo_ms": 1600.0,
            "planned_req_per_s": 10.0,
            "planned_tok_per_s": 6210.0,
            "supplied_tok_per_s": 6914.4,
            "headroom": 0.8,
            "cost_usd_per_h": 40.0,
            "usd_per_million_tok": 1.789,
        },
        {
            "workload": "qwen3-32b/decode",
            "workload_id": "2222222222222222",
            "model": "Qwen/Qwen3-32B",
            "phase": "decode",
            "slo_ms": 100.0,
            "planned_req_per_s": 10.0,
            "planned_tok_per_s": 1260.0,
            "supplied_tok_per_s": 1350.0,
            "headroom": 0.9,
            "cost_usd_per_h": 12.5,
            "usd_per_million_tok": 2.756,
        },
    ],
    "instances": [QWEN_PREFILL, QWEN_DECODE],
    "offers": [
        {
            "offer_id": "o1",
            "region": "aws/us-east-2",
            "node_config": "L40Sx4",
            "instance_type": "g6e.12xlarge",
            "market": "on_demand",
            "nodes": 5,
            "price_usd_per_h": 7.5,
            "availability_nodes": 8,
            "availability_basis": "assumed",
        },
        {
            "offer_id": "o2",
            "region": "aws/us-east-2",
            "node_config": "H100-SXMx1",
            "instance_type": "p5.4xlarge",
            "market": "on_demand",
            "nodes": 3,
            "price_usd_per_h": 5.0,
            "availability_nodes": 6,
            "availability_basis": "feed",
        },
    ],
    "shortfalls": [],
    "warnings": [
        {
            "code": "assumed_availability",
            "text": "no availability is known for 1 of 2 node configurations in aws/us-east-2; the scenario's default of "
            "8 nodes each is assumed",
        }
    ],
}


def example_plan(**changes: Any) -> Plan:
    """The example with top-level fields replaced."""
    return Plan.model_validate({**EXAMPLE, **changes})
