"""Headroom settled with the plan: shares of the rates at which the very instances that are chosen keep their SLOs.

How much a workload's instances can be used depends on which and how many they are, and which are chosen depends on how much
they can be used. Two ways from the start values, of which the cheaper plan counts. *Follow*: choose, measure, choose again
with what was measured, until a choice keeps what it was made with. *Set aside*: plan with the largest share any choice so
far had, and set aside the templates of a choice that does not keep it, until one does. The start is made as if nothing
ran, so that equal inputs give equal shares whatever was planned before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tasks.allocation.types import AllocationProblem, AllocationResult

Solve = Callable[[AllocationProblem], AllocationResult]
Measure = Callable[[AllocationResult], Mapping[str, float]]
"""The largest safe use, 0..1 of their rates, of the instances chosen for each workload id; none chosen = absent."""

# Choices with what was measured, and with templates set aside. What a further search must be able to save: from the shares
# seen, and from the start values, which promise more than they keep.
_ROUNDS, _SET_ASIDE_ROUNDS = 4, 8
# Where that fails: choices that only lower their shares, and below which use templates are not worth keeping.
_LOWERING_ROUNDS, _HOPELESS = 12, 0.15
_GAIN, _GAIN_FROM_START = 2e-3, 0.05
_SAME = 0.005
# Where not even the least use keeps the SLO there is nothing to plan with; the plan says so.
LEAST = 0.05


@dataclass(frozen=True, slots=True)
class Settled:
    """The problem with the shares it was solved with, and its result. ``safe``: the measured use by workload id.
    ``short``: (use at the planned rate, safe use) of workloads whose instances are used more than is safe.
    ``set_aside``: templates that were left out, by workload id; costs and bounds are those of a library without them."""

    problem: AllocationProblem
    result: AllocationResult
    safe: Mapping[str, float]
    short: Mapping[str, tuple[float, float]]
    set_aside: Mapping[str, frozenset[str]]


def with_headroom(problem: AllocationProblem, share: Mapping[str, float]) -> AllocationProblem:
    """The problem planned with ``share`` of the rates, by workload id; others stay."""
    return replace(
        problem,
        candidates=tuple(replace(c, headroom=share.get(c.workload_id, c.headroom)) for c in problem.candidates),
    )


def uses(problem: AllocationProblem, result: AllocationResult) -> dict[str, float]:
    """Use of the chosen instances at the rate they are planned to serve, by workload id: planned requests (at most what
    they supply with headroom) / sum of the instances' whole rates."""
    planned = {name: demand.planned_req_per_s for demand in problem.demands for name in demand.workload_ids}
    found = {}
    for c in problem.candidates:
        place = {template_id: i for i, template_id in enumerate(c.template_ids)}
        milli = math.fsum(
            int(c.throughput_mtok_per_s[place[row.template_id]]) * row.instances
            for row in result.instances
            if row.workload_id == c.workload_id
        )
        if milli > 0:
            supply = milli / 1000.0 / c.tokens_per_request
            found[c.workload_id] = min(planned[c.workload_id] / supply, c.headroom)
    return found


def without_templates(problem: AllocationProblem, out: Mapping[str, frozenset[str]]) -> AllocationProblem:
    """The problem without the templates ``out`` (by workload id), running ones included."""
    candidates = []
    for c in problem.candidates:
        gone = out.get(c.workload_id, frozenset())
        keep = np.array([template_id not in gone for template_id in c.template_ids], dtype=np.bool_)
        ids = tuple(template_id for template_id in c.template_ids if template_id not in gone)
        rates = c.throughput_mtok_per_s[keep]
        candidates.append(replace(c, template_ids=ids, counts=c.counts[keep], throughput_mtok_per_s=rates))
    everywhere = frozenset().union(*out.values())
    running = {key: count for key, count in problem.running.items() if key[1] not in everywhere}
    return replace(problem, candidates=tuple(candidates), running=running)


def settle(problem: AllocationProblem, solve: Solve, measure: Measure) -> Settled:
    """The cheapest choice found that keeps its SLOs at the planned rates; where none was found, the last, with what it is
    short of. ``problem`` holds the start values. Raises what ``solve`` and ``measure`` raise."""
    search = _Search(problem, solve, measure)
    best = search.follow()
    for floor, gain in (({}, _GAIN), (search.start, _GAIN_FROM_START)):
        if best is None or search.can_gain(best, floor, gain):
            other = search.set_aside(floor)
            best = other if best is None or _rank(other) < _rank(best) else best
    assert best is not None
    return min(best, search.lower(best), key=_rank) if best.short else best


