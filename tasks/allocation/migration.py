"""From what runs today to a plan in ordered steps, none of which drops below demand or takes more machines than there are.

Notation: today's rows t and the plan's rows g, each of n instances with nodes U and a rate; floor of a workload = the lesser
of its demand and what it has today, and of a model the same over what its phases serve together: per region, and between
regions as far as the plan has KV cross, no more and no other way at any time. A state is how many instances of every row run.
Moves: stop instances of today's rows while every floor holds, start instances of the plan's while machines are free. A
depth-first search over states, stops first (they save money and free machines), finds an order; it gives up after a number
of states and says which machines were short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

from tasks.allocation.types import ModelDemand

Key = tuple[str, str]
"""(region, kind of machine)."""

_State = tuple[tuple[int, ...], tuple[int, ...]]
_TOLERANCE = 1e-9
_MOST_STATES = 20_000


@dataclass(frozen=True, slots=True)
class Unit:
    """``instances`` alike in a region: machines by kind, req/s served and USD/h are of one. ``name`` is for people."""

    name: str
    region: str
    workload_id: str
    nodes: Mapping[str, int]
    req_per_s: float
    usd_per_h: float
    instances: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """Up to ``req_per_s`` requests of a model may prefill in ``source`` and decode in ``target``."""

    model: str
    prefill: str
    decode: str
    source: str
    target: str
    req_per_s: float


class Action(StrEnum):
    """``ADD``: rent machines and start on them; ``SHIFT``: start on machines that were freed, all of them; ``DRAIN``: stop."""

    ADD = "add"
    SHIFT = "shift"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: ``rents`` and ``returns`` machines by kind (machines that are freed and needed later are kept);
    ``rent_usd_per_h`` of everything after it; ``covers`` the least, over models, of what is served / the floor after it."""

    action: Action
    unit: Unit
    instances: int
    rents: Mapping[str, int]
    returns: Mapping[str, int]
    rent_usd_per_h: float
    covers: float


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps; where ``short`` is not empty they end before the plan is reached, for want of these machines."""

    steps: tuple[Step, ...]
    short: Mapping[Key, int]


def order_steps(
    today: Sequence[Unit],
    plan: Sequence[Unit],
    capacity: Mapping[Key, int],
    demands: Sequence[ModelDemand],
    price_usd_per_h: Mapping[Key, float],
    kept: Sequence[Unit] = (),
    crossings: Sequence[Crossing] = (),
) -> Steps:
    """Steps from ``today`` to ``plan``, beside ``kept``, which is in both and stays. ``capacity``: machines that can be had,
    today's included; where today has more, what it has. Kinds without a capacity cannot be added to. ``crossings``: where the
    plan has KV cross regions."""
    search = _Search(today, plan, kept, capacity, demands, crossings)
    moves, short = search.run()
    return Steps(tuple(_told(search, moves, price_usd_per_h)), short)


@dataclass(frozen=True, slots=True)
class _Move:
    """``count`` instances of row ``row`` are started (a row of the plan) or stopped (of today)."""

    is_start: bool
    row: int
    count: int


@dataclass
class _Search:
    today: Sequence[Unit]
    plan: Sequence[Unit]
    kept: Sequence[Unit]
    capacity: Mapping[Key, int]
    demands: Sequence[ModelDemand]
    crossings: Sequence[Crossing] = ()
    seen: set[_State] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start = (tuple(u.instances for u in self.today), tuple(0 for _ in self.plan))
        self.goal = (tuple(0 for _ in self.today), tuple(u.instances for u in self.plan))
        used = self.used(*self.start)
        self.most = {key: max(self.capacity.get(key, 0), n) for key, n in used.items()} | {
            key: n for key, n in self.capacity.items() if key not in used
        }
        planned = {name: d.planned_req_per_s for d in self.demands for name in d.workload_ids}
        rates, together = self.served(*self.start)
        final, final_together = self.served(*self.goal)
        # Where the plan itself serves less (a shortage), no order can hold more than it.
        self.floor = {w: min(planned[w], rates[w], final[w]) for w in planned}
        self.floor_together = {
            d.model: min(d.planned_req_per_s, together[d.model], final_together[d.model]) for d in self.demands
        }
        self.model = {name: d.model for d in self.demands for name in d.workload_ids}

    def running(self, old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[Unit, int]]:
        """Rows with how many instances of each run."""
        yield from zip(self.today, old, strict=True)
        yield from zip(self.plan, new, strict=True)
        yield from ((unit, unit.instances) for unit in self.kept)

    def used(self, old: Sequence[int], new: Sequence[int]) -> dict[Key, int]:
        """Machines in use."""
        found: dict[Key, int] = {}
        for unit, n in self.running(old, new):
            for kind, many in unit.nodes.items():
                found[unit.region, kind] = found.get((unit.region, kind), 0) + many * n
        return found

    def served(self, old: Sequence[int], new: Sequence[int]) -> tuple[dict[str, float], dict[str, float]]:
        """Req/s per workload, and per model with its phases together in each region, or as far as KV crosses them."""
        by_region: dict[tuple[str, str], float] = {}
        for unit, n in self.running(old, new):
            key = (unit.workload_id, unit.region)
            by_region[key] = by_region.get(key, 0.0) + unit.req_per_s * n
        regions = {region for _, region in by_region}
        rates = {w: sum(by_region.get((w, r), 0.0) for r in regions) for d in self.demands for w in d.workload_ids}
        together = {
            d.model: sum(min(by_region.get((w, r), 0.0) for w in d.workload_ids) for r in regions) for d in self.demands
        }
        for model in {row.model for row in self.crossings}:
            together[model] = _flow([row for row in self.crossings if row.model == model], by_region)
        return rates, together

    def holds(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Whether no floor is broken."""
        rates, together = self.served(old, new)
        return all(rates[w] >= low * (1 - _TOLERANCE) for w, low in self.floor.items()) and all(
            together[m] >= low * (1 - _TOLERANCE) for m, low in self.floor_together.items()
        )

    def covers(self, old: Sequence[int], new: Sequence[int]) -> float:
        """The least of what is served over its floor."""
        rates, together = self.served(old, new)
        parts = [rates[w] / low for w, low in self.floor.items() if low > 0]
        parts += [together[m] / low for m, low in self.floor_together.items() if low > 0]
        return min(parts, default=math.inf)

    def run(self) -> tuple[list[_Move], dict[Key, int]]:
        """Moves that lead to the plan, and nothing short; else the moves that get furthest, and what is short there."""
        path: list[_Move] = []
        states = [self.start]
        options = [self.moves(self.start)]
        furthest: tuple[float, list[_Move], _State] = (-1.0, [], self.start)
        self.seen.add(self.start)
        while options:
            state = states[-1]
            if state == self.goal:
                return path, {}
            progress = sum(state[1]) + 1e-6 * (sum(self.start[0]) - sum(state[0]))
            if progress > furthest[0]:
                furthest = (progress, list(path), state)
            move = next(options[-1], None) if len(self.seen) < _MOST_STATES else None
            if move is None:
                options.pop()
                states.pop()
                if path:
                    path.pop()
                continue
            after = self.apply(state, move)
            if after in self.seen:
                continue
            self.seen.add(after)
            path.append(move)
            states.append(after)
            options.append(self.moves(after))
        return furthest[1], self.short(furthest[2])

    def moves(self, state: _State) -> Iterator[_Move]:
        """Moves in order of preference, each as large as it can be; then by single instances."""
        old, new = state
        stops = sorted(range(len(self.today)), key=lambda t: (-self.today[t].usd_per_h, t))
        for t in stops:
            count = self.stoppable(t, old, new)
            if count:
                yield _Move(False, t, count)
        for g in sorted(range(len(self.plan)), key=lambda g: (-self.plan[g].usd_per_h, g)):
            count = min(self.plan[g].instances - new[g], self.fitting(g, old, new))
            if count:
                yield _Move(True, g, count)
                if count > 1:
                    yield _Move(True, g, 1)

    def apply(self, state: _State, move: _Move) -> _State:
        """The state after a move."""
        old, new = list(state[0]), list(state[1])
        if move.is_start:
            new[move.row] += move.count
        else:
            old[move.row] -= move.count
        return tuple(old), tuple(new)

    def stoppable(self, t: int, old: Sequence[int], new: Sequence[int]) -> int:
        """How many instances of a row of today may stop. Those that by prediction serve nothing may serve something after
        all: they go when all of their model's new instances run."""
        unit = self.today[t]
        if unit.req_per_s == 0 and any(
            self.model[g.workload_id] == self.model[unit.workload_id] and n < g.instances
            for g, n in zip(self.plan, new, strict=True)
        ):
            return 0
        low, high = 0, old[t]
        while low < high:  # fewer stops never serve less
            middle = (low + high + 1) // 2
            after = [n - middle if i == t else n for i, n in enumerate(old)]
            low, high = (middle, high) if self.holds(after, new) else (low, middle - 1)
        return low

    def fitting(self, g: int, old: Sequence[int], new: Sequence[int]) -> int:
        """How many more instances of a row of the plan there are machines for."""
        unit, used = self.plan[g], self.used(old, new)
        return min(
            (self.most.get((unit.region, kind), 0) - used.get((unit.region, kind), 0)) // n
            for kind, n in unit.nodes.items()
        )

    def short(self, state: _State) -> dict[Key, int]:
        """Machines that the plan's row nearest to fitting lacks; for none left to start, what cannot stop is no shortage."""
        used = self.used(*state)
        lacking = []
        for unit, n in zip(self.plan, state[1], strict=True):
            if n < unit.instances:
                free = {k: self.most.get((unit.region, k), 0) - used.get((unit.region, k), 0) for k in unit.nodes}
                lacks = {(unit.region, k): many - free[k] for k, many in unit.nodes.items() if many > free[k]}
                lacking.append(lacks)
        return min(lacking, key=lambda lacks: sum(lacks.values()), default={})


