"""What a plan costs at least if it uses a given column: columns beyond the best plan known are dropped, without loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks.allocation.columns import Columns
from tasks.allocation.covers import kernels
from tasks.allocation.covers.pricing import ModelBlocks
from tasks.allocation.covers.ruled import table_below
from tasks.allocation.covers.tables import NodePrices, first_costs

Floats = NDArray[np.float64]


def bounds_if_used(
    columns: Columns, models: list[ModelBlocks], prices: NodePrices, dual_value: float, size: int
) -> Floats:
    """Per column a lower bound on the cost of every plan that uses it; inf where none can.

    Notation: V_m least cost of covering m at ``prices`` (rates rounded up), LB = sum V_m - ``dual_value`` (duals x
    supply). With one instance of column i in phase w, region r the model costs at least
    c_i + min over g of [rest of the model when w supplies g steps in r + f_wr(g - t_i)] =: c_i + M(t_i),
    so the plan costs at least LB - V_m + c_i + M(t_i). Minimum regions are left out: that only lowers the bound; under rules
    f_wr and t_i are ``rest`` and ``rest_steps`` of :class:`tasks.allocation.covers.ruled.Below`.
    """
    tables = [[[table_below(b, prices, size) for b in phases] for phases in model.blocks] for model in models]
    joined = [[sum((t.f for t in row), start=np.zeros(size + 1)) for row in per_model] for per_model in tables]
    others = [others_of(rows) for rows in joined]
    values = [
        float(min((np.min(row + other[::-1]) for row, other in zip(rows, rest, strict=True)), default=np.inf))
        for rows, rest in zip(joined, others, strict=True)
    ]
    bound = float(sum(values)) - dual_value
    least = np.full(len(columns), np.inf)
    for model, per_model, rest, value in zip(models, tables, others, values, strict=True):
        for r, phases in enumerate(model.blocks):
            for w, block in enumerate(phases):
                everything_else = rest[r][::-1].copy()
                for other, table in enumerate(per_model[r]):
                    if other != w:
                        everything_else += table.f
                own = per_model[r][w]
                with_item = kernels.best_with_item(everything_else, own.rest)
                least[block.columns] = bound - value + first_costs(block, prices) + with_item[own.rest_steps]
    return least


def others_of(rows: list[Floats]) -> list[Floats]:
    """For each region, the least cost of k steps from all other regions together."""
    n = len(rows[0]) if rows else 0
    nothing = np.full(n, np.inf)
    if n:
        nothing[0] = 0.0
    before = [nothing]
    for row in rows[:-1]:
        before.append(kernels.min_plus(row, before[-1]))
    after = [nothing]
    for row in rows[:0:-1]:
        after.append(kernels.min_plus(row, after[-1]))
    return [kernels.min_plus(a, b) for a, b in zip(before, after[::-1], strict=True)]
