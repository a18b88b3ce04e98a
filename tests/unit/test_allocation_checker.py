"""The independent checker: one mutation per rule of the allocation, each refused with its own words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Phase
from tasks.allocation.checker import check_result
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.types import AllocationProblem, AllocationResult, Shortage, SolveLimits, SolveStatus

CONFIGS = ("L4x1", "A10Gx1")


def base() -> AllocationProblem:
    """a in two regions by prefill and decode, one instance running; b alone in R1; z wants nothing."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 10), "p2": ({"L4x1": 2}, 21)}, CONFIGS)
    decode = workload("a", Phase.DECODE, {"d": ({"A10Gx1": 1}, 10)}, CONFIGS)
    other = workload("b", Phase.AGGREGATED, {"b": ({"L4x1": 1}, 10)}, CONFIGS)
    idle = workload("z", Phase.AGGREGATED, {"z": ({"L4x1": 1}, 10)}, CONFIGS)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 2.0, (R2, "L4x1"): 1.5, (R2, "A10Gx1"): 2.5}
    return problem(
        [prefill, decode, other, idle],
        {"a": 20.0, "b": 10.0, "z": 0.0},
        price,
        {(R1, "L4x1"): 3, (R1, "A10Gx1"): 2, (R2, "L4x1"): 2, (R2, "A10Gx1"): 2},
        regions=(R1, R2),
        allowed={"b": (R1,)},
        min_regions={"a": 2},
        init_share=0.1,
        running={(R1, "p"): 1},
        budget_usd_per_h=20.0,
    )


P = base()
GOOD = solve_ilp(P, SolveLimits(gap=0.0))


def row(result: AllocationResult, region: str, template_id: str) -> int:
    return next(i for i, r in enumerate(result.instances) if (r.region, r.template_id) == (region, template_id))


def with_row(result: AllocationResult, region: str, template_id: str, /, **changes: Any) -> AllocationResult:
    rows = list(result.instances)
    i = row(result, region, template_id)
    rows[i] = replace(rows[i], **changes)
    return replace(result, instances=tuple(rows))


def test_the_answer_itself_holds() -> None:
    assert check_result(P, GOOD) == []
    assert {(r.region, r.template_id): r.instances for r in GOOD.instances} == {
        (R1, "p"): 1,
        (R1, "d"): 1,
        (R2, "p"): 1,
        (R2, "d"): 1,
        (R1, "b"): 1,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"region": "aws/nowhere"}, "unknown region"),
        ({"template_id": "x"}, "no such template"),
        ({"workload_id": "a-prefill"}, "no such template of workload a-prefill"),
        ({"region": R2}, "region not allowed"),
        ({"instances": 0}, "not a whole number above 0"),
        ({"instances": -1}, "not a whole number above 0"),
        ({"instances": 1.0}, "not a whole number above 0"),
        ({"instances": True}, "not a whole number above 0"),
        ({"new_instances": 0}, "0 new instances"),
        ({"cost_usd_per_h": 1.01}, "costs 1.0 USD/h, not 1.01"),
        ({"cost_usd_per_h": float("nan")}, "costs 1.0 USD/h, not nan"),
    ],
)
def test_each_column_of_a_row(change: dict[str, Any], words: str) -> None:
    assert words in "; ".join(check_result(P, with_row(GOOD, R1, "b", **change)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cost_usd_per_h": GOOD.cost_usd_per_h + 0.1}, "stated as"),
        ({"init_usd": GOOD.init_usd + 0.1}, "start-up charge"),
        ({"objective_usd": GOOD.objective_usd - 0.1}, "objective"),
        ({"lower_bound_usd": GOOD.objective_usd + 1}, "bound"),
        ({"lower_bound_usd": -1.0}, "bound"),
        ({"lower_bound_usd": float("nan")}, "bound"),
        ({"lower_bound_usd": GOOD.objective_usd / 2, "gap": 0.5}, "status optimal with a gap"),
        ({"gap": 0.1}, "gap is"),
        ({"theta": 0.9}, "theta is stated as 0.9"),
        ({"theta_upper": 0.5}, "out of order"),
        ({"status": SolveStatus.SHORTFALL}, "nothing is missing"),
        ({"status": SolveStatus.ERROR}, "carries no plan"),
        ({"status": SolveStatus.INFEASIBLE}, "carries no plan"),
        ({"instances": GOOD.instances[:-1]}, "wanted"),
        ({"instances": (*GOOD.instances, GOOD.instances[0])}, "2 rows"),
    ],
)
def test_each_stated_figure(change: dict[str, Any], words: str) -> None:
    assert words in "; ".join(check_result(P, replace(GOOD, **change)))


