"""Which node configurations could prefill a model by themselves, but for their network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from catalogs.types import Efficiency, Gpu, NodeConfig, Phase, Workload
from tasks.profiling.cells import Cells
from tasks.profiling.cycles import Mode
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import best_rates
from tasks.profiling.shapes import ModelShape

_UNLIMITED_GBIT_PER_S = 1e9


def ruled_out_by_network(
    workload: Workload,
    node_configs: Sequence[NodeConfig],
    gpus: Mapping[str, Gpu],
    efficiencies: Mapping[str, Efficiency],
    settings: ProfileSettings | None = None,
    mode: Mode | str = Mode.CYCLE,
) -> tuple[NodeConfig, ...]:
    """The configurations of which one node holding the whole model misses the SLO, and would meet it with a network without
    limits: handing over the KV of a prompt takes too much of the time to its first token. None for decode, whose rate a
    network lowers and never rules out."""
    if workload.phase is not Phase.PREFILL:
        return ()
    cells = Cells(workload, settings or ProfileSettings(), Mode(mode), 1)
    shape = ModelShape(workload.model, workload.weight_dtype, workload.kv_dtype)

    def meets(node: NodeConfig) -> bool:
        rates = best_rates(node, gpus[node.gpu], efficiencies.get(node.gpu), shape, cells)
        return rates is not None and bool((rates.rate_tok_per_s[..., -1] > 0).any())

    return tuple(
        node
        for node in node_configs
        if not meets(node) and meets(replace(node, network_gbit_per_s=_UNLIMITED_GBIT_PER_S))
    )
