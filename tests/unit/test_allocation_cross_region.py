"""KV that crosses regions: by hand, against every plan, and one change per constraint and column that must be refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from allocation_cases import R1, R2, problem, workload
from link_cases import enumerate_moves, linked_problem

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.covers import solver
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.shortfalls import explain_shortfalls
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    KvLink,
    KvTransfer,
    Shortage,
    SolveLimits,
    SolveStatus,
)
from tasks.allocation.why import explain

EXACT = SolveLimits(gap=0.0)
CONFIGS = ("L4x1", "A10Gx1")


def base(*, usd_per_gb: float = 0.01, gbit_per_s: float | None = None, demand: float = 2.0) -> AllocationProblem:
    """Prefill on L4 (1 req/s each), decode on A10G (2 req/s each). R1 sells L4 at 1 USD/h and A10G at 9, R2 L4 at 5 and
    A10G at 2. A request's KV is 0.1 GB: one req/s takes 0.8 Gbit/s and 360 GB/h, at 0.01 USD/GB 3.60 USD/h."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 1.0)}, CONFIGS)
    decode = workload("a", Phase.DECODE, {"d": ({"A10Gx1": 1}, 2.0)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 9.0, (R2, "L4x1"): 5.0, (R2, "A10Gx1"): 2.0}
    p = problem([prefill, decode], {"a": demand}, price, dict.fromkeys(price, 9), regions=(R1, R2))
    return replace(
        p,
        demands=(replace(p.demands[0], kv_gb_per_request=0.1),),
        links=(KvLink(R1, R2, usd_per_gb, gbit_per_s),),
    )


def solved(p: AllocationProblem) -> AllocationResult:
    """The covers solver's answer, checked, with the reference's cost."""
    result = solve_covers(p, EXACT)
    assert check_result(p, result) == []
    assert result.objective_usd == pytest.approx(solve_ilp(p, EXACT).objective_usd)
    return result


def counts(result: AllocationResult) -> dict[tuple[str, str], int]:
    return {(row.region, row.template_id): row.instances for row in result.instances}


def test_kv_moves_where_that_is_cheaper() -> None:
    # Together in R1: 2 x 1 + 9 = 11; in R2: 2 x 5 + 2 = 12. Prefill in R1, decode in R2: 2 x 1 + 2 + 2 x 3.60 = 11.20.
    assert solved(base()).transfers == ()
    assert solved(base()).cost_usd_per_h == 11.0
    # At 0.005 USD/GB 2 + 2 + 3.60 = 7.60.
    cheap = solved(base(usd_per_gb=0.005))
    assert counts(cheap) == {(R1, "p"): 2, (R2, "d"): 1}
    assert cheap.transfers == (KvTransfer("a", R1, R2, *(pytest.approx(x) for x in (2.0, 1.6, 3.6))),)
    assert cheap.egress_usd_per_h == pytest.approx(3.6)
    assert cheap.cost_usd_per_h == pytest.approx(7.6)
    assert cheap.lower_bound_usd == pytest.approx(7.6)


def test_no_more_moves_than_the_link_carries() -> None:
    # 0.8 Gbit/s are 1 req/s: it moves for 1.80, the other is decoded in R1 (9) or prefilled in R2 (5): 1 + 5 + 2 + 1.8 = 9.8
    # (A10G of R2 serves both).
    half = solved(base(usd_per_gb=0.005, gbit_per_s=0.8))
    assert counts(half) == {(R1, "p"): 1, (R2, "p"): 1, (R2, "d"): 1}
    assert half.transfers[0].req_per_s == pytest.approx(1.0)
    assert half.cost_usd_per_h == pytest.approx(9.8)
    assert solved(base(usd_per_gb=0.005, gbit_per_s=0.0)).transfers == ()


def test_kv_moves_the_way_of_the_link_alone() -> None:
    p = base(usd_per_gb=0.0)
    assert solved(replace(p, links=(KvLink(R2, R1, 0.0),))).cost_usd_per_h == 11.0
    assert solved(replace(p, demands=(replace(p.demands[0], kv_gb_per_request=0.0),))).cost_usd_per_h == 11.0


def test_a_budget_caps_what_moving_costs_too() -> None:
    # 4 USD/h of rent serve all; 2 USD/h are left for KV: 2 / 1.8 of 2 req/s. One L4 less: 3 of rent, 1 req/s and 1.80.
    p = replace(base(usd_per_gb=0.005), budget_usd_per_h=6.0)
    result = solved(p)
    assert result.status is SolveStatus.SHORTFALL
    assert result.theta == pytest.approx(2 / 1.8 / 2)
    assert result.cost_usd_per_h == pytest.approx(6.0)


def test_what_only_moving_serves_is_served_by_it() -> None:
    p = base(usd_per_gb=0.005)
    nodes = p.capacity_nodes.copy()
    nodes[0, 1] = nodes[1, 0] = 0
    p = replace(p, capacity_nodes=nodes)
    assert solved(p).cost_usd_per_h == pytest.approx(7.6)
    assert solved(replace(p, links=())).theta == 0.0
    # Three L4 of R1 in use: 1.5 of 2 requests; one more L4 there would do.
    nodes = nodes.copy()
    nodes[0, 0] = 1
    short = solved(replace(p, capacity_nodes=nodes))
    assert (short.status, short.theta) == (SolveStatus.SHORTFALL, pytest.approx(0.5))
    rows = explain_shortfalls(replace(p, capacity_nodes=nodes), short, EXACT)
    assert [row.missing_tok_per_s for row in rows] == [pytest.approx(1.0)] * 2
    assert rows[0].extra_text() == f"+1 L4x1 in {R1} (+1.00 USD/h)"


def test_what_moving_costs_counts_in_the_budget_that_is_missing() -> None:
    # One L4 and one A10G serve 1 of 2 req/s: 1 + 2 + 1.80 = 4.80 of 5. All: 2 + 2 + 3.60 = 7.60, or 2.60 more than 5.
    p = replace(base(usd_per_gb=0.005), budget_usd_per_h=5.0)
    short = solved(p)
    assert (short.theta, short.cost_usd_per_h) == (pytest.approx(0.5), pytest.approx(4.8))
    (row, _) = explain_shortfalls(p, short, EXACT)
    assert row.extra_rent_usd_per_h == pytest.approx(2.8)
    assert (row.binding_text(), row.extra_text()) == ("budget", "budget +2.60 USD/h")


def test_each_phase_keeps_the_rules_by_itself() -> None:
    # N+1: three L4 in R1 and two A10G in R2: 3 + 4 + 3.60 = 10.60; together at least 3 + 18 or 15 + 4.
    p = base(usd_per_gb=0.005)
    safe = solved(replace(p, demands=(replace(p.demands[0], survives_loss=True),)))
    assert counts(safe) == {(R1, "p"): 3, (R2, "d"): 2}
    assert safe.cost_usd_per_h == pytest.approx(10.6)
    # Every phase in two regions: the cheapest further prefill is 5, the cheapest further decode 9.
    wide = solved(replace(p, demands=(replace(p.demands[0], min_regions=2),)))
    assert {key[0] for key in counts(wide) if key[1] == "p"} == {R1, R2}
    assert {key[0] for key in counts(wide) if key[1] == "d"} == {R1, R2}
    # 1 + 9 in R1, 5 + 2 in R2: 1 req/s each, nothing moves.
    assert wide.cost_usd_per_h == pytest.approx(17.0)


def test_regions_without_service_are_worth_nothing() -> None:
    # R1 cannot decode: prefill is in two regions, decode in one, and all is served. Where R2 cannot prefill either, what the
    # link carries is: 0.5 Gbit/s of 0.8 per req/s, of 2 req/s. Where it leads the other way nothing is, so nothing is rented.
    p = base(usd_per_gb=0.0, gbit_per_s=0.5, demand=2.0)
    p = replace(p, demands=(replace(p.demands[0], min_regions=2),), shortage=Shortage.PRIORITY)
    p = replace(p, forbidden=frozenset({(R1, "d")}))
    result = solved(p)
    assert result.status is SolveStatus.SHORTFALL
    assert result.theta == pytest.approx(1.0)
    assert {key[0] for key in counts(result) if key[1] == "d"} == {R2}
    closed = solved(replace(p, forbidden=p.forbidden | {(R2, "p")}, links=(KvLink(R2, R1, 0.0),)))
    assert (closed.instances, closed.theta, closed.transfers) == ((), 0.0, ())
    small = solved(replace(p, forbidden=p.forbidden | {(R2, "p")}))
    assert small.theta == pytest.approx(0.5 / 8 / 0.1 / 2)


def test_the_explanation_says_what_keeping_it_together_costs() -> None:
    p = base(usd_per_gb=0.005)
    why = explain(p, solved(p), time_s=5.0)
    found = {(row.rule, row.is_on): (row.cost.low, row.cost.high) for row in why.rules}
    assert found == {("co-location", False): pytest.approx((11.0, 11.0))}


def test_equals_the_best_of_all_plans() -> None:
    checked = moving = 0
    for seed in range(400):
        p = linked_problem(seed)
        truth = None if p is None else enumerate_moves(p, limit=40_000)
        if p is None or truth is None:
            continue
        for solve in (solve_ilp, solve_covers) if checked % 4 == 0 else (solve_covers,):
            result = solve(p, EXACT)
            assert check_result(p, result) == [], seed
            assert result.lower_bound_usd <= truth.objective + 1e-6, seed
            assert result.objective_usd == pytest.approx(truth.objective, abs=1e-5), seed
            assert (result.status is SolveStatus.SHORTFALL) == (not truth.feasible), seed
        checked += 1
        moving += bool(result.transfers)
        if checked == 60:
            break
    assert moving > 5


def test_two_models_share_a_link_and_large_shortages_have_valid_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0
    for seed in range(300):
        p = linked_problem(seed, models=2)
        if p is None:
            continue
        exact, result = solve_ilp(p, EXACT), solve_covers(p, EXACT)
        assert check_result(p, result) == [], seed
        assert result.objective_usd == pytest.approx(exact.objective_usd, abs=1e-5), seed
        with monkeypatch.context() as patch:
            patch.setattr(solver, "_ILP_COLUMNS", -1)
            large = solve_covers(p, EXACT)
        assert check_result(p, large) == [], seed
        assert exact.theta <= large.theta_upper + 1e-6, seed
        checked += 1
        if checked == 10:
            break
    assert checked == 10


P = base(usd_per_gb=0.005, gbit_per_s=1.7)
GOOD = AllocationResult(
    SolveStatus.OPTIMAL,
    solve_ilp(P, EXACT).instances,
    7.6,
    0.0,
    7.6,
    7.6,
    0.0,
    1.0,
    1.0,
    0.1,
    transfers=(KvTransfer("a", R1, R2, 2.0, 1.6, 3.6),),
    egress_usd_per_h=3.6,
)


def test_the_answer_itself_holds() -> None:
    assert check_result(P, GOOD) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "b"}, "may not move"),
        ({"source": R2}, "may not move"),
        ({"target": R1}, "may not move"),
        ({"req_per_s": 1.9}, "takes 1.52"),
        ({"req_per_s": 0.0}, "0.0 req/s of 2.0"),
        ({"gbit_per_s": 1.5}, "takes 1.6"),
        ({"usd_per_h": 3.5}, "costs 3.6"),
    ],
)
def test_each_column_of_a_transfer(changes: dict[str, Any], words: str) -> None:
    moved = replace(GOOD, transfers=(replace(GOOD.transfers[0], **changes),))
    assert words in "; ".join(check_result(P, moved))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": ()}, "may not move"),
        ({"links": (KvLink(R2, R1, 0.005),)}, "may not move"),
        ({"links": (KvLink(R1, R2, 0.006),)}, "costs 4.32"),
        ({"links": (KvLink(R1, R2, 0.005, 1.5),)}, "1.6 Gbit/s of KV"),
        ({"budget_usd_per_h": 7.0}, "exceeds the budget"),
    ],
)
def test_each_fact_of_a_link(changes: dict[str, Any], words: str) -> None:
    assert words in "; ".join(check_result(replace(P, **changes), GOOD))
    larger = replace(P, demands=(replace(P.demands[0], kv_gb_per_request=0.2),))
    assert "takes 3.2 Gbit/s" in "; ".join(check_result(larger, GOOD))


def test_more_may_not_move_than_is_prefilled_or_decoded() -> None:
    for template_id in ("p", "d"):
        fewer = tuple(
            replace(r, instances=1, new_instances=1, cost_usd_per_h=1.0) if r.template_id == template_id == "p" else r
            for r in GOOD.instances
            if not r.template_id == template_id == "d"
        )
        assert "a: 0 req/s served" in "; ".join(check_result(P, replace(GOOD, instances=fewer)))


def test_what_moves_is_stated_once_and_its_cost_adds_up() -> None:
    twice = replace(GOOD, transfers=GOOD.transfers * 2)
    assert "2 rows" in "; ".join(check_result(P, twice))
    assert "moving KV costs" in "; ".join(check_result(P, replace(GOOD, egress_usd_per_h=0.0)))
    assert "rent is" in "; ".join(check_result(P, replace(GOOD, cost_usd_per_h=4.0, objective_usd=4.0)))
    assert "a: 0 req/s served" in "; ".join(check_result(P, replace(GOOD, transfers=(), egress_usd_per_h=0.0)))
