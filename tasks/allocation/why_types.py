"""What an explanation of a plan says: costs of changed problems as ranges."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.allocation.types import Instance

_SAME = 1e-6  # relative: two costs this close are one


@dataclass(frozen=True, slots=True)
class Range:
    """A least cost, USD/h, that lies in [low, high]. ``high`` None: no plan is known; ``is_impossible``: proven that there
    is none."""

    low: float
    high: float | None
    is_impossible: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left open: both ends are one, or there is proven to be no plan."""
        return self.is_impossible or (self.high is not None and self.high - self.low <= _SAME * max(1.0, self.high))

    def within(self, other: Range) -> Range:
        """What both say."""
        if self.is_impossible or other.is_impossible:
            return Range(max(self.low, other.low), None, True)
        highs = [r.high for r in (self, other) if r.high is not None]
        high = min(highs, default=None)
        low = max(self.low, other.low)
        return Range(low if high is None else min(low, high), high)


@dataclass(frozen=True, slots=True)
class SupplyPrice:
    """What a node of a (region, configuration) is worth: ``dual_usd_per_h`` of the LP; cost with one ``more`` and one
    ``fewer`` (None = not among the dearest, or there is none to take)."""

    region: str
    node_config: str
    nodes: int
    used: int
    dual_usd_per_h: float
    more: Range | None
    fewer: Range | None


@dataclass(frozen=True, slots=True)
class WithoutTemplate:
    """Cost where a (region, template) of the plan may not be used; ``instead`` is what its workload runs then."""

    region: str
    template_id: str
    workload_id: str
    instances: int
    cost: Range
    instead: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class NextBest:
    """Cost where a model uses none of the templates it uses now where it uses them; ``instances`` are those it runs then."""

    model: str
    cost: Range
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Cost with a rule turned the other way. ``is_on``: the plan keeps the rule, the cost is without it; else with it."""

    rule: str
    is_on: bool
    cost: Range


@dataclass(frozen=True, slots=True)
class Why:
    """All of it. ``cost`` is what the ranges compare to (rent, and start-up charges where ``has_start_up``), ``bound`` the
    plan's; ``open_ends`` counts ranges that time did not allow to close."""

    cost_usd_per_h: float
    bound_usd_per_h: float
    has_start_up: bool
    supply: tuple[SupplyPrice, ...]
    templates: tuple[WithoutTemplate, ...]
    models: tuple[NextBest, ...]
    rules: tuple[RuleCost, ...]
    open_ends: int
    solves: int
    spent_s: float
