"""The command line itself: fast help, examples, close matches, exit codes, and no traceback for an expected outcome."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from catalogs.errors import CoralError, Finding, HeldError, InputError, LakeError, ShortfallError
from catalogs.init import starter_files
from flows import cli
from flows.cli_progress import LineProgress


def command_names(group: Any, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """(``plans list``, whether it is a group) of every command of the app."""
    for name, command in group.commands.items():
        yield f"{prefix}{name}", hasattr(command, "commands")
        if hasattr(command, "commands"):
            yield from command_names(command, f"{prefix}{name} ")


COMMANDS = dict(command_names(typer.main.get_command(cli.app)))
HEAVY = ("prefect", "dask", "distributed", "numba", "duckdb", "pyarrow", "pulp", "highspy", "numpy")


def coral(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a user runs it."""
    code = "import sys; from flows.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    """One process asks for all of them, one after the other: it imports no less than each alone would."""
    code = f"""
import contextlib, io, json, sys
from flows.cli import main
said = {{}}
for command in {["", *COMMANDS]!r}:
    sys.argv = ["coral", *command.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main()
    said[command] = [code, [m for m in {HEAVY!r} if m in sys.modules], f"Usage: coral {{command}}".strip() in out.getvalue()]
print(json.dumps(said))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {command: [0, [], True] for command in ["", *COMMANDS]}


def tree(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, command) of every command and group of the app, the app itself first."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from tree(inner, (*path, name))


TREE = dict(tree(typer.main.get_command(cli.app)))


FILE = re.compile(r"[\w./-]+\.(csv|yaml|json|jsonl|parquet)")


@pytest.mark.parametrize("path", [path for path in TREE if path], ids=" ".join)
def test_every_command_and_group_shows_an_example_that_runs_in_a_clone_with_a_plan(path: tuple[str, ...]) -> None:
    """What an example reads is made by the lines before it (`coral init my`, an --out) or is the plan of `make plan`: no
    other file, no version but the first before another `coral plan`. The commands themselves read each line."""
    lines = [shlex.split(line) for line in (TREE[path].epilog or "").split("Example:")[1].splitlines() if line.strip()]
    calls = [line[1:] for line in lines if line[0] == "coral"]
    assert any(tuple(call[: len(path)]) == path for call in calls)
    made: set[str] = set()
    versions = 1
    for call in calls:
        name = next(known for known in sorted(TREE, key=len, reverse=True) if tuple(call[: len(known)]) == known)
        words = [word for word in call[len(name) :] if word not in {"&", ">", "plan.schema.json"}]
        TREE[name].make_context("coral", list(words))
        outs = {words[k + 1] for k, word in enumerate(words) if word in {"--out", "--report"}}
        assert {word for word in words if FILE.fullmatch(word)} - outs <= made
        wanted = [words[k + 1] for k, word in enumerate(words) if word in {"--plan", "--from-plan", "--diff"}]
        wanted += [word for word in words if name[:1] == ("plans",) and word.isdigit()]
        assert all(int(version) <= versions for version in wanted)
        versions += name == ("plan",) and "-s" not in words
        made |= outs | ({f"{words[0]}/{file}" for file in starter_files()} if name == ("init",) else set())


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("pln",), "'plan'"),
        (("plans", "shw"), "'show'"),
        (("plan", "--scenaro", "core"), "--scenario"),
        (("build", "--mode", "cycl"), "'cycle'"),
        (("plan", "--workers", "0"), "--workers"),
        (("plans", "diff", "one"), "'A'"),
        (("sql",), "no statement to run"),
    ],
)
def test_usage_errors_exit_2_with_a_hint_on_stderr(args: tuple[str, ...], hint: str) -> None:
    done = coral(*args)
    assert done.returncode == 2
    assert hint in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CoralError("no such file", remedy="name another"), 2),
        (ShortfallError("too few nodes"), 4),
        (HeldError("demand is unknown"), 5),
        (LakeError("another process holds the lake"), 6),
    ],
)
def test_expected_outcomes_are_one_line_and_their_exit_code(
    error: CoralError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert cli.main() == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: {error}\n")


def test_each_finding_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        Finding("offers.csv", row, "price_usd_per_h", f"-{row}", "is negative", "give a price above 0")
        for row in (1, 2)
    ]

    def fail(**_: object) -> None:
        raise InputError(findings)

    monkeypatch.setattr(cli, "app", fail)
    assert cli.main() == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"error: {finding.line()}" for finding in findings]


def test_a_bug_keeps_its_traceback_and_exits_1(tmp_path: Path) -> None:
    code = (
        "import sys, flows.cli as cli\n"
        "def broken(**_): raise ZeroDivisionError('a bug')\n"
        "cli.app = broken\nsys.exit(cli.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: a bug" in done.stderr


def test_contracts_commands_are_there() -> None:
    wanted = {"init", "validate", "build", "allocate", "plan", "plans list", "plans show", "plans diff", "sql"}
    assert wanted <= COMMANDS.keys()


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "RuntimeError('Query interrupted')"])
def test_an_interrupt_exits_130_and_says_what_holds(raised: str) -> None:
    code = (
        "import sys, flows.cli as cli\n"
        f"def hang(): raise {raised}\n"
        "cli.app.command('hang')(hang)\nsys.argv = ['coral', 'hang']\nsys.exit(cli.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("interrupted: what was published is untouched")
    assert "Traceback" not in done.stderr


def test_an_interrupt_while_the_command_is_still_being_imported() -> None:
    code = (
        "import sys\n"
        "class Late:\n    def find_spec(self, name, *_):\n        if name == 'typer': raise KeyboardInterrupt\n"
        "from flows.start import main\n"
        "assert 'typer' not in sys.modules\nsys.meta_path.insert(0, Late())\nsys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys, flows.cli as cli\n"
        "def much(**_):\n    for _ in range(100000): print('row')\n"
        "cli.app = much\nsys.exit(cli.main())"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    assert writer.wait(timeout=30) == 0


def test_progress_away_from_a_terminal_is_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress()
    progress.start("profiles", 3)
    progress.advance("profiles", 3)
    progress.finish("profiles", "12 rows")
    progress.message("library is up to date")
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("profiles: 0.")
    assert first.endswith(" s, 12 rows")
    assert second == "library is up to date"
