"""Shares settled with the plan, on a made-up workload whose safe uses are known; choices by enumeration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from allocation_cases import R1, problem, workload

from catalogs.types import Phase
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.headroom import settle
from tasks.allocation.share_search import SearchLimits
from tasks.allocation.shares import uses, with_headroom, without_templates
from tasks.allocation.types import AllocationProblem, AllocationResult, SolveLimits

LIMITS = SolveLimits(gap=1e-9, time_s=20.0)
CONFIGS = ("L4x1", "A10Gx1")
PRICE = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 2.5}


def case(demand: float = 90.0, share: float = 0.8, **fields) -> AllocationProblem:
    """``cheap``: 50 req/s for 1 USD/h; ``solid``: 100 req/s for 2.5 USD/h."""
    templates = {"cheap": ({"L4x1": 1}, 50), "solid": ({"A10Gx1": 1}, 100)}
    own = workload("a", Phase.AGGREGATED, templates, CONFIGS, headroom=share)
    capacity = {(R1, name): 20 for name in CONFIGS}
    return problem([own], {"a": demand}, PRICE, capacity, configs=CONFIGS, **fields)


def solve(asked: AllocationProblem) -> AllocationResult:
    return solve_covers(asked, LIMITS)


def measure_by(safe: Mapping[str, float]):
    """A set is as safe as its least safe template."""

    def measure(result: AllocationResult) -> dict[str, float]:
        found: dict[str, float] = {}
        for row in result.instances:
            found[row.workload_id] = min(safe[row.template_id], found.get(row.workload_id, 1.0))
        return found

    return measure


def chosen(result: AllocationResult) -> dict[str, int]:
    return {row.template_id: row.instances for row in result.instances}


def test_uses_by_hand() -> None:
    asked = case(demand=60.0)
    result = solve(asked)
    assert chosen(result) == {"cheap": 2}  # 2 x 50 x 0.8 = 80 >= 60
    assert uses(asked, result) == pytest.approx({"a-aggregated": 0.6})


def test_a_measured_share_above_the_start_saves_an_instance() -> None:
    """90 req/s: three at 0.8, two at 0.95."""
    assert chosen(solve(case())) == {"cheap": 3}
    settled = settle(case(), solve, measure_by({"cheap": 0.95, "solid": 0.95}))
    assert chosen(settled.result) == {"cheap": 2}
    assert settled.problem.candidates[0].headroom == 0.95
    assert not settled.short
    assert not settled.set_aside


def test_a_template_that_cannot_be_used_gives_way_to_one_that_can() -> None:
    """At 0.3 ``cheap`` takes 6 USD/h, but one ``solid`` at 0.9 serves 90 req/s for 2.5."""
    settled = settle(case(), solve, measure_by({"cheap": 0.3, "solid": 0.9}))
    assert chosen(settled.result) == {"solid": 1}
    assert settled.result.cost_usd_per_h == pytest.approx(2.5)
    assert not settled.short


def test_choices_that_alternate_end_in_the_cheaper_one_that_holds() -> None:
    """``cheap`` holds 0.5 only: four of it, 4 USD/h. Without it two ``solid`` at 0.8, and one at the 1.0 that they hold."""
    settled = settle(case(), solve, measure_by({"cheap": 0.5, "solid": 1.0}))
    assert chosen(settled.result) == {"solid": 1}
    assert not settled.short


def test_a_share_that_is_nearly_kept_falls_and_the_template_stays() -> None:
    """118 req/s: three ``cheap`` at 0.8 are used to 0.787; at the 0.78 they hold four are needed, for less than ``solid``."""
    settled = settle(case(demand=118.0), solve, measure_by({"cheap": 0.78, "solid": 0.5}))
    assert chosen(settled.result) == {"cheap": 4}
    assert settled.problem.candidates[0].headroom == 0.78
    assert not settled.set_aside


def test_after_two_failures_the_share_falls_and_what_keeps_it_is_let_in_again() -> None:
    """``cheap`` holds 0.5, ``mid`` 0.4, ``solid`` 0.3: all miss 0.8. At 0.5 four ``cheap`` serve 90 req/s for 4 USD/h."""
    templates = {"cheap": ({"L4x1": 1}, 50), "mid": ({"L4x1": 1}, 49), "solid": ({"A10Gx1": 1}, 100)}
    own = workload("a", Phase.AGGREGATED, templates, CONFIGS, headroom=0.8)
    asked = problem([own], {"a": 90.0}, PRICE, {(R1, name): 20 for name in CONFIGS}, configs=CONFIGS)
    settled = settle(asked, solve, measure_by({"cheap": 0.5, "mid": 0.4, "solid": 0.3}))
    assert chosen(settled.result) == {"cheap": 4}
    assert settled.problem.candidates[0].headroom == 0.5
    assert settled.set_aside == {"a-aggregated": frozenset({"mid"})}


def test_where_nothing_holds_the_plan_says_what_it_is_short_of() -> None:
    settled = settle(case(demand=400.0), solve, measure_by({"cheap": 0.0, "solid": 0.0}))
    (short,) = settled.short.values()
    assert short[0] > short[1] == 0.0
    assert settled.result.theta == 1.0, "a smaller share does not help: what is there is not left unused for it"


def test_a_share_of_nothing_is_never_planned_with() -> None:
    """No template is safe at any use, and the search may lower shares as far as it likes: it ends short, not by dividing."""
    settled = settle(case(), solve, measure_by({"cheap": 0.0, "solid": 0.0}), SearchLimits(hopeless=0.0))
    assert settled.short
    assert all(share > 0 for share in (c.headroom for c in settled.problem.candidates))


def test_leaving_templates_out_never_makes_a_shortage() -> None:
    """``cheap`` holds 0.5: without it the one ``solid`` serves 90 req/s, with it at half its use 90 + 20 x 25 = 590."""
    templates = {"cheap": ({"L4x1": 1}, 50), "solid": ({"A10Gx1": 1}, 100)}
    own = workload("a", Phase.AGGREGATED, templates, CONFIGS, headroom=0.9)
    supply = {(R1, "L4x1"): 20, (R1, "A10Gx1"): 1}
    asked = problem([own], {"a": 400.0}, PRICE, supply, configs=CONFIGS)
    settled = settle(asked, solve, measure_by({"cheap": 0.5, "solid": 0.9}))
    assert settled.result.theta == 1.0
    assert not settled.short
    assert settled.set_aside == {}


def test_what_runs_does_not_change_the_shares() -> None:
    safe = measure_by({"cheap": 0.95, "solid": 0.95})
    fresh = settle(case(init_share=0.1), solve, safe)
    again = settle(case(init_share=0.1, running={(R1, "cheap"): 2}), solve, safe)
    assert again.problem.candidates[0].headroom == fresh.problem.candidates[0].headroom
    assert chosen(again.result) == chosen(fresh.result)
    assert (again.result.init_usd, fresh.result.init_usd) == pytest.approx((0.0, 0.2))


def test_the_choice_made_as_if_nothing_ran_is_kept_beside() -> None:
    """90 req/s at 0.95: the ``solid`` that runs for 2.5 USD/h stays, as two ``cheap`` for 2 would pay 4 at their start."""
    safe = measure_by({"cheap": 0.95, "solid": 0.95})
    settled = settle(case(init_share=2.0, running={(R1, "solid"): 1}), solve, safe)
    assert chosen(settled.result) == {"solid": 1}
    assert settled.fresh is not None
    assert chosen(settled.fresh) == {"cheap": 2}
    assert settled.fresh.objective_usd == pytest.approx(2.0)


def test_templates_are_left_out_with_what_runs_of_them() -> None:
    left = without_templates(case(running={(R1, "cheap"): 1, (R1, "solid"): 1}), {"a-aggregated": frozenset({"cheap"})})
    assert left.candidates[0].template_ids == ("solid",)
    assert left.candidates[0].counts.tolist() == [[0, 1]]
    assert left.candidates[0].throughput_mtok_per_s.tolist() == [100_000]
    assert left.running == {(R1, "solid"): 1}


def test_shares_are_set_by_workload() -> None:
    both = replace(case(), candidates=(*case().candidates, workload("b", Phase.DECODE, {}, CONFIGS, headroom=0.7)))
    assert [c.headroom for c in with_headroom(both, {"a-aggregated": 0.5}).candidates] == [0.5, 0.7]


def test_a_phase_that_has_less_to_do_is_used_less() -> None:
    """Decode serves 0.5 x 40 of 100 req/s: prefill, with 200 at its whole rate, has 20 to do and is used to a tenth."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L4x1": 1}, 200)}, CONFIGS, headroom=0.8)
    decode = workload("a", Phase.DECODE, {"d": ({"A10Gx1": 1}, 40)}, CONFIGS, headroom=0.5)
    supply = {(R1, "L4x1"): 1, (R1, "A10Gx1"): 1}
    asked = problem([prefill, decode], {"a": 100.0}, PRICE, supply, configs=CONFIGS)
    assert uses(asked, solve(asked)) == pytest.approx({"a-prefill": 0.1, "a-decode": 0.5})


