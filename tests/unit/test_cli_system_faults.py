"""What the system may do to a command: paths that cannot be used, streams that are closed or full. One line, no traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import cli
from flows.cli_faults import system_fault

Run = Callable[..., tuple[int, str, str]]
LONG = "a" * 300
CORAL = [sys.executable, "-c", "import sys; from flows.cli import main; sys.exit(main())"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs ``coral`` in this process, in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORAL_LAKE", raising=False)

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", *args])
        code = cli.main()
        out, err = capsys.readouterr()
        return code, out, err

    return call


def assert_one_line(done: tuple[int, str, str], code: int, *parts: str) -> None:
    assert done[0] == code
    line = done[2].splitlines()[-1]
    assert line.startswith("error: ")
    assert done[2].count("error: ") == 1
    assert ". To fix: " in line
    assert len(line) < 400
    for part in parts:
        assert part in line


@pytest.mark.parametrize("folder", ["/proc/x", "/proc/self/x/y", "file/x", LONG, "a/" * 3000, "file"])
def test_init_where_nothing_can_be_written(run: Run, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    assert_one_line(run("init", folder), 2, folder[:20])
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("command", [("plan", "-s", "core"), ("build", "-s", "core"), ("plans", "list"), ("gc",)])
@pytest.mark.parametrize("lake", ["/proc/x", "file/x", "file", LONG, "~nobody-of-that-name/x", "circle"])
def test_a_lake_that_cannot_be(run: Run, tmp_path: Path, command: tuple[str, ...], lake: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert_one_line(run(*command, "--lake", lake), 6, lake[:20])


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("plan", "--lake", ""), "the value of --lake is empty"),
        (("plan", "--lake="), "the value of --lake is empty"),
        (("plan", "-s", ""), "the value of -s is empty"),
        (("plan", "--scenario="), "the value of --scenario is empty"),
        (("init", ""), "an argument is empty"),
        (("validate", ""), "an argument is empty"),
        (("models", "add", ""), "an argument is empty"),
    ],
)
def test_an_empty_argument_is_not_the_present_folder(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], where: str
) -> None:
    assert_one_line(run(*arguments), 2, where)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", LONG), ("plan", "-s", LONG), ("plan", "-s", LONG + "/x.yaml"), ("models", "show", LONG + ".json"),
        ("models", "add", LONG), ("plan", "-s", "a/" * 3000), ("profiles", "add", "x.csv", "-s", LONG),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_path_that_no_file_can_have(run: Run, arguments: tuple[str, ...]) -> None:
    assert_one_line(run(*arguments), 2)


def test_paths_in_a_scenario_that_no_file_can_have(run: Run, tmp_path: Path) -> None:
    run("init", "my")
    scenario = tmp_path / "my" / "scenario.yaml"
    sound = scenario.read_text()
    for name in (LONG, '"a\\0b"', "/dev/zero", "/", "../my"):
        for file in ("demand.csv", "quotas.csv", "offers.csv", "models/my-8b-chat.json"):
            scenario.write_text(
                sound.replace(f"file: {file}", f"file: {name}").replace(f"config: {file}", f"config: {name}")
            )
            code, out, err = run("validate", "my")
            assert code == 2
            assert len(out.splitlines()) >= 1
            assert all(". To fix: " in line for line in out.splitlines())
            assert "Traceback" not in err


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a":' * 900 + "1" + "}" * 900,
        '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
        "",
        "[]",
    ],
    ids=["deep", "deep-groups", "digits", "empty", "list"],
)
def test_a_config_that_is_no_config(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert_one_line(run("models", "add", "config.json"), 2, "config.json")
    assert run("validate", "config.json")[0] == 2


def shell(command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        ["bash", "-c", command, *CORAL],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", ["validate no-such.csv", "models show qwen3-8b", "--help"])
class TestStdout:
    def test_closed(self, arguments: str) -> None:
        done = shell(f'"$0" "$@" {arguments} >&-')
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            "error: stdout is closed. To fix: send it to a file, or to /dev/null where it is not wanted"
        ]

    def test_full(self, arguments: str) -> None:
        done = shell(f'"$0" "$@" {arguments} >/dev/full')
        assert done.returncode == 2
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert "No space left on device" in line
        assert "Traceback" not in done.stderr

    def test_reader_gone(self, arguments: str) -> None:
        done = shell(f'"$0" "$@" {arguments} | true; exit ${{PIPESTATUS[0]}}')
        # The reader may leave before or after all is written.
        assert done.returncode in ({2, 0} if "no-such" in arguments else {0})
        assert "Traceback" not in done.stderr
        assert "BrokenPipe" not in done.stderr


def test_closed_stderr_does_not_leave_its_messages_in_the_data() -> None:
    done = shell('"$0" "$@" validate core 2>&-')
    assert (done.returncode, done.stdout) == (0, "")


def test_closed_stdin_is_an_empty_one() -> None:
    done = shell('"$0" "$@" sql - --lake /proc/x <&-')
    assert "Traceback" not in done.stderr
    assert done.returncode in {2, 6}


def test_a_missing_file_of_ours_stays_a_bug() -> None:
    assert system_fault(FileNotFoundError(errno.ENOENT, "No such file or directory", "ours.csv")) is None
    assert system_fault(OSError(errno.EBADF, "Bad file descriptor")) is None
    known = system_fault(PermissionError(errno.EACCES, "Permission denied", "/there"))
    assert known is not None
    assert str(known).startswith("/there: Permission denied. To fix: ")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["pln"], ["No such command 'pln'", "did you mean 'plan', 'plans'?"]),
        (["gpus", "lst"], ["No such command 'lst'", "did you mean 'list'?"]),
        (["plan", "--workrs", "2"], ["No such option: --workrs", "did you mean --workers?"]),
        (["--nope"], ["No such option: --nope", "see `coral --help`"]),
        (["plan", "--workers", "two"], ["Invalid value for '--workers'", "valid integer", "see `coral plan --help`"]),
        (["plan", "--workers", "0"], ["Invalid value for '--workers'", "1"]),
        (["plan", "--mode", "fast"], ["'fast' is not one of 'cycle', 'paper'"]),
        (["plans", "show", "one"], ["Invalid value for 'VERSION'", "see `coral plans show --help`"]),
        (["plans", "show", "9" * 400], ["9999999999", "too large a number"]),
        (["plans", "show", f"--lake={'x' * 3}", "--", "-" + "9" * 19], ["too large a number"]),
        (["validate", "9" * 25], ["unknown scenario '9999999999999999999999999'"]),  # a name, no number
        (["plans", "show", "--version", "9"], ["No such option: --version", "argument: `coral plans show VERSION`"]),
        (["plans", "diff", "--b", "2", "1"], ["No such option: --b", "argument: `coral plans diff B`"]),
        (["ingest", "prices", os.fsdecode(b"\xff\xfename.csv")], ["\\udcff\\udcfename.csv is not UTF-8 text"]),
        (["compare"], ["Missing option '--fleet'", "see `coral compare --help`"]),
        (["sql", "SELECT", "1"], ["unexpected extra argument", "see `coral sql --help`"]),
        (["export", "--to"], ["'--to' requires an argument"]),
        (["plan", "--scenario", "x\n" * 300, "--nope"], ["No such option: --nope"]),
    ],
)
def test_a_mistyped_command_line_is_told_in_one_line(run: Run, words: list[str], parts: list[str]) -> None:
    done = run(*words)
    assert_one_line(done, 2, *parts)
    assert len(done[2].splitlines()) == 1
    assert done[1] == ""


@pytest.mark.parametrize("words", [[], ["plans"], ["gpus"]])
def test_a_group_by_itself_shows_its_help(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert code == 2
    assert f"Usage: {' '.join(['coral', *words])} [OPTIONS] COMMAND" in out + err
    assert "Example" in out + err
    assert "error" not in err
