"""A `coral serve` of tests: scenarios in a folder that take their demand from the lake, and what became of their runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows_cases import TINY_SCENARIO, wait_until

from catalogs.lake_feeds import FeedKind
from flows.ingest import IngestRequest, IngestResult, ingest
from flows.serving import Serving, serving
from warehouse.connect import Lake

# An idle machine needs a tenth of it.
PATIENCE_S = 300


@dataclass
class Serve:
    """A folder with scenarios, their lake, and the `coral serve` processes started for the one called tiny."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    # Kept open: opening one takes a quarter of a second of processor, and it is asked for often.
    reader: Lake | None = None

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def scenario(self, name: str) -> Path:
        """The scenario file of that name, written when first asked for."""
        path = self.folder / name / "scenario.yaml"
        if not path.exists():
            path.parent.mkdir()
            feed = "{feed: lake, window_minutes: 1440}"
            path.write_text(TINY_SCENARIO.replace("id: tiny", f"id: {name}").replace("{file: demand.csv}", feed))
        return path

    def demand_file(self, name: str, req_per_s: float) -> Path:
        """A demand feed that tells of today."""
        path = self.scenario(name).parent / "demand.csv"
        row = f"openai/gpt-oss-20b,{datetime.now(UTC):%Y-%m-%d}T00:00:00Z,{req_per_s}"
        path.write_text(f"model,window_start,demand_req_per_s\n{row}\n")
        return path

    def ingest(self, name: str, req_per_s: float) -> IngestResult:
        """Take in another demand, as `coral ingest demand` does."""
        file = self.demand_file(name, req_per_s)
        return ingest(IngestRequest(FeedKind.DEMAND, file, self.scenario(name), self.lake))

    def start(self) -> Serving:
        code = "import sys; from flows.start import main; sys.exit(main())"
        command = [sys.executable, "-P", "-c", code, "serve", "-s", str(self.scenario("tiny"))]
        command += ["--lake", str(self.lake), "--every", "1", "--window", "30", "--port", "0"]
        # The deployment of prefect.yaml runs the python that is found first.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        with (self.folder / "serve.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env={**os.environ, "PATH": path})
            )
        return self.serving()

    def serving(self, but: Callable[[Serving], bool] = lambda _: False) -> Serving:
        """What serves, once it does and is not what ``but`` says."""
        found: list[Serving] = []

        def look() -> bool:
            now = serving(self.lake)
            if now is not None and not but(now):
                found.append(now)
            return bool(found)

        self.wait(look)
        return found[0]

    def wait(self, condition: Callable[[], Any]) -> None:
        assert wait_until(lambda: bool(condition()) or self.processes[-1].poll() is not None, PATIENCE_S, 0.5)
        assert condition(), (self.folder / "serve.log").read_text()[-2000:]

    def runs(self, where: str = "true", name: str = "tiny") -> list[tuple[Any, ...]]:
        """(run_id, outcome, plan_version) of a scenario's logged runs, in the order they ended."""
        if not Lake.exists(self.lake):
            return []
        if self.reader is None:
            self.reader = Lake.open(self.lake, read_only=True)
        return self.reader.connection.execute(
            "SELECT run_id, outcome, plan_version FROM allocation_runs "
            f"WHERE scenario_id = '{name}' AND {where} ORDER BY logged_at"
        ).fetchall()
