"""Health and metrics of published plans, against what was published."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from published_cases import AGE_S, SCENARIO, published_lake
from warehouse_cases import START

from catalogs.errors import LakeError, UnknownNameError
from flows.api.metrics import metrics_text
from flows.api.reader import PlanReader

NOW = START + timedelta(hours=1)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlanReader]:
    made = PlanReader(published_lake(tmp_path_factory.mktemp("api")))
    yield made
    made.close()


def test_health_tells_the_age_of_plan_run_and_inputs(reader: PlanReader) -> None:
    (row,) = reader.health(NOW, None)["scenarios"]
    assert (row["scenario_id"], row["plan_version"], row["status"]) == (SCENARIO, 2, "ok")
    assert row["plan_age_s"] == 3600.0
    assert row["last_run"] == {"outcome": "published", "age_s": 3600.0, "note": ""}
    # The prices were two hours old when the run began an hour ago.
    assert row["input_age_s"] == {"prices": AGE_S + 3600.0}


@pytest.mark.parametrize(("max_age_s", "status"), [(3601.0, "ok"), (3599.0, "stale"), (None, "ok")])
def test_a_plan_nobody_has_confirmed_for_long_is_stale(
    reader: PlanReader, max_age_s: float | None, status: str
) -> None:
    assert reader.health(NOW, max_age_s)["status"] == status


def test_metrics_are_the_plans_figures(reader: PlanReader) -> None:
    families = text_string_to_metric_families(metrics_text(reader, NOW).decode())
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted({"scenario": SCENARIO, **labels}.items()))]

    assert value("coral_plan_version") == 2
    assert value("coral_plan_cost_usd_per_hour") == 40.0
    assert value("coral_plan_nodes", region="aws/us-east-2", node_config="L40Sx4", market="on_demand") == 4
    labels = {"region": "aws/us-east-2", "market": "on_demand", "launch_class": "A"}
    assert value("coral_plan_instances", workload="qwen3-32b/decode", **labels) == 3
    assert value("coral_workload_planned_tokens_per_second", workload="qwen3-32b/prefill") == 1200.0
    assert value("coral_workload_missing_tokens_per_second", workload="qwen3-32b/prefill") == 0.0
    assert value("coral_input_age_seconds", input="prices") == AGE_S + 3600.0
    assert value("coral_allocation_runs_total", outcome="published") == 2
    assert value("coral_last_run_timestamp_seconds") == START.timestamp()


def test_unknown_names_and_no_lake_are_expected_outcomes(reader: PlanReader, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean my-prod"):
        reader.plan("my-prd")
    with pytest.raises(UnknownNameError, match="use one of: 1, 2"):
        reader.plan(SCENARIO, 9)
    with pytest.raises(LakeError):
        PlanReader(tmp_path / "none").scenarios()


def test_a_fault_of_the_lake_is_over_when_the_lake_is_back(tmp_path: Path) -> None:
    root = published_lake(tmp_path / "lake")
    reader = PlanReader(root)
    (root / "lake.json").rename(root / "away.json")
    with pytest.raises(LakeError):
        reader.plans(SCENARIO)
    (root / "away.json").rename(root / "lake.json")
    assert [row.plan_version for row in reader.plans(SCENARIO)] == [2, 1]
    reader.close()
