"""Which version is current: proposals, approval, rollback, what runs; and every nonsense refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from warehouse_cases import new_lake, plan, run

from catalogs.errors import CoralError, UnknownNameError
from tasks.allocation.plan import PlanState
from warehouse.connect import Lake
from warehouse.plan_states import (
    approve_plan,
    is_rolled_back,
    last_applied,
    mark_running,
    roll_back_plan,
)
from warehouse.plan_tables import CURRENT_STATES
from warehouse.plans import publish_plan
from warehouse.read import current_plan, list_plans, newest_version, plan_version
from warehouse.records import RunOutcome

WHY = ("cost rises by 50%", "capacity falls")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with new_lake(tmp_path) as opened:
        yield opened


def states(lake: Lake) -> dict[int, str]:
    return {p.plan_version: p.state for p in reversed(list_plans(lake, "core"))}


def current(lake: Lake) -> int:
    found = current_plan(lake, "core")
    assert found is not None
    return found.plan_version


def outcomes(lake: Lake) -> list[tuple]:
    return lake.connection.execute("SELECT outcome, plan_version FROM allocation_runs ORDER BY run_id").fetchall()


def test_a_guarded_version_waits_and_the_current_one_stays(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    held = publish_plan(lake, plan(instances=3), run("r2", base=1), guards=WHY)
    assert (held.plan_version, held.outcome) == (2, RunOutcome.HELD_FOR_APPROVAL)
    assert held.plan is not None
    assert held.plan.state is PlanState.PROPOSED
    assert current(lake) == 1
    assert outcomes(lake) == [("published", 1), ("held_for_approval", 1)]
    note = lake.connection.execute("SELECT state_note FROM plans WHERE plan_version = 2").fetchone()
    assert note == ("cost rises by 50%; capacity falls",)


def test_the_same_proposal_is_made_once(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    publish_plan(lake, plan(instances=3), run("r2", base=1), guards=WHY)
    again = publish_plan(lake, plan(instances=3, cost_usd_per_h=11.0), run("r3", base=1), guards=WHY)
    assert (again.plan_version, again.outcome) == (2, RunOutcome.HELD_FOR_APPROVAL)
    assert states(lake) == {1: "published", 2: "proposed"}
    other = publish_plan(lake, plan(instances=4), run("r4", base=1), guards=WHY)
    assert other.plan_version == 3
    assert states(lake) == {1: "published", 2: "superseded", 3: "proposed"}
    assert [row[1] for row in outcomes(lake)] == [1, 1, 1, 1]


def test_a_proposal_whose_reason_is_gone_is_superseded(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    publish_plan(lake, plan(instances=3), run("r2", base=1), guards=WHY)
    assert publish_plan(lake, plan(), run("r3", base=1)).outcome is RunOutcome.UNCHANGED
    assert states(lake) == {1: "published", 2: "superseded"}
    publish_plan(lake, plan(instances=4), run("r4", base=1), guards=WHY)
    assert publish_plan(lake, plan(instances=5), run("r5", base=1)).plan_version == 4
    assert states(lake) == {1: "superseded", 2: "superseded", 3: "superseded", 4: "published"}


def test_approval_makes_a_proposal_current(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    publish_plan(lake, plan(instances=3), run("r2"), guards=WHY)
    approve_plan(lake, "core", 2, by="ann")
    assert states(lake) == {1: "superseded", 2: "approved"}
    assert current(lake) == 2
    by = lake.connection.execute("SELECT p.by FROM plan_states p WHERE state = 'approved'").fetchone()
    assert by == ("ann",)
    # A run that had begun before the approval decided against another version.
    assert publish_plan(lake, plan(), run("r3", base=1)).outcome is RunOutcome.SUPERSEDED


def test_rollback_makes_an_earlier_version_current_and_says_what_it_replaced(lake: Lake) -> None:
    for n in (1, 2, 3):
        publish_plan(lake, plan(instances=n), run(f"r{n}"))
    publish_plan(lake, plan(instances=4), run("r4"), guards=WHY)
    assert not is_rolled_back(lake, "core")
    assert roll_back_plan(lake, "core", 1, by="ann") == 3
    assert states(lake) == {1: "published", 2: "superseded", 3: "superseded", 4: "superseded"}
    assert is_rolled_back(lake, "core")
    assert plan_version(lake, "core", 1).instances[0].instances == 1
    mark_running(lake, "core", 1, is_whole=True, by="fleet")
    assert is_rolled_back(lake, "core"), "that it runs does not make it the planner's choice"
    assert newest_version(lake, "core") == 4, "not the current one"
    assert publish_plan(lake, plan(instances=3), run("r5", base=1), guards=WHY).plan_version == 5, "numbers go on"
    approve_plan(lake, "core", 5, by="ann")
    assert not is_rolled_back(lake, "core")
    assert roll_back_plan(lake, "core", 1, by="ann") == 5


@pytest.mark.parametrize(
    ("act", "version", "line"),
    [
        (approve_plan, 9, "unknown plan version '9'. To fix: use one of: 1, 2, 3, 4"),
        (approve_plan, 3, "version 3 of core is current already (published). To fix: there is nothing to approve"),
        (approve_plan, 1, "version 1 of core is superseded and waits for no approval. To fix: version 4 waits"),
        (roll_back_plan, 9, "unknown plan version '9'"),
        (roll_back_plan, 3, "version 3 of core is current already (published). To fix: name an earlier one"),
        (roll_back_plan, 4, "version 4 of core was never current: it waits for approval. To fix: run `coral plans approve 4"),
        (roll_back_plan, 2, "version 2 of core was proposed and never approved: a rollback goes to a version that was "
         "current. To fix: use one of: 1, 3"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_the_way_out(lake: Lake, act: object, version: int, line: str) -> None:
    publish_plan(lake, plan(instances=1), run("r1"))
    publish_plan(lake, plan(instances=2), run("r2"), guards=WHY)
    publish_plan(lake, plan(instances=3), run("r3"))
    publish_plan(lake, plan(instances=4), run("r4"), guards=WHY)
    before = lake.connection.execute("SELECT count(*) FROM plan_states").fetchone()
    with pytest.raises(CoralError) as caught:
        act(lake, "core", version, by="ann")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert lake.connection.execute("SELECT count(*) FROM plan_states").fetchone() == before


def test_what_runs_is_told_once_and_a_superseded_version_stays_so(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    assert last_applied(lake, "core") is None
    assert mark_running(lake, "core", 1, is_whole=False, by="fleet")
    assert states(lake) == {1: "partial"}
    assert last_applied(lake, "core") is None
    assert mark_running(lake, "core", 1, is_whole=True, by="fleet")
    assert not mark_running(lake, "core", 1, is_whole=True, by="fleet")
    assert (current(lake), last_applied(lake, "core")) == (1, 1)
    publish_plan(lake, plan(instances=3), run("r2"))
    publish_plan(lake, plan(instances=4), run("r3"))
    assert mark_running(lake, "core", 2, is_whole=True, by="script"), "it was finished after version 3 was published"
    assert not mark_running(lake, "core", 2, is_whole=True, by="script")
    assert states(lake) == {1: "superseded", 2: "superseded", 3: "published"}
    assert (current(lake), last_applied(lake, "core")) == (3, 2)
    publish_plan(lake, plan(instances=5), run("r4"), guards=WHY)
    with pytest.raises(CoralError, match="version 4 of core waits for approval"):
        mark_running(lake, "core", 4, is_whole=True, by="script")
    with pytest.raises(UnknownNameError):
        mark_running(lake, "core", 5, is_whole=True, by="script")


def test_a_version_that_was_never_approved_runs_nowhere_and_is_never_rolled_back_to(lake: Lake) -> None:
    publish_plan(lake, plan(), run("r1"))
    publish_plan(lake, plan(instances=3), run("r2", base=1), guards=WHY)
    publish_plan(lake, plan(instances=4), run("r3", base=1), guards=WHY)
    with pytest.raises(CoralError, match="version 2 of core was proposed and never approved: nothing of it should run"):
        mark_running(lake, "core", 2, is_whole=True, by="script")
    with pytest.raises(CoralError, match=r"never approved.*use one of: 1$"):
        roll_back_plan(lake, "core", 2, by="ann")
    assert states(lake) == {1: "published", 2: "superseded", 3: "proposed"}
    assert last_applied(lake, "core") is None


# An act is (what, version); one that is refused names the words it is refused with. After them: states, who is current.
ORDERS = [
    pytest.param(
        [("approve", 2), ("rollback", 1), ("approve", 2, "waits for no approval. To fix: `coral plans rollback 2"),
         ("rollback", 2)],
        {1: "superseded", 2: "published"}, 2, id="what was approved and rolled back is not approved again but rolled back to",
    ),
    pytest.param(
        [("rollback", 1, "is current already"), ("rollback", 2, "run `coral plans approve 2"), ("approve", 2),
         ("approve", 2, "is current already (approved)"), ("rollback", 2, "is current already (approved)")],
        {1: "superseded", 2: "approved"}, 2, id="nothing is done twice",
    ),
    pytest.param(
        [("approve", 2), ("applied", 1), ("partial", 2), ("rollback", 1), ("applied", 2)],
        {1: "published", 2: "superseded"}, 1, id="what runs does not decide what is current",
    ),
    pytest.param(
        [("applied", 1), ("approve", 2), ("rollback", 1), ("approve", 3, "unknown plan version")],
        {1: "published", 2: "superseded"}, 1, id="a rollback to what once ran does not say that it runs again",
    ),
    pytest.param(
        [("propose", 4), ("approve", 2, "To fix: version 3 waits for approval now"), ("approve", 3),
         ("rollback", 2, "never approved"), ("rollback", 1)],
        {1: "published", 2: "superseded", 3: "superseded"}, 1, id="a proposal that another replaced is gone for good",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("acts", "ends", "holds"), ORDERS)
def test_orders_of_acts_that_people_come_up_with(
    acts: list[tuple], ends: dict[int, str], holds: int, lake: Lake
) -> None:
    """Version 1 is published, 2 proposed. Refusals are one line and change nothing."""
    publish_plan(lake, plan(), run("r1"))
    publish_plan(lake, plan(instances=3), run("r2", base=1), guards=WHY)
    do = {
        "propose": lambda n: publish_plan(lake, plan(instances=n), run("r3", base=1), guards=WHY),
        "approve": lambda n: approve_plan(lake, "core", n, by="ann"),
        "rollback": lambda n: roll_back_plan(lake, "core", n, by="ann"),
        "applied": lambda n: mark_running(lake, "core", n, is_whole=True, by="ann"),
        "partial": lambda n: mark_running(lake, "core", n, is_whole=False, by="ann"),
    }
    for act, number, *refusal in acts:
        if not refusal:
            do[act](number)
            continue
        before = states(lake)
        with pytest.raises(CoralError) as caught:
            do[act](number)
        assert refusal[0] in str(caught.value)
        assert "\n" not in str(caught.value)
        assert states(lake) == before
    assert states(lake) == ends
    assert current(lake) == holds


def test_a_run_that_a_rollback_overtakes_publishes_nothing(lake: Lake) -> None:
    """It read version 2 as the current one; a person went back to 1 before it was through."""
    publish_plan(lake, plan(), run("r1"))
    publish_plan(lake, plan(instances=3), run("r2", base=1))
    roll_back_plan(lake, "core", 1, by="ann")
    for number, guards in ((3, ()), (4, ()), (4, WHY)):
        late = publish_plan(lake, plan(instances=number), run(f"late{number}{guards}", base=2), guards=guards)
        assert (late.outcome, late.plan_version) == (RunOutcome.SUPERSEDED, 1)
    assert states(lake) == {1: "published", 2: "superseded"}


@pytest.mark.parametrize(
    ("proposals", "asked", "refusal"),
    [
        (1, (2, 2), "version 2 of core is current already (approved)"),
        (2, (2, 3), "version 2 of core is superseded and waits for no approval"),
    ],
)
def test_of_two_approvals_at_once_one_is_refused(
    proposals: int, asked: tuple[int, int], refusal: str, lake: Lake
) -> None:
    publish_plan(lake, plan(), run("r1"))
    for n in range(proposals):
        publish_plan(lake, plan(instances=3 + n), run(f"p{n}"), guards=WHY)
    told: list[str] = []

    def approve(version: int) -> None:
        with Lake.open(lake.root) as own:
            try:
                approve_plan(own, "core", version, by="ann")
                told.append("approved")
            except CoralError as error:
                told.append(error.message)

    threads = [threading.Thread(target=approve, args=(version,)) for version in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["approved", refusal]
    assert current(lake) == max(asked)


ACTS = st.lists(
    st.tuples(st.sampled_from(["publish", "propose", "approve", "rollback", "apply"]), st.integers(1, 4)), max_size=8
)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTS)
def test_exactly_one_version_is_current_whatever_is_done(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    with new_lake(tmp_path_factory.mktemp("lake") / "l") as lake:
        publish_plan(lake, plan(instances=1), run("r0"))
        for i, (act, number) in enumerate(acts):
            try:
                if act in ("publish", "propose"):
                    guards = WHY if act == "propose" else ()
                    publish_plan(lake, plan(instances=number), run(f"r{i + 1}"), guards=guards)
                elif act == "apply":
                    mark_running(lake, "core", number, is_whole=True, by="x")
                else:
                    (approve_plan if act == "approve" else roll_back_plan)(lake, "core", number, by="x")
            except CoralError:
                pass
        listed = list_plans(lake, "core")
        holding = [p for p in listed if f"'{p.state}'" in CURRENT_STATES]
        assert [p.plan_version for p in holding] == [p.plan_version for p in listed if p.is_current] == [current(lake)]
        assert sum(p.state == "proposed" for p in listed) <= 1
        assert [p.plan_version for p in listed] == list(range(len(listed), 0, -1))
