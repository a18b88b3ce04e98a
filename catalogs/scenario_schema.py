"""The scenario file's shape (CONTRACTS, section Scenario file). Unknown keys are refused; units are in the names."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from catalogs.cells import plain_date
from catalogs.scenario_kv import CrossRegionKvSection
from catalogs.scenario_parts import Flag, Name, Section, Within

SCENARIO_SCHEMA_VERSION = 1
# Tokens of a request, and their squares and products.
MOST_TOKENS = 10_000_000
# Of a model, requests per second; what is positive but below is one request in hours.
LEAST_DEMAND, MOST_DEMAND = 0.0001, 1_000_000
MOST_NODES = 100_000
LEAST_MS, MOST_TTFT_MS, MOST_TPOT_MS = 0.001, 3_600_000, 60_000


def _plain_day(value: object) -> date:
    """A day as it is written; numbers are no days, though some libraries count seconds of 1970 in them."""
    try:
        return plain_date(value if isinstance(value, str) else str(value) if type(value) is date else "")
    except ValueError as error:
        raise PydanticCustomError("date_plain", "{reason}", {"reason": str(error)}) from None


Tokens = Annotated[float, Within(1, MOST_TOKENS)]
SquaredTokens = Annotated[float, Within(1, MOST_TOKENS**2)]
Percentile = Annotated[float, Within(50, 99.99)]
Headroom = Annotated[float, Within(0.01, 1)]
MarketName = Literal["on_demand", "spot", "owned"]


class SloSection(Section):
    """Latency objectives: time to first token, time per output token, and the percentile of requests that must meet them."""

    ttft_ms: Annotated[float, Within(LEAST_MS, MOST_TTFT_MS)]
    tpot_ms: Annotated[float, Within(LEAST_MS, MOST_TPOT_MS)]
    percentile: Percentile = 99.0


class LengthsSection(Section):
    """Request lengths in tokens: ``{input, output}`` (every request alike), ``{trace: NAME}`` of the catalog, ``{file:
    PATH}`` of a trace of your own beside the scenario, or the six moments."""

    input: Tokens | None = None
    output: Tokens | None = None
    trace: Name | None = None
    file: Name | None = None
    input_mean: Tokens | None = None
    output_mean: Tokens | None = None
    input_sq_mean: SquaredTokens | None = None
    output_sq_mean: SquaredTokens | None = None
    cross_mean: SquaredTokens | None = None
    input_at_percentile: Tokens | None = None

    @model_validator(mode="after")
    def _one_form(self) -> LengthsSection:
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if given not in ({"input", "output"}, {"trace"}, {"file"}, set(MOMENTS)):
            raise ValueError(
                "lengths take one of four forms: {input, output}, {trace}, {file}, or all of " + ", ".join(MOMENTS)
            )
        if given == set(MOMENTS):
            for square, mean in (("input_sq_mean", "input_mean"), ("output_sq_mean", "output_mean")):
                if getattr(self, square) < getattr(self, mean) ** 2:
                    raise ValueError(f"{square} cannot be below {mean} squared")
            cross, highest = self.cross_mean or 0, math.sqrt((self.input_sq_mean or 0) * (self.output_sq_mean or 0))
            if cross > highest * (1 + 1e-9):  # Cauchy and Schwarz
                raise ValueError("cross_mean cannot be above the square root of input_sq_mean x output_sq_mean")
        return self


MOMENTS = ("input_mean", "output_mean", "input_sq_mean", "output_sq_mean", "cross_mean", "input_at_percentile")


class ModelSection(Section):
    """One served model. ``demand_req_per_s`` null or absent = unknown (its last plan is held), 0 = none (released).

    Rules, each in every region that serves the model and for each of its phases: ``min_replicas`` instances at least;
    ``n_plus_one`` and ``max_spot_share`` as in the policy, which counts where they are left out. ``node_configs`` are the
    only ones it may use, ``exclude_node_configs`` those it may not; a GPU id stands for all its counts."""

    model: Name
    config: Name | None = None
    alias: Name | None = None
    weight_dtype: Literal["bf16", "fp8", "int4", "mxfp4"] | None = None
    kv_dtype: Literal["bf16", "fp8"] = "bf16"
    serving: Literal["disaggregated", "aggregated"] = "disaggregated"
    demand_req_per_s: Annotated[float, Within(LEAST_DEMAND, MOST_DEMAND, or_zero=True)] | None = None
    lengths: LengthsSection
    slo: SloSection
    regions: Annotated[list[Name], Field(min_length=1)] | None = None
    min_regions: Annotated[int, Within(1, 1_000)] = 1
    min_replicas: Annotated[int, Within(1, 100)] = 1
    n_plus_one: Flag | None = None
    max_spot_share: Annotated[float, Within(0, 1)] | None = None
    node_configs: Annotated[list[Name], Field(min_length=1)] | None = None
    exclude_node_configs: list[Name] = Field(default_factory=list)
    prefix_hit_rate: Annotated[float, Within(0, 0.99)] = 0.0
    weight: Annotated[float, Within(0.001, 1_000)] = 1.0


class OffersSection(Section):
    """What may be rented. ``file`` adds own offers, which replace the catalog's for the same machine; ``use_catalog:
    false`` leaves only them. ``feed: lake``: in the regions that ingested prices tell of, they count instead of the
    catalog's, and the date of the newest of them is the price date. ``only_sold: false`` completes the x1, x2, x4, x8 grid
    with derived prices. Offers farther than ``date_tolerance_days`` from price_as_of are used with a warning, or dropped."""

    regions: Annotated[list[Name], Field(min_length=1)]
    markets: Annotated[list[MarketName], Field(min_length=1, default_factory=lambda: ["on_demand"])]
    only_sold: Flag = True
    discount_pct: dict[Name, Annotated[float, Within(0, 99)]] = Field(default_factory=dict)
    file: Name | None = None
    feed: Literal["lake"] | None = None
    use_catalog: Flag = True
    date_tolerance_days: Annotated[int, Within(0, 36_500)] = 31
    other_dates: Literal["use", "drop"] = "use"
    include_gpus: Annotated[list[Name], Field(min_length=1)] | None = None
    exclude_gpus: list[Name] = Field(default_factory=list)
    node_configs: Annotated[list[Name], Field(min_length=1)] | None = None


class LibrarySection(Section):
    """Size of the template library: at most ``n_max`` nodes and ``rho`` x the model's size in GPU memory per instance."""

    n_max: Annotated[int, Within(1, 8)] = 6
    rho: Annotated[float, Within(1, 1_000)] = 12.0
    mode: Literal["cycle", "paper"] = "cycle"


