"""From plain inputs to a problem: what is taken, what is refused, and with which words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from catalogs.errors import CoralError, HeldError, NothingFitsError, UnknownNameError
from catalogs.types import Basis, Phase
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.prepare import Capacity, WorkloadInput, build_problem
from tasks.allocation.types import ModelDemand, SolveLimits, SolveStatus
from tasks.templates.schema import NODE_TYPE

R = "aws/us-east-2"


def inputs(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "workloads": [WorkloadInput("w", "a/decode", "a", Phase.DECODE, 10.0, 0.9)],
        "templates": {
            "w": pa.table(
                {
                    "template_id": ["t1", "t2", "t3"],
                    "throughput_mtok_per_s": pa.array([50_000, 90_000, 10], pa.int64()),
                    "combination_id": ["L4x1*1", "A10Gx1*1+L4x1*2", "H100-SXMx8*1"],
                }
            )
        },
        "regions": [R],
        "node_configs": ["L4x1", "A10Gx1"],
        "price_usd_per_h": {(R, "L4x1"): 1.0, (R, "A10Gx1"): 1.5},
        "capacity": {(R, "L4x1"): Capacity(4, Basis.FEED), (R, "A10Gx1"): Capacity(2, Basis.ASSUMED)},
        "demands": [ModelDemand("a", 9.0, ("w",), (R,))],
    }
    return base | changes


def test_builds_counts_prices_and_capacity() -> None:
    p = build_problem(**inputs())
    (c,) = p.candidates
    assert c.template_ids == ("t1", "t2")  # t3 needs a node that is bought nowhere here
    assert c.counts.tolist() == [[1, 0], [2, 1]]
    assert p.price_usd_per_h.tolist() == [[1.0, 1.5]]
    assert p.capacity_nodes.tolist() == [[4, 2]]
    assert p.capacity_basis[R, "A10Gx1"] is Basis.ASSUMED
    # 50 tok/s x 0.9 / 10 = 4.5 req/s per t1 at 1.00; t2 8.1 req/s at 3.50: two t1.
    result = solve_ilp(p, SolveLimits(gap=0.0))
    assert (result.status, result.cost_usd_per_h) == (SolveStatus.OPTIMAL, 2.0)


def test_nested_nodes_are_read_as_combination_ids_are() -> None:
    slim = inputs()["templates"]["w"]
    nodes = [
        [{"node_config": "L4x1", "nodes": 1}],
        [{"node_config": "A10Gx1", "nodes": 1}, {"node_config": "L4x1", "nodes": 2}],
        [{"node_config": "H100-SXMx8", "nodes": 1}],
    ]
    nested = slim.drop_columns(["combination_id"]).append_column("nodes", pa.array(nodes, pa.list_(NODE_TYPE)))
    sliced = pa.concat_tables([nested, nested]).slice(3)
    a, b = build_problem(**inputs()), build_problem(**inputs(templates={"w": sliced}))
    assert a.candidates[0].template_ids == b.candidates[0].template_ids
    assert np.array_equal(a.candidates[0].counts, b.candidates[0].counts)


@pytest.mark.parametrize("blank", [None, math.nan])
def test_a_blank_price_means_not_sold(blank: float | None) -> None:
    p = build_problem(**inputs(price_usd_per_h={(R, "L4x1"): 1.0, (R, "A10Gx1"): blank}))
    assert np.isnan(p.price_usd_per_h[0, 1])
    assert {row.template_id for row in solve_ilp(p, SolveLimits()).instances} == {"t1"}


@pytest.mark.parametrize("value", [None, math.nan])
def test_unknown_demand_holds(value: float | None) -> None:
    with pytest.raises(HeldError, match="demand of a is unknown"):
        build_problem(**inputs(demands=[ModelDemand("a", value, ("w",), (R,))]))  # type: ignore[arg-type]


def test_no_template_at_all_names_the_workload() -> None:
    with pytest.raises(NothingFitsError, match="a/decode has no serving template"):
        build_problem(**inputs(templates={}))


def test_templates_that_no_allowed_region_sells_name_the_regions() -> None:
    with pytest.raises(NothingFitsError, match="none of its 3 templates can be bought whole in aws/us-east-2"):
        build_problem(**inputs(price_usd_per_h={(R, "A10Gx1"): 1.5}))


def test_no_demand_needs_no_template() -> None:
    assert build_problem(**inputs(templates={}, demands=[ModelDemand("a", 0.0, ("w",), (R,))])).candidates[
        0
    ].counts.shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"demands": [ModelDemand("a", -1.0, ("w",), (R,))]}, "demand of a is -1.0"),
        ({"demands": [ModelDemand("a", math.inf, ("w",), (R,))]}, "demand of a is inf"),
        ({"demands": [ModelDemand("a", 1.0, ("w",), (R,), min_regions=2)]}, "at least 2 regions of 1"),
        ({"demands": [ModelDemand("a", 1.0, ("w",), (R,), weight=0.0)]}, "weight of a is 0.0"),
        ({"demands": [ModelDemand("a", 1.0, ("w",), (R,)), ModelDemand("b", 1.0, ("w",), (R,))]}, "listed by two"),
        ({"price_usd_per_h": {(R, "L4x1"): -1.0}}, "price of L4x1 in aws/us-east-2 is -1.0"),
        ({"price_usd_per_h": {(R, "L4x1"): math.inf}}, "price of L4x1 in aws/us-east-2 is inf"),
        ({"capacity": {(R, "L4x1"): Capacity(4, Basis.FEED)}}, "availability of A10Gx1 in aws/us-east-2 is unknown"),
        (
            {"capacity": {(R, "L4x1"): Capacity(-4, Basis.FEED), (R, "A10Gx1"): Capacity(1, Basis.FEED)}},
            "availability of L4x1 in aws/us-east-2 is -4",
        ),
        ({"workloads": [WorkloadInput("w", "a/decode", "a", Phase.DECODE, 10.0, 1.1)]}, "headroom of a/decode is 1.1"),
        ({"workloads": [WorkloadInput("w", "a/decode", "a", Phase.DECODE, 0.0, 0.9)]}, "0.0 tokens per request"),
        ({"init_share": math.nan}, "init_share is nan"),
        ({"budget_usd_per_h": -5.0}, "budget_usd_per_h is -5.0"),
        ({"running": {(R, "t1"): -1}}, "running instances of t1"),
    ],
)
def test_values_out_of_range_are_refused_with_a_remedy(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CoralError, match=words) as caught:
        build_problem(**inputs(**changes))
    assert "To fix: " in str(caught.value)


def test_unknown_names_come_with_close_matches() -> None:
    with pytest.raises(UnknownNameError, match="did you mean aws/us-east-2"):
        build_problem(**inputs(demands=[ModelDemand("a", 1.0, ("w",), ("aws/us-east-1",))]))
    with pytest.raises(UnknownNameError, match="unknown workload 'x'"):
        build_problem(**inputs(demands=[ModelDemand("a", 1.0, ("x",), (R,))]))
