"""An explanation as text: exact costs, ranges and what is impossible stay three different things."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.why
from catalogs.errors import CoralError
from flows.render import WIDTH, to_text
from flows.render_why import change, why_lines


def cost(low: float, high: float | None = None, *, is_impossible: bool = False) -> dict[str, Any]:
    return {"low": low, "high": high, "is_impossible": is_impossible}


def document(**changes: Any) -> dict[str, Any]:
    instead = {"region": "aws/us-east-2", "workload": "m/decode", "template_id": "t2", "combination_id": "A10Gx1*2"}
    template = {"region": "aws/us-east-2", "workload": "m/decode", "template_id": "t1", "combination_id": "L4x1*2"}
    found = {
        "scenario_id": "small",
        "plan_version": 3,
        "is_short": False,
        "cost_usd_per_h": 10.0,
        "bound_usd_per_h": 10.0,
        "has_start_up": False,
        "supply": [
            {
                "region": "aws/us-east-2",
                "node_config": "L4x1",
                "nodes": 2,
                "used": 2,
                "dual_usd_per_h": 0.3333,
                "more": cost(9.0, 9.0),
                "fewer": cost(10.0, None, is_impossible=True),
            }
        ],
        "templates": [
            template | {"instances": 1, "cost": cost(10.4, 10.9), "instead": [instead | {"instances": 2}]},
        ],
        "models": [{"model": "m", "cost": cost(10.25, 10.25), "instances": [instead | {"instances": 2}]}],
        "rules": [{"rule": "headroom", "is_on": True, "cost": cost(8.5, 8.5)}],
        "open_ends": 1,
        "solves": 5,
        "spent_s": 0.1,
    }
    return found | changes


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (cost(10.37, 10.37), "+0.37"),
        (cost(9.0, 9.0), "-1.00"),
        (cost(10.0, 10.004), "0.00"),
        (cost(10.2, 10.9), "+0.20..+0.90"),
        (cost(10.2), "at least +0.20"),
        (cost(9.9), "not known"),
        (cost(10.2, None, is_impossible=True), "impossible"),
    ],
)
def test_a_cost_as_a_change(of: dict[str, Any], text: str) -> None:
    assert change(of, document()) == text


def test_the_whole_text() -> None:
    text = to_text(why_lines(document()))
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert "Why version 3 of small looks as it does" in rows
    assert "aws/us-east-2 L4x1 2 of 2 0.33 -1.00 impossible" in rows
    assert "aws/us-east-2 m/decode 1 x L4x1*2 +0.40..+0.90" in rows
    assert "then 2 x A10Gx1*2" in rows
    assert "m +0.25" in rows
    assert "then 2 x A10Gx1*2 (decode) in aws/us-east-2" in rows
    assert "-1.50 without headroom: instances used to their whole rate" in rows
    assert "Duals are shadow prices of the LP" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_what_the_costs_are_of_is_said() -> None:
    assert "USD/h of rent" in to_text(why_lines(document()))
    text = " ".join(to_text(why_lines(document(has_start_up=True, is_short=True, supply=[]))).split())
    assert "start-up charges of one hour included" in text
    assert "cannot meet all demand" in text
    assert "No supply binds" in text


def test_what_time_left_open_is_computed_again_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept and returned is whatever leaves less open; what is closed is final."""
    plan: Any = SimpleNamespace(scenario_id="small", plan_version=3)
    closed = document(open_ends=0)
    narrow = document(models=[], rules=[], spent_s=1.0)
    template = narrow["templates"][0]
    wide = narrow | {"templates": [template | {"cost": cost(10.0, 12.0)}]}
    useless = narrow | {"templates": [template | {"cost": cost(0.0)}]}
    answers: list[Any] = [useless, wide, useless, CoralError("the frame is gone"), narrow, closed]

    def answer(*_: object) -> dict[str, Any]:
        found = answers.pop(0)
        if isinstance(found, CoralError):
            raise found
        return dict(found)

    monkeypatch.setattr(flows.why, "_explained", answer)
    got = [flows.why.plan_why(tmp_path, plan) for _ in range(8)]
    assert got == [useless, wide, wide, wide, narrow, closed, closed, closed]
    assert answers == []
    assert len(list((tmp_path / "why").iterdir())) == 1


def test_an_explanation_that_was_never_made_says_why_it_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object) -> dict[str, Any]:
        raise CoralError("the frame is gone")

    plan: Any = SimpleNamespace(scenario_id="small", plan_version=3)
    monkeypatch.setattr(flows.why, "_explained", answer)
    with pytest.raises(CoralError, match="the frame is gone"):
        flows.why.plan_why(tmp_path, plan)
