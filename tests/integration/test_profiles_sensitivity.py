"""``coral profiles sensitivity`` on a small scenario: factors move plans the right way, draws repeat with their seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import coral
from flows_cases import write_scenario

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("commands_share_a_server")]


def study(folder: Path, *options: str) -> dict:
    done = coral("profiles", "sensitivity", "-s", "scenario.yaml", "--n-max", "1", "--json", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cost_moves_with_factors_and_regret_repeats(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    names = ("--factor", "usable memory", "--factor", "speed of L40S", "--change", "40")
    found = study(tmp_path, *names, "--draws", "8", "--seed", "5")
    base = found["base"]["cost_usd_per_h"]
    for row in found["factors"]:
        assert row["better"]["cost_usd_per_h"] <= base + 1e-9
        assert row["worse"]["cost_usd_per_h"] is None or row["worse"]["cost_usd_per_h"] >= base - 1e-9
    slower = next(row for row in found["factors"] if row["factor"] == "speed of L40S")["worse"]
    assert slower["cost_usd_per_h"] > base or slower["gpus"] != found["base"]["gpus"]
    plain, safe = found["regret"]
    assert (plain["safety_percentile"], safe["safety_percentile"]) == (None, 90)
    assert plain["cost_usd_per_h"] == pytest.approx(base)
    assert safe["cost_usd_per_h"] >= plain["cost_usd_per_h"]
    assert safe["share_met"] >= plain["share_met"]
    assert 0 < plain["worst_met_share"] <= 1
    again = study(tmp_path, "--factor", "usable memory", "--draws", "8", "--seed", "5")
    assert again["regret"] == found["regret"]


def test_an_unknown_factor_is_refused_with_a_close_match(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    done = coral("profiles", "sensitivity", "-s", "scenario.yaml", "--factor", "usable memry", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown factor 'usable memry'. To fix: did you mean usable memory" in done.stderr
