"""What a plan says of the input it was made from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from cli_plan_example import example_plan

from catalogs import load_scenario
from catalogs.init import write_starter
from catalogs.scenario import LoadedScenario
from flows.plan_notes import left_out_notes, plan_reason, plan_warnings
from tasks.allocation.plan import PlanStage


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


def test_a_plan_whose_headroom_nobody_simulated_says_so(tmp_path: Path) -> None:
    write_starter(tmp_path)
    plan = example_plan().model_copy(update={"offers": ()})
    assert "not_simulated" not in {note.code for note in plan_warnings(load_scenario(tmp_path), plan)}
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("headroom: auto", "headroom: start"))
    loaded = load_scenario(tmp_path)
    (note,) = [note for note in plan_warnings(loaded, plan) if note.code == "not_simulated"]
    assert note.text.startswith(
        "headroom is as stated (0.8 of the rate for prefill, 0.9 for decode): nothing was simulated"
    )
    nothing = plan.model_copy(update={"instances": ()})
    assert "not_simulated" not in {note.code for note in plan_warnings(loaded, nothing)}


def test_configurations_that_their_network_rules_out_are_told_in_one_line() -> None:
    """phi-4 keeps 40 layers x 2 x 10 heads x 128 x 2 bytes of a token: 1,155 of them take 946 ms at 80 % of 2.5 Gbit/s, which
    leaves 254 ms of 1,200 to an L40S that needs some 150 for a pass and as much for the wait before it."""
    loaded = load_scenario("core")
    (note,) = left_out_notes(loaded)
    assert note.text.startswith("configs ruled out for prefill on one node by their network: ")
    assert note.text.endswith(". Decode is not ruled out")
    assert "L40Sx1 (2.5 Gbit/s) for phi-4" in note.text
    assert "\n" not in note.text
    assert "L40Sx4" not in note.text
    idle = [dataclasses.replace(demand, planned_req_per_s=0.0) for demand in loaded.model_demands]
    assert left_out_notes(dataclasses.replace(loaded, model_demands=tuple(idle))) == ()


def test_rates_that_the_network_caps_are_told() -> None:
    """Of gpt-oss-20b's layers half see 128 tokens: six hold 2 x 8 heads x 64 x 2 bytes of 3 x (2,048 + 128) tokens of a prompt,
    13.4 MB, or 477,477 bytes for each of 28 tokens; with 2 x 2,880 of activations 483,237. At 80 % of 2.5 Gbit/s: 517 tok/s."""
    loaded = load_scenario("core")
    workload = next(w for w in loaded.workloads if w.alias == "gpt-oss-20b/decode")
    node = example_plan().instances[0].stages[0].nodes[0].model_copy(update={"node_config": "L4x1", "share": 1.0})
    stages = [PlanStage(layers=(6 * s, 6 * s + 5), position=p, nodes=(node,)) for s, p in enumerate(("first", "mid"))]

    def notes(rate: float, scenario: LoadedScenario = loaded, **more: str) -> list[str]:
        row = {"workload": workload.alias, "workload_id": workload.workload_id, "stages": tuple(stages)}
        row |= {"throughput_tok_per_s": rate, "provenance": "fitted"} | more
        plan = example_plan().model_copy(update={"instances": (example_plan().instances[0].model_copy(update=row),)})
        plan = plan.model_copy(update={"offers": ()})
        return [note.text for note in plan_warnings(scenario, plan) if note.code == "network_full"]

    told = "what the network carries (KV, activations) caps the rate, not the GPUs: gpt-oss-20b/decode on L4x1 (2.5 Gbit/s)"
    assert notes(517.3) == [told]
    assert notes(510.0) == notes(517.3, provenance="measured") == []
    library = loaded.scenario.library.model_copy(update={"mode": "paper"})
    paper = dataclasses.replace(loaded, scenario=loaded.scenario.model_copy(update={"library": library}))
    assert notes(517.3, paper) == []


def test_a_version_says_that_what_the_last_one_rents_is_gone() -> None:
    loaded = load_scenario("core")
    some = loaded.offers[0]
    rented = {"region": some.region, "market": some.market, "node_config": some.node_config}
    offers = [row.model_copy(update={**rented, "instance_type": name, "offer_id": name}) for row in example_plan().offers[:1]
              for name in (some.instance_type, "x9.large")]  # fmt: skip
    last = example_plan().model_copy(update={"offers": tuple(offers)})
    plan = last.model_copy(update={"offers": tuple(offers[:1])})
    assert plan_reason(loaded, plan, last) == f"x9.large in {some.region} is not on offer any more"
    assert plan_reason(loaded, plan, plan) == "other inputs changed"
    assert plan_reason(loaded, plan, None) == "first plan"


def test_a_gpu_without_factors_is_named_once() -> None:
    loaded = load_scenario("core")
    factors = {gpu: factors for gpu, factors in loaded.catalog.efficiencies.items() if gpu != "A10G"}
    bare = dataclasses.replace(loaded, catalog=dataclasses.replace(loaded.catalog, efficiencies=factors))
    told = {note.code: note.text for note in left_out_notes(bare)}
    assert "no profile, so never rented: A10Gx1, A10Gx4, A10Gx8;" in told["unprofiled"], "of every model: none is named"
    assert "A10G" not in told["network"]
