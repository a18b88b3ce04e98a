"""Better plans for many models by ruin and recreate (Schrimpf et al., J. Comput. Phys. 159, 2000): some instances are taken
out, the models that lack them are completed from what is left, and the plan stays where it costs less, or hardly more.

Models are halved at random over and over, with them the nodes that nobody uses, and the halves searched side by side. The
answer depends on neither threads nor the clock, which only ends it. Loops: :mod:`tasks.allocation.covers.recreate_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.clock import Clock
from tasks.allocation.covers.packing import Packing
from tasks.allocation.covers.pricing import ModelBlocks
from tasks.allocation.covers.recreate_kernels import search
from tasks.allocation.covers.recreate_types import State
from tasks.allocation.types import SolveLimits

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_CELLS = 48  # into which what a model lacks is split
_ROUNDS = 44  # per model of a half, between two halvings
_HALVED = 8  # models: fewer are searched together
_LEAST_COST = 1e-9  # USD/h
_HEAT = (0.025, 0.0025)  # of what an instance costs, at the beginning and the end
_PIECES = 8  # of a search of few models: between them it may be stopped
_ROOM, _ROOM_OF_FEW = 0.1, 0.3  # of the ruins make room for instances of a model, more where few models share it
_BIAS, _UNBIASED = 0.8, 0.8  # of what nodes are worth, at the beginning; none is left after so much of the search


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan found, instances per item; its cost, what its models lack counted; and what each lacks of its demand."""

    x: Ints
    value: float
    lacking: Floats


def can_recreate(models: Sequence[ModelBlocks]) -> bool:
    """Whether completing a model knows all rules of the models: N+1, least replicas and capped spot, not several regions."""
    phases = {len(row) for model in models for row in model.blocks}
    return len(phases) == 1 and all(model.blocks and model.wanted <= 1 for model in models)


def has_rules(models: Sequence[ModelBlocks]) -> bool:
    """Whether a model has a rule of its own that tables of covers take much longer for."""
    return has_counts(models) or is_capped(models)


def is_capped(models: Sequence[ModelBlocks]) -> bool:
    """Whether spot is capped of a model that is offered any."""
    return any(block.is_split for model in models for phases in model.blocks for block in phases)


def has_counts(models: Sequence[ModelBlocks]) -> bool:
    """Whether a model has a rule on its number of instances: N+1 or least replicas."""
    return any(model.demand.survives_loss or model.demand.min_replicas > 1 for model in models)


def recreate(
    packed: Packing,
    state: State,
    halvings: int,
    limits: SolveLimits,
    clock: Clock,
    is_enough: Callable[[Found], bool],
    heat: tuple[float, float] = _HEAT,
) -> tuple[Found, int]:
    """The best plan of a search from ``state`` on, which ends after so many halvings, once ``is_enough``, or on the clock; and
    how many it took. ``heat`` (of what an instance costs) at the beginning and the end. Changes ``state``."""
    random = np.random.default_rng(limits.seed)
    best = _judge(packed, state.x, state)
    each = _instance_cost(packed, state)
    for at in range(halvings):
        if is_enough(best) or clock.is_past():
            return best, at
        schedule = _between(heat, at, halvings, each), _bias(at, halvings)
        best = _halves(packed, state, best, random, schedule, limits)
    return best, halvings


def search_together(
    packed: Packing,
    state: State,
    rounds: int,
    heat: tuple[float, float],
    bias: tuple[float, float],
    seed: int,
    clock: Clock,
) -> State:
    """Where a search of all models at once from ``state`` on ends, after so many rounds per model or on the clock; of one whose
    ``bias`` ends at 0 the best plan. ``heat`` (of what an instance costs) and ``bias`` at the beginning and the end, as in
    :func:`tasks.allocation.covers.recreate_kernels.search`. Changes ``state``."""
    mine = np.arange(len(packed.layout.weight))
    hot, cold = _instance_cost(packed, state) * np.array(heat)
    best, seeds = _judge(packed, state.x, state), np.random.default_rng(seed).integers(2**31, size=_PIECES).tolist()
    each = -(-rounds * len(mine) // _PIECES)
    for at in range(_PIECES):
        if clock.is_past():
            break
        done = np.array([at, at + 1]) / _PIECES
        slopes = hot * (cold / hot) ** done, bias[0] + (bias[1] - bias[0]) * done
        top = state.x.copy()
        search(packed.items, packed.layout, state, mine, top, each, *slopes, _ROOM_OF_FEW, _CELLS, seeds[at])
        found = _judge(packed, top, packed.from_items(top))
        best = found if found.value < best.value else best
    return packed.from_items(best.x) if bias[1] == 0 else state


def _judge(packed: Packing, x: Ints, state: State) -> Found:
    lacking = packed.lacking(state)
    return Found(x.copy(), packed.value(state), lacking)


def _instance_cost(packed: Packing, state: State) -> float:
    """What an instance costs in the mean; not 0 where all are free."""
    used = state.x > 0
    cost = packed.items.cost + packed.items.worth if packed.layout.jump == 0 else packed.items.cost
    cost = cost[used] if used.any() else cost
    return max(float(cost.mean()), _LEAST_COST)


def _between(ends: tuple[float, float], at: int, of: int, scale: float) -> Floats:
    """The geometric slope at the beginning and the end of step ``at``."""
    return np.array([scale * ends[0] * (ends[1] / ends[0]) ** ((at + k) / of) for k in (0, 1)])


def _bias(at: int, of: int) -> Floats:
    return np.array([max(_BIAS * (1 - (at + k) / (_UNBIASED * of)), 0.0) for k in (0, 1)])


def _halves(
    packed: Packing,
    state: State,
    best: Found,
    random: np.random.Generator,
    schedule: tuple[Floats, Floats],
    limits: SolveLimits,
) -> Found:
    """Search two halves of the models side by side; ``best`` or what their best plans make together."""
    models = len(packed.layout.weight)
    order, halves = random.permutation(models), 2 if models >= _HALVED else 1
    mine = [np.sort(order[: -(-models // halves)]), np.sort(order[-(-models // halves) :])]
    left = random.binomial(np.maximum(state.left, 0), 1 / halves)
    states = [_part(packed, state, half, part) for half, part in zip(mine, (left, state.left - left), strict=True)]
    tops = [part.x.copy() for part in states]
    seeds = random.integers(2**31, size=2).tolist()

    def run(k: int) -> None:
        if not len(mine[k]):
            return  # few models are not halved
        rounds = _ROUNDS * len(mine[k])
        search(packed.items, packed.layout, states[k], mine[k], tops[k], rounds, *schedule, _ROOM, _CELLS, seeds[k])

    if limits.threads < 2:
        run(0)
        run(1)
    else:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range(2)))
    top = tops[0] + tops[1]
    _join(state, states)
    found = _judge(packed, top, packed.from_items(top))
    return found if found.value < best.value - 1e-9 else best


def _part(packed: Packing, state: State, mine: Ints, left: Ints) -> State:
    """The state of some models alone, with the nodes ``left`` to them."""
    has = np.isin(packed.items.model, mine)
    blocks = np.zeros(len(state.served), dtype=np.bool_)
    blocks[packed.items.block[has]] = True
    served, firm = np.where(blocks, state.served, 0.0), np.where(blocks, state.firm, 0.0)
    many = np.where(blocks, state.many, 0)
    return State(np.where(has, state.x, 0), left.copy(), served, firm, many, state.log.copy())


def _join(state: State, parts: Sequence[State]) -> None:
    for name in ("x", "left", "served", "firm", "many"):
        getattr(state, name)[:] = sum(getattr(part, name) for part in parts)
