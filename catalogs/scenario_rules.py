"""Rules in a scenario against what is on offer: which configurations models may use, what may rest on spot, where KV crosses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from catalogs.errors import CoralError, Finding, close_matches_remedy
from catalogs.ids import split_node_config
from catalogs.scenario_schema import ModelSection, OffersSection, PolicySection
from catalogs.scenario_yaml import Key, ScenarioDraft
from catalogs.supply import Supply

if TYPE_CHECKING:
    from catalogs.gpus import GpuNames


class ModelRules:
    """The rules of a scenario's models against what is on offer (``supply`` None: not known for other faults)."""

    def __init__(self, draft: ScenarioDraft, gpu_names: GpuNames, supply: Supply | None) -> None:
        self._draft, self._gpu_names = draft, gpu_names
        self._sold = None if supply is None else tuple(sorted({offer.node_config for offer in supply.offers}))

    def findings(self) -> list[Finding]:
        """Every fault of the rules."""
        found = self._spot() + self._kv()
        for index, section in self._draft.named_models:
            found += self._configs(("models", index), section)
        return found

    def configs_of(self, section: ModelSection) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Configurations on offer that a model is pinned to (None: to none), and those it may not use."""
        pinned = None if section.node_configs is None else self._named(section.node_configs)
        return pinned, self._named(section.exclude_node_configs)

    def _spot(self) -> list[Finding]:
        """Spot on offer that no model may use is a slip; a share allowed of spot that is not on offer is none."""
        if "policy" in self._draft.rest or self._draft.rest_of_models:
            return []  # the share may be what is faulty there
        offers: OffersSection | None = self._draft.sections.get("offers")
        policy = self._draft.sections.get("policy", PolicySection())
        shares = [
            policy.max_spot_share if section.max_spot_share is None else section.max_spot_share
            for _, section in self._draft.models
        ]
        if offers is None or "spot" not in offers.markets or not shares or max(shares) > 0:
            return []
        remedy = "set policy.max_spot_share (0 to 1), or take spot out"
        return [self._draft.finding(("offers", "markets"), None, "spot is offered but max_spot_share is 0", remedy)]

    def _kv(self) -> list[Finding]:
        """Pairs of regions between which KV crosses must be regions of the scenario."""
        offers: OffersSection | None = self._draft.sections.get("offers")
        policy = self._draft.sections.get("policy", PolicySection())
        if offers is None or policy.cross_region_kv is None:
            return []
        found = []
        for at, pair in enumerate(policy.cross_region_kv.pairs):
            for name in dict.fromkeys(region for way in pair.ways for region in way):
                if name not in offers.regions:
                    place: Key = ("policy", "cross_region_kv", "pairs", at)
                    remedy = close_matches_remedy(name, offers.regions)
                    found.append(self._draft.finding(place, name, "is none of offers.regions", remedy))
        return found

    def _configs(self, key: Key, section: ModelSection) -> list[Finding]:
        found = []
        for name in ("node_configs", "exclude_node_configs"):
            for at, text in enumerate(getattr(section, name) or []):
                place: Key = (*key, name, at)
                if self._canonical(text) is None:
                    known = [*(self._sold or ()), *self._gpu_names.canonical]
                    remedy = close_matches_remedy(text, known)
                    found.append(self._draft.finding(place, text, "is no GPU and no node configuration", remedy))
                elif name == "node_configs" and self._sold is not None and not self._named([text]):
                    found.append(self._draft.finding(place, text, "is not on offer", "take it out, or widen offers"))
        if not found and self._sold:
            pinned, excluded = self.configs_of(section)
            if set(self._sold if pinned is None else pinned) <= set(excluded):
                reason, remedy = "leaves the model nothing on offer", "take some out"
                found.append(self._draft.finding((*key, "exclude_node_configs"), None, reason, remedy))
        return found

    def _canonical(self, text: str) -> str | None:
        """The id of a GPU or of a node configuration; None where it is neither."""
        try:
            return self._gpu_names.encode(text)
        except CoralError:
            try:
                gpu, count = split_node_config(text)
                return f"{self._gpu_names.encode(gpu)}x{count}"
            except (ValueError, CoralError):
                return None

    def _named(self, names: Sequence[str]) -> tuple[str, ...]:
        """Configurations on offer that are named, by themselves or by their GPU."""
        wanted = {self._canonical(name) for name in names}
        return tuple(c for c in self._sold or () if c in wanted or split_node_config(c)[0] in wanted)
