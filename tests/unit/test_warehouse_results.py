"""Kept results: whole or absent, found again by the hash of their inputs, refused when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogs.errors import LakeError
from warehouse.results import find_result, read_result, write_result

ID = "0123456789abcdef"


def test_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    first = write_result(tmp_path, ID, {"b": [1, None], "a": 0.1})
    again = write_result(tmp_path, ID, {"a": 0.1, "b": [1, None]})
    assert first == again
    assert find_result(tmp_path, ID) == read_result(tmp_path, ID) == {"a": 0.1, "b": [1, None]}
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_absent_is_none_or_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    assert find_result(tmp_path, ID) is None
    with pytest.raises(LakeError, match="run the command"):
        read_result(tmp_path, ID)


@pytest.mark.parametrize("damage", [b"", b'{"a": 2}'])
def test_a_damaged_file_counts_as_absent_and_goes(tmp_path: Path, damage: bytes) -> None:
    path = write_result(tmp_path, ID, {"a": 1})
    path.write_bytes(damage)
    assert find_result(tmp_path, ID) is None
    assert not path.exists()


def test_no_number_and_no_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_result(tmp_path, ID, {"a": float("nan")})
    with pytest.raises(ValueError, match="not a result id"):
        write_result(tmp_path, "../escape", {})
    assert not (tmp_path / "simulations").exists()
