"""`coral ingest` and what a scenario makes of it: states, ages, holds, and nothing of one scenario in another."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from warehouse_cases import new_lake

from catalogs.errors import HeldError, InputError, LakeError
from catalogs.scenario import LoadedScenario, load_scenario
from catalogs.types import Basis
from flows import cli, feed_events, ingest, planning
from flows.build_inputs import resolve_inputs
from flows.feeds import check_fresh, load_with_feeds
from flows.settings import BuildSettings, SilentProgress
from flows.turn import RunRequest
from warehouse.sql import query

Run = Callable[..., tuple[int, str, str]]
EAST = "aws/us-east-2"
MODEL = "Qwen/Qwen3-8B"
SCENARIO = """\
schema: 1
id: {id}
price_as_of: 2025-05-01
offers: {{regions: [aws/us-east-2], feed: lake, include_gpus: [L4, L40S], discount_pct: {{aws: 10}}}}
models:
  - {{model: qwen3-8b, lengths: {{input: 621, output: 126}}, slo: {{ttft_ms: 1500, tpot_ms: 80}}}}
library: {{n_max: 2, rho: 6}}
policy: {{headroom: start, demand_percentile: null}}
availability: {{feed: lake, default_nodes: 8}}
demand: {{feed: lake, forecast: last}}
{more}
"""
VMS = """\
InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region
g6e.xlarge,L40S,1,{price},,us-east-2
g6.xlarge,L4,1,0.8,,us-east-2
g6.12xlarge,L4,4,4.6,,us-east-2
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs ``coral`` in this process, in a folder with two scenarios and an empty lake: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORAL_LAKE", raising=False)
    new_lake(tmp_path / ".coral").close()
    for name in ("mine", "yours"):
        Path(f"{name}.yaml").write_text(SCENARIO.format(id=name, more=""))

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coral", *args])
        try:
            code = cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def hours_ago(hours: float) -> str:
    return (now() - timedelta(hours=hours)).isoformat()


def loaded(name: str = "mine", at: datetime | None = None) -> LoadedScenario:
    return load_with_feeds(f"{name}.yaml", Path(".coral"), at)


def notes(found: LoadedScenario) -> dict[str, str]:
    return dict(found.warnings)


def price(found: LoadedScenario, config: str) -> float | None:
    offer = found.best_offer(EAST, config)
    return offer.price_usd_per_h if offer else None


def vms(text: str = VMS.format(price=2.0), hours: float = 0.0) -> str:
    Path("aws_vms.csv").write_text(text)
    written = now().timestamp() - hours * 3600
    os.utime("aws_vms.csv", (written, written))
    return "aws_vms.csv"


def demand_file(*rows: tuple[float, object]) -> str:
    """(hours since the window began, rate)."""
    lines = [f"qwen3-8b,{hours_ago(hours)},{rate}" for hours, rate in rows]
    Path("demand.csv").write_text("\n".join(["model,window_start,demand_req_per_s", *lines]) + "\n")
    return "demand.csv"


