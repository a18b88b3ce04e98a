"""The largest common share in problems too large for the narrowed ILP: a relaxation gives a certified bound and a mix, the
mix, rounded or planned in stages, is searched at shares below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.columns import Columns
from tasks.allocation.covers.generation import generate, joint_bound
from tasks.allocation.covers.packing import Packing, lack_weights, packing
from tasks.allocation.covers.pricing import (
    Grid,
    ModelBlocks,
    least_by_level,
    model_blocks,
    side_by_side,
    supply_value,
)
from tasks.allocation.covers.recreate import Found, has_counts, has_rules, is_capped, recreate
from tasks.allocation.covers.relaxation import Relaxation, Worth, least_costs
from tasks.allocation.covers.rounding import is_within, whole
from tasks.allocation.covers.staged import is_lumpy, plan_in_stages
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.formulation import Goal
from tasks.allocation.highs import MipStatus
from tasks.allocation.ilp import NO_SHARE, GoalOutcome
from tasks.allocation.outcome import served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ROUNDS = 24
_CLOSE = 5e-3  # between the relaxation's share and its bound
_GRID = Grid(2048, 4)
_LEVELS, _LEVELS_SPLIT = Grid(16384, 16), Grid(4096, 4)  # of the bound by covers
# Times a model's least cost: what serving nothing of it counts; under rules, where the last instance that lacks may serve little.
_LACK, _LACK_RULED = 3.0, 10.0
_LACK_STAGED = 5.0  # the same, of a plan made in stages
_HALVINGS, _AT_A_SHARE = 80, 16  # of the search, in all and for one share
_FEW, _OFTENER = 16, 4  # times as many of so few models under rules, whose share is far from its bound
_HALVINGS_STAGED, _ROUNDS_STAGED = 56, 600  # of the search that goes on from stages, in all, and of these
# Of the relaxation's share, which knows of rules only what caps spot; of a share that was not reached by far.
_FIRST, _FIRST_RULED, _LESS = 0.88, 0.75, 0.96
_MUCH = 0.97  # of a share, reached: then more is sought from there on, by
_MORE, _LEAST_MORE = 1.01, 1.002


@dataclass(slots=True)
class Relaxed:
    """``bound``: no plan serves a larger common share; ``share`` that the relaxation serves, by ``mix`` (instances per column);
    ``nodes``: what nodes are worth in it [pool, configuration], with what they take of budget and quotas; ``least``: what each
    model costs at least at such prices."""

    bound: float
    share: float
    mix: Floats
    nodes: Floats
    least: Floats


def largest_share(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    limits: SolveLimits,
    clock: Clock,
    begin: Ints | None = None,
) -> GoalOutcome | None:
    """The answer for the goal THETA (objective and bound are of minus the share); None where rounding finds no plan.
    ``models``: of the whole demand, with rules that a search knows; ``begin``: a plan to begin with."""
    if any(not model.blocks for model in models):
        return None
    relaxed = relax(problem, columns, models, limits)
    if relaxed.share <= NO_SHARE:
        # A quota or the budget leaves some model nothing.
        nothing = np.zeros(len(columns), dtype=np.int64)
        return GoalOutcome(MipStatus.LIMIT, nothing, 0.0, -relaxed.bound) if relaxed.bound <= NO_SHARE else None
    if not relaxed.nodes.any():
        relaxed = _at_plenty(problem, models, relaxed)
    return _by_recreating(problem, columns, models, relaxed, limits, clock, begin)


def _at_plenty(problem: AllocationProblem, models: Sequence[ModelBlocks], relaxed: Relaxed) -> Relaxed:
    """``relaxed`` at the rent, where it finds no kind of node scarce: it serves all, but in parts of instances."""
    rent = np.nan_to_num(problem.price_usd_per_h)
    nodes = rent if rent.any() else np.ones_like(rent)
    return replace(relaxed, nodes=nodes, least=least_costs(models, nodes))


def _by_recreating(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    relaxed: Relaxed,
    limits: SolveLimits,
    clock: Clock,
    begin: Ints | None,
) -> GoalOutcome | None:
    """From ``begin``, the mix rounded down, or a plan in stages, on a share is tried until no model lacks anything of it, then a
    larger one; from one that is not reached it goes back, by much to begin with, then to the best so far and on by less."""
    prices = NodePrices(relaxed.nodes, relaxed.nodes)
    weights = lack_weights(relaxed.least, _LACK_RULED if has_rules(models) else _LACK)
    part, more, halvings = (_FIRST_RULED if has_counts(models) else _FIRST), _MORE, _HALVINGS
    starts = [whole(part * relaxed.mix)]
    if is_lumpy(models, relaxed.mix, relaxed.least):
        starts += _in_stages(problem, columns, part * relaxed.share, limits, clock)
        halvings = _HALVINGS_STAGED if len(starts) > 1 else _HALVINGS
    times = _OFTENER if has_counts(models) and len(models) <= _FEW else 1
    halvings *= times
    starts += [] if begin is None else [begin]
    packed = packing(problem, columns, models, prices, prices, relaxed.mix + sum(starts), weights)
    at = _of_share(packed, part * relaxed.share)
    counts = best = min(starts, key=lambda start: at.penalty(at.state(start)))
    reached = min(served_shares(problem, columns, best).values()) if is_within(problem, columns, best) else 0.0
    part = max(part, reached / relaxed.share * more)
    while halvings > 0 and more > _LEAST_MORE and reached < relaxed.bound * (1 - limits.gap) and not clock.is_past():
        share = min(part * relaxed.share, 1.0)
        at = _of_share(packed, share)
        plan, taken = recreate(at, at.state(counts), min(halvings, times * _AT_A_SHARE), limits, clock, _lacks_nothing)
        counts, halvings = at.counts(plan.x, len(columns)), halvings - max(taken, 1)
        common = min(served_shares(problem, columns, counts).values())
        if common > reached and is_within(problem, columns, counts):
            best, reached = counts, common
        if not plan.lacking.any() and share >= 1.0:
            break
        if plan.lacking.any() and reached < share * _MUCH:
            part *= _LESS
            continue
        more = math.sqrt(more) if plan.lacking.any() else more
        counts, part = best, reached / relaxed.share * more
    if reached <= 0:
        return None
    return GoalOutcome(MipStatus.LIMIT, best, -reached, -max(relaxed.bound, reached))


def _of_share(packed: Packing, share: float) -> Packing:
    """``packed`` where so much of all demand is to be served."""
    return replace(packed, items=packed.items._replace(share=packed.items.share / share))


def _in_stages(
    problem: AllocationProblem, columns: Columns, share: float, limits: SolveLimits, clock: Clock
) -> list[Ints]:
    """Instances per column of a plan in stages that is to serve ``share`` of all demands, where the LP over covers does not rule
    that out; some models may get less."""
    models = model_blocks(problem, columns, share)
    found = generate(problem, columns, models, _GRID, limits, clock)
    _, parts = joint_bound(problem, models, found.duals, _GRID, limits.threads)
    if not np.isfinite(parts).all():
        return []  # whole instances of a model do not come to that share
    weights = lack_weights(parts, _LACK_STAGED)
    return [plan_in_stages(problem, columns, models, found, weights, _GRID, limits, clock, _ROUNDS_STAGED)]


def _lacks_nothing(plan: Found) -> bool:
    return not plan.lacking.any()


def relax(problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits) -> Relaxed:
    """The relaxation by column generation.

    At prices of nodes, budget and quotas a plan at theta costs at least theta x the sum of the models' least costs per whole
    demand, and at most what all supply costs: a bound at any prices. Whole instances give a lower one where they are large
    (:func:`_bound_of_covers`); where that is below the share found, that and its mix are cut down to it.
    """
    master, bound, share, prices, worth, least = _parts(problem, columns, models, limits, lambda bound, share: False)
    supply = supply_value(problem, worth.supply, worth.budget, worth.quota)
    bound = min(bound, _bound_of_covers(models, prices, supply, limits.threads))
    part = min(bound / share, 1.0) if share > 0 else 1.0
    return Relaxed(bound, part * share, part * master.mix(), prices, least)


def is_ruled_out(
    problem: AllocationProblem, columns: Columns, models: Sequence[ModelBlocks], limits: SolveLimits
) -> bool:
    """Whether not even parts of instances serve the whole demand."""
    return _parts(problem, columns, models, limits, lambda bound, share: bound < 1 or share >= 1 - _CLOSE)[1] < 1


def _parts(
    problem: AllocationProblem,
    columns: Columns,
    models: Sequence[ModelBlocks],
    limits: SolveLimits,
    is_enough: Callable[[float, float], bool],
) -> tuple[Relaxation, float, float, Floats, Worth, Floats]:
    """The LP over parts of instances: it, a bound on the share, the share, what nodes are worth, all duals, and what each model
    costs at least at such prices. Ends where the two are close or ``is_enough`` of them."""
    master = Relaxation(problem, columns, models, Goal.THETA, 0.0, limits)
    base = np.nan_to_num(problem.price_usd_per_h)
    prices, worth = (
        base,
        Worth(base, 0.0, np.zeros(len(problem.quotas)), np.full(master.blocks, np.inf), np.zeros(master.blocks), 0.0),
    )
    bound, share = 1.0, 0.0
    least = np.zeros(len(models))
    for at in range(_ROUNDS):
        least = master.price(prices, worth)
        if at and least.sum() > 0:
            supply = supply_value(problem, worth.supply, worth.budget, worth.quota)
            bound = min(bound, supply / float(least.sum()) * (1 + 1e-9))
        if bound - share <= _CLOSE or is_enough(bound, share):
            break
        value, worth = master.solve()
        share = -value
        prices = worth.of_nodes(problem)
    return master, bound, share, prices, worth, least


def _bound_of_covers(models: Sequence[ModelBlocks], prices: Floats, supply: float, threads: int) -> float:
    """No plan serves a larger common share: at ``prices`` the whole instances that serve more cost more than all ``supply``."""
    nodes, grid = NodePrices(prices, prices), _LEVELS_SPLIT if is_capped(models) else _LEVELS
    least = sum(side_by_side(lambda model: least_by_level(model, nodes, model.scaled(grid)), models, threads))
    levels = grid.size // grid.unit
    return float(np.flatnonzero(least <= supply * (1 + 1e-9))[-1]) / levels
