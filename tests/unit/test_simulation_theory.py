"""The simulator against queueing theory and hand calculation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation_cases import instance, instant_prefill, node, per_token, requests

from catalogs.types import Phase
from tasks.simulation.engine import simulate
from tasks.simulation.types import RequestStatus, SimInstance, StepTable


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_single_prefill_node_waits_like_md1(load: float) -> None:
    """M/D/1: mean wait = rho / (2 (1 - rho)) service times. One prompt fills a pass, a pass takes 2 s."""
    rng = np.random.default_rng(7)
    arrivals = np.cumsum(rng.exponential(2.0 / load, 1_000_000))
    result = simulate(requests(arrivals, 10, 1), [instance(Phase.PREFILL, [node(2.0, batch=10)])])
    wait = (result.prefill_start_s - arrivals).mean()
    assert wait == pytest.approx(2.0 * load / (2 * (1 - load)), rel=0.02)
    assert (result.ttft_s - (result.prefill_start_s - arrivals)) == pytest.approx(2.0)
    assert result.node_use[0].utilization == pytest.approx(load, rel=0.01)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_single_decode_slot_waits_like_md1(load: float) -> None:
    """One slot, 10 steps of 0.1 s each: an M/D/1 server of 1 s."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1.0 / load, 400_000))
    result = simulate(requests(arrivals, 5, 11), [instant_prefill(), instance(Phase.DECODE, [node(0.1, batch=1)])])
    wait = (result.decode_start_s - result.kv_ready_s).mean()
    assert wait == pytest.approx(load / (2 * (1 - load)), rel=0.02)
    assert result.decode_tpot_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("stage_ms", "tpot_ms"),
    [
        ((20,), 20),
        ((10, 20), 40),  # 2 micro-batches: the slow stage is always busy, 2 x 20 > 30
        ((30, 30, 30), 90),
        ((10, 50, 20, 10), 200),
    ],
)
def test_full_pipeline_tpot_is_the_slowest_stage_times_micro_batches(stage_ms: tuple[int, ...], tpot_ms: int) -> None:
    stages = [[node(ms / 1e3, batch=4)] for ms in stage_ms]
    count = 4 * len(stages)
    result = simulate(requests(np.zeros(count), 10, 2001), [instant_prefill(), instance(Phase.DECODE, *stages)])
    assert result.decode_tpot_s * 1e3 == pytest.approx(tpot_ms, rel=2e-3)


def test_lone_sequence_takes_the_sum_of_stage_times_and_hops() -> None:
    """Stage times 10 + 20 ms; each hop 1 ms, the first also 8 bytes at 2,000 B/s = 4 ms (token ids weigh nothing): 36 ms."""
    stages = [[node(ms / 1e3, batch=4, hop_latency_s=0.001, network_bytes_per_s=2000.0)] for ms in (10, 20)]
    decode = instance(Phase.DECODE, *stages, activation_bytes_per_token=8.0)
    result = simulate(requests([0.0], 10, 101), [instant_prefill(), decode])
    assert result.decode_tpot_s[0] * 1e3 == pytest.approx(36.0)


def test_pipeline_period_with_hops_is_the_larger_of_round_trip_and_slowest_stage() -> None:
    """10 + 20 ms and 15 ms per hop: round trip 60 > 2 x 20."""
    stages = [[node(ms / 1e3, batch=4, hop_latency_s=0.015)] for ms in (10, 20)]
    result = simulate(requests(np.zeros(8), 10, 1001), [instant_prefill(), instance(Phase.DECODE, *stages)])
    assert result.decode_tpot_s * 1e3 == pytest.approx(60.0, rel=2e-3)


def test_a_stage_waits_for_its_slowest_node() -> None:
    """Data parallel 10 ms and 30 ms nodes in one stage, then 5 ms: 35 ms for one micro-batch on both."""
    decode = instance(Phase.DECODE, [node(0.010, batch=1), node(0.030, batch=1)], [node(0.005, batch=4)])
    result = simulate(requests(np.zeros(4), 10, 1001), [instant_prefill(), decode])
    assert result.decode_tpot_s * 1e3 == pytest.approx(60.0, rel=2e-3)  # 2 micro-batches x 30 > 35


def test_inner_stages_alike_work_as_finer_micro_batches() -> None:
    """2 stages of 2 inner stages of 10 ms: 4 micro-batches, 40 ms round, each engine busy all the time."""
    stages = [[node(0.010, batch=3, inner_stages=2)] for _ in range(2)]
    result = simulate(requests(np.zeros(12), 10, 2001), [instant_prefill(), instance(Phase.DECODE, *stages)])
    assert result.decode_tpot_s * 1e3 == pytest.approx(40.0, rel=2e-3)
    assert [use.utilization for use in result.node_use[1:]] == pytest.approx([1.0, 1.0], rel=5e-3)