class TestPrices:
    def test_they_count_instead_of_the_catalogs_in_one_scenario_only(self, run: Run) -> None:
        before = load_scenario("mine.yaml")
        code, out, _ = run("ingest", "prices", vms(), "-s", "mine.yaml")
        assert (code, "3 rows, 3 accepted, 0 held, 0 set aside; 3 changes" in out) == (0, True)
        found = loaded()
        assert price(found, "L40Sx1") == pytest.approx(1.8), "list price less 10 %"
        assert found.price_as_of == now().date()
        assert price(found, "L40Sx4") is None, "the feed does not offer it"
        assert price(before, "L40Sx4") is not None
        assert price(loaded("yours"), "L40Sx1") == price(before, "L40Sx1")
        assert "no price feed was ingested" in notes(loaded("yours"))["price_feed_missing"]

    def test_a_library_covers_what_comes_and_goes(self, run: Run) -> None:
        def covered() -> object:
            inputs = resolve_inputs(BuildSettings("mine.yaml", Path(".coral")))
            return inputs.node_configs, inputs.workloads

        before = covered()
        run("ingest", "prices", vms(hours=48), "-s", "mine.yaml")
        assert covered() == before
        run(
            "ingest",
            "prices",
            vms(VMS.format(price=1.95).replace("g6.12xlarge,L4,4,4.6,,us-east-2\n", "")),
            "-s",
            "mine.yaml",
        )
        assert price(loaded(), "L4x4") is None
        assert covered() == before

    def test_an_implausible_price_is_held_until_confirmed(self, run: Run) -> None:
        run("ingest", "prices", vms(hours=2), "-s", "mine.yaml")
        dear = VMS.format(price=20.0).replace("0.8", "-1").replace("4.6", "4.7")
        code, out, err = run("ingest", "prices", vms(dear), "-s", "mine.yaml")
        assert (code, "1 accepted, 1 held, 1 set aside" in out) == (5, True)
        assert "10x the last price" in err
        assert "is negative" in err
        found = loaded()
        got = [price(found, config) for config in ("L40Sx1", "L4x1", "L4x4")]
        assert got == pytest.approx([1.8, 0.72, 4.23]), "what was known stays, what is sound is new"
        rejects = query(
            Path(".coral"), 'SELECT file, row, "column", value, reason FROM rejects ORDER BY row'
        ).to_pylist()
        assert [(r["file"], r["row"], r["column"], r["value"]) for r in rejects] == [
            ("aws_vms.csv", 1, "Price", "20"),
            ("aws_vms.csv", 2, "Price", "-1"),
        ]
        assert run("ingest", "prices", "aws_vms.csv", "-s", "mine.yaml", "--confirm")[0] == 0
        assert price(loaded(), "L40Sx1") == pytest.approx(18)

    def test_a_region_of_which_most_is_gone_is_held_whole(self, run: Run) -> None:
        run("ingest", "prices", vms(hours=2), "-s", "mine.yaml")
        code, out, err = run(
            "ingest", "prices", vms("\n".join(VMS.format(price=1.9).splitlines()[:2]) + "\n"), "-s", "mine.yaml"
        )
        assert (code, "1 row, 0 accepted, 1 held" in out) == (5, True)
        assert "2 of the 3 prices last known in aws/us-east-2 are not in the file" in err
        assert "one of the scenario's" not in err, "it is one of them"
        assert price(loaded(), "L40Sx1") == pytest.approx(1.8)

    def test_rows_set_aside_for_one_reason_are_one_line(self, run: Run) -> None:
        others = "".join(f"m{n}.large,,,0.1,,us-east-2\n" for n in range(30)) + "g5g.xlarge,T4g,1,0.4,,us-east-2\n"
        code, out, err = run("ingest", "prices", vms(VMS.format(price=2.0) + others), "-s", "mine.yaml")
        assert (code, "34 rows, 3 accepted, 0 held, 31 set aside" in out) == (0, True)
        told = [line for line in err.splitlines() if line.startswith("set aside: ")]
        assert len(told) == 2
        assert "row 4, AcceleratorName: is blank: a machine without GPUs" in told[0]
        assert "[the same in 29 more rows: 5, 6, 7, 8, 9, ...]" in told[0]
        assert "GPU 'T4g' is known but not in the catalog" in told[1]

    def test_the_same_file_again_is_nothing_new(self, run: Run) -> None:
        run("ingest", "prices", vms(), "-s", "mine.yaml")
        counted = "SELECT (SELECT count(*) FROM ingests), (SELECT count(*) FROM price_snapshots)"
        first = query(Path(".coral"), counted).to_pylist()
        assert "nothing new" in run("ingest", "prices", "aws_vms.csv", "-s", "mine.yaml")[1]
        assert query(Path(".coral"), counted).to_pylist() == first

    def test_a_refused_file_costs_nothing_and_is_logged(self, run: Run) -> None:
        run("ingest", "prices", vms(), "-s", "mine.yaml")
        Path("aws_broken.csv").write_text("InstanceType,Region\nx,y\n")
        code, _, err = run("ingest", "prices", "aws_broken.csv", "-s", "mine.yaml")
        assert (code, "the column is missing" in err) == (2, True)
        assert price(loaded(), "L40Sx1") == pytest.approx(1.8)
        refused = query(Path(".coral"), "SELECT file, row FROM rejects").to_pylist()
        assert refused[0] == {"file": "aws_broken.csv", "row": 0}
        assert run("ingest", "prices", "none.csv", "-s", "mine.yaml")[0] == 2
        future = run("ingest", "prices", "aws_vms.csv", "-s", "mine.yaml", "--as-of", "2090-01-01T00:00:00Z")
        assert (future[0], "in the future" in future[2]) == (2, True)

    def test_prices_are_those_of_the_moment_asked_for(self, run: Run) -> None:
        run("ingest", "prices", vms(VMS.format(price=2.2), hours=5), "-s", "mine.yaml")
        run("ingest", "prices", vms(hours=1), "-s", "mine.yaml")
        assert price(loaded(at=now()), "L40Sx1") == pytest.approx(1.8)
        before = loaded(at=now() - timedelta(hours=2))
        assert price(before, "L40Sx1") == pytest.approx(1.98)
        assert before.feeds.ages_s["prices"] == pytest.approx(3 * 3600, abs=60)
        assert "price_feed_missing" in notes(loaded(at=now() - timedelta(hours=6)))

    def test_a_region_that_only_a_feed_knows(self, run: Run) -> None:
        Path("mine.yaml").write_text(SCENARIO.format(id="mine", more="").replace(EAST, "lambda/us-west-2"))
        with pytest.raises(InputError, match="coral ingest prices"):
            loaded()
        Path("lambda.csv").write_text(VMS.format(price=2.0).replace("us-east-2", "us-west-2"))
        assert run("ingest", "prices", "lambda.csv", "-s", "mine.yaml")[0] == 0
        offer = loaded().best_offer("lambda/us-west-2", "L40Sx1")
        assert offer is not None
        assert offer.price_usd_per_h == 2.0

    def test_ages_warn_or_hold(self, run: Run) -> None:
        run("ingest", "prices", vms(hours=50), "-s", "mine.yaml")
        found = loaded()
        assert "50 hours old (allowed: 48 hours)" in notes(found)["stale_prices"]
        assert found.feeds.ages_s["prices"] == pytest.approx(50 * 3600, abs=60)
        check_fresh(found)
        Path("mine.yaml").write_text(SCENARIO.format(id="mine", more="feeds: {on_stale: hold}"))
        with pytest.raises(HeldError, match="50 hours old"):
            check_fresh(loaded())
        run("ingest", "prices", vms(), "-s", "mine.yaml")
        check_fresh(loaded())
        assert "stale_prices" not in notes(loaded())


