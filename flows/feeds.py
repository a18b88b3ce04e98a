"""A scenario with what was ingested for it: the latest prices, supply and demand in the lake, their ages and states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from catalogs.catalog import load_catalog
from catalogs.errors import StaleError, UnknownNameError
from catalogs.feeds import DemandWindow
from catalogs.lake_feeds import DemandObservation, LakeFeeds
from catalogs.scenario import FeedReader, LoadedScenario, load_scenario
from catalogs.scenario_schema import DemandSection, Scenario

if TYPE_CHECKING:
    from catalogs.lake_feeds import FailedLaunch, PriceSnapshot
    from catalogs.types import Availability, Lengths, Market
    from warehouse.connect import Lake

_SHOWN = 3


def load_with_feeds(name_or_path: str | Path, lake_root: Path, at: datetime | None = None) -> LoadedScenario:
    """The scenario with what the lake in ``lake_root`` holds for it (nothing where there is no lake), as of ``at`` (default:
    now; a demand file's latest window then counts). Raises what :func:`catalogs.scenario.load_scenario` raises, and
    LakeError."""
    now = at or datetime.now(UTC)
    return _with_supply_judged(load_scenario(name_or_path, at, feed_reader(lake_root, now)), now)


def feed_reader(lake_root: Path, at: datetime) -> FeedReader:
    """Reads the feeds of a scenario from the lake as of ``at``."""

    def read(scenario: Scenario) -> LakeFeeds:
        from warehouse.connect import Lake

        if not Lake.exists(lake_root):
            return _Reader(None, scenario, at).feeds()
        with Lake.open(lake_root, read_only=True) as lake:
            return _Reader(lake, scenario, at).feeds()

    return read


def check_fresh(loaded: LoadedScenario) -> None:
    """Raise StaleError where an input is older than allowed and the scenario holds its plan then."""
    if loaded.feeds.stale and loaded.scenario.feeds.on_stale == "hold":
        raise StaleError(
            f"{loaded.scenario.id}: {'; '.join(loaded.feeds.stale)}; so nothing is decided",
            remedy="ingest newer ones, or set feeds.on_stale: warn to plan with them",
        )


class _Reader:
    """Reads one scenario's feeds, noting what is missing, old or assumed."""

    def __init__(self, lake: Lake | None, scenario: Scenario, at: datetime) -> None:
        self.lake, self.scenario, self.at = lake, scenario, at
        self.notes: list[tuple[str, str]] = []
        self.stale: list[str] = []
        self.ages_s: dict[str, float] = {}
        self.unknown: dict[str, str] = {}
        self.lengths: dict[str, Lengths] = {}

    def feeds(self) -> LakeFeeds:
        demand = self.scenario.demand
        return LakeFeeds(
            prices=self.prices() if self.scenario.offers.feed else {},
            availability=self.availability() if self.scenario.availability.feed else {},
            demand=dict(self.demand(demand)) if demand is not None and demand.feed else {},
            failed=self.failed(),
            unknown=self.unknown,
            lengths=self.lengths,
            notes=tuple(self.notes),
            stale=tuple(self.stale),
            ages_s=self.ages_s,
        )

    def prices(self) -> Mapping[str, PriceSnapshot]:
        from warehouse.feeds import price_snapshots

        found = price_snapshots(self.lake, self.scenario.id, at=self.at) if self.lake else {}
        regions = self.scenario.offers.regions
        missing = [region for region in regions if region not in found]
        if missing:
            text = f"no price feed was ingested for {_listed(missing)}: the catalog's prices are used there"
            self.notes.append(("price_feed_missing", text))
        ages = {region: self.age_s(found[region].observed_at) for region in regions if region in found}
        self.judge("prices", ages, self.scenario.feeds.prices_hours * 3600)
        return found

    def availability(self) -> Mapping[tuple[str, str, Market], Availability]:
        from warehouse.feeds import latest_availability

        return latest_availability(self.lake, self.scenario.id, self.at) if self.lake else {}

    def demand(self, section: DemandSection) -> Iterator[tuple[str, DemandWindow]]:
        from warehouse.feeds import demand_history

        since = self.at - timedelta(days=section.history_days)
        history = demand_history(self.lake, self.scenario.id, since, self.at) if self.lake else {}
        ages: dict[str, float] = {}
        for model in served_models(self.scenario):
            windows = history.get(model, ())
            if not windows:
                days = f"in the last {section.history_days:g} days"
                self.unknown[model] = f"no demand was ingested for it {days}"
                continue
            yield model, self.window(model, windows, section, ages)
        self.judge("demand", ages, self.scenario.feeds.demand_minutes * 60)

    def window(
        self, model: str, windows: tuple[DemandObservation, ...], section: DemandSection, ages: dict[str, float]
    ) -> DemandWindow:
        from tasks.demand.forecast import ForecastMethod, forecast

        told = [w.lengths for w in windows if w.lengths is not None]
        if told:
            self.lengths[model] = told[-1]
        method, season = ForecastMethod(section.forecast), timedelta(hours=section.season_hours)
        found = forecast(windows, self.at, method, season, self.scenario.policy.demand_percentile)
        window = found.window
        ages[model] = 0.0 if found.is_told else self.age_s(window.window_end)
        if found.req_per_s is None:
            self.unknown[model] = f"its window from {window.window_start:%Y-%m-%d %H:%M} UTC is told as unknown"
        elif not found.is_told:
            text = f"demand of {model} is known up to {window.window_end:%Y-%m-%d %H:%M} UTC and carried on ({method.value})"
            self.notes.append(("demand_forecast", text + (f"; {found.note}" if found.note else "")))
        return DemandWindow(model, window.window_start, found.req_per_s, found.peak_ratio)

    def failed(self) -> tuple[FailedLaunch, ...]:
        from warehouse.feeds import failed_launches

        kept = timedelta(minutes=self.scenario.feeds.failed_launch_minutes)
        if self.lake is None or not kept:
            return ()
        regions = set(self.scenario.offers.regions)
        found = [
            f for f in failed_launches(self.lake, self.scenario.id, self.at - kept, self.at) if f.region in regions
        ]
        for launch in found:
            until = launch.failed_at + kept
            text = (
                f"a launch of {launch.node_config} in {launch.region} failed at {launch.failed_at:%H:%M} UTC: no more than "
                f"the {launch.running} that run count till {until:%H:%M} UTC"
            )
            self.notes.append(("failed_launch", text))
        return tuple(found)

    def age_s(self, seen: datetime) -> float:
        return max(0.0, (self.at - seen).total_seconds())

    def judge(self, what: str, ages_s: Mapping[str, float], most_s: float) -> None:
        """Log the age of the oldest of an input's parts, and note those that are older than allowed."""
        if not ages_s:
            return
        self.ages_s[what] = max(ages_s.values())
        if text := _too_old(what, ages_s, most_s):
            self.notes.append((f"stale_{what}", text))
            self.stale.append(text)


def _with_supply_judged(loaded: LoadedScenario, now: datetime) -> LoadedScenario:
    """The scenario with the age of its supply feed noted. Only what is on offer counts: a machine that the scenario leaves
    out, or that nobody sells any more, is told of once and then never again."""
    if loaded.scenario.availability.feed is None:
        return loaded
    ages = {
        f"{config} in {region}": max(0.0, (now - datetime.fromisoformat(seen.observed_at)).total_seconds())
        for (region, config, market), seen in loaded.feeds.availability.items()
        if (region, market, config) in loaded.by_market and seen.nodes is not None
    }
    if not ages:
        text = "no availability is known from a feed: quotas or the scenario's default count, as assumed"
        return replace(loaded, warnings=(*loaded.warnings, ("availability_feed_missing", text)))
    feeds = replace(loaded.feeds, ages_s={**loaded.feeds.ages_s, "availability": max(ages.values())})
    text = _too_old("availability", ages, loaded.scenario.feeds.availability_minutes * 60)
    if not text:
        return replace(loaded, feeds=feeds)
    feeds = replace(feeds, stale=(*feeds.stale, text))
    return replace(loaded, feeds=feeds, warnings=(*loaded.warnings, ("stale_availability", text)))


def _too_old(what: str, ages_s: Mapping[str, float], most_s: float) -> str:
    """Which parts of an input are older than allowed, in words; empty where none is."""
    old = {name: age for name, age in ages_s.items() if age > most_s}
    if not old:
        return ""
    return f"{what} of {_listed(sorted(old))} is {_span(max(old.values()))} old (allowed: {_span(most_s)})"


def served_models(scenario: Scenario) -> tuple[str, ...]:
    """Ids of the scenario's models; names that nobody knows are left out (loading reports them)."""
    found = []
    for section in scenario.models:
        try:
            found.append(section.model if section.config else load_catalog().model(section.model).model)
        except UnknownNameError:
            continue
    return tuple(found)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _span(seconds: float) -> str:
    if seconds < 3 * 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 3 * 86400 else f"{seconds / 86400:.0f} days"
