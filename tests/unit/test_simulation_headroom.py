"""Headroom and template replay on cases with known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulation_cases import instance, node, per_token, requests

from catalogs.types import Phase
from tasks.simulation.headroom import attained, copies_of, headroom, instances_class, poisson_at, slower
from tasks.simulation.replay import replay
from tasks.simulation.types import Requests, SimulationInputError, StepTable


def poisson(rate: float, count: int = 60_000, input_tokens: int = 10, output_tokens: int = 11) -> Requests:
    rng = np.random.default_rng(1)
    return requests(np.cumsum(rng.exponential(1 / rate, count)), input_tokens, output_tokens)


def md1_wait_exceeds(load: float, wait: float) -> float:
    """P(wait > t) of M/D/1 with service 1 (Erlang's sum), for whole and fractional t."""
    total, factor = 0.0, 1.0
    for k in range(int(wait) + 1):
        factor = factor / k if k else 1.0
        total += factor * (load * (k - wait)) ** k * np.exp(-load * (k - wait))
    return 1 - (1 - load) * total


def test_prefill_headroom_is_that_of_md1() -> None:
    """Service 1 s, TTFT limit 4 s at p95: the largest load at which P(wait > 3 s) <= 5 %."""
    single = instance(Phase.PREFILL, [node(1.0, batch=10)], rate_req_per_s=1.0)
    found = headroom([single], 4000.0, 95.0, poisson)
    loads = np.arange(0.3, 1.0, 0.01)
    expected = max(load for load in loads if md1_wait_exceeds(load, 3.0) <= 0.05)
    assert found.utilization == pytest.approx(expected, abs=0.021)
    assert 1 - attained([single], 4000.0, poisson(0.6)) == pytest.approx(md1_wait_exceeds(0.6, 3.0), rel=0.1)


def test_passes_half_as_fast_at_half_the_rate_wait_twice_as_long() -> None:
    """The same M/D/1 in slow motion: as much headroom at twice the limit, and less at the same one."""
    single = instance(Phase.PREFILL, [node(1.0, batch=10)], rate_req_per_s=1.0)
    slow = replace(slower(single, 2.0), rate_req_per_s=0.5)
    assert slow.stages[0].nodes[0].step.time_s.tolist() == [[2.0]]
    assert slow.stages[0].nodes[0].network_bytes_per_s == single.stages[0].nodes[0].network_bytes_per_s
    known = headroom([single], 4000.0, 95.0, poisson).utilization
    assert headroom([slow], 8000.0, 95.0, poisson).utilization == known
    assert headroom([slow], 4000.0, 95.0, poisson).utilization < known


def test_more_copies_have_more_headroom_for_round_robin_spreads_arrivals() -> None:
    single = instance(Phase.PREFILL, [node(1.0, batch=10)], rate_req_per_s=1.0)
    one = headroom([single], 3000.0, 99.0, poisson).utilization
    eight = headroom(copies_of(single, 8), 3000.0, 99.0, poisson).utilization
    assert eight > one + 0.15


def test_decode_headroom_by_waiting_for_a_slot() -> None:
    """One slot, 10 steps of 0.1 s: TPOT <= 200 ms means a wait of at most 1 s. p90 of M/D/1."""
    single = instance(Phase.DECODE, [node(0.1, batch=1)], rate_req_per_s=1.0)
    found = headroom([single], 200.0, 90.0, poisson)
    loads = np.arange(0.3, 1.0, 0.01)
    assert found.utilization == pytest.approx(max(x for x in loads if md1_wait_exceeds(x, 1.0) <= 0.1), abs=0.021)


def test_an_slo_below_the_step_time_has_no_headroom() -> None:
    single = instance(Phase.DECODE, [node(0.1, batch=1)], rate_req_per_s=1.0)
    assert headroom([single], 99.0, 90.0, poisson).utilization == 0.0


def test_mixed_phases_are_refused() -> None:
    both = [instance(Phase.PREFILL, [node(1.0)]), instance(Phase.DECODE, [node(1.0)])]
    with pytest.raises(SimulationInputError, match="several phases"):
        headroom(both, 1.0, 99.0, poisson)


def test_classes_tell_apart_what_queues_differently_and_nothing_else() -> None:
    small = instance(Phase.DECODE, [node(0.1)], rate_req_per_s=1.0)
    large = instance(Phase.DECODE, [node(0.1), node(0.1)], rate_req_per_s=16.0)
    elsewhere = replace(small, region="other", instance_id="x", template_id="t")
    same = [[small, large], [large, small], [replace(large, region="other"), elsewhere]]
    assert len({instances_class(found) for found in same}) == 1
    others = [
        [small],
        [small, small],
        [large],
        [small, replace(large, region="other")],
        [replace(small, rate_req_per_s=1.1)],
        [instance(Phase.DECODE, [node(0.11)], rate_req_per_s=1.0)],
        [instance(Phase.PREFILL, [node(0.1)], rate_req_per_s=1.0)],
        [instance(Phase.DECODE, [node(0.1, batch=2)], rate_req_per_s=1.0)],
    ]
    assert len({instances_class(found) for found in [*others, same[0]]}) == len(others) + 1


def test_poisson_streams_are_one_stream_at_different_speeds() -> None:
    at = poisson_at("m", (np.array([5, 50]), np.array([2, 20])), 40_000, seed=3)
    slow, fast = at(2.0), at(8.0)
    assert fast.arrival_s == pytest.approx(slow.arrival_s / 4)
    assert np.array_equal(slow.input_tokens, fast.input_tokens)
    assert set(zip(slow.input_tokens.tolist(), slow.output_tokens.tolist(), strict=True)) == {(5, 2), (50, 20)}
    gaps = np.diff(slow.arrival_s)
    assert (gaps.mean(), gaps.std()) == pytest.approx((0.5, 0.5), rel=0.02)  # exponential: the deviation is the mean


CONSTANT = (np.array([100]), np.array([51]))


def test_replay_keeps_a_true_rate_and_refuses_an_inflated_one() -> None:
    """8 slots, 10 ms + 0.5 ms per sequence = 14 ms: 8 / 0.014 = 571.4 tok/s at TPOT 14 ms."""
    step = per_token(0.0005, base=0.010)
    for stored, kept in ((571.4, True), (600.0, False)):
        sim = instance(Phase.DECODE, [node(step, batch=8)], rate_req_per_s=stored / 50)
        result = replay(sim, 50.0, 14.0, CONSTANT)
        assert result.rate_share * stored == pytest.approx(8 / 0.014, rel=0.01)
        assert result.latency_ms == pytest.approx(14.0, rel=1e-6)
        assert result.mean_in_flight == pytest.approx(8.0, rel=0.01)
        assert result.is_kept is kept
    assert not replay(sim, 50.0, 13.9, CONSTANT).is_kept


def test_replay_finds_a_kv_limited_template_short() -> None:
    """Slots for 8, memory for 5 sequences of 100 + 25 tokens on average: about 5 of 8 run."""
    sim = instance(
        Phase.DECODE, [node(StepTable.constant(0.01), batch=8, kv_capacity_tokens=5 * 126.0)], rate_req_per_s=16.0
    )
    result = replay(sim, 50.0, 10.0, CONSTANT)
    assert result.rate_share == pytest.approx(5 / 8, rel=0.1)
    assert result.preemptions > 0


def test_replay_of_prefill_sees_a_growing_backlog() -> None:
    """1 ms per token: 1,000 tok/s. At a stored rate of 1,000 it keeps up; at 1,250 it serves 80 %."""
    step = per_token(0.001)
    for stored, share in ((1000.0, 0.985), (1250.0, 0.8)):
        sim = instance(Phase.PREFILL, [node(step, batch=200)], rate_req_per_s=stored / 100)
        result = replay(sim, 100.0, 1000.0, CONSTANT)
        assert result.rate_share == pytest.approx(share, rel=0.01)
        assert result.is_kept is (stored == 1000.0)
