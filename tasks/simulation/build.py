"""Instances from templates: step times from the roofline of the layers each node holds, memory from its free GiB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from catalogs.errors import UnknownNameError
from catalogs.types import Efficiency, Gpu, NodeConfig, Phase, Workload
from tasks.allocation.plan import PlanInstance
from tasks.profiling.kernels import BYTES_PER_MS_PER_GB_PER_S
from tasks.profiling.memory import MemoryModel, ProfileSettings
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import ModelShape
from tasks.simulation.types import Floats, SimInstance, SimNode, SimStage, StepTable

# Mean keys attended per prompt token at which prefill times are tabulated; prefill_attention takes twice that as context.
PREFILL_KEYS = (0.5, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
DECODE_KEYS = (1, 1024, 8192, 131072)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What nodes are made of: rows of the catalogs, and the settings profiles were made with."""

    node_configs: Mapping[str, NodeConfig]
    gpus: Mapping[str, Gpu]
    efficiencies: Mapping[str, Efficiency]
    settings: ProfileSettings = field(default_factory=ProfileSettings)


@dataclass(frozen=True, slots=True)
class Member:
    """One node of a template's stage. ``batch`` is that of one replica's inner stage, as in the profiles table."""

    node_config: str
    share: float
    tp: int
    pp: int
    replicas: int
    batch: int


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Layers [first, last] on ``members``."""

    first_layer: int
    last_layer: int
    members: tuple[Member, ...]


def inner_split(layers: int, pp: int) -> list[int]:
    """Layers per inner stage by vLLM's rule: the remainder goes to the stages before the last, from there to the front."""
    parts = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        parts[-i] += 1
    return parts


@dataclass(frozen=True, slots=True)
class _Costs:
    """Seconds of one GPU group: per layer kind [kinds][tokens, keys], embedding and head [tokens]."""

    layer: tuple[Floats, ...]
    embedding: Floats
    head: Floats


