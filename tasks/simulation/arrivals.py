"""Streams of requests: Poisson arrivals with sampled lengths, traces brought to a rate, and their union."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from catalogs.types import Lengths
from tasks.simulation.types import Floats, Ints, Requests, SimulationInputError


def poisson_times(rate_req_per_s: float, duration_s: float, rng: np.random.Generator) -> Floats:
    """Arrival times of a Poisson stream in [0, duration_s)."""
    if not rate_req_per_s >= 0 or not duration_s > 0:
        raise SimulationInputError(
            f"a Poisson stream of {rate_req_per_s} req/s for {duration_s} s",
            remedy="give a rate >= 0 and a duration > 0",
        )
    count = int(rng.poisson(rate_req_per_s * duration_s))
    return np.sort(rng.uniform(0.0, duration_s, count))


def sample_lengths(pairs: tuple[Ints, Ints], count: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """``count`` (input, output) pairs drawn with replacement from those of a trace: their joint distribution is kept."""
    inputs, outputs = pairs
    if len(inputs) == 0:
        raise SimulationInputError("no lengths to draw from", remedy="give a trace with at least one request")
    index = rng.integers(0, len(inputs), count)
    return inputs[index], outputs[index]


def constant_lengths(lengths: Lengths) -> tuple[Ints, Ints]:
    """The one (input, output) pair of stated means, rounded, as a distribution to sample."""
    return (
        np.array([max(1, round(lengths.input_mean))], dtype=np.int64),
        np.array([max(1, round(lengths.output_mean))], dtype=np.int64),
    )


def poisson_requests(
    model: str, rate_req_per_s: float, duration_s: float, pairs: tuple[Ints, Ints], seed: int
) -> Requests:
    """Poisson arrivals of one model with lengths drawn from ``pairs``. Equal seeds give equal requests."""
    rng = np.random.default_rng(seed)
    times = poisson_times(rate_req_per_s, duration_s, rng)
    inputs, outputs = sample_lengths(pairs, len(times), rng)
    return Requests(times, inputs, outputs, np.zeros(len(times), dtype=np.int64), (model,))


def trace_requests(
    model: str, arrival_s: Floats, input_tokens: Ints, output_tokens: Ints, rate_req_per_s: float, duration_s: float
) -> Requests:
    """A trace replayed at a mean rate: its clock is scaled, and it starts over where it is shorter than ``duration_s``.

    Scaling the clock keeps the shape of bursts (a minute at 4 x the mean stays 4 x) but shortens them with the trace.
    """
    n = len(arrival_s)
    if n < 2 or not rate_req_per_s > 0 or not arrival_s[-1] > arrival_s[0]:
        raise SimulationInputError(
            "a trace of under two moments, or no rate", remedy="give a longer trace and a rate > 0"
        )
    period = n / rate_req_per_s
    relative = (arrival_s - arrival_s[0]) / (arrival_s[-1] - arrival_s[0]) * period * (n - 1) / n
    repeats = int(np.ceil(duration_s / period))
    times = np.concatenate([relative + period * k for k in range(repeats)])
    keep = times < duration_s
    return Requests(
        times[keep],
        np.tile(input_tokens, repeats)[keep],
        np.tile(output_tokens, repeats)[keep],
        np.zeros(int(keep.sum()), dtype=np.int64),
        (model,),
    )


def merge(streams: Sequence[Requests]) -> Requests:
    """The union of streams in order of arrival; equal times keep the order of the streams."""
    if not streams:
        raise SimulationInputError("no streams to merge", remedy="give at least one")
    models = tuple(dict.fromkeys(model for stream in streams for model in stream.models))
    index: Mapping[str, int] = {model: i for i, model in enumerate(models)}
    numbers = [np.array([index[m] for m in stream.models], dtype=np.int64)[stream.model] for stream in streams]
    arrival = np.concatenate([stream.arrival_s for stream in streams])
    order = np.argsort(arrival, kind="stable")
    return Requests(
        arrival[order],
        np.concatenate([stream.input_tokens for stream in streams])[order],
        np.concatenate([stream.output_tokens for stream in streams])[order],
        np.concatenate(numbers)[order],
        models,
    )
