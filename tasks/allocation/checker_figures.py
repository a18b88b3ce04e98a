"""The independent check of an answer: its stated figures against each other, and when two figures are one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tasks.allocation.types import SolveStatus

# Relative: what sums of a few hundred floats can differ by, and less than any rate or price is known to.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Totals:
    """The stated figures of an answer."""

    status: SolveStatus
    cost_usd_per_h: float
    init_usd: float
    lower_bound_usd: float
    gap: float
    theta: float
    theta_upper: float
    egress_usd_per_h: float = 0.0


def close(a: float, b: float, scale: float = 1e-3) -> bool:
    """Whether two stated figures are one, within the tolerance; NaN is never close."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale)


def figure_faults(totals: Totals) -> list[str]:
    """Bound, gap and theta against each other."""
    faults = []
    objective = totals.cost_usd_per_h + totals.init_usd
    bound = totals.lower_bound_usd
    if not 0 <= bound <= objective * (1 + TOLERANCE) + TOLERANCE:
        faults.append(f"bound {bound} is not between 0 and the objective {objective}")
    gap = (objective - bound) / objective if objective > 0 else 0.0
    if not close(totals.gap, gap, 1.0):
        faults.append(f"gap is {gap}, stated as {totals.gap}")
    if not 0 <= totals.theta <= totals.theta_upper * (1 + TOLERANCE) <= 1 + 2 * TOLERANCE:
        faults.append(f"theta {totals.theta} and its bound {totals.theta_upper} are out of order")
    if totals.status is SolveStatus.OPTIMAL and not gap <= 2 * TOLERANCE:
        faults.append(f"status optimal with a gap of {gap}")
    if totals.status is not SolveStatus.SHORTFALL and totals.theta_upper != 1.0:
        faults.append(f"all demand is met, but theta is bounded by {totals.theta_upper}")
    return faults
