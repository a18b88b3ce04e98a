"""What a node's network carries of a workload: KV from prefill to decode, activations from stage to stage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from catalogs.types import NodeConfig, Phase, Workload
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.shapes import ModelShape
from tasks.templates.types import Position

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def payload_gb_per_s(node: NodeConfig, settings: ProfileSettings) -> float:
    """Payload bandwidth of the node, each way."""
    return (node.network_gbit_per_s or settings.unknown_network_gbit_per_s) / 8 * settings.network_efficiency


def held_kv_bytes(shape: ModelShape, position: Position, layers: Ints, context: float) -> Floats:
    """KV of one sequence of ``context`` tokens in so many ``layers``, the fullest run: [layers]."""
    held: Floats = (shape.run_tables[position][layers] @ shape.kv_bytes_per_sequence(context)).max(axis=-1)
    return held


def network_tok_per_s(
    workload: Workload, shape: ModelShape, settings: ProfileSettings, node: NodeConfig, position: Position, layers: Ints
) -> Floats:
    """Tokens per second at which the node's network is full, each way: [layers]; infinite where nothing is sent.

    Prefill sends the KV of the layers it holds to a decode node and activations to the next stage; decode takes each
    prompt's KV in, once per request, and activations per token.
    """
    lengths = workload.lengths
    activation = 2.0 * shape.spec.hidden
    takes = 0.0 if position in (Position.ONLY, Position.FIRST) else activation
    sends = 0.0 if position in (Position.ONLY, Position.LAST) else activation
    kv_per_prompt = held_kv_bytes(shape, position, layers, lengths.input_mean)
    if workload.phase is Phase.PREFILL:
        busiest = np.maximum(takes, sends + kv_per_prompt / lengths.input_mean)
    else:
        kv_in = kv_per_prompt / lengths.output_mean if settings.charge_decode_kv_in else 0.0 * kv_per_prompt
        busiest = np.maximum(sends, takes + kv_in)
    with np.errstate(divide="ignore"):
        return np.asarray(payload_gb_per_s(node, settings) * 1e9 / busiest)