def test_inner_stages_in_one_of_two_stages_cut_the_micro_batch() -> None:
    """Stage 1: 2 inner stages of 10 ms, sub-batches 1 and 2 leave after 20 and 30 ms; stage 2 takes 20 ms: 50 ms."""
    decode = instance(Phase.DECODE, [node(0.010, batch=1, inner_stages=2)], [node(0.020, batch=2)])
    result = simulate(requests(np.zeros(4), 10, 2001), [instant_prefill(), decode])
    assert result.decode_tpot_s * 1e3 == pytest.approx(50.0, rel=2e-3)


def test_decode_step_grows_with_batch_and_context() -> None:
    """t = 1 ms + 0.1 ms x batch + 1 us x context: batch 2, contexts 101..150 attended -> mean 125.5."""
    table = StepTable.from_function(lambda n, c: 1e-3 + 1e-4 * n + 1e-6 * c, [1, 64], [0, 1000])
    result = simulate(
        requests([0.0, 0.0], 100, 51), [instant_prefill(), instance(Phase.DECODE, [node(table, batch=2)])]
    )
    assert result.decode_tpot_s * 1e3 == pytest.approx(1 + 0.2 + 0.1255)


def test_chunked_prefill_by_hand() -> None:
    """Budget 100 tokens at 1 ms each, attention 1 us per token and key attended.

    A (150 tokens) and B (50) at 0. Pass 1: A[0:100], mean keys 50.5 -> 100 + 5.05 ms. Pass 2: A[100:150] attends
    100 + 25.5 on average, B[0:50] 25.5 -> mean 75.5: 100 + 7.55 ms. Both end at 212.6 ms.
    """
    table = StepTable.from_function(lambda n, x: n * 1e-3 + n * x * 1e-6, [1, 100], [0, 1000])
    result = simulate(requests([0.0, 0.0], [150, 50], 1), [instance(Phase.PREFILL, [node(table, batch=100)])])
    assert result.first_token_s * 1e3 == pytest.approx([212.6, 212.6])
    assert result.prefill_start_s * 1e3 == pytest.approx([0.0, 105.05])


@pytest.mark.parametrize("budget", [1000, 200])
def test_what_the_prefix_cache_holds_is_attended_to_and_sent_but_not_computed(budget: int) -> None:
    """n tokens that attend k keys on average take n ms + n k us. Of 1,000 tokens 400 are cached: the 600 others attend
    400 + 300.5 keys on average, however they are chunked; sending 1,000 tokens takes a second."""
    table = StepTable.from_function(lambda n, k: n * 1e-3 + n * k * 1e-6, [1, 10_000], [0, 10_000])
    prefill = instance(
        Phase.PREFILL,
        [node(table, batch=budget, network_bytes_per_s=1000.0)],
        kv_bytes_per_token_layer=1.0,
        prefix_hit_rate=0.4,
    )
    result = simulate(requests([0.0], 1000, 2), [prefill, instance(Phase.DECODE, [node(0.001)])])
    assert result.first_token_s == pytest.approx([0.6 + 600 * 700.5e-6])
    assert result.ttft_s == pytest.approx([0.6 + 600 * 700.5e-6 + 1.0])
    assert result.node_use[0].tokens == 600


def test_a_prompt_that_is_cached_whole_computes_its_last_token() -> None:
    prefill = instance(Phase.PREFILL, [node(per_token(0.001), batch=1000)], prefix_hit_rate=0.999)
    assert simulate(requests([0.0], 10, 1), [prefill]).first_token_s == pytest.approx([0.001])


def test_prefill_pipeline_overlaps_chunks() -> None:
    """3 chunks through 2 stages of 10 ms each: 10 (2 + 3 - 1) = 40 ms; with 5 ms hop 45."""
    stages = [[node(0.010, batch=100, hop_latency_s=0.005)] for _ in range(2)]
    result = simulate(requests([0.0], 300, 1), [instance(Phase.PREFILL, *stages)])
    assert result.ttft_s[0] * 1e3 == pytest.approx(45.0)