def _flow(crossings: Sequence[Crossing], rates: Mapping[tuple[str, str], float]) -> float:
    """Most req/s of one model from prefill to decode: inside a region as many as both serve, between two as many as cross.

    ``rates``: req/s by (workload, region). By the smallest cut: prefill is cut off in all regions that send but those of a
    subset, and decode where that is less than what reaches it. Subsets are few, as regions that send are.
    """
    prefill, decode = crossings[0].prefill, crossings[0].decode
    senders = sorted({row.source for row in crossings})
    regions = {region for _, region in rates} | {*senders}
    least = math.inf
    for chosen in product((False, True), repeat=len(senders)):
        kept = {region for region, is_kept in zip(senders, chosen, strict=True) if is_kept}
        cut = 0.0
        for region in regions:
            made, taken = rates.get((prefill, region), 0.0), rates.get((decode, region), 0.0)
            reached = min(taken, sum(row.req_per_s for row in crossings if row.target == region and row.source in kept))
            if region in senders:
                cut += taken if region in kept else made + reached
            else:
                cut += min(taken, made + reached)
        least = min(least, cut)
    return least


def _told(search: _Search, moves: Sequence[_Move], price: Mapping[Key, float]) -> list[Step]:
    """Moves as steps, with the machines that each rents, reuses or gives back."""
    state = search.start
    held = search.used(*state)
    steps: list[Step] = []
    for number, move in enumerate(moves):
        state = search.apply(state, move)
        unit = (search.plan if move.is_start else search.today)[move.row]
        used = search.used(*state)
        # What is freed stays where a later start takes it.
        peak = dict(used)
        later = state
        for after in moves[number + 1 :]:
            later = search.apply(later, after)
            for key, n in search.used(*later).items():
                peak[key] = max(peak.get(key, 0), n)
        rents, returns = {}, {}
        for kind in unit.nodes:
            key = (unit.region, kind)
            now = max(used.get(key, 0), min(held.get(key, 0), peak.get(key, 0)))
            if now > held.get(key, 0):
                rents[kind] = now - held.get(key, 0)
            elif now < held.get(key, 0):
                returns[kind] = held[key] - now
            held[key] = now
        action = Action.DRAIN if not move.is_start else Action.ADD if rents else Action.SHIFT
        rent = math.fsum(n * price[key] for key, n in held.items() if n)
        steps.append(Step(action, unit, move.count, rents, returns, rent, search.covers(*state)))
    return steps
