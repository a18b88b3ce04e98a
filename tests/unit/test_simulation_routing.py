"""Router, plan changes, lost requests, request streams and the metrics."""

from __future__ import annotations

import numpy as np
import pytest
from simulation_cases import instance, instant_prefill, node, requests

from catalogs.types import Lengths, Phase
from tasks.simulation.arrivals import constant_lengths, merge, poisson_requests, trace_requests
from tasks.simulation.engine import simulate
from tasks.simulation.kernel_common import smooth_wrr
from tasks.simulation.metrics import Slo, queue_over_time, report
from tasks.simulation.timeline import Epoch, run_epochs
from tasks.simulation.types import RequestStatus, SimulationInputError, StepTable


def test_smooth_round_robin_spreads_turns() -> None:
    """The known sequence of weights 5, 1, 1: a a b a c a a."""
    chosen = smooth_wrr(np.array([5.0, 1.0, 1.0]), np.ones(14), np.zeros(3))
    assert "".join("abc"[k] for k in chosen) == "aabacaa" * 2


def test_nothing_goes_to_weight_zero() -> None:
    chosen = smooth_wrr(np.array([0.0, 1.0, 0.0]), np.ones(5), np.zeros(3))
    assert set(chosen.tolist()) == {1}


def test_a_region_gets_what_both_its_phases_can_serve() -> None:
    """Region a: prefill 3, decode 1; region b: prefill 1, decode 3: both weigh 1, and decode stays in the region."""
    instances = [
        instant_prefill(instance_id="pa", region="a", rate_req_per_s=3.0),
        instant_prefill(instance_id="pb", region="b", rate_req_per_s=1.0),
        instance(Phase.DECODE, [node(0.001, batch=99)], instance_id="da", region="a", rate_req_per_s=1.0),
        instance(Phase.DECODE, [node(0.001, batch=99)], instance_id="db", region="b", rate_req_per_s=3.0),
    ]
    result = simulate(requests(np.arange(100) * 0.1, 10, 5), instances)
    assert np.bincount(result.prefill_instance).tolist() == [50, 50]
    assert (result.decode_instance - result.prefill_instance == 2).all()


def test_lost_requests_are_counted_by_cause() -> None:
    two_models = merge([requests([0.0, 1.0], 10, 5, "a"), requests([0.5], 10, 5, "b"), requests([2.0], 500, 5, "c")])
    decode = [node(0.001, batch=9, kv_capacity_tokens=100.0)]
    instances = [
        instant_prefill(model="a"),
        instant_prefill(model="c"),
        instance(Phase.DECODE, decode, model="c"),
    ]
    result = simulate(two_models, instances)
    assert result.status.tolist() == [
        RequestStatus.NO_DECODE_INSTANCE,
        RequestStatus.NO_PREFILL_INSTANCE,
        RequestStatus.NO_DECODE_INSTANCE,
        RequestStatus.TOO_LONG,
    ]
    slos = dict.fromkeys("abc", Slo(1000, 1000))
    reports = {item.model: item for item in report(result, slos)}
    assert reports["a"].lost == {"no_decode_instance": 2}
    assert reports["c"].attained == 0.0
    assert reports["c"].tpot_ms == {}


def test_a_request_for_one_token_never_decodes() -> None:
    result = simulate(requests([0.0], 10, 1), [instant_prefill()])
    assert result.status.tolist() == [RequestStatus.DONE]
    assert result.finish_s[0] == result.first_token_s[0]
    assert report(result, {"m": Slo(1, 1)})[0].attained == 1.0


