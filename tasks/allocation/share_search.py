"""The search for shares of the rates that a choice keeps: its steps. How they go together: :mod:`tasks.allocation.headroom`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tasks.allocation.shares import uses, with_headroom, without_templates
from tasks.allocation.types import AllocationProblem, AllocationResult, Instance, SolveStatus

Solve = Callable[[AllocationProblem], AllocationResult]
Measure = Callable[[AllocationResult], Mapping[str, float]]
"""The largest safe use, 0..1 of their rates, of the instances chosen for each workload id; none chosen = absent."""

# How often templates are set aside before the share falls, and by how much it may fall at once; what a further choice must
# be able to save, and a late one.
_FAILURES, _NEAR, _GAIN, _LATE_GAIN = 2, 0.03, 2e-3, 0.1
# How far the use of receivers that are too few falls at once, and how near to too few it is left.
_FALL, _NEAR_ENOUGH = 0.6, 0.2
# Choices after templates are let in again that were set aside, and what the first may cost of the best.
_LET_IN_ROUNDS, _HARDLY_MORE = 3, 1.1
# Where not even the least use keeps the SLO there is nothing to plan with; the plan says so.
LEAST = 0.02


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How long to search. ``rounds`` choices, up to ``most_rounds`` while much may be saved (shares that end far below the
    start values take longer), and ``lowering_rounds`` with shares that only fall. Instances that keep their SLO only below
    the use ``hopeless`` are taken to miss it for another reason than load: no smaller share is tried."""

    rounds: int = 9
    most_rounds: int = 16
    lowering_rounds: int = 6
    hopeless: float = 0.1


@dataclass(frozen=True, slots=True)
class Settled:
    """The problem with the shares it was solved with, and its result. ``safe``: the measured use by workload id.
    ``short``: (use at the planned rate, safe use) of workloads whose instances are used more than is safe.
    ``set_aside``: templates that were left out, by workload id; costs and bounds are those of a library without them.
    ``fresh``: the choice on rent alone, as if nothing ran, among the same templates with the same shares; None = not made."""

    problem: AllocationProblem
    result: AllocationResult
    safe: Mapping[str, float]
    short: Mapping[str, tuple[float, float]]
    set_aside: Mapping[str, frozenset[str]]
    fresh: AllocationResult | None = None


@dataclass(frozen=True, slots=True)
class _Lesson:
    """Chosen ``templates`` of ``workload_id`` with which ``judged`` (itself, or the phase before it) is safe at ``safe`` only."""

    workload_id: str
    templates: frozenset[str]
    judged: str
    safe: float


