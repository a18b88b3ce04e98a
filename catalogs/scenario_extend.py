"""A scenario with GPU types it leaves out, for comparison: the file stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from catalogs.catalog import Catalog, load_catalog
from catalogs.errors import CoralError, InputError
from catalogs.ids import split_node_config
from catalogs.scenario import FeedReader, LoadedScenario, load_scenario
from catalogs.scenario_build import _Builder
from catalogs.scenario_files import scenario_path
from catalogs.scenario_schema import OffersSection
from catalogs.supply import choose_offers
from catalogs.types import Offer


def load_extended(
    name_or_path: str | Path, gpus: Sequence[str], at: datetime | None = None, feeds: FeedReader | None = None
) -> LoadedScenario:
    """The scenario as if it offered ``gpus`` too, in its regions and at its prices; aliases of GPUs are understood.

    Raises what :func:`~catalogs.scenario.load_scenario` raises, UnknownNameError for an unknown GPU, and CoralError for
    one that the scenario offers already or that its regions do not sell.
    """
    base = load_scenario(name_or_path, at, feeds)
    names = tuple(dict.fromkeys(base.catalog.gpu_names.encode(gpu, scope="skypilot") for gpu in gpus))
    there = {config.gpu for config in base.node_configs.values()}
    for name in names:
        if name in there:
            raise CoralError(f"{base.scenario.id} offers {name} already", remedy="run `coral build`, which covers it")
    builder = _Extended(scenario_path(name_or_path), load_catalog(), at, names, feeds)
    loaded, errors, rejects = builder.build()
    if loaded is None:
        raise InputError([*errors, *rejects])
    sold = {config.gpu for config in loaded.node_configs.values()}
    for name in names:
        if name not in sold:
            others = ", ".join(sorted(builder.sold_gpus - there)) or "none"
            raise CoralError(
                f"no region of {base.scenario.id} sells {name} at prices of {base.price_as_of}",
                remedy=f"add a region that does, or take one of those sold there that are left out: {others}",
            )
    return loaded


def how_to_offer(name_or_path: str | Path, gpus: Sequence[str]) -> str:
    """What to change in the scenario's file so that it offers ``gpus``: the filters of its offers that leave them out."""
    base = load_scenario(name_or_path)
    filters = base.scenario.offers
    names = list(dict.fromkeys(base.catalog.gpu_names.encode(gpu, scope="skypilot") for gpu in gpus))
    excluded = {base.catalog.gpu_names.encode(gpu, scope="skypilot") for gpu in filters.exclude_gpus} & {*names}
    its = "its" if len(names) == 1 else "their"
    steps = [
        *([f"take {', '.join(sorted(excluded))} out of offers.exclude_gpus"] if excluded else []),
        *([f"add {', '.join(names)} to offers.include_gpus"] if filters.include_gpus is not None else []),
        *([f"add {its} configurations to offers.node_configs"] if filters.node_configs is not None else []),
    ]
    return " and ".join(steps)


class _Extended(_Builder):
    """Reads a scenario with ``gpus`` (canonical ids) let through the filters of its offers."""

    def __init__(
        self,
        path: Path,
        catalog: Catalog,
        at: datetime | None,
        gpus: Sequence[str],
        feeds: FeedReader | None = None,
    ) -> None:
        super().__init__(path, catalog, at, feeds)
        self.gpus = gpus
        self.sold_gpus: set[str] = set()

    def check_offer_names(self, section: OffersSection, offers: Sequence[Offer]) -> OffersSection:
        """The section with the GPUs added to its lists."""
        section = super().check_offer_names(section, offers)
        everything = section.model_copy(update={"include_gpus": None, "exclude_gpus": [], "node_configs": None})
        price_as_of = self.draft.sections["price_as_of"]
        supply = choose_offers(everything, price_as_of, list(offers), self.catalog, self.lake.prices)
        gpu_of = {offer.node_config: split_node_config(offer.node_config)[0] for offer in supply.offers}
        self.sold_gpus = set(gpu_of.values())
        update: dict[str, object] = {"exclude_gpus": [gpu for gpu in section.exclude_gpus if gpu not in self.gpus]}
        if section.include_gpus is not None:
            update["include_gpus"] = [*section.include_gpus, *self.gpus]
        if section.node_configs is not None:
            own = sorted(config for config, gpu in gpu_of.items() if gpu in self.gpus)
            update["node_configs"] = [*section.node_configs, *own]
        return section.model_copy(update=update)
