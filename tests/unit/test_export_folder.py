"""The folder of an export: written whole, replaced only where it is an export's own and untouched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from catalogs.errors import CoralError
from flows.export_folder import check_folder, write_folder

FILES = {"README.md": "one\n", "commands/a/node-0.sh": "#!/bin/sh\n"}


def held(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_an_export_replaces_its_own_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "launch"
    write_folder(out, FILES)
    assert held(out) == ["EXPORT.json", "README.md", "commands/a/node-0.sh"]
    assert os.access(out / "commands/a/node-0.sh", os.X_OK)
    write_folder(out, {"README.md": "two\n"})
    assert held(out) == ["EXPORT.json", "README.md"]
    assert (out / "README.md").read_text() == "two\n"
    assert [path.name for path in tmp_path.iterdir()] == ["launch"]


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    write_folder(tmp_path, FILES)
    assert "EXPORT.json" in held(tmp_path)


def foreign(out: Path) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")


def added(out: Path) -> None:
    write_folder(out, FILES)
    (out / "commands" / "mine.sh").write_text("")


def edited(out: Path) -> None:
    write_folder(out, FILES)
    (out / "README.md").write_text("my notes\n")


def a_file(out: Path) -> None:
    out.write_text("")


def false_manifest(out: Path) -> None:
    out.mkdir()
    (out / "EXPORT.json").write_text('{"files": []}')


def dangling(out: Path) -> None:
    out.symlink_to(out.with_name("nowhere"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (foreign, "thesis.tex, which no export wrote"),
        (added, "commands/mine.sh, which no export wrote"),
        (edited, "was edited since"),
        (a_file, "is not a folder"),
        (false_manifest, "EXPORT.json, which no export wrote"),
        (dangling, "is not a folder"),
    ],
)
def test_what_is_not_an_untouched_export_is_refused_and_left(tmp_path: Path, make: object, said: str) -> None:
    out = tmp_path / "launch"
    make(out)  # type: ignore[operator]
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    for attempt in (check_folder, lambda folder: write_folder(folder, FILES)):
        with pytest.raises(CoralError, match=said):
            attempt(out)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "launch"
    write_folder(out, FILES)
    rename = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(CoralError, match="No space left"):
        write_folder(out, {"README.md": "two\n"})
    assert (out / "README.md").read_text() == "one\n"
    assert [path.name for path in tmp_path.iterdir()] == ["launch"]