class TestSupply:
    def capacity(self, config: str, at: datetime | None = None) -> tuple[int, Basis]:
        return loaded(at=at).capacity(EAST, config)

    def test_unknown_is_assumed_and_zero_is_none(self, run: Run) -> None:
        assert self.capacity("L40Sx1") == (8, Basis.ASSUMED)
        assert "availability_feed_missing" in notes(loaded())
        rows = [
            f"{EAST},{config},on_demand,{hours_ago(1)},{n}" for config, n in (("L40Sx1", 3), ("L4x1", 0), ("L4x4", ""))
        ]
        Path("nodes.csv").write_text("\n".join(["region,node_config,market,observed_at,nodes", *rows]) + "\n")
        code, out, err = run("ingest", "availability", "nodes.csv", "-s", "mine.yaml")
        assert (code, "3 accepted" in out, "1 row says that the number is unknown" in err) == (0, True, True)
        assert [self.capacity(config) for config in ("L40Sx1", "L4x1", "L4x4")] == [
            (3, Basis.FEED),
            (0, Basis.FEED),
            (8, Basis.ASSUMED),
        ]
        later = loaded(at=now() + timedelta(hours=3))
        assert "stale_availability" in notes(later)
        assert loaded("yours").capacity(EAST, "L40Sx1") == (8, Basis.ASSUMED)

    def test_only_what_is_on_offer_grows_old(self, run: Run) -> None:
        def told(*rows: tuple[str, float]) -> None:
            lines = [f"{EAST},{config},on_demand,{hours_ago(hours)},3" for config, hours in rows]
            Path("nodes.csv").write_text("\n".join(["region,node_config,market,observed_at,nodes", *lines]) + "\n")
            assert run("ingest", "availability", "nodes.csv", "-s", "mine.yaml")[0] == 0

        told(("A10Gx1", 50), ("L4x1", 1), ("L4x8", 50))
        assert "L4x8 in aws/us-east-2 is 50 hours old" in notes(loaded())["stale_availability"]
        # The feed sells no L4x8 any more, and the scenario has never wanted an A10G.
        run("ingest", "prices", vms(), "-s", "mine.yaml")
        found = loaded()
        assert "stale_availability" not in notes(found)
        assert found.feeds.ages_s["availability"] == pytest.approx(3600, abs=60)
        assert found.feeds.stale == ()
        later = loaded(at=now() + timedelta(hours=3))
        assert "L4x1 in aws/us-east-2 is 4 hours old" in notes(later)["stale_availability"]
        assert "L4x1 in aws/us-east-2" in later.feeds.stale[-1]

    def test_a_failed_launch_counts_for_a_while(self, run: Run) -> None:
        head = "observed_at,region,node_config,market,template_id,nodes,failed_nodes"
        row = f"{hours_ago(0.25)},{EAST},L40Sx1,on_demand,0123456789abcdef,2,3"
        Path("fleet.csv").write_text(f"{head}\n{row}\n")
        assert run("ingest", "fleet", "fleet.csv", "-s", "mine.yaml")[0] == 0
        assert self.capacity("L40Sx1") == (2, Basis.FEED), "what runs stays, no further one is to be had"
        assert self.capacity("L4x1") == (8, Basis.ASSUMED)
        assert "failed" in notes(loaded())["failed_launch"]
        after = now() + timedelta(minutes=20)
        assert self.capacity("L40Sx1", after) == (8, Basis.ASSUMED), "half an hour is over"

    def test_that_nothing_runs_must_be_confirmed(self, run: Run) -> None:
        Path("fleet.csv").write_text("observed_at,region,node_config,market,template_id,nodes\n")
        code, _, err = run("ingest", "fleet", "fleet.csv", "-s", "mine.yaml")
        assert (code, "it says that nothing runs" in err) == (5, True)
        assert run("ingest", "fleet", "fleet.csv", "-s", "mine.yaml", "--confirm")[0] == 0


