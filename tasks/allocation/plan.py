"""The plan as published: the one document that the command line, exports, dashboards and the API read.

Its JSON form is CONTRACTS' plan JSON; :func:`plan_json_schema` is the schema published beside it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from catalogs.ids import short_hash
from catalogs.types import Basis, Market
from tasks.allocation.types import SolveStatus
from tasks.templates.types import LaunchClass

PLAN_SCHEMA_VERSION = 1
HEADROOM_BASES = ("stated", "simulated")
# The code of the warning that a node's network caps a rate.
NETWORK_FULL = "network_full"
# How the note of baselines begins that nobody looked for.
NOT_COMPUTED = "homogeneous plans are not computed"


class PlanState(StrEnum):
    """Life of a plan version. ``PROPOSED``: published only once a person approves it, for a guard rail asks. ``PARTIAL``:
    part of it runs. Published, approved, applied and partial versions are current: one per scenario at most."""

    DRAFT = "draft"
    PROPOSED = "proposed"
    PUBLISHED = "published"
    APPROVED = "approved"
    APPLIED = "applied"
    PARTIAL = "partial"
    SUPERSEDED = "superseded"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlanNode(_Model):
    """One node of a stage; ``share`` is its part of the stage's requests."""

    node_config: str
    instance_type: str
    tp: int
    pp: int
    replicas: int
    batch: int
    share: float


class PlanStage(_Model):
    """Layers [first, last] (inclusive) on ``nodes``, which are data-parallel replicas of the stage."""

    layers: tuple[int, int]
    position: str
    nodes: tuple[PlanNode, ...]


class PlanInstance(_Model):
    """``instances`` alike, on nodes of one market; rate and cost are of one instance (the rate is the template's, before
    headroom; ``delivered_share`` of it is left after interruptions)."""

    region: str
    template_id: str
    combination_id: str
    workload: str
    workload_id: str
    instances: int
    new_instances: int
    market: Market
    throughput_tok_per_s: float
    cost_usd_per_h: float
    launch_class: LaunchClass
    cycle_ms: float
    provenance: str
    rel_error: float
    stages: tuple[PlanStage, ...]
    delivered_share: float = 1.0


class PlanOffer(_Model):
    """Nodes to rent of one offer."""

    offer_id: str
    region: str
    node_config: str
    instance_type: str
    market: Market
    nodes: int
    price_usd_per_h: float
    availability_nodes: int
    availability_basis: Basis


class PlanWorkload(_Model):
    """What a workload was planned for: demand in the phase's tokens/s, the headroom, and what the plan supplies.

    ``headroom_basis``: ``simulated`` on these instances, or ``stated`` by the scenario.
    ``supplied_tok_per_s`` is headroom x throughput; ``usd_per_million_tok`` = cost / tokens served (planned less
    missing), None where none are.
    """

    workload: str
    workload_id: str
    model: str
    phase: str
    slo_ms: float
    planned_req_per_s: float
    planned_tok_per_s: float
    supplied_tok_per_s: float
    headroom: float
    cost_usd_per_h: float
    usd_per_million_tok: float | None
    headroom_basis: str = "stated"


class PlanTransfer(_Model):
    """Requests of a model that prefill in one region and decode in another: their rate, and what their KV takes and costs."""

    model: str
    from_region: str
    to_region: str
    req_per_s: float
    gbit_per_s: float
    usd_per_gb: float
    usd_per_h: float


class PlanShortfall(_Model):
    """Demand of a workload that supply cannot meet, what binds, and the cheapest extra supply that would close it."""

    workload: str
    workload_id: str
    missing_tok_per_s: float
    binding: str
    cheapest_extra: str


class PlanWarning(_Model):
    """A caveat of the plan: ``code`` for programs (assumed_availability, derived_offers, mixed_dates, ...), text for people."""

    code: str
    text: str


class PlanInputs(_Model):
    """What the plan was computed from. ``running_basis``: where it was known from what runs (``fleet``, seen at
    ``running_observed_at``; ``last_applied`` or ``last_published``, of version ``running_plan_version``; ``none``).
    ``engine``: name and version (if one was stated) of the serving engine planned for; '' = not kept."""

    hash: str
    price_as_of: str
    library_id: str
    running_basis: str = "none"
    running_plan_version: int | None = None
    running_observed_at: str | None = None
    engine: str = ""


class PlanBaselines(_Model):
    """Homogeneous plans for the same inputs: the exact optimum and the paper's greedy. None = it cannot meet the demand.

    ``homo_optimal_lower_bound_usd_per_h`` is the solver's bound on the exact one. ``full_use_usd_per_h``: this plan's rent
    if instances could be used to their whole rate, i.e. without headroom; None = not computed.
    """

    homo_optimal_usd_per_h: float | None
    homo_optimal_lower_bound_usd_per_h: float | None
    homo_greedy_usd_per_h: float | None
    note: str = ""
    full_use_usd_per_h: float | None = None


class Plan(_Model):
    """A plan version. ``cost_usd_per_h`` is the rent of ``offers`` and ``egress_usd_per_h``, the sum of ``kv_transfers``.
    ``gap`` = (cost + init - bound) / (cost + init), within this library and these profiles."""

    schema_version: int = Field(default=PLAN_SCHEMA_VERSION, alias="schema")
    scenario_id: str
    plan_version: int
    status: SolveStatus
    state: PlanState
    cost_usd_per_h: float
    init_usd: float
    lower_bound_usd_per_h: float
    gap: float
    theta: float
    theta_upper: float
    solve_s: float
    created_at: str
    reason: str
    inputs: PlanInputs
    baselines: PlanBaselines
    workloads: tuple[PlanWorkload, ...]
    instances: tuple[PlanInstance, ...]
    offers: tuple[PlanOffer, ...]
    shortfalls: tuple[PlanShortfall, ...]
    warnings: tuple[PlanWarning, ...]
    egress_usd_per_h: float = 0.0
    kv_transfers: tuple[PlanTransfer, ...] = ()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def decision_hash(plan: Plan) -> str:
    """Hash of what a plan decides: instances, nodes to rent, between which regions KV moves, rates missing. Two plans alike
    in it are one decision.

    Prices, costs, bounds, times and how many instances are new are left out: they change while the decision stands.
    """
    instances = [(row.region, row.template_id, row.market.value, row.instances) for row in plan.instances]
    offers = [(row.region, row.node_config, row.instance_type, row.market.value, row.nodes) for row in plan.offers]
    moves = [(row.model, row.from_region, row.to_region) for row in plan.kv_transfers]
    missing = [(row.workload_id, f"{row.missing_tok_per_s:.6g}") for row in plan.shortfalls]
    decided: dict[str, Any] = {"instances": sorted(instances), "offers": sorted(offers), "shortfalls": sorted(missing)}
    if moves:  # left out where there are none: decisions from before there were any stay known
        decided["kv_transfers"] = sorted(moves)
    return short_hash(decided)


def plan_json_schema() -> dict[str, Any]:
    """The JSON Schema of the published plan document."""
    return Plan.model_json_schema(by_alias=True)
