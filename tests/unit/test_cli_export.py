"""``coral export`` from a lake to a folder."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from published_cases import SCENARIO, published_lake

from flows import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_lake(tmp_path_factory.mktemp("published"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lake: Path) -> Run:
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", "export", *args, "-s", SCENARIO, "--lake", str(lake)])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_current_plan_and_what_changes_from_an_earlier_one(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "launch"
    code, text, err = run("--to", "vllm", "--to", "kubernetes", "--diff", "1", "--out", str(out))
    assert code == 0, err
    assert "instances: keep 3, add 1, drain 0" in text
    assert json.loads((out / "plan.json").read_text())["plan_version"] == 2
    rows = list(csv.DictReader((out / "commands" / "inventory.csv").open()))
    assert [row["instance_type"] for row in rows] == ["g6e.12xlarge"] * 4
    script = next(out.glob("commands/*/qwen3-32b-decode-*/node-0.sh")).read_text()
    assert "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4" in script
    assert "--gpu-memory-utilization 0.92" in script
    assert (out / "kubernetes" / "aws_us-east-2").is_dir()
    assert not (out / "skypilot").exists()
    assert f"{sum(path.is_file() for path in out.rglob('*'))} files written to {out}" in err


def test_an_earlier_plan_by_its_number_as_json(run: Run, tmp_path: Path) -> None:
    code, text, _ = run("--to", "skypilot", "--plan", "1", "--out", str(tmp_path / "launch"), "--json")
    document = json.loads(text)
    assert code == 0
    assert (document["plan_version"], document["changes"]) == (1, None)
    assert [(row["workload"], row["instances"], row["nodes"]) for row in document["groups"]] == [
        ("qwen3-32b/prefill", 1, 1),
        ("qwen3-32b/decode", 2, 2),
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--to", "vllm", "--plan", "9"), "unknown plan version '9'"),
        (("--to", "vllm", "--engine-version", "0.6.4"), "its options are known from 0.25.0 on"),
        (("--to", "vllm", "--checkpoint", "qwen3-32=me/mine"), "did you mean qwen3-32b"),
        (("--to", "vlm"), "'vllm'"),
        (("--to", "vllm", "--diff", "7"), "unknown plan version '7'"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line_and_writes_nothing(
    run: Run, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    code, out, err = run(*args, "--out", str(tmp_path / "launch"))
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert not (tmp_path / "launch").exists()


def test_a_foreign_folder_is_refused_before_anything_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, _, err = run("--to", "vllm", "--out", str(tmp_path))
    assert code == 2
    assert "mine.txt, which no export wrote" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
