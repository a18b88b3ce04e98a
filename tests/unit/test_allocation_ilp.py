"""The reference ILP: hand-made cases, and every answer against enumeration of all plans."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2, enumerate_plans, problem, random_problem, with_min_regions, workload

from catalogs.types import Phase
from tasks.allocation import ilp
from tasks.allocation.checker import check_result
from tasks.allocation.column_kernels import undominated
from tasks.allocation.columns import make_columns
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits, SolveStatus

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "A10Gx1")


def chosen(result: AllocationResult) -> dict[tuple[str, str], int]:
    return {(row.region, row.template_id): row.instances for row in result.instances}


def solved(p: AllocationProblem) -> AllocationResult:
    result = solve_ilp(p, EXACT)
    assert check_result(p, result) == []
    return result


@pytest.mark.parametrize("seed", range(120))
def test_equals_the_best_of_all_plans(seed: int) -> None:
    p = random_problem(seed)
    if seed % 3 == 0:
        p = with_min_regions(p, 2)
    truth = enumerate_plans(p, limit=400_000)
    if truth is None:
        pytest.skip("too many plans to enumerate")
    result = solved(p)
    assert result.objective_usd == pytest.approx(truth.objective, abs=1e-6)
    assert result.lower_bound_usd <= truth.objective + 1e-6
    assert result.gap <= 1e-6
    assert (result.status is SolveStatus.SHORTFALL) == (not truth.feasible)
    if not truth.feasible and not math.isnan(truth.theta):
        assert result.theta == pytest.approx(truth.theta, abs=1e-6)
        assert result.theta_upper >= truth.theta - 1e-9


def test_enumeration_sees_both_feasible_and_short_cases() -> None:
    truths = [enumerate_plans(random_problem(seed), limit=400_000) for seed in range(120)]
    known = [truth for truth in truths if truth is not None]
    assert sum(truth.feasible for truth in known) >= 15
    assert sum(not truth.feasible for truth in known) >= 15


def test_zero_demand_releases_and_leaves_the_rest() -> None:
    a = workload("a", Phase.AGGREGATED, {"ta": ({"L4x1": 1}, 10)}, CONFIGS)
    b = workload("b", Phase.AGGREGATED, {"tb": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a, b], {"a": 0.0, "b": 15.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9}, running={(R1, "ta"): 3})
    assert chosen(solved(p)) == {(R1, "tb"): 2}


def test_all_demand_zero_is_an_empty_optimal_plan() -> None:
    a = workload("a", Phase.AGGREGATED, {"ta": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 0.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9}, running={(R1, "ta"): 3})
    result = solved(p)
    assert (result.status, result.instances, result.objective_usd, result.gap) == (SolveStatus.OPTIMAL, (), 0.0, 0.0)


def test_a_price_of_nan_is_never_the_cheapest() -> None:
    a = workload("a", Phase.AGGREGATED, {"blank": ({"L4x1": 1}, 10), "dear": ({"A10Gx1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 10.0}, {(R1, "A10Gx1"): 50.0}, {(R1, "L4x1"): 9, (R1, "A10Gx1"): 9})
    assert chosen(solved(p)) == {(R1, "dear"): 1}


def test_running_instances_stay_while_new_ones_pay_for_their_start() -> None:
    # Old costs 2.00 for what new does at 1.90; with K = 0.1 new costs 2.09 in its first hour, with K = 0.01 it is 1.919.
    a = workload("a", Phase.AGGREGATED, {"old": ({"L4x1": 1}, 10), "new": ({"A10Gx1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 2.0, (R1, "A10Gx1"): 1.9}
    capacity = {(R1, "L4x1"): 4, (R1, "A10Gx1"): 4}
    keep = problem([a], {"a": 20.0}, price, capacity, init_share=0.1, running={(R1, "old"): 2})
    result = solved(keep)
    assert chosen(result) == {(R1, "old"): 2}
    assert (result.init_usd, result.objective_usd) == (0.0, 4.0)
    move = solved(replace(keep, init_share=0.01))
    assert chosen(move) == {(R1, "new"): 2}
    assert move.init_usd == pytest.approx(2 * 1.9 * 0.01)


def test_only_instances_beyond_the_running_ones_pay() -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 30.0}, {(R1, "L4x1"): 2.0}, {(R1, "L4x1"): 9}, init_share=0.5, running={(R1, "t"): 2})
    result = solved(p)
    assert [(row.instances, row.new_instances) for row in result.instances] == [(3, 1)]
    assert (result.cost_usd_per_h, result.init_usd) == (6.0, 1.0)


def test_prefill_and_decode_must_share_a_region() -> None:
    # Prefill is cheap in R1, decode cheap in R2; apart they would cost 2, but together 11 is the least.
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 10)}, CONFIGS)
    decode = workload("a", Phase.DECODE, {"d": ({"A10Gx1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 11.0, (R2, "L4x1"): 10.0, (R2, "A10Gx1"): 1.0}
    p = problem([prefill, decode], {"a": 10.0}, price, dict.fromkeys(price, 5), regions=(R1, R2))
    result = solved(p)
    assert chosen(result) == {(R2, "p"): 1, (R2, "d"): 1}
    assert result.cost_usd_per_h == 11.0


def test_two_regions_where_two_are_wanted() -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R2, "L4x1"): 3.0}
    p = problem([a], {"a": 20.0}, price, dict.fromkeys(price, 5), regions=(R1, R2))
    assert chosen(solved(p)) == {(R1, "t"): 2}
    assert chosen(solved(with_min_regions(p, 2))) == {(R1, "t"): 1, (R2, "t"): 1}


def test_only_allowed_regions_are_used() -> None:
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R2, "L4x1"): 3.0}
    p = problem([a], {"a": 20.0}, price, dict.fromkeys(price, 5), regions=(R1, R2), allowed={"a": (R2,)})
    assert chosen(solved(p)) == {(R2, "t"): 2}


def test_capacity_is_shared_by_the_models() -> None:
    # Two L4 in all; each model would take both. b is the one that may sit on A10G at least extra cost (3 against 8).
    a = workload("a", Phase.AGGREGATED, {"a4": ({"L4x1": 1}, 10), "a10": ({"A10Gx1": 3}, 10)}, CONFIGS)
    b = workload("b", Phase.AGGREGATED, {"b4": ({"L4x1": 1}, 10), "b10": ({"A10Gx1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 2.5}
    p = problem([a, b], {"a": 20.0, "b": 20.0}, price, {(R1, "L4x1"): 2, (R1, "A10Gx1"): 20})
    result = solved(p)
    assert chosen(result) == {(R1, "a4"): 2, (R1, "b10"): 2}
    assert result.cost_usd_per_h == 7.0


def test_headroom_and_request_length_set_the_count() -> None:
    # 100 tok/s at 0.8 serve 80 tok/s = 8 req/s of 10 tokens; 17 req/s need three.
    a = workload("a", Phase.AGGREGATED, {"t": ({"L4x1": 1}, 100)}, CONFIGS, tokens_per_request=10.0, headroom=0.8)
    p = problem([a], {"a": 17.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9})
    assert chosen(solved(p)) == {(R1, "t"): 3}


def test_three_runs_and_shuffled_inputs_give_one_answer() -> None:
    for seed in range(12):
        p = random_problem(seed)
        first = solve_ilp(p, EXACT)
        rng = random.Random(seed)
        for _ in range(2):
            order = list(range(len(p.candidates)))
            rng.shuffle(order)
            mixed = [_shuffled(p, w, rng) for w in order]
            again = solve_ilp(replace(p, candidates=tuple(mixed)), EXACT)
            assert again.instances == first.instances


def _shuffled(p: AllocationProblem, w: int, rng: random.Random):
    c = p.candidates[w]
    rows = list(range(len(c.template_ids)))
    rng.shuffle(rows)
    return replace(
        c,
        template_ids=tuple(c.template_ids[i] for i in rows),
        counts=c.counts[rows],
        throughput_mtok_per_s=c.throughput_mtok_per_s[rows],
    )


def _many_templates(seed: int) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    configs = ("L4x1", "A10Gx1", "L40Sx1", "L40Sx4")
    base = np.array([1.0, 1.3, 2.9, 11.0])
    candidates = []
    for model in ("a", "b"):
        for phase in (Phase.PREFILL, Phase.DECODE):
            templates = {}
            for i in range(160):
                nodes = {c: int(rng.integers(0, 3)) for c in configs}
                nodes[configs[int(rng.integers(4))]] += 1
                rate = 10 * sum(n * b for n, b in zip(nodes.values(), base, strict=True)) * rng.uniform(0.7, 1.0)
                templates[f"{model}{phase.value}{i}"] = (nodes, rate)
            candidates.append(workload(model, phase, templates, configs))
    price = {(r, c): float(b * f) for r, f in ((R1, 1.0), (R2, 1.1)) for c, b in zip(configs, base, strict=True)}
    capacity = dict.fromkeys(price, 6)
    return problem(candidates, {"a": 200.0, "b": 150.0}, price, capacity, regions=(R1, R2), configs=configs)


def test_narrowing_by_reduced_cost_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p = _many_templates(1)
    narrowed = solve_ilp(p, SolveLimits(gap=1e-5))
    assert check_result(p, narrowed) == []
    monkeypatch.setattr(ilp, "_DIRECT_COLUMNS", 10**9)
    whole = solve_ilp(p, SolveLimits(gap=1e-5))
    assert narrowed.objective_usd == pytest.approx(whole.objective_usd, rel=3e-5)
    assert narrowed.lower_bound_usd <= whole.objective_usd * (1 + 1e-9)
    assert whole.lower_bound_usd <= narrowed.objective_usd * (1 + 1e-9)


def test_dropping_dominated_templates_loses_nothing() -> None:
    for seed in range(40):
        p = random_problem(seed)
        pruned, full = make_columns(p), make_columns(p, prune=False)
        assert len(pruned) <= len(full)
    keep = undominated(np.array([[1, 0], [1, 0], [2, 0], [1, 1]], dtype=np.int16), np.array([5.0, 5.0, 5.0, 6.0]))
    assert keep.tolist() == [True, False, False, True]  # of twins the first; fewer nodes at the same rate win


def test_time_limit_of_an_instant_is_said_and_its_bound_holds() -> None:
    p = _many_templates(2)
    quick = solve_ilp(p, SolveLimits(gap=0.0, time_s=0.2))
    best = solve_ilp(p, SolveLimits(gap=1e-4, time_s=30.0))
    assert quick.status in (SolveStatus.TIME_LIMIT, SolveStatus.OPTIMAL, SolveStatus.SHORTFALL)
    assert check_result(p, quick) == []
    assert quick.lower_bound_usd <= best.objective_usd * (1 + 1e-9)
