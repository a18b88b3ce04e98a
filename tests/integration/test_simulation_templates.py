"""Saturated replay of real templates, and a simulation of several models."""

from __future__ import annotations

import numpy as np
import pytest

from catalogs import LoadedScenario, load_scenario
from catalogs.types import Phase, Workload
from tasks.profiling.profile import profile_workload
from tasks.simulation.arrivals import constant_lengths, merge, poisson_requests
from tasks.simulation.build import Hardware, InstanceBuilder
from tasks.simulation.engine import simulate
from tasks.simulation.headroom import copies_of
from tasks.simulation.metrics import Slo, report
from tasks.simulation.replay import replay
from tasks.simulation.types import SimInstance
from tasks.templates.curves import workload_curves
from tasks.templates.exact import solve_many
from tasks.templates.rows import template_table

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def loaded() -> LoadedScenario:
    return load_scenario("paper-extended")


def rows_of(loaded: LoadedScenario, workload: Workload, tries: int) -> list[dict]:
    """Templates of random combinations of up to 6 nodes of up to 3 configurations."""
    rng = np.random.default_rng(4)
    configs = sorted(loaded.node_configs.values(), key=lambda config: config.node_config)
    catalog = loaded.catalog
    curves = workload_curves(
        profile_workload(workload, configs, catalog.gpus, catalog.efficiencies), workload.model.layers
    )
    counts = np.zeros((tries, len(configs)), dtype=np.int8)
    for row in counts:
        kinds = rng.choice(len(configs), size=int(rng.integers(1, 4)), replace=False)
        np.add.at(row, rng.choice(kinds, int(rng.integers(1, 7))), 1)
    return template_table("s", solve_many(curves.curves, counts), curves).to_pylist()


def hardware_of(loaded: LoadedScenario) -> Hardware:
    return Hardware(loaded.node_configs, loaded.catalog.gpus, loaded.catalog.efficiencies)


@pytest.mark.parametrize("alias", ["qwen3-32b", "gpt-oss-120b", "llama-3.1-70b"])
def test_decode_templates_keep_rate_and_tpot(loaded: LoadedScenario, alias: str) -> None:
    """Pipelines whose nodes differ in inner stages are left out: they wait for sub-batches that the profile does not count."""
    workload = next(w for w in loaded.workloads if w.alias == f"{alias}/decode")
    builder = InstanceBuilder(workload, hardware_of(loaded))
    replays = [
        (
            row["combination_id"],
            replay(
                builder.from_row(row), workload.tokens_per_request, workload.slo_ms, constant_lengths(workload.lengths)
            ),
        )
        for row in rows_of(loaded, workload, 40)
        if len(row["stages"]) == 1 or len({m["pp"] for stage in row["stages"] for m in stage["members"]}) == 1
    ]
    assert len(replays) >= 15
    assert [(name, r.rate_share, r.latency_ms) for name, r in replays if not r.is_kept] == []


@pytest.mark.parametrize("alias", ["phi-4", "gpt-oss-20b"])
def test_prefill_templates_keep_up_within_the_slo_below_saturation(loaded: LoadedScenario, alias: str) -> None:
    workload = next(w for w in loaded.workloads if w.alias == f"{alias}/prefill")
    builder, pairs = InstanceBuilder(workload, hardware_of(loaded)), constant_lengths(workload.lengths)
    for row in rows_of(loaded, workload, 40):
        result = replay(builder.from_row(row), workload.tokens_per_request, workload.slo_ms, pairs, offered_share=0.9)
        assert result.rate_share == pytest.approx(0.9, abs=0.003), row["combination_id"]
        assert result.latency_ms <= workload.slo_ms, row["combination_id"]


def test_a_plan_of_several_models_loses_no_request(loaded: LoadedScenario) -> None:
    """Five minutes of 25 req/s x 2 models, planned at 80 % (prefill) and 85 % (decode); nothing is lost, most meet the SLO."""
    instances: list[SimInstance] = []
    streams, slos = [], {}
    workloads = {workload.workload_id: workload for workload in loaded.workloads}
    for seed, demand in enumerate(loaded.model_demands[:2]):
        limits = {}
        for workload in (workloads[name] for name in demand.workload_ids):
            limits[workload.phase] = workload.slo_ms
            rows = rows_of(loaded, workload, 30)
            best = max(rows, key=lambda row: row["throughput_mtok_per_s"] / sum(n["nodes"] for n in row["nodes"]))
            one = InstanceBuilder(workload, hardware_of(loaded)).from_row(best, region="r")
            share = 0.8 if workload.phase is Phase.PREFILL else 0.85
            instances += copies_of(one, int(np.ceil(25 / share / one.rate_req_per_s)))
        slos[demand.model] = Slo(limits[Phase.PREFILL], limits[Phase.DECODE], counts_transfer=False)
        pairs = constant_lengths(workload.lengths)
        streams.append(poisson_requests(demand.model, 25.0, 300.0, pairs, seed))
    asked = merge(streams)
    result = simulate(asked, instances)
    assert len(asked) > 14_000
    for item in report(result, slos):
        assert item.done == item.requests
        assert item.attained is not None
        assert item.attained > 0.9, item
