"""Building a library for real: server, Dask threads and processes, kill -9, re-runs, errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from flows_cases import contents, family, is_alive, make_hostile, wait_until, write_scenario

from catalogs.errors import CoralError, LakeError, NothingFitsError
from flows import build as build_module
from flows.build import build_library, registered_library
from flows.runner import code_hash
from flows.server import client_env, prefect_environment
from flows.settings import BuildResult, BuildSettings
from warehouse.connect import Lake
from warehouse.read import current_library_id, library_templates

pytestmark = pytest.mark.integration

CORAL = Path(sys.executable).with_name("coral")


class Recorder:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self.finished: list[str] = []

    def start(self, stage: str, total: float) -> None:
        self.totals[stage], self.done[stage] = total, 0.0

    def advance(self, stage: str, amount: float) -> None:
        self.done[stage] += amount

    def finish(self, stage: str, note: str = "") -> None:
        self.finished.append(stage)

    def message(self, text: str) -> None:
        pass


class Built:
    """A library built on threads: what every other way of building it must equal."""

    def __init__(self, scenario: Path, lake: Path, result: BuildResult, progress: Recorder) -> None:
        self.scenario, self.lake, self.result, self.progress = scenario, lake, result, progress

    def settings(self, lake: Path | None = None, dask_address: str | None = None) -> BuildSettings:
        return BuildSettings(self.scenario, lake or self.lake, dask_address=dask_address, threads=2, sample_n=4)


@pytest.fixture(scope="module")
def built(session_api_url: str, server_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    scenario, lake, progress = write_scenario(folder), folder / "lake", Recorder()
    settings = BuildSettings(scenario, lake, threads=2, sample_n=4)
    with prefect_environment(client_env(session_api_url, server_lake / "prefect" / "slot-0")):
        return Built(scenario, lake, build_library(settings, progress), progress)


def build_process(built: Built, lake: Path, cwd: Path) -> subprocess.Popen[str]:
    """``coral build`` on its own: no server is configured, and the working folder is hostile."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env["HOME"] = str(cwd / "home")
    command = [str(CORAL), "build", "--scenario", str(built.scenario), "--lake", str(lake), "--json"]
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_the_library_is_whole_and_current(built: Built) -> None:
    result = built.result
    assert result.is_new
    assert result.shards_skipped == 0
    assert result.shards == len(list((built.lake / "shards" / "solved_templates").glob("*.parquet")))
    assert result.sample_n >= 4
    assert result.sample_max_rel_diff == 0
    assert {counts.alias for counts in result.workloads} == {
        "phi-4/prefill",
        "phi-4/decode",
        "gpt-oss-20b/prefill",
        "gpt-oss-20b/decode",
    }
    with Lake.open(built.lake, read_only=True) as lake:
        assert current_library_id(lake, "small") == result.library_id
        for counts in result.workloads:
            rows = library_templates(lake, result.library_id, counts.workload_id)
            assert rows.num_rows == counts.templates > 0
            # The best placement of a combination, and the best launchable one where it is another.
            assert 0 < counts.frontier <= counts.templates <= 2 * counts.combinations
            assert " USD per million tokens" in counts.best_template
    assert registered_library(built.settings()) == result.library_id


def test_progress_is_reported_to_the_end(built: Built) -> None:
    stages = ["start server", "profile", "plan shards", "solve", "frontier", "check sample", "register"]
    assert built.progress.finished == stages
    for stage in stages:
        assert built.progress.done[stage] == pytest.approx(built.progress.totals[stage])


def test_prefect_shows_the_build(built: Built, session_api_url: str) -> None:
    def latest(key: str) -> dict[str, str]:
        with urllib.request.urlopen(f"{session_api_url}/artifacts/{key}/latest") as answer:
            return dict(json.load(answer))

    text = latest("coral-library")["data"]
    assert built.result.library_id in text
    assert f"{built.result.sample_n} " in text
    assert "solved again" in text
    assert f"{built.result.solve_s:.1f} s of solving" in text
    rows = json.loads(latest("coral-library-workloads")["data"])
    assert {row["workload"]: row["templates"] for row in rows} == {
        counts.alias: counts.templates for counts in built.result.workloads
    }
    # What it took, and the template with the cheapest tokens: as the library's own rows have it.
    assert sum(row["solving s"] for row in rows) == pytest.approx(built.result.solve_s, abs=0.01 * len(rows))
    with Lake.open(built.lake, read_only=True) as lake:
        for counts in built.result.workloads:
            combinations = library_templates(lake, built.result.library_id, counts.workload_id)["combination_id"]
            told = next(row["cheapest per token"] for row in rows if row["workload"] == counts.alias)
            assert told.split()[0].rstrip(":,") in combinations.to_pylist(), told


