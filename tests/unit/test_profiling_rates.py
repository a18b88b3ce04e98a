"""Cells of the profile: by hand for Qwen3-32B, against a brute-force oracle, and by properties any such table has."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiling_cases import EFF, EXPERTS, GIB, GPU, SPEC, WINDOWED, Oracle, catalog, node, workload

from catalogs.types import Lengths, NodeConfig, Phase, Workload
from tasks.profiling.cells import Cells
from tasks.profiling.cycles import Mode, cycle_grid
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.profile import best_rates, close_over_layers
from tasks.profiling.rates import FEASIBLE, REASONS
from tasks.profiling.schema import Infeasible
from tasks.profiling.shapes import ModelShape
from tasks.templates.types import Position

SMALL = ProfileSettings(max_prefill_tokens=1024, cuda_graph_batch_sizes=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128))


def rates(work: Workload, config: NodeConfig, sizes=SMALL, gpu=GPU, eff=EFF, stages: int = 3, mode: Mode = Mode.CYCLE):
    cells = Cells(work, sizes, mode, stages)
    shape = ModelShape(work.model, work.weight_dtype, work.kv_dtype)
    found = best_rates(config, gpu, eff, shape, cells)
    assert found is not None
    return cells, found


def real(config: str, work: Workload, network_gbit_per_s: float = 1e5, sizes: ProfileSettings | None = None):
    known = catalog()
    config_row = replace(known.node_configs[config], network_gbit_per_s=network_gbit_per_s)
    gpu = config_row.gpu
    return rates(work, config_row, sizes or ProfileSettings(), known.gpus[gpu], known.efficiencies[gpu], stages=6)


def reason_at(found, *at: int) -> Infeasible | None:
    index = int(found.outcome[at])
    return None if index == FEASIBLE else REASONS[index]


# ---- by hand ----------------------------------------------------------------------------------------------------------


def test_qwen3_32b_decode_on_one_h100() -> None:
    work = workload(catalog().models["Qwen/Qwen3-32B"], Phase.DECODE, 100.0, Lengths.constant(621.0, 126.0))
    cells, found = real("H100-SXMx1", work)
    # 65.52 GB of weights; 0.92 x 79.65 GiB - 1.5 GiB reserve = 77.07 GB; 684 tokens x 262,144 B = 179.3 MB a sequence and
    # 151,936 logits x 38.5 B = 5.85 MB to draw its tokens: (77.07 - 65.52) / 0.1852 = 62.4 sequences, and 56 is the graph
    # size below. (2,048 tokens of 143 KB are less than 56 draws.)
    at = (0, 0, 63)
    assert cells.combos[0] == (1, Position.ONLY)
    assert found.batch[at] == 56
    # The step by hand: weights 65.52 GB - embedding 1.56 at 2920 GB/s = 21.9 ms, attention 10.0 GB at 2931 GB/s = 3.4 and
    # 64 x 13.7 us = 0.9, products 257 x 4.2 us = 1.1, element-wise 0.8, the sort of 56 x 151,936 logits of 1,080 bytes 2.7:
    # 30.8 / 0.98 = 31.4 ms. So c = 33.3 holds 56, c = 20 none; a node alone runs at 31.4 ms whatever others need.
    assert cells.cycle_ms[0, 8] == pytest.approx(100 / 3)
    assert found.rate_tok_per_s[0, :9, 63] == pytest.approx(56 / 0.0314, rel=0.02)
    assert found.rate_tok_per_s[0, 9, 63] == 0
    assert reason_at(found, 0, 9, 63) is Infeasible.SLO
    # 65.52 GB + 56 x 185.2 MB + the engine's reserve, as the driver would show it: the fullest GPU
    used = (65.524e9 + 56 * (179.31e6 + 151_936 * 38.5)) / GIB + 1.5
    assert found.memory_gib[at] == pytest.approx(used, rel=1e-3)


def test_qwen3_32b_prefill_on_four_l40s() -> None:
    work = workload(catalog().models["Qwen/Qwen3-32B"], Phase.PREFILL, 1600.0, Lengths.constant(621.0, 126.0))
    cells, found = real("L40Sx4", work)
    combo = cells.combos.index((2, Position.LAST))
    # m = 1.5 asks for 2 x 621 / 0.5 = 2,484 tokens a pass at least; m = 1.1 would for 12,420.
    cycle = cells.settings.prefill_passes.index(1.5)
    assert found.rate_tok_per_s[combo, 0, 31] == 0
    layout = found.layouts[found.layout[combo, cycle, 31]]
    # PCIe all-reduce makes tensor parallelism a loss; 32 layers are 31.2 GB + 1.56 GB of head and fit one 45 GiB card.
    assert (layout.tp, layout.pp, layout.replicas) == (1, 1, 4)
    cycle_ms, batch = cells.cycle_ms[combo, cycle], found.batch[combo, cycle, 31]
    assert cycle_ms == pytest.approx(1600 / 3.5)
    # 32 layers x 2 x 487.6 MFLOP a token at 362 x 0.630 TFLOP/s is 137 us a token, element-wise 32 x 2 x (9.84 x 5120 +
    # 4.14 x 25600) bytes at 864 GB/s 11.6, attention about 4: with the de-rating of 0.95 near 2,840 tokens a cycle.
    assert batch == pytest.approx(457.1 * 0.95 / (0.137 + 0.0116 + 0.004), rel=0.02)
    assert found.rate_tok_per_s[combo, cycle, 31] == pytest.approx(4 * batch / cycle_ms * 1000)


def test_ends_cost_a_stage_its_embedding_and_head() -> None:
    work = workload(SPEC, Phase.DECODE, 20.0)
    cells, found = rates(work, node(1))
    first, mid, last = (cells.combos.index((3, p)) for p in (Position.FIRST, Position.MID, Position.LAST))
    gib = 32000 * 1024 * 2 / GIB
    same = found.batch[first, 0, 1] == found.batch[mid, 0, 1] == found.batch[last, 0, 1]
    assert same
    assert found.memory_gib[first, 0, 1] - found.memory_gib[mid, 0, 1] == pytest.approx(gib)
    # Drawing tokens for the three sub-batches takes more than 2,048 tokens' activations, which the others keep room for.
    drawn = (3 * found.batch[last, 0, 1] * 32000 * 38.5 - 2048 * 24576) / GIB
    assert found.memory_gib[last, 0, 1] - found.memory_gib[mid, 0, 1] == pytest.approx(gib + drawn)
    tight = Cells(work, replace(SMALL, decode_cycle_divisors=tuple(np.geomspace(1, 60, 60))), Mode.CYCLE, 3)
    shape = ModelShape(SPEC, "bf16", "bf16")
    closer = best_rates(node(1), GPU, EFF, shape, tight)
    assert closer is not None
    reached = [(closer.rate_tok_per_s[i, :, 1] > 0).sum() for i in (first, mid, last)]
    assert reached[1] > reached[2]  # the head's time costs the last stage the shortest cycles


# ---- against the oracle -------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    spec=st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    gpus=st.sampled_from([1, 2, 4]),
    memory_gib=st.sampled_from([2.2, 2.6, 3.0, 4.0, 80.0]),
    slo_ms=st.sampled_from([3.0, 8.0, 15.0, 60.0]),
    input_mean=st.sampled_from([90.0, 512.0, 900.0]),
    cell=st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(1, 6)),
)
def test_cells_equal_a_search_over_every_layout_and_batch(
    spec, phase: Phase, gpus: int, memory_gib: float, slo_ms: float, input_mean: float, cell: tuple[int, int, int]
) -> None:
    sizes = replace(SMALL, max_prefill_tokens=256)
    gpu = replace(GPU, memory_gib=memory_gib)
    lengths = Lengths(input_mean, 128.0, 1.5 * input_mean**2, 2 * 128.0**2, input_mean * 128.0, 2 * input_mean)
    work = workload(spec, phase, slo_ms, lengths)
    config = node(gpus, 1e5, gpu)
    cells, found = rates(work, config, sizes, gpu)
    combo, cycle, layers = cell
    (stages, position), cycles = cells.combos[combo], cells.cycle_ms[combo, cycle:].tolist()
    oracle = Oracle(work, config, sizes, EFF, gpu)
    where = position.name.lower()
    # The table is closed: a cell claims no more than fewer layers reach, and with one stage what shorter cycles reach.
    own = [c for c in cycles if np.isfinite(c)] if stages == 1 else cycles[:1]
    expected = min(max(oracle.best_rate(j, stages, where, c) for c in own) for j in range(1, layers + 1))
    assert found.rate_tok_per_s[combo, cycle, layers - 1] == pytest.approx(expected, rel=1e-9)


# ---- the common cycle ---------------------------------------------------------------------------------------------------


def test_cycle_grids() -> None:
    sizes = ProfileSettings()
    prefill, decode = (workload(SPEC, phase, 1200.0) for phase in (Phase.PREFILL, Phase.DECODE))
    for stages in (1, 3, 6):
        grid = cycle_grid(prefill, stages, sizes, Mode.CYCLE)
        assert grid[0] == pytest.approx(1200 / (stages + 1.1))
        assert cycle_grid(decode, stages, sizes, Mode.CYCLE)[0] == pytest.approx(1200 / stages)
        assert np.all(np.diff(grid) < 0)
        assert 13 <= len(grid) <= 15  # the settings' passes, and 50 and 70 ms where those are longer
        assert set(grid[13:]) <= {50.0, 70.0}
        assert cycle_grid(decode, stages, sizes, Mode.PAPER).tolist() == [1200 / stages]
    cells = Cells(prefill, sizes, Mode.CYCLE, 6)
    # A prompt of 512, no hand-over: (S + 1 + 2 x 512 / b) c <= SLO = (S + m) c, so b >= 1024 / (m - 1) for m = 1.1, 1.25,
    # 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, whatever S.
    # Then the rungs of 70 ms (below 1200 / 17, one stage) and 50: 2 x 512 / (1200 / c - S - 1).
    for combo, rungs in ((0, [68, 47]), (1, [49]), (4, [52])):
        needed = cells.lone_tokens_needed(combo, np.zeros(1))[:, 0].tolist()
        assert needed[:13] == [10240, 4096, 2048, 1366, 1024, 683, 512, 342, 256, 205, 147, 94, 69]
        assert needed[13 : 13 + len(rungs)] == rungs
        assert np.isfinite(cells.cycle_ms[combo]).sum() == 13 + len(rungs)
    # Three stages, m = 2: a cycle of 240 ms, one of which is for the passes; a hand-over of 60 ms leaves 0.75 of it.
    assert cells.cycle_ms[4, 4] == pytest.approx(240)
    assert cells.lone_tokens_needed(4, np.array([0.0, 60.0]))[4].tolist() == [1024, 1366]
    assert cells.lone_tokens_needed(4, np.array([240.0]))[4].tolist() == [sizes.max_prefill_tokens + 1]


def test_a_lone_prompt_of_the_percentile_must_meet_the_slo() -> None:
    short = Lengths.constant(256.0, 64.0)
    long = replace(short, input_at_percentile=4096.0)
    _, served = rates(workload(SPEC, Phase.PREFILL, 16.0, short), node(1))
    _, refused = rates(workload(SPEC, Phase.PREFILL, 16.0, long), node(1))
    # Two stages: a pass holds 1,024 tokens at most, so m > 1.5 for 256 tokens; 4,096 take four and m > 9.
    first, sixth = (SMALL.prefill_passes.index(m) for m in (1.75, 12.0))
    assert np.all(served.rate_tok_per_s[1, first:-1, 2] > 0)
    assert np.all(refused.rate_tok_per_s[1, :sixth, 2] == 0)
    assert refused.rate_tok_per_s[1, sixth, 2] == served.rate_tok_per_s[1, sixth, 2]
    assert {reason_at(refused, 1, cycle, 2) for cycle in range(sixth)} == {Infeasible.SLO}
    # One stage: a node takes that cycle where longer ones will not do.
    assert np.all(refused.rate_tok_per_s[0, : sixth + 1, 5] == refused.rate_tok_per_s[0, sixth, 5])
    assert refused.rate_tok_per_s[0, sixth, 5] > 0


def test_the_first_token_waits_for_the_hand_over_of_the_kv() -> None:
    # 512 tokens x 3 layers x 1,024 B = 1.57 MB at 2 Gbit/s x 0.8 = 0.2 GB/s: 7.86 ms of 40.
    work = workload(SPEC, Phase.PREFILL, 40.0)
    cells, found = rates(work, node(1, network_gbit_per_s=2.0))
    last = cells.combos.index((2, Position.LAST))
    handover = 512 * 3 * 1024 / 0.2e6
    for cycle, m in enumerate(SMALL.prefill_passes):
        spare = (40 - handover) / (40 / (2 + m)) - 3  # two stages and the wait
        is_met = spare > 0 and 2 * 512 / spare <= SMALL.max_prefill_tokens
        assert bool(found.rate_tok_per_s[last, cycle, 2] > 0) is is_met
    at_once = replace(SMALL, charge_kv_handover=False)
    _, free = rates(work, node(1, network_gbit_per_s=2.0), at_once)
    assert (free.rate_tok_per_s[last, :, 2] > 0).sum() > (found.rate_tok_per_s[last, :, 2] > 0).sum() > 3
    _, paper = rates(work, node(1, network_gbit_per_s=2.0), mode=Mode.PAPER)
    _, paper_free = rates(work, node(1, network_gbit_per_s=2.0), at_once, mode=Mode.PAPER)
    assert np.array_equal(paper.rate_tok_per_s, paper_free.rate_tok_per_s)


def test_sub_batches_of_a_decode_pipeline_come_together() -> None:
    """GPU memory for two of three layers: two GPUs hold them as two inner stages, whose last sub-batch leaves after 3 tau."""
    work, small = workload(SPEC, Phase.DECODE, 20.0), replace(GPU, memory_gib=1.86)
    only_pp = replace(EFF, all_reduce={})  # no factors for tensor parallelism
    cells, found = rates(work, node(2, 1e5, small), SMALL, small, only_pp)
    combo = cells.combos.index((3, Position.MID))
    oracle = Oracle(work, node(2, 1e5, small), SMALL, EFF, small)
    for cycle, cycle_ms in enumerate(cells.cycle_ms[combo]):
        batch, layout = int(found.batch[combo, cycle, 3]), found.layouts[found.layout[combo, cycle, 3]]
        if not batch:
            continue
        assert (layout.tp, layout.pp, layout.replicas) == (1, 2, 1)
        inner = oracle.inner(4, 3, "mid", 2, 1)
        tau = max(oracle.stage_ms(stage, batch, 1, work.lengths.decode_context_mean) for stage in inner)
        assert 3 * tau <= cycle_ms
        assert found.rate_tok_per_s[combo, cycle, 3] == pytest.approx(2 * batch / cycle_ms * 1000)
    assert found.batch[combo, :, 3].any()


def test_a_pipeline_inside_the_node_runs_at_its_share_of_the_cycle() -> None:
    # 10 KV heads and 40 heads at 8 GPUs: TP 1 or 2, so a model that needs all eight GPUs needs inner stages.
    phi = catalog().models["microsoft/phi-4"]
    work = workload(phi, Phase.DECODE, 60.0, Lengths.constant(1155.0, 211.0))
    small = replace(GPU, memory_gib=9.0)
    config = node(8, 1e5, small)
    cells, found = rates(work, config, SMALL, small)
    layout = found.layouts[found.layout[0, 0, 39]]
    assert layout.tp in (1, 2)
    assert layout.pp >= 4
    batch = found.batch[0, 0, 39]
    # One stage: the node's own cycle, the time its batch takes.
    cycle_ms = layout.replicas * layout.pp * batch / found.rate_tok_per_s[0, 0, 39] * 1000
    assert cycle_ms <= cells.cycle_ms[0, 0]
    oracle = Oracle(work, config, SMALL, EFF, small)
    oracle.sorts_logits = False  # unlike the made-up models, phi-4 asks for no likeliest tokens
    shape = (layout.tp, layout.pp, layout.replicas)
    assert oracle.fits(shape, 40, 1, "only", cycle_ms * (1 + 1e-9), int(batch), lone=False)
    assert not oracle.fits(shape, 40, 1, "only", cycle_ms * (1 - 1e-9), int(batch), lone=False)
    bigger = next(size for size in SMALL.cuda_graph_batch_sizes if size > batch)
    assert not oracle.fits(shape, 40, 1, "only", cycle_ms, bigger, lone=False)


def test_paper_mode_is_rate_over_time_without_positions() -> None:
    work = workload(SPEC, Phase.DECODE, 20.0)
    cells, paper = rates(work, node(2, network_gbit_per_s=0.001), mode=Mode.PAPER)
    assert cells.cycle_ms[:, 0].tolist() == [20.0 if s == 1 else 20.0 / s for s, _ in cells.combos]
    by_stage = {s: [paper.rate_tok_per_s[i, 0] for i, (t, _) in enumerate(cells.combos) if t == s] for s in (2, 3)}
    for curves in by_stage.values():
        assert all(np.array_equal(curve, curves[0]) for curve in curves)
    cycle_cells, cycle = rates(work, node(2))
    mid = cycle_cells.combos.index((3, Position.MID))
    # b / tau with tau <= c is at least b / c.
    assert np.all(paper.rate_tok_per_s[mid, 0] >= cycle.rate_tok_per_s[mid, 0])


# ---- properties ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    spec=st.sampled_from([SPEC, WINDOWED, EXPERTS]),
    phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]),
    gpus=st.sampled_from([1, 2, 8]),
    memory_gib=st.floats(2.0, 8.0),
    slo_ms=st.floats(2.0, 80.0),
    mode=st.sampled_from(list(Mode)),
)
def test_rates_fall_with_layers_and_batches_rise_with_the_slo(
    spec, phase: Phase, gpus: int, memory_gib: float, slo_ms: float, mode: Mode
) -> None:
    gpu = replace(GPU, memory_gib=memory_gib)
    short = Lengths.constant(64.0, 64.0)
    _, found = rates(workload(spec, phase, slo_ms, short), node(gpus, 100.0, gpu), SMALL, gpu, mode=mode)
    _, looser = rates(workload(spec, phase, 1.7 * slo_ms, short), node(gpus, 100.0, gpu), SMALL, gpu, mode=mode)
    assert np.all(np.diff(found.rate_tok_per_s, axis=-1) <= 0)
    assert np.all((looser.rate_tok_per_s > 0).any(axis=1) >= (found.rate_tok_per_s > 0).any(axis=1))
    assert np.all((found.outcome == FEASIBLE) >= (found.rate_tok_per_s > 0))


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
def test_twice_the_gpus_reach_twice_the_rate_or_more(phase: Phase) -> None:
    work = workload(SPEC, phase, 20.0)
    found = [rates(work, node(count))[1].rate_tok_per_s[0] for count in (1, 2, 4, 8)]
    for smaller, larger in pairwise(found):
        assert np.all(larger >= 2 * smaller * (1 - 1e-12))


@settings(max_examples=25, deadline=None)
@given(
    spec=st.sampled_from([SPEC, WINDOWED]),
    gpus=st.sampled_from([1, 2, 4]),
    memory_gib=st.floats(2.2, 4.0),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
)
def test_littles_law_keeps_within_the_kv_cache(spec, gpus: int, memory_gib: float, kv_dtype: str) -> None:
    gpu = replace(GPU, memory_gib=memory_gib)
    work = workload(spec, Phase.DECODE, 50.0, kv_dtype=kv_dtype)
    cells, found = rates(work, node(gpus, 1e5, gpu), SMALL, gpu)
    context, per_token = 512 + 64.0, 2 * 4 * 64 * (2 if kv_dtype == "bf16" else 1)
    for i, (stages, position) in enumerate(cells.combos):
        if position not in (Position.ONLY, Position.FIRST):
            continue
        for layers in range(1, 7):
            in_flight = found.rate_tok_per_s[i, :, layers - 1] * stages * cells.cycle_ms[i] / 1000  # X * TPOT
            if stages == 1:  # at the node's own cycle
                own = [found.layouts[at].replicas * found.layouts[at].pp for at in found.layout[i, :, layers - 1]]
                in_flight = np.where(in_flight > 0, own * found.batch[i, :, layers - 1], 0)
            held = sum(min(context, w or np.inf) for w in spec.layer_windows[:layers]) * per_token
            weights = layers * 2 * (1024 * 24 * 64 + 1024 * 1024 + 3 * 1024 * 4096 + 2048)
            room = gpus * (0.92 * memory_gib - 1.5) * GIB - weights
            assert np.all(in_flight * held <= np.maximum(room, 0) * (1 + 1e-9))


def test_fp8_kv_holds_exactly_twice_the_tokens() -> None:
    gpu = replace(GPU, memory_gib=3.0)
    sizes = replace(SMALL, cuda_graph_batch_sizes=tuple(range(1, 4000)))
    # Mean contexts of 4,001 and 8,002 tokens: the same bytes, so the same number of sequences.
    work = workload(SPEC, Phase.DECODE, 1e6, Lengths.constant(4000.0, 2.0))
    longer = workload(SPEC, Phase.DECODE, 1e6, Lengths.constant(8001.0, 2.0), kv_dtype="fp8")
    batches = [rates(w, node(1, 1e5, gpu), sizes, gpu, stages=1)[1].batch[0, 0, 5] for w in (work, longer)]
    assert batches[0] == batches[1] > 20


# ---- network ------------------------------------------------------------------------------------------------------------


def test_the_network_caps_a_node() -> None:
    # Decode takes in the KV of 512 prompt tokens x 6 layers x 1024 B per 128 output tokens: 24,576 B a token, and as a
    # middle stage 2,048 B of activations a token. 0.1 Gbit/s at 0.8 is 10 MB/s.
    cells, found = rates(workload(SPEC, Phase.DECODE, 200.0), node(1, network_gbit_per_s=0.1))
    assert found.rate_tok_per_s[0, 0, 5] == pytest.approx(10e6 / 24576)
    mid = cells.combos.index((2, Position.MID))
    assert found.rate_tok_per_s[mid, 0, 2] == pytest.approx(10e6 / (3 * 4096 + 2048))
    work, sender_pays = workload(SPEC, Phase.DECODE, 200.0), replace(SMALL, charge_decode_kv_in=False)
    _, free = rates(work, node(1, network_gbit_per_s=0.1), sender_pays)
    # A single stage then sends nothing: the batch of its own choice counts, and the time that takes.
    alone = Oracle(work, node(1), sender_pays).best_rate(6, 1, "only", 200.0)
    assert free.rate_tok_per_s[0, 0, 5] == pytest.approx(alone)
    # Prefill sends 1024 B of KV per layer and token.
    _, prefill = rates(workload(SPEC, Phase.PREFILL, 400.0), node(1, network_gbit_per_s=0.1))
    assert prefill.rate_tok_per_s[0, 0, 5] == pytest.approx(10e6 / 6144)


def test_a_prefix_cache_serves_tokens_it_does_not_compute() -> None:
    # The lone prompt has only its new half to compute, and every computed token stands for two served.
    work, sizes = workload(SPEC, Phase.PREFILL, 12.0), replace(SMALL, max_prefill_tokens=16384)
    _, none = rates(work, node(1), sizes)
    _, half = rates(replace(work, prefix_hit_rate=0.5), node(1), sizes)
    ratio = half.rate_tok_per_s[0, 0, 5] / none.rate_tok_per_s[0, 0, 5]
    assert 1.7 < ratio < 2.0  # new tokens attend to longer contexts than the mean of all


# ---- reasons ------------------------------------------------------------------------------------------------------------


def test_only_memory_fails() -> None:
    gpu = replace(GPU, memory_gib=1.7)
    _, found = rates(workload(SPEC, Phase.DECODE, 1e5), node(1, 1e5, gpu), SMALL, gpu)
    assert reason_at(found, 0, 0, 5) is Infeasible.MEMORY
    assert found.rate_tok_per_s[0, 0, 5] == 0


def test_only_the_kv_cache_fails() -> None:
    # 2.05 x 0.92 - 1.5 = 0.39 GiB: 6 layers and both ends are 0.30 GiB; a context of 60,000 is 0.34 GiB.
    gpu = replace(GPU, memory_gib=2.05)
    _, found = rates(workload(SPEC, Phase.DECODE, 1e5, Lengths.constant(60000.0, 10.0)), node(1, 1e5, gpu), SMALL, gpu)
    assert reason_at(found, 0, 0, 5) is Infeasible.KV_CACHE
    _, short = rates(workload(SPEC, Phase.DECODE, 1e5, Lengths.constant(600.0, 10.0)), node(1, 1e5, gpu), SMALL, gpu)
    assert reason_at(short, 0, 0, 5) is None


def test_only_the_slo_fails() -> None:
    _, found = rates(workload(SPEC, Phase.DECODE, 0.1), node(1))
    assert reason_at(found, 0, 0, 5) is Infeasible.SLO


def test_no_layout() -> None:
    # 15 heads over 2 GPUs: only replicas and inner stages; with none of those legal the reason is the layout.
    _, found = rates(workload(replace(SPEC, heads=15, kv_heads=5), Phase.DECODE, 20.0), node(2))
    assert {layout.tp for layout in found.layouts} == {1}


def test_closing_lowers_and_names_a_reason() -> None:
    rate = np.array([[5.0, 7.0, 3.0], [0.0, 4.0, 2.0]])
    outcome = np.array([[FEASIBLE] * 3, [2, FEASIBLE, FEASIBLE]], dtype=np.int8)
    assert close_over_layers(rate, outcome).tolist() == [[5.0, 5.0, 3.0], [0.0, 0.0, 0.0]]
    assert outcome.tolist()[1] == [2, REASONS.index(Infeasible.LAYOUT), REASONS.index(Infeasible.LAYOUT)]
