"""Scenarios: a name shipped here or any path, with everything it refers to read, checked and resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path

from catalogs.catalog import Catalog, load_catalog, read_efficiencies
from catalogs.demand import planned_rate
from catalogs.errors import CoralError, Finding, InputError, UnknownNameError, clipped
from catalogs.feeds import DemandWindow
from catalogs.lake_feeds import LakeFeeds
from catalogs.measured import (
    CALIBRATION,
    RATES,
    Calibration,
    MeasuredRate,
    calibrations,
    measured_rates,
    read_measured_table,
)
from catalogs.scenario_files import scenario_path
from catalogs.scenario_schema import MOMENTS, ComputedHeadroom, ModelSection, PolicySection, Scenario
from catalogs.supply import Capacity, QuotaLimit
from catalogs.texts import UnreadableError, is_regular_file, parse_json, read_text
from catalogs.types import Basis, Lengths, Market, ModelSpec, NodeConfig, Offer, Phase, Workload
from catalogs.wording import counted

MOST_CONFIG_MIB = 4
# What was ingested for a scenario, as of the moment it is planned for.
FeedReader = Callable[[Scenario], LakeFeeds]


@dataclass(frozen=True, slots=True)
class ModelPlanDemand:
    """Demand of one model as planned. ``stated_req_per_s`` is the mean as given, ``planned_req_per_s`` the percentile
    planned for; None = unknown (hold the last plan), 0 = none (release). ``basis``: stated in the scenario, or a feed."""

    model: str
    alias: str
    planned_req_per_s: float | None
    stated_req_per_s: float | None
    basis: Basis
    regions: tuple[str, ...]
    min_regions: int
    weight: float
    workload_ids: tuple[str, ...]
    min_replicas: int = 1
    n_plus_one: bool = False
    max_spot_share: float = 0.0
    node_configs: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario with its inputs resolved. ``offers`` are cheapest first; ``rejects`` are rows set aside with reasons;
    ``warnings`` are (code, text). ``measured`` and ``calibrations`` are the user's own, of this scenario's models."""

    scenario: Scenario
    path: Path
    catalog: Catalog
    workloads: tuple[Workload, ...]
    model_demands: tuple[ModelPlanDemand, ...]
    regions: tuple[str, ...]
    offers: tuple[Offer, ...]
    node_configs: Mapping[str, NodeConfig]
    sold_sets: Mapping[str, tuple[str, ...]]
    quota_limits: tuple[QuotaLimit, ...]
    supply: Capacity
    rejects: tuple[Finding, ...]
    warnings: tuple[tuple[str, str], ...]
    best: Mapping[tuple[str, str], Offer] = field(repr=False)
    measured: tuple[MeasuredRate, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    feeds: LakeFeeds = field(default_factory=LakeFeeds)

    @property
    def price_as_of(self) -> date:
        """The scenario's price date."""
        return self.scenario.price_as_of

    @cached_property
    def by_market(self) -> Mapping[tuple[str, Market, str], Offer]:
        """The cheapest offer per (region, market, node configuration)."""
        found: dict[tuple[str, Market, str], Offer] = {}
        for offer in self.offers:
            found.setdefault((offer.region, offer.market, offer.node_config), offer)
        return found

    def nodes_of(self, offer: Offer) -> tuple[int, Basis]:
        """Nodes that can be had of an offer's configuration in its region and market, and where that figure comes from."""
        return self.supply.nodes(offer.region, offer.node_config, offer.market)

    def interrupt_per_h(self, offer: Offer) -> float:
        """How often a node of the offer is taken back: as it says, else as the policy assumes for spot; else never."""
        if offer.market is not Market.SPOT:
            return 0.0
        assumed = self.scenario.policy.spot_interrupt_per_h
        return assumed if offer.interrupt_per_h is None else offer.interrupt_per_h

    def best_offer(self, region: str, node_config: str) -> Offer | None:
        """The cheapest offer of a configuration in a region; None = not sold there."""
        return self.best.get((region, node_config))

    def capacity(self, region: str, node_config: str) -> tuple[int, Basis]:
        """Nodes that can be had of the cheapest offer, and where that figure comes from; 0 where it is not sold."""
        offer = self.best.get((region, node_config))
        if offer is None:
            return 0, Basis.STATED
        return self.supply.nodes(region, node_config, offer.market)

    @property
    def is_headroom_computed(self) -> bool:
        """Whether the shares of :meth:`headroom` are only where the computation starts."""
        return isinstance(self.scenario.policy.headroom, ComputedHeadroom)

    def headroom(self, phase: Phase) -> float:
        """Share of a template's throughput that is planned with."""
        planned = self.scenario.policy.headroom
        return planned.prefill if phase is Phase.PREFILL else planned.decode


def load_scenario(
    name_or_path: str | Path, at: datetime | None = None, feeds: FeedReader | None = None
) -> LoadedScenario:
    """Read a scenario and all it refers to. ``at`` chooses the demand window (default: the latest in the file). ``feeds``
    gives what was ingested for a scenario that takes feeds; without it such a scenario has the catalog's prices, assumed
    supply and unknown demand.

    Raises InputError with every fault found; rows of feeds that are merely bad are set aside in ``rejects``.
    """
    from catalogs.scenario_build import build

    loaded, errors, rejects = build(scenario_path(name_or_path), load_catalog(), at, feeds)
    if loaded is None:
        raise InputError([*errors, *rejects])
    return loaded


def validate_path(path: str | Path) -> list[Finding]:
    """Every fault of a scenario and the files it names, of a single feed (CSV), or of a model's config.json.

    Empty = in order. Rows that a run would set aside are reported too.
    """
    from catalogs.scenario_build import build

    path = Path(path)
    if path.suffix == ".csv":
        if not is_regular_file(path):
            return [
                Finding(
                    path.name, 0, "", "", "there is no such file", "check the path; `coral init DIR` writes examples"
                )
            ]
        return _validate_feed(path)
    if path.suffix == ".json":
        return _validate_config(path)
    _, errors, rejects = build(scenario_path(path), load_catalog(), None)
    return [*errors, *rejects]


def _validate_feed(path: Path) -> list[Finding]:
    from catalogs.feeds import check_own_offers, read_feed

    tables = {"offers": "own_offers", "availability": "availability", "quotas": "quotas", "demand": "demand"}
    measured = {"measured": RATES, "calibration": CALIBRATION}
    if "efficiency" in path.stem:
        return list(read_efficiencies(path, path.name, load_catalog().gpu_names)[1])
    for stem, table in {**tables, **measured}.items():
        if stem in path.stem:
            if table in (RATES, CALIBRATION):
                return _measured_faults(path, table)
            feed = read_feed(path, table, load_catalog(), path.name)
            feed = check_own_offers(feed) if table == "own_offers" else feed
            return [*feed.errors, *feed.rejects]
    remedy = "name it after what it holds: " + ", ".join(f"{stem}.csv" for stem in (*tables, *measured, "efficiency"))
    return [Finding(path.name, 0, "", "", "cannot tell what table this is", remedy)]


def _measured_faults(path: Path, table: str) -> list[Finding]:
    catalog = load_catalog()
    read = read_measured_table(path, table, catalog, path.name)
    return (measured_rates(read, catalog, ()) if table == RATES else calibrations(read, catalog))[1]


def _validate_config(path: Path) -> list[Finding]:
    _, findings = read_model_config(path, path.stem, "", path.name)
    return findings


def read_model_config(path: Path, model_id: str, alias: str, label: str) -> tuple[ModelSpec | None, list[Finding]]:
    """A model's shape from a config.json on disk, or the one fault that prevents it."""
    from catalogs.models import model_from_config

    def fault(reason: str, remedy: str) -> tuple[None, list[Finding]]:
        return None, [Finding(label, 0, "", "", reason, remedy)]

    absent = f"put the model's config.json at {clipped(str(path))}"
    try:
        text = read_text(path, most_mib=MOST_CONFIG_MIB, kind="config.json", absent=absent)
        config = parse_json(text, "use the config.json published with the weights")
        return model_from_config(config, model_id, alias=alias, source=label, config_file=label), []
    except UnreadableError as error:
        return fault(error.reason, error.remedy)
    except CoralError as error:
        return fault(error.message, error.remedy)


def merged_catalog(catalog: Catalog, own_models: Mapping[str, ModelSpec], configs: Mapping[str, NodeConfig]) -> Catalog:
    """The shipped catalog with own models and node configurations added. Own ones win, and so do their names: those models
    come first."""
    models = dict(own_models) | {name: spec for name, spec in catalog.models.items() if name not in own_models}
    return replace(catalog, models=models, node_configs={**catalog.node_configs, **configs})


def lengths_of(section: ModelSection, catalog: Catalog, folder: Path) -> tuple[Lengths, list[Finding]]:
    """The request lengths of a model entry, and the rows of its trace that were set aside; files are below ``folder``.

    Raises UnknownNameError for an unknown trace, InputError for a trace file that cannot be used.
    """
    given = section.lengths
    if given.file is not None:
        from catalogs.traces import read_trace

        trace = read_trace(folder / given.file)
        return trace.lengths(section.slo.percentile), list(trace.rejected)
    return _stated_lengths(section, catalog), []


def _stated_lengths(section: ModelSection, catalog: Catalog) -> Lengths:
    given = section.lengths
    if given.trace is not None:
        if given.trace not in catalog.lengths:
            raise UnknownNameError("trace", given.trace, catalog.lengths)
        return catalog.lengths[given.trace].at(section.slo.percentile)
    if given.input is not None and given.output is not None:
        return Lengths.constant(given.input, given.output)
    # The schema lets only the complete set of moments through.
    return Lengths(**{name: getattr(given, name) for name in MOMENTS}, source="stated moments")


def workloads_of(section: ModelSection, spec: ModelSpec, lengths: Lengths) -> tuple[Workload, Workload]:
    """The prefill and the decode workload of a disaggregated model."""

    def workload(phase: Phase, slo_ms: float) -> Workload:
        return Workload(
            model=spec,
            weight_dtype=section.weight_dtype or spec.shipped_dtype,
            kv_dtype=section.kv_dtype,
            phase=phase,
            slo_ms=slo_ms,
            slo_percentile=section.slo.percentile,
            lengths=lengths,
            prefix_hit_rate=section.prefix_hit_rate,
        )

    return workload(Phase.PREFILL, section.slo.ttft_ms), workload(Phase.DECODE, section.slo.tpot_ms)


def demand_of(
    section: ModelSection,
    workloads: tuple[Workload, Workload],
    regions: tuple[str, ...],
    policy: PolicySection,
    window: DemandWindow | None,
    has_feed: bool,
) -> ModelPlanDemand:
    """Planned demand of one model and the rules the policy has for it: the feed's window where there is a feed (no row =
    unknown), else the stated mean. Where minutes were counted, at least their percentile: real requests crowd more than
    Poisson ones."""
    spec = workloads[0].model
    stated = section.demand_req_per_s
    basis = Basis.STATED
    if has_feed:
        stated, basis = (window.req_per_s if window else None), Basis.FEED
    planned = None if stated is None else planned_rate(stated, policy.demand_percentile)
    if planned is not None and window is not None and window.peak_ratio is not None:
        planned = max(planned, window.req_per_s * window.peak_ratio) if window.req_per_s else planned
    return ModelPlanDemand(
        model=spec.model,
        alias=spec.alias,
        planned_req_per_s=planned,
        stated_req_per_s=stated,
        basis=basis,
        regions=regions,
        min_regions=section.min_regions,
        weight=section.weight,
        workload_ids=tuple(workload.workload_id for workload in workloads),
        min_replicas=section.min_replicas,
        n_plus_one=policy.n_plus_one if section.n_plus_one is None else section.n_plus_one,
        max_spot_share=policy.max_spot_share if section.max_spot_share is None else section.max_spot_share,
    )


def offers_by_best(offers: tuple[Offer, ...]) -> dict[tuple[str, str], Offer]:
    """The first (cheapest) offer per region and node configuration."""
    best: dict[tuple[str, str], Offer] = {}
    for offer in offers:
        best.setdefault((offer.region, offer.node_config), offer)
    return best


def state_notes(loaded: LoadedScenario) -> list[tuple[str, str]]:
    """Caveats that follow from the resolved scenario."""
    notes = []
    offers = [loaded.by_market[key] for key in sorted(loaded.by_market)]
    assumed = [o for o in offers if o.market is not Market.OWNED and loaded.nodes_of(o)[1] is Basis.ASSUMED]
    if assumed:
        nodes = loaded.scenario.availability.default_nodes
        text = f"availability of {len(assumed)} of {counted(len(offers), 'configuration')} is unknown: {nodes} nodes each assumed"
        notes.append(("assumed_availability", text))
    unknown = [demand.alias for demand in loaded.model_demands if demand.planned_req_per_s is None]
    if unknown:
        notes.append(("unknown_demand", f"demand is unknown, so the last plan is held: {', '.join(unknown)}"))
    if loaded.rejects:
        notes.append(
            ("rejected_rows", f"{counted(len(loaded.rejects), 'row')} set aside, first: {loaded.rejects[0].line()}")
        )
    uncounted = [
        f"{o.node_config} in {o.region}"
        for o in offers
        if o.market is Market.OWNED and loaded.nodes_of(o)[1] is Basis.ASSUMED
    ]
    if uncounted:
        text = f"owned machines without a row in the availability file count as none: {', '.join(uncounted)}"
        notes.append(("owned_uncounted", text))
    nominal = sorted({c.gpu for c in loaded.node_configs.values() if loaded.catalog.gpus[c.gpu].memory_is_nominal})
    if nominal:
        notes.append(
            ("nominal_memory", f"memory is the marketing figure, no driver figure is known: {', '.join(nominal)}")
        )
    return notes
