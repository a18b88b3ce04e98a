"""Aggregated serving on clusters small enough to follow by hand."""

from __future__ import annotations

import numpy as np
import pytest

from catalogs.helix import LAYERS, HelixLimits, HelixNode, HelixTimes, helix_latencies, helix_runs
from tasks.simulation.aggregated import Wiring, cluster_tables, run
from tasks.simulation.kernel_aggregated import ClusterTables, Feeding, at_knots, run_cluster
from tasks.simulation.types import SimulationInputError

# 1 ms per prompt token and layer; 10 ms per decode pass and layer whatever its size.
TIMES = HelixTimes(prompt=((100.0, 0.1), (200.0, 0.2)), decode=((2.0, 0.01), (100.0, 0.01)))
NO_WIRES = Wiring(0.0, 0.0, 0.0)
UNLIMITED = float("inf")


def tables(*nodes: tuple[int, int], limits: HelixLimits | None = None, wiring: Wiring = NO_WIRES) -> ClusterTables:
    held = limits or HelixLimits(10, 100, UNLIMITED)
    return cluster_tables(
        [HelixNode("G", *node) for node in nodes], max(end for _, end in nodes), lambda _: TIMES, lambda _: held, wiring
    )


def at_rate(horizon_s: float = 1e6, kv_high: float = UNLIMITED) -> Feeding:
    return Feeding(0, False, 0.0, UNLIMITED, kv_high, 0.0, horizon_s)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_lone_request_takes_its_prompt_and_its_steps() -> None:
    """100 tokens over 2 layers = 200 ms, then 3 steps of 20 ms."""
    prompt_end, prompt_took, ends, took = run_cluster(tables((0, 2)), at_rate(), floats(5.0), ints(100), ints(3))
    assert prompt_end == pytest.approx([5.2])
    assert prompt_took == pytest.approx([0.2])
    assert ends == pytest.approx([5.22, 5.24, 5.26])
    assert took == pytest.approx([0.02] * 3)


def test_hops_and_links_count_prompts_by_their_tokens() -> None:
    """2 nodes of one layer; source, hop and sink 1 ms each; 100 tokens at 0.1 ms on the link, a decoded one 0.1 ms."""
    wires = Wiring(link_s_per_token=1e-4, latency_s=1e-3, copy_s_per_token=0.0)
    _, prompt_took, _, took = run_cluster(
        tables((0, 1), (1, 2), wiring=wires), at_rate(), floats(0.0), ints(100), ints(1)
    )
    assert prompt_took == pytest.approx([0.001 + 0.1 + 0.01 + 0.001 + 0.1 + 0.001])
    assert took == pytest.approx([0.001 + 0.01 + 0.0001 + 0.001 + 0.01 + 0.001])


def test_what_waits_shares_a_pass_first_come_first_served() -> None:
    """B and C come while A's prompt runs (0 to 100 ms): one pass of 200 tokens and A's first step, 210 ms."""
    prompt_end, *_ = run_cluster(tables((0, 1)), at_rate(), floats(0.0, 0.01, 0.02), ints(100, 100, 100), ints(1, 1, 1))
    assert prompt_end == pytest.approx([0.1, 0.31, 0.31])


def test_limits_of_a_pass() -> None:
    """One prompt per pass: C waits for B."""
    limited = tables((0, 1), limits=HelixLimits(1, 100, UNLIMITED))
    prompt_end, *_ = run_cluster(limited, at_rate(), floats(0.0, 0.01, 0.02), ints(100, 100, 100), ints(1, 1, 1))
    assert prompt_end == pytest.approx([0.1, 0.21, 0.32])


def test_memory_keeps_a_request_out_until_another_leaves() -> None:
    """Room for one request of 100 tokens at a time: B is let in when A's only step is done, at 110 ms."""
    small = tables((0, 1), limits=HelixLimits(10, 100, 150.0))
    prompt_end, prompt_took, *_ = run_cluster(small, at_rate(kv_high=1.0), floats(0.0, 0.0), ints(100, 100), ints(1, 1))
    assert prompt_end == pytest.approx([0.1, 0.21])
    assert prompt_took[1] == pytest.approx(0.21)