def test_what_runs_and_does_not_hold_together_gives_way_to_the_choice_made_without() -> None:
    """Three ``cheap`` run and would stay, at a start-up charge for others; in company they hold nothing."""
    safe = {"cheap": 0.95, "solid": 0.95}

    def measure(result: AllocationResult) -> dict[str, float]:
        used = chosen(result)
        return {"a-aggregated": 0.0 if used.get("cheap", 0) == 3 else min(safe[name] for name in used)}

    fresh = settle(case(), solve, measure)
    assert not fresh.short
    again = settle(case(init_share=0.5, running={(R1, "cheap"): 3}), solve, measure)
    assert not again.short


THREE = ("L4x1", "A10Gx1", "L40Sx1")


def two_phases(demand: float, dear: int = 20) -> AllocationProblem:
    """Prefill of 100 req/s each; decode of 10 each, at 1 USD/h (``good``, two nodes), 1.5 (``slow``) and 4 (``dear``)."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L40Sx1": 1}, 100)}, THREE, headroom=0.8)
    rates = {"good": ({"L4x1": 1}, 10), "slow": ({"A10Gx1": 1}, 10), "dear": ({"L40Sx1": 1}, 10)}
    decode = workload("a", Phase.DECODE, rates, THREE, headroom=0.8)
    price = {(R1, "L4x1"): 1.0, (R1, "A10Gx1"): 1.5, (R1, "L40Sx1"): 4.0}
    supply = {(R1, "L4x1"): 2, (R1, "A10Gx1"): 20, (R1, "L40Sx1"): dear}
    return problem([prefill, decode], {"a": demand}, price, supply, configs=THREE)


def held_up_by(slow: float):
    """All is safe at 0.8, but prefill only at ``slow`` where some of its KV goes to ``slow`` decode instances."""

    def measure(result: AllocationResult) -> dict[str, float]:
        used = chosen(result)
        safe = {"a-prefill": slow if "slow" in used else 0.8, "a-decode": 0.8}
        return {name: share for name, share in safe.items() if any(r.workload_id == name for r in result.instances)}

    return measure


def test_only_the_receivers_that_hold_prefill_up_give_way() -> None:
    """24 req/s: two ``good`` and one ``slow`` at first; prefill holds with ``good``, so these stay beside one ``dear``."""
    settled = settle(two_phases(24.0), solve, held_up_by(0.0))
    assert chosen(settled.result) == {"p": 1, "good": 2, "dear": 1}
    assert settled.set_aside == {"a-decode": frozenset({"slow"})}
    assert not settled.short


def test_where_demand_is_not_met_without_slow_receivers_prefill_is_used_less_instead() -> None:
    """Two ``dear`` beside one prefill: without ``slow`` 32 of 60 req/s. With it prefill holds 0.5: 60 take two of 100."""
    settled = settle(two_phases(60.0, dear=3), solve, held_up_by(0.5))
    assert settled.result.theta == 1.0
    assert not settled.short
    assert chosen(settled.result) == {"p": 2, "good": 2, "slow": 6}
    shares = {c.workload_id: c.headroom for c in settled.problem.candidates}
    assert shares == pytest.approx({"a-prefill": 0.5, "a-decode": 0.8})


def test_shares_of_decode_do_not_fall_for_what_only_prefill_misses() -> None:
    """With ``slow`` prefill holds nothing: 24 of 40 req/s is what can be served within the SLOs."""
    settled = settle(two_phases(40.0, dear=2), solve, held_up_by(0.0))
    assert settled.result.theta == pytest.approx(0.6)
    assert not settled.short
    assert chosen(settled.result) == {"p": 1, "good": 2, "dear": 1}


def test_where_receivers_are_too_few_there_are_more_of_them() -> None:
    """60 req/s: one prefill of 100, eight decode instances of 10 at 0.8. Each takes the KV of 6 req/s in: ten are needed."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L40Sx1": 1}, 100)}, THREE, headroom=0.8)
    decode = workload("a", Phase.DECODE, {"d": ({"L4x1": 1}, 10)}, THREE, headroom=0.8)
    supply = {(R1, name): 20 for name in THREE}
    asked = problem([prefill, decode], {"a": 60.0}, {(R1, "L4x1"): 1.0, (R1, "L40Sx1"): 4.0}, supply, configs=THREE)

    def measure(result: AllocationResult) -> dict[str, float]:
        used = chosen(result)
        takes_in = 0.06 * used.get("d", 20) / used.get("p", 1)
        safe = {"a-prefill": min(0.8, takes_in), "a-decode": 0.8}
        return {name: share for name, share in safe.items() if any(r.workload_id == name for r in result.instances)}

    settled = settle(asked, solve, measure)
    assert not settled.short
    assert settled.result.theta == 1.0
    assert chosen(settled.result) == {"p": 1, "d": 10}


