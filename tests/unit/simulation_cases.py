"""Hand-made instances and requests for the simulator's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from catalogs.types import Phase
from tasks.simulation.types import Requests, SimInstance, SimNode, SimStage, StepTable

FAST = 1e15  # bytes per second: no transfer time worth counting
INSTANT_S = 1e-9


def node(step: float | StepTable, **fields: Any) -> SimNode:
    """A node whose pass takes ``step`` seconds, or as long as the table says."""
    table = step if isinstance(step, StepTable) else StepTable.constant(step)
    return SimNode(
        **{"node_config": "N", "share": 1.0, "step": table, "batch": 1, "network_bytes_per_s": FAST} | fields
    )


def instance(phase: Phase, *stages: list[SimNode], layers: int = 1, **fields: Any) -> SimInstance:
    """An instance with one list of nodes per stage."""
    values = {"instance_id": phase.value, "model": "m", "region": "r", "rate_req_per_s": 1.0} | fields
    return SimInstance(phase=phase, stages=tuple(SimStage(layers, tuple(nodes)) for nodes in stages), **values)


def instant_prefill(**fields: Any) -> SimInstance:
    """Prefill that takes no time, to look at decode alone."""
    return instance(Phase.PREFILL, [node(INSTANT_S, batch=10**9)], **fields)


def requests(arrival_s: Any, input_tokens: Any, output_tokens: Any, model: str = "m") -> Requests:
    """Requests of one model; scalars hold for all."""
    times = np.asarray(arrival_s, dtype=np.float64)
    ones = np.ones(len(times), dtype=np.int64)
    return Requests(
        times, ones * np.asarray(input_tokens), ones * np.asarray(output_tokens), np.zeros_like(ones), (model,)
    )


def per_token(seconds: float, base: float = 0.0, most: int = 10**6) -> StepTable:
    """A pass of n tokens takes base + n * seconds."""
    return StepTable(
        np.array([1.0, float(most)]), np.array([0.0]), np.array([[base + seconds], [base + most * seconds]])
    )
