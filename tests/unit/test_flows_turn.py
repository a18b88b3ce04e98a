"""Whose turn it is: no two allocations of a scenario overlap, late ones are superseded, a killed holder lets go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from warehouse_cases import new_lake

from catalogs.errors import HeldError, LakeError
from flows.turn import RunRequest, SupersededError, allocation_turn, log_undecided
from warehouse.lock import LockedError, LockLostError, write_lock
from warehouse.plans import log_run
from warehouse.records import AllocationRun, RunLog, RunOutcome
from warehouse.runs import last_runs

HOLDER = """
import sys, time
from pathlib import Path
from flows.turn import RunRequest, allocation_turn
with allocation_turn(Path(sys.argv[1]), "core", RunRequest("elsewhere")):
    print("held", flush=True)
    time.sleep(60)
"""


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    new_lake(tmp_path / "lake").close()
    return tmp_path / "lake"


def test_a_turn_whose_lock_file_is_removed_is_lost(root: Path) -> None:
    with allocation_turn(root, "core", RunRequest()) as still_held:
        still_held()
        (root / "allocate-core.lock").unlink()
        with pytest.raises(LockLostError, match=r"lock was lost meanwhile \(.*allocate-core.lock was removed\)"):
            still_held()


def test_a_lock_that_a_run_does_not_get_in_its_turn_is_a_failure_of_it(root: Path) -> None:
    with (
        pytest.raises(LockedError),
        allocation_turn(root, "core", RunRequest(due=now(), window_s=60)),
        write_lock(root, "a writer"),
        write_lock(root, "the run", 0.1),
    ):
        pytest.fail("two at once")


def test_another_process_has_the_turn_until_it_is_killed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL_LOCK_TIMEOUT_S", "0.2")
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(root)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with (
            pytest.raises(
                LakeError, match=rf"core is being allocated by process {holder.pid} \(run elsewhere\); waited 0\.2 s"
            ),
            allocation_turn(root, "core", RunRequest()),
        ):
            pytest.fail("two at once")
        soon = RunRequest("late", due=now(), window_s=0.2)
        with pytest.raises(SupersededError, match="got no turn"), allocation_turn(root, "core", soon):
            pytest.fail("two at once")
        with allocation_turn(root, "other", RunRequest()), write_lock(root, "a writer"):
            pass  # neither another scenario nor a writer is kept out
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with allocation_turn(root, "core", RunRequest()):
        pass


def test_where_there_is_no_lake_nothing_is_made(tmp_path: Path) -> None:
    with (
        pytest.raises(LakeError, match="there is no lake"),
        allocation_turn(tmp_path / "none", "core", RunRequest()),
    ):
        pytest.fail("there is no lake")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("late_s", "is_refused"), [(599, False), (601, True)])
def test_a_run_is_worth_executing_within_its_window(late_s: float, is_refused: bool) -> None:
    due = datetime(2026, 11, 30, 12, tzinfo=UTC)
    request = RunRequest(due=due, window_s=600)
    assert request.expires == datetime(2026, 11, 30, 12, 10, tzinfo=UTC)
    if is_refused:
        with pytest.raises(SupersededError, match=r"due at 2026-11-30 12:00:00 UTC comes 10 min late, .* 10 min"):
            request.refuse_late("core", due + timedelta(seconds=late_s))
    else:
        request.refuse_late("core", due + timedelta(seconds=late_s))
    RunRequest().refuse_late("core")  # a person's is never late


@pytest.mark.parametrize(
    ("began_s", "outcome", "is_covered", "has_decided"),
    [
        (5, RunOutcome.PUBLISHED, True, True),
        (5, RunOutcome.UNCHANGED, True, True),
        (5, RunOutcome.HELD_FOR_APPROVAL, True, True),
        (5, RunOutcome.HELD_UNKNOWN_DEMAND, True, False),
        (5, RunOutcome.HELD_STALE, True, False),
        (5, RunOutcome.FAILED, False, False),
        (5, RunOutcome.SUPERSEDED, False, False),
        (-5, RunOutcome.PUBLISHED, False, True),  # may have read older inputs
    ],
)
def test_a_run_is_covered_by_one_that_began_after_it_was_due(
    root: Path, began_s: float, outcome: RunOutcome, is_covered: bool, has_decided: bool
) -> None:
    due = now() - timedelta(seconds=30)
    with new_lake(root) as lake:
        for scenario in ("core", "other"):
            began = due + timedelta(seconds=began_s if scenario == "core" else 5)
            log_run(lake, AllocationRun(f"of-{scenario}", scenario, began), RunLog(outcome))
        assert (last_runs(lake)[0].decided_at is not None) == has_decided
    request = RunRequest(due=due, window_s=3600)
    if is_covered:
        with (
            pytest.raises(SupersededError, match="run of-core began after"),
            allocation_turn(root, "core", request),
        ):
            pytest.fail("it is covered")
    else:
        with allocation_turn(root, "core", request):
            pass
    with allocation_turn(root, "core", RunRequest()):
        pass  # a person's run is always executed


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (SupersededError("too late"), "superseded"),
        (HeldError("demand unknown"), "held_unknown_demand"),
        (RuntimeError("first line\nsecond"), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_a_run_that_decided_nothing_is_logged_as_what_it_was(root: Path, error: BaseException, outcome: str) -> None:
    with new_lake(root) as lake:
        assert log_undecided(lake, "core", RunRequest("r1"), now(), error) == outcome
        rows = lake.connection.execute("SELECT run_id, outcome, plan_version, note FROM allocation_runs").fetchall()
    notes = {"failed": "first line", "superseded": "too late", "held_unknown_demand": "demand unknown"}
    note = "KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else notes[outcome]
    assert rows == [("r1", outcome, None, note)]
