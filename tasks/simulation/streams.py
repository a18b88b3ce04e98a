"""The stream of requests of several models, each Poisson or a trace, at its own rate; equal seeds give equal streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from catalogs.types import Lengths
from tasks.simulation.arrivals import constant_lengths, merge, poisson_times, sample_lengths, trace_requests
from tasks.simulation.types import Floats, Ints, Requests, SimulationInputError

# Moments are met by draws this many; lengths are then drawn from them.
_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class ModelStream:
    """Requests of one model at ``rate_req_per_s`` on average. ``arrival_s`` None = Poisson with lengths drawn from the
    pairs; else the trace whose clock is scaled to the rate."""

    model: str
    rate_req_per_s: float
    input_tokens: Ints
    output_tokens: Ints
    arrival_s: Floats | None = None


def moment_pairs(lengths: Lengths) -> tuple[Ints, Ints]:
    """(input, output) tokens with the moments of ``lengths``: one pair where they do not vary, else log-normal draws.

    A log-normal pair has exactly the means, mean squares and mean product given; its tail is a guess.
    """
    spread_in = math.log(max(lengths.input_sq_mean / lengths.input_mean**2, 1.0))
    spread_out = math.log(max(lengths.output_sq_mean / lengths.output_mean**2, 1.0))
    if max(spread_in, spread_out) < 1e-9:
        return constant_lengths(lengths)
    ratio = lengths.cross_mean / (lengths.input_mean * lengths.output_mean)
    most = math.sqrt(spread_in * spread_out)
    covariance = min(max(math.log(ratio), -most), most) if ratio > 0 else -most
    rng = np.random.default_rng(0)
    # A fixed sample, brought to mean 0 and variance 1, so that the pairs are the same wherever they are drawn.
    normal = rng.standard_normal((2, _DRAWS))
    normal = (normal - normal.mean(axis=1, keepdims=True)) / normal.std(axis=1, keepdims=True)
    slope = covariance / spread_in if spread_in > 0 else 0.0
    rest = math.sqrt(max(spread_out - slope * covariance, 0.0))
    logs = math.sqrt(spread_in) * normal[0]
    inputs = np.exp(math.log(lengths.input_mean) - spread_in / 2 + logs)
    outputs = np.exp(math.log(lengths.output_mean) - spread_out / 2 + slope * logs + rest * normal[1])
    return _whole(inputs), _whole(outputs)


def _whole(tokens: Floats) -> Ints:
    return np.maximum(np.rint(tokens), 1).astype(np.int64)


def stream_requests(streams: Sequence[ModelStream], duration_s: float, seed: int) -> Requests:
    """The union of ``streams`` over ``duration_s``; models at rate 0 send nothing.

    Seed 0 replays traces from their first request, so models that replay one trace burst together; any other seed starts
    each at a random request and runs it in a circle.
    """
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(len(streams))]
    parts = [
        _requests(stream, duration_s, seed, rng)
        for stream, rng in zip(streams, rngs, strict=True)
        if stream.rate_req_per_s > 0
    ]
    if not parts:
        raise SimulationInputError("no model has a rate above 0", remedy="give a rate, or a plan with demand")
    return merge(parts)


def _requests(stream: ModelStream, duration_s: float, seed: int, rng: np.random.Generator) -> Requests:
    if stream.arrival_s is None:
        times = poisson_times(stream.rate_req_per_s, duration_s, rng)
        inputs, outputs = sample_lengths((stream.input_tokens, stream.output_tokens), len(times), rng)
        return Requests(times, inputs, outputs, np.zeros(len(times), dtype=np.int64), (stream.model,))
    start = int(rng.integers(len(stream.arrival_s))) if seed else 0
    times = _from(stream.arrival_s, start)
    order = np.roll(np.arange(len(times)), -start)
    rate = stream.rate_req_per_s
    return trace_requests(
        stream.model, times, stream.input_tokens[order], stream.output_tokens[order], rate, duration_s
    )


def _from(arrival_s: Floats, start: int) -> Floats:
    """Arrivals of a trace that begins at request ``start`` and goes on, after its last, with its first."""
    n = len(arrival_s)
    if start == 0:
        return arrival_s
    period = (arrival_s[-1] - arrival_s[0]) * n / max(n - 1, 1)
    return np.concatenate([arrival_s[start:], arrival_s[:start] + period]) - arrival_s[start]