class EngineSection(Section):
    """The serving engine whose defaults hold; ``version`` None = the newest known."""

    name: Literal["vllm"] = "vllm"
    version: Annotated[str, Field(strict=True, pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){1,3}$")] | None = None


class HeadroomSection(Section):
    """Share of a template's throughput that is planned with."""

    prefill: Headroom
    decode: Headroom


class ComputedHeadroom(HeadroomSection):
    """Shares that planning begins with and replaces by what simulation of the chosen instances finds."""


START_HEADROOM = HeadroomSection(prefill=0.8, decode=0.9)
AUTO_HEADROOM = ComputedHeadroom(prefill=0.8, decode=0.9)
HEADROOM_WORDS = {"auto": AUTO_HEADROOM, "start": START_HEADROOM}


def _fill_in_words(value: object) -> object:
    return HEADROOM_WORDS.get(value, value) if isinstance(value, str) else value


class GuardsSection(Section):
    """Guard rails: a plan beyond one waits for `coral plans approve`. The current plan is what it is measured against: its
    rent rises, a workload's capacity falls beyond its demand, a model's demand moves by more than a factor. null = no such
    rail."""

    cost_rise_pct: Annotated[float, Within(0, 1_000_000)] | None = 20.0
    capacity_fall_pct: Annotated[float, Within(0, 100)] | None = 30.0
    demand_factor: Annotated[float, Within(1, 1_000_000)] | None = 5.0


class AlertsSection(Section):
    """When `coral alerts` tells somebody: a gap above ``gap_pct``; a plan that no run has confirmed for ``plan_age_minutes``
    (null = three intervals); a fleet that differs for ``drift_minutes`` after the plan was published. null = never."""

    gap_pct: Annotated[float, Within(0, 100)] | None = 1.0
    plan_age_minutes: Annotated[float, Within(1, 525_600)] | None = None
    drift_minutes: Annotated[float, Within(0, 525_600)] | None = 30.0


class PolicySection(Section):
    """How to plan. ``headroom: auto`` = the largest use at which the chosen instances keep the SLO percentile under Poisson
    arrivals, by simulation; ``start`` = 0.8 of the rate for prefill, 0.9 for decode. ``demand_percentile``: of one-minute
    Poisson counts at the stated mean (null = plan for the mean). ``init_minutes`` of an ``interval_minutes`` long plan are
    lost on a new node. ``safety_percentile``: plan with rates that hold in that share of cases, given each rate's error
    (null = with the expected rates). ``measured_only``: use only rates that rest on measurements or fits to them.
    ``launchable_only``: use only templates that stock engines launch. ``hysteresis_pct``: the current plan stays while it
    meets demand and no other saves more than so many % (null = whatever is best is published). ``fleet_max_age_minutes``: a
    fleet seen longer ago does not tell what runs. ``guards``: what a plan may not change unasked. ``alerts``: when to tell
    somebody. ``max_spot_share``: at most so much of what a model is served in a region may rest on spot;
    ``spot_interrupt_per_h``: how often a spot node is taken back where its offer does not say, ``spot_recovery_minutes``: how
    long its instance is then down (null = init_minutes). ``n_plus_one``: what a region serves of a model is still served
    without its largest instance, in each phase. ``budget_usd_per_h``: the rent may not exceed it; where demand takes more,
    what it serves is shared out as in a shortage. ``cross_region_kv``: on what terms a model may prefill in one region and
    decode in another (null = never)."""

    shortage: Literal["uniform", "priority"] = "uniform"
    headroom: Annotated[HeadroomSection, BeforeValidator(_fill_in_words)] = AUTO_HEADROOM
    demand_percentile: Percentile | None = 95.0
    max_spot_share: Annotated[float, Within(0, 1)] = 0.0
    spot_interrupt_per_h: Annotated[float, Within(0, 60)] = 0.05
    spot_recovery_minutes: Annotated[float, Within(0, 1_440)] | None = None
    n_plus_one: Flag = False
    init_minutes: Annotated[float, Within(0, 1_440)] = 6.0
    interval_minutes: Annotated[float, Within(1, 525_600)] = 60.0
    budget_usd_per_h: Annotated[float, Within(0.01, 1_000_000_000)] | None = None
    cross_region_kv: CrossRegionKvSection | None = None
    safety_percentile: Percentile | None = None
    measured_only: Flag = False
    launchable_only: Flag = False
    hysteresis_pct: Annotated[float, Within(0, 100)] | None = 1.0
    fleet_max_age_minutes: Annotated[float, Within(1, 525_600)] = 120.0
    guards: GuardsSection = GuardsSection()
    alerts: AlertsSection = AlertsSection()

    @property
    def init_share(self) -> float:
        """K: the part of an hour's price that a newly added instance pays, initialisation time / interval."""
        return self.init_minutes / self.interval_minutes

    @property
    def spot_recovery_h(self) -> float:
        """Hours that an instance is down when a spot node of it is taken back."""
        minutes = self.init_minutes if self.spot_recovery_minutes is None else self.spot_recovery_minutes
        return minutes / 60


class AvailabilitySection(Section):
    """Nodes that can be had: a file or (``feed: lake``) what was ingested, and how many to assume per region and
    configuration where nothing is known."""

    file: Name | None = None
    feed: Literal["lake"] | None = None
    default_nodes: Annotated[int, Within(0, MOST_NODES)]

    @model_validator(mode="after")
    def _one_source(self) -> AvailabilitySection:
        if self.file is not None and self.feed is not None:
            raise ValueError("availability is of a file or of a feed, not of both")
        return self


class DemandSection(Section):
    """Request rates per window: a ``file``, or (``feed: lake``) what was ingested, carried on by ``forecast`` where it ends
    before the window that is planned (see tasks.demand.forecast). ``window_minutes`` is the length of a feed's windows."""

    file: Name | None = None
    feed: Literal["lake"] | None = None
    window_minutes: Annotated[int, Within(1, 1_440)] = 60
    forecast: Literal["last", "seasonal", "smoothing"] = "last"
    season_hours: Annotated[float, Within(0.1, 8_784)] = 24.0
    history_days: Annotated[float, Within(0.1, 366)] = 28.0

    @model_validator(mode="after")
    def _one_source(self) -> DemandSection:
        if (self.file is None) == (self.feed is None):
            raise ValueError("demand is of a file or of a feed: give one of them")
        return self


class FeedsSection(Section):
    """How old ingested inputs may be, and what to do with older ones: ``warn`` (plan with them, marked) or ``hold`` (keep the
    last plan). A launch that failed counts as no further node there for ``failed_launch_minutes``."""

    prices_hours: Annotated[float, Within(0.01, 87_600)] = 48.0
    availability_minutes: Annotated[float, Within(0.1, 525_600)] = 120.0
    demand_minutes: Annotated[float, Within(0.1, 525_600)] = 180.0
    on_stale: Literal["warn", "hold"] = "warn"
    failed_launch_minutes: Annotated[float, Within(0, 525_600)] = 30.0


class FileSection(Section):
    """A file beside the scenario."""

    file: Name


class Scenario(Section):
    """A whole scenario file. ``efficiency``: factors of GPUs of one's own, in place of the shipped ones; ``profiles``:
    measured node rates that replace modelled ones; ``calibration``: de-ratings per GPU and model from benchmarks."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    id: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
    description: str = ""
    price_as_of: Annotated[date, PlainValidator(_plain_day)]
    offers: OffersSection
    models: Annotated[list[ModelSection], Field(min_length=1)]
    library: LibrarySection = LibrarySection()
    engine: EngineSection = EngineSection()
    policy: PolicySection = PolicySection()
    availability: AvailabilitySection
    quotas: FileSection | None = None
    demand: DemandSection | None = None
    feeds: FeedsSection = FeedsSection()
    efficiency: FileSection | None = None
    profiles: FileSection | None = None
    calibration: FileSection | None = None