def kinds_of_decode(rates: Mapping[str, float], prefill_usd_per_h: float) -> AllocationProblem:
    """60 req/s: prefill of 100 req/s each; decode templates at 1 USD/h with the ``rates``."""
    prefill = workload("a", Phase.PREFILL, {"p": ({"L40Sx1": 1}, 100)}, THREE, headroom=0.8)
    decode = workload(
        "a", Phase.DECODE, {name: ({"L4x1": 1}, rate) for name, rate in rates.items()}, THREE, headroom=0.8
    )
    price = {(R1, "L4x1"): 1.0, (R1, "L40Sx1"): prefill_usd_per_h}
    return problem([prefill, decode], {"a": 60.0}, price, {(R1, name): 40 for name in THREE}, configs=THREE)


def held_to_half_by(*slow: str):
    """Prefill is safe at 0.5 where any of its KV goes to ``slow`` instances, however many these are; all else at 0.8."""

    def measure(result: AllocationResult) -> dict[str, float]:
        used = chosen(result)
        safe = {"a-prefill": 0.5 if used.keys() & {*slow} else 0.8, "a-decode": 0.8}
        return {name: share for name, share in safe.items() if any(r.workload_id == name for r in result.instances)}

    return measure


def test_where_more_receivers_are_in_vain_prefill_is_used_less() -> None:
    """Eight ``d`` decode 60 req/s at 0.8, and more do not help. Prefill at the 0.5 that it holds takes two: 8 + 2 x 4 USD/h."""
    settled = settle(kinds_of_decode({"d": 10}, prefill_usd_per_h=4.0), solve, held_to_half_by("d"))
    assert not settled.short
    assert chosen(settled.result) == {"p": 2, "d": 8}
    assert settled.result.objective_usd == pytest.approx(16.0)


