"""``coral validate`` and ``coral init``: every fault on a line of its own, and inputs one can start from."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import cli

Run = Callable[..., tuple[int, str, str]]


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


def test_a_shipped_scenario_is_in_order_and_counted(run: Run) -> None:
    code, out, err = run("validate", "core")
    assert (code, out) == (0, "")
    assert "core: in order: 3 models, 2 regions, 9 node configurations" in err
    assert "assumed_availability" in err


def test_init_writes_inputs_that_are_in_order(run: Run, tmp_path: Path) -> None:
    code, out, err = run("init", "my")
    assert code == 0
    written = out.split()
    assert "my/scenario.yaml" in written
    assert all((tmp_path / path).is_file() for path in written)
    assert "coral validate my" in err
    assert run("validate", "my")[0] == 0


def test_init_leaves_an_edited_file_alone(run: Run, tmp_path: Path) -> None:
    run("init", "my")
    scenario = tmp_path / "my" / "scenario.yaml"
    scenario.write_text("id: mine\n")
    code, _, err = run("init", "my")
    assert scenario.read_text() == "id: mine\n"
    assert code == 2
    assert "scenario.yaml" in err


def test_every_fault_is_a_line_and_the_exit_code_2(run: Run, tmp_path: Path) -> None:
    run("init", "my")
    scenario = tmp_path / "my" / "scenario.yaml"
    scenario.write_text(scenario.read_text() + "\nshceme: 1\nbudget: 3\n")
    code, out, err = run("validate", "my")
    assert code == 2
    assert [line.split(",")[0] for line in out.splitlines()] == ["scenario.yaml", "scenario.yaml"]
    assert "shceme" in out
    assert "2 faults" in err
    code, out, _ = run("validate", "my", "--json")
    assert code == 2
    assert [finding["column"] for finding in json.loads(out)] == ["shceme", "budget"]


def test_of_very_many_faults_the_first_are_printed_and_json_has_all(run: Run, tmp_path: Path) -> None:
    run("init", "my")
    rows = "".join(f"nobody-{n},2025-05-01T08:00:00Z,1\n" for n in range(30_000))
    for folder in ("my", "my/scenario.yaml", "my/demand.csv"):
        (tmp_path / "my" / "demand.csv").write_text(
            "model,window_start,demand_req_per_s\n" + re.sub(r"-(\d+)(.*),1\n", r"-\1\2,x\1\n", rows)
        )
        code, out, err = run("validate", folder)
        assert code == 2
        *lines, last = out.splitlines()
        assert [line.split(":")[0] for line in lines] == [
            f"demand.csv, row {n}, demand_req_per_s" for n in range(1, 21)
        ]
        assert last == "... and 29,980 more: `coral validate --json` lists all 30,000"
        assert "30,000 faults" in err
    code, out, _ = run("validate", "my", "--json")
    assert (code, len(json.loads(out))) == (2, 30_000)
    # The same where a command cannot go on: on stderr.
    (tmp_path / "my" / "scenario.yaml").write_text((tmp_path / "my" / "scenario.yaml").read_text() + "colour: red\n")
    code, out, err = run("plan", "-s", "my", "--lake", "lake")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 21
    assert err.startswith("error: scenario.yaml, line ")


@pytest.mark.parametrize("name", ["nosuch.csv", "demand.csv", "nosuch.json", "nosuch.yaml", "no/such.csv"])
def test_a_file_that_is_not_there_is_called_so(run: Run, name: str) -> None:
    code, out, err = run("validate", name)
    assert code == 2
    assert any(words in out + err for words in ("no such file", "does not exist"))
    assert "cannot tell" not in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("validate", "cor"), "did you mean core?"),
        (("validate", "no/such.yaml"), "does not exist"),
        (("plan", "--scenario", "exended"), "did you mean extended"),
        (("build", "--scenario", "no/such.yaml"), "does not exist"),
        (("allocate", "--scenario", "paper-cor"), "did you mean paper-core"),
    ],
)
def test_a_mistyped_scenario_is_one_line_with_close_matches(
    run: Run, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert err.count("error:") == 1
    assert list(tmp_path.iterdir()) == []
