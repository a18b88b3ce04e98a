"""What a plan costs once made good at its true rates, by hand."""

from __future__ import annotations

import math

import pytest
from allocation_cases import R1, problem, workload

from catalogs.types import Phase
from tasks.allocation.regret import repaired_cost_usd_per_h
from tasks.allocation.types import Instance

CONFIGS = ("L4x1", "A10Gx1")
PRICE = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 2.5}
CAPACITY = {(R1, "L4x1"): 9, (R1, "A10Gx1"): 9}


def case(l4: float, a10g: float, headroom: float = 1.0):
    """One model that wants 10 tok/s, from an L4 at ``l4`` tok/s or an A10G at ``a10g``."""
    templates = {"l4": ({"L4x1": 1}, l4), "a10g": ({"A10Gx1": 1}, a10g)}
    candidates = workload("m", Phase.DECODE, templates, CONFIGS, headroom=headroom)
    return problem([candidates], {"m": 10.0}, PRICE, CAPACITY)


def planned(l4: int, a10g: int) -> list[Instance]:
    rows = [("l4", l4, 1.0), ("a10g", a10g, 2.5)]
    return [Instance(R1, t, "m-decode", n, n, n * price) for t, n, price in rows if n]


def test_as_expected_nothing_changes() -> None:
    assert repaired_cost_usd_per_h(case(5, 10), planned(2, 0), {"l4": 5000, "a10g": 10000}) == (1.0, 2.0)


def test_a_shortage_is_filled_the_cheapest_way() -> None:
    # Two L4 of 4 give 8 of 10: one more L4 (1 USD) closes it, not an A10G (2.5 USD).
    assert repaired_cost_usd_per_h(case(4, 9), planned(2, 0), {"l4": 4000, "a10g": 9000}) == (0.8, 3.0)
    # Two of 1 give 2: eight more cost 8, one A10G of 9 costs 2.5.
    assert repaired_cost_usd_per_h(case(1, 9), planned(2, 0), {"l4": 1000, "a10g": 9000}) == (0.2, 4.5)


def test_what_is_not_needed_goes_back_dearest_first() -> None:
    # An A10G of 20 does it alone, but so do two L4 of 10: the A10G goes first, then one L4.
    assert repaired_cost_usd_per_h(case(10, 20), planned(2, 1), {"l4": 10000, "a10g": 20000}) == (1.0, 1.0)


def test_headroom_counts() -> None:
    met, cost = repaired_cost_usd_per_h(case(5, 10, headroom=0.8), planned(2, 0), {"l4": 5000, "a10g": 10000})
    assert (met, cost) == (pytest.approx(0.8), 3.0)


def test_no_template_that_could_close_it() -> None:
    assert repaired_cost_usd_per_h(case(0, 0), planned(1, 0), {"l4": 0, "a10g": 0}) == (0.0, math.inf)