def test_plan_change_starts_new_copies_late_and_drains_old_ones() -> None:
    """From 100 s on template y instead of x; y is up at 160 s. x takes work until then and ends what it has."""
    x = instance(Phase.PREFILL, [node(30.0, batch=10)], instance_id="x")
    y = instance(Phase.PREFILL, [node(1.0, batch=10)], instance_id="y")
    epochs = [Epoch(0.0, {("r", "x"): 1}), Epoch(100.0, {("r", "y"): 2})]
    instances = run_epochs(epochs, {("r", "x"): x, ("r", "y"): y}, startup_s=60.0)
    assert [(i.instance_id, i.active_from_s, i.active_until_s) for i in instances] == [
        ("x#0", 0.0, 160.0),
        ("y#1", 160.0, np.inf),
        ("y#2", 160.0, np.inf),
    ]
    result = simulate(requests([0.0, 159.0, 160.0, 161.0], 10, 1), instances)
    assert result.prefill_instance.tolist() == [0, 0, 1, 2]
    assert result.first_token_s.tolist() == [30.0, 189.0, 161.0, 162.0]
    assert next(use for use in result.instance_use if use.instance == 0).alive_s == 189.0


def test_prompts_of_a_stopped_prefill_still_find_a_decode_instance_in_their_region() -> None:
    """All moves from region r to s at 100 s, up at 160 s; the prompt of 159 s is prefilled until 189 s, in r."""
    made = {}
    for region, seconds in (("r", 30.0), ("s", 1.0)):
        made[region, "p"] = instance(Phase.PREFILL, [node(seconds, batch=10)], region=region, instance_id=f"p{region}")
        made[region, "d"] = instance(Phase.DECODE, [node(0.1)], region=region, instance_id=f"d{region}")
    epochs = [Epoch(at, {(region, name): 1 for name in "pd"}) for at, region in ((0.0, "r"), (100.0, "s"))]
    instances = run_epochs(epochs, made, startup_s=60.0)
    assert {i.instance_id[:2]: i.active_until_s for i in instances} == {
        "dr": 220.0, "pr": 160.0, "ds": np.inf, "ps": np.inf,
    }  # fmt: skip
    result = simulate(requests([0.0, 159.0, 161.0], 10, 2), instances)
    assert result.status.tolist() == [0, 0, 0]
    assert [instances[i].region for i in result.decode_instance] == ["r", "r", "s"]


def test_without_overlap_requests_in_the_gap_are_lost() -> None:
    x, y = (instance(Phase.PREFILL, [node(1.0, batch=10)], instance_id=name) for name in "xy")
    epochs = [Epoch(0.0, {("r", "x"): 1}), Epoch(100.0, {("r", "y"): 1})]
    instances = run_epochs(epochs, {("r", "x"): x, ("r", "y"): y}, startup_s=60.0, overlap=False)
    result = simulate(requests([99.0, 100.0, 170.0], 10, 1), instances)
    assert result.status.tolist() == [0, RequestStatus.NO_PREFILL_INSTANCE, 0]


def test_unchanged_copies_run_on_and_a_copy_stopped_before_it_is_up_takes_nothing() -> None:
    x = instance(Phase.PREFILL, [node(1.0, batch=10)], instance_id="x")
    key = ("r", "x")
    epochs = [Epoch(0.0, {key: 2}), Epoch(100.0, {key: 3}), Epoch(120.0, {key: 1})]
    spans = [(i.active_from_s, i.active_until_s) for i in run_epochs(epochs, {key: x}, startup_s=60.0)]
    assert spans == [(0.0, np.inf), (0.0, 120.0), (160.0, 160.0)]


def test_poisson_stream_has_its_rate_and_spread_and_repeats_by_seed() -> None:
    pairs = (np.array([100, 300]), np.array([10, 20]))
    stream = poisson_requests("m", 50.0, 2000.0, pairs, seed=1)
    counts = np.histogram(stream.arrival_s, bins=np.arange(0, 2001, 1.0))[0]
    assert counts.mean() == pytest.approx(50.0, rel=0.02)
    assert counts.var() == pytest.approx(50.0, rel=0.1)
    assert stream.input_tokens.mean() == pytest.approx(200.0, rel=0.02)
    assert set(zip(stream.input_tokens.tolist(), stream.output_tokens.tolist(), strict=True)) == {(100, 10), (300, 20)}
    np.testing.assert_array_equal(stream.arrival_s, poisson_requests("m", 50.0, 2000.0, pairs, seed=1).arrival_s)
    assert len(poisson_requests("m", 50.0, 2000.0, pairs, seed=2)) != len(stream)