def test_a_request_that_never_fits_ends_the_run_without_it() -> None:
    small = tables((0, 1), limits=HelixLimits(10, 100, 50.0))
    prompt_end, *_ = run_cluster(small, at_rate(kv_high=1.0), floats(0.0), ints(100), ints(1))
    assert np.isnan(prompt_end).all()


def test_a_closed_loop_keeps_its_number_in_flight_and_obeys_littles_law() -> None:
    """N = throughput x time in the cluster, for requests of 100 tokens and 10 steps."""
    feeding = Feeding(4, False, 0.0, UNLIMITED, UNLIMITED, 0.0, 200.0)
    count = 3000
    asked = np.zeros(count), np.full(count, 100), np.full(count, 10)
    prompt_end, prompt_took, ends, took = run_cluster(tables((0, 1), (1, 2)), feeding, *asked)
    whole = prompt_took[np.isfinite(prompt_took)].sum() + took.sum()
    assert whole / 200.0 == pytest.approx(4.0, rel=0.02)
    assert len(ends) <= np.isfinite(prompt_end).sum() * 10


def test_every_token_asked_for_is_made_once() -> None:
    rng = np.random.default_rng(1)
    outputs = rng.integers(1, 20, 200)
    shape = tables((0, 1), (1, 3), (1, 3), (3, 4))
    arrive = np.sort(rng.uniform(0, 30, 200))
    prompt_end, _, ends, _ = run_cluster(shape, at_rate(), arrive, rng.integers(1, 300, 200), outputs)
    assert np.isfinite(prompt_end).all()
    assert len(ends) == outputs.sum()


def test_alternatives_share_by_what_gets_through_them() -> None:
    """Beside a node of 2 layers, a chain of two of 1 layer gets twice as much through."""
    made = tables((0, 1), (1, 3), (1, 2), (2, 3))
    shares = dict(zip(made.following[0].tolist(), made.weight[0].tolist(), strict=True))
    assert shares[2] == pytest.approx(2 * shares[1])


def test_a_layout_without_a_chain_is_refused() -> None:
    with pytest.raises(SimulationInputError, match="no chain"):
        tables((0, 1), (2, 3))


def test_knots_are_joined_linearly_and_the_last_slope_goes_on() -> None:
    knots, values = floats(2.0, 4.0, 8.0), floats(1.0, 3.0, 3.5)
    assert [at_knots(knots, values, at) for at in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1, 1, 2, 3, 3.25, 3.5, 4.0])


def test_counting_leaves_the_warm_up_out() -> None:
    result = run(tables((0, 1)), at_rate(10.0), (floats(0.0, 5.0), ints(100, 100), ints(3, 3)), warm_up_s=4.0)
    assert result.decode_tok_per_s == pytest.approx(3 / 6.0)
    assert len(result.prompt_s) == 1


def test_helix_layouts_hold_every_layer_and_every_run_has_one() -> None:
    runs = helix_runs()
    assert {(r.model, r.mode, r.method) for r in runs if r.mode == "online"} == {
        (row["model"], "online", row["method"]) for row in helix_latencies()
    }
    for experiment in runs:
        ends = {0}
        for node in sorted(experiment.nodes, key=lambda node: node.first):
            assert node.first in ends, f"{experiment.model} {experiment.method}: nothing ends before {node}"
            ends.add(node.end)
        assert LAYERS[experiment.model] in ends
    whole = {(r.model, r.method): 0 for r in runs}
    for experiment in {(r.model, r.method, r.cluster): r for r in runs}.values():
        whole[experiment.model, experiment.method] += len(experiment.nodes)
    assert set(whole.values()) == {24}
