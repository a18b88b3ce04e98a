"""Files of layer times: CSV and Parquet alike, every fault on its row; own efficiency factors in a scenario."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from profiling_cases import catalog

from catalogs import load_scenario, validate_path
from catalogs.errors import InputError
from catalogs.init import write_starter
from catalogs.layer_times import by_gpu, read_layer_times
from catalogs.tables import DATA_DIR
from catalogs.types import Phase

HEAD = "system,model,tp,phase,batch,isl,gemm,attn,moe,ar,ew,lm\n"
SOUND = "h100_sxm,qwen3-32b,2,prefill,4,1024,2.5,0.2,0,0.4,0.1,\n"


def written(folder: Path, *rows: str, name: str = "layers.csv", head: str = HEAD) -> Path:
    path = folder / name
    path.write_text(head + "".join(rows), encoding="utf-8")
    return path


def faults(path: Path, gpu: str = "") -> list[str]:
    with pytest.raises(InputError) as caught:
        read_layer_times(path, catalog(), gpu=gpu)
    return [finding.line() for finding in caught.value.findings]


def test_a_sound_row(tmp_path: Path) -> None:
    (row,) = read_layer_times(written(tmp_path, SOUND), catalog(), source="mine", is_fitted=False)
    assert (row.gpu, row.model.model, row.weight_dtype, row.tp) == ("H100-SXM", "Qwen/Qwen3-32B", "bf16", 2)
    assert (row.phase, row.tokens, row.batch, row.context) == (Phase.PREFILL, 4096, 4, 1024)
    assert row.ops == {"gemm": 2.5, "attn": 0.2, "moe": 0.0, "ar": 0.4, "ew": 0.1}
    assert row.total == pytest.approx(3.2)
    assert (row.head, row.source, row.is_fitted, row.row) == (None, "mine", False, 1)


def test_a_row_without_every_operation_has_no_total(tmp_path: Path) -> None:
    (row,) = read_layer_times(written(tmp_path, "L40S,gpt-oss-20b,1,decode,8,512,,0.02,,,,\n"), catalog())
    assert (row.ops, row.total, row.tokens, row.weight_dtype) == ({"attn": 0.02}, None, 8, "mxfp4")


def test_phi_4_attention_was_measured_with_eight_kv_heads(tmp_path: Path) -> None:
    (row,) = read_layer_times(written(tmp_path, SOUND.replace("qwen3-32b", "Phi4-14B")), catalog())
    assert (row.model.kv_heads, row.attention_kv_heads) == (10, 8)


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    csv = written(tmp_path, SOUND, SOUND.replace(",4,1024,", ",8,1024,"))
    pq.write_table(pyarrow.csv.read_csv(csv), tmp_path / "layers.parquet")
    assert [r.ops for r in read_layer_times(tmp_path / "layers.parquet", catalog())] == [
        r.ops for r in read_layer_times(csv, catalog())
    ]
    pq.write_table(pa.table({"system": ["h100_sxm"], "gemm": [float("nan")]}), tmp_path / "bad.parquet")
    assert any(line.startswith("bad.parquet, row 1, gemm:") for line in faults(tmp_path / "bad.parquet"))
    (tmp_path / "text.parquet").write_text("no")
    assert "cannot be read as Parquet" in faults(tmp_path / "text.parquet")[0]
    assert "the file does not exist" in faults(tmp_path / "none.parquet")[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("h100_sxm", "h1000_sxm"), "row 2, system: unknown GPU 'h1000_sxm' (got 'h1000_sxm'). To fix: "),
        (("qwen3-32b", "qwen3-33b"), "row 2, model: unknown model (got 'qwen3-33b'). To fix: did you mean qwen3-32b"),
        (("prefill", "encode"), "row 2, phase: "),
        ((",4,1024,", ",0,1024,"), "row 2, batch: "),
        (("2.5", "nan"), "row 2, gemm: is not a value"),
        (("2.5", "-1"), "row 2, gemm: "),
        (("2.5", "0"), "row 2, gemm: takes no time (got '0')"),
        (("0.4", "0"), "row 2, ar: takes no time (got '0')"),
        (
            (",0,0.4", ",0.3,0.4"),
            "row 2, moe: Qwen/Qwen3-32B at tp 2 has no such operation (got '0.3'). To fix: write 0",
        ),
        ((",2,prefill", ",1,prefill"), "row 2, ar: Qwen/Qwen3-32B at tp 1 has no such operation"),
        (("2.5,0.2,0,0.4,0.1", ",,,,"), "row 2, gemm: nothing was measured in this row"),
    ],
)
def test_each_fault_names_its_row_and_cell(tmp_path: Path, changed: tuple[str, str], said: str) -> None:
    bad = SOUND.replace(*changed).replace(",1024,", ",2048,")
    assert bad != SOUND
    (line,) = faults(written(tmp_path, SOUND, bad))
    assert line.startswith(f"layers.csv, {said}")
    assert "\n" not in line


def test_all_faults_at_once(tmp_path: Path) -> None:
    lines = faults(written(tmp_path, SOUND.replace("2.5", "x"), SOUND, SOUND, SOUND.replace("qwen3", "qwen9")))
    assert [line.split(":")[0] for line in lines] == [
        "layers.csv, row 1, gemm", "layers.csv, row 3, system+model+tp+phase+batch+isl", "layers.csv, row 4, model",
    ]  # fmt: skip
    assert "the file holds no rows" in faults(written(tmp_path))[0]


def test_one_gpu_only_under_its_name_or_one_of_ones_own(tmp_path: Path) -> None:
    mine = SOUND.replace("h100_sxm", "lab machine 3")
    (row,) = read_layer_times(written(tmp_path, mine), catalog(), gpu="B200-SXM")
    assert row.gpu == "B200-SXM"
    (line,) = faults(written(tmp_path, SOUND), gpu="B200-SXM")
    assert "row 1, system: is H100-SXM, not B200-SXM" in line
    mixed = faults(
        written(tmp_path, mine, mine.replace("machine 3", "machine 4").replace("1024", "512")), gpu="B200-SXM"
    )
    assert [line.split(",")[1] for line in mixed] == [" row 1", " row 2"]


def test_rows_by_gpu(tmp_path: Path) -> None:
    rows = read_layer_times(written(tmp_path, SOUND, SOUND.replace("h100_sxm", "L40S")), catalog())
    assert {gpu: len(mine) for gpu, mine in by_gpu(rows).items()} == {"H100-SXM": 1, "L40S": 1}


# ---- own factors --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The starter scenario with a file of factors beside it: L40S with half its compute."""
    write_starter(tmp_path / "my")
    scenario = tmp_path / "my" / "scenario.yaml"
    scenario.write_text(
        scenario.read_text(encoding="utf-8") + "\nefficiency: {file: efficiency.csv}\n", encoding="utf-8"
    )
    shutil.copy(DATA_DIR / "efficiency.csv", tmp_path / "my" / "efficiency.csv")
    return scenario


