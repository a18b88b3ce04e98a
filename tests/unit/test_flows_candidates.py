"""What a plan chooses from under each policy, and how the cost of a restriction is put."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from catalogs.errors import NothingFitsError
from catalogs.scenario_schema import PolicySection
from flows import restriction
from flows.candidates import active_rules, candidates
from flows.restriction import restriction_text
from tasks.allocation.types import AllocationResult, Instance, SolveStatus
from tasks.templates.combinations import counts_of
from tasks.templates.lossless import candidate_set
from warehouse import read

#       id       combination            rate  class  ground      error
ROWS = [
    ("a", "L4x1*1", 10_000, "A", "fitted", 0.1),
    ("b", "T4x1*1", 10_000, "A", "borrowed", 0.5),
    ("ab", "L4x1*1+T4x1*1", 20_000, "C", "fitted", 0.0),  # as much as a and b: not on the frontier
    ("aa", "L4x1*2", 25_000, "C", "fitted", 0.1),
    ("aa1", "L4x1*2", 22_000, "B1", "measured", 0.1),
]
COLUMNS = ("template_id", "combination_id", "throughput_mtok_per_s", "launch_class", "provenance", "rel_error")
STORED = {"all": ["aa", "a", "b"], "measured": ["aa", "a"], "launchable": ["aa1", "a", "b"]}
WORKLOAD: Any = SimpleNamespace(workload_id="w", alias="toy/decode")


def table(rows: list[tuple]) -> pa.Table:
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)})


@pytest.fixture(autouse=True)
def lake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A lake of the rows above; the frontiers that were read."""
    asked: list[str] = []

    def frontier_templates(_lake: object, _library: str, _workload: str, filter_id: str) -> pa.Table:
        asked.append(filter_id)
        return table([row for row in ROWS if row[0] in STORED[filter_id]])

    monkeypatch.setattr(read, "frontier_templates", frontier_templates)
    monkeypatch.setattr(read, "library_templates", lambda *_: table(ROWS))
    return asked


def chosen(running: set[str] | None = None, **policy: object) -> dict[str, int]:
    found = candidates(None, "lib", WORKLOAD, running or set(), PolicySection(**policy))  # type: ignore[arg-type]
    return dict(zip(found["template_id"].to_pylist(), found["throughput_mtok_per_s"].to_pylist(), strict=True))


def test_plain_policies_read_their_frontier(lake: list[str]) -> None:
    assert set(chosen()) == {"aa", "a", "b"}
    assert set(chosen(measured_only=True)) == {"aa", "a"}
    assert set(chosen(launchable_only=True)) == {"aa1", "a", "b"}
    assert lake == ["all", "measured", "launchable"]


def test_what_runs_stays_where_the_policy_allows_it() -> None:
    assert set(chosen({"ab", "gone"})) == {"aa", "a", "b", "ab"}
    assert set(chosen({"ab"}, launchable_only=True)) == {"aa1", "a", "b"}
    assert set(chosen({"b"}, measured_only=True)) == {"aa", "a"}


def test_two_filters_find_their_frontier_anew(lake: list[str]) -> None:
    assert set(chosen(measured_only=True, launchable_only=True)) == {"aa1", "a"}
    assert lake == []


def test_a_safety_percentile_prunes_by_the_lowered_rates(lake: list[str]) -> None:
    # p90: rate / (1 + 1.606 error). b falls to 5545, a to 8616: ab, without an error, is now more than both.
    found = chosen(safety_percentile=90.0)
    assert set(found) == {"aa", "a", "b", "ab"}
    assert found["ab"] == 20_000
    assert found["a"] == pytest.approx(10_000 / (1 + 0.16062), abs=2)
    assert set(chosen({"aa1"}, safety_percentile=90.0)) == {"aa", "a", "b", "ab", "aa1"}
    assert lake == []


@pytest.mark.parametrize(
    ("policy", "option"), [("measured_only", "--measured-only"), ("launchable_only", "--launchable-only")]
)
def test_a_filter_that_leaves_nothing_says_so(monkeypatch: pytest.MonkeyPatch, policy: str, option: str) -> None:
    monkeypatch.setattr(read, "frontier_templates", lambda *_: table([]).cast(table(ROWS).schema))
    with pytest.raises(NothingFitsError, match=r"toy/decode: no template") as error:
        chosen(**{policy: True})
    assert option in str(error.value)


def test_every_policy_of_the_schema_can_be_asked_for() -> None:
    everything = {"max_spot_share": 0.5, "budget_usd_per_h": 9.0, "safety_percentile": 90.0, "measured_only": True}
    policy = PolicySection(**everything, launchable_only=True)
    assert set(active_rules(policy)) >= set(everything)
    assert candidate_set(active_rules(policy)).reasons == (
        "safety_percentile: rates are lowered by each template's own error",
    )