class Search:
    """Choices of one problem, and what was learnt from those that did not keep their shares. ``adds_receivers``: whether there
    may be more of those that hold a phase up; else only other kinds of them, or less use of the phase."""

    def __init__(
        self,
        problem: AllocationProblem,
        solve: Solve,
        measure: Measure,
        limits: SearchLimits,
        adds_receivers: bool = True,
    ) -> None:
        self._problem, self._solve, self._measure, self._limits = problem, solve, measure, limits
        self._adds_receivers = adds_receivers
        self._made: dict[str, AllocationResult] = {}
        self._measured: dict[str, Mapping[str, float]] = {}
        self._lessons: list[_Lesson] = []
        self._failures: dict[str, int] = {}
        self._held_up: dict[str, int] = {}
        # Uses of receivers with which there were enough of them, and too few.
        self._enough: dict[str, float] = {}
        self._too_few: dict[str, float] = {}

    def of(self, problem: AllocationProblem) -> Search:
        """A search of ``problem`` that knows what this one has learnt."""
        other = Search(problem, self._solve, self._measure, self._limits, self._adds_receivers)
        other._lessons = list(self._lessons)
        return other

    def afresh(self, *, adds_receivers: bool) -> Search:
        """A search of the same problem that has learnt nothing, but need not make choices again that were made."""
        other = Search(self._problem, self._solve, self._measure, self._limits, adds_receivers)
        other._made, other._measured = self._made, self._measured
        return other

    @property
    def has_added(self) -> bool:
        """Whether there were to be more receivers in any choice."""
        return bool(self._too_few)

    def first_share(self) -> dict[str, float]:
        """The start values, or what a choice made with them is safe at if that is more."""
        own = {c.workload_id: c.headroom for c in self._problem.candidates}
        safe = self.choose(own, {}).safe
        return {name: max(share, safe.get(name, 0.0)) for name, share in own.items()}

    def best_from(self, share: Mapping[str, float], best: Settled | None = None) -> Settled:
        """The best of ``best`` and the choices from ``share`` on, with shares that only fall in the end where none keeps them."""
        best = self.follow(share, best)
        if best.short or (best.set_aside and misses_demand(best)):
            best = min(best, self.lower(best), key=rank)
        return best

    def let_in(self, best: Settled) -> Settled:
        """The best of ``best`` and choices that have templates again which were set aside, workload by workload, used as little
        as they must be: many that are cheap may cost less than few that are solid."""
        for name in self._judged(shares_of(best)):
            share = self.lowered(shares_of(best), [name])
            if share != shares_of(best) and self._may_gain(share, best):
                best = self.follow(share, best, _LET_IN_ROUNDS)
        return best

    def _may_gain(self, share: Mapping[str, float], best: Settled) -> bool:
        """Whether the choice with ``share`` costs hardly more than ``best``, whatever it is safe at, so that what it saves once
        shares rise may make it cheaper. Looked at first since measuring takes the time."""
        if best.short:
            return False
        result, known = self._solved(share, self.set_aside(share)), best.result
        is_as_much = round(result.theta, 9) >= round(known.theta, 9)
        return is_as_much and result.objective_usd < known.objective_usd * _HARDLY_MORE

    def follow(self, share: Mapping[str, float], best: Settled | None = None, rounds: int | None = None) -> Settled:
        """At most ``rounds`` choices from ``share`` on, as long as they may beat ``best``; the best of all."""
        done = set[str]()
        for number in range(rounds or self._limits.most_rounds):
            out = self.set_aside(share)
            asked = _asked(share, out)
            if asked in done:
                break
            done.add(asked)
            found = self.choose(share, out)
            lower = self.lowered(share, self._judged(share)) if out and misses_demand(found) else share
            if lower != share:
                share = lower
            elif found.short:
                if best is not None and not _can_gain(found, best, _GAIN):
                    break
                share = self.learn(found, share)
            else:
                share = self.raised(found, share)
            best = found if best is None or rank(found) < rank(best) else best
            is_late = number + 1 >= self._limits.rounds
            if is_late and (best.short or not found.short or not _can_gain(found, best, _LATE_GAIN)):
                break
        assert best is not None
        return best

    def same_as(self, best: Settled, found: Settled) -> Settled:
        """The choice ``best`` again, or a cheaper one of its templates, with the bound of ``found``, which has them all."""
        used = {row.template_id for row in best.result.instances}
        others = {c.workload_id: frozenset(c.template_ids) - used for c in self._problem.candidates}
        same = self.choose(shares_of(best), others)
        bound, objective = found.result.lower_bound_usd, same.result.objective_usd
        gap = max(0.0, (objective - bound) / objective) if objective > 0 else 0.0
        status = SolveStatus.GAP if same.result.status is SolveStatus.OPTIMAL and gap > 0 else same.result.status
        upper = max(same.result.theta, found.result.theta_upper)  # that of the few templates is none of all
        result = replace(same.result, lower_bound_usd=min(bound, objective), gap=gap, status=status, theta_upper=upper)
        return replace(same, problem=found.problem, result=result, set_aside=found.set_aside)

    def lower(self, last: Settled) -> Settled:
        """Choices from ``last`` on with shares that only fall to what was measured, of all templates where demand is not met
        without some; the best of them."""
        out = {} if misses_demand(last) else last.set_aside
        share = shares_of(last)
        share = share if out else self.lowered(share, self._judged(share))
        best = last
        for _ in range(self._limits.lowering_rounds):
            least = max(self._limits.hopeless, LEAST)  # of a share of nothing, no number of instances is enough
            usable = [name for name, (_, safe) in last.short.items() if safe >= least]
            if last.short and not usable:
                break
            for name in usable:
                receivers = self._receivers(last, name, share[name]) if self._adds_receivers else []
                use = self._more_of(last, name, receivers) or {name: last.safe[name]}
                share |= {one: min(share[one], most) for one, most in use.items()}
            last = self.choose(share, out)
            best = min(best, last, key=rank)
            if not last.short:
                break
        return best

    def set_aside(self, share: Mapping[str, float]) -> dict[str, frozenset[str]]:
        """Templates known not to keep ``share``, by workload id; none where there are no others."""
        out: dict[str, frozenset[str]] = {}
        for lesson in self._broken(share):
            out[lesson.workload_id] = out.get(lesson.workload_id, frozenset()) | lesson.templates
        return {name: gone for name, gone in out.items() if len(gone) < self._templates(name)}

    def _broken(self, share: Mapping[str, float]) -> list[_Lesson]:
        """The lessons that speak against ``share``."""
        return [lesson for lesson in self._lessons if lesson.safe < share[lesson.judged] - 1e-9]

    def _judged(self, share: Mapping[str, float]) -> list[str]:
        """Workloads for whose ``share`` templates are set aside."""
        return sorted({lesson.judged for lesson in self._broken(share)})

    def choose(self, share: Mapping[str, float], out: Mapping[str, frozenset[str]]) -> Settled:
        """The choice with ``share`` and without the templates ``out``, measured; made once."""
        asked, result, key = self._problem_of(share, out), self._solved(share, out), _asked(share, out)
        if key not in self._measured:
            self._measured[key] = self._measure(result)
        safe, used = self._measured[key], uses(asked, result)
        short = {name: (used[name], safe[name]) for name in used if used[name] > safe[name] * (1 + 1e-9)}
        return Settled(asked, result, safe, short, out)

    def _problem_of(self, share: Mapping[str, float], out: Mapping[str, frozenset[str]]) -> AllocationProblem:
        asked = with_headroom(self._problem, share)
        return without_templates(asked, out) if out else asked

    def _solved(self, share: Mapping[str, float], out: Mapping[str, frozenset[str]]) -> AllocationResult:
        key = _asked(share, out)
        if key not in self._made:
            self._made[key] = self._solve(self._problem_of(share, out))
        return self._made[key]

    def lowered(self, share: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
        """The shares with those of ``names`` at the largest use measured below, where there is one: templates that keep it
        are let in again."""
        new = dict(share)
        for name in names:
            self._failures[name] = 0
            lower = [lesson.safe for lesson in self._lessons if lesson.judged == name]
            new[name] = max((safe for safe in lower if LEAST <= safe < share[name] - 1e-9), default=share[name])
        return new

    def raised(self, found: Settled, share: Mapping[str, float]) -> dict[str, float]:
        """The shares that ``found`` is safe at, where they are larger; of receivers that were too few at most half of the way to
        that."""
        self._failures = {}
        new = {name: max(value, found.safe.get(name, 0.0)) for name, value in share.items()}
        for name, too_few in self._too_few.items():
            self._enough[name] = max(share[name], self._enough.get(name, 0.0))
            is_near = too_few - share[name] <= _NEAR_ENOUGH * too_few
            half_way = share[name] if is_near else math.floor(50 * (share[name] + too_few)) / 100
            new[name] = min(new[name], max(share[name], half_way))
        return new

    def learn(self, found: Settled, share: Mapping[str, float]) -> dict[str, float]:
        """Remembers what is short in ``found``; the shares to try next."""
        fall, new = [], dict(share)
        for name in found.short:
            receivers = self._receivers(found, name, share[name])
            blamed = [lesson for other in receivers for lesson in self._blamed(found, name, share[name], other)]
            self._held_up[name] = self._held_up.get(name, 0) + bool(receivers)
            # Of those that hold up a share of nothing, no number is enough: it is their kind.
            may_be_few = self._adds_receivers and found.safe[name] >= LEAST
            is_kind = not may_be_few or (blamed and self._held_up[name] < _FAILURES)
            blamed = blamed or [_Lesson(other, _of(found, other), name, found.safe[name]) for other in receivers]
            if receivers and is_kind and all([self._spare(lesson) for lesson in blamed]):
                continue
            if receivers and may_be_few:
                new |= self._more_of(found, name, receivers)
                continue
            has_others = self._spare(_Lesson(name, _of(found, name), name, found.safe[name]))
            self._failures[name] = self._failures.get(name, 0) + 1
            if found.safe[name] >= share[name] - _NEAR or self._failures[name] >= _FAILURES or not has_others:
                fall.append(name)
        return self.lowered(new, fall)

    def _more_of(self, found: Settled, name: str, receivers: Iterable[str]) -> dict[str, float]:
        """The shares of ``receivers`` with which there are as many more of them as ``name`` is short by; templates set aside
        for its sake are let in again."""
        use, (used, safe) = uses(found.problem, found.result), found.short[name]
        few = {}
        for other in receivers:
            fallen = math.floor(100 * use[other] * max(safe / used, _FALL)) / 100
            few[other] = max(fallen, self._enough.get(other, 0.0), LEAST)
            self._too_few[other] = min(use[other], self._too_few.get(other, 1.0))
        self._held_up[name] = 0
        self._lessons = [each for each in self._lessons if each.judged != name or each.workload_id not in few]
        return few

    def _spare(self, lesson: _Lesson) -> bool:
        """Remembers the lesson; whether other templates of its workload are left."""
        self._lessons.append(lesson)
        gone = [known.templates for known in self._lessons if known.workload_id == lesson.workload_id]
        return len(frozenset().union(*gone)) < self._templates(lesson.workload_id)

    def _receivers(self, found: Settled, name: str, share: float) -> list[str]:
        """The model's other workloads, which the requests of ``name`` go through as well, where its own instances keep
        ``share`` by themselves; else none."""
        own = tuple(row for row in found.result.instances if row.workload_id == name)
        if self._measure(replace(found.result, instances=own))[name] < share - 1e-9:
            return []
        demand = next(d for d in self._problem.demands if name in d.workload_ids)
        return [other for other in demand.workload_ids if other != name and _of(found, other)]

    def _blamed(self, found: Settled, name: str, share: float, other: str) -> list[_Lesson]:
        """The templates of ``other`` with which alone ``name`` does not keep its share."""
        own = tuple(row for row in found.result.instances if row.workload_id == name)
        safe = {template: self._safe_with(found, own, other, template)[name] for template in _of(found, other)}
        return [_Lesson(other, frozenset({t}), name, safe[t]) for t in sorted(safe) if safe[t] < share - 1e-9]

    def _safe_with(
        self, found: Settled, own: tuple[Instance, ...], other: str, template_id: str
    ) -> Mapping[str, float]:
        """What is safe where all that ``found`` has of ``other`` is of one template, at the same rate at least, region by
        region."""
        rate, rows = self._rates(other), list[Instance]()
        theirs = [row for row in found.result.instances if row.workload_id == other]
        for like in (row for row in theirs if row.template_id == template_id):
            total = sum(rate[row.template_id] * row.instances for row in theirs if row.region == like.region)
            if all(row.region != like.region for row in rows):
                rows.append(replace(like, instances=-(-total // rate[template_id])))
        return self._measure(replace(found.result, instances=(*own, *rows)))

    def _rates(self, name: str) -> dict[str, int]:
        """Whole rates, mtok/s, by template id."""
        c = next(c for c in self._problem.candidates if c.workload_id == name)
        return {template: int(rate) for template, rate in zip(c.template_ids, c.throughput_mtok_per_s, strict=True)}

    def _templates(self, name: str) -> int:
        return len(next(c for c in self._problem.candidates if c.workload_id == name).template_ids)


def _asked(share: Mapping[str, float], out: Mapping[str, frozenset[str]]) -> str:
    """What a choice is made with, as a key."""
    return repr((sorted(share.items()), sorted((name, sorted(gone)) for name, gone in out.items())))


def _of(found: Settled, name: str) -> frozenset[str]:
    return frozenset(row.template_id for row in found.result.instances if row.workload_id == name)


def _can_gain(found: Settled, best: Settled, gain: float) -> bool:
    """Whether choices beyond ``found``, which is short, may beat ``best``: what is learnt makes them dearer, as a rule."""
    if best.short:
        return True
    theta, known = (round(each.result.theta, 9) for each in (found, best))
    return theta > known or (theta == known and found.result.objective_usd < best.result.objective_usd * (1 - gain))


def shares_of(settled: Settled) -> dict[str, float]:
    """What it was planned with, by workload id."""
    return {c.workload_id: c.headroom for c in settled.problem.candidates}


def misses_demand(settled: Settled) -> bool:
    """Whether supply ends before the demand is met."""
    return settled.result.theta < 1 - 1e-9


def missed(settled: Settled) -> float:
    """The share of demand that is not served within the SLOs: for want of supply, or as more is used than is safe."""
    kept = min((safe / used for used, safe in settled.short.values()), default=1.0)
    return round(1 - settled.result.theta * kept, 9)


def rank(settled: Settled) -> tuple[float, float, float]:
    """Less is better: first the demand not served within its SLOs, then that not served at all, then the money."""
    return (missed(settled), -float(np.round(settled.result.theta, 9)), settled.result.objective_usd)