def test_capacity() -> None:
    less = P.capacity_nodes.copy()
    less[0, 0] = 1
    assert check_result(replace(P, capacity_nodes=less), GOOD) == [f"2 nodes L4x1 in {R1}, 1 can be had"]


def test_demand_and_headroom() -> None:
    more = replace(P, demands=(replace(P.demands[0], planned_req_per_s=20.1), *P.demands[1:]))
    assert "a: 20 req/s served" in "; ".join(check_result(more, GOOD))
    tight = replace(P, candidates=(replace(P.candidates[0], headroom=0.9), *P.candidates[1:]))
    assert "a: 18 req/s served" in "; ".join(check_result(tight, GOOD))
    longer = replace(P, candidates=(replace(P.candidates[0], tokens_per_request=2.0), *P.candidates[1:]))
    assert "a: 10 req/s served" in "; ".join(check_result(longer, GOOD))
    slower = replace(P.candidates[0], throughput_mtok_per_s=np.array([9_000, 21_000]))
    assert "a: 18 req/s served" in "; ".join(check_result(replace(P, candidates=(slower, *P.candidates[1:])), GOOD))


def test_co_location() -> None:
    # Both prefills in R1 and both decodes in R2: each phase is met, together they serve nothing.
    rows = [r for r in GOOD.instances if r.workload_id == "b-aggregated"]
    p, d = GOOD.instances[row(GOOD, R1, "p")], GOOD.instances[row(GOOD, R2, "d")]
    rows += [replace(p, instances=2, new_instances=1, cost_usd_per_h=2.0)]
    rows += [replace(d, instances=2, new_instances=2, cost_usd_per_h=5.0)]
    cost, init = 8.0, (1 + 5 + 1) * 0.1
    apart = replace(
        GOOD,
        instances=tuple(rows),
        cost_usd_per_h=cost,
        init_usd=init,
        objective_usd=cost + init,
        lower_bound_usd=cost + init,
    )
    assert "a: 0 req/s served with its phases together" in "; ".join(check_result(P, apart))


def test_minimum_regions() -> None:
    one = solve_ilp(replace(P, demands=(replace(P.demands[0], min_regions=1), *P.demands[1:])), SolveLimits(gap=0.0))
    assert "a: served from 1 regions, 2 wanted" in check_result(P, one)


def test_released_models_and_budget_and_unsold_nodes_and_new_instances() -> None:
    idle = replace(P, demands=(*P.demands[:1], replace(P.demands[1], planned_req_per_s=0.0), P.demands[2]))
    assert "b has no demand but 1 instances" in check_result(idle, GOOD)
    poor = replace(P, budget_usd_per_h=GOOD.cost_usd_per_h - 0.5)
    assert any("exceeds the budget" in fault for fault in check_result(poor, GOOD))
    price = P.price_usd_per_h.copy()
    price[1, 1] = np.nan
    assert any("does not sell all" in fault for fault in check_result(replace(P, price_usd_per_h=price), GOOD))
    fresh = replace(P, running={})
    assert any("new instances" in fault for fault in check_result(fresh, GOOD))


def test_a_share_below_the_stated_one_is_refused() -> None:
    a = workload("a", Phase.AGGREGATED, {"a": ({"L4x1": 1}, 10)}, CONFIGS)
    p = problem([a], {"a": 40.0}, {(R1, "L4x1"): 1.0}, {(R1, "L4x1"): 3}, shortage=Shortage.UNIFORM)
    short = solve_ilp(p, SolveLimits(gap=0.0))
    assert check_result(p, short) == []
    assert short.theta == 0.75
    assert check_result(p, replace(short, theta=0.8, theta_upper=0.8)) != []
