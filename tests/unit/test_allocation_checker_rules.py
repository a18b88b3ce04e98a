"""The independent checker by table: an answer that holds, and one change per constraint and per fact that it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Basis, Market, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.types import (
    AllocationProblem,
    AllocationResult,
    Instance,
    ModelDemand,
    Pool,
    SharedQuota,
    SolveStatus,
    WorkloadCandidates,
)

CONFIGS = ("L4x1", "A10Gx1")
SPOT, OWNED = f"{R1} spot", f"{R1} owned"


def base() -> AllocationProblem:
    """Model a in R1 and R2, prefill on one L4 (10 req/s) and decode on L4 and A10G (10 req/s), of 30 req/s."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 10.0)}, CONFIGS)
    decode = workload("a", Phase.DECODE, {"d": ({"L4x1": 1, "A10Gx1": 1}, 10.0)}, CONFIGS)
    price = {(r, c): 2.0 for r in (R1, R2) for c in CONFIGS}
    p = problem([prefill, decode], {"a": 29.0}, price, dict.fromkeys(price, 20), regions=(R1, R2), init_share=0.1)
    pools = (Pool(R1), Pool(R1, Market.SPOT), Pool(R1, Market.OWNED), Pool(R2))
    rules = {"min_regions": 2, "min_replicas": 2, "max_spot_share": 0.5, "survives_loss": True}
    return replace(
        p,
        demands=(replace(p.demands[0], **rules),),
        pools=pools,
        price_usd_per_h=np.array([[2.0, 2.0], [1.0, 1.0], [0.5, 0.5], [2.0, 2.0]]),
        capacity_nodes=np.array([[20, 20], [6, 3], [2, 2], [9, 9]]),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in CONFIGS},
        outage=np.array([[0.0, 0.0], [0.01, 0.01], [0.0, 0.0], [0.0, 0.0]]),
        quotas=(SharedQuota("G gpu", R1, {"L4x1": 1, "A10Gx1": 1}, 9),),
        budget_usd_per_h=60.0,
        running={(SPOT, "p"): 1},
    )


def row(template_id: str, instances: int, pool: Pool, each: float, new: int | None = None) -> Instance:
    workload_id = {"p": "a-prefill", "d": "a-decode"}[template_id]
    count = instances if new is None else new
    return Instance(pool.region, template_id, workload_id, instances, count, instances * each, pool.market)


P = base()
# R1: 2 on spot and 2 owned of either phase: 20 + 2 x 10 / 1.01 (1.02), less the largest (10), at most 20 / 0.5.
# R2: 2 of either, less one: 10.
ROWS = (
    row("p", 2, P.pools[1], 1.0, new=1),
    row("p", 1, P.pools[2], 0.5),
    row("d", 2, P.pools[1], 2.0),
    row("d", 1, P.pools[2], 1.0),
    row("p", 2, P.pools[3], 2.0),
    row("d", 2, P.pools[3], 4.0),
)


def answer(rows: tuple[Instance, ...]) -> AllocationResult:
    """The rows with totals that follow from them."""
    rent = sum(r.cost_usd_per_h for r in rows)
    init = 0.1 * sum(r.cost_usd_per_h / r.instances * r.new_instances for r in rows)
    return AllocationResult(SolveStatus.OPTIMAL, rows, rent, init, rent + init, rent + init, 0.0, 1.0, 1.0, 0.1)


# R1 serves min(20 / 1.01 + 10 - 10, 10 / 0.5) of prefill and min(20 / 1.02 + 10 - 10, 20) of decode; R2 serves 10.
GOOD = answer(ROWS)


@dataclass(frozen=True)
class Case:
    """A change of the problem and what the checker must then say of the same answer. ``field``: what it is a change of."""

    field: str
    change: Callable[[AllocationProblem], AllocationProblem]
    words: str


def demand(**changes: Any) -> Callable[[AllocationProblem], AllocationProblem]:
    return lambda p: replace(p, demands=(replace(p.demands[0], **changes),))


def candidates(at: int, **changes: Any) -> Callable[[AllocationProblem], AllocationProblem]:
    def change(p: AllocationProblem) -> AllocationProblem:
        rows = list(p.candidates)
        rows[at] = replace(rows[at], **changes)
        return replace(p, candidates=tuple(rows))

    return change


def cell(name: str, pool: int, config: int, value: float) -> Callable[[AllocationProblem], AllocationProblem]:
    def change(p: AllocationProblem) -> AllocationProblem:
        array = getattr(p, name).copy()
        array[pool, config] = value
        return replace(p, **{name: array})

    return change


def whole(**changes: Any) -> Callable[[AllocationProblem], AllocationProblem]:
    return lambda p: replace(p, **changes)


