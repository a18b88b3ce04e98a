"""What a simulation says: attainment of the SLOs, goodput, latency percentiles, queues over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tasks.simulation.types import Floats, RequestStatus, SimResult, SimulationInputError


@dataclass(frozen=True, slots=True)
class Slo:
    """A model's limits: time to first token and time per output token, both in ms.

    ``counts_transfer``: whether TTFT includes the transfer of the KV to the decode instance, through which the client gets
    the first token; without it TTFT ends with prefill, and the transfer counts nowhere, as in the paper's definition. It
    goes with ``ProfileSettings.charge_kv_handover``. TPOT begins when the KV has arrived (the wait for a slot counts).
    """

    ttft_ms: float
    tpot_ms: float
    counts_transfer: bool = True


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model over the counted window. Shares are of all requests, lost ones included; None = no request to say it of.

    ``goodput_req_per_s``: requests per second that met both limits. ``lost`` maps a status to its count.
    """

    model: str
    requests: int
    done: int
    lost: Mapping[str, int]
    attained: float | None
    attained_ttft: float | None
    attained_tpot: float | None
    goodput_req_per_s: float
    ttft_ms: Mapping[int, float]
    tpot_ms: Mapping[int, float]
    decode_tpot_ms: Mapping[int, float]
    kv_transfer_ms: Mapping[int, float]
    preemptions: int


PERCENTILES = (50, 90, 95, 99)


def percentiles_ms(seconds: Floats) -> dict[int, float]:
    """p50, p90, p95, p99 in ms of the finite values; empty where there is none."""
    finite = seconds[np.isfinite(seconds)]
    if len(finite) == 0:
        return {}
    return {p: float(value) * 1e3 for p, value in zip(PERCENTILES, np.percentile(finite, PERCENTILES), strict=True)}


def met_slo(result: SimResult, slos: Mapping[str, Slo]) -> tuple[np.ndarray, np.ndarray]:
    """Whether each request met its model's TTFT and TPOT limit, two boolean arrays [n].

    A lost request meets neither; a request for one token has no TPOT to miss.
    """
    missing = sorted(set(result.requests.models) - set(slos))
    if missing:
        raise SimulationInputError(f"no SLO for {', '.join(missing)}", remedy="give one per model")
    ttft_limit = np.array([slos[model].ttft_ms for model in result.requests.models]) / 1e3
    tpot_limit = np.array([slos[model].tpot_ms for model in result.requests.models]) / 1e3
    model, done = result.requests.model, result.status == int(RequestStatus.DONE)
    counts = np.array([slos[name].counts_transfer for name in result.requests.models])
    ttft_s = np.where(counts[model], result.ttft_s, result.prefill_s)
    with np.errstate(invalid="ignore"):
        ttft = done & (ttft_s <= ttft_limit[model] + 1e-9)
        tpot = done & ((result.tpot_s <= tpot_limit[model] + 1e-9) | (result.requests.output_tokens == 1))
    return ttft, tpot


def report(
    result: SimResult, slos: Mapping[str, Slo], *, from_s: float = 0.0, until_s: float = float("inf")
) -> list[ModelReport]:
    """One report per model over requests that arrive in [from_s, until_s)."""
    ttft, tpot = met_slo(result, slos)
    arrival = result.requests.arrival_s
    counted = (arrival >= from_s) & (arrival < until_s)
    last = float(arrival[-1]) if len(arrival) else 0.0
    span = max(min(until_s, last) - from_s, 1e-9)
    reports = []
    for index, model in enumerate(result.requests.models):
        mine = counted & (result.requests.model == index)
        n = int(mine.sum())
        status = result.status[mine]
        lost = {
            kind.name.lower(): int((status == kind).sum())
            for kind in RequestStatus
            if kind is not RequestStatus.DONE and (status == kind).any()
        }
        reports.append(
            ModelReport(
                model=model,
                requests=n,
                done=int((status == RequestStatus.DONE).sum()),
                lost=lost,
                attained=float((ttft & tpot)[mine].mean()) if n else None,
                attained_ttft=float(ttft[mine].mean()) if n else None,
                attained_tpot=float(tpot[mine].mean()) if n else None,
                goodput_req_per_s=float((ttft & tpot)[mine].sum()) / span,
                ttft_ms=percentiles_ms(result.ttft_s[mine]),
                tpot_ms=percentiles_ms(result.tpot_s[mine]),
                decode_tpot_ms=percentiles_ms(result.decode_tpot_s[mine]),
                kv_transfer_ms=percentiles_ms((result.kv_ready_s - result.first_token_s)[mine]),
                preemptions=int(result.preemptions[mine].sum()),
            )
        )
    return reports


def queue_over_time(result: SimResult, times_s: Floats) -> dict[str, Floats]:
    """Requests waiting at each time, summed over a model's instances: keys ``model/prefill`` and ``model/decode``."""
    queues = {}
    for index, model in enumerate(result.requests.models):
        mine = result.requests.model == index
        pairs = (
            ("prefill", result.requests.arrival_s[mine & (result.prefill_instance >= 0)], result.prefill_start_s[mine]),
            ("decode", result.kv_ready_s[mine], result.decode_start_s[mine]),
        )
        for phase, enter, start in pairs:
            queues[f"{model}/{phase}"] = _count_by(enter, times_s) - _count_by(start, times_s)
    return queues


def _count_by(events_s: Floats, times_s: Floats) -> Floats:
    finite = np.sort(events_s[np.isfinite(events_s)])
    return np.searchsorted(finite, times_s, side="right").astype(np.float64)