def test_counts_of_combination_ids() -> None:
    names, counts = counts_of(pa.array(["L4x1*2+T4x1*1", "A100-80GB-SXMx4*3", "T4x1*6"]))
    assert names == ("A100-80GB-SXMx4", "L4x1", "T4x1")
    assert counts.tolist() == [[0, 2, 1], [3, 0, 0], [0, 0, 6]]


def result(cost: float, status: SolveStatus = SolveStatus.OPTIMAL, theta: float = 1.0) -> AllocationResult:
    return AllocationResult(status, (), cost, 0.0, cost, cost, 0.0, theta, theta, 0.1)


@pytest.mark.parametrize(
    ("restricted", "free", "text"),
    [
        (
            result(112.0),
            result(100.0),
            "planned afresh at equal headroom, rent is 112.00 instead of 100.00 USD/h, +12.0%",
        ),
        (result(100.0), result(100.0), "at no extra cost (100.00 USD/h at equal headroom)"),
        (result(99.99), result(100.0), "at no extra cost (99.99 USD/h at equal headroom)"),  # within the gap of both
        (result(0.0), result(0.0), "at no extra cost (0.00 USD/h at equal headroom)"),
        (
            result(50.0, SolveStatus.SHORTFALL, 0.5),
            result(90.0, SolveStatus.OPTIMAL),
            "50.0% of the demand is met instead of 100.0%, at equal headroom",
        ),
        (result(0.0, SolveStatus.ERROR), result(1.0), "what that costs could not be found out"),
    ],
)
def test_the_cost_of_a_restriction_in_words(restricted: AllocationResult, free: AllocationResult, text: str) -> None:
    assert restriction_text(restricted, free) == text


ANY: Any = None
SCENARIO: Any = SimpleNamespace(scenario=SimpleNamespace(policy=PolicySection()))
CHOSEN = replace(result(100.0), instances=tuple(Instance("r", t, "w", n, n, 1.0) for t, n in (("a", 3), ("b", 2))))


def rents(monkeypatch: pytest.MonkeyPatch, classes: tuple[str, ...]) -> list[str]:
    """Templates a and b are of these launch classes; the problems that are solved."""
    solved: list[str] = []
    found = pa.table({"template_id": ["a", "b"], "launch_class": list(classes)})

    def fresh(which: str, stop: object) -> AllocationResult:
        solved.append(which)
        return result(112.0 if which == "launchable" else 100.0)

    monkeypatch.setattr("warehouse.read.templates_by_id", lambda lake, ids: found)
    monkeypatch.setattr(restriction, "_other", lambda *_: "launchable")
    monkeypatch.setattr(restriction, "_fresh", fresh)
    return solved


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (("A", "B1"), None),
        (("A", "C"), "2 of 5 instances are of launch class C"),
        (("B2", "C"), "5 of 5 instances are of launch class B2 and C"),
    ],
)
def test_a_plan_that_stock_engines_do_not_launch_says_so_and_what_one_that_they_do_costs(
    classes: tuple[str, str], said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three instances of template a, two of b; planned afresh 100 USD/h with any template, 112 with launchable ones."""
    rents(monkeypatch, classes)
    notes = restriction.restriction_notes(SCENARIO, ANY, "lib", SimpleNamespace(problem="any"), CHOSEN)  # type: ignore[arg-type]
    if said is None:
        assert notes == ()
        return
    (note,) = notes
    assert note.code == "not_launchable"
    assert note.text.startswith(said)
    assert "rent is 112.00 instead of 100.00 USD/h" in note.text


def test_an_answer_that_the_search_has_made_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = rents(monkeypatch, ("A", "C"))
    inputs: Any = SimpleNamespace(problem="any")
    (note,) = restriction.restriction_notes(SCENARIO, ANY, "lib", inputs, CHOSEN, fresh=result(80.0))
    assert note.text.endswith("rent is 112.00 instead of 80.00 USD/h, +40.0%")
    assert solved == ["launchable"]


@pytest.mark.parametrize(
    ("policy", "classes", "start"),
    [
        ({}, ("A", "B1"), None),
        ({}, ("A", "C"), "2 of 5 instances are of launch class C"),
        ({"launchable_only": True}, ("A", "A"), "only templates that stock engines launch"),
    ],
)
def test_of_a_plan_that_stays_nothing_is_solved(
    policy: dict[str, bool], classes: tuple[str, ...], start: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved = rents(monkeypatch, classes)
    loaded: Any = SimpleNamespace(scenario=SimpleNamespace(policy=PolicySection(**policy)))  # type: ignore[arg-type]
    notes = restriction.unsolved_restriction_notes(loaded, ANY, CHOSEN)
    assert [note.text.startswith(str(start)) and "`coral plans show --why`" in note.text for note in notes] == (
        [True] if start else []
    )
    assert solved == []
