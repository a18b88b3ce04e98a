"""What changes between two plans: instances to add, keep and remove per (region, workload, combination), and the cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tasks.allocation.plan import Plan, PlanInstance

# Two costs closer than this are the same price: they were summed in another order.
_SAME_USD_PER_H = 1e-6


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Instances of one (region, market, workload, combination) in both plans; ``add``, ``keep``, ``remove`` count instances.

    ``is_laid_out_anew``: kept nodes, but their layers, layouts or shares change.
    """

    region: str
    market: str
    workload: str
    combination_id: str
    add: int
    keep: int
    remove: int
    is_laid_out_anew: bool


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The difference from ``before`` to ``after`` (plan versions); ``cost_delta_usd_per_h`` = after - before."""

    scenario_id: str
    before: int
    after: int
    rows: tuple[DiffRow, ...]
    cost_before_usd_per_h: float
    cost_after_usd_per_h: float

    @property
    def cost_delta_usd_per_h(self) -> float:
        """After minus before."""
        return self.cost_after_usd_per_h - self.cost_before_usd_per_h

    @property
    def is_empty(self) -> bool:
        """No instance and no cost differs."""
        changes = any(row.add or row.remove or row.is_laid_out_anew for row in self.rows)
        return not changes and abs(self.cost_delta_usd_per_h) < _SAME_USD_PER_H

    def document(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {**asdict(self), "cost_delta_usd_per_h": self.cost_delta_usd_per_h, "is_empty": self.is_empty}


_Key = tuple[str, str, str, str]


def _key(instance: PlanInstance) -> _Key:
    return instance.region, instance.workload, instance.combination_id, instance.market.value


def _layouts(instances: Iterable[PlanInstance]) -> dict[_Key, set[Any]]:
    found: dict[_Key, set[Any]] = {}
    for instance in instances:
        found.setdefault(_key(instance), set()).add(instance.stages)
    return found


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """Instances by (region, workload, combination, market), counted in both plans."""
    counts: tuple[Counter[_Key], Counter[_Key]] = (Counter(), Counter())
    for counter, plan in zip(counts, (before, after), strict=True):
        for instance in plan.instances:
            counter[_key(instance)] += instance.instances
    old, new = counts
    old_layouts, new_layouts = _layouts(before.instances), _layouts(after.instances)
    rows = []
    for key in sorted(old.keys() | new.keys()):
        region, workload, combination, market = key
        kept = min(old[key], new[key])
        is_anew = kept > 0 and old_layouts[key] != new_layouts[key]
        rows.append(DiffRow(region, market, workload, combination, new[key] - kept, kept, old[key] - kept, is_anew))
    return PlanDiff(
        after.scenario_id,
        before.plan_version,
        after.plan_version,
        tuple(rows),
        before.cost_usd_per_h,
        after.cost_usd_per_h,
    )