def test_kv_transfer_takes_the_slower_end() -> None:
    """1,000 tokens x 4 layers x 100 B = 400 kB; out at 4 MB/s: 100 ms, the second in line 200; in at 2 MB/s: 200 and 400."""
    prefill = instance(
        Phase.PREFILL, [node(1e-9, batch=10**6, network_bytes_per_s=4e6)], layers=4, kv_bytes_per_token_layer=100.0
    )
    fast = instance(Phase.DECODE, [node(0.01, batch=8)], layers=4, kv_bytes_per_token_layer=100.0)
    slow = instance(
        Phase.DECODE, [node(0.01, batch=8, network_bytes_per_s=2e6)], layers=4, kv_bytes_per_token_layer=100.0
    )
    for decode, expected in ((fast, [100.0, 200.0]), (slow, [200.0, 400.0])):
        result = simulate(requests([0.0, 0.0], 1000, 2), [prefill, decode])
        assert sorted((result.kv_ready_s - result.first_token_s) * 1e3) == pytest.approx(expected, rel=1e-6)


def test_windowed_layers_keep_and_send_only_their_window() -> None:
    """Half the layers keep 100 tokens: 1,000 tokens weigh 550; capacity 1,200 holds two (551 each), not three."""
    decode = instance(Phase.DECODE, [node(0.01, batch=8, kv_capacity_tokens=1200.0)], kv_full_share=0.5, kv_window=100)
    prefill = instance(
        Phase.PREFILL,
        [node(1e-9, batch=10**6, network_bytes_per_s=5500.0)],
        kv_bytes_per_token_layer=1.0,
        kv_full_share=0.5,
        kv_window=100,
    )
    result = simulate(requests(np.zeros(3), 1000, 11), [prefill, decode])
    assert (result.kv_ready_s - result.first_token_s) == pytest.approx([0.1, 0.2, 0.3], rel=1e-6)
    late = requests(np.zeros(3), 1000, 11)
    result = simulate(late, [instant_prefill(), decode])
    assert sorted(np.round(result.decode_start_s, 6)) == pytest.approx([0.0, 0.0, 0.1], abs=1e-6)


def _little(result_use: float, sojourn_sum: float, alive_s: float) -> None:
    assert result_use == pytest.approx(sojourn_sum / alive_s, rel=1e-6, abs=1e-9)


def mixed_instances() -> list[SimInstance]:
    step = StepTable.from_function(lambda n, c: 4e-3 + 1e-4 * n + 2e-7 * n * c, [1, 64], [0, 4000])
    prefill = per_token(2e-5, base=2e-3)
    return [
        instance(
            Phase.PREFILL,
            [node(prefill, batch=800, share=2.0), node(prefill, batch=400)],
            [node(prefill, batch=1000)],
            instance_id="p0",
            rate_req_per_s=2.0,
        ),
        instance(Phase.PREFILL, [node(prefill, batch=500, replicas=2)], instance_id="p1"),
        instance(
            Phase.DECODE,
            [
                node(step, batch=4, share=4, kv_capacity_tokens=12000.0),
                node(step, batch=2, share=2, kv_capacity_tokens=7000.0),
            ],
            [node(step, batch=6, kv_capacity_tokens=16000.0)],
            instance_id="d0",
        ),
        instance(Phase.DECODE, [node(step, batch=4, replicas=2, kv_capacity_tokens=4000.0)], instance_id="d1"),
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rate=st.floats(1.0, 60.0))
def test_requests_and_tokens_are_conserved(seed: int, rate: float) -> None:
    """Every request leaves or is counted; each node of a stage works its share; Little's law per instance and node."""
    rng = np.random.default_rng(seed)
    n = 300
    asked = requests(
        np.cumsum(rng.exponential(1 / rate, n)), rng.integers(1, 3000, n), np.maximum(1, rng.geometric(0.05, n))
    )
    instances = mixed_instances()
    result = simulate(asked, instances)
    done = result.status == RequestStatus.DONE
    assert (np.isfinite(result.finish_s) == done).all()
    # 3,000 + out tokens never exceed 4,000 here unless the output is very long: those are counted, not lost.
    assert ((result.status == RequestStatus.TOO_LONG) <= (asked.input_tokens + asked.output_tokens > 4000)).all()
    assert (result.prefill_start_s >= asked.arrival_s).all()
    assert (result.first_token_s > result.prefill_start_s).all()
    going = done & (asked.output_tokens > 1)
    assert (result.kv_ready_s[going] >= result.first_token_s[going]).all()
    assert (result.decode_start_s[going] >= result.kv_ready_s[going] - 1e-12).all()
    for i, sim in enumerate(instances):
        mine = result.prefill_instance == i if sim.phase is Phase.PREFILL else (result.decode_instance == i) & done
        tokens = int((asked.input_tokens if sim.phase is Phase.PREFILL else asked.output_tokens - 1)[mine].sum())
        for s in range(len(sim.stages)):
            assert sum(use.tokens for use in result.node_use if use.instance == i and use.stage == s) == tokens
        use = next(use for use in result.instance_use if use.instance == i)
        assert (use.requests, use.tokens) == (int(mine.sum()), tokens)
        assert all(0 <= node_use.utilization <= 1 + 1e-9 for node_use in result.node_use if node_use.instance == i)
        if sim.phase is Phase.PREFILL:
            _little(use.mean_waiting, float((result.prefill_start_s - asked.arrival_s)[mine].sum()), use.alive_s)
            _little(
                use.mean_in_service, float((result.first_token_s - result.prefill_start_s)[mine].sum()), use.alive_s
            )
        else:
            # A preempted sequence waits again, so only the sum is known from its times.
            total = float((result.finish_s - result.kv_ready_s)[mine].sum())
            _little(use.mean_waiting + use.mean_in_service, total, use.alive_s)
            for s in range(len(sim.stages)):
                there = sum(
                    node_use.mean_requests
                    for node_use in result.node_use
                    if (node_use.instance, node_use.stage) == (i, s)
                )
                assert there == pytest.approx(use.mean_in_service, rel=1e-6)


