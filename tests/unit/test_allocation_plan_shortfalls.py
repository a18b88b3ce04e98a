"""What a plan says of a shortage: of what binds and of what would close it every other text is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from allocation_cases import R1, R2
from test_allocation_plan import FULL, SHORT, make_plan, refused, with_cell

from tasks.allocation.types import SharedQuota


@pytest.mark.parametrize(
    ("changes", "binding", "extra"),
    [
        ({}, f"L4x1 in {R1} (2 of 2)", f"+3 L4x1 in {R1} (+3.00 USD/h)"),
        ({"quotas": (SharedQuota("L gpu", R1, {"L4x1": 1}, 2),)}, "quota L gpu (2 of 2)", "quota L gpu +3"),
        ({"budget_usd_per_h": 3.5}, "budget", "budget +4.50 USD/h"),
    ],
    ids=["nodes", "quota", "budget"],
)
def test_what_binds_and_what_would_close_it_are_checked(changes: dict[str, Any], binding: str, extra: str) -> None:
    """Each in turn is all there is of it; every other text is refused."""
    p = replace(SHORT if not changes else FULL, **changes)
    document = make_plan(p).model_dump(mode="json", by_alias=True)
    assert not refused(p, document)
    (row, _) = document["shortfalls"]
    assert (binding in row["binding"].split("; "), extra in row["cheapest_extra"].split("; ")) == (True, True)
    parts = row["binding"].split("; ")
    others = ["no single configuration", "", "; ".join(parts[1:]), "; ".join([*parts, parts[0]])]
    others += ["; ".join([*parts, more]) for more in ("rule n_plus_one", f"L4x1 in {R1} (3 of 3)", "regions (1 of 2)")]
    others += [] if "budget" in parts else ["; ".join([*parts, "budget"])]
    for other in others:
        assert refused(p, with_cell(document, ("shortfalls", 0, "binding"), other)), other
    wrong = ["x", f"+0 L4x1 in {R1} (+0.00 USD/h)", f"+1 L4x1 in {R1} (+9.00 USD/h)", f"+1 L4x1 in {R2} (+1.00 USD/h)"]
    wrong += ["quota G gpu +1", f"{extra}; more", "" if "budget" in parts else f"{extra}; budget +1.00 USD/h"]
    wrong += ["another split of the present supply"] if "budget" in parts else []
    for other in wrong:
        assert refused(p, with_cell(document, ("shortfalls", 0, "cheapest_extra"), other)), other