def test_a_second_run_starts_nothing(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("there is nothing to build")

    monkeypatch.setattr(build_module, "_build", refuse)
    again = build_library(built.settings())
    assert not again.is_new
    assert (again.library_id, again.library_hash) == (built.result.library_id, built.result.library_hash)
    assert (again.templates, again.combinations) == (built.result.templates, built.result.combinations)
    assert again.shards_skipped == again.shards == built.result.shards


def test_a_second_run_does_not_even_import_prefect(built: Built) -> None:
    script = (
        "import sys; from pathlib import Path; from flows.build import build_library\n"
        "from flows.settings import BuildSettings\n"
        "result = build_library(BuildSettings(sys.argv[1], Path(sys.argv[2])))\n"
        "print(result.is_new, sorted({'prefect', 'distributed', 'dask'} & set(sys.modules)))"
    )
    command = [sys.executable, "-P", "-c", script, str(built.scenario), str(built.lake)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "False []"


def test_stopped_at_any_moment_it_goes_on_and_gives_the_same_library(built: Built, tmp_path: Path) -> None:
    """kill -9 while solving and before registration, then Ctrl-C: no process stays, no work is lost."""
    lake, cwd = tmp_path / "lake", make_hostile(tmp_path / "cwd")
    kept: dict[str, bytes] = {}
    moments = {
        "solving": lambda _: wait_for_a_file(lake / "shards" / "solved_templates"),
        "before registration": lambda process: wait_for_line(process, "frontier:"),
        "interrupted": lambda process: wait_for_line(process, "frontier:"),
    }
    for moment, wait in moments.items():
        process = build_process(built, lake, cwd)
        wait(process)
        everyone = family(process.pid)
        assert len(everyone) == 2, f"{moment}: the command and its server"
        process.send_signal(signal.SIGINT if moment == "interrupted" else signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        assert process.returncode == (130 if moment == "interrupted" else -signal.SIGKILL), err
        assert "Traceback" not in err
        assert wait_until(lambda everyone=everyone: not any(map(is_alive, everyone)), 10), moment
        now = contents(lake)
        assert kept.items() <= now.items(), f"{moment}: finished files stay byte for byte"
        kept = dict(now)
        with Lake.open(lake, read_only=True) as opened:
            assert current_library_id(opened, "small") is None, f"{moment}: nothing is half published"
    process = build_process(built, lake, cwd)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["library_id"], result["library_hash"]) == (built.result.library_id, built.result.library_hash)
    assert result["shards_skipped"] == result["shards"]
    assert contents(lake) == contents(built.lake)
    assert list(lake.rglob("*.tmp")) == []
    assert not (cwd / "home" / ".prefect").exists(), "the user's own Prefect is left alone"


def wait_for_a_file(folder: Path) -> None:
    assert wait_until(lambda: any(folder.glob("*.parquet")), 120, poll_s=0.002)


def wait_for_line(process: subprocess.Popen[str], start: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(start):
            return
    raise AssertionError(f"the command ended without a line {start!r}")


def test_an_slo_that_nothing_meets_is_one_line(built: Built, tmp_path: Path, api_url: str) -> None:
    scenario, lake = write_scenario(tmp_path, ttft_ms=40), tmp_path / "lake"
    command = [str(CORAL), "build", "--scenario", str(scenario), "--lake", str(lake)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == NothingFitsError.exit_code == 2
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: phi-4/prefill: a TTFT of 40 ms cannot be met; the tightest reachable is ")
    assert "To fix: relax the SLO" in line
    assert "Traceback" not in done.stderr
    with Lake.open(lake, read_only=True) as opened:
        assert current_library_id(opened, "small") is None


def test_an_error_in_a_task_comes_through_as_itself(built: Built, tmp_path: Path, api_url: str) -> None:
    in_the_way = tmp_path / "lake" / "shards" / "profile_rows"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where a folder must be")
    with pytest.raises(LakeError, match="profile_rows cannot be written"):
        build_library(built.settings(tmp_path / "lake"))


DASK = [sys.executable, "-m", "dask"]
QUIET = ["--host", "127.0.0.1", "--no-dashboard"]


def worker_command(cwd: Path) -> list[str]:
    return [*DASK, "worker", *QUIET, "--scheduler-file", str(cwd / "scheduler.json"), "--no-nanny", "--nthreads", "1"]


def worker_env(cwd: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONSAFEPATH": "1", "DO_NOT_TRACK": "1", "PREFECT_HOME": str(cwd / "prefect")}


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A Dask scheduler with two worker processes over TCP, started in a hostile folder."""
    cwd = make_hostile(tmp_path_factory.mktemp("dask"))
    file = cwd / "scheduler.json"
    env = worker_env(cwd)
    with (cwd / "log").open("wb") as log:
        commands = [[*DASK, "scheduler", *QUIET, "--port", "0", "--scheduler-file", str(file)]]
        commands += [worker_command(cwd)] * 2
        processes = [subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log) for command in commands]
    try:
        assert wait_until(lambda: file.exists() and bool(file.read_text().strip()), 60)
        yield json.loads(file.read_text())["address"], cwd
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_two_worker_processes_give_the_same_library(
    built: Built, scheduler: tuple[str, Path], api_url: str, tmp_path: Path
) -> None:
    import distributed

    address, _ = scheduler
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    code_hash.cache_clear()  # for a tree that is edited while the tests run
    result = build_library(built.settings(tmp_path / "lake", address))
    assert (result.library_id, result.library_hash) == (built.result.library_id, built.result.library_hash)
    assert contents(tmp_path / "lake") == contents(built.lake)
    with distributed.Client(address, set_as_default=False) as client:
        done = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert len(done) == 2
    assert min(done.values()) > 0


def test_a_worker_with_other_code_is_refused(
    built: Built, scheduler: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distributed

    address, cwd = scheduler
    house = Path(build_module.__file__).parents[1]
    for package in ("catalogs", "flows", "tasks", "warehouse"):
        shutil.copytree(house / package, tmp_path / "house" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "house" / "tasks" / "__init__.py").open("a") as file:
        file.write("# changed\n")
    worker = subprocess.Popen(
        worker_command(cwd),
        cwd=tmp_path,
        env={**worker_env(cwd), "PYTHONPATH": str(tmp_path / "house")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
        monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # never reached
        with pytest.raises(CoralError, match=r"1 of 3 Dask workers would compute other results: tcp://[^;]*: code "):
            build_library(built.settings(tmp_path / "lake", address))
    finally:
        worker.kill()
        worker.wait()
    assert not (tmp_path / "lake" / "shards" / "profile_rows").exists()
