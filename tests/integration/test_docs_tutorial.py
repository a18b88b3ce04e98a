"""The tutorial, done as it stands: its files written, its commands run, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flows.cli import main

pytestmark = pytest.mark.integration

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"
# A block with a title is a file to write, a console block holds commands.
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.S | re.M)


@pytest.mark.usefixtures("api_url")
def test_the_tutorial_leads_to_an_exported_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORAL_LAKE", raising=False)
    ran = []
    for language, title, text in _BLOCK.findall(TUTORIAL.read_text()):
        if title:
            path = tmp_path / title
            assert path.parent.is_dir(), f"{title}: an earlier step makes its folder"
            path.write_text(text)
        elif language == "console":
            for line in text.splitlines():
                name, *arguments = shlex.split(line.removeprefix("$ "))
                assert name == "coral"
                monkeypatch.setattr("sys.argv", [name, *arguments])
                code = main()
                said = capfd.readouterr()
                assert code == 0, f"{line}\n{said.out}\n{said.err}"
                ran.append((arguments[0], said.out + said.err))
    assert [name for name, _ in ran] == [
        "init",
        "validate",
        "plan",
        "plans",
        "plans",
        "sql",
        "simulate",
        "export",
        "plan",
        "plans",
    ]
    assert "version 1" in ran[2][1]
    assert "every workload keeps its SLO" in ran[6][1]
    assert "unchanged" in ran[8][1]
    ElementTree.parse(tmp_path / "plan.svg")
    assert list(tmp_path.glob("launch/commands/**/*.sh"))
