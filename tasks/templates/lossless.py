"""Which templates a plan must choose from: the frontier loses nothing only where its rules see node counts and rates alone.

A dominated template can be replaced by others on its own nodes that serve at least as much. That changes no cost and
breaks no limit as long as both grow with nodes per (region, configuration, market) and what is served is a sum of rates.
Rules that look at instances, or at a template's own figures, may tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class CandidateSet(StrEnum):
    """``FRONTIER``: the stored frontier of the filter. ``AS_PLANNED``: the frontier by the rates the plan is made with, from
    all templates. ``ALL``: every template."""

    FRONTIER = "frontier"
    AS_PLANNED = "as_planned"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates a plan needs, and why it is not the frontier."""

    candidates: CandidateSet
    reasons: tuple[str, ...]


LOSSLESS: frozenset[str] = frozenset(
    {
        "prices",
        "capacity",
        "quotas",
        "budget_usd_per_h",
        "min_regions",
        "cross_region_kv",  # what moves is of requests, whatever serves them
        "shortage",
        "headroom",  # one share per phase
        "demand_percentile",
        "max_spot_share",  # written as: on-demand serves at least the rest of the demand
        "spot_interrupt_per_h",  # an instance of fewer nodes is interrupted less often
        "spot_recovery_minutes",
        "n_plus_one",  # parts lose less than the whole; a larger one in its place leaves no less without it
        "min_replicas",  # parts count more than the whole
        "node_configs",  # parts of what uses none but these use none but these
        "init_minutes",  # K: a part of the price, so it grows with nodes; running templates stay candidates
        "interval_minutes",
        "measured_only",  # a filter: the frontier is that of the templates it lets through
        "launchable_only",
        "guards",  # whether a plan is published at once, not what it may be
        "alerts",  # whom to tell of a plan
        "hysteresis_pct",  # whether the current plan stays; it is a candidate as it is
        "fleet_max_age_minutes",  # what counts as running; running templates stay candidates
    }
)
"""Rules under which the frontier has a plan as good as any."""

AS_PLANNED: dict[str, str] = {
    "safety_percentile": "rates are lowered by each template's own error",
    "headroom_by_template": "rates are lowered by each template's own headroom",
}
"""Rules that change rates template by template: what is dominated is to be found anew."""

NEEDS_ALL: dict[str, str] = {
    "fixed_usd_per_instance": "an instance costs something by itself, so two small ones cost more than one large",
    "max_instances": "one large instance counts less than the small ones in its place",
    "max_instance_starts": "one large instance starts once, the small ones in its place each",
    "init_minutes_by_template": "K depends on the template, so its parts may be slower to start",
    "min_rate_per_instance": "the parts of a large template may each be below the least rate",
    "max_spot_of_rented": "a cap on spot in terms of what is rented, not of demand, sees more than is needed",
}
"""Rules that see instances: nothing may be dropped."""


def candidate_set(rules: Iterable[str]) -> Choice:
    """What to choose from under these rules. Raises ValueError for one of which nobody has said whether it is lossless."""
    active = sorted(set(rules))
    unknown = [rule for rule in active if rule not in LOSSLESS and rule not in AS_PLANNED and rule not in NEEDS_ALL]
    if unknown:
        raise ValueError(f"nobody has said whether the frontier is lossless under {', '.join(unknown)}: see {__name__}")
    for candidates, reasons in ((CandidateSet.ALL, NEEDS_ALL), (CandidateSet.AS_PLANNED, AS_PLANNED)):
        found = tuple(f"{rule}: {reasons[rule]}" for rule in active if rule in reasons)
        if found:
            return Choice(candidates, found)
    return Choice(CandidateSet.FRONTIER, ())
