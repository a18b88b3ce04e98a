"""The plan document: built from an answer, checked column by column; every single mutation is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from allocation_cases import R1, R2, problem, workload

from catalogs.types import Basis, Market, Offer, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.plan import Plan, PlanBaselines, PlanInputs, PlanState, decision_hash
from tasks.allocation.plan_build import PlanMeta, build_plan
from tasks.allocation.plan_checker import PlanFacts, check_plan
from tasks.allocation.shortfalls import explain_shortfalls
from tasks.allocation.types import AllocationProblem, KvLink, Pool, SolveLimits
from tasks.templates.schema import TEMPLATE_SCHEMA

CONFIGS = ("L4x1", "A10Gx1")
SLO = {"a-prefill": 1000.0, "a-decode": 50.0}


def _template(template_id: str, workload_id: str, nodes: dict[str, int], milli: int, cycle_ms: float) -> dict[str, Any]:
    """One stage per node, in order."""
    each = [config for config, count in nodes.items() for _ in range(count)]
    last = len(each) - 1
    names = ["only"] if last == 0 else ["first", *["mid"] * (last - 1), "last"]
    stages = []
    for s, config in enumerate(each):
        member = {"node_slot": s, "node_config": config, "share": 1.0, "throughput_mtok_per_s": milli}
        member |= {"tp": 1, "pp": 1, "replicas": 1, "batch": 8}
        stages.append(
            {"stage": s, "layer_start": 10 * s, "layer_end": 10 * s + 9, "position": names[s], "members": [member]}
        )
    return {
        "shard_id": "s",
        "template_id": template_id,
        "workload_id": workload_id,
        "combination_id": "+".join(f"{c}*{n}" for c, n in sorted(nodes.items())),
        "n_nodes": len(each),
        "n_stages": len(each),
        "throughput_mtok_per_s": milli,
        "cycle_ms": cycle_ms,
        "launch_class": "A" if last == 0 else "B1",
        "provenance": "fitted",
        "rel_error": 0.08,
        "nodes": [{"node_config": c, "nodes": n} for c, n in nodes.items()],
        "stages": stages,
    }


TEMPLATES = pa.Table.from_pylist(
    [
        _template("p", "a-prefill", {"L4x1": 1}, 100_000, 300.0),
        _template("d", "a-decode", {"L4x1": 1, "A10Gx1": 1}, 40_000, 20.0),
        _template("unused", "a-decode", {"A10Gx1": 2}, 10_000, 20.0),
    ],
    schema=TEMPLATE_SCHEMA,
)
OFFERS = {
    (R1, "L4x1"): Offer(
        "o4", "aws", R1, "L4x1", "g6.xlarge", Market.ON_DEMAND, 1.0, None, False, date(2026, 7, 1), "s"
    ),
    (R1, "A10Gx1"): Offer(
        "o10", "aws", R1, "A10Gx1", "g5.xlarge", Market.ON_DEMAND, 1.5, None, False, date(2026, 7, 1), "s"
    ),
}
SPOT = f"{R1} spot"
OFFERS |= {
    (SPOT, config): replace(OFFERS[R1, config], offer_id=f"{OFFERS[R1, config].offer_id}s", market=Market.SPOT,
                            price_usd_per_h=OFFERS[R1, config].price_usd_per_h / 2)
    for config in CONFIGS
}  # fmt: skip
OFFERS |= {
    (R2, config): replace(OFFERS[R1, config], offer_id=f"{OFFERS[R1, config].offer_id}r2", region=R2)
    for config in CONFIGS
}
FACTS = PlanFacts(TEMPLATES, {offer.offer_id: offer for offer in OFFERS.values()}, SLO)


def make_problem(capacity: int = 20) -> AllocationProblem:
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 100)}, CONFIGS, tokens_per_request=50.0, headroom=0.8)
    decode = workload(
        "a",
        Phase.DECODE,
        {"d": ({"L4x1": 1, "A10Gx1": 1}, 40), "unused": ({"A10Gx1": 2}, 10)},
        CONFIGS,
        tokens_per_request=10.0,
        headroom=0.9,
    )
    price = {key: offer.price_usd_per_h for key, offer in OFFERS.items() if key[0] == R1}
    return problem(
        [prefill, decode], {"a": 4.0}, price, dict.fromkeys(price, capacity), init_share=0.1, running={(R1, "p"): 1}
    )


def make_plan(p: AllocationProblem) -> Plan:
    result = solve_ilp(p, SolveLimits(gap=0.0))
    assert check_result(p, result) == []
    return build_plan(
        p,
        result,
        templates=TEMPLATES,
        offers=OFFERS,
        shortfalls=explain_shortfalls(p, result, SolveLimits()),
        baselines=PlanBaselines(
            homo_optimal_usd_per_h=9.0, homo_optimal_lower_bound_usd_per_h=8.9, homo_greedy_usd_per_h=None
        ),
        warnings=[],
        meta=PlanMeta(
            "core",
            1,
            PlanState.DRAFT,
            "2026-07-01T12:00:00Z",
            "first plan",
            PlanInputs(hash="h", price_as_of="2026-07-01", library_id="l"),
            SLO,
        ),
    )


def with_spot(p: AllocationProblem) -> AllocationProblem:
    """``p`` with two nodes of each configuration on spot at half the price, down 0.1 h per hour, for half of the demand."""
    pools = (Pool(R1), Pool(R1, Market.SPOT))
    return replace(
        p,
        pools=pools,
        price_usd_per_h=np.vstack([p.price_usd_per_h, p.price_usd_per_h / 2]),
        capacity_nodes=np.vstack([p.capacity_nodes, [[2, 2]]]),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in CONFIGS},
        outage=np.array([[0.0, 0.0], [0.1, 0.1]]),
        demands=(replace(p.demands[0], max_spot_share=0.5),),
    )


FULL = make_problem()
SHORT = make_problem(capacity=2)
NONE = make_problem(capacity=0)
MARKETS = with_spot(FULL)


def with_links(p: AllocationProblem) -> AllocationProblem:
    """``p`` with prefill in R1 alone and decode in R2 alone; a request's KV is 0.01 GB, of 0.01 USD/GB."""
    regions = (R1, R2)
    return replace(
        p,
        regions=regions,
        pools=tuple(Pool(region) for region in regions),
        price_usd_per_h=np.vstack([p.price_usd_per_h, p.price_usd_per_h]),
        capacity_nodes=np.array([[20, 0], [20, 20]]),
        capacity_basis={(region, c): Basis.STATED for region in regions for c in CONFIGS},
        demands=(replace(p.demands[0], regions=regions, kv_gb_per_request=0.01),),
        links=(KvLink(R1, R2, 0.01, 2.0),),
        forbidden=frozenset({(R2, "p")}),
    )