class InstanceBuilder:
    """Builds instances of one workload. Step times are the profile's, de-rated alike, at the batch and context of each pass.

    A decode pass is padded to the CUDA-graph size above its batch. Between nodes, hops are waited for but keep no GPU
    busy; inside a node they count into the step, as in the profile.
    """

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        self.workload, self.hardware = workload, hardware
        self.shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
        self.is_prefill = workload.phase is Phase.PREFILL
        self.tokens, self._evaluated_at = self._token_knots()
        windows = {float(kind.window) for kind in self.shape.kinds if kind.window}
        self.keys = np.array(PREFILL_KEYS if self.is_prefill else sorted({*map(float, DECODE_KEYS), *windows}))
        self._costs: dict[tuple[str, int], _Costs] = {}
        self._steps: dict[tuple[str, int, int, int, int], StepTable] = {}
        # A share of the layers keeps every token; the others their window. One window per model in practice.
        full = sum(1 for kind in self.shape.kind_of_layer if not kind.window)
        self.full_share = full / len(self.shape.kind_of_layer)
        self.window = int(max(windows, default=0.0))

    def _token_knots(self) -> tuple[Floats, Floats]:
        """Knots and the pass size each is timed at: decode steps up at every CUDA-graph size."""
        settings = self.hardware.settings
        if self.is_prefill:
            knots = np.unique(np.rint(np.geomspace(1, settings.max_prefill_tokens, 96)))
            return knots, knots
        sizes = np.array(settings.cuda_graph_batch_sizes, dtype=np.float64)
        above = sizes[:-1] + 1e-6
        knots = np.concatenate([sizes, above])
        order = np.argsort(knots)
        return knots[order], np.concatenate([sizes, sizes[1:]])[order]

    def from_row(self, row: Mapping[str, Any], instance_id: str = "", region: str = "", **fields: Any) -> SimInstance:
        """From a row of TEMPLATE_SCHEMA (as a mapping). ``fields`` go to SimInstance, e.g. its active times."""
        stages = [
            StagePlan(
                stage["layer_start"],
                stage["layer_end"],
                tuple(
                    Member(m["node_config"], m["share"], m["tp"], m["pp"], m["replicas"], m["batch"])
                    for m in stage["members"]
                ),
            )
            for stage in sorted(row["stages"], key=lambda stage: stage["stage"])
        ]
        rate = row["throughput_mtok_per_s"] / 1e3
        name = row["template_id"]
        return self.build(stages, rate, instance_id or name, region, template_id=name, **fields)

    def from_plan(self, planned: PlanInstance, instance_id: str, **fields: Any) -> SimInstance:
        """One of the copies of a plan's instance."""
        stages = [
            StagePlan(
                stage.layers[0],
                stage.layers[1],
                tuple(Member(n.node_config, n.share, n.tp, n.pp, n.replicas, n.batch) for n in stage.nodes),
            )
            for stage in planned.stages
        ]
        return self.build(
            stages, planned.throughput_tok_per_s, instance_id, planned.region, template_id=planned.template_id, **fields
        )

    def build(
        self, stages: Sequence[StagePlan], rate_tok_per_s: float, instance_id: str, region: str, **fields: Any
    ) -> SimInstance:
        """An instance of these stages that promises ``rate_tok_per_s`` tokens of the phase per second."""
        sim_stages = tuple(
            SimStage(
                stage.last_layer - stage.first_layer + 1,
                tuple(self._node(stage, member, len(stages)) for member in stage.members),
            )
            for stage in stages
        )
        return SimInstance(
            instance_id=instance_id,
            model=self.workload.model.model,
            phase=self.workload.phase,
            region=region,
            rate_req_per_s=rate_tok_per_s / self.workload.tokens_per_request,
            stages=sim_stages,
            kv_bytes_per_token_layer=self.shape.kv_bytes_per_token_layer(),
            activation_bytes_per_token=2.0 * self.workload.model.hidden,
            kv_full_share=self.full_share,
            kv_window=self.window,
            prefix_hit_rate=self.workload.prefix_hit_rate,
            **fields,
        )

    def _node(self, stage: StagePlan, member: Member, n_stages: int) -> SimNode:
        node = self._node_config(member.node_config)
        settings = self.hardware.settings
        gbit = node.network_gbit_per_s or settings.unknown_network_gbit_per_s
        return SimNode(
            node_config=member.node_config,
            share=member.share,
            step=self._step(node.gpu, member.tp, member.pp, stage),
            batch=member.batch,
            network_bytes_per_s=gbit / 8 * settings.network_efficiency * 1e9,
            kv_capacity_tokens=float("inf")
            if self.is_prefill
            else self._kv_capacity(node.gpu, member, stage, n_stages),
            replicas=member.replicas,
            inner_stages=member.pp,
            hop_latency_s=settings.network_hop_ms / 1e3 if n_stages > 1 else 0.0,
        )

    def _node_config(self, name: str) -> NodeConfig:
        if name not in self.hardware.node_configs:
            raise UnknownNameError("node configuration", name, self.hardware.node_configs)
        return self.hardware.node_configs[name]

    def _inner_runs(self, stage: StagePlan, pp: int) -> list[tuple[range, bool, bool]]:
        """(layers, holds the embedding, holds the head) of each inner stage."""
        runs, start, total = [], stage.first_layer, self.workload.model.layers
        for count in inner_split(stage.last_layer - stage.first_layer + 1, pp):
            layers = range(start, start + count)
            runs.append((layers, layers.start == 0, layers.stop == total))
            start += count
        return runs

    def _step(self, gpu: str, tp: int, pp: int, stage: StagePlan) -> StepTable:
        """Times of the slowest inner stage."""
        key = (gpu, tp, pp, stage.first_layer, stage.last_layer)
        if key not in self._steps:
            costs, kinds = self._costs_of(gpu, tp), self.shape.kinds
            slowest = np.zeros((len(self.tokens), len(self.keys)))
            for layers, has_embedding, has_head in self._inner_runs(stage, pp):
                here = [self.shape.kind_of_layer[i] for i in layers]
                time = np.sum([here.count(kind) * costs.layer[k] for k, kind in enumerate(kinds)], axis=0)
                ends = has_embedding * costs.embedding + has_head * costs.head
                if layers.stop <= stage.last_layer:
                    ends = ends + self._link_s(gpu)
                slowest = np.maximum(slowest, time + ends[:, None])
            self._steps[key] = StepTable(self.tokens, self.keys, slowest)
        return self._steps[key]

    def _link_s(self, gpu: str) -> Floats:
        """One hop between GPUs of a node; the catalogs count both directions of a link."""
        row, settings = self.hardware.gpus[gpu], self.hardware.settings
        link = (row.link_gb_per_s or row.pcie_gb_per_s) / 2 * BYTES_PER_MS_PER_GB_PER_S
        hop_ms: Floats = settings.link_hop_ms + 2 * self.workload.model.hidden * self._evaluated_at / link
        return hop_ms / 1e3

    def _costs_of(self, gpu: str, tp: int) -> _Costs:
        key = (gpu, tp)
        if key not in self._costs:
            if gpu not in self.hardware.efficiencies:
                raise UnknownNameError("GPU with efficiency factors", gpu, self.hardware.efficiencies)
            roofline = Roofline(self.hardware.gpus[gpu], self.hardware.efficiencies[gpu], self.shape)
            seconds = 1e3 * self.hardware.settings.derate(self.workload.phase, gpu)
            n = self._evaluated_at
            factor = 2.0 if self.is_prefill else 1.0
            layer = tuple(
                np.stack(
                    [roofline.layer_ms(n, kind, tp, self.workload.phase, factor * keys) for keys in self.keys], axis=1
                )
                / seconds
                for kind in self.shape.kinds
            )
            prompt = self.workload.lengths.input_mean * (1 - self.workload.prefix_hit_rate)
            rows = np.maximum(1.0, n / prompt) if self.is_prefill else n
            self._costs[key] = _Costs(
                layer, roofline.embedding_ms(n, tp) / seconds, roofline.lm_head_ms(rows, tp) / seconds
            )
        return self._costs[key]

    def _kv_capacity(self, gpu: str, member: Member, stage: StagePlan, n_stages: int) -> float:
        """Tokens of context one replica holds, at the workload's mean context; its fullest inner stage counts."""
        memory = MemoryModel(self.hardware.gpus[gpu], self.shape, self.workload.phase, self.hardware.settings)
        context, tp, kinds = self.workload.lengths.decode_context_mean, member.tp, list(self.shape.kinds)
        per_sequence = memory.sequence_bytes(context, tp)
        weights, sequences = memory.layer_bytes(tp), float("inf")
        for layers, has_embedding, has_head in self._inner_runs(stage, member.pp):
            held = [kinds.index(self.shape.kind_of_layer[i]) for i in layers]
            used = weights[held].sum() + self.shape.end_bytes(has_embedding, has_head, tp)
            batch = np.array([float(member.batch)])
            used += float(memory.pass_bytes(batch, n_stages * member.pp, tp, has_head=has_head)[0])
            sequences = min(sequences, (memory.usable_bytes - used) / per_sequence[held].sum())
        tokens = self.full_share * context + (1 - self.full_share) * min(self.window, context)
        return max(float(sequences * tokens), 1.0)
