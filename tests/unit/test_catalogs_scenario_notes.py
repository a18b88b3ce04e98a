"""What a scenario is told of values that are allowed and hardly meant, and of names nearly right."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogs.errors import CoralError
from catalogs.init import write_starter
from catalogs.scenario import load_scenario
from catalogs.scenario_files import scenario_path


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    write_starter(tmp_path / "mine")
    return tmp_path / "mine"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_scenario_of_ones_own_is_found_by_a_name_nearly_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_starter(tmp_path / "mine")
    (tmp_path / "prod.yaml").write_text("schema: 1")
    (tmp_path / "mind").mkdir()  # holds none
    monkeypatch.chdir(tmp_path)
    for wrong, near in (
        ("minee", "mine"),
        ("./minee", "mine"),
        ("cor", "core"),
        ("prd.yaml", "prod.yaml"),
        ("mine/scenari.yaml", "mine/scenario.yaml"),
        ("mien/scenario.yaml", "mine/scenario.yaml"),
        (str(tmp_path / "mines" / "scenario.yaml"), str(tmp_path / "mine" / "scenario.yaml")),
    ):
        with pytest.raises(CoralError) as caught:
            scenario_path(wrong)
        assert caught.value.remedy == f"did you mean {near}?"
    for wrong in ("nothing/like/it.yaml", "zzzzzz.yaml"):
        with pytest.raises(CoralError, match="does not exist") as caught:
            scenario_path(wrong)
        assert caught.value.remedy == "check the path, or run `coral init DIR`"


def test_seconds_for_milliseconds_are_suspected(starter: Path) -> None:
    edit(starter / "scenario.yaml", "ttft_ms: 1000", "ttft_ms: 1.6")
    assert "were seconds meant?" in dict(load_scenario(starter).warnings)["unit_suspect"]


def test_shares_for_per_cent_are_suspected(starter: Path) -> None:
    path = starter / "scenario.yaml"
    written = path.read_text()
    assert "unit_suspect" not in dict(load_scenario(path).warnings)
    for stated, share, meant in (
        ("cost_rise_pct: 20", "cost_rise_pct: 0.2", "cost_rise_pct is 0.2 %; were 20 % meant?"),
        ("capacity_fall_pct: 30", "capacity_fall_pct: 0.3", "capacity_fall_pct is 0.3 %; were 30 % meant?"),
        ("hysteresis_pct: 1 ", "hysteresis_pct: 0.01 ", "hysteresis_pct is 0.01 %; were 1 % meant?"),
        ("discount_pct: {aws: 12}", "discount_pct: {aws: 0.12}", "discount_pct of aws is 0.12 %; were 12 % meant?"),
    ):
        path.write_text(written)
        edit(path, stated, share)
        line = 1 + written[: written.index(stated)].count("\n")
        assert dict(load_scenario(path).warnings)["unit_suspect"] == f"scenario.yaml, line {line}: {meant}"


@pytest.mark.parametrize("value", ["0", "0.5", "null"])
def test_small_per_cents_that_are_meant(starter: Path, value: str) -> None:
    edit(starter / "scenario.yaml", "hysteresis_pct: 1 ", f"hysteresis_pct: {value} ")
    edit(starter / "scenario.yaml", "cost_rise_pct: 20", f"cost_rise_pct: {'1' if value == '0.5' else value}")
    assert "unit_suspect" not in dict(load_scenario(starter).warnings)


def test_a_start_longer_than_its_plan_is_said(starter: Path) -> None:
    edit(starter / "scenario.yaml", "  init_minutes: 6 ", "  init_minutes: 60.5 ")
    text = dict(load_scenario(starter).warnings)["start_outlasts_plan"]
    assert "init_minutes 60.5 is longer than interval_minutes 60" in text
    edit(starter / "scenario.yaml", "  init_minutes: 60.5 ", "  init_minutes: 60 ")
    assert "start_outlasts_plan" not in dict(load_scenario(starter).warnings)
