"""Small problems in which KV may cross regions, and their answer by enumerating every plan there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from allocation_cases import R1, R2, Truth, counted, region_states, ruled_problem

from catalogs.types import Phase
from tasks.allocation.types import AllocationProblem, KvLink, Shortage

_SPLIT = (Phase.PREFILL, Phase.DECODE)


def linked_problem(seed: int, *, models: int = 1) -> AllocationProblem | None:
    """A small problem with all rules, of two regions between which KV of ``models`` models of two phases may move; None where
    the seed gives none."""
    base, rng = ruled_problem(seed), np.random.default_rng([seed, 2])
    if len(base.regions) < 2:
        return None
    split = [d for d in base.demands if len(d.workload_ids) == 2 and d.planned_req_per_s > 0]
    if len(split) < models:
        return None
    mine = {d.model for d in split[:models]}
    links = [
        KvLink(
            a,
            b,
            float(rng.choice([0.0, 0.001, 0.005, 0.02])),
            float(rng.choice([0.5, 2.0])) if rng.random() < 0.4 else None,
        )
        for a, b in ((R1, R2), (R2, R1))
        if rng.random() < 0.8
    ]
    if not links:
        return None
    # Often a region may not prefill, or not decode.
    gone = {
        R1: rng.choice(_SPLIT) if rng.random() < 0.5 else None,
        R2: rng.choice(_SPLIT) if rng.random() < 0.5 else None,
    }
    return replace(
        base,
        forbidden=frozenset(
            (pool.name, t)
            for pool in base.pools
            for c in base.candidates
            for t in c.template_ids
            if c.phase == gone[pool.region]
        ),
        candidates=tuple(c for c in base.candidates if c.model in mine),
        demands=tuple(
            replace(d, regions=(R1, R2), kv_gb_per_request=float(rng.choice([0.01, 0.1])))
            for d in base.demands
            if d.model in mine
        ),
        links=tuple(links),
    )


def enumerate_moves(p: AllocationProblem, limit: int = 3_000_000) -> Truth | None:
    """As :func:`enumerate_plans` for one model of two phases in two regions whose KV may move between them.

    What can be served in a region is served there first: it is free, and takes nothing from what moves that moving would
    not take as well. Of the rest one region has prefill alone and the other decode alone, so one link is of use.
    """
    (demand,) = p.demands
    phases = [demand.workload_ids.index(next(c.workload_id for c in p.candidates if c.phase is f)) for f in _SPLIT]
    sides = []
    for r in range(2):
        states = region_states(p, r, p.demands, limit)
        if states is None:
            return None
        n, columns, rent, cost = states
        sides.append([*(counted(n, columns, 0, phase, demand) for phase in phases), rent, cost])
    if len(sides[0][0]) * len(sides[1][0]) > limit:
        return None
    (p1, q1, rent1, cost1), (p2, q2, rent2, cost2) = [[x[:, None] for x in sides[0]], [x[None] for x in sides[1]]]
    want, k = demand.planned_req_per_s, demand.min_regions
    local, rent, cost = np.minimum(p1, q1) + np.minimum(p2, q2), rent1 + rent2, cost1 + cost2
    spare = {R1: (np.maximum(p1 - q1, 0), np.maximum(q1 - p1, 0)), R2: (np.maximum(p2 - q2, 0), np.maximum(q2 - p2, 0))}
    most, each = np.zeros_like(rent), np.zeros_like(rent)
    for link in p.links:
        over = np.minimum(spare[link.source][0], spare[link.target][1])
        cap = np.inf if link.gbit_per_s is None else link.gbit_per_s / (8 * demand.kv_gb_per_request)
        each = np.where(over > 1e-12, 3600 * demand.kv_gb_per_request * link.usd_per_gb, each)
        most = np.where(over > 1e-12, np.minimum(over, cap), most)
    if p.budget_usd_per_h is not None:
        left = p.budget_usd_per_h - rent
        most = np.minimum(most, np.where(each > 0, np.maximum(left, 0) / np.where(each > 0, each, 1), most))
        local = np.where(left < -1e-9, np.nan, local)
    share = np.minimum((local + most) / want, 1.0)
    present = np.minimum((p1 > 0) * 1 + (p2 > 0), (q1 > 0) * 1 + (q2 > 0))
    present = present * (share >= 1e-3)  # a phase by itself serves nobody: without service it is nowhere
    missing = np.maximum(k - present, 0) * (k > 1)

    def least(theta, ok) -> float:
        return float(np.where(ok, cost + each * np.clip(theta * want - local, 0, most), np.inf).min())

    met = (share >= 1 - 1e-9) & (missing == 0)
    if met.any():
        return Truth(least(1.0, met), True, 1.0, 0.0)
    if p.shortage is Shortage.UNIFORM:
        score = np.where(np.isnan(share), np.inf, missing - share)
        top = score <= score.min() + 1e-9
        theta = float(share[top].max())
        if theta > 1e-9:
            d = missing[top & (share >= theta - 1e-12)].min()
            return Truth(least(theta, (share >= theta - 1e-9) & (missing <= d)), False, theta, float("nan"))
    shortage = np.where(np.isnan(share), np.inf, demand.weight * (1 - share + missing / k))
    found = float(shortage.min())
    # A missing region may be bought back by share, so each plan moves as little as keeps it at the least shortage.
    needed = 1 + missing / k - found / demand.weight
    return Truth(least(needed, shortage <= found + 1e-9), False, float("nan"), found)
