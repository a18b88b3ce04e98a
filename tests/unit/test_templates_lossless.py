"""Plans over the frontier cost what plans over all templates cost, and where they would not all templates are used."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from allocation_cases import R1, R2, problem, workload
from template_tables import random_curves

from catalogs.scenario_schema import PolicySection
from catalogs.types import Phase
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import (
    AllocationProblem,
    SharedQuota,
    Shortage,
    SolveLimits,
    SolveStatus,
    WorkloadCandidates,
)
from tasks.templates.combinations import enumerate_combinations
from tasks.templates.exact import solve_many
from tasks.templates.frontier import frontier_mask
from tasks.templates.lossless import AS_PLANNED, LOSSLESS, NEEDS_ALL, CandidateSet, candidate_set

CONFIGS = ("A10Gx1", "L4x1", "L40Sx2")
EXACT = SolveLimits(gap=0.0, time_s=60.0, threads=1)


@cache
def library(seed: int, model: str, phase: Phase) -> WorkloadCandidates:
    """Every feasible combination of up to three nodes with its best rate, from random curves."""
    rng = np.random.default_rng([seed, len(model), len(phase.value)])
    curves = random_curves(rng, configs=3, layers=6, stages=3, cycles=2, top=40)
    counts = enumerate_combinations([1, 1, 1], [[0, 1, 2]], 3, 10)
    rates = solve_many(curves, counts).throughput_mtok_per_s
    templates = {
        f"{model}-{phase.value}-{'-'.join(map(str, row))}": (dict(zip(CONFIGS, row, strict=True)), rate / 1000)
        for row, rate in zip(counts.tolist(), rates.tolist(), strict=True)
        if rate
    }
    return workload(model, phase, templates, CONFIGS, tokens_per_request=1e-3)


def pruned(candidates: WorkloadCandidates, keep: set[str]) -> WorkloadCandidates:
    """The frontier, and what runs."""
    mask = frontier_mask(candidates.counts, candidates.throughput_mtok_per_s)
    mask |= np.array([template in keep for template in candidates.template_ids], bool)
    return replace(
        candidates,
        template_ids=tuple(t for t, kept in zip(candidates.template_ids, mask, strict=True) if kept),
        counts=candidates.counts[mask],
        throughput_mtok_per_s=candidates.throughput_mtok_per_s[mask],
    )


def random_pair(seed: int) -> tuple[AllocationProblem, AllocationProblem]:
    """A problem over all templates and the same over the frontier: random prices, supply, quotas, holes, shortages, running."""
    rng = np.random.default_rng(seed)
    regions = (R1, R2)[: rng.integers(1, 3)]
    models = ("a", "bb")[: rng.integers(1, 3)]
    everything = [library(seed % 7, model, phase) for model in models for phase in (Phase.PREFILL, Phase.DECODE)]
    scarce = rng.random() < 0.4
    price = {(r, c): float(rng.integers(1, 30)) / 3 for r in regions for c in CONFIGS if rng.random() < 0.9}
    capacity = {(r, c): int(rng.integers(0, 4 if scarce else 9)) for r in regions for c in CONFIGS}
    running = {
        (r, t): int(rng.integers(1, 3))
        for r in regions
        for c in everything
        for t in c.template_ids
        if rng.random() < 0.05
    }
    settings = {
        "regions": regions,
        "configs": CONFIGS,
        "min_regions": {m: len(regions) if rng.random() < 0.2 else 1 for m in models},
        "init_share": float(rng.choice([0.0, 0.1])),
        "running": running if rng.random() < 0.5 else {},
        "shortage": Shortage.UNIFORM if rng.random() < 0.5 else Shortage.PRIORITY,
        "budget_usd_per_h": float(rng.integers(5, 60)) if rng.random() < 0.2 else None,
    }
    demand = {m: float(rng.integers(5, 90)) for m in models}
    keep = {template for _, template in settings["running"]}
    quotas = tuple(
        SharedQuota(f"G in {r}", r, {"L4x1": 1, "L40Sx2": 2}, int(rng.integers(1, 9)))
        for r in regions
        if rng.random() < 0.4
    )
    full = replace(problem(everything, demand, price, capacity, **settings), quotas=quotas)
    return full, replace(full, candidates=tuple(pruned(c, keep) for c in everything))


@pytest.mark.parametrize("block", range(4))
def test_the_frontier_has_a_plan_as_good_as_any(block: int) -> None:
    met, short, smaller = 0, 0, 0
    for seed in range(block * 15, block * 15 + 15):
        full, frontier = random_pair(seed)
        smaller += sum(len(c.template_ids) for c in frontier.candidates) < sum(
            len(c.template_ids) for c in full.candidates
        )
        expected, found = solve_ilp(full, EXACT), solve_ilp(frontier, EXACT)
        assert found.status is expected.status, f"seed {seed}"
        assert found.theta == pytest.approx(expected.theta, abs=1e-6), f"seed {seed}"
        assert found.objective_usd == pytest.approx(expected.objective_usd, rel=1e-6, abs=1e-6), f"seed {seed}"
        met += expected.status is SolveStatus.OPTIMAL
        short += expected.status is SolveStatus.SHORTFALL
    assert met >= 3
    assert short >= 3
    assert smaller == 15


@pytest.mark.parametrize("seed", range(100, 112))
def test_the_covers_solver_finds_no_better_plan_in_all_templates(seed: int) -> None:
    full, frontier = random_pair(seed)
    reference = solve_ilp(full, EXACT)
    result = solve_covers(frontier, SolveLimits(gap=1e-6, time_s=60.0, threads=1))
    assert (result.status is SolveStatus.SHORTFALL) == (reference.status is SolveStatus.SHORTFALL)
    if reference.status is SolveStatus.OPTIMAL:
        assert result.objective_usd == pytest.approx(reference.objective_usd, rel=1e-5)


# ---- where it is not lossless -------------------------------------------------------------------------------------------

#                 (nodes of type A, of type B), rate; the large one equals its parts, so the frontier drops it
PARTS_AND_WHOLE = {"a": ((1, 0), 10), "b": ((0, 1), 10), "ab": ((1, 1), 20)}
PRICE = np.array([1.0, 1.0])


def cheapest(templates: dict, demand: float, **rule) -> float:
    """Least cost of up to four instances under one odd rule, by enumeration."""
    best = float("inf")
    for n in range(1, 5):
        for plan in combinations_with_replacement(sorted(templates), n):
            nodes = sum(np.array(templates[t][0]) for t in plan)
            served = sum(templates[t][1] for t in plan if templates[t][1] >= rule.get("min_rate", 0))
            if served < demand or n > rule.get("max_instances", 9):
                continue
            cost = float(PRICE @ nodes) + n * rule.get("fixed", 0.0)
            cost += sum(rule.get("init_minutes", {}).get(t, 0.0) for t in plan)
            best = min(best, cost)
    return best


def frontier_of(templates: dict) -> dict:
    names = list(templates)
    counts, rates = np.array([templates[n][0] for n in names]), np.array([templates[n][1] for n in names])
    return {n: templates[n] for n, kept in zip(names, frontier_mask(counts, rates), strict=True) if kept}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fixed_usd_per_instance", {"fixed": 0.5}),
        ("max_instances", {"max_instances": 1}),
        ("max_instance_starts", {"max_instances": 1}),
        ("min_rate_per_instance", {"min_rate": 15}),
        ("init_minutes_by_template", {"init_minutes": {"a": 1.0, "b": 1.0, "ab": 0.5}}),
    ],
)
def test_rules_that_see_instances_need_all_templates(name: str, rule: dict) -> None:
    kept = frontier_of(PARTS_AND_WHOLE)
    assert set(kept) == {"a", "b"}
    assert cheapest(kept, 20) == cheapest(PARTS_AND_WHOLE, 20)  # without the rule nothing is lost
    assert cheapest(kept, 20, **rule) > cheapest(PARTS_AND_WHOLE, 20, **rule)
    choice = candidate_set(["prices", name])
    assert choice.candidates is CandidateSet.ALL
    assert choice.reasons[0].startswith(f"{name}: ")


@pytest.mark.parametrize("name", AS_PLANNED)
def test_rates_lowered_template_by_template_are_pruned_as_lowered(name: str) -> None:
    lowered = {"a": ((1, 0), 7), "b": ((0, 1), 7), "ab": ((1, 1), 18)}  # the whole rests on better ground
    by_stored = {n: lowered[n] for n in frontier_of(PARTS_AND_WHOLE)}
    assert cheapest(by_stored, 18) > cheapest(lowered, 18) == cheapest(frontier_of(lowered), 18)
    assert candidate_set([name]).candidates is CandidateSet.AS_PLANNED
    assert candidate_set([name, "max_instances"]).candidates is CandidateSet.ALL


def test_of_every_policy_it_is_said_whether_it_is_lossless() -> None:
    known = LOSSLESS | set(AS_PLANNED) | set(NEEDS_ALL)
    assert set(PolicySection.model_fields) - known == set()
    assert candidate_set(LOSSLESS).candidates is CandidateSet.FRONTIER
    with pytest.raises(ValueError, match=r"nobody has said.*max_moons"):
        candidate_set(["prices", "max_moons"])
