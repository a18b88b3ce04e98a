"""``coral models``: sizes of a known model, and an own model from its config to a scenario that plans with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catalogs import load_scenario, validate_path
from flows import cli

Run = Callable[..., tuple[int, str, str]]
CONFIG = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
    "tie_word_embeddings": False, "torch_dtype": "float16",
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs ``coral`` in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", *args])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_an_own_model_is_used_without_an_edit_of_code(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "Qwen2.5-7B-Instruct-AWQ"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert run("init", "my")[0] == 0
    code, out, err = run("models", "add", str(folder / "config.json"), "--alias", "qwen-7b-awq", "--to", "my")
    assert code == 0
    # 28 heads and 18,944 = 148 x 128: 2 and 4 GPUs leave whole groups, 8 does not divide the heads.
    assert "weights int4" in out
    assert "tensor parallel    1, 2, 4" in out
    assert "not 8              28 heads do not divide by 8" in out
    assert "my/models/qwen-7b-awq.json: written" in err
    entry = err[err.index("  - model:") :]
    scenario = tmp_path / "my" / "scenario.yaml"
    text = scenario.read_text()
    scenario.write_text(text.replace("models:\n", "models:\n" + entry, 1).replace("demand: {file: demand.csv}\n", ""))
    assert validate_path(scenario) == []
    added = load_scenario(scenario).workloads[0]
    assert (added.model.alias, added.weight_dtype, added.model.layers) == ("qwen-7b-awq", "int4", 28)


def test_adding_twice_changes_nothing_and_never_overwrites(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "my-org__my-7b.json"
    config.write_text(json.dumps(CONFIG))
    assert run("models", "add", config.name)[0] == 0
    assert json.loads((tmp_path / "models" / "my-7b.json").read_text()) == CONFIG
    code, out, err = run("models", "add", config.name, "--json")
    assert (code, json.loads(out)["model"], json.loads(out)["config"]) == (0, "my-org/my-7b", "models/my-7b.json")
    assert "there already, unchanged" in err
    config.write_text(json.dumps({**CONFIG, "num_hidden_layers": 14}))
    code, out, err = run("models", "add", config.name)
    assert (code, out) == (2, "")
    assert "models/my-7b.json holds another config. To fix: give another --alias" in err
    assert json.loads((tmp_path / "models" / "my-7b.json").read_text()) == CONFIG


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--id", "a b/ c\n"], "'a b/ c\\n' is no name of a model"),
        (["--id", "a//b"], "'a//b' is no name of a model"),
        (["--id", "a/b", "--alias", "my model"], "alias 'my model' is no file name"),
        (["--id", "a/b", "--alias", "../x"], "alias '../x' is no file name"),
    ],
)
def test_names_that_no_scenario_or_folder_takes(run: Run, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    code, out, err = run("models", "add", "config.json", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert [path.name for path in tmp_path.rglob("*")] == ["config.json"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "mamba2"}, "field 'model_type' of its config is 'mamba2', which is not supported"),
        ({"num_attention_heads": None}, "field 'num_attention_heads' of its config is missing"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "field 'quantization_config.quant_method'"),
    ],
)
def test_what_is_not_understood_is_refused_by_field(run: Run, tmp_path: Path, change: dict, named: str) -> None:
    (tmp_path / "m.json").write_text(json.dumps({**CONFIG, **change}))
    code, out, err = run("models", "add", "m.json")
    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1
    assert not (tmp_path / "models").exists()


def test_a_file_that_is_not_there_is_wanted_where_it_was_looked_for(run: Run) -> None:
    code, out, err = run("models", "add", "nowhere/mine.json")
    assert (code, out) == (2, "")
    assert "mine.json: the file does not exist. To fix: put the model's config.json at nowhere/mine.json" in err


def test_show_a_shipped_model(run: Run) -> None:
    code, out, _ = run("models", "show", "qwen3-32b")
    assert code == 0
    assert "parameters         32.76 B, active per token 32.76 B" in out
    assert "262,144 bytes per token" in out
    code, _, err = run("models", "show", "qwen3-23b")
    assert code == 2
    assert "did you mean qwen3-32b" in err
    assert run("models", "show", "qwen3-32b", "--weight-dtype", "mxfp4")[0] == 2
