"""De-ratings from vLLM benchmark files: what is read, the mapping by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from profiling_cases import EFF, GPU, SPEC, oracle_layer_ms

from catalogs.errors import CoralError, InputError
from catalogs.types import Phase
from catalogs.vllm_bench import read_bench
from tasks.profiling.calibrate import derates_of
from tasks.profiling.memory import ProfileSettings
from tasks.profiling.shapes import ModelShape

STATED = ProfileSettings().prefill_derate
SHAPE = ModelShape(SPEC, "bf16", "bf16")


def document(**changes) -> dict:
    """As ``vllm bench serve --save-result`` writes it: 100 requests of 512 + 128 tokens in 50 s."""
    return {
        "date": "20260715-101500", "backend": "vllm", "label": None, "model_id": "acme/six", "tokenizer_id": "acme/six",
        "num_prompts": 100, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 16, "duration": 50.0,
        "completed": 100, "failed": 0, "total_input_tokens": 51200, "total_output_tokens": 12800,
        "request_throughput": 2.0, "request_goodput": None, "output_throughput": 256.0, "total_token_throughput": 1280.0,
        "mean_ttft_ms": 20.0, "median_ttft_ms": 19.0, "mean_tpot_ms": 8.0, "median_tpot_ms": 8.0, "p99_tpot_ms": 9.0,
    } | changes  # fmt: skip


def run_of(tmp_path: Path, **changes):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(document(**changes)))
    (run,) = read_bench(path)
    return run


def test_what_is_read(tmp_path: Path) -> None:
    run = run_of(tmp_path, gpu="L40S", tp="2")
    assert (run.model_id, run.request_per_s, run.max_concurrency) == ("acme/six", 2.0, 16)
    assert (run.lengths.input_mean, run.lengths.output_mean) == (512, 128)
    assert run.decoding == pytest.approx(256 * 8 / 1000)  # Little: 2.048 sequences
    assert dict(run.metadata) == {"gpu": "L40S", "tp": "2"}
    assert run.ran_on.isoformat() == "2026-07-15"
    detailed = run_of(tmp_path, input_lens=[100, 300, 400], output_lens=[10, 0, 30])  # the second failed
    assert detailed.lengths.input_mean == 250
    assert detailed.lengths.cross_mean == (100 * 10 + 400 * 30) / 2


def test_several_runs_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(json.dumps(document(mean_tpot_ms=t)) for t in (8.0, 9.0)) + "\n")
    assert [(run.line, run.mean_tpot_ms) for run in read_bench(path)] == [(1, 8.0), (2, 9.0)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mean_tpot_ms": 0.0}, "mean_tpot_ms: is zero"),
        ({"mean_ttft_ms": float("nan")}, "mean_ttft_ms: is not a number"),
        ({"output_throughput": None}, "output_throughput: is missing"),
        ({"model_id": None}, "model_id: is missing"),
        ({"completed": 0}, "completed: is zero"),
        ({"failed": 10}, "failed: of 100 completed requests"),
        ({"request_throughput": 120.0}, "request_throughput: is not completed / duration = 2"),
    ],
)
def test_a_run_that_measured_nothing_is_refused(tmp_path: Path, changes: dict, named: str) -> None:
    with pytest.raises(InputError) as caught:
        run_of(tmp_path, **changes)
    assert str(caught.value).startswith(f"bench.json, row 1, {named}")


def test_no_json(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{\nno")
    with pytest.raises(InputError, match="row 1: is not JSON"):
        read_bench(tmp_path / "b.json")
    with pytest.raises(InputError, match="does not exist"):
        read_bench(tmp_path / "absent.json")


def roofline_ms(phase: Phase, n: float, context: float) -> float:
    """Six layers, embedding and head, by the formulas as written down (apart from the code under test)."""
    layers = sum(oracle_layer_ms(SPEC, i, n, 1, phase, context, EFF) for i in range(6))
    embedding = 4 * n * 1024 / (2000 * 1e6)
    rows = max(1.0, n / 512) if phase is Phase.PREFILL else n
    compute, memory = 2 * rows * 1024 * 32000 / (1e12 * 0.8), (2 * 1024 * 32000 + 2 * rows * 33024) / (2000 * 1e6 * 0.9)
    sampling = rows * 32000 * 1080 / (2000 * 1e6)  # the sort of a llama's logits
    return layers + embedding + (compute**2 + memory**2) ** 0.5 + 0.005 + sampling


def test_the_mapping_by_hand(tmp_path: Path) -> None:
    # One request at a time: TTFT is a pass over 512 tokens, TPOT a step of one sequence at 512 + 64 tokens.
    prompt, step = roofline_ms(Phase.PREFILL, 512, 512), roofline_ms(Phase.DECODE, 1, 576)
    ttft, tpot = prompt / 0.75, step / 0.9
    rate = 1000 / (ttft + 128 * tpot)
    alone = run_of(
        tmp_path, max_concurrency=1, mean_ttft_ms=ttft, duration=100 / rate, request_throughput=rate,
        output_throughput=128 * rate, mean_tpot_ms=tpot,
    )  # fmt: skip
    prefill, decode = derates_of(alone, GPU, EFF, SHAPE, 1)
    assert (prefill.phase, decode.phase) == (Phase.PREFILL, Phase.DECODE)
    assert prefill.derate == pytest.approx(0.75)
    assert decode.derate == pytest.approx(0.9)
    assert (prefill.batch, decode.batch) == (512, pytest.approx(128 * rate * tpot / 1000))

    # Many at once: 2 requests/s, of whose time 2 x prompt / 0.95 goes to prompts; 256 tok/s x 0.5 ms = 0.128 sequences.
    busy = run_of(tmp_path, mean_tpot_ms=0.5)
    (found,) = derates_of(busy, GPU, EFF, SHAPE, 1)
    assert found.derate == pytest.approx(step / (0.5 * (1 - 2.0 * prompt / 1000 / 0.95)))
    (known,) = derates_of(busy, GPU, EFF, SHAPE, 1, prefill_derate=0.4)
    assert known.derate == pytest.approx(step / (0.5 * (1 - 2.0 * prompt / 1000 / 0.4)))
    more = run_of(tmp_path, mean_tpot_ms=1.0, output_throughput=32000.0)  # 32 sequences
    (found,) = derates_of(more, GPU, EFF, SHAPE, 1)
    own = roofline_ms(Phase.DECODE, 32, 576)
    assert found.derate == pytest.approx(own / (1.0 * (1 - 2.0 * prompt / 1000 / 0.95)))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoralError, match=r"decode takes .* ms, the roofline of X100 tp 1 says .*a de-rating of 0\.0"):
        derates_of(run_of(tmp_path, mean_tpot_ms=800.0), GPU, EFF, SHAPE, 1)
    with pytest.raises(CoralError, match="16 heads do not divide by 3"):
        derates_of(run_of(tmp_path), GPU, EFF, SHAPE, 3)
    flood = {"completed": 100000, "total_input_tokens": 51200000, "total_output_tokens": 100000}
    with pytest.raises(CoralError, match="of the time, so the run says little about decode"):
        derates_of(run_of(tmp_path, **flood, request_throughput=2000.0, output_throughput=2000.0), GPU, EFF, SHAPE, 1)
