"""One of Helix's published experiments in our own queues: its layout, its measured layer times, its way of feeding requests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from catalogs.helix import ACTIVATION_BYTES, LAYERS, HelixLimits, HelixNode, HelixRun, HelixTimes
from tasks.simulation.aggregated import ClusterResult, Wiring, cluster_tables, run
from tasks.simulation.kernel_aggregated import Feeding
from tasks.simulation.types import Floats, Ints

# Its settings: links of 1 GB/s and 1 ms; inputs of a pass copied together at 4 GB/s and to the GPU at 5 GB/s.
_LINK_BYTES_PER_S, _LATENCY_S = 1e9, 1e-3
_COPY_S_PER_BYTE = 1 / 4e9 + 1 / 5e9
# Offline: the first 60 s are not counted, then 10 minutes. Online: 30 minutes, all counted.
_WARM_UP_S, _OFFLINE_S, _ONLINE_S = 60.0, 600.0, 1800.0
_PAUSE_S = 0.1
# Answer tokens reserved per request: its assumed mean of 240, of which 0.6 online.
_EXPECTED_OUTPUT, _ONLINE_SHARE = 240.0, 0.6
_OFFLINE_REQUESTS = 6000


def run_helix(
    experiment: HelixRun,
    times: Mapping[tuple[str, str], HelixTimes],
    limits: Mapping[tuple[str, str, int], HelixLimits],
    trace: tuple[Floats, Ints, Ints],
    seed: int = 0,
) -> ClusterResult:
    """Simulates ``experiment``. ``trace``: arrivals and lengths of the requests it draws from.

    Online, as many requests as the offered rate asks for are picked from the trace's arrivals, stretched over the run, with
    lengths drawn apart from them. A node that holds more layers than any was profiled with (Helix forces that in its
    separate 70B pipelines) has no limit but the requests in flight.
    """
    model, settings = experiment.model, experiment.settings
    size = ACTIVATION_BYTES[model]

    def limits_of(node: HelixNode) -> HelixLimits:
        known = limits.get((node.gpu, model, node.end - node.first))
        if known is None:
            fewest = min(limit.most_prompts for key, limit in limits.items() if key[:2] == (node.gpu, model))
            return HelixLimits(fewest, 1 << 30, float("inf"))
        if settings["kv_high"] is None:
            return HelixLimits(known.most_prompts, known.most_decodes, float("inf"))
        return known

    tables = cluster_tables(
        experiment.nodes,
        LAYERS[model],
        lambda gpu: times[gpu, model],
        limits_of,
        Wiring(size / _LINK_BYTES_PER_S, _LATENCY_S, size * _COPY_S_PER_BYTE),
    )
    rng = np.random.default_rng(seed)
    if experiment.mode == "offline":
        feeding = _feeding(settings, settings["in_flight"], _EXPECTED_OUTPUT, _WARM_UP_S + _OFFLINE_S)
        arrive = np.zeros(_OFFLINE_REQUESTS)
        return run(tables, feeding, (arrive, *_lengths(trace, _OFFLINE_REQUESTS, rng)), warm_up_s=_WARM_UP_S)
    arrivals, inputs, outputs = trace
    mean_tokens = float(inputs.mean() + outputs.mean())
    count = round(settings["offered_tok_per_s"] / mean_tokens * _ONLINE_S)
    picked = np.sort(rng.choice(len(arrivals), count, replace=False))
    arrive = arrivals[picked] * (_ONLINE_S / arrivals[-1])
    feeding = _feeding(settings, 0, _EXPECTED_OUTPUT * _ONLINE_SHARE, _ONLINE_S)
    return run(tables, feeding, (arrive, *_lengths(trace, count, rng)), warm_up_s=0.0)


def _feeding(settings: Mapping[str, float | None], in_flight: int, expected_output: float, horizon_s: float) -> Feeding:
    unlimited = float("inf")
    return Feeding(
        in_flight=in_flight,
        fills_kv=bool(settings["fills_kv"]),
        pause_s=_PAUSE_S,
        kv_feed=settings["kv_feed"] or unlimited,
        kv_high=settings["kv_high"] or unlimited,
        expected_output=expected_output,
        horizon_s=horizon_s,
    )


def _lengths(trace: tuple[Floats, Ints, Ints], count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    index = rng.integers(0, len(trace[1]), count)
    return trace[1][index], trace[2][index]
