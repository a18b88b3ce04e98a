"""Names in a scenario against those that are known: regions, GPUs, node configurations, providers, models.

Names are checked in faulty sections too, as far as they can be read: one run tells every fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from catalogs.catalog import Catalog
from catalogs.errors import CoralError, Finding, UnknownNameError, close_matches, close_matches_remedy
from catalogs.ids import NODE_CONFIG_REMEDY, split_node_config
from catalogs.lake_feeds import LakeFeeds
from catalogs.scenario import read_model_config
from catalogs.scenario_schema import ModelSection, OffersSection
from catalogs.scenario_yaml import Key, ScenarioDraft
from catalogs.types import ModelSpec, Offer


class NameChecks:
    """Collects the faults of names in ``errors``. ``unknown_regions`` are told already: what follows from them is not."""

    def __init__(
        self, path: Path, catalog: Catalog, draft: ScenarioDraft, lake: LakeFeeds, *, knows_feeds: bool
    ) -> None:
        self.path, self.catalog, self.draft, self.lake, self.knows_feeds = path, catalog, draft, lake, knows_feeds
        self.errors: list[Finding] = list(draft.findings)
        self.known_regions: set[str] = set(catalog.regions)
        self.unknown_regions: set[str] = set()
        self.has_bad_offers = False  # a row of the user's own offers is faulty

    def fault(self, key: Key, value: object, reason: str, remedy: str) -> None:
        """Note a fault at a key of the scenario file."""
        self.errors.append(self.draft.finding(key, value, reason, remedy))

    def unknown(self, key: Key, value: str, kind: str, known: Iterable[str]) -> None:
        """Note a name that is not among the ``known`` of its kind."""
        self.fault(key, value, f"unknown {kind}", close_matches_remedy(value, known, kind))

    def check_offer_names(self, section: OffersSection, offers: Sequence[Offer]) -> OffersSection:
        """Report unknown names; return the section with canonical GPU ids."""
        known = {offer.region for offer in offers} | (set(self.catalog.regions) if section.use_catalog else set())
        known |= set(self.lake.prices)
        if self.has_bad_offers:  # a region of one's own may be one that a faulty row names: its fault is told already
            providers = {region.split("/")[0] for region in self.catalog.regions}
            known |= {region for region in section.regions if region.split("/")[0] not in providers}
        if section.feed is not None and not self.knows_feeds:
            known |= {region for region in section.regions if region.count("/") == 1}
        self.known_regions |= known
        for index, region in enumerate(section.regions):
            if region not in known:
                self.unknown_regions.add(region)
                remedy = close_matches_remedy(region, known, "region")
                if section.feed is not None:
                    remedy += " Or take in its prices first: `coral ingest prices FILE`"
                self.fault(("offers", "regions", index), region, "unknown region", remedy)
            if region in section.regions[:index]:
                self.fault(("offers", "regions", index), region, "is there twice", "keep one")
        for provider in section.discount_pct:
            providers = {region.split("/")[0] for region in known}
            if provider not in providers:
                self.unknown(("offers", "discount_pct", provider), provider, "provider", providers)
        canonical = {
            name: [self.gpu(("offers", name, i), gpu) for i, gpu in enumerate(getattr(section, name) or [])]
            for name in ("include_gpus", "exclude_gpus")
        }
        configs = [
            self.node_config(("offers", "node_configs", index), config)
            for index, config in enumerate(section.node_configs or [])
        ]
        return section.model_copy(
            update={
                "include_gpus": canonical["include_gpus"] or None,
                "exclude_gpus": canonical["exclude_gpus"],
                "node_configs": configs or None,
            }
        )

    def gpu(self, key: Key, name: str) -> str:
        """The canonical id of a GPU; its name, and a fault, where it is unknown."""
        try:
            return self.catalog.gpu_names.encode(name)
        except CoralError as error:
            reason = "unknown GPU" if isinstance(error, UnknownNameError) else error.message
            self.fault(key, name, reason, error.remedy)
            return name

    def node_config(self, key: Key, name: str) -> str:
        """The canonical id of a node configuration; its name, and a fault, where it is unknown."""
        try:
            gpu, count = split_node_config(name)
        except ValueError:
            self.fault(key, name, "is not a node configuration", NODE_CONFIG_REMEDY)
            return name
        return f"{self.gpu(key, gpu)}x{count}"

    def model_spec(self, key: Key, section: ModelSection) -> ModelSpec | None:
        """The model of an entry; None, and a fault, where it is unknown or its config.json cannot be used."""
        if section.config is None:
            try:
                return self.shipped(section)
            except UnknownNameError as error:
                remedy = error.remedy + " (or give config: PATH to the config.json of an own model)"
                self.fault((*key, "model"), section.model, "unknown model", remedy)
                return None
        path = self.path.parent / section.config
        spec, findings = read_model_config(path, section.model, section.alias or "", section.config)
        self.errors += findings
        return spec

    def check_model_regions(self, key: Key, section: ModelSection) -> None:
        """Note the regions of an entry that the scenario does not offer, and more wanted than there are."""
        offers: OffersSection | None = self.draft.section("offers")
        if offers is None:
            return
        # Where a region is mistyped in the offers, a model that has it right is no second fault.
        meant = {near for region in self.unknown_regions for near in close_matches(region, self.known_regions)}
        for position, region in enumerate(section.regions or []):
            place = (*key, "regions", position)
            if not offers.regions and region not in self.known_regions:
                self.unknown(place, region, "region", self.known_regions)
            elif offers.regions and region not in {*offers.regions, *meant}:
                self.unknown(place, region, "region (not in offers.regions)", offers.regions)
            if region in (section.regions or [])[:position]:
                self.fault(place, region, "is there twice", "keep one")
        usable = len(set(section.regions or offers.regions))
        if section.min_regions > usable and "offers" in self.draft.sections:
            remedy = f"give at most {usable}, or more regions"
            self.fault((*key, "min_regions"), section.min_regions, "is more than the model's regions", remedy)

    def shipped(self, section: ModelSection) -> ModelSpec:
        """The catalog's model of an entry, under the entry's alias. Raises UnknownNameError."""
        spec = self.catalog.model(section.model)
        return replace(spec, alias=section.alias) if section.alias else spec
