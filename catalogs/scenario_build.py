"""Builds a LoadedScenario: reads the file and its feeds, checks every name, and collects all faults before giving up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from catalogs import feeds as own
from catalogs.catalog import Catalog, read_efficiencies
from catalogs.errors import Finding, InputError, UnknownNameError
from catalogs.lake_feeds import LakeFeeds
from catalogs.length_drift import drift_notes
from catalogs.measured import CALIBRATION, RATES, Calibration, MeasuredRate, read_own_measurements
from catalogs.scenario import (
    FeedReader,
    LoadedScenario,
    ModelPlanDemand,
    demand_of,
    lengths_of,
    merged_catalog,
    offers_by_best,
    read_model_config,
    state_notes,
    workloads_of,
)
from catalogs.scenario_checks import (
    duplicate_findings,
    fit_findings,
    percent_notes,
    slo_unit_notes,
    start_up_notes,
    unused_quota_notes,
)
from catalogs.scenario_names import NameChecks
from catalogs.scenario_rules import ModelRules
from catalogs.scenario_schema import DemandSection, ModelSection, OffersSection, Scenario
from catalogs.scenario_yaml import Key, read_scenario_file
from catalogs.supply import (
    GRID_COUNTS,
    Capacity,
    Supply,
    choose_offers,
    feed_networks,
    lasting_offers,
    node_configs_of,
    quota_limits,
)
from catalogs.texts import is_regular_file
from catalogs.types import Efficiency, Lengths, ModelSpec, NodeConfig, Offer, Workload

Result = tuple[LoadedScenario | None, list[Finding], list[Finding]]


def build(path: Path, catalog: Catalog, at: datetime | None, feeds: FeedReader | None = None) -> Result:
    """(the scenario or None, errors, rows set aside). None exactly when there are errors."""
    return _Builder(path, catalog, at, feeds).build()


class _Builder(NameChecks):
    def __init__(self, path: Path, catalog: Catalog, at: datetime | None, feeds: FeedReader | None = None) -> None:
        draft = read_scenario_file(path)
        lake = feeds(draft.whole) if feeds and draft.whole else LakeFeeds()
        super().__init__(path, catalog, draft, lake, knows_feeds=feeds is not None)
        self.at = at
        self.rejects: list[Finding] = []
        self.warnings: list[tuple[str, str]] = []
        self.price_as_of: date | None = None
        self.for_library: Sequence[Offer] = ()

    def build(self) -> Result:
        supply, configs = self.read_offers()
        resolved = [entry for index, section in self.draft.models for entry in self.read_model(index, section)]
        for index, section in self.draft.rest_of_models:
            self.model_spec(("models", index), section)
            self.check_model_regions(("models", index), section)
        self.errors += duplicate_findings(self.draft, resolved)
        windows = self.read_demand()
        capacity = self.read_capacity(supply)
        self.catalog = replace(self.catalog, efficiencies={**self.catalog.efficiencies, **self.read_efficiencies()})
        measured = self.read_measured([spec for _, _, spec, _ in resolved], configs)
        scenario = self.draft.whole
        rules = ModelRules(self.draft, self.catalog.gpu_names, supply)
        self.errors += rules.findings()
        if self.errors:
            return None, self.errors, self.rejects
        assert scenario is not None, "a scenario without faults was not read"
        assert supply is not None, "a scenario without faults has no supply"
        assert capacity is not None, "a scenario without faults has no capacity"
        loaded = self.assemble(scenario, supply, configs, resolved, windows, capacity, rules)
        return replace(loaded, measured=measured[0], calibrations=measured[1]), [], self.rejects

    def feed(self, section: Any, key: Key, table: str) -> own.Feed | None:
        if section is None or section.file is None:
            return None
        found = self.file_of(str(key[0]))
        return None if found is None else own.read_feed(found[0], table, self.catalog, found[1])

    def keep(self, feed: own.Feed) -> own.Feed:
        self.errors += feed.errors
        self.rejects += feed.rejects
        return feed

    # -- offers --------------------------------------------------------------------------------------------------
    def read_offers(self) -> tuple[Supply | None, dict[str, NodeConfig]]:
        section: OffersSection | None = self.draft.section("offers")
        price_as_of = self.draft.sections.get("price_as_of")
        if section is None:
            return None, {}
        feed = self.feed(section, ("offers", "file"), "own_offers")
        offers: list[Offer] = []
        network: dict[str, float] = {}
        self.has_bad_offers = feed is None and section.file is not None
        if feed is not None:
            feed = self.keep(own.check_own_offers(feed))
            self.has_bad_offers = bool(feed.errors or feed.rejects)
            offers = own.own_offers(feed)
            self.warnings += [("price_per_gpu_suspect", text) for text in own.price_unit_warnings(feed, self.catalog)]
            for _, row in feed.rows:
                rate = row["network_gbit_per_s"]
                if rate is not None:
                    network[row["node_config"]] = min(rate, network.get(row["node_config"], rate))
        section = self.check_offer_names(section, offers)
        if not isinstance(price_as_of, date) or "offers" not in self.draft.sections:
            return None, {}
        feed_prices = {region: self.lake.prices[region] for region in section.regions if region in self.lake.prices}
        if feed_prices:
            self.price_as_of = price_as_of = max(snapshot.observed_at.date() for snapshot in feed_prices.values())
        supply = choose_offers(section, price_as_of, offers, self.catalog, feed_prices)
        self.warnings += supply.notes
        if not self.errors and (self.knows_feeds or section.feed is None):
            self.check_regions_sell(section, supply)
        network |= feed_networks(feed_prices)
        self.for_library = supply.offers
        if feed_prices:
            # What a feed withdraws may come back: the library goes on covering what the catalog has.
            usual = choose_offers(section, self.draft.sections["price_as_of"], offers, self.catalog)
            self.for_library = lasting_offers(supply.offers, usual.offers, self.catalog)
        return supply, node_configs_of(self.for_library, self.catalog, network)

    def check_regions_sell(self, section: OffersSection, supply: Supply) -> None:
        selling = {offer.region for offer in supply.offers}
        for index, region in enumerate(section.regions):
            if region not in selling:
                remedy = "widen markets, include_gpus, node_configs or date_tolerance_days, or take the region out"
                self.fault(("offers", "regions", index), region, "no offer is left there after the filters", remedy)
        for index, config in enumerate(section.node_configs or []):
            if config not in {offer.node_config for offer in supply.offers}:
                remedy = "set only_sold: false for a derived price, or take it out"
                if not section.only_sold:
                    counts = ", ".join(f"x{count}" for count in GRID_COUNTS)
                    remedy = f"prices are derived for {counts} of GPUs sold in some region and left in: take it out"
                self.fault(("offers", "node_configs", index), config, "is not sold in these regions", remedy)

    # -- models --------------------------------------------------------------------------------------------------
    def read_model(self, index: int, section: ModelSection) -> list[tuple[int, ModelSection, ModelSpec, Lengths]]:
        key: Key = ("models", index)
        if section.serving == "aggregated":
            remedy = "write serving: disaggregated"
            self.fault((*key, "serving"), "aggregated", "aggregated serving cannot be planned yet", remedy)
        spec = self.model_spec(key, section)
        try:
            lengths, rejected = lengths_of(section, self.catalog, self.path.parent)
        except UnknownNameError as error:
            self.fault((*key, "lengths", "trace"), error.name, "unknown trace", error.remedy)
            return []
        except InputError as error:
            self.errors += error.findings
            return []
        self.rejects += rejected
        self.check_model_regions(key, section)
        self.warnings += slo_unit_notes(self.draft, key, section)
        if spec is None:
            return []
        self.errors += fit_findings(self.draft, key, section, spec, lengths)
        return [(index, section, spec, lengths)]

    # -- demand and capacity -------------------------------------------------------------------------------------
    def read_demand(self) -> dict[str, own.DemandWindow] | None:
        section: DemandSection | None = self.draft.sections.get("demand")
        if section is not None:
            self.check_demand_once()
        if section is not None and section.feed is not None:
            return dict(self.lake.demand)
        feed = self.feed(self.draft.section("demand"), ("demand", "file"), "demand")
        if feed is None:
            return None
        found = [(section.model, self.quiet_spec(section)) for _, section in self.draft.named_models]
        specs = [spec for _, spec in found if spec is not None]
        # Models whose own fault is reported already are no fault of the demand file.
        broken = {name for name, spec in found if spec is None}
        catalog = merged_catalog(self.catalog, {spec.model: spec for spec in specs}, {})
        served = [spec.model for spec in specs]
        feed = self.keep(own.check_demand_names(feed.without_models(broken), catalog, served))
        return own.demand_windows(feed, catalog, self.at)

    def check_demand_once(self) -> None:
        """Demand is stated in the scenario or told by a file or feed, never both."""
        for index, section in self.draft.models:
            if section.demand_req_per_s is not None:
                remedy = "take out demand_req_per_s, or the section demand"
                self.fault(("models", index, "demand_req_per_s"), section.demand_req_per_s, "is given twice", remedy)

    def quiet_spec(self, section: ModelSection) -> ModelSpec | None:
        """The model of an entry without reporting its faults again."""
        if section.config is not None:
            return read_model_config(self.path.parent / section.config, section.model, section.alias or "", "")[0]
        try:
            return self.shipped(section)
        except UnknownNameError:
            return None

    def read_capacity(self, supply: Supply | None) -> Capacity | None:
        sections, known = self.draft.sections, self.known_regions | self.unknown_regions
        availability = self.feed(self.draft.section("availability"), ("availability", "file"), "availability")
        quota_feed = self.feed(self.draft.section("quotas"), ("quotas", "file"), "quotas")
        offers = supply.offers if supply else None
        seen, limits = {}, []
        if availability is not None:
            configs = {o.node_config for o in offers or ()} | set(self.catalog.node_configs)
            availability = own.check_names(availability, known, configs)
            seen = own.latest_availability(self.keep(availability))
        elif (section := sections.get("availability")) is not None and section.feed is not None:
            seen = dict(self.lake.availability)
        if quota_feed is not None:
            quota_feed = self.keep(own.check_quota_names(quota_feed, self.catalog, offers, known))
            limits = quota_limits(own.quotas(quota_feed), offers or (), self.catalog)
        if "availability" not in sections:
            return None
        failed = {(f.region, f.node_config, f.market): f.running for f in self.lake.failed}
        return Capacity(sections["availability"].default_nodes, seen, tuple(limits), failed)

    def read_measured(
        self, specs: Sequence[ModelSpec], configs: dict[str, NodeConfig]
    ) -> tuple[tuple[MeasuredRate, ...], tuple[Calibration, ...]]:
        """The user's own measurements of this scenario's models. A fault refuses the file."""
        catalog = merged_catalog(self.catalog, {spec.model: spec for spec in specs}, configs)
        served = {spec.model for spec in specs}
        files = {RATES: self.file_of("profiles"), CALIBRATION: self.file_of("calibration")}
        rates, derates, faults = read_own_measurements(files, catalog, configs)
        self.errors += faults
        return tuple(r for r in rates if r.model in served), tuple(d for d in derates if d.model in served)

    def read_efficiencies(self) -> dict[str, Efficiency]:
        """The user's own factors. A fault refuses the file."""
        file = self.file_of("efficiency")
        found, faults = read_efficiencies(*file, self.catalog.gpu_names) if file else ({}, ())
        self.errors += faults
        return found

    def file_of(self, name: str) -> tuple[Path, str] | None:
        """The file that a section names, and how messages call it; None where there is none."""
        section = self.draft.section(name)
        if section is None or section.file is None:
            return None
        path = self.path.parent / section.file
        if not is_regular_file(path):
            reason, remedy = "the file does not exist", f"put it at {section.file} beside the scenario"
            self.fault((name, "file"), section.file, reason, remedy)
            return None
        return path, section.file

    # -- the result ----------------------------------------------------------------------------------------------
    def assemble(
        self,
        scenario: Scenario,
        supply: Supply,
        configs: dict[str, NodeConfig],
        resolved: Sequence[tuple[int, ModelSection, ModelSpec, Lengths]],
        windows: dict[str, own.DemandWindow] | None,
        capacity: Capacity,
        rules: ModelRules,
    ) -> LoadedScenario:
        regions = tuple(scenario.offers.regions)
        workloads: list[Workload] = []
        demands: list[ModelPlanDemand] = []
        for _, section, spec, lengths in resolved:
            pair = workloads_of(section, spec, lengths)
            workloads += pair
            own_regions = tuple(section.regions or regions)
            window = (windows or {}).get(spec.model)
            pinned, excluded = rules.configs_of(section)
            demand = demand_of(section, pair, own_regions, scenario.policy, window, windows is not None)
            demands.append(replace(demand, node_configs=pinned, excluded=excluded))
        best = offers_by_best(supply.offers)
        lasting = {(offer.region, offer.node_config) for offer in self.for_library}
        sold = {region: tuple(sorted(c for r, c in lasting if r == region)) for region in regions}
        if self.price_as_of is not None:
            scenario = scenario.model_copy(update={"price_as_of": self.price_as_of})
        loaded = LoadedScenario(
            scenario=scenario,
            path=self.path,
            catalog=merged_catalog(self.catalog, {spec.model: spec for _, _, spec, _ in resolved}, configs),
            workloads=tuple(workloads),
            model_demands=tuple(demands),
            regions=regions,
            offers=supply.offers,
            node_configs=configs,
            sold_sets=sold,
            quota_limits=capacity.limits,
            supply=capacity,
            rejects=tuple(self.rejects),
            warnings=(),
            best=best,
            feeds=self.lake,
        )
        notes = (
            *self.warnings,
            *percent_notes(self.draft, scenario),
            *start_up_notes(self.draft, scenario),
            *self.lake.notes,
            *drift_notes(workloads, self.lake.lengths),
            *state_notes(loaded),
            *unused_quota_notes([limit.quota for limit in capacity.limits], regions),
        )
        object.__setattr__(loaded, "warnings", notes)
        return loaded
