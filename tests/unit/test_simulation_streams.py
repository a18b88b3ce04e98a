"""Streams of several models: rates, seeds, traces run in a circle, lengths that have the moments asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalogs.types import Lengths
from tasks.simulation.streams import ModelStream, moment_pairs, stream_requests
from tasks.simulation.types import SimulationInputError

ONE = np.array([10]), np.array([5])


def trace(rate: float = 1.0, model: str = "t") -> ModelStream:
    """Five requests that can be told apart; gaps 1, 2, 3, 4 s."""
    return ModelStream(model, rate, np.arange(1, 6), np.arange(11, 16), np.array([0.0, 1.0, 3.0, 6.0, 10.0]))


def test_a_seed_gives_one_stream_and_another_gives_another() -> None:
    streams = [ModelStream("a", 3.0, *ONE), trace(2.0)]
    first, again, other = (stream_requests(streams, 50.0, seed) for seed in (1, 1, 2))
    assert (first.arrival_s == again.arrival_s).all()
    assert len(first) != len(other) or (first.arrival_s != other.arrival_s).any()
    assert first.models == ("a", "t")


def test_models_draw_apart_so_that_one_more_model_does_not_change_the_others() -> None:
    alone = stream_requests([ModelStream("a", 3.0, *ONE)], 50.0, 4)
    both = stream_requests([ModelStream("a", 3.0, *ONE), ModelStream("b", 1.0, *ONE)], 50.0, 4)
    assert (both.arrival_s[both.model == 0] == alone.arrival_s).all()


def test_seed_0_replays_the_trace_as_it_is() -> None:
    got = stream_requests([trace(1.0)], 5.0, 0)
    # 5 requests at 1/s take 5 s; 4 of them are the way to the last: 10 s of trace in 4 s.
    assert got.arrival_s == pytest.approx([0.0, 0.4, 1.2, 2.4, 4.0])
    assert got.input_tokens.tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(1, 8))
def test_another_seed_starts_elsewhere_and_keeps_order_and_gaps(seed: int) -> None:
    got = stream_requests([trace(1.0)], 5.0, seed)
    start = int(got.input_tokens[0]) - 1
    assert got.input_tokens.tolist() == [(start + i) % 5 + 1 for i in range(5)]
    # The gap from the last request back to the first is the mean gap.
    gaps = np.array([1.0, 2.0, 3.0, 4.0, 2.5])
    kept = np.roll(gaps, -start)[:4]
    assert np.diff(got.arrival_s) == pytest.approx(kept * 4.0 / kept.sum())


def test_no_rate_at_all_is_refused_and_a_released_model_sends_nothing() -> None:
    with pytest.raises(SimulationInputError):
        stream_requests([ModelStream("a", 0.0, *ONE)], 5.0, 0)
    assert stream_requests([ModelStream("a", 0.0, *ONE), trace()], 5.0, 0).models == ("t",)


def test_stated_means_are_every_requests_lengths() -> None:
    inputs, outputs = moment_pairs(Lengths.constant(620.6, 126.2))
    assert (inputs.tolist(), outputs.tolist()) == ([621], [126])


@given(
    mean=st.tuples(st.floats(200, 5000), st.floats(50, 2000)),
    spread=st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
    correlation=st.floats(-0.3, 0.9),
)
@settings(max_examples=30, deadline=None)
def test_drawn_lengths_have_the_moments(
    mean: tuple[float, float], spread: tuple[float, float], correlation: float
) -> None:
    squares = [m**2 * (1 + s**2) for m, s in zip(mean, spread, strict=True)]
    cross = mean[0] * mean[1] * (1 + correlation * spread[0] * spread[1])
    inputs, outputs = moment_pairs(Lengths(*mean, *squares, cross, mean[0]))
    assert inputs.mean() == pytest.approx(mean[0], rel=0.02)
    assert outputs.mean() == pytest.approx(mean[1], rel=0.02)
    assert (inputs.astype(float) ** 2).mean() == pytest.approx(squares[0], rel=0.08)
    assert (outputs.astype(float) ** 2).mean() == pytest.approx(squares[1], rel=0.08)
    assert (inputs * outputs.astype(float)).mean() == pytest.approx(cross, rel=0.05)
