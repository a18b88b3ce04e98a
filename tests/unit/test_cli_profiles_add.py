"""``coral profiles add``: measurements shown beside the model and attached to a scenario; nothing written on a fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catalogs import load_scenario
from flows import cli
from flows.build_inputs import resolve_inputs
from flows.settings import BuildSettings
from tasks.profiling.memory import ProfileSettings

Run = Callable[..., tuple[int, str, str]]
HEAD = "node_config,model,phase,layers,position,stages,cycle_ms,throughput_tok_per_s,tp,pp,replicas,as_of\n"
ROW = "L40Sx4,qwen3-8b,decode,36,only,1,,4000,1,1,4,2025-05-01\n"
BENCH = {
    "date": "20260715-101500", "model_id": "Qwen/Qwen3-8B", "max_concurrency": 16, "duration": 100.0, "completed": 100,
    "failed": 0, "total_input_tokens": 51200, "total_output_tokens": 51200, "request_throughput": 1.0,
    "output_throughput": 512.0, "mean_ttft_ms": 120.0, "mean_tpot_ms": 30.0,
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs ``coral`` in this process, in a folder with a starter scenario in ``my``: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", *args])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    assert call("init", "my")[0] == 0
    return call


def test_rates_are_shown_beside_the_model_and_attached(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(HEAD + ROW)
    code, out, err = run("profiles", "add", "rates.csv", "-s", "my/scenario.yaml")
    assert code == 0
    assert out.splitlines()[1].split()[:6] == ["L40Sx4", "qwen3-8b/decode", "36", "only", "of", "1"]
    assert "4,000" in out
    assert "my/scenario.yaml names it now" in err
    (tmp_path / "rates.csv").write_text(HEAD + ROW.replace("4000", "4100"))
    code, out, err = run("profiles", "add", "rates.csv", "-s", "my", "--json")
    assert (code, json.loads(out)[0]["rate"]["throughput_tok_per_s"]) == (0, 4100)
    assert "names it now" not in err
    loaded = load_scenario("my/scenario.yaml")
    assert [r.throughput_tok_per_s for r in loaded.measured] == [4100]  # the same cell: replaced


def test_a_rate_far_from_the_model_asks_for_its_unit(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(HEAD + ROW.replace("4000", "4"))
    assert "check the unit of row 1" in run("profiles", "add", "rates.csv", "-s", "my")[1]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (ROW.replace("4000", "0"), "rates.csv, row 1, throughput_tok_per_s: is zero"),
        (ROW.replace("qwen3-8b", "phi-4").replace("36", "40"), "unknown model of this scenario 'microsoft/phi-4'"),
        (ROW.replace("L40Sx4", "H100-SXMx8").replace("1,1,4", "1,1,8"), "unknown node configuration of this scenario"),
        (ROW.replace("36,only,1,", "9,mid,4,"), "4 stages need 4 nodes, library.n_max is 3"),
        (ROW.replace("36,only,1,,", "36,only,1,49,"), "cycle_ms: 49 is not a cycle of 1 stages"),
    ],
)
def test_nothing_is_written_on_a_fault(run: Run, tmp_path: Path, row: str, text: str) -> None:
    before = (tmp_path / "my" / "scenario.yaml").read_text()
    (tmp_path / "rates.csv").write_text(HEAD + row)
    code, out, err = run("profiles", "add", "rates.csv", "-s", "my/scenario.yaml")
    assert (code, out) == (2, "")
    assert text in err
    assert not (tmp_path / "my" / "measured.csv").exists()
    assert (tmp_path / "my" / "scenario.yaml").read_text() == before


def test_a_benchmark_sets_the_derating_of_its_gpu_and_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    code, _, err = run("profiles", "add", "bench.json", "-s", "my")
    assert code == 2
    assert "does not say what it ran on. To fix: give --gpu and --tp" in err
    code, out, _ = run("profiles", "add", "bench.json", "--gpu", "l40s", "--tp", "1", "-s", "my")
    assert code == 0
    derate = float(out.split()[-1])
    loaded = load_scenario("my/scenario.yaml")
    assert [(c.gpu, c.model, c.phase.value) for c in loaded.calibrations] == [("L40S", "Qwen/Qwen3-8B", "decode")]
    assert loaded.calibrations[0].derate == pytest.approx(derate, abs=6e-4)
    # It reaches the profiles of this model alone, and makes them other profiles.
    inputs, plain = resolve_inputs(BuildSettings("my", tmp_path)), resolve_inputs(BuildSettings("my", tmp_path), loaded)
    for item in inputs.workloads:
        settings, model = inputs.settings_of(item), item.workload.model.alias
        own = settings.derate(item.workload.phase, "L40S")
        is_hit = model == "qwen3-8b" and item.workload.phase.value == "decode"
        assert (own == loaded.calibrations[0].derate) == is_hit
        assert settings.derate(item.workload.phase, "L4") == ProfileSettings().derate(item.workload.phase)
        assert [p.key for p in inputs.profile_inputs(item)] == [p.key for p in plain.profile_inputs(item)]
    metadata = {**BENCH, "gpu": "L40S", "tp": "2", "model_id": "/models/q"}
    (tmp_path / "second.json").write_text(json.dumps(metadata))
    code, _, err = run("profiles", "add", "second.json", "-s", "my")
    assert code == 2
    assert "give --model where names differ" in err
    assert run("profiles", "add", "second.json", "-s", "my", "--model", "qwen3-8b")[0] == 0
    assert load_scenario("my/scenario.yaml").calibrations[0].benchmarks == 2


def test_a_shipped_scenario_is_not_written_to(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(HEAD + ROW)
    code, _, err = run("profiles", "add", "rates.csv", "-s", "core")
    assert code == 2
    assert "core is a shipped scenario" in err
