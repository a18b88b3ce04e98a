"""Ruin and recreate: what it makes of plans, against hand calculation and the ILP on small problems, and what it must keep."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2, problem, random_problem, ruled_problem, workload

from catalogs.types import Market, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns, make_columns
from tasks.allocation.covers import packing as packing_module
from tasks.allocation.covers import solver
from tasks.allocation.covers.complete_kernels import complete
from tasks.allocation.covers.packing import Packing, packing
from tasks.allocation.covers.pricing import model_blocks
from tasks.allocation.covers.recreate import Found, can_recreate, recreate
from tasks.allocation.covers.recreate_kernels import trim
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.ilp import GoalOutcome, solve_ilp
from tasks.allocation.outcome import objective_usd, served_shares
from tasks.allocation.types import AllocationProblem, Pool, SharedQuota, SolveLimits, SolveStatus

LIMITS = SolveLimits(gap=0.0, threads=1)


def never(_: Found) -> bool:
    return False


def packed_of(p: AllocationProblem) -> tuple[Columns, Packing]:
    columns = make_columns(p)
    models = model_blocks(p, columns, 1.0)
    base = np.nan_to_num(p.price_usd_per_h)
    prices = NodePrices(base * (1 + p.init_share), base)
    return columns, packing(p, columns, models, prices, prices, np.zeros(len(columns)), np.full(len(models), 1000.0))


def searched(
    p: AllocationProblem, halvings: int = 2, limits: SolveLimits = LIMITS
) -> tuple[Columns, np.ndarray, Found]:
    columns, packed = packed_of(p)
    start = packed.state(np.zeros(len(columns), dtype=np.int64))
    found, _ = recreate(packed, start, halvings, limits, Clock(limits), never)
    return columns, packed.counts(found.x, len(columns)), found


def two_phases(rates: dict[str, tuple[dict[str, int], float]], configs: tuple[str, ...]) -> list:
    return [
        workload("m", phase, {f"{phase.value}-{name}": entry for name, entry in rates.items()}, configs)
        for phase in (Phase.PREFILL, Phase.DECODE)
    ]


def small_and_large(nodes: int) -> AllocationProblem:
    """One model of 10 req/s; so many nodes of an L4, which serves 4 for 1 USD/h, and of an L40S, which serves 10 for 5."""
    configs = ("L4x1", "L40Sx1")
    rates = {"small": ({"L4x1": 1}, 4.0), "large": ({"L40Sx1": 1}, 10.0)}
    return problem(
        two_phases(rates, configs),
        {"m": 10.0},
        {(R1, "L4x1"): 1.0, (R1, "L40Sx1"): 5.0},
        {(R1, "L4x1"): nodes, (R1, "L40Sx1"): nodes},
        configs=configs,
    )


def test_a_model_is_completed_by_the_cheapest_of_what_fits() -> None:
    # By hand: 10 req/s. An L40S serves 10 for 5 USD/h, an L4 serves 4 for 1. Three L4 (3 USD/h) per phase are cheapest, but there
    # are only four: one phase takes three, the other an L40S.
    p = small_and_large(4)
    columns, counts, found = searched(p)
    assert not found.lacking.any()
    assert objective_usd(p, columns, counts) == pytest.approx(8.0)
    assert found.value == pytest.approx(8.0)


def test_completing_keeps_what_is_there_and_trimming_takes_the_dearest() -> None:
    p = small_and_large(9)
    columns, packed = packed_of(p)
    counts = np.zeros(len(columns), dtype=np.int64)
    counts[np.flatnonzero(columns.price_usd_per_h == 5.0)[0]] = 1  # an L40S of one phase
    state = packed.state(counts)
    assert complete(packed.items, packed.layout, state, packed.items.cost, 0, np.ones(1, dtype=np.bool_), 64)
    after = packed.counts(state.x, len(columns))
    assert (after >= counts).all()
    assert objective_usd(p, columns, after) == pytest.approx(5.0 + 3.0)
    one_more, three = packed.state(after + 1), packed.state(np.maximum(after, 3 * (columns.price_usd_per_h == 1.0)))
    trim(packed.items, packed.layout, one_more, 0)
    # One phase needs its L40S beside one L4, the other has an L40S beside three L4 to spare.
    assert objective_usd(p, columns, packed.counts(one_more.x, len(columns))) == pytest.approx(8.0)
    trim(packed.items, packed.layout, three, 0)
    # The L40S goes before the three L4 beside it: once they had gone it would have to stay, for 8 USD.
    assert objective_usd(p, columns, packed.counts(three.x, len(columns))) == pytest.approx(6.0)


def test_a_plan_that_lacks_a_little_is_no_better_than_a_whole_one() -> None:
    # By hand: three L4 for 3 USD lack a thousandth of the demand, which at 1,000 USD for all of it is 1 USD more; an L40S
    # for 5 USD serves all. The search, begun with the L4, must not end with them.
    configs = ("L4x1", "L40Sx1")
    rates = {"small": ({"L4x1": 1}, 3.33), "large": ({"L40Sx1": 1}, 10.0)}
    p = problem(
        [workload("m", Phase.AGGREGATED, rates, configs)],
        {"m": 10.0},
        {(R1, "L4x1"): 1.0, (R1, "L40Sx1"): 5.0},
        {(R1, "L4x1"): 3, (R1, "L40Sx1"): 1},
        configs=configs,
    )
    columns, packed = packed_of(p)
    start = packed.state(3 * (columns.price_usd_per_h == 1.0).astype(np.int64))
    found, _ = recreate(packed, start, 1, LIMITS, Clock(LIMITS), never)
    assert not found.lacking.any()
    assert found.value == pytest.approx(5.0)


def test_an_instance_that_serves_far_more_than_all_serves_all() -> None:
    configs = ("L4x1",)
    candidates = two_phases({"t": ({"L4x1": 1}, 1e8)}, configs)
    p = problem(candidates, {"m": 1e-12}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9}, configs=configs)
    _, _, found = searched(p, halvings=1)
    assert not found.lacking.any()
    assert found.value == pytest.approx(2.0)


def test_a_phase_in_another_region_serves_nobody() -> None:
    # Prefill has nodes in R1 alone, decode in both: the plan is in R1, though decode costs less in R2.
    configs = ("L4x1", "L40Sx1")
    candidates = [
        workload("m", Phase.PREFILL, {"p": ({"L4x1": 1}, 10.0)}, configs),
        workload("m", Phase.DECODE, {"d": ({"L40Sx1": 1}, 10.0)}, configs),
    ]
    price = {(R1, "L4x1"): 1.0, (R2, "L4x1"): 1.0, (R1, "L40Sx1"): 5.0, (R2, "L40Sx1"): 1.0}
    capacity = {(R1, "L4x1"): 1, (R2, "L4x1"): 0, (R1, "L40Sx1"): 1, (R2, "L40Sx1"): 1}
    p = problem(candidates, {"m": 10.0}, price, capacity, regions=(R1, R2), configs=configs)
    columns, counts, found = searched(p)
    assert not found.lacking.any()
    assert objective_usd(p, columns, counts) == pytest.approx(6.0)


def test_what_runs_costs_no_start_and_is_taken_no_oftener_than_it_runs() -> None:
    # By hand: 20 req/s, an instance serves 10; starting costs half. One runs: 1 + 1.5 per phase that has it, else 3.
    configs = ("L4x1",)
    candidates = two_phases({"t": ({"L4x1": 1}, 10.0)}, configs)
    running = {(R1, candidates[0].template_ids[0]): 1}
    p = problem(
        candidates,
        {"m": 20.0},
        {(R1, "L4x1"): 1.0},
        {(R1, "L4x1"): 9},
        configs=configs,
        init_share=0.5,
        running=running,
    )
    columns, counts, found = searched(p)
    assert found.value == pytest.approx(2.5 + 3.0)
    assert objective_usd(p, columns, counts) == pytest.approx(5.5)


def test_quotas_and_the_budget_are_kinds_of_nodes() -> None:
    configs = ("L4x1",)
    candidates = two_phases({"t": ({"L4x1": 1}, 10.0)}, configs)
    base = problem(candidates, {"m": 20.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 9}, configs=configs)
    for limit, budget, lacks in ((12, None, 0.0), (11, None, 0.5), (None, 4.0, 0.0), (None, 3.9, 0.5)):
        quotas = () if limit is None else (SharedQuota("q", R1, {"L4x1": 3}, limit),)
        p = replace(base, quotas=quotas, budget_usd_per_h=budget)
        _, _, found = searched(p)
        assert found.lacking.tolist() == pytest.approx([lacks]), (limit, budget)


def small_ones(seed: int, *, ruled: bool) -> AllocationProblem | None:
    """A problem of no rules, or with N+1 and least replicas, that can serve all."""
    p = searchable(ruled_problem(seed)) if ruled else random_problem(seed)
    truth = solve_ilp(p, LIMITS)
    return p if truth.status is SolveStatus.OPTIMAL and truth.instances else None


def searchable(p: AllocationProblem) -> AllocationProblem:
    """With those of its rules alone that the search knows."""
    return replace(p, demands=tuple(replace(d, min_regions=1) for d in p.demands))


@pytest.mark.parametrize("ruled", [False, True])
def test_small_problems_end_at_the_optimum_from_nothing(ruled: bool) -> None:
    optimal = tried = 0
    for seed in range(400):
        p = small_ones(seed, ruled=ruled)
        if p is None or not can_recreate(model_blocks(p, make_columns(p), 1.0)):
            continue
        columns, counts, found = searched(p)
        truth = solve_ilp(p, LIMITS)
        tried += 1
        if found.lacking.any():
            continue
        use = np.zeros(p.capacity_nodes.shape, dtype=np.int64)
        np.add.at(use, columns.pool, columns.counts * counts[:, None])
        assert (use <= p.capacity_nodes).all(), seed
        assert min(served_shares(p, columns, counts).values()) >= 1 - 1e-9, seed
        value = objective_usd(p, columns, counts)
        assert found.value == pytest.approx(value), seed
        assert value >= truth.objective_usd - 1e-6, seed
        optimal += value <= truth.objective_usd + 1e-6
    assert tried > 25
    assert optimal >= 0.9 * tried


def several(seed: int) -> AllocationProblem:
    """Nine models of two phases in two regions, with supply for about all of them."""
    rng = np.random.default_rng(seed)
    configs, names = ("L4x1", "A10Gx1", "L40Sx1"), "abcdefghi"
    candidates = []
    for name in names:
        for phase in (Phase.PREFILL, Phase.DECODE):
            templates = {}
            for i in range(6):
                nodes = {c: int(n) for c, n in zip(configs, rng.integers(0, 3, 3), strict=True) if n}
                templates[f"{name}{phase.value}{i}"] = (nodes or {"L4x1": 1}, float(rng.integers(2, 9)))
            candidates.append(workload(name, phase, templates, configs))
    keys = [(r, c) for r in (R1, R2) for c in configs]
    return problem(
        candidates,
        dict.fromkeys(names, 10.0),
        {key: float(rng.integers(2, 6)) for key in keys},
        dict.fromkeys(keys, 25),
        regions=(R1, R2),
        configs=configs,
    )


def test_of_several_models_the_answer_holds_and_is_the_same_on_any_number_of_threads() -> None:
    served = 0
    for seed in range(4):
        p = several(seed)
        columns, counts, found = searched(p, halvings=6)
        _, again, _ = searched(p, halvings=6, limits=replace(LIMITS, threads=2))
        assert counts.tolist() == again.tolist(), seed
        use = np.zeros(p.capacity_nodes.shape, dtype=np.int64)
        np.add.at(use, columns.pool, columns.counts * counts[:, None])
        assert (use <= p.capacity_nodes).all(), seed
        shares = served_shares(p, columns, counts)
        assert 1 - found.lacking == pytest.approx(np.minimum([shares[d.model] for d in p.demands], 1.0), abs=1e-6), seed
        if not found.lacking.any():
            served += 1
            truth = solve_ilp(p, SolveLimits(gap=0.02, threads=1, time_s=5))
            assert truth.lower_bound_usd - 1e-6 <= objective_usd(p, columns, counts) <= 1.04 * truth.objective_usd, seed
    assert served > 1


def test_few_models_are_searched_where_lists_do_not_close_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_before(*args: object) -> GoalOutcome:
        return next(each for each in args if isinstance(each, GoalOutcome))

    def no_dive(*_: object, **__: object) -> None:
        raise AssertionError("a search leaves nothing to dive for")

    for name in ("choose_listed", "close"):
        monkeypatch.setattr(solver, name, as_before)
    monkeypatch.setattr(solver, "best_of_pool", lambda *_: (None, math.inf))
    monkeypatch.setattr(solver, "dive", no_dive)
    checked = 0
    for seed in range(3):
        p = several(seed)
        truth = solve_ilp(p, SolveLimits(gap=0.02, threads=1, time_s=5))
        if truth.status is SolveStatus.SHORTFALL:
            continue
        answer = solver.solve_covers(p, replace(LIMITS, gap=1e-4))
        assert not check_result(p, answer), seed
        assert truth.lower_bound_usd - 1e-6 <= answer.objective_usd <= 1.03 * truth.objective_usd, seed
        checked += 1
    assert checked > 1


def test_a_full_log_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for a few changes alone the search does less, but its state stays that of its instances."""
    monkeypatch.setattr(packing_module, "_LOG", 3)
    configs = ("L4x1",)
    candidates = two_phases({"t": ({"L4x1": 1}, 1.0)}, configs)
    p = problem(candidates, {"m": 20.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 60}, configs=configs)
    columns, packed = packed_of(p)
    state = packed.state(np.full(len(columns), 20, dtype=np.int64))
    found, _ = recreate(packed, state, 1, LIMITS, Clock(LIMITS), never)
    fresh = packed.from_items(state.x)
    assert state.left.tolist() == fresh.left.tolist()
    assert state.served == pytest.approx(fresh.served)
    assert found.value == pytest.approx(40.0)
    assert not found.lacking.any()


