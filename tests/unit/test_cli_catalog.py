"""The lists of names the catalogs know, and close matches for a name they do not know."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from catalogs.errors import close_matches
from flows import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", *args])
        code = cli.main()
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize(
    ("asked", "known", "expected"),
    [
        # A part of a name comes before names that are merely alike.
        ("llama-3.3-70b", ["llama-3.1-70b", "llama-3.1-8b", "llama-3.3-70b-instruct"], "llama-3.3-70b-instruct"),
        ("llama3.3 70b", ["llama-3.1-70b", "llama-3.3-70b-instruct"], "llama-3.3-70b-instruct"),
        ("us-east-2", ["aws/us-west-2", "aws/us-east-2"], "aws/us-east-2"),
        ("Qwen3-32B-AWQ", ["qwen3-8b", "qwen3-32b"], "qwen3-32b"),
        ("H100-SMX", ["H100-PCIe", "H100-SXM"], "H100-SXM"),
        ("qwen/qwen3-32", ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"], "Qwen/Qwen3-32B"),
    ],
)
def test_the_nearest_name_comes_first(asked: str, known: list[str], expected: str) -> None:
    assert close_matches(asked, known)[0] == expected


def test_what_resembles_nothing_gets_no_match() -> None:
    assert close_matches("zzzz", ["llama-3.1-70b", "qwen3-8b"]) == []
    assert close_matches("l", ["llama-3.1-70b", "qwen3-8b"]) == []  # one letter is part of everything
    assert close_matches("", ["qwen3-8b"]) == []


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("models", "show", "llama-3.3-70b"), "error: unknown model 'llama-3.3-70b'. To fix: did you mean llama-3.3-70b-in"),
        (("configs", "list", "--gpu", "H10O"), "error: unknown GPU 'H10O'. To fix: did you mean H100-SXM"),
        (("configs", "list", "--region", "us-east-2"), "error: unknown region 'us-east-2'. To fix: did you mean aws/us-east-2"),
        (("allocate", "-s", "cor"), "error: unknown scenario 'cor'. To fix: did you mean core?"),
    ],
)  # fmt: skip
def test_a_mistyped_name_is_one_line_with_the_right_one(run: Run, args: tuple[str, ...], error: str) -> None:
    code, out, err = run(*args)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(error)


def test_the_same_model_is_offered_once(run: Run) -> None:
    assert run("models", "show", "gpt-os-20b")[2].count("gpt-oss-20b") == 1
    assert "openai/gpt-oss-20b" in run("models", "show", "openai/gpt-os-20b")[2]


@pytest.mark.parametrize(
    ("group", "column", "name"),
    [
        ("models", "alias", "llama-3.3-70b-instruct"),
        ("gpus", "gpu", "L40S"),
        ("configs", "node_config", "L40Sx4"),
        ("regions", "region", "aws/us-east-2"),
        ("scenarios", "scenario", "core"),
    ],
)
def test_every_list_is_text_and_json_of_the_same_names(run: Run, group: str, column: str, name: str) -> None:
    code, text, _ = run(group, "list")
    assert code == 0
    rows = json.loads(run(group, "list", "--json")[1])
    names = [row[column] for row in rows]
    assert name in names
    assert [line.split()[0] for line in text.splitlines()[1:]] == names


def test_configurations_of_a_gpu_in_a_region_with_the_price_of_the_catalog(run: Run) -> None:
    rows = json.loads(run("configs", "list", "--gpu", "l40s", "--region", "aws/us-east-2", "--json")[1])
    assert [row["node_config"] for row in rows] == ["L40Sx1", "L40Sx4", "L40Sx8"]  # g6e sells no two of them
    # AWS list price of g6e.xlarge in Ohio, offers.csv.
    assert (rows[0]["cheapest_usd_per_h"], rows[0]["cheapest_region"]) == (1.861, "aws/us-east-2")