def test_where_more_receivers_are_in_vain_every_slow_kind_gives_way() -> None:
    """Prefill holds its share with ``c`` only. 11 ``c`` beside one prefill are 51 USD/h, 8 ``a`` beside two 88."""
    asked = kinds_of_decode({"a": 10, "b": 9, "c": 7}, prefill_usd_per_h=40.0)
    settled = settle(asked, solve, held_to_half_by("a", "b"))
    assert not settled.short
    assert chosen(settled.result) == {"p": 1, "c": 11}


def test_receivers_rise_no_further_than_they_are_safe_at() -> None:
    """60 req/s: one prefill of 100 holds 0.05 for each ``d``. Eight, used to 0.75, are too few; 12 at 0.5 are enough, and of so
    many more than 0.5 is not safe: the half of the way back to 0.75 is not tried."""

    def measure(result: AllocationResult) -> dict[str, float]:
        used = chosen(result)
        prefill = min(0.8, 0.05 * used.get("d", 20) / used.get("p", 1))
        safe = {"a-prefill": prefill, "a-decode": 0.8 if used.get("d", 0) < 12 else 0.5}
        return {name: share for name, share in safe.items() if any(r.workload_id == name for r in result.instances)}

    tried: set[float] = set()

    def solve_noted(asked: AllocationProblem) -> AllocationResult:
        tried.add(asked.candidates[1].headroom)
        return solve(asked)

    settled = settle(kinds_of_decode({"d": 10}, prefill_usd_per_h=40.0), solve_noted, measure)
    assert chosen(settled.result) == {"p": 1, "d": 12}
    assert not settled.short
    assert tried == {0.8, 0.5}
