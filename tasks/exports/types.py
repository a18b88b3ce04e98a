"""What an export is made from and the launch groups it is made of. Memory is GiB of one GPU, lengths are tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catalogs.engines import EngineLaunch
from catalogs.types import ModelSpec, Phase

if TYPE_CHECKING:
    from tasks.allocation.plan import Plan, PlanInstance
    from tasks.allocation.types import KvLink, ModelDemand, SharedQuota

MASTER_PORT = 29500
HTTP_PORT = 8000
NIXL_PORT = 5600
MOONCAKE_PORT = 8998


class NotLaunchableError(Exception):
    """Why stock engines do not launch an instance, and what to do; the group says so."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True, slots=True)
class PlanRules:
    """The rules a plan was made under, as kept beside it: per model, quotas over several configurations, budget, and between
    which regions KV may cross."""

    demands: Mapping[str, ModelDemand]
    quotas: tuple[SharedQuota, ...] = ()
    budget_usd_per_h: float | None = None
    links: tuple[KvLink, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedWorkload:
    """A workload as it was when the plan was made."""

    workload_id: str
    alias: str
    model: str
    phase: Phase
    weight_dtype: str
    kv_dtype: str
    input_mean: float
    output_mean: float
    input_at_percentile: float

    @property
    def tokens_per_request(self) -> float:
        """Tokens of this phase per request."""
        return self.input_mean if self.phase is Phase.PREFILL else self.output_mean


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What an engine looks at in a model's config. ``quant_block`` 0 = none, None = not known, then it is not checked.
    ``kv_width``: numbers kept per token and layer, over all heads."""

    model: str
    layers: int
    heads: int
    kv_heads: int
    kv_width: int
    max_position: int
    shipped_dtype: str
    sharded: tuple[int, ...]
    has_latent_kv: bool
    quant_block: int | None

    @classmethod
    def of_spec(cls, spec: ModelSpec) -> ModelFacts:
        """From the catalog's row or a model of one's own. ``sharded``: widths that tensor parallelism splits."""
        widths = [spec.moe_intermediate] if spec.is_moe else [spec.intermediate]
        if spec.is_moe and spec.dense_layers:
            widths.append(spec.intermediate)
        if spec.shared_experts:
            widths.append(spec.shared_experts * spec.moe_intermediate)
        return cls(
            spec.model,
            spec.layers,
            spec.heads,
            spec.kv_heads,
            spec.kv_lora_rank + spec.qk_rope_head_dim if spec.kv_lora_rank else 2 * spec.kv_heads * spec.head_dim,
            spec.max_position,
            spec.shipped_dtype,
            tuple(widths),
            spec.kv_lora_rank > 0,
            spec.quant_block,
        )


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """GPUs of a node configuration; ``memory_gib`` is of one of them."""

    gpu: str
    gpu_count: int
    memory_gib: float
    has_native_bf16: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan does not say itself. ``memory_used_gib`` by (template, stage, node configuration), from the profile row:
    what the fullest GPU holds; absent where the library is gone. ``engine`` and ``gpu_memory_utilization`` are of the
    version exported for; ``checkpoints`` maps a model to the repository its weights are taken from instead. ``rules``: None
    where the lake does not keep them."""

    workloads: Mapping[str, ServedWorkload]
    models: Mapping[str, ModelFacts]
    nodes: Mapping[str, NodeFacts]
    engine: EngineLaunch
    gpu_memory_utilization: float
    memory_used_gib: Mapping[tuple[str, int, str], float] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    attention_backend: str = ""
    rules: PlanRules | None = None


@dataclass(frozen=True, slots=True)
class GroupNode:
    """One node of an instance, in rank order; ``stages`` are the plan's stages it holds."""

    rank: int
    node_config: str
    instance_type: str
    gpu_count: int
    layers: tuple[int, int]
    share: float
    memory_used_gib: float | None


@dataclass(frozen=True, slots=True)
class Server:
    """One engine of an instance: over all its nodes, or one of several alike on a single node. ``arguments`` and ``env`` are
    the same on every rank."""

    index: int
    tensor: int
    pipeline: int
    port: int
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    side_channel: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Instances alike, launched alike: ``instances`` of ``row``. ``name`` is stable from plan to plan as long as what is
    launched stays the same. ``servers`` is empty where it cannot be launched; then ``refusal`` and ``remedy`` say why."""

    name: str
    row: PlanInstance
    served: ServedWorkload
    nodes: tuple[GroupNode, ...]
    servers: tuple[Server, ...]
    max_model_len: int
    refusal: str = ""
    remedy: str = ""

    @property
    def is_launchable(self) -> bool:
        """Whether stock engines launch it."""
        return not self.refusal

    @property
    def instance_names(self) -> tuple[str, ...]:
        """One name per instance."""
        return tuple(f"{self.name}-{index}" for index in range(self.row.instances))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A group that is not in a target, and why."""

    target: str
    group: Group
    reason: str
    remedy: str


@dataclass(frozen=True)
class Launch:
    """A plan with its launch groups."""

    plan: Plan
    facts: Facts
    groups: tuple[Group, ...]