class TestDemand:
    def planned(self, name: str = "mine", at: datetime | None = None) -> float | None:
        return loaded(name, at).model_demands[0].planned_req_per_s

    def test_told_zero_unknown_and_missing(self, run: Run) -> None:
        assert self.planned() is None
        assert "no demand was ingested" in loaded().feeds.unknown[MODEL]
        run("ingest", "demand", demand_file((0.5, 3)), "-s", "mine.yaml")
        assert self.planned() == 3
        assert self.planned("yours") is None
        assert self.planned(at=now() + timedelta(hours=2)) == 3, "carried on"
        assert "demand_forecast" in notes(loaded(at=now() + timedelta(hours=2)))
        assert "stale_demand" in notes(loaded(at=now() + timedelta(hours=6)))
        assert self.planned(at=now() + timedelta(days=40)) is None, "too long ago to go by"
        run("ingest", "demand", demand_file((0.4, 0)), "-s", "mine.yaml")
        assert self.planned() == 0
        for nothing in ("", "NaN", "NULL"):
            run("ingest", "demand", demand_file((0.3, nothing)), "-s", "mine.yaml")
            assert self.planned() is None
            assert "is told as unknown" in loaded().feeds.unknown[MODEL]

    def test_a_trace_is_counted_and_tells_of_drift(self, run: Run) -> None:
        requests = [f"{second},{1155},{126}" for second in range(0, 3600, 4)]
        Path("trace.csv").write_text("\n".join(["timestamp_s,input_tokens,output_tokens", *requests, "x,1,1"]) + "\n")
        code, _, err = run("ingest", "demand", "trace.csv", "-s", "mine.yaml")
        assert (code, "--start" in err) == (2, True)
        start = now().replace(minute=0, second=0) - timedelta(hours=1)
        code, out, err = run("ingest", "demand", "trace.csv", "-s", "mine.yaml", "--start", start.isoformat(), "--json")
        document = json.loads(out)
        assert (code, document["n_rows"], document["n_accepted"], document["n_rejected"]) == (0, 901, 900, 1)
        assert any(note.startswith("length_drift") for note in document["notes"])
        found = loaded()
        assert self.planned() == pytest.approx(900 / 3596)
        assert "mean prompt 621 -> 1,160 tokens" in notes(found)["length_drift"]

    def test_a_held_run_is_logged_whether_or_not_there_is_a_plan(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flows.build.registered_library", lambda *_: "library")
        settings = BuildSettings("mine.yaml", Path(".coral"))
        with pytest.raises(HeldError, match="there is no plan yet") as caught:
            planning.allocate(settings, SilentProgress(), publish=True, request=RunRequest())
        assert caught.value.exit_code == 5
        Path("mine.yaml").write_text(SCENARIO.format(id="mine", more="feeds: {on_stale: hold}"))
        run("ingest", "demand", demand_file((30, 3)), "-s", "mine.yaml")
        with pytest.raises(HeldError, match="29 hours old"):
            planning.allocate(settings, SilentProgress(), publish=True, request=RunRequest())
        outcomes = query(Path(".coral"), "SELECT outcome FROM allocation_runs ORDER BY started_at").to_pylist()
        assert [row["outcome"] for row in outcomes] == ["held_unknown_demand", "held_stale"]


def test_windows_that_overlap_are_told(run: Run) -> None:
    begin = now() - timedelta(hours=1)

    def told(*minutes: int, of: int = 60) -> str:
        rows = [f"qwen3-8b,{(begin + timedelta(minutes=m)).isoformat()},3" for m in minutes]
        Path("demand.csv").write_text("\n".join(["model,window_start,demand_req_per_s", *rows]) + "\n")
        code, _, err = run("ingest", "demand", "demand.csv", "-s", "mine.yaml", "--window-minutes", str(of))
        assert code == 0
        return err

    both = (
        f"windows of 60 minutes overlap: qwen3-8b at {begin:%Y-%m-%d %H:%M} and {begin + timedelta(minutes=15):%H:%M}"
    )
    rule = "; while both last the one that began last counts. Where each lasts 15 min, give --window-minutes 15"
    assert f"{both}, and 1 more{rule}" in told(0, 15, 30)
    assert "overlap" not in told(30, of=15)
    assert "windows of 60 minutes overlap: " in told(45)  # one told before lasts until then


def test_who_listens_hears_of_news_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str]] = []
    monkeypatch.setattr(ingest, "feed_changed", lambda root, record: heard.append((record.kind, record.scenario_id)))
    file = vms()
    for _ in range(2):
        run("ingest", "prices", file, "-s", "mine.yaml")
    run("ingest", "demand", demand_file((1, "many")), "-s", "mine.yaml")
    assert heard == [("prices", "mine")]
    assert callable(feed_events.feed_changed)


def test_a_lock_that_is_held_leaves_everything(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from warehouse.lock import write_lock

    monkeypatch.setenv("CORAL_LOCK_TIMEOUT_S", "0.1")
    with write_lock(Path(".coral").resolve(), "another writer"):
        code, _, err = run("ingest", "prices", vms(), "-s", "mine.yaml")
    assert (code, "locked" in err) == (LakeError.exit_code, True)
    assert query(Path(".coral"), "SELECT count(*) AS n FROM ingests").to_pylist() == [{"n": 0}]