LINKED = with_links(FULL)


def test_a_plan_says_what_was_decided() -> None:
    # Prefill: 1.6 req/s each, three; decode: 3.6 each, two. Rent 3 x 1 + 2 x 2.5 = 8; start-up (2 x 1 + 5) x 0.1.
    plan = make_plan(FULL)
    assert check_plan(FULL, plan, FACTS) == []
    assert {(row.template_id, row.instances, row.new_instances) for row in plan.instances} == {("p", 3, 2), ("d", 2, 2)}
    assert (plan.cost_usd_per_h, plan.gap, plan.theta) == (8.0, 0.0, 1.0)
    assert plan.init_usd == pytest.approx(0.7)
    assert {(row.offer_id, row.nodes) for row in plan.offers} == {("o4", 5), ("o10", 2)}
    by_id = {row.workload_id: row for row in plan.workloads}
    assert by_id["a-prefill"].planned_tok_per_s == 200.0
    assert by_id["a-prefill"].supplied_tok_per_s == pytest.approx(240.0)
    assert by_id["a-decode"].usd_per_million_tok == pytest.approx(5.0 / (40 * 3600 / 1e6))
    assert plan.shortfalls == ()


def test_a_short_plan_says_what_is_missing() -> None:
    # Two L4: one prefill (1.6 req/s) and one decode (3.6): 1.6 of 4 served.
    plan = make_plan(SHORT)
    assert check_plan(SHORT, plan, FACTS) == []
    assert plan.theta == pytest.approx(0.4)
    missing = {row.workload_id: row.missing_tok_per_s for row in plan.shortfalls}
    assert missing == pytest.approx({"a-prefill": 120.0, "a-decode": 24.0})
    assert f"L4x1 in {R1} (2 of 2)" in plan.shortfalls[0].binding
    by_id = {row.workload_id: row for row in plan.workloads}
    assert by_id["a-prefill"].usd_per_million_tok == pytest.approx(1.0 / (80 * 3600 / 1e6))


