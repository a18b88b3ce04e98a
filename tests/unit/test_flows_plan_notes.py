"""What a plan says of the input it was made from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cli_plan_example import example_plan

from catalogs import load_scenario
from catalogs.init import write_starter
from flows.plan_notes import plan_warnings


def test_rows_set_aside_are_told_once(tmp_path: Path) -> None:
    write_starter(tmp_path)
    demand = tmp_path / "demand.csv"
    demand.write_text(demand.read_text() + "".join(f"nobody-{n},2025-05-01T09:00:00Z,1\n" for n in range(1000)))
    loaded = load_scenario(tmp_path)
    assert len(loaded.rejects) == 1000
    plan = example_plan().model_copy(update={"offers": ()})
    told = [note for note in plan_warnings(loaded, plan) if "set aside" in note.text]
    assert [note.code for note in told] == ["rows_set_aside"]
    assert told[0].text.startswith("1,000 input rows were set aside: demand.csv row 4")
    assert len(told[0].text) < 300
    quiet = dataclasses.replace(loaded, rejects=(), warnings=())
    assert not [note for note in plan_warnings(quiet, plan) if "set aside" in note.text]
