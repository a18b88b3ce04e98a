"""Headroom settled with the plan: shares of the rates at which the very instances that are chosen keep their SLOs.

How much a workload's instances can be used depends on which and how many they are, and which are chosen depends on how much
they can be used. So choices are made with shares that may be too large, and measured. Where a choice does not keep its
share, its templates are set aside; where that has happened twice, little is missing, or demand is not met without them, the
share falls to the largest one measured below it, and templates that keep this one are let in again. Where a phase keeps its
share by itself but not with the instances that its requests go on to, those templates are set aside that it does not keep it
with, or, where it is their number, these are used less: there will be more of them to take its KV in. Once a choice keeps
its shares they rise to what it is safe at, until nothing is to be gained. Where there were to be more such instances, the
search is made again without that freedom and the better answer is taken. In the end templates that were set
aside are let in again, used as little as they must be.
"""

from __future__ import annotations

from dataclasses import replace

from tasks.allocation.share_search import (
    Measure,
    Search,
    SearchLimits,
    Settled,
    Solve,
    missed,
    misses_demand,
    rank,
    shares_of,
)
from tasks.allocation.types import AllocationProblem


def settle(problem: AllocationProblem, solve: Solve, measure: Measure, limits: SearchLimits | None = None) -> Settled:
    """The cheapest choice found that keeps its SLOs at the planned rates; where none was found, the one that is least short.
    ``problem`` holds the start values. Raises what ``solve`` and ``measure`` raise.

    Shares are settled as if nothing ran, so that equal inputs give equal shares whatever was planned before; the choice
    that counts what runs is then made with them.
    """
    fresh = Search(replace(problem, init_share=0.0, running={}), solve, measure, limits or SearchLimits())
    start = fresh.first_share()
    best = fresh.best_from(start)
    if fresh.has_added:
        # They may be too slow in any number, or others come cheaper: the freedom to add must not make an answer worse.
        other = fresh.afresh(adds_receivers=False)
        found = other.best_from(start, best)
        if rank(found) < rank(best):
            best, fresh = found, other
    best = fresh.let_in(best)
    now = fresh.of(problem)
    found = now.choose(shares_of(best), best.set_aside)
    if missed(found) <= missed(best):
        return _beside(best, found)
    # What runs draws the choice to instances that do not keep their SLOs together: there is still the one made without.
    others = [now.lower(found)]
    if not misses_demand(found):
        others.append(now.same_as(best, found))
    return _beside(best, min(found, *others, key=rank))


def _beside(fresh: Settled, found: Settled) -> Settled:
    """``found`` with the choice ``fresh`` as the one made as if nothing ran, where that is of the same shares and templates."""
    is_alike = shares_of(fresh) == shares_of(found) and fresh.set_aside == found.set_aside
    return replace(found, fresh=fresh.result) if is_alike else found
