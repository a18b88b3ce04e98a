"""The error table: by hand, against the raw collection's tables, and on models that no factor was fitted to."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from profiling_cases import EFF, GPU, SPEC, catalog

from catalogs.errors import CoralError
from catalogs.layer_times import LayerTime, StepTime, by_gpu, shared_helix, shared_layer_grid, shared_points
from catalogs.silicon import FITTED_WIDE, HELD_OUT_WIDE, is_installed, silicon_layer_times, silicon_steps
from catalogs.types import Phase
from tasks.profiling.check import ErrorLine, check_layers, check_steps, layer_ms, step_ms
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.roofline import Roofline
from tasks.profiling.shapes import ModelShape

SHARED = Path(os.environ.get("CORAL_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="shared measurements are not here: set CORAL_SHARED_DATA")
needs_silicon = pytest.mark.skipif(not is_installed(), reason="the extra `silicon` is not installed")
PLAIN = ProfileSettings(decode_derate=1.0, prefill_derate=1.0)


def row(**values) -> LayerTime:
    """A decode layer of 8 sequences at 1,000 tokens on the made-up GPU, unmeasured."""
    given = {
        "source": "made", "row": 1, "gpu": "X100", "model": SPEC, "weight_dtype": "bf16", "tp": 1, "phase": Phase.DECODE,
        "tokens": 8, "batch": 8, "context": 1000, "ops": {}, "total": None, "head": None, "is_fitted": True,
    } | values  # fmt: skip
    return LayerTime(**given)


def of(lines: tuple[ErrorLine, ...], op: str, **wanted: str) -> ErrorLine:
    (line,) = [x for x in lines if x.op == op and all(getattr(x, name) == value for name, value in wanted.items())]
    return line


def test_errors_by_hand() -> None:
    modelled = layer_ms(row(), GPU, EFF)
    # attention: 8 sequences x 1000 tokens x 2 x 4 heads x 64 x 2 bytes at 1700 GB/s and 0.01 ms
    assert modelled["attn"] == pytest.approx(8 * 1000 * 1024 / 1.7e9 + 0.01)
    rows = [row(ops={"attn": modelled["attn"] / factor}) for factor in (1.2, 1.0, 0.9)]
    rows.append(row(ops={"attn": modelled["attn"] / 1.5}, is_fitted=False))
    lines = check_layers(rows, {"X100": GPU}, {"X100": EFF}).lines
    line = of(lines, "attn", split="fitted")
    assert (line.rows, line.gpu, line.phase, line.source) == (3, "X100", "decode", "made")
    assert line.mape == pytest.approx((20 + 0 + 10) / 3)
    assert line.bias == pytest.approx((20 + 0 - 10) / 3)
    assert line.p90 == pytest.approx(10 + 0.8 * 10)
    assert of(lines, "attn", split="held-out").mape == pytest.approx(50)


def test_an_operation_a_model_has_not_counts_nowhere() -> None:
    ops = {"gemm": 0.1, "attn": 0.1, "moe": 0.0, "ar": 0.0, "ew": 0.01}
    lines = check_layers([row(ops=ops, total=0.21)], {"X100": GPU}, {"X100": EFF}).lines
    assert sorted(line.op for line in lines) == ["attn", "ew", "gemm", "layer"]


def test_what_cannot_be_compared_is_said_once() -> None:
    rows = [row(gpu="Y100", ops={"attn": 1.0})] * 2 + [row(tp=8, ops={"ar": 1.0})] * 2
    found = check_layers(rows, {"X100": GPU}, {"X100": replace(EFF, all_reduce={})})
    assert found.lines == ()
    assert found.notes == (
        "made: Y100 has no efficiency factors",
        "made, six at tp 8: X100: no all-reduce factors for 8 GPUs",
    )


def test_a_step_with_prompts_in_it() -> None:
    # Twice the requests' length in prompt and answer halves the prompts per step; contexts are 512 + 64 and 448 + 128.
    point = StepTime("made", "X100", SPEC, "bf16", "vLLM 1.0.0", 1, Phase.DECODE, 16, 512, 128, 1.0)
    other = replace(point, input_tokens=448, output_tokens=256)
    prompts = [
        16 / of_.output_tokens * step_ms(replace(of_, phase=Phase.PREFILL, batch=1), GPU, EFF, PLAIN)
        for of_ in (point, other)
    ]
    steps = [step_ms(point, GPU, EFF, PLAIN) - prompts[0], step_ms(other, GPU, EFF, PLAIN) - prompts[1]]
    assert steps[0] == pytest.approx(steps[1])
    # 16 sequences of 576 tokens in 6 layers: the least is their KV and the weights at 2000 GB/s
    weights = 6 * 2 * (1024 * 24 * 64 + 1024**2 + 3 * 1024 * 4096) + 2 * 32000 * 1024
    assert steps[0] > (weights + 16 * 576 * 6 * 1024) / 2e9
    derated = step_ms(point, GPU, EFF, ProfileSettings(decode_derate=0.5, prefill_derate=0.5))
    assert derated == pytest.approx(2 * step_ms(point, GPU, EFF, PLAIN))


def test_a_step_holds_no_more_sequences_than_memory() -> None:
    point = StepTime("made", "X100", SPEC, "bf16", "vLLM 1.0.0", 1, Phase.DECODE, 1e6, 512, 128, 1.0)
    small = replace(GPU, memory_gib=3.0)
    # usable 3 x 0.92 - 1.5 = 1.26 GiB less 0.31 of weights; 576 tokens x 6 layers x 1,024 bytes: 288 sequences
    room = (3 * 0.92 - 1.5) * 2**30 - (
        6 * 2 * (1024 * 24 * 64 + 1024**2 + 3 * 1024 * 4096 + 2048) + 2 * 32000 * 1024 * 2
    )
    most = room / (576 * 6 * 1024)
    assert step_ms(point, small, EFF, PLAIN) == pytest.approx(step_ms(replace(point, batch=most), small, EFF, PLAIN))


def test_greedy_steps_sort_nothing() -> None:
    point = StepTime("made", "X100", SPEC, "bf16", "vLLM 0.4.3", 1, Phase.DECODE, 16, 512, 1000, 1.0)
    sorting = step_ms(point, GPU, EFF, PLAIN) - step_ms(replace(point, draws_likeliest=False), GPU, EFF, PLAIN)
    # the 16 tokens of a step and the first token of 16 / 1000 prompts
    assert sorting == pytest.approx(16.016 * 32000 * 1080 / 2e9)


# ---- against measurements ---------------------------------------------------------------------------------------------


@needs_shared
def test_fitted_layers_stay_within_what_they_were() -> None:
    rows = shared_layer_grid(catalog())
    assert len(rows) == 2220
    assert {gpu: len(mine) for gpu, mine in by_gpu(rows).items()} == {
        "H100-SXM": 592, "H200-SXM": 592, "L40S": 592, "A100-80GB-SXM": 444,
    }  # fmt: skip
    lines = check_layers(rows, catalog().gpus, catalog().efficiencies).lines
    most = {"prefill": 4.5, "decode": 6.0}
    layers = [line for line in lines if line.op == "layer"]
    assert len(layers) == 8
    for line in layers:
        assert line.split == "fitted"
        assert line.mape <= most[line.phase], line
        assert abs(line.bias) < 1.2, line
    assert all(line.mape < 8.0 for line in lines if line.op == "lm")


@needs_shared
def test_helix_layers_agree_with_the_errors_stated_for_their_fits() -> None:
    # MAPE of the raw collection's own errors.csv for decode, which assumed the same context.
    stated = {
        ("Helix L4", "fitted"): 2.8, ("Helix L4", "held-out"): 4.5, ("Helix T4", "held-out"): 9.3,
        ("Helix A100", "held-out"): 18.7, ("Helix V100", "fitted"): 15.5, ("Helix T4x4", "held-out"): 7.3,
    }  # fmt: skip
    lines = check_layers(shared_helix(catalog()), catalog().gpus, catalog().efficiencies).lines
    for (source, split), mape in stated.items():
        assert of(lines, "layer", source=source, split=split, phase="decode").mape == pytest.approx(mape, abs=0.06)


@needs_shared
def test_published_points_that_say_nothing_are_named() -> None:
    points, skipped = shared_points(catalog())
    assert [(p.gpu, p.phase.value, p.batch) for p in points if p.gpu == "A10G"] == [
        *(("A10G", "decode", n) for n in (1, 4, 16, 64)), *(("A10G", "prefill", n) for n in (1, 4, 16, 64)),
    ]  # fmt: skip
    assert len(points) + len(skipped) == 18
    # 75 tokens per second one at a time is 13.3 ms a token
    (alone,) = [p for p in points if p.gpu == "A100-40GB-SXM"]
    assert alone.ms == pytest.approx(1000 / 75)
    table = check_steps(points, catalog().gpus, catalog().efficiencies, ProfileSettings())
    assert {line.op for line in table.lines} == {"step", "first_token"}
    assert any("wait for one another" in note for note in table.notes)


def test_the_raw_data_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CORAL_SHARED_DATA", str(tmp_path))
    with pytest.raises(CoralError, match=r"perf/layer_grid.csv is not in .* To fix: set CORAL_SHARED_DATA"):
        shared_layer_grid(catalog())


@needs_silicon
@needs_shared
def test_kernel_tables_are_read_as_the_raw_collection_read_them() -> None:
    # Two readers of the same tables: attention, experts, all-reduces at their exact shapes, products interpolated.
    grid = {
        (r.model.model, r.tp, r.phase, r.batch, r.context): r for r in shared_layer_grid(catalog()) if r.gpu == "L40S"
    }
    off: dict[str, list[float]] = {}
    for mine in silicon_layer_times(catalog(), "L40S", ("Qwen/Qwen3-32B", "openai/gpt-oss-20b")):
        theirs = grid[mine.model.model, mine.tp, mine.phase, mine.batch, mine.context]
        for op, ms in mine.ops.items():
            if theirs.ops[op]:
                off.setdefault(op, []).append(abs(ms / theirs.ops[op] - 1))
    worst = {"gemm": 0.015, "attn": 0.01, "moe": 1e-3, "ar": 1e-3, "ew": 1e-3}
    assert {op: sum(each) / len(each) <= worst[op] for op, each in off.items()} == dict.fromkeys(worst, True)


@needs_silicon
@pytest.mark.parametrize("gpu", ["H100-SXM", "H200-SXM", "A100-80GB-SXM", "L40S"])
def test_layers_of_models_that_were_not_fitted(gpu: str) -> None:
    lines = check_layers(silicon_layer_times(catalog(), gpu), catalog().gpus, catalog().efficiencies).lines
    target = {"prefill": 5.6, "decode": 7.2}
    layers = [line for line in lines if line.op == "layer"]
    assert [line.split for line in layers] == ["held-out", "held-out"]
    for line in layers:
        assert line.mape <= target[line.phase], line
        assert catalog().efficiencies[gpu].rel_error[line.phase] == pytest.approx(line.mape / 100, abs=6e-4)


@needs_silicon
@pytest.mark.parametrize(
    ("gpu", "prefill", "decode"),
    [("H100-SXM", 5.6, 7.2), ("H200-SXM", 5.6, 7.2), ("L40S", 5.6, 7.2), ("A100-80GB-SXM", 10.0, 7.2)],
)
def test_few_wide_experts_that_were_not_fitted(gpu: str, prefill: float, decode: float) -> None:
    rows = silicon_layer_times(catalog(), gpu, (HELD_OUT_WIDE,), source="Mixtral")
    layers = {x.phase: x for x in check_layers(rows, catalog().gpus, catalog().efficiencies).lines if x.op == "layer"}
    assert {x.split for x in layers.values()} == {"held-out"}
    assert layers["prefill"].mape <= prefill
    assert layers["decode"].mape <= decode
    assert {row.is_fitted for row in silicon_layer_times(catalog(), gpu, (FITTED_WIDE,))} == {True}


@pytest.mark.parametrize(("gpu", "ground"), [("H100-SXM", "fitted"), ("L40S", "fitted"), ("A100-80GB-SXM", "borrowed")])
def test_ground_under_few_wide_experts(gpu: str, ground: str) -> None:
    shape = ModelShape(catalog().models[FITTED_WIDE], "bf16", "bf16")
    assert Roofline(catalog().gpus[gpu], catalog().efficiencies[gpu], shape).provenance(1).value == ground


@needs_silicon
def test_decode_steps_of_serving_engines() -> None:
    rows = silicon_steps(catalog(), ("H100-SXM", "H200-SXM"))
    assert len(rows) > 290
    lines = check_steps(rows, catalog().gpus, catalog().efficiencies, ProfileSettings()).lines
    assert {(line.source.split(", ")[1], line.gpu, line.split) for line in lines} == {
        ("qwen3-32b bf16", "H100-SXM", "held-out"), ("gpt-oss-120b mxfp4", "H100-SXM", "held-out"),
        ("gpt-oss-120b mxfp4", "H200-SXM", "held-out"), ("llama-3.1-70b fp8", "H100-SXM", "fitted"),
        ("llama-3.1-70b fp8", "H200-SXM", "held-out"),
    }  # fmt: skip
    for line in lines:
        assert line.mape <= 8.0, line
        assert abs(line.bias) <= 3.0, line
