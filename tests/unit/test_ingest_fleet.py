"""A fleet of which nothing runs: the same file again is another observation, unless it is of the same moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from scenario_cases import SOUND

from catalogs.lake_feeds import FeedKind
from flows.ingest import IngestRequest, IngestResult, ingest
from warehouse.connect import Lake
from warehouse.feeds import observed_fleet

HEAD = "observed_at,region,node_config,market,template_id,nodes,failed_nodes\n"
NOON = datetime(2026, 7, 30, 12, tzinfo=UTC)


def take_in(folder: Path, text: str, now: datetime, as_of: datetime | None = None) -> IngestResult:
    scenario, file = folder / "scenario.yaml", folder / "fleet.csv"
    scenario.write_text(yaml.safe_dump(SOUND))
    file.write_text(text)
    return ingest(IngestRequest(FeedKind.FLEET, file, scenario, folder / "lake", as_of=as_of, is_confirmed=True), now)


def test_nothing_runs_again_each_time_it_is_confirmed(tmp_path: Path) -> None:
    hour = timedelta(hours=1)
    take_in(tmp_path, HEAD, NOON)
    take_in(tmp_path, HEAD + f"{NOON + hour:%Y-%m-%dT%H:%M:%SZ},aws/us-west-2,L4x1,on_demand,,3,0\n", NOON + hour)
    take_in(tmp_path, HEAD, NOON + 2 * hour)
    take_in(tmp_path, HEAD, NOON + 3 * hour, as_of=NOON + 2 * hour)
    with Lake.open(tmp_path / "lake", read_only=True) as lake:
        seen = {at: observed_fleet(lake, "mine", at) for at in (NOON + hour, NOON + 3 * hour)}
        logged = lake.connection.execute("SELECT count(*) FROM main.ingests").fetchone()
    assert [(f.observed_at, sum(n.nodes for n in f.nodes)) for f in seen.values() if f] == [
        (NOON + hour, 3),
        (NOON + 2 * hour, 0),
    ]
    assert logged == (3,), "the third heading is of a moment that is known already"
