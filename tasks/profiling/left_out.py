"""Which node configurations a model is left without, where that is worth telling: for want of factors, or of network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from catalogs.types import Efficiency, Gpu, NodeConfig, Phase, Workload
from tasks.profiling.cells import Cells
from tasks.profiling.cycles import Mode
from tasks.profiling.layouts import legal_layouts
from tasks.profiling.memory import MemoryModel, ProfileSettings
from tasks.profiling.profile import best_rates
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import ModelShape

UNLIMITED_GBIT_PER_S = 1e9
_NOTABLE = 0.05  # the least share of the SLO


def unprofiled(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
) -> tuple[NodeConfig, ...]:
    """The configurations whose GPU has no efficiency factors, or none for a layout of the model: they have no rate and are in no
    template."""
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)

    def lacks(node: NodeConfig) -> bool:
        eff = efficiencies.get(node.gpu)
        if eff is None:
            return True
        roofline, legal = Roofline(gpus[node.gpu], eff, shape), legal_layouts(shape, node.gpu_count)
        return bool(legal) and all(roofline.missing_factors(layout.tp) for layout in legal)

    return tuple(node for node in node_configs if lacks(node))


def ruled_out_by_network(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    mode: Mode | str = Mode.CYCLE,
) -> tuple[NodeConfig, ...]:
    """The configurations of which one node holding the whole model misses the SLO, and would meet it with a network without
    limits: handing over the KV of a prompt takes too much of the time to its first token (a twentieth of it at least). None for
    decode, whose rate a network lowers and never rules out."""
    if workload.phase is not Phase.PREFILL:
        return ()
    settings = settings or ProfileSettings()
    cells = Cells(workload, settings, Mode(mode), 1)
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)
    kv_bits = 8 * shape.kv_bytes_all_layers(workload.lengths.input_at_percentile)

    def may_be(node: NodeConfig) -> bool:
        gbit = node.network_gbit_per_s or settings.unknown_network_gbit_per_s
        has_room = MemoryModel(gpus[node.gpu], shape, workload.phase, settings).usable_bytes * node.gpu_count
        handover_ms = kv_bits / (gbit * settings.network_efficiency * 1e6)
        return has_room > shape.weight_bytes and handover_ms > _NOTABLE * workload.slo_ms

    def meets(node: NodeConfig) -> bool:
        rates = best_rates(node, gpus[node.gpu], efficiencies.get(node.gpu), shape, cells)
        return rates is not None and bool((rates.rate_tok_per_s[..., -1] > 0).any())

    return tuple(
        node
        for node in filter(may_be, node_configs)
        if not meets(node) and meets(replace(node, network_gbit_per_s=UNLIMITED_GBIT_PER_S))
    )