@pytest.mark.parametrize(
    "p", [replace(FULL, demands=tuple(replace(d, planned_req_per_s=0.0) for d in FULL.demands)), NONE]
)
def test_a_plan_may_rent_nothing(p: AllocationProblem) -> None:
    plan = make_plan(p)
    assert check_plan(p, plan, FACTS) == []
    assert (plan.instances, plan.offers, plan.cost_usd_per_h) == ((), (), 0.0)
    assert bool(plan.shortfalls) == any(demand.planned_req_per_s > 0 for demand in p.demands)


def test_the_decision_is_known_again_whatever_it_costs() -> None:
    plan = make_plan(FULL)
    dearer = make_plan(replace(FULL, init_share=0.2))
    assert dearer.init_usd != plan.init_usd
    assert decision_hash(plan) == decision_hash(dearer)
    adopted = make_plan(replace(FULL, running={(R1, "p"): 3, (R1, "d"): 2}))
    assert decision_hash(plan) == decision_hash(adopted)
    assert decision_hash(plan) != decision_hash(make_plan(SHORT))


def test_offers_at_another_price_are_a_bug() -> None:
    other = OFFERS | {(R1, "L4x1"): replace(OFFERS[R1, "L4x1"], price_usd_per_h=1.1)}
    p, result = FULL, solve_ilp(FULL, SolveLimits(gap=0.0))
    with pytest.raises(ValueError, match=r"the problem says 1\.0"):
        build_plan(
            p,
            result,
            templates=TEMPLATES,
            offers=other,
            shortfalls=(),
            baselines=make_plan(p).baselines,
            warnings=(),
            meta=PlanMeta("core", 1, PlanState.DRAFT, "t", "r", make_plan(p).inputs, SLO),
        )