def of_rules(nodes: dict[str, int], **rules: object) -> AllocationProblem:
    """One model of 10 req/s; an L4 serves 4 for 1 USD/h, an A10G 5 for 1.5, an L40S 10 for 5."""
    rate, price = {"L4x1": 4.0, "A10Gx1": 5.0, "L40Sx1": 10.0}, {"L4x1": 1.0, "A10Gx1": 1.5, "L40Sx1": 5.0}
    configs = tuple(nodes)
    p = problem(
        [workload("m", Phase.AGGREGATED, {c: ({c: 1}, rate[c]) for c in configs}, configs)],
        {"m": 10.0},
        {(R1, c): price[c] for c in configs},
        {(R1, c): many for c, many in nodes.items()},
        configs=configs,
    )
    return replace(p, demands=tuple(replace(d, **rules) for d in p.demands))


@pytest.mark.parametrize(
    ("nodes", "rules", "usd"),
    [
        # N+1: without one of four L4 three serve 12. Of two L4 and A10G: three A10G less one serve 10 for 4.5; two L4 and two
        # A10G less one serve 13 for 5. Two L4 beside an L40S, which may be lost, serve 8: it takes two L40S.
        ({"L4x1": 9}, {"survives_loss": True}, 4.0),
        ({"L4x1": 2, "A10Gx1": 9, "L40Sx1": 9}, {"survives_loss": True}, 4.5),
        ({"L40Sx1": 2, "L4x1": 2}, {"survives_loss": True}, 10.0),
        # Least replicas: four, though three L4 serve all; two where an L40S alone serves all, the second an L4.
        ({"L4x1": 9}, {"min_replicas": 4}, 4.0),
        ({"L4x1": 1, "L40Sx1": 9}, {"min_replicas": 2}, 6.0),
        # Both: five of which any four serve all.
        ({"L4x1": 9}, {"survives_loss": True, "min_replicas": 5}, 5.0),
    ],
)
def test_rules_of_a_model_by_hand(nodes: dict[str, int], rules: dict[str, object], usd: float) -> None:
    p = of_rules(nodes, **rules)
    columns, counts, found = searched(p)
    assert not found.lacking.any()
    assert objective_usd(p, columns, counts) == pytest.approx(usd)
    assert served_shares(p, columns, counts)["m"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("nodes", "rules", "usd"),
    [
        # Half must be firm: two L4 and one on spot; of A10G one, and one on spot.
        ({"L4x1": 9}, {"max_spot_share": 0.5}, 2.25),
        ({"L4x1": 9, "A10Gx1": 9}, {"max_spot_share": 0.5}, 1.875),
        # 8 of 10 must be firm, or all of it.
        ({"L4x1": 9}, {"max_spot_share": 0.2}, 2.25),
        ({"L4x1": 9}, {"max_spot_share": 0.0}, 3.0),
        # N+1 beside it: two of four L4 are firm; or one of three A10G, of which two serve all.
        ({"L4x1": 9}, {"max_spot_share": 0.5, "survives_loss": True}, 2.5),
        ({"L4x1": 9, "A10Gx1": 9}, {"max_spot_share": 0.5, "survives_loss": True}, 2.25),
        # Least replicas: two more on spot.
        ({"L4x1": 9}, {"max_spot_share": 0.5, "min_replicas": 4}, 2.5),
        # The firm L4 is too small: an L40S, firm, serves all alone.
        ({"L4x1": 1, "L40Sx1": 1}, {"max_spot_share": 0.5}, 5.0),
    ],
)
def test_capped_spot_by_hand(nodes: dict[str, int], rules: dict[str, object], usd: float) -> None:
    """Spot costs a quarter; there are as many nodes on it as firm ones."""
    p = of_rules(nodes, **rules)
    p = replace(
        p,
        pools=(Pool(R1), Pool(R1, Market.SPOT)),
        price_usd_per_h=np.concatenate([p.price_usd_per_h, 0.25 * p.price_usd_per_h]),
        capacity_nodes=np.concatenate([p.capacity_nodes, p.capacity_nodes]),
    )
    columns, counts, found = searched(p)
    assert not found.lacking.any()
    assert objective_usd(p, columns, counts) == pytest.approx(usd)
    assert served_shares(p, columns, counts)["m"] == pytest.approx(1.0)


def test_a_model_that_cannot_keep_its_rule_lacks_all() -> None:
    for rules in ({"survives_loss": True}, {"min_replicas": 2}):
        _, counts, found = searched(of_rules({"L40Sx1": 1}, **rules))
        assert found.lacking.tolist() == [1.0]
        assert not counts.any()


def test_what_is_counted_by_rules_is_what_the_outcome_counts() -> None:
    rng, ruled = np.random.default_rng(5), 0
    for seed in range(200):
        p = searchable(ruled_problem(seed))
        if not can_recreate(model_blocks(p, make_columns(p), 1.0)):
            continue
        columns, packed = packed_of(p)
        counts = rng.integers(0, 4, len(columns)) * (rng.random(len(columns)) < 0.7)
        state = packed.state(counts.astype(np.int64))
        shares = served_shares(p, columns, packed.counts(state.x, len(columns)))
        names = sorted(d.model for d in p.demands if d.planned_req_per_s > 0)
        expected = [1.0 - shares[name] for name in names]
        assert packed.lacking(state).tolist() == pytest.approx(expected, abs=1e-6), seed
        ruled += any(d.survives_loss or d.min_replicas > 1 for d in p.demands) and min(expected) < 1
    assert ruled > 10
