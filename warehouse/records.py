"""Typed rows that callers hand to the warehouse and get back from it. Units are in the names; timestamps are UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from catalogs.lake_feeds import FeedKind
from catalogs.types import Availability, Basis, ModelSpec, NodeConfig, Offer, Quota, Workload

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan  # pydantic, which SQL has no use for


def utc_now() -> datetime:
    """The present moment, timezone-aware."""
    return datetime.now(UTC)


class ShardKind(StrEnum):
    """What a landed Parquet file holds. The value is the name of its raw table and of its folder under ``shards/``."""

    TEMPLATES = "solved_templates"
    PROFILES = "profile_rows"
    FRONTIER = "frontier_rows"


@dataclass(frozen=True, slots=True)
class LandedShard:
    """A complete Parquet file: ``path`` relative to the lake's root, ``sha256`` of its bytes, number of ``rows``."""

    shard_id: str
    workload_id: str
    path: str
    sha256: str
    rows: int
    kind: ShardKind = ShardKind.TEMPLATES
    filter_id: str = ""


@dataclass(frozen=True, slots=True)
class LibraryRecord:
    """A template library. ``library_key`` names what it is the current library of: a scenario id, or any other key."""

    library_id: str
    library_key: str
    profile_set_id: str
    n_max: int
    rho: float
    mode: str
    solver_version: str
    node_configs: tuple[str, ...]
    demand_bar: Mapping[str, float] = field(default_factory=dict)


class BuildStatus(StrEnum):
    """Outcome of a build."""

    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """One run of a build. ``sample_*`` is the comparison of sampled placements with the reference ILP."""

    build_id: str
    library_id: str
    started_at: datetime
    status: BuildStatus
    n_combinations: int
    n_templates: int
    n_shards_computed: int
    n_shards_reused: int
    solve_s: float
    sample_n: int
    sample_max_rel_diff: float | None
    code_version: str
    finished_at: datetime = field(default_factory=utc_now)


class RunOutcome(StrEnum):
    """What an allocation run led to. ``HELD_UNKNOWN_DEMAND``, ``HELD_STALE``: nothing was decided, the last plan stays.
    ``HELD_FOR_APPROVAL``: a guard rail keeps its version from becoming current until a person approves it. ``SUPERSEDED``:
    another decision was published since the run read its inputs."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    HELD_UNKNOWN_DEMAND = "held_unknown_demand"
    HELD_STALE = "held_stale"
    HELD_FOR_APPROVAL = "held_for_approval"
    SUPERSEDED = "superseded"
    FAILED = "failed"


# Runs that decided: a version was published or proposed, or the current one found to stay.
DECIDED = (RunOutcome.PUBLISHED, RunOutcome.UNCHANGED, RunOutcome.HELD_FOR_APPROVAL)
# Runs that answered: those, and the ones whose inputs hold the plan.
ANSWERED = (*DECIDED, RunOutcome.HELD_UNKNOWN_DEMAND, RunOutcome.HELD_STALE)


@dataclass(frozen=True, slots=True)
class AllocationRun:
    """One allocation run, logged whether or not it publishes.

    ``base_plan_version`` is the version the run took as current (0 = there was none, None = not checked): when another
    one is current at publication and decides otherwise, the run is superseded and publishes nothing. ``input_ages_s``
    maps an input (prices, availability, demand) to its age when the run started.
    """

    run_id: str
    scenario_id: str
    started_at: datetime
    inputs_hash: str = ""
    base_plan_version: int | None = None
    input_ages_s: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunLog:
    """The result of an allocation run as logged: what came out, today's cost, bound and gap of its decision."""

    outcome: RunOutcome
    plan_version: int | None = None
    cost_now_usd_per_h: float | None = None
    lower_bound_usd_per_h: float | None = None
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class PublishResult:
    """``plan`` is the current plan after the call: the new version, or the one that stays. ``outcome`` says which. Of a run
    held for approval it is the version that waits.

    Version 0 and plan None only where a superseded run met a scenario without any plan.
    """

    plan_version: int
    outcome: RunOutcome
    plan: Plan | None


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """One line of a scenario's list of plans."""

    scenario_id: str
    plan_version: int
    state: str
    is_current: bool
    status: str
    cost_usd_per_h: float
    lower_bound_usd_per_h: float
    gap: float
    theta: float
    library_id: str
    price_as_of: str
    created_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Reject:
    """An input row set aside: where it stood, the value, why, and what to do."""

    file: str
    row: int
    column: str
    value: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class IngestRecord:
    """A file handed to `coral ingest` and what became of its rows. ``observed_at``: the moment it tells of, None = no row was
    accepted. ``content_id`` is a hash of its bytes and of how it was to be read; ``n_changed`` = rows that said something
    new."""

    ingest_id: str
    content_id: str
    kind: FeedKind
    scenario_id: str
    file: str
    observed_at: datetime | None
    n_rows: int
    n_accepted: int
    n_held: int
    n_rejected: int
    n_changed: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class DemandRow:
    """Demand of a model in a window. None = unknown, which is not zero."""

    scenario_id: str
    model: str
    window_start: datetime
    demand_req_per_s: float | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class ReferenceInputs:
    """Catalog rows that a build or a plan was computed from; recorded once each, by content."""

    node_configs: Sequence[NodeConfig] = ()
    offers: Sequence[Offer] = ()
    availability: Sequence[Availability] = ()
    quotas: Sequence[Quota] = ()
    models: Sequence[ModelSpec] = ()
    workloads: Sequence[Workload] = ()
    demand: Sequence[DemandRow] = ()