class _Search:
    def __init__(self, problem: AllocationProblem, solve: Solve, measure: Measure) -> None:
        self._problem, self._solve, self._measure = problem, solve, measure
        self.start = {c.workload_id: c.headroom for c in problem.candidates}
        self._largest: dict[str, float] = {}

    def follow(self) -> Settled | None:
        """Choices with what the one before was measured at; the best that keeps it."""
        safe = self._measured(self._solve(replace(self._problem, init_share=0.0, running={})))
        best, share = None, self.start
        for _ in range(_ROUNDS):
            share = share | {name: max(value, LEAST) for name, value in safe.items()}
            found = self._choose(share, {})
            if not found.short and (best is None or _rank(found) < _rank(best)):
                best = found
            if all(abs(value - share[name]) <= _SAME for name, value in found.safe.items()):
                break
            safe = found.safe
        return best

    def can_gain(self, best: Settled, floor: Mapping[str, float], gain: float) -> bool:
        """Whether the shares of :meth:`set_aside`, if every template had them, would save more than ``gain``."""
        if best.short:
            return True
        if best.result.theta < 1:
            return False  # all that can be had is taken: which templates share it out matters little
        ideal = self._solve(with_headroom(self._problem, self._hopes(floor)))
        return ideal.objective_usd < best.result.objective_usd * (1 - gain)

    def set_aside(self, floor: Mapping[str, float]) -> Settled:
        """Choices with the largest shares seen, at least ``floor``, without the templates of choices that do not keep
        them; then with what those chosen are safe at."""
        share, out = self._hopes(floor), dict[str, frozenset[str]]()
        found = self._choose(share, out)
        for _ in range(_SET_ASIDE_ROUNDS):
            if not found.short:
                break
            for name in found.short:
                for guilty in self._guilty(found, name, share[name]):
                    bad = frozenset(row.template_id for row in found.result.instances if row.workload_id == guilty)
                    if self._templates_left(guilty, out) > len(bad) > 0:
                        out = out | {guilty: out.get(guilty, frozenset()) | bad}
                    else:
                        share = share | {name: max(min(share[name], found.safe[name]), LEAST)}
            found = self._choose(share, out)
        higher = share | {name: max(value, share[name]) for name, value in found.safe.items()}
        if not found.short and any(higher[name] > share[name] + _SAME for name in higher):
            return min(found, self._choose(higher, out), key=_rank)
        return found

    def lower(self, last: Settled) -> Settled:
        """Choices from ``last`` on with shares that only fall to what was measured, and without templates of choices that can
        hardly be used; the best of them."""
        share, out, best = {c.workload_id: c.headroom for c in last.problem.candidates}, dict(last.set_aside), last
        for _ in range(_LOWERING_ROUNDS):
            for name in last.short:
                bad = frozenset(row.template_id for row in last.result.instances if row.workload_id == name)
                if last.safe[name] < _HOPELESS and self._templates_left(name, out) > len(bad):
                    out = out | {name: out.get(name, frozenset()) | bad}
                else:
                    share = share | {name: max(min(share[name], last.safe[name]), LEAST)}
            last = self._choose(share, out)
            best = min(best, last, key=_rank)
            if not last.short:
                break
        return best

    def _hopes(self, floor: Mapping[str, float]) -> dict[str, float]:
        seen = self.start | {name: max(value, LEAST) for name, value in self._largest.items()}
        return {name: max(value, floor.get(name, 0.0)) for name, value in seen.items()}

    def _guilty(self, found: Settled, name: str, share: float) -> list[str]:
        """Whose templates to set aside where ``name`` is short: its own, or, where these hold by themselves, those of the
        model's other workloads, which its requests go through as well."""
        own = tuple(row for row in found.result.instances if row.workload_id == name)
        if self._measure(replace(found.result, instances=own))[name] < share - 1e-9:
            return [name]
        demand = next(d for d in self._problem.demands if name in d.workload_ids)
        return [other for other in demand.workload_ids if other != name] or [name]

    def _templates_left(self, name: str, out: Mapping[str, frozenset[str]]) -> int:
        everything = next(c for c in self._problem.candidates if c.workload_id == name)
        return len(everything.template_ids) - len(out.get(name, frozenset()))

    def _measured(self, result: AllocationResult) -> Mapping[str, float]:
        safe = self._measure(result)
        self._largest |= {name: max(value, self._largest.get(name, 0.0)) for name, value in safe.items()}
        return safe

    def _choose(self, share: Mapping[str, float], out: Mapping[str, frozenset[str]]) -> Settled:
        asked = with_headroom(self._problem, share)
        asked = without_templates(asked, out) if out else asked
        result = self._solve(asked)
        safe, used = self._measured(result), uses(asked, result)
        short = {name: (used[name], safe[name]) for name in used if used[name] > safe[name] * (1 + 1e-9)}
        return Settled(asked, result, safe, short, out)


def _rank(settled: Settled) -> tuple[float, float, float]:
    """Less is better: first by how much use exceeds what is safe, then the demand met, then the money."""
    excess = max((used - safe for used, safe in settled.short.values()), default=0.0)
    return (round(excess, 9), -float(np.round(settled.result.theta, 9)), settled.result.objective_usd)
