"""Rules of planning that have cost people money elsewhere: what runs, what is owned, whose discount, which window."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from cli_plan_example import EXAMPLE

from catalogs import load_scenario, validate_path
from catalogs.errors import CoralError, LakeError
from catalogs.init import write_starter
from catalogs.scenario_kv import CrossRegionKvSection, kv_terms_of
from catalogs.types import Basis, Market
from flows.planning import _decide
from flows.planning_inputs import kv_gb_per_request, kv_links, shared_quotas
from flows.running import _layout
from flows.settings import BuildSettings, SilentProgress
from tasks.allocation.plan import NOT_COMPUTED, Plan, PlanBaselines, PlanShortfall, decision_hash
from warehouse.lock import LOCK_FILE, write_lock


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    write_starter(tmp_path / "mine")
    return tmp_path / "mine"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_plan_that_now_leaves_demand_unmet_is_another_decision() -> None:
    plan = Plan.model_validate(EXAMPLE)
    row = PlanShortfall(workload="m/decode", workload_id="1" * 16, missing_tok_per_s=5.0, binding="", cheapest_extra="")
    assert decision_hash(plan) != decision_hash(plan.model_copy(update={"shortfalls": (*plan.shortfalls, row)}))
    assert decision_hash(plan) == decision_hash(plan.model_copy(update={"cost_usd_per_h": 1.0}))


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_a_scheduled_run_that_keeps_its_plan_looks_for_no_baselines(
    is_scheduled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is stored already; a person who asks is shown them all the same."""
    nothing = PlanBaselines(
        homo_optimal_usd_per_h=1.0, homo_optimal_lower_bound_usd_per_h=None, homo_greedy_usd_per_h=None
    )
    kept, told = (MagicMock(), MagicMock()), []
    for name, answer in {
        "flows.planning_inputs.check_demand_known": None,
        "flows.planning_inputs.planning_inputs": MagicMock(),
        "flows.running.what_runs": None,
        "flows.steady.keep_current": kept,
        "flows.restriction.unsolved_restriction_notes": (),
        "flows.restriction.restriction_notes": (),
        "flows.plan_notes.left_out_notes": (),
        "flows.plan_frame.frame_of": {},
        "flows.planning._baselines": nothing,
    }.items():
        monkeypatch.setattr(name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr("flows.planning.plan_document", lambda *given: told.append(given[6]))
    _decide(MagicMock(), MagicMock(), "library", None, SilentProgress(), datetime.now(UTC), is_scheduled)
    (baselines,) = told
    assert baselines.note.startswith(NOT_COMPUTED) == is_scheduled
    assert (baselines == nothing) != is_scheduled


def test_quotas_over_several_machines_reach_the_allocation(starter: Path) -> None:
    loaded = load_scenario(starter)
    expected = {
        (limit.quota.region, limit.quota.limit)
        for limit in loaded.quota_limits
        if len(limit.units) > 1 and all(loaded.best_offer(limit.quota.region, c) for c in limit.units)
    }
    assert expected
    assert {(quota.region, quota.limit) for quota in shared_quotas(loaded)} == expected


def test_an_owned_machine_that_nobody_counted_is_not_there(starter: Path) -> None:
    edit(starter / "availability.csv", "own/frankfurt,L40Sx4,owned,2025-05-01T08:00:00Z,2", "")
    loaded = load_scenario(starter)
    offer = loaded.best_offer("own/frankfurt", "L40Sx4")
    assert offer is not None
    assert offer.market is Market.OWNED
    assert loaded.capacity("own/frankfurt", "L40Sx4") == (0, Basis.ASSUMED)
    assert any(code == "owned_uncounted" for code, _ in loaded.warnings)


def test_a_price_derived_from_an_own_price_takes_no_discount(starter: Path) -> None:
    edit(starter / "scenario.yaml", "  # only_sold: false ", "  only_sold: false  # ")
    loaded = load_scenario(starter)
    one, two, four = (loaded.best_offer("aws/eu-central-1", f"L40Sx{n}") for n in (1, 2, 4))
    assert one is not None
    assert two is not None
    assert four is not None
    assert one.price_usd_per_h == pytest.approx(2.10)  # the own price, not less 12 %
    # Per GPU a third of the way from x1 to x4; the list price of x4 is less 12 % already.
    per_gpu = 2.10 + (four.price_usd_per_h / 4 - 2.10) / 3
    assert two.price_usd_per_h == pytest.approx(2 * per_gpu, abs=1e-6)


def test_a_demand_window_that_has_not_begun_is_not_planned(starter: Path) -> None:
    demand = starter / "demand.csv"
    if "demand:" not in (starter / "scenario.yaml").read_text(encoding="utf-8"):
        pytest.skip("the starter names no demand file")
    lines = demand.read_text(encoding="utf-8").splitlines()
    header = lines[0].split(",")
    model = next(d.model for d in load_scenario(starter).model_demands if d.basis is Basis.FEED)
    future = {"model": model, "window_start": "2099-01-01T00:00:00Z", "demand_req_per_s": "77", "source": "test"}
    demand.write_text("\n".join([*lines, ",".join(future.get(name, "") for name in header)]) + "\n", encoding="utf-8")
    now = datetime(2026, 11, 29, tzinfo=UTC)
    stated = {d.model: d.stated_req_per_s for d in load_scenario(starter, at=now).model_demands}
    assert stated[model] != 77


def test_the_same_nodes_laid_out_otherwise_are_not_the_same_instance() -> None:
    node = {"node_config": "L4x2", "tp": 2, "pp": 1, "replicas": 1, "share": 0.5}
    other = node | {"tp": 1, "replicas": 2}
    assert _layout([((0, 9), [node, other])]) == _layout([((0, 9), [other, node | {"share": 0.4}])])
    assert _layout([((0, 9), [node])]) != _layout([((0, 9), [other])])
    assert _layout([((0, 9), [node])]) != _layout([((0, 8), [node])])


def test_a_region_given_twice_is_a_finding(starter: Path) -> None:
    path = starter / "scenario.yaml"
    edit(path, "  - model: qwen3-8b ", "  - regions: [aws/eu-central-1, aws/eu-central-1]\n    model: qwen3-8b ")
    assert any("is there twice" in finding.reason for finding in validate_path(starter))


def test_a_lake_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).mkdir()  # opening it for writing fails, for root too
    with pytest.raises(LakeError, match="cannot be written"), write_lock(tmp_path, "test"):
        pass


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_a_full_disk_says_so_where_a_lock_is_taken(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(f"warehouse.lock.os.{call}", refuse)
        with (
            pytest.raises(LakeError, match="the disk is full: nothing was changed"),
            write_lock(tmp_path, "t"),
        ):
            pass
    with write_lock(tmp_path, "t"):  # it was given back
        pass


def test_terms_for_kv_between_regions_reach_the_allocation(starter: Path) -> None:
    loaded = load_scenario(starter)
    assert kv_links(loaded) == ()
    assert kv_gb_per_request(loaded, loaded.model_demands[0]) == 0.0
    first, second = sorted(loaded.regions)
    section = {"usd_per_gb": 0.02, "gbit_per_s": 10, "pairs": [{"from": first, "to": second, "usd_per_gb": 0.1}]}
    terms = CrossRegionKvSection.model_validate(section)
    loaded = BuildSettings(scenario=starter, lake_root=starter, cross_region_kv=terms).with_policy(loaded)
    links = {(link.source, link.target): (link.usd_per_gb, link.gbit_per_s) for link in kv_links(loaded)}
    assert links == {(first, second): (0.1, 10.0), (second, first): (0.02, 10.0)}
    alone = CrossRegionKvSection.model_validate({"pairs": [{"between": [first, second], "usd_per_gb": 0.1}]})
    assert alone.terms(loaded.regions) == {(first, second): (0.1, None), (second, first): (0.1, None)}
    # 2 (K and V) x KV heads x head size x 2 bytes in each layer, for each token of the mean prompt.
    core = BuildSettings(scenario="core", lake_root=starter, cross_region_kv=terms).with_policy(load_scenario("core"))
    workload = next(w for w in core.workloads if w.model.alias == "phi-4")
    demand = next(d for d in core.model_demands if workload.workload_id in d.workload_ids)
    token = 2 * 10 * 128 * 2 * 40  # phi-4: 10 KV heads of 128 in 40 layers, bf16
    assert kv_gb_per_request(core, demand) == pytest.approx(token * workload.lengths.input_mean / 1e9)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("{}", "no catalog has what a GB"),
        ("{gbit_per_s: 5}", "no catalog has what a GB"),
        ("{usd_per_gb: 0.02, gigabit: 5}", "unknown key"),
        ("{usd_per_gb: -1}", "is negative"),
        ("{pairs: [{between: [aws/us-east-2, aws/us-east-2], usd_per_gb: 1}]}", "a pair is of two regions"),
        ("{pairs: [{from: aws/us-east-2, usd_per_gb: 1}]}", "a pair is of two regions"),
        ("{pairs: [{from: aws/us-east-2, to: aws/nowhere, usd_per_gb: 1}]}", "is none of offers.regions"),
    ],
)
def test_terms_for_kv_that_are_none(starter: Path, terms: str, words: str) -> None:
    edit(starter / "scenario.yaml", "policy:\n", f"policy:\n  cross_region_kv: {terms}\n")
    findings = validate_path(starter)
    assert words in "; ".join(f"{f.reason} {f.remedy}" for f in findings)


@pytest.mark.parametrize("text", ["", "free", "-1", "0.02,", "0.02,10,1", "nan"])
def test_a_price_for_kv_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(CoralError, match="is no price"):
        kv_terms_of(text)
    assert kv_terms_of("0.02,10") == CrossRegionKvSection(usd_per_gb=0.02, gbit_per_s=10)