def _mutations(value: Any) -> list[Any]:
    """Other values a column could hold by mistake."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 1.01 + 0.5, -value - 1.0]
    if value is None:
        return [1.0]
    return []


# Figures that nothing in the tables can confirm: only their form is checked.
_FORMED: dict[str, Any] = {
    "plan_version": 0,
    "solve_s": -1.0,
    "theta_upper": 0.1,
    "homo_greedy_usd_per_h": -1.0,
    "full_use_usd_per_h": -1.0,
    "homo_optimal_usd_per_h": -1.0,
    "homo_optimal_lower_bound_usd_per_h": 9.5,
}
# Text columns: a mutation that must be refused.
_TEXT = {
    "scenario_id": "",
    "status": "gap_",
    "created_at": "yesterday",
    "reason": " ",
    "hash": "",
    "price_as_of": "",
    "library_id": "",
    "running_basis": "",
    "engine": "vllm newest",
    "region": "aws/eu-west-1",
    "template_id": "unused",
    "combination_id": "L4x1*9",
    "workload": "b/decode",
    "workload_id": "b-decode",
    "market": "spot",
    "launch_class": "C",
    "provenance": "measured",
    "position": "mid",
    "node_config": "H100-SXMx8",
    "instance_type": "p5.48xlarge",
    "offer_id": "o99",
    "availability_basis": "feed",
    "model": "b",
    "phase": "aggregated",
    "from_region": "aws/eu-west-1",
    "to_region": "aws/eu-west-1",
    "binding": "H100-SXMx8 in aws/us-east-2 (0 of 0)",
    "cheapest_extra": "",
    "headroom_basis": "guessed",
}
_ALLOWED_TEXT = {"state", "status", "schema", "text", "code", "note"}


def _cells(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(node, dict):
        return [cell for key, value in node.items() for cell in _cells(value, (*path, key))]
    if isinstance(node, list):
        return [cell for i, value in enumerate(node) for cell in _cells(value, (*path, i))]
    return [(path, node)]


def with_cell(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    import copy

    changed = copy.deepcopy(document)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def refused(p: AllocationProblem, document: dict[str, Any]) -> bool:
    try:
        plan = Plan.model_validate(document)
    except ValueError:
        return True
    return check_plan(p, plan, FACTS) != []


def test_a_plan_tells_markets_apart() -> None:
    plan = make_plan(MARKETS)
    assert check_plan(MARKETS, plan, FACTS) == []
    assert {row.market for row in plan.instances} == {Market.ON_DEMAND, Market.SPOT}
    (decode,) = [row for row in plan.instances if row.market is Market.SPOT and row.template_id == "d"]
    assert decode.delivered_share == pytest.approx(1 / 1.2)  # either of its two nodes stops it
    assert {row.offer_id for row in plan.offers if row.market is Market.SPOT} <= {"o4s", "o10s"}
    wrong = OFFERS | {(SPOT, "L4x1"): replace(OFFERS[R1, "L4x1"], price_usd_per_h=0.5)}
    result = solve_ilp(MARKETS, SolveLimits(gap=0.0))
    with pytest.raises(ValueError, match="not of aws/us-east-2 spot"):
        build_plan(
            MARKETS, result, templates=TEMPLATES, offers=wrong, shortfalls=(), baselines=plan.baselines, warnings=(),
            meta=PlanMeta("core", 1, PlanState.DRAFT, "t", "r", plan.inputs, SLO),
        )  # fmt: skip


def test_a_plan_says_what_moves_between_regions() -> None:
    # 4 req/s of 0.01 GB: 0.32 Gbit/s and 144 GB/h, at 0.01 USD/GB 1.44 USD/h beside a rent of 3 x 1 + 2 x 2.5.
    plan = make_plan(LINKED)
    assert check_plan(LINKED, plan, FACTS) == []
    (row,) = plan.kv_transfers
    assert (row.model, row.from_region, row.to_region, row.usd_per_gb) == ("a", R1, R2, 0.01)
    assert (row.req_per_s, row.gbit_per_s, row.usd_per_h) == pytest.approx((4.0, 0.32, 1.44))
    assert (plan.egress_usd_per_h, plan.cost_usd_per_h) == pytest.approx((1.44, 9.44))
    assert decision_hash(plan) != decision_hash(plan.model_copy(update={"kv_transfers": ()}))
    document = plan.model_dump(mode="json", by_alias=True)
    rows = document["kv_transfers"]
    assert refused(LINKED, document | {"kv_transfers": []})
    assert refused(LINKED, document | {"kv_transfers": [*rows, *rows]})


@pytest.mark.parametrize("p", [FULL, SHORT, MARKETS, LINKED], ids=["full", "short", "markets", "linked"])
def test_every_column_of_a_plan_is_checked(p: AllocationProblem) -> None:
    document = make_plan(p).model_dump(mode="json", by_alias=True)
    assert not refused(p, document)
    tried = 0
    for path, value in _cells(document):
        column = next(key for key in reversed(path) if isinstance(key, str))
        if column in _ALLOWED_TEXT and isinstance(value, str):
            continue
        others = [_TEXT[column]] if isinstance(value, str) else _mutations(value)
        others = ["on_demand"] if others == [value] else others
        others = [_FORMED[column]] if column in _FORMED else others
        assert others, f"no mutation for {path}"
        for other in others:
            assert refused(p, with_cell(document, path, other)), f"{path} = {other!r} was let through (was {value!r})"
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("part", ["instances", "offers", "workloads", "shortfalls"])
def test_a_dropped_or_doubled_row_isrefused(part: str) -> None:
    document = make_plan(SHORT).model_dump(mode="json", by_alias=True)
    rows = document[part]
    assert refused(SHORT, document | {part: rows[1:]})
    assert refused(SHORT, document | {part: [*rows, rows[0]]})


def test_a_stated_status_must_fit() -> None:
    full, short = (make_plan(p).model_dump(mode="json", by_alias=True) for p in (FULL, SHORT))
    assert refused(FULL, full | {"status": "shortfall"})
    assert refused(FULL, full | {"status": "error"})
    assert refused(SHORT, short | {"status": "optimal"})
    assert refused(FULL, full | {"solve_s": -1.0})
    assert refused(FULL, full | {"unknown": 1})