def test_own_factors_count_in_place_of_the_shipped_ones(own: Path) -> None:
    path = own.parent / "efficiency.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    l40s = next(line for line in lines if line.startswith("L40S,"))
    path.write_text("\n".join([lines[0], l40s.replace("L40S,362,", "l40s,181,")]) + "\n", encoding="utf-8")
    found = load_scenario(own).catalog.efficiencies
    assert found["L40S"].peak_bf16_tflops == 181
    assert found["H100-SXM"] == catalog().efficiencies["H100-SXM"]
    assert catalog().efficiencies["L40S"].peak_bf16_tflops == 362
    assert validate_path(path) == []


def test_faulty_factors_are_refused_with_the_scenario(own: Path) -> None:
    path = own.parent / "efficiency.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("L40S,362,", "L40S,-362,"), encoding="utf-8")
    with pytest.raises(InputError, match=r"efficiency.csv, row 4, peak_bf16_tflops: "):
        load_scenario(own)
    assert [finding.column for finding in validate_path(path)] == ["peak_bf16_tflops"]
    path.unlink()
    with pytest.raises(InputError, match=r"efficiency\.file: the file does not exist"):
        load_scenario(own)


def test_an_older_engine_fills_less(own: Path) -> None:
    from flows.build_inputs import resolve_inputs
    from flows.settings import BuildSettings

    raw = yaml.safe_load(own.read_text(encoding="utf-8"))
    for version, share in (("0.12.0", 0.9), (None, 0.92)):
        own.write_text(yaml.safe_dump(raw | {"engine": {"version": version}}, sort_keys=False), encoding="utf-8")
        inputs = resolve_inputs(BuildSettings(own, own.parent / "lake"), load_scenario(own))
        assert {inputs.settings_of(item).gpu_memory_utilization for item in inputs.workloads} == {share}