def test_trace_is_brought_to_a_rate_and_starts_over() -> None:
    """3 requests at 0, 1, 4 s at 1.5 req/s: a period of 2 s holding times 0, 1/3, 4/3."""
    stream = trace_requests("m", np.array([0.0, 1.0, 4.0]), np.array([1, 2, 3]), np.array([4, 5, 6]), 1.5, 4.0)
    assert stream.arrival_s == pytest.approx([0, 1 / 3, 4 / 3, 2, 2 + 1 / 3, 2 + 4 / 3])
    assert stream.input_tokens.tolist() == [1, 2, 3, 1, 2, 3]


def test_stated_means_are_one_pair() -> None:
    assert [int(a[0]) for a in constant_lengths(Lengths.constant(621.4, 126))] == [621, 126]


def test_report_counts_each_limit_by_hand() -> None:
    """TTFT 1, 2, 3 s (one pass at a time, all at 0); decode 0.1 s per token."""
    instances = [
        instance(Phase.PREFILL, [node(1.0, batch=10)]),
        instance(Phase.DECODE, [node(0.1, batch=1)]),
    ]
    result = simulate(requests([0.0, 0.0, 0.0], 10, 21), instances)
    # Decode of one sequence takes 2 s and prefill hands over one per second: waits 0, 1, 2 s -> TPOT 100, 150, 200 ms.
    assert result.tpot_s * 1e3 == pytest.approx([100, 150, 200])
    assert result.decode_tpot_s * 1e3 == pytest.approx([100, 100, 100])
    (one,) = report(result, {"m": Slo(ttft_ms=2000, tpot_ms=100)}, until_s=10.0)
    assert (one.attained_ttft, one.attained_tpot, one.attained) == pytest.approx((2 / 3, 1 / 3, 1 / 3))
    assert one.ttft_ms[50] == pytest.approx(2000.0)
    queues = queue_over_time(result, np.array([0.5, 1.5, 2.5, 3.5]))
    assert queues["m/prefill"].tolist() == [2, 1, 0, 0]
    assert queues["m/decode"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: requests([1.0, 0.0], 1, 1), "sorted"),
        (lambda: requests([np.nan], 1, 1), "sorted"),
        (lambda: requests([0.0], 0, 1), "below 1"),
        (lambda: StepTable(np.array([1.0, 1.0]), np.array([0.0]), np.ones((2, 1))), "ascend"),
        (lambda: StepTable(np.array([1.0]), np.array([0.0]), np.array([[np.nan]])), "positive"),
        (lambda: instance(Phase.PREFILL), "without nodes"),
        (lambda: instance(Phase.AGGREGATED, [node(1.0)]), "not simulated"),
        (lambda: instance(Phase.PREFILL, [node(1.0, batch=0)]), "no share, batch"),
        (lambda: instance(Phase.PREFILL, [node(1.0)], rate_req_per_s=0.0), "rate"),
    ],
)
def test_senseless_inputs_are_refused(build: object, match: str) -> None:
    with pytest.raises(SimulationInputError, match=match):
        build()  # type: ignore[operator]


def test_transfer_counts_into_ttft_unless_told_otherwise() -> None:
    """KV of 1,000 B at 10,000 B/s takes 100 ms: that is when the first token comes; then 10 steps of 10 ms."""
    prefill = instance(
        Phase.PREFILL, [node(1e-9, batch=10**6, network_bytes_per_s=10_000.0)], kv_bytes_per_token_layer=10.0
    )
    result = simulate(requests([0.0], 100, 11), [prefill, instance(Phase.DECODE, [node(0.01, batch=8)])])
    assert result.ttft_s[0] * 1e3 == pytest.approx(100.0)
    assert result.prefill_s[0] * 1e3 == pytest.approx(0.0, abs=1e-3)
    assert result.tpot_s[0] * 1e3 == pytest.approx(10.0)
    assert report(result, {"m": Slo(50, 15)})[0].attained == 0.0
    assert report(result, {"m": Slo(50, 15, counts_transfer=False)})[0].attained == 1.0
