"""``coral profiles check`` and ``fit``: tables on stdout, notes on stderr, errors as one line."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catalogs import load_catalog
from catalogs.catalog import read_efficiencies
from flows import cli
from flows.cli_profiles_check import error_table
from tasks.profiling.check import ErrorLine

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("CORAL_SHARED_DATA", ROOT.parent / "shared" / "data"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="shared measurements are not here: set CORAL_SHARED_DATA")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``coral`` in this process: (exit code, stdout, stderr)."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", *args])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def line(split: str, op: str, mape: float, phase: str = "decode") -> ErrorLine:
    return ErrorLine("made", split, "L40S", phase, op, 12, mape, -1.5, 9.0)


def test_the_table_keeps_fitted_and_held_out_apart() -> None:
    rows = [
        line("fitted", "layer", 3.0),
        line("fitted", "gemm", 2.0),
        line("held-out", "layer", 5.0),
        line("held-out", "ar", 7.0),
    ]
    text = error_table(rows)
    assert text[0] == "Held out: no factor was fitted to these"
    assert text[3:5] == ["", "Fitted to"]
    held, fitted = text[2], text[6]
    assert held.split() == ["made", "L40S", "decode", "layer", "12", "5.0", "-1.5", "9.0", "7.0"]
    assert fitted.split()[-1] == "2.0"
    # each operation stands below its name
    assert held.rindex("7.0") + 3 == text[1].index(" ar ") + 3
    assert all(len(row) <= 120 for row in text)


@needs_shared
def test_check_as_json(run: Run) -> None:
    code, out, err = run("profiles", "check", "--gpu", "l40s", "--json")
    assert code == 0
    found = json.loads(out)
    assert {row["gpu"] for row in found["errors"]} == {"L40S"}
    fitted = [row for row in found["errors"] if row["split"] == "fitted" and "Mixtral" not in row["source"]]
    layers = [row for row in fitted if row["op"] == "layer"]
    assert {row["phase"]: row["rows"] for row in layers} == {"prefill": 160, "decode": 432}
    assert all(0 < row["mape"] < 7 for row in layers)
    assert "note: measured_points.csv, row 15" in err


@needs_shared
def test_check_as_text(run: Run) -> None:
    code, out, _ = run("profiles", "check", "--gpu", "L4")
    assert code == 0
    assert "Helix L4x2" in out
    assert "kernel tables" not in out


def test_errors_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, out, err = run("profiles", "check", "--gpu", "L41")
    assert (code, out, err) == (2, "", "error: unknown GPU 'L41'. To fix: did you mean L4 or L40S?\n")
    code, _, err = run("profiles", "check", "--gpu", "B200-SXM")
    assert code == 2
    assert "unknown GPU with efficiency factors 'B200-SXM'" in err
    monkeypatch.setenv("CORAL_SHARED_DATA", str(tmp_path))
    monkeypatch.setattr("flows.profile_check.is_installed", lambda: False)
    code, _, err = run("profiles", "check")
    assert code == 2
    assert err.startswith(
        "error: nothing to compare with: not checked: layers and points of the raw data; the measured set "
    )
    assert "coral-planner[silicon]" in err
    code, _, err = run("profiles", "fit", "--gpu", "H200-SXM", "--data", str(tmp_path / "none.csv"))
    assert (code, err.count("\n")) == (2, 1)
    assert "none.csv: the file does not exist" in err


@needs_shared
def test_fit_gives_a_row_that_a_scenario_can_name(run: Run, tmp_path: Path) -> None:
    grid = (SHARED / "perf" / "layer_grid.csv").read_text(encoding="utf-8").splitlines()
    data = tmp_path / "h200.csv"
    data.write_text("\n".join([grid[0], *(row for row in grid if row.startswith("h200_sxm,"))]), encoding="utf-8")
    own = tmp_path / "efficiency.csv"
    code, out, err = run("profiles", "fit", "--gpu", "NVIDIA H200", "--data", str(data), "--out", str(own))
    assert code == 0
    assert "prefill: 3." in out
    assert "each left out in turn" in out
    assert f"{own}: written" in err
    found, faults = read_efficiencies(own, own.name, load_catalog().gpu_names)
    assert faults == ()
    shipped = load_catalog().efficiencies["H200-SXM"]
    # The shipped row was fitted to these same measurements.
    for name in ("mfu_gemm", "mbu_gemm", "mfu_attn", "mbu_attn", "ew_c"):
        assert getattr(found["H200-SXM"], name) == pytest.approx(getattr(shipped, name), rel=1e-3)
    assert out.rstrip().endswith(own.read_text(encoding="utf-8").rstrip())
    code, out, _ = run("profiles", "fit", "--gpu", "H200-SXM", "--data", str(data), "--json")
    assert json.loads(out)["row"]["gpu"] == "H200-SXM"


def test_the_device_script_needs_nothing_of_ours() -> None:
    path = ROOT / "benchmarks" / "h200_layers.py"
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert names - set(sys.stdlib_module_names) == {"torch"}
    done = subprocess.run([sys.executable, str(path), "--out", os.devnull], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_the_device_script_times_the_models_of_the_catalog() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks import h200_layers
    finally:
        sys.path.remove(str(ROOT))
    for name, shape in h200_layers.MODELS.items():
        spec = load_catalog().models[name]
        assert shape == (spec.hidden, spec.intermediate, spec.heads, spec.kv_heads, spec.head_dim, spec.vocab)
    from catalogs.tables import schema_of

    assert tuple(column.name for column in schema_of("layer_times").columns) == h200_layers.HEAD
