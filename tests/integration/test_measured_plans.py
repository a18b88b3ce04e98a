"""What is measured, what is borrowed and how sure a rate is: from a scenario's own files through to its plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import coral
from flows_cases import write_scenario

from tasks.allocation.plan import Plan

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("commands_share_a_server")]

# An L40S that decodes phi-4 ten times faster than the model says: the plan cannot but use it.
MEASURED = """\
node_config,model,phase,layers,position,stages,cycle_ms,throughput_tok_per_s,tp,pp,replicas,rel_error,as_of
L40Sx1,phi-4,decode,40,only,1,,9000,1,1,1,0.02,2025-05-01
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario planned over its measured rate."""
    folder = tmp_path_factory.mktemp("measured")
    scenario = write_scenario(folder)
    # Headroom by simulation would judge a measured rate by modelled times; here the rates themselves are looked at.
    stated = scenario.read_text().replace("headroom: auto", "headroom: {prefill: 0.8, decode: 0.9}")
    scenario.write_text(stated)
    (folder / "rates.csv").write_text(MEASURED)
    added = coral("profiles", "add", "rates.csv", "-s", scenario, cwd=folder)
    assert added.returncode == 0, added.stderr
    planned = coral("plan", "-s", scenario, "--workers", "2", "--lake", "lake", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    return folder


def allocate(folder: Path, *options: str) -> Plan:
    done = coral("allocate", "-s", "scenario.yaml", "--lake", "lake", "--json", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return Plan.model_validate(json.loads(done.stdout))


def test_a_measured_rate_reaches_the_plan_as_such(folder: Path) -> None:
    plan = allocate(folder)
    (phi,) = [i for i in plan.instances if i.workload == "phi-4/decode"]
    assert (phi.combination_id, phi.provenance, phi.rel_error) == ("L40Sx1*1", "measured", 0.02)
    assert phi.throughput_tok_per_s == 9000.0


def test_borrowed_ground_is_said_and_left_out_on_demand(folder: Path) -> None:
    plan = allocate(folder)
    grounds = {i.workload: i.provenance for i in plan.instances}
    assert "borrowed" in grounds.values() or "derived" in grounds.values()
    assert any(w.code in ("borrowed_profiles", "derived_profiles") for w in plan.warnings)
    only = allocate(folder, "--measured-only")
    assert {i.provenance for i in only.instances} <= {"measured", "fitted"}
    assert {w.code for w in only.warnings} >= {"measured_only"}
    # A10G has nothing measured, and gpt-oss's experts on L4 are borrowed: neither is in it.
    assert all("A10G" not in i.combination_id for i in only.instances)
    assert all("L4x" not in i.combination_id for i in only.instances if i.workload.startswith("gpt-oss"))
    assert only.cost_usd_per_h + only.init_usd >= plan.lower_bound_usd_per_h - 1e-9


def test_launchable_only_says_what_it_costs(folder: Path) -> None:
    plan, only = allocate(folder), allocate(folder, "--launchable-only")
    assert {i.launch_class.value for i in only.instances} <= {"A", "B1"}
    (note,) = [w for w in only.warnings if w.code == "launchable_only"]
    assert "instead of" in note.text or "no extra cost" in note.text
    assert plan.inputs.hash != only.inputs.hash
    assert not [w for w in plan.warnings if w.code == "launchable_only"]
    both = allocate(folder, "--launchable-only", "--measured-only")
    assert {w.code for w in both.warnings} >= {"launchable_only", "measured_only"}
    assert {i.launch_class.value for i in both.instances} <= {"A", "B1"}
    assert {i.provenance for i in both.instances} <= {"measured", "fitted"}


def test_launchable_templates_and_their_profiles_can_be_queried(folder: Path) -> None:
    query = """SELECT count(*) FILTER (f.filter_id = 'launchable' AND t.launch_class NOT IN ('A', 'B1')) AS odd,
        count(*) FILTER (f.filter_id = 'launchable' AND t.launch_class = 'B1') > 0 AS some
        FROM template_frontier f JOIN templates t USING (library_id, template_id)"""
    done = coral("sql", query, "--lake", "lake", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"odd": 0, "some": True}]
    # Every node of a pipeline of equal nodes has its rate in one of the two views.
    query = """WITH rows AS (FROM profiles UNION ALL BY NAME FROM launch_profiles)
        SELECT count(*) AS nodes, count(r.throughput_tok_per_s) AS found
        FROM templates t JOIN template_stages s USING (template_id) LEFT JOIN rows r
            ON r.workload_id = t.workload_id AND r.node_config = s.node_config AND r.stages = t.n_stages
            AND r.position = s.position AND r.cycle_ms = t.cycle_ms AND r.layers = s.layer_end - s.layer_start + 1
            AND r.tp = s.tp AND r.replicas = s.replicas AND floor(r.throughput_tok_per_s * 1000) = s.throughput_mtok_per_s
        WHERE t.launch_class = 'B1'"""
    done = coral("sql", query, "--lake", "lake", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (counted,) = json.loads(done.stdout)
    assert counted["nodes"] == counted["found"] > 0


def test_safety_lowers_every_rate_by_its_error(folder: Path) -> None:
    plan, safe = allocate(folder), allocate(folder, "--safety", "p90")
    (phi,) = [i for i in safe.instances if i.workload == "phi-4/decode"]
    assert phi.throughput_tok_per_s == pytest.approx(9000 / (1 + 1.6062 * 0.02), abs=0.5)
    assert "safety" in {w.code for w in safe.warnings}
    assert plan.inputs.hash != safe.inputs.hash
    assert safe.cost_usd_per_h + safe.init_usd >= plan.lower_bound_usd_per_h - 1e-9


def test_sql_shows_the_ground(folder: Path) -> None:
    query = "SELECT DISTINCT provenance FROM profiles WHERE throughput_tok_per_s IS NOT NULL ORDER BY 1"
    done = coral("sql", query, "--lake", "lake", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert {"borrowed", "derived", "fitted", "measured"} <= set(done.stdout.split())
