"""Explanations, what-if and comparison on a small scenario planned once, as a user runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import coral

sys.path.insert(0, str(Path(__file__).parents[1]))

from flows_cases import write_scenario

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("commands_share_a_server")]

FLEET = """\
region,instance_type,count,model,phase,tp,pp,replicas
us-east-2,g6e.12xlarge,2,phi-4,prefill,1,1,4
us-east-2,g6e.12xlarge,2,phi-4,decode,2,1,2
us-east-2,g6.xlarge,4,gpt-oss-20b,prefill,1,1,1
us-east-2,g6.xlarge,6,gpt-oss-20b,decode,1,3,1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose scenario is planned once."""
    root = tmp_path_factory.mktemp("explain")
    scenario = write_scenario(root)
    # Stated shares, for what is simulated has tests of its own and takes half a minute here.
    stated = scenario.read_text().replace("headroom: auto", "headroom: {prefill: 0.6, decode: 0.7}")
    assert "0.6" in stated
    scenario.write_text(stated)
    done = coral("plan", "-s", "scenario.yaml", "--workers", "2", cwd=root)
    assert done.returncode == 0, done.stderr
    return root


def asked(folder: Path, *args: str) -> dict[str, Any]:
    done = coral(*args, "-s", "scenario.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_why_is_computed_once_and_agrees_with_the_plan(folder: Path) -> None:
    first = asked(folder, "plans", "show", "--why")
    plan, why = first["plan"], first["why"]
    assert why["cost_usd_per_h"] == pytest.approx(plan["cost_usd_per_h"])
    assert why["open_ends"] == 0
    assert {(t["region"], t["template_id"]) for t in why["templates"]} == {
        (i["region"], i["template_id"]) for i in plan["instances"]
    }
    # Taking a choice away never makes the best plan cheaper, giving headroom back never dearer.
    for row in (*why["templates"], *why["models"]):
        assert row["cost"]["is_impossible"] or row["cost"]["high"] >= plan["cost_usd_per_h"] * (1 - 1e-6)
    headroom = next(r for r in why["rules"] if r["rule"] == "headroom")
    assert headroom["cost"]["high"] == pytest.approx(plan["baselines"]["full_use_usd_per_h"])
    assert len(list((folder / ".coral" / "why").glob("*.json"))) == 1
    assert asked(folder, "plans", "show", "--why") == first  # seconds spent and all: it was kept
    text = coral("plans", "show", "--why", "-s", "scenario.yaml", cwd=folder).stdout
    assert "Why version 1 of small looks as it does" in text


def test_a_template_forbidden_alone_costs_what_a_plan_without_it_does(folder: Path) -> None:
    """Against whatif: without every machine kind that the dearest template uses, nothing cheaper than without it."""
    why = asked(folder, "plans", "show", "--why")["why"]
    row = max(why["templates"], key=lambda r: r["cost"]["high"] or 0.0)
    kinds = {part.rpartition("*")[0] for part in row["combination_id"].split("+")}
    options = [option for kind in sorted(kinds) for option in ("--without", kind)]
    after = asked(folder, "whatif", *options)["after"]["cost_usd_per_h"]
    assert row["cost"]["low"] <= after + 1e-6


def test_no_change_in_effect_changes_nothing(folder: Path) -> None:
    found = asked(folder, "whatif", "--without", "H100")
    assert found["cost_delta_usd_per_h"] == pytest.approx(0.0, abs=1e-9)
    assert all(not (row["add"] or row["remove"]) for row in found["instances"])
    assert any("changes nothing" in note for note in found["notes"])


def test_dearer_machines_and_more_demand_cost_more(folder: Path) -> None:
    dearer = asked(folder, "whatif", "--price", "*=+10%")
    # The same machines cost 10 % more, and what else there is does too.
    assert dearer["after"]["cost_usd_per_h"] == pytest.approx(1.1 * dearer["before"]["cost_usd_per_h"], rel=1e-4)
    more = asked(folder, "whatif", "--demand", "phi4=+400%")
    assert more["cost_delta_usd_per_h"] > 0
    done = coral("whatif", "--supply", "*:*=0", "-s", "scenario.yaml", cwd=folder)
    assert done.returncode == 4
    assert "DEMAND NOT MET" in done.stdout
    versions = json.loads(coral("plans", "list", "--json", cwd=folder).stdout)
    assert [row["plan_version"] for row in versions] == [1]  # nothing was published


def test_a_changed_slo_says_what_to_build_and_builds_it_when_told(folder: Path) -> None:
    done = coral("whatif", "--slo", "phi4.decode=45", "-s", "scenario.yaml", cwd=folder)
    assert done.returncode == 2
    assert "no templates of phi-4.decode=45" in done.stderr
    assert "--slo phi-4.decode=45 --build" in done.stderr
    built = asked(folder, "whatif", "--slo", "phi4.decode=45", "--build")
    assert built["changes"] == ["TPOT of phi-4 60 -> 45 ms"]
    assert {row["workload"] for row in built["plan"]["workloads"] if row["slo_ms"] == 45} == {"phi-4/decode"}
    again = asked(folder, "whatif", "--slo", "phi4.decode=45")
    assert again["after"]["cost_usd_per_h"] == pytest.approx(built["after"]["cost_usd_per_h"])
    asked(folder, "whatif", "--demand", "phi4=+1%")  # the scenario's own library is where it was


def test_todays_fleet_is_compared(folder: Path) -> None:
    (folder / "fleet.csv").write_text(FLEET)
    found = asked(folder, "compare", "--fleet", "fleet.csv")
    assert found["saving_usd_per_h"] == pytest.approx(found["cost_today_usd_per_h"] - found["cost_plan_usd_per_h"])
    assert found["short"] == []
    assert found["steps"][-1]["rent_usd_per_h"] == pytest.approx(found["cost_plan_usd_per_h"])
    assert all(step["covers"] >= 1 - 1e-9 for step in found["steps"] if step["covers"] is not None)
    text = coral("compare", "--fleet", "fleet.csv", "-s", "scenario.yaml", cwd=folder).stdout
    assert "What runs today against version 1 of small" in text
    (folder / "bad.csv").write_text(FLEET.replace("g6.xlarge,4,gpt-oss-20b", "g6.xlarg,4,gpt-oss"))
    bad = coral("compare", "--fleet", "bad.csv", "-s", "scenario.yaml", cwd=folder)
    assert bad.returncode == 2
    assert len(bad.stderr.splitlines()) == 2
    assert "g6.xlarge" in bad.stderr
