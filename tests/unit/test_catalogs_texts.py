"""Files that are anything but what was asked for: one reason and one remedy, no crash, no waiting."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from catalogs.errors import CoralError
from catalogs.texts import UnreadableError, is_regular_file, parse_json, read_text, write_text


def reason_of(path: Path) -> str:
    with pytest.raises(UnreadableError) as caught:
        read_text(path, most_mib=1, kind="CSV file")
    assert "CSV file" in caught.value.remedy
    return caught.value.reason


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("Zürich".encode("latin-1"))
    (tmp_path / "large").write_bytes(b"a" * (2**20 + 1))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert reason_of(tmp_path / "none") == "the file does not exist"
    assert reason_of(tmp_path) == "is a folder"
    assert reason_of(tmp_path / "pipe") == "is no regular file"  # opening it would wait for a writer
    assert reason_of(Path("/dev/zero")) == "is no regular file"
    assert reason_of(tmp_path / "latin") == "cannot be read as UTF-8 text: byte 1 is 0xfc"
    assert reason_of(tmp_path / "large") == "is larger than 1 MiB"
    assert reason_of(tmp_path / ("a" * 300)).startswith("cannot be read: ")
    assert reason_of(tmp_path / "a\0b").startswith("cannot be read: ")
    assert reason_of(tmp_path / "circle").startswith("cannot be read: ")
    assert reason_of(tmp_path / "latin" / "below").startswith("cannot be read: ")


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(b"\xef\xbb\xbf" + b"a" * (2**20 - 3))
    assert read_text(tmp_path / "full", most_mib=1, kind="CSV file") == "a" * (2**20 - 3)


def test_names_that_no_file_can_have_are_no_files(tmp_path: Path) -> None:
    assert not is_regular_file(tmp_path / ("a" * 300))
    assert not is_regular_file(tmp_path / "a\0b")
    assert not is_regular_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON (line 8: Expecting property name enclosed in double quotes)"),
        ("", "is not JSON (line 7: Expecting value)"),
        ("9" * 5000, "holds a number of thousands of digits"),
        ("[" * 100_000, "is nested more than 64 deep"),
        ("[" * 100_000 + "]" * 100_000, "is nested more than 64 deep"),
        ("[" * 65 + "]" * 65, "is nested more than 64 deep"),
        ('{"a":' * 65 + "1" + "}" * 65, "is nested more than 64 deep"),
    ],
    ids=["open", "empty", "digits", "open-nest", "nest", "65", "65-groups"],
)
def test_json_that_is_not_taken(text: str, reason: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_json(text + ("\n" if text == "{" else ""), "use another", first_line=7)
    assert (caught.value.reason, caught.value.remedy) == (reason, "use another")


def test_json_of_64_levels_is_taken() -> None:
    text = "[" * 64 + "]" * 64
    assert parse_json(text, "") == json.loads(text)


def test_writing_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("as it was")
    for path in (Path("/proc/x"), tmp_path / "file" / "below", tmp_path / ("a" * 300), tmp_path / "a\0b", tmp_path):
        with pytest.raises(CoralError, match="cannot be written") as caught:
            write_text(path, "new")
        assert caught.value.exit_code == 2
    assert (tmp_path / "file").read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    write_text(tmp_path / "made" / "too", "new")
    assert (tmp_path / "made" / "too").read_text() == "new"
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["too"]
