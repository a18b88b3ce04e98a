"""The relaxation of a shortage by weight, or of the least cost at one or at none: a mix of parts of instances, what it prices
nodes at, and a bound by whole instances at these prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.covers.pricing import Grid, dual_prices, least_by_level, side_by_side, supply_value
from tasks.allocation.covers.recreate import is_capped
from tasks.allocation.covers.relaxation import Relaxation, Worth
from tasks.allocation.covers.tables import NodePrices
from tasks.allocation.covers.task import Task
from tasks.allocation.formulation import Goal

Floats = NDArray[np.float64]
_ROUNDS = 24
_CLOSE = 1e-3  # between the relaxation's value and its bound, of the value
_LEVELS, _LEVELS_SPLIT = Grid(16384, 16), Grid(4096, 4)  # of the bound by whole instances; where spot is capped
_LITTLE = 1e-9


@dataclass(frozen=True, slots=True)
class Parts:
    """What the relaxation is worth (``value``), its duals and ``mix``; ``bound``: no plan comes below it."""

    worth: Worth
    mix: Floats
    value: float
    bound: float


def mixed_parts(task: Task, goal: Goal, cap: float) -> Parts:
    """The relaxation of SHORTAGE, or of COST with ``cap`` on the weighted missing share."""
    problem, weights = task.problem, task.weights
    master = Relaxation(problem, task.columns, task.models, goal, cap, task.limits)
    rent = np.nan_to_num(problem.price_usd_per_h)
    own = rent * (1 + problem.init_share) if goal is Goal.COST else np.zeros_like(rent)
    worth = Worth(
        rent, 0.0, np.zeros(len(problem.quotas)), np.full(master.blocks, np.inf), np.zeros(master.blocks), 0.0
    )
    master.price(rent, worth)
    value, best, highest = np.inf, worth, -np.inf
    for _ in range(_ROUNDS):
        value, worth = master.solve()
        value += float(weights.sum()) if goal is Goal.SHORTAGE else 0.0
        size = master.size
        least = master.price(own + worth.of_nodes(problem), worth)
        unit = worth.served if goal is Goal.COST else 1.0
        here = float(np.minimum(least, unit * weights).sum()) - _too_much(task, goal, cap, worth)
        if here > highest:
            highest, best = here, worth
        if value - highest <= _CLOSE * abs(value) + _LITTLE or master.size == size or task.clock.is_past():
            break
    bound = _bound(task, goal, cap, best)
    # That of parts counts what runs as if it were started anew.
    bound = max(bound, highest, 0.0) if goal is Goal.SHORTAGE else bound
    return Parts(best, master.mix(), value, bound)


def _too_much(task: Task, goal: Goal, cap: float, worth: Worth) -> float:
    """What costs at the duals count too much: duals x supply, and x cap."""
    supply = supply_value(task.problem, worth.supply, worth.budget, worth.quota)
    return supply + (worth.served * cap if goal is Goal.COST else 0.0)


def _bound(task: Task, goal: Goal, cap: float, worth: Worth) -> float:
    """No plan is worth less: every model's whole instances at the level that costs least, less what the duals count too much."""
    nodes = worth.of_nodes(task.problem)
    unit, prices = 1.0, NodePrices(nodes, nodes)
    grid = _LEVELS_SPLIT if is_capped(task.models) else _LEVELS
    if goal is Goal.COST:
        unit, prices = worth.served, dual_prices(task.problem, worth.supply, worth.budget, worth.quota)
    tables = side_by_side(
        lambda model: least_by_level(model, prices, model.scaled(grid)), task.models, task.limits.threads
    )
    cells = grid.size // grid.unit
    missing = unit * (1.0 - np.arange(cells + 1) / cells)
    least = sum(float((table + weight * missing).min()) for weight, table in zip(task.weights, tables, strict=True))
    return least - _too_much(task, goal, cap, worth)