CASES = [
    Case("planned_req_per_s", demand(planned_req_per_s=30.0), "req/s served"),
    Case("planned_req_per_s", demand(planned_req_per_s=0.0), "has no demand"),
    Case("workload_ids", demand(workload_ids=("a-prefill",)), "region not allowed for workload a-decode"),
    Case("demand.regions", demand(regions=(R1,), min_regions=1), "region not allowed"),
    Case("min_regions", demand(min_regions=3), "served from 2 regions, 3 wanted"),
    Case("min_replicas", demand(min_replicas=3), "req/s served"),
    Case("max_spot_share", demand(max_spot_share=0.4), "req/s served"),
    Case("max_spot_share", demand(max_spot_share=0.0), "may not use spot"),
    Case("node_configs", demand(node_configs=("L4x1",)), "a may not use A10Gx1"),
    Case("excluded", demand(excluded=("L4x1",)), "a may not use L4x1"),
    Case("headroom", candidates(0, headroom=0.9), "req/s served"),
    Case("tokens_per_request", candidates(1, tokens_per_request=1.1), "req/s served"),
    Case("throughput_mtok_per_s", candidates(1, throughput_mtok_per_s=np.array([9_000])), "req/s served"),
    Case("template_ids", candidates(0, template_ids=("q",)), "no such template"),
    Case("workload_id", candidates(0, workload_id="b-prefill"), "no such template"),
    Case("counts", candidates(0, counts=np.array([[2, 0]], dtype=np.int16)), "costs"),
    Case("regions", whole(regions=(R1,)), "unknown region"),
    Case("pools", whole(pools=(P.pools[0], P.pools[2], P.pools[1], P.pools[3])), "costs"),
    Case("pools", whole(pools=(P.pools[0], Pool(R2, Market.SPOT), *P.pools[2:])), "nothing is sold as spot there"),
    Case("price_usd_per_h", cell("price_usd_per_h", 1, 0, 1.1), "costs"),
    Case("price_usd_per_h", cell("price_usd_per_h", 2, 1, np.nan), "does not sell all"),
    Case("capacity_nodes", cell("capacity_nodes", 1, 1, 1), f"2 nodes A10Gx1 in {SPOT}, 1 can be had"),
    Case("capacity_nodes", cell("capacity_nodes", 2, 0, 1), f"2 nodes L4x1 in {OWNED}, 1 can be had"),
    Case("capacity_nodes", cell("capacity_nodes", 3, 0, 3), f"4 nodes L4x1 in {R2}, 3 can be had"),
    Case("outage", cell("outage", 1, 0, 0.2), "req/s served"),
    Case("quotas", whole(quotas=(replace(P.quotas[0], limit=5),)), "quota G gpu: 6 used, 5 allowed"),
    Case("quotas", whole(quotas=(replace(P.quotas[0], units={"L4x1": 4}),)), "quota G gpu: 16 used, 9 allowed"),
    Case("quotas", whole(quotas=(SharedQuota("r2", R2, {"A10Gx1": 1}, 1),)), "quota r2: 2 used, 1 allowed"),
    Case("budget_usd_per_h", whole(budget_usd_per_h=19.0), "exceeds the budget"),
    Case("running", whole(running={}), "1 new instances, 0 run of 2"),
    Case("running", whole(running={(R1, "p"): 1}), "1 new instances, 0 run of 2"),
    Case("init_share", whole(init_share=0.2), "start-up charge"),
    Case("forbidden", whole(forbidden=frozenset({(OWNED, "d")})), "may not be used there"),
]
# What nothing in an answer can break: how it was found out, what shares out a shortage, names for people.
FREE = {"capacity_basis", "shortage", "weight", "model", "alias", "phase", "node_configs.names"}


def test_the_answer_itself_holds() -> None:
    assert check_result(P, GOOD) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.field)
def test_each_constraint(case: Case) -> None:
    faults = check_result(case.change(P), GOOD)
    assert case.words in "; ".join(faults)


def test_n_plus_one_is_a_constraint() -> None:
    # With one prefill instance less in R2 the one that is left may be lost.
    one = row("p", 1, P.pools[3], 2.0)
    thin = tuple(one if (r.region, r.template_id) == (R2, "p") else r for r in ROWS)
    lax = replace(P, demands=(replace(P.demands[0], min_replicas=1, min_regions=1, planned_req_per_s=19.0),))
    assert check_result(replace(lax, demands=(replace(lax.demands[0], survives_loss=False),)), answer(thin)) == []
    alone = tuple(r for r in thin if r.region == R2)
    assert "a: 0 req/s served" in "; ".join(check_result(lax, answer(alone)))


def test_co_location_is_a_constraint() -> None:
    apart = tuple(r for r in ROWS if (r.region == R2) == (r.template_id == "p"))
    assert "a: 0 req/s served" in "; ".join(check_result(P, answer(apart)))


def test_every_fact_of_a_problem_has_a_case_or_is_free() -> None:
    tried = {case.field for case in CASES} | {"survives_loss", "candidates", "demands", "node_configs"}
    tried |= {"links", "kv_gb_per_request"}  # test_allocation_cross_region
    names = {f.name for kind in (AllocationProblem, ModelDemand, WorkloadCandidates) for f in fields(kind)}
    assert names - tried - FREE == set()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"market": Market.ON_DEMAND}, "costs"),
        ({"market": Market.OWNED}, "costs"),
        ({"region": R2}, "nothing is sold as spot there"),
        ({"template_id": "d"}, "no such template of workload a-prefill"),
        ({"workload_id": "a-decode"}, "no such template of workload a-decode"),
        ({"instances": 1}, "1 new instances, 1 run of 1"),
        ({"new_instances": 2}, "2 new instances, 1 run of 2"),
        ({"cost_usd_per_h": 2.1}, "costs 2.0 USD/h, not 2.1"),
    ],
)
def test_each_column_of_a_row(changes: dict[str, Any], words: str) -> None:
    rows = (replace(ROWS[0], **changes), *ROWS[1:])
    faults = check_result(P, replace(GOOD, instances=rows))
    assert words in "; ".join(faults)
