"""What feeds tell of the world, as `coral ingest` took it in and as a scenario is planned with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from catalogs.types import Availability, Lengths, Market, Offer

if TYPE_CHECKING:
    from catalogs.feeds import DemandWindow  # which needs the whole catalog


class FeedKind(StrEnum):
    """What a file handed to `coral ingest` tells of."""

    PRICES = "prices"
    AVAILABILITY = "availability"
    DEMAND = "demand"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class FeedPrice:
    """An offer of a price feed. ``is_list``: a list price, from which a negotiated discount comes off.
    ``network_gbit_per_s`` None = as in the catalog; ``is_dated``: the feed dates the price itself."""

    offer: Offer
    network_gbit_per_s: float | None
    is_list: bool
    is_dated: bool


@dataclass(frozen=True, slots=True)
class PriceSnapshot:
    """All that a feed offers in a region at a moment; ``sequence`` counts a region's snapshots in the lake from 1."""

    region: str
    observed_at: datetime
    prices: tuple[FeedPrice, ...]
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class DemandObservation:
    """Demand of a model in a window. ``req_per_s`` None = unknown. ``minute_counts``: requests in each minute where a trace
    was counted, else empty. ``lengths`` None = not told."""

    model: str
    window_start: datetime
    window_s: float
    req_per_s: float | None
    minute_counts: tuple[int, ...] = ()
    lengths: Lengths | None = None

    @property
    def window_end(self) -> datetime:
        """End of the window."""
        return self.window_start + timedelta(seconds=self.window_s)


@dataclass(frozen=True, slots=True)
class FleetNodes:
    """Machines seen: ``nodes`` that run for a template ('' = for none known), ``failed_nodes`` asked for beside them that
    could not be had."""

    region: str
    node_config: str
    market: Market
    template_id: str
    nodes: int
    failed_nodes: int = 0


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """All machines of a scenario at a moment. ``rows_set_aside``: rows of the same file that could not be read; where there
    are any, the fleet may be larger than it looks."""

    scenario_id: str
    observed_at: datetime
    nodes: tuple[FleetNodes, ...]
    rows_set_aside: int = 0


@dataclass(frozen=True, slots=True)
class FailedLaunch:
    """A launch that failed: until it is forgotten, no more than ``running`` nodes count as to be had there."""

    region: str
    node_config: str
    market: Market
    failed_at: datetime
    running: int


@dataclass(frozen=True, slots=True)
class LakeFeeds:
    """What a scenario that takes feeds from the lake is planned with. Empty = nothing was taken in yet.

    ``demand`` holds the window that counts per model (absent = unknown), forecast where the feed ends before it; ``unknown``
    says why a model's demand is. ``lengths`` are the last that a feed told of, by model. ``notes`` are (code, text) for the
    plan, ``ages_s`` the ages of inputs by name; ``stale`` says which are older than the scenario allows.
    """

    prices: Mapping[str, PriceSnapshot] = field(default_factory=dict)
    availability: Mapping[tuple[str, str, Market], Availability] = field(default_factory=dict)
    demand: Mapping[str, DemandWindow] = field(default_factory=dict)
    failed: tuple[FailedLaunch, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    stale: tuple[str, ...] = ()
    ages_s: Mapping[str, float] = field(default_factory=dict)
