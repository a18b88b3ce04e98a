"""`coral sql`: earlier snapshots, the shell, and what other programs read of a lake, as docs/sql.md says."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from dashboard_cases import dashboard_lake

from flows.cli import main

GUIDE = Path(__file__).parents[2] / "docs/sql.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder whose lake is where commands look by default."""
    folder = tmp_path_factory.mktemp("sql")
    dashboard_lake(folder / ".coral")
    return folder


@pytest.fixture
def coral(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in that folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CORAL_LAKE", raising=False)

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["coral", *arguments])
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main()
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


def test_the_lake_as_it_was(coral: Any) -> None:
    code, out, _ = coral("sql", "SELECT snapshot_id, commit_message FROM lake.snapshots() ORDER BY 1", "--json")
    assert code == 0
    first = next(row["snapshot_id"] for row in json.loads(out) if row["commit_message"] == "publish a plan of core")
    count = "SELECT count(*) AS n FROM plans"
    assert json.loads(coral("sql", count, "--snapshot", str(first), "--json")[1]) == [{"n": 1}]
    assert json.loads(coral("sql", count, "--json")[1]) == [{"n": 2}]
    code, out, err = coral("sql", count, "--snapshot", "9999")
    assert (code, out) == (6, "")
    assert "no snapshot 9999" in err


def test_the_shell_answers_one_question_after_another(coral: Any) -> None:
    typed = """\
SELECT plan_version FROM plans
ORDER BY 1;
.format csv
SELECT count(*) AS n
FROM plans

SELECT 1 AS a, '' AS b, NULL AS c"""
    code, out, err = coral("sql", "--shell", stdin=typed)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "plan_version"
    assert [line.strip() for line in out.splitlines()[-6:]] == ["1", "2", "n", "2", "a,b,c", '1,"",']


def test_the_shell_goes_on_after_a_fault_and_changes_nothing(coral: Any) -> None:
    typed = "DELETE FROM plan_rows;\nSELECT * FROM plns;\nSELECT count(*) FROM plans;\n.quit\nSELECT 'not run';\n"
    code, out, err = coral("sql", "--shell", "--format", "csv", stdin=typed)
    assert code == 0
    assert out.split() == ["count_star()", "2"]
    first, second = err.splitlines()
    assert "read only" in first
    assert "did you mean 'plans'" in second or "plans" in second


def test_the_shell_describes_tables(coral: Any) -> None:
    _, out, _ = coral("sql", "--shell", "--format", "csv", stdin=".tables\n.describe plans\n.what\n")
    assert re.search(r"^templates,view,", out, re.M)
    assert re.search(r"^gap,DOUBLE,fraction,false,", out, re.M)
    assert ".describe NAME" in out


@pytest.mark.parametrize(
    "arguments", [(), ("SELECT 1", "--shell"), ("--shell", "--out", "x.csv"), ("--shell", "--format", "parquet")]
)
def test_what_makes_no_sense_is_refused_in_a_line(coral: Any, arguments: tuple[str, ...]) -> None:
    code, out, err = coral("sql", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def blocks() -> list[str]:
    """The Python of the page, each block on top of the imports before it."""
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)


def test_other_programs_read_the_lake_as_the_page_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warehouse.connect import _extension_file

    monkeypatch.chdir(folder)
    plain, python, pandas, polars = blocks()
    # What the extensions' wheels hold is loaded in place of what DuckDB would fetch.
    files = [_extension_file(name) for name in ("ducklake", "sqlite_scanner")]
    if None in files:
        pytest.skip("no wheels of DuckDB's extensions for this machine")
    loads = "; ".join(f"LOAD '{path}'" for path in files)
    assert "INSTALL ducklake; INSTALL sqlite" in plain
    names: dict[str, Any] = {}
    exec(plain.replace("INSTALL ducklake; INSTALL sqlite", loads), names)
    assert len(names["rows"]) == 2
    exec(python, names)
    assert names["table"].num_rows == 2
    exec(pandas, names)
    assert sorted(names["frame"]["combination_id"].unique()) == sorted(
        {"L40Sx4*1", "L4x4*1", "L40Sx4*1+L4x4*1", "H100-SXMx1*1", "L40Sx4*2"}
    )
    exec(polars, names)
    assert names["frame"].height == 6
