"""Expected outcomes raised in a worker process arrive as themselves."""

from __future__ import annotations

import pickle

import pytest

from catalogs.errors import (
    CoralError,
    Finding,
    InputError,
    LakeError,
    NothingFitsError,
    ShortfallError,
    UnknownNameError,
)

FINDING = Finding("offers.csv", 3, "price_usd_per_h", "-1", "is negative", "write a price above 0")


@pytest.mark.parametrize(
    "error",
    [
        CoralError("a", remedy="b"),
        NothingFitsError("needs 12.0 GiB more", remedy="raise rho"),
        ShortfallError("short"),
        LakeError("locked", remedy="wait"),
        InputError([FINDING, FINDING]),
        UnknownNameError("GPU", "H10", ["H100-SXM", "L4"], where="offers.csv, row 2"),
    ],
)
def test_an_error_survives_the_way_between_processes(error: CoralError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.exit_code == error.exit_code
    assert vars(back) == vars(error)
