"""Own measurements: every fault on its line, both file forms, and how they attach to a scenario."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalogs import load_catalog, load_scenario, validate_path
from catalogs.errors import InputError
from catalogs.init import write_starter
from catalogs.measured import RATES, calibrations, measured_rates, merged_rows, read_measured_table, table_text
from catalogs.tables import parse_table

HEAD = "node_config,model,phase,layers,position,stages,cycle_ms,throughput_tok_per_s,tp,pp,replicas,as_of\n"
GOOD = "L40Sx4,qwen3-8b,decode,36,only,1,,4000,1,1,4,2025-05-01\n"


def faults(text: str) -> list[str]:
    catalog = load_catalog()
    table = parse_table(text, RATES, encode_gpu=catalog.gpu_names.encode, label="measured.csv")
    return [finding.line() for finding in measured_rates(table, catalog, ())[1]]


@pytest.mark.parametrize(
    ("row", "column", "reason"),
    [
        ("L40Sx4,qwen3-8b,decode,36,only,1,,0,1,1,4,2025-05-01", "throughput_tok_per_s", "is zero"),
        ("L40Sx4,qwen3-8b,decode,36,only,1,,nan,1,1,4,2025-05-01", "throughput_tok_per_s", "is not a value"),
        ("L40Sx4,qwen3-8b,decode,36,only,1,,,1,1,4,2025-05-01", "throughput_tok_per_s", "is blank"),
        (
            "L40Sx4,qwen3-8b,decode,36,only,1,,4 ktok/s,1,1,4,2025-05-01",
            "throughput_tok_per_s",
            "is not a plain number",
        ),
        ("L40Sx4,qwen3-8b,decode,36,only,1,0,4000,1,1,4,2025-05-01", "cycle_ms", "is zero"),
        ("L40x4,qwen3-8b,decode,36,only,1,,4000,1,1,4,2025-05-01", "node_config", "unknown GPU"),
        ("L40Sx3,qwen3-8b,decode,36,only,1,,4000,1,1,3,2025-05-01", "node_config", "unknown node configuration"),
        ("L40Sx4,qwen3-9b,decode,36,only,1,,4000,1,1,4,2025-05-01", "model", "unknown model"),
        ("L40Sx4,qwen3-8b,decod,36,only,1,,4000,1,1,4,2025-05-01", "phase", "is not an allowed value"),
        ("L40Sx4,qwen3-8b,decode,37,mid,3,,4000,1,1,4,2025-05-01", "layers", "is more than the 36 layers"),
        ("L40Sx4,qwen3-8b,decode,12,only,1,,4000,1,1,4,2025-05-01", "layers", "the only stage holds the whole model"),
        ("L40Sx4,qwen3-8b,decode,12,first,1,,4000,1,1,4,2025-05-01", "position", "does not go with 1 stages"),
        ("L40Sx4,qwen3-8b,decode,36,only,1,,4000,2,1,4,2025-05-01", "tp", "tp x pp x replicas is 8"),
        ("L40Sx4,qwen3-8b,decode,36,only,1,,4000,2,,,2025-05-01", "tp", "is part of a layout"),
    ],
)
def test_every_fault_is_named(row: str, column: str, reason: str) -> None:
    (line,) = faults(HEAD + row + "\n")
    assert line.startswith(f"measured.csv, row 1, {column}: ")
    assert reason in line
    assert "To fix: " in line


def test_close_matches_and_a_rate_that_rises_with_layers() -> None:
    assert "did you mean qwen3-8b" in faults(HEAD + GOOD.replace("qwen3-8b", "qwen3-9b"))[0]
    rising = HEAD + "".join(f"L40Sx4,qwen3-8b,decode,{j},mid,3,,{r},,,,2025-05-01\n" for j, r in ((10, 800), (12, 900)))
    (line,) = faults(rising)
    assert line.startswith("measured.csv, row 2, throughput_tok_per_s: with 12 layers is above row 1's 800 with 10")
    assert faults(rising.replace("900", "700")) == []
    (line,) = faults(HEAD.replace("throughput_tok_per_s", "throughput_tok_per_min") + GOOD)
    assert line.startswith(
        "measured.csv, throughput_tok_per_min: unknown column. To fix: rename it to throughput_tok_per_s if"
    )
    assert line.endswith("if its values are in tok/s, else convert them too")


def test_parquet_passes_the_same_checks(tmp_path: Path) -> None:
    catalog = load_catalog()
    columns = dict(zip(HEAD.strip().split(","), zip(GOOD.strip().split(","), strict=True), strict=True))
    typed = {name: list(values) for name, values in columns.items()}
    typed |= {"layers": [36], "stages": [1], "cycle_ms": [None], "throughput_tok_per_s": [4000.0]}
    pq.write_table(pa.table(typed), tmp_path / "m.parquet")
    rates, found = measured_rates(read_measured_table(tmp_path / "m.parquet", RATES, catalog, "m.parquet"), catalog, ())
    assert found == []
    assert (rates[0].model, rates[0].throughput_tok_per_s, rates[0].layout) == ("Qwen/Qwen3-8B", 4000.0, (1, 1, 4))
    assert (rates[0].cycle_ms, rates[0].rel_error) == (None, 0.05)
    pq.write_table(pa.table({**typed, "throughput_tok_per_s": [float("nan")]}), tmp_path / "n.parquet")
    (bad,) = measured_rates(read_measured_table(tmp_path / "n.parquet", RATES, catalog, "n.parquet"), catalog, ())[1]
    assert (bad.column, bad.reason) == ("throughput_tok_per_s", "is not a value")
    (tmp_path / "o.parquet").write_text("no")
    assert (
        "cannot be read as Parquet"
        in read_measured_table(tmp_path / "o.parquet", RATES, catalog, "o").findings[0].reason
    )


def test_deratings_are_averaged_per_gpu_and_model() -> None:
    catalog = load_catalog()
    text = "gpu,model,phase,derate,as_of,source\n" + "".join(
        f"{gpu},qwen3-8b,decode,{value},2025-05-01,{name}\n"
        for gpu, value, name in (("L40S", 0.8, "a"), ("L40S", 0.9, "b"), ("L4", 1.1, "a"))
    )
    found, findings = calibrations(parse_table(text, "calibration", encode_gpu=catalog.gpu_names.encode), catalog)
    assert findings == []
    assert [(c.gpu, c.benchmarks) for c in found] == [("L4", 1), ("L40S", 2)]
    assert found[1].derate == pytest.approx((0.8 * 0.9) ** 0.5)


def test_a_scenario_names_its_measurements(tmp_path: Path) -> None:
    write_starter(tmp_path)
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(scenario.read_text() + "profiles: {file: m.csv}\ncalibration: {file: c.csv}\n")
    lines = [finding.line() for finding in validate_path(scenario)]
    assert len(lines) == 2
    assert all("the file does not exist" in line for line in lines)
    other = GOOD.replace("qwen3-8b", "phi-4").replace("36", "40")  # known, not served here: no fault
    (tmp_path / "m.csv").write_text(HEAD + GOOD + other)
    (tmp_path / "c.csv").write_text("gpu,model,phase,derate,as_of,source\nL40S,qwen3-8b,decode,0.8,2025-05-01,a\n")
    loaded = load_scenario(scenario)
    assert [r.model for r in loaded.measured] == ["Qwen/Qwen3-8B"]
    assert [(c.gpu, c.phase.value, c.derate) for c in loaded.calibrations] == [("L40S", "decode", pytest.approx(0.8))]
    # A fault refuses the scenario: a plan without the measurement is not the plan asked for.
    (tmp_path / "m.csv").write_text(HEAD + GOOD.replace("4000", "0"))
    with pytest.raises(InputError, match=r"m\.csv, row 1, throughput_tok_per_s: is zero"):
        load_scenario(scenario)


def test_rows_merge_by_key() -> None:
    catalog = load_catalog()

    def rows(text: str):
        return parse_table(text, RATES, encode_gpu=catalog.gpu_names.encode).rows

    old = rows(HEAD + GOOD + GOOD.replace("L40Sx4", "L40Sx1").replace("1,1,4", "1,1,1"))
    merged = merged_rows(RATES, old, rows(HEAD + GOOD.replace("4000", "4100")))
    assert [(r["node_config"], r["throughput_tok_per_s"]) for r in merged] == [("L40Sx1", 4000), ("L40Sx4", 4100)]
    assert rows(table_text(RATES, merged)) == tuple(merged)
