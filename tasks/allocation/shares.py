"""Shares of the rates that are planned with: how far a choice uses them, and problems with other shares or fewer templates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tasks.allocation.types import AllocationProblem, AllocationResult


def with_headroom(problem: AllocationProblem, share: Mapping[str, float]) -> AllocationProblem:
    """The problem planned with ``share`` of the rates, by workload id; others stay."""
    return replace(
        problem,
        candidates=tuple(replace(c, headroom=share.get(c.workload_id, c.headroom)) for c in problem.candidates),
    )


def uses(problem: AllocationProblem, result: AllocationResult) -> dict[str, float]:
    """Use of the chosen instances at the rate they are planned to serve, by workload id: requests / sum of the instances'
    whole rates. Requests are the planned ones, or as many as every phase of the model supplies with headroom: where one
    phase is short the others have no more to do."""
    supply = _supply_req_per_s(problem, result)
    headroom = {c.workload_id: c.headroom for c in problem.candidates}
    found: dict[str, float] = {}
    for demand in problem.demands:
        served = min(
            demand.planned_req_per_s, *(headroom[name] * supply.get(name, 0.0) for name in demand.workload_ids)
        )
        found |= {name: served / supply[name] for name in demand.workload_ids if name in supply}
    return found


def _supply_req_per_s(problem: AllocationProblem, result: AllocationResult) -> dict[str, float]:
    """Requests per second of the chosen instances at their whole rates, by the workload ids that have any."""
    found = {}
    for c in problem.candidates:
        place = {template_id: i for i, template_id in enumerate(c.template_ids)}
        milli = math.fsum(
            int(c.throughput_mtok_per_s[place[row.template_id]]) * row.instances
            for row in result.instances
            if row.workload_id == c.workload_id
        )
        if milli > 0:
            found[c.workload_id] = milli / 1000.0 / c.tokens_per_request
    return found


def without_templates(problem: AllocationProblem, out: Mapping[str, frozenset[str]]) -> AllocationProblem:
    """The problem without the templates ``out`` (by workload id), running ones included."""
    candidates = []
    for c in problem.candidates:
        gone = out.get(c.workload_id, frozenset())
        keep = np.array([template_id not in gone for template_id in c.template_ids], dtype=np.bool_)
        ids = tuple(template_id for template_id in c.template_ids if template_id not in gone)
        rates = c.throughput_mtok_per_s[keep]
        candidates.append(replace(c, template_ids=ids, counts=c.counts[keep], throughput_mtok_per_s=rates))
    everywhere = frozenset().union(*out.values())
    running = {key: count for key, count in problem.running.items() if key[1] not in everywhere}
    return replace(problem, candidates=tuple(candidates), running=running)