def test_littles_law_with_rate_and_wait_measured_apart() -> None:
    """L sampled at fixed moments against lambda * W of the same run, per instance (steady state, 2 %)."""
    rng = np.random.default_rng(11)
    n = 40_000
    asked = requests(np.cumsum(rng.exponential(1 / 20.0, n)), rng.integers(100, 1500, n), rng.geometric(0.05, n) + 1)
    result = simulate(asked, mixed_instances())
    end = asked.arrival_s[-1]
    moments = np.linspace(0.1 * end, 0.9 * end, 20_000)
    for i in (2, 3):
        mine = result.decode_instance == i
        enter, leave = np.sort(result.kv_ready_s[mine]), np.sort(result.finish_s[mine])
        sampled = (np.searchsorted(enter, moments) - np.searchsorted(leave, moments)).mean()
        rate, wait = mine.sum() / end, (result.finish_s - result.kv_ready_s)[mine].mean()
        assert sampled == pytest.approx(rate * wait, rel=0.02)
        use = next(use for use in result.instance_use if use.instance == i)
        assert use.mean_waiting + use.mean_in_service == pytest.approx(rate * wait, rel=0.02)


def test_shares_divide_the_work() -> None:
    rng = np.random.default_rng(5)
    n = 5000
    asked = requests(np.cumsum(rng.exponential(0.02, n)), rng.integers(10, 2000, n), 20)
    result = simulate(asked, mixed_instances())
    by_node = {(use.instance, use.stage, use.node): use for use in result.node_use}
    assert by_node[0, 0, 0].tokens / by_node[0, 0, 1].tokens == pytest.approx(2.0, rel=0.01)
    # The router: 2:1 by rate.
    counts = np.bincount(result.prefill_instance)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.01)
    # Slots of the decode nodes are 4:2, and the nodes are filled in proportion.
    assert by_node[2, 0, 0].mean_requests / by_node[2, 0, 1].mean_requests == pytest.approx(2.0, rel=0.1)


def test_kv_memory_bounds_what_runs_and_preemption_resolves_growth() -> None:
    """Capacity 250 tokens. Two sequences of 101 grow to 200 each: they fit at first, not at the end; both still end."""
    decode = instance(Phase.DECODE, [node(0.01, batch=8, kv_capacity_tokens=250.0)])
    result = simulate(requests([0.0, 0.0], 100, 101), [instant_prefill(), decode])
    assert (result.status == RequestStatus.DONE).all()
    assert result.preemptions.tolist() == [0, 1]
    # The first runs undisturbed; the second goes on after it, having made 25 tokens beside it: 124 + 1 tokens each.
    assert result.finish_s[0] == pytest.approx(1.0)
    assert result.finish_s[1] == pytest.approx(1.0 + (100 - 25) * 0.01, abs=0.011)


def test_equal_inputs_give_equal_times() -> None:
    rng = np.random.default_rng(5)
    asked = requests(np.cumsum(rng.exponential(0.05, 500)), rng.integers(10, 2000, 500), 20)
    one, two = simulate(asked, mixed_instances()), simulate(asked, mixed_instances())
    np.testing.assert_array_equal(one.finish_s, two.finish_s)
    assert one.node_use == two.node_use
