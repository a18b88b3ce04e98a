"""Every number of a scenario has a lowest and a highest value; what lies outside is one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel
from scenario_cases import NUMBERS, M, Path_, assert_one, check, key, with_value

from catalogs.scenario_parts import Within
from catalogs.scenario_schema import LEAST_DEMAND, MOST_DEMAND, MOST_NODES, Scenario
from catalogs.tables import DATA_DIR, schema_of

HUGE_OR_TINY = [1e308, 1.7976931348623157e308, 2**63, 10**25, 10**400, -(10**400), 1e-300, 5e-324]


@pytest.mark.parametrize("path", NUMBERS, ids=key)
def test_numbers_outside_their_bounds(tmp_path: Path, path: Path_) -> None:
    for value in HUGE_OR_TINY:
        findings = check(tmp_path, with_value(path, value))
        if 0 < value < 1 and path in HARMLESS_AT_ALMOST_NOTHING:
            assert findings == []
            continue
        (finding,) = findings
        assert (finding.column, finding.file) == (key(path), "scenario.yaml")
        assert finding.reason in ONLY_REASONS
        assert NUMBERS[path][1] in finding.remedy
        assert len(finding.line()) < 300
        if finding.reason == "is out of range" and abs(value) < 1e200:
            assert " from " in finding.remedy


# A discount, a hit rate or a start that are next to nothing are nothing.
HARMLESS_AT_ALMOST_NOTHING = (
    {(*M, "prefix_hit_rate"), ("offers", "discount_pct", "aws")}
    | {("policy", name) for name in ("init_minutes", "max_spot_share", "spot_interrupt_per_h", "spot_recovery_minutes")}
    | {(*M, "max_spot_share")}
)
ONLY_REASONS = {
    "is out of range",
    "is negative",
    "is not a whole number",
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*M, "prefix_hit_rate"), 0.9999999999),
        ((*M, "lengths", "input"), 0.5),
        ((*M, "lengths", "output"), 0.5),
        ((*M, "slo", "ttft_ms"), 1e300),
        ((*M, "demand_req_per_s"), 0.00001),
        ((*M, "slo", "percentile"), 99.99999),
        (("policy", "demand_percentile"), 99.9999999999),
        (("offers", "discount_pct", "aws"), 99.999),
        (("availability", "default_nodes"), 100_001),
        (("library", "n_max"), 9),
    ],
    ids=lambda v: key(v) if isinstance(v, tuple) else None,
)
def test_numbers_just_outside(tmp_path: Path, path: Path_, value: float) -> None:
    assert_one(check(tmp_path, with_value(path, value)), path, str(value), "is out of range", NUMBERS[path][1])


def bounds_of(kind: Any, name: str = "") -> Iterator[tuple[str, Within | None]]:
    """(name, bounds) of every number in a section and in those below it; None where a number has no bounds."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        marks = [mark for mark in parts[1:] if isinstance(mark, Within)]
        yield from [(name, marks[0])] if marks else bounds_of(parts[0], name)
    elif parts and origin is not Literal:
        for part in parts:
            yield from bounds_of(part, name)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for field, hint in get_type_hints(kind, include_extras=True).items():
            yield from bounds_of(hint, field)
    elif kind in (int, float):
        yield name, None


def test_every_number_is_bounded_and_documented() -> None:
    found = dict(bounds_of(Scenario))
    assert found.keys() >= {str(path[-1]) for path in NUMBERS if path[-1] not in {"aws", "percentile"}}
    assert [name for name, bounds in found.items() if bounds is None] == []
    text = (DATA_DIR / "README.md").read_text().split("## Bounds of a scenario's numbers")[1].split("\n## ")[0]
    stated = {
        name.rsplit(".", 1)[-1]: (float(low), float(high))
        for keys, low, high in re.findall(r"^\| (.+) \| ([0-9.]+) \| ([0-9.]+) \|$", text, re.MULTILINE)
        for name in re.findall("`([a-z_.]+)`", keys)
        if name not in {"lengths", "headroom"}
    }
    assert stated == {name: (bounds.low, bounds.high) for name, bounds in found.items() if bounds}


def test_demand_has_the_same_bounds_in_the_scenario_and_in_the_demand_file() -> None:
    column = schema_of("demand").by_name["demand_req_per_s"]
    assert (column.low, column.high, column.or_zero) == (LEAST_DEMAND, MOST_DEMAND, True)
    assert schema_of("availability").by_name["nodes"].high == MOST_NODES


@pytest.mark.parametrize(
    ("value", "shown", "near"),
    [
        ("atuo", "atuo", "did you mean auto? "),
        ("Start", "Start", "did you mean start? "),
        ("80%", "80%", ""),
        (0.8, "0.8", ""),
        ([0.8, 0.9], "", ""),
    ],
)
def test_no_headroom_says_which_words_and_shares_there_are(tmp_path: Path, value: Any, shown: str, near: str) -> None:
    (finding,) = check(tmp_path, with_value(("policy", "headroom"), value))
    assert finding.reason == "is neither auto nor start nor a share for each phase"
    assert finding.remedy == near + "allowed: auto, start or stated shares such as {prefill: 0.8, decode: 0.9}"
    assert (finding.column, finding.value or "") == ("policy.headroom", shown)
