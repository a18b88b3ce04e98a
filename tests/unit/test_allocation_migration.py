"""Steps from today's machines to a plan: replayed by code of the tests' own, and small cases by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, R2
from scipy.optimize import linprog

from tasks.allocation.migration import Action, Crossing, Key, Steps, Unit, _flow, order_steps
from tasks.allocation.types import ModelDemand

ONE = [ModelDemand("m", 10.0, ("w",), (R1,))]
PRICE = {(r, k): p for r in (R1, R2) for k, p in (("a", 1.0), ("b", 2.0))}


def unit(
    name: str, kind: str, rate: float, instances: int, *, region: str = R1, workload: str = "w", n: int = 1
) -> Unit:
    return Unit(name, region, workload, {kind: n}, rate, n * PRICE[region, kind], instances)


def told(steps: Steps) -> list[tuple[str, int, str]]:
    return [(s.action.value, s.instances, s.unit.name) for s in steps.steps]


def replay(
    today: Sequence[Unit],
    plan: Sequence[Unit],
    capacity: Mapping[Key, int],
    demands: Sequence[ModelDemand],
    steps: Steps,
    kept: Sequence[Unit] = (),
) -> None:
    """Every rule at every step, from scratch."""
    running = Counter({("old", i): u.instances for i, u in enumerate(today)})
    running.update({("kept", i): u.instances for i, u in enumerate(kept)})
    rows = {("old", i): u for i, u in enumerate(today)} | {("new", i): u for i, u in enumerate(plan)}
    rows |= {("kept", i): u for i, u in enumerate(kept)}

    def machines(counts: Counter) -> Counter:
        found: Counter = Counter()
        for key, n in counts.items():
            for kind, many in rows[key].nodes.items():
                found[rows[key].region, kind] += many * n
        return found

    def rate(counts: Counter, workload: str, region: str | None = None) -> float:
        return sum(
            n * rows[k].req_per_s
            for k, n in counts.items()
            if rows[k].workload_id == workload and region in (None, rows[k].region)
        )

    def served(counts: Counter) -> dict[str, float]:
        found = {w: rate(counts, w) for d in demands for w in d.workload_ids}
        for d in demands:
            found[d.model] = sum(min(rate(counts, w, r) for w in d.workload_ids) for r in (R1, R2))
        return found

    goal = Counter({("new", i): u.instances for i, u in enumerate(plan)})
    goal.update({("kept", i): u.instances for i, u in enumerate(kept)})
    first, last = served(running), served(goal)
    wanted = {name: d.planned_req_per_s for d in demands for name in (d.model, *d.workload_ids)}
    floor = {name: min(wanted[name], first[name], last[name]) for name in wanted}
    most = {key: max(capacity.get(key, 0), n) for key, n in machines(running).items()}
    held = machines(running)
    for step in steps.steps:
        side = "old" if step.action is Action.DRAIN else "new"
        (key,) = [k for k, u in rows.items() if k[0] == side and u is step.unit]
        running[key] += step.instances if side == "new" else -step.instances
        assert running[key] >= 0
        for kind, n in step.rents.items():
            held[step.unit.region, kind] += n
        for kind, n in step.returns.items():
            held[step.unit.region, kind] -= n
        used = machines(running)
        assert all(held[k] >= n for k, n in used.items()), "runs on machines that are not rented"
        assert all(n <= most.get(k, capacity.get(k, 0)) for k, n in held.items()), "more machines than there are"
        assert all(now >= floor[name] - 1e-9 for name, now in served(running).items()), "below demand"
        assert step.rent_usd_per_h == pytest.approx(sum(PRICE[k] * n for k, n in held.items()))
        assert (step.action is Action.SHIFT) == (side == "new" and not step.rents)
    if not steps.short:
        assert +running == +goal
        assert +held == +machines(goal)


def check(today: Sequence[Unit], plan: Sequence[Unit], capacity: Mapping[Key, int], demands=ONE, kept=()) -> Steps:
    steps = order_steps(today, plan, capacity, demands, PRICE, kept)
    replay(today, plan, capacity, demands, steps, kept)
    return steps


def test_what_is_not_needed_goes_first_then_new_ones_come_before_old_ones_go() -> None:
    """4 x 5 req/s for a demand of 10: two may go at once, the others once the new one runs."""
    steps = check([unit("old", "a", 5.0, 4)], [unit("new", "b", 12.0, 1)], {(R1, "a"): 4, (R1, "b"): 1})
    assert told(steps) == [("drain", 2, "old"), ("add", 1, "new"), ("drain", 2, "old")]
    assert [s.rent_usd_per_h for s in steps.steps] == [2.0, 4.0, 2.0]
    assert [round(s.covers, 3) for s in steps.steps] == [1.0, 2.2, 1.2]


def test_machines_that_were_freed_are_used_again() -> None:
    """All 3 machines are taken; one may stop, and the new one starts on it."""
    steps = check([unit("old", "a", 5.0, 3)], [unit("new", "a", 5.0, 2)], {(R1, "a"): 3})
    assert told(steps) == [
        ("drain", 1, "old"),
        ("shift", 1, "new"),
        ("drain", 1, "old"),
        ("shift", 1, "new"),
        ("drain", 1, "old"),
    ]
    assert not any(s.rents for s in steps.steps)
    assert [dict(s.returns) for s in steps.steps] == [{}, {}, {}, {}, {"a": 1}]


def test_without_a_spare_machine_it_says_what_is_short() -> None:
    """2 x 5 req/s for 10, no third machine: nothing can stop and nothing can start."""
    steps = order_steps([unit("old", "a", 5.0, 2)], [unit("new", "a", 5.0, 2)], {(R1, "a"): 2}, ONE, PRICE)
    assert steps.steps == ()
    assert steps.short == {(R1, "a"): 1}


def test_today_below_demand_is_held_where_it_is() -> None:
    """Today serves 4 of 10: that much is held, no more is asked."""
    steps = check([unit("old", "a", 4.0, 1)], [unit("new", "a", 10.0, 1)], {(R1, "a"): 2})
    assert told(steps) == [("add", 1, "new"), ("drain", 1, "old")]


def test_what_serves_nothing_by_prediction_goes_last() -> None:
    steps = check([unit("slow", "b", 0.0, 1)], [unit("new", "a", 10.0, 1)], {(R1, "a"): 1, (R1, "b"): 1})
    assert told(steps) == [("add", 1, "new"), ("drain", 1, "slow")]


def test_phases_stay_together_while_a_model_moves_to_another_region() -> None:
    demands = [ModelDemand("m", 10.0, ("p", "d"), (R1, R2))]
    today = [unit("p1", "a", 10.0, 1, workload="p"), unit("d1", "b", 10.0, 1, workload="d")]
    plan = [
        unit("p2", "a", 10.0, 1, region=R2, workload="p"),
        unit("d2", "b", 10.0, 1, region=R2, workload="d"),
    ]
    steps = check(today, plan, dict.fromkeys(PRICE, 1), demands)
    assert [s.action.value for s in steps.steps] == ["add", "add", "drain", "drain"]


def test_what_is_in_both_stays_and_serves() -> None:
    kept = [unit("kept", "a", 10.0, 1)]
    steps = check([unit("old", "a", 5.0, 1)], [], {(R1, "a"): 2}, kept=kept)
    assert told(steps) == [("drain", 1, "old")]
    assert check([], [], {}, kept=kept).steps == ()


def test_kv_crosses_regions_as_the_plan_says_and_no_other_way() -> None:
    """From prefill and decode in R1 to prefill in R2 and decode in R3, with KV from R2 to R3 alone: prefill in R1 must not go
    before decode in R3 runs, nor decode in R1 before prefill in R2 does, though each phase by itself would be served."""
    r3 = "R3"
    price = PRICE | {(r3, "b"): 2.0}
    demands = [ModelDemand("m", 10.0, ("p", "d"), (R1, R2, r3))]
    today = [unit("p1", "a", 10.0, 1, workload="p"), unit("d1", "b", 10.0, 1, workload="d")]
    plan = [unit("p2", "a", 10.0, 1, region=R2, workload="p"), Unit("d3", r3, "d", {"b": 1}, 10.0, 2.0, 1)]
    ways = [Crossing("m", "p", "d", R2, r3, 10.0)]
    steps = order_steps(today, plan, dict.fromkeys(price, 1), demands, price, (), ways)
    assert not steps.short
    assert [s.action.value for s in steps.steps] == ["add", "add", "drain", "drain"]
    # With all four 10 req/s are served in R1 and 10 across.
    assert [s.covers for s in steps.steps] == [1.0, 2.0, 1.0, 1.0]


def test_no_more_kv_crosses_regions_than_the_plan_says() -> None:
    """As above, and 4 req/s of either phase in R1, on the machines that today's 10 take. Where all 10 may cross, prefill and
    decode in R1 can go once R2 and R3 run. Where 6 may, they must stay: 4 of 10 would be missing until the machines are free."""
    r3 = "R3"
    price = PRICE | {(r3, "b"): 2.0}
    demands = [ModelDemand("m", 10.0, ("p", "d"), (R1, R2, r3))]
    today = [unit("p1", "a", 10.0, 1, workload="p"), unit("d1", "b", 10.0, 1, workload="d")]
    plan = [
        unit("p2", "a", 10.0, 1, region=R2, workload="p"),
        Unit("d3", r3, "d", {"b": 1}, 10.0, 2.0, 1),
        unit("p4", "a", 4.0, 1, workload="p"),
        unit("d4", "b", 4.0, 1, workload="d"),
    ]
    way = Crossing("m", "p", "d", R2, r3, 10.0)
    wide, narrow = (
        order_steps(today, plan, dict.fromkeys(price, 1), demands, price, (), [replace(way, req_per_s=most)])
        for most in (10.0, 6.0)
    )
    assert not wide.short
    assert sorted(told(wide)[2:]) == [("drain", 1, "d1"), ("drain", 1, "p1"), ("shift", 1, "d4"), ("shift", 1, "p4")]
    # 10 in R1 and 6 across; each phase by itself serves 20 of 10.
    assert [(s.action.value, s.covers) for s in narrow.steps] == [("add", 1.0), ("add", 1.6)]
    assert sum(narrow.short.values()) == 1
    assert set(narrow.short) < {(R1, "a"), (R1, "b")}


def test_what_is_served_together_is_the_most_that_flows() -> None:
    """Against a linear program: x_rs req/s prefill in r and decode in s, inside a region or where KV crosses."""
    rng = np.random.default_rng(3)
    names = ["A", "B", "C", "D"]
    for _ in range(60):
        rates = {(w, r): float(rng.integers(0, 9)) for w in ("p", "d") for r in names if rng.random() < 0.8}
        links = {(a, b): float(rng.integers(0, 7)) for a in names for b in names if a != b and rng.random() < 0.3}
        ways = [Crossing("m", "p", "d", a, b, most) for (a, b), most in links.items()]
        if not ways:
            continue
        pairs = [(r, r) for r in names] + list(links)
        rows = [[float(a == r) for a, _ in pairs] for r in names] + [[float(b == r) for _, b in pairs] for r in names]
        most = [rates.get((w, r), 0.0) for w in ("p", "d") for r in names]
        limits = [(0, links.get(pair)) for pair in pairs]
        best = linprog([-1.0] * len(pairs), A_ub=rows, b_ub=most, bounds=limits)
        assert _flow(ways, rates) == pytest.approx(-best.fun, abs=1e-9)


def random_rows(rng: np.random.Generator, name: str) -> list[Unit]:
    return [
        unit(
            f"{name}{i}",
            str(rng.choice(["a", "b"])),
            float(rng.integers(0, 8)),
            int(rng.integers(1, 4)),
            region=str(rng.choice([R1, R2])),
            workload=str(rng.choice(["p", "d", "w"])),
            n=int(rng.integers(1, 3)),
        )
        for i in range(int(rng.integers(0, 5)))
    ]


def test_random_fleets_keep_every_rule() -> None:
    done = stuck = 0
    demands = [ModelDemand("m", 10.0, ("p", "d"), (R1, R2)), ModelDemand("n", 4.0, ("w",), (R1, R2))]
    for seed in range(300):
        rng = np.random.default_rng(seed)
        today, plan = random_rows(rng, "old"), random_rows(rng, "new")
        used: Counter = Counter()
        for u in (*today, *plan):
            for kind, n in u.nodes.items():
                used[u.region, kind] += n * u.instances
        capacity = {key: int(rng.integers(n // 2, n + 2)) for key, n in used.items()}
        steps = order_steps(today, plan, capacity, demands, PRICE)
        replay(today, plan, capacity, demands, steps)
        done, stuck = done + (not steps.short), stuck + bool(steps.short)
    assert done > 150
    assert stuck > 10
