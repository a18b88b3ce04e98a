"""Plans: versions without gaps, never changed; states as events; every run logged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from warehouse_cases import START, new_lake, plan, run

from catalogs.errors import UnknownNameError
from catalogs.types import Availability, Basis, Lengths, Market, ModelSpec, NodeConfig, Offer, Phase, Workload
from tasks.allocation.plan import PlanState, decision_hash
from warehouse.connect import Lake
from warehouse.plan_states import current_since
from warehouse.plans import log_rejects, log_run, publish_plan
from warehouse.read import current_plan, list_plans, plan_version
from warehouse.records import DemandRow, ReferenceInputs, Reject, RunLog, RunOutcome
from warehouse.reference import plan_inputs
from warehouse.runs import regret_since

NODE = NodeConfig("L40Sx4", "L40S", 4, 179.96, "pcie", None, False, "catalog", date(2026, 7, 30))
OFFER = Offer(
    "o1",
    "aws",
    "aws/us-east-2",
    "L40Sx4",
    "g6e.12xlarge",
    Market.ON_DEMAND,
    10.5,
    None,
    False,
    date(2026, 7, 30),
    "list",
)
UNKNOWN = Availability("aws/us-east-2", "L40Sx4", Market.ON_DEMAND, "2026-07-30T00:00:00Z", None, Basis.FEED)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with new_lake(tmp_path) as opened:
        yield opened


def rows(lake: Lake, sql: str) -> list[tuple]:
    return lake.connection.execute(sql).fetchall()


def test_the_first_plan_is_version_one(lake: Lake) -> None:
    assert current_plan(lake, "core") is None
    assert list_plans(lake, "core") == []
    result = publish_plan(lake, plan(), run("r1", base=0))
    assert (result.plan_version, result.outcome) == (1, RunOutcome.PUBLISHED)
    expected = plan().model_copy(update={"plan_version": 1, "state": PlanState.PUBLISHED})
    assert result.plan == current_plan(lake, "core") == plan_version(lake, "core", 1) == expected
    assert rows(lake, "SELECT instances, throughput_tok_per_s, cost_usd_per_h FROM plan_instances") == [
        (2, 1234.5, 5.0)
    ]
    assert rows(lake, "SELECT nodes, price_usd_per_h, availability_basis FROM plan_offers") == [(2, 5.0, "assumed")]
    assert rows(lake, "SELECT missing_tok_per_s, binding FROM plan_shortfalls") == [(1.5, "L40Sx4 in aws/us-east-2")]
    assert rows(lake, "SELECT state, status, cost_usd_per_h, created_at FROM plans") == [
        ("published", "gap", 10.0, START)
    ]
    assert rows(lake, "SELECT plan_version, outcome, input_ages_s FROM allocation_runs") == [
        (1, "published", {"prices": 60.0})
    ]


def test_an_unchanged_decision_publishes_nothing_but_logs_todays_cost(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    dearer = plan(cost_usd_per_h=12.0).model_copy(update={"reason": "prices rose"})
    result = publish_plan(lake, dearer, run("r2", base=1))
    assert (result.plan_version, result.outcome) == (1, RunOutcome.UNCHANGED)
    assert result.plan is not None
    assert result.plan.cost_usd_per_h == 10.0  # the plan that stays
    assert rows(lake, "SELECT run_id, plan_version, outcome, cost_now_usd_per_h FROM allocation_runs ORDER BY 1") == [
        ("r1", 1, "published", 10.0),
        ("r2", 1, "unchanged", 12.0),
    ]
    assert rows(lake, "SELECT count(*) FROM plan_rows") == [(1,)]


def test_a_new_decision_supersedes_and_old_versions_stay_as_they_were(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    first = plan_version(lake, "core", 1)
    stored = rows(lake, "SELECT * FROM plan_rows") + rows(lake, "SELECT * FROM plan_documents")
    assert publish_plan(lake, plan(instances=3), run("r2")).plan_version == 2
    assert publish_plan(lake, plan(), run("r3")).plan_version == 3  # back to the first decision is a change too
    assert [(p.plan_version, p.state) for p in list_plans(lake, "core")] == [
        (3, "published"),
        (2, "superseded"),
        (1, "superseded"),
    ]
    assert plan_version(lake, "core", 1) == first.model_copy(update={"state": PlanState.SUPERSEDED})
    kept = rows(lake, "SELECT * FROM plan_rows WHERE plan_version = 1")
    assert kept + rows(lake, "SELECT * FROM plan_documents WHERE plan_version = 1") == stored
    assert rows(lake, "SELECT plan_version, state FROM plan_states ORDER BY plan_version, sequence") == [
        (1, "published"),
        (1, "superseded"),
        (2, "published"),
        (2, "superseded"),
        (3, "published"),
    ]


def test_old_snapshots_can_be_queried(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    then = lake.snapshot()
    publish_plan(lake, plan(instances=3), run("r2"))
    at = f"SELECT max(plan_version) FROM plan_rows AT (VERSION => {then})"
    assert rows(lake, at) == [(1,)]
    assert rows(lake, f"SELECT plan_version, state FROM plans AT (VERSION => {then})") == [(1, "published")]


def test_versions_count_per_scenario(lake: Lake) -> None:
    publish_plan(lake, plan("a"), run("r1", "a"))
    publish_plan(lake, plan("b"), run("r2", "b"))
    publish_plan(lake, plan("b", instances=3), run("r3", "b"))
    assert [(p.scenario_id, p.plan_version) for p in list_plans(lake)] == [("a", 1), ("b", 2), ("b", 1)]
    with pytest.raises(ValueError, match="scenario"):
        publish_plan(lake, plan("a"), run("r4", "b"))


def test_a_run_that_started_from_an_older_plan_is_superseded(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1", base=0))
    result = publish_plan(lake, plan(instances=3), run("r2", base=0))
    assert (result.plan_version, result.outcome) == (1, RunOutcome.SUPERSEDED)
    assert result.plan == current_plan(lake, "core")
    assert rows(lake, "SELECT outcome FROM allocation_runs ORDER BY run_id") == [("published",), ("superseded",)]
    lost = publish_plan(lake, plan("other"), run("r3", "other", base=4))
    assert (lost.plan_version, lost.outcome, lost.plan) == (0, RunOutcome.SUPERSEDED, None)


def test_two_runs_at_once_with_one_decision_are_both_right(lake: Lake) -> None:
    first = publish_plan(lake, plan(), run("r1", base=0))
    second = publish_plan(lake, plan(cost_usd_per_h=99.0), run("r2", base=0))
    assert (first.plan_version, first.outcome) == (1, RunOutcome.PUBLISHED)
    assert (second.plan_version, second.outcome) == (1, RunOutcome.UNCHANGED)
    assert second.plan == current_plan(lake, "core")
    assert rows(lake, "SELECT outcome FROM allocation_runs ORDER BY run_id") == [("published",), ("unchanged",)]


def test_the_decision_is_what_to_rent_and_run() -> None:
    base = plan()
    assert decision_hash(base) == decision_hash(plan(cost_usd_per_h=99.0))
    assert decision_hash(base) != decision_hash(plan(instances=3))
    moved = base.instances[0].model_copy(update={"region": "gcp/us-central1"})
    assert decision_hash(base) != decision_hash(base.model_copy(update={"instances": (moved,)}))
    spot = base.offers[0].model_copy(update={"market": Market.SPOT})
    assert decision_hash(base) != decision_hash(base.model_copy(update={"offers": (spot,)}))
    two = (base.offers[0], spot)
    assert decision_hash(base.model_copy(update={"offers": two})) == decision_hash(
        base.model_copy(update={"offers": two[::-1]})
    )


def test_an_unknown_version_names_those_there_are(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    with pytest.raises(UnknownNameError, match="use one of: 1"):
        plan_version(lake, "core", 22)


def test_held_and_failed_runs_are_logged_with_blanks_for_what_is_unknown(lake: Lake) -> None:
    log_run(lake, run("r1"), RunLog(RunOutcome.HELD_UNKNOWN_DEMAND))
    log_run(lake, replace(run("r2"), note="solver failed"), RunLog(RunOutcome.FAILED, 4, 7.5))
    assert rows(
        lake, "SELECT plan_version, outcome, cost_now_usd_per_h, gap, note FROM allocation_runs ORDER BY run_id"
    ) == [
        (None, "held_unknown_demand", None, None, ""),
        (4, "failed", 7.5, None, "solver failed"),
    ]


def test_what_staying_with_a_plan_has_cost(lake: Lake) -> None:
    def at(minutes: float, outcome: RunOutcome, cost: float | None = None, gap: float | None = None) -> None:
        began = replace(run(f"r{minutes}", base=None), started_at=since + timedelta(minutes=minutes))
        log_run(lake, began, RunLog(outcome, 1, cost, None, gap))

    publish_plan(lake, plan(), run("r1"))
    since = current_since(lake, "core", 1)
    assert regret_since(lake, "core", since, since + timedelta(hours=9)) == (0.0, START)
    at(6, RunOutcome.UNCHANGED, 10.0, 0.03)  # for 6 minutes: 0.03 USD
    at(12, RunOutcome.UNCHANGED, 20.0, 0.02)  # for 12, as the failed run has seen nothing: 0.08
    at(18, RunOutcome.FAILED)
    at(24, RunOutcome.UNCHANGED, 20.0, 0.0)
    now = since + timedelta(minutes=30)
    found, last = regret_since(lake, "core", since, now)
    assert (found, last) == (pytest.approx(0.11), since + timedelta(minutes=24))
    assert regret_since(lake, "core", since, since + timedelta(minutes=15))[0] == pytest.approx(0.03 + 0.02)
    assert regret_since(lake, "other", since, now) == (0.0, None)
    publish_plan(lake, plan(instances=3), run("r2"))
    later = current_since(lake, "core", 2)
    assert regret_since(lake, "core", later, later + timedelta(hours=9))[0] == 0.0


def test_rejects_are_written_once_per_ingest(lake: Lake) -> None:
    rejects = [
        Reject("offers.csv", 3, "price_usd_per_h", "", "blank price", "fill it in"),
        Reject("a.csv", 0, "", "", "x", "y"),
    ]
    assert log_rejects(lake, "i1", rejects) == 2
    assert log_rejects(lake, "i1", rejects) == 0
    assert log_rejects(lake, "i2", []) == 0
    assert rows(lake, 'SELECT file, row, "column", value, reason, remedy FROM rejects ORDER BY row DESC') == [
        ("offers.csv", 3, "price_usd_per_h", "", "blank price", "fill it in"),
        ("a.csv", 0, "", "", "x", "y"),
    ]


def test_a_failed_publication_leaves_no_part_of_a_plan(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_plan(lake, plan(), run("r1"))
    tables = (
        "plan_rows",
        "plan_documents",
        "plan_instances",
        "plan_offers",
        "plan_shortfalls",
        "plan_states",
        "allocation_runs",
    )
    before = {name: rows(lake, f"SELECT count(*) FROM {name}") for name in tables}

    def fail(*_: object) -> None:
        raise RuntimeError("at the last step")

    monkeypatch.setattr("warehouse.plans._insert_run", fail)
    with pytest.raises(RuntimeError):
        publish_plan(lake, plan(instances=3), run("r2"))
    assert {name: rows(lake, f"SELECT count(*) FROM {name}") for name in tables} == before


def test_reference_rows_are_kept_once_and_belong_to_their_plans(lake: Lake) -> None:
    cheaper = replace(OFFER, price_usd_per_h=9.5, as_of=date(2026, 8, 1))
    first = ReferenceInputs(node_configs=[NODE], offers=[OFFER], availability=[UNKNOWN])
    second = ReferenceInputs(node_configs=[NODE], offers=[cheaper], availability=[UNKNOWN])
    for i, inputs in enumerate((first, second, first), start=1):
        publish_plan(lake, plan(instances=i), run(f"r{i}"), inputs)
    assert rows(lake, "SELECT (SELECT count(*) FROM node_config_rows), (SELECT count(*) FROM offer_rows)") == [(1, 2)]
    prices = [
        plan_inputs(lake.connection, "core", v, "offers").column("price_usd_per_h").to_pylist() for v in (1, 2, 3)
    ]
    assert prices == [[10.5], [9.5], [10.5]]
    assert rows(lake, "SELECT price_usd_per_h, as_of FROM offers") == [(9.5, date(2026, 8, 1))]  # the latest date
    assert rows(lake, "SELECT network_gbit_per_s FROM node_configs") == [(None,)]
    assert rows(lake, "SELECT nodes, basis FROM availability") == [(None, "feed")]  # unknown, not zero


def test_a_price_that_goes_back_the_same_day_is_current_again(lake: Lake) -> None:
    for i, price in enumerate((10.0, 11.0, 10.0), start=1):
        publish_plan(
            lake, plan(instances=i), run(f"r{i}"), ReferenceInputs(offers=[replace(OFFER, price_usd_per_h=price)])
        )
    assert rows(lake, "SELECT price_usd_per_h FROM offers") == [(10.0,)]
    assert rows(lake, "SELECT price_usd_per_h, offer_id FROM region_prices") == [(10.0, "o1")]


def test_models_workloads_and_demand_are_recorded(lake: Lake) -> None:
    model = ModelSpec(
        "Qwen/Qwen3-32B", "qwen3-32b", "qwen3", 64, 5120, 25600, 64, 8, 128, 151936, False, 0, 0, 0, 0, 0, (0,) * 64,
        0, 0, 0, 0, 0, "bf16", 0, 40960, "config.json", date(2026, 7, 30),
    )  # fmt: skip
    workload = Workload(model, "bf16", "bf16", Phase.DECODE, 100.0, 99.0, Lengths.constant(621, 126))
    demand = [
        DemandRow("core", model.model, START, 10.0, Basis.STATED),
        DemandRow("core", model.model, START + timedelta(hours=1), None, Basis.FEED),
        DemandRow("core", model.model, START + timedelta(hours=2), 0.0, Basis.FEED),
    ]
    publish_plan(lake, plan(), run("r1"), ReferenceInputs(models=[model], workloads=[workload], demand=demand))
    assert rows(
        lake, "SELECT workload_id, alias, model, phase, slo_ms, input_mean, tokens_per_request FROM workloads"
    ) == [(workload.workload_id, "qwen3-32b/decode", "Qwen/Qwen3-32B", "decode", 100.0, 621.0, 126.0)]
    assert rows(lake, "SELECT model, layers, kv_heads FROM models") == [("Qwen/Qwen3-32B", 64, 8)]
    assert rows(lake, "SELECT demand_req_per_s, basis FROM demand ORDER BY window_start") == [
        (10.0, "stated"),
        (None, "feed"),
        (0.0, "feed"),
    ]
