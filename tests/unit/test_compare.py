"""What runs today: reading the file with every fault at once, and rates of layouts that no library holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli_plan_example import example_plan
from flows_cases import write_scenario

from catalogs.errors import InputError
from catalogs.fleet import FleetRow, read_fleet
from catalogs.scenario import LoadedScenario, load_scenario
from catalogs.types import Phase, Workload
from flows.build_inputs import resolve_inputs
from flows.compare import _absent, _apart, fleet_rates, layout_text
from flows.settings import BuildSettings
from tasks.profiling.evaluate import layout_rate, stage_layers
from tasks.profiling.layouts import Layout
from tasks.profiling.profile import profile_workload

HEAD = "region,instance_type,count,model,phase,tp,pp,replicas\n"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedScenario:
    return load_scenario(write_scenario(tmp_path_factory.mktemp("scenario")))


def fleet(loaded: LoadedScenario, tmp_path: Path, *rows: str) -> tuple[FleetRow, ...]:
    path = tmp_path / "fleet.csv"
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return read_fleet(path, loaded)


def workload(loaded: LoadedScenario, alias: str) -> Workload:
    return next(w for w in loaded.workloads if w.alias == alias)


def test_rows_are_priced_and_named_as_the_scenario_does(loaded: LoadedScenario, tmp_path: Path) -> None:
    (row,) = fleet(loaded, tmp_path, "us-east-2,g6e.12xlarge,3,phi-4,decode,2,,2")
    assert (row.offer.region, row.node.node_config, row.workload.alias) == ("aws/us-east-2", "L40Sx4", "phi-4/decode")
    assert (row.tp, row.pp, row.replicas, row.machines, row.instances) == (2, 1, 2, 1, 3)
    assert row.usd_per_h == pytest.approx(3 * loaded.best["aws/us-east-2", "L40Sx4"].price_usd_per_h)
    assert layout_text(row) == "tp2 dp2"


def test_machines_beyond_the_scenarios_are_priced_by_the_catalog(loaded: LoadedScenario, tmp_path: Path) -> None:
    (row,) = fleet(loaded, tmp_path, "aws/us-east-2,g4dn.xlarge,2,openai/gpt-oss-20b,prefill,1,,")
    assert row.node.node_config == "T4x1"
    assert row.offer.price_usd_per_h == pytest.approx(0.526)  # AWS list price of a g4dn.xlarge in Ohio


def test_an_instance_over_several_machines(loaded: LoadedScenario, tmp_path: Path) -> None:
    (row,) = fleet(loaded, tmp_path, "us-east-2,g6.xlarge,6,gpt-oss-20b,prefill,1,3,1")
    assert (row.machines, row.instances) == (3, 2)


def test_every_fault_comes_at_once_with_close_matches(loaded: LoadedScenario, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        fleet(
            loaded,
            tmp_path,
            "us-east-3,g6.xlarge,1,phi-4,decode,1,,",
            "us-east-2,g6.xlrge,1,phi-5,decode,1,,",
            "us-east-2,g6.xlarge,3,phi-4,decode,1,2,",
            "us-east-2,g6e.12xlarge,1,phi-4,decode,2,,3",
            "us-east-2,g6e.12xlarge,2,phi-4,decode,3,4,",
            "us-east-2,g6.xlarge,0,phi-4,decode,1,,",
            "us-east-2,g6.xlarge,1,qwen3-32b,decode,1,,",
        )
    said = {(f.row, f.column): f"{f.reason}. {f.remedy}" for f in caught.value.findings}
    assert "us-east-2" in said[1, "region"]
    assert "g6.xlarge" in said[2, "instance_type"]
    assert "phi-4" in said[2, "model"]
    assert "does not make whole instances" in said[3, "count"]
    assert "more than the 4 GPUs of a machine" in said[4, "replicas"]
    assert "does not fit on whole machines" in said[5, "pp"]
    assert (6, "count") in said
    assert "is not a model of the scenario" in said[7, "model"]


def test_a_file_without_the_columns_is_told_so(loaded: LoadedScenario, tmp_path: Path) -> None:
    (tmp_path / "fleet.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError) as caught:
        read_fleet(tmp_path / "fleet.csv", loaded)
    assert {"region", "instance_type", "model"} <= {finding.column for finding in caught.value.findings}


def test_a_layout_of_the_library_has_the_librarys_rate(loaded: LoadedScenario) -> None:
    """The profile table's best layout of a whole model on one machine, evaluated alone."""
    inputs = resolve_inputs(BuildSettings(loaded.path, Path()), loaded)
    checked = 0
    for item in inputs.workloads:
        settings = inputs.settings_of(item)
        table = profile_workload(
            item.workload, inputs.node_configs, inputs.gpus, inputs.efficiencies, settings, inputs.mode, 2
        ).to_pylist()
        for node in inputs.node_configs:
            whole = [
                r
                for r in table
                if (r["node_config"], r["position"], r["layers"])
                == (node.node_config, "only", item.workload.model.layers)
                and r["throughput_tok_per_s"]
            ]
            if not whole:
                continue
            best = max(whole, key=lambda r: r["throughput_tok_per_s"])
            layout = Layout(best["pp"], best["tp"], best["replicas"])
            gpu, factors = inputs.gpus[node.gpu], inputs.efficiencies[node.gpu]
            rate = layout_rate(item.workload, node, gpu, factors, layout, settings=settings, mode=inputs.mode)
            assert rate.tok_per_s == pytest.approx(best["throughput_tok_per_s"], rel=1e-9)
            checked += 1
    assert checked >= 8


def test_a_pipeline_of_two_machines_goes_at_the_pace_of_its_slower_half(loaded: LoadedScenario) -> None:
    """One GPU per machine has one layout, so the profile table has both halves of gpt-oss-20b's 24 layers."""
    inputs = resolve_inputs(BuildSettings(loaded.path, Path()), loaded)
    item = next(i for i in inputs.workloads if i.workload.alias == "gpt-oss-20b/prefill")
    node = next(c for c in inputs.node_configs if c.node_config == "L4x1")
    world = (inputs.gpus, inputs.efficiencies, inputs.settings_of(item), inputs.mode)
    table = profile_workload(item.workload, [node], *world, 2).to_pylist()
    halves: dict[str, dict[float, float]] = {"first": {}, "last": {}}
    for row in table:
        if row["stages"] == 2 and row["layers"] == 12 and row["position"] in halves:
            halves[row["position"]][row["cycle_ms"]] = row["throughput_tok_per_s"] or 0.0
    expected = max(min(rate, halves["last"].get(c, 0.0)) for c, rate in halves["first"].items())
    gpu, factors = inputs.gpus["L4"], inputs.efficiencies["L4"]
    settings = inputs.settings_of(item)
    rate = layout_rate(
        item.workload, node, gpu, factors, Layout(1, 1, 1), machines=2, settings=settings, mode=inputs.mode
    )
    assert expected > 0
    assert rate.tok_per_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("layers", "inner", "machines", "each"),
    [(24, 1, 2, [12, 12]), (25, 1, 2, [13, 12]), (26, 1, 3, [9, 9, 8]), (25, 1, 3, [8, 9, 8]), (10, 2, 2, [5, 5])],
)
def test_layers_are_split_as_the_engine_does(layers: int, inner: int, machines: int, each: list[int]) -> None:
    assert list(stage_layers(layers, inner, machines)) == each


def test_what_cannot_run_says_why(loaded: LoadedScenario, tmp_path: Path) -> None:
    rows = fleet(
        loaded,
        tmp_path,
        "us-east-2,g6e.12xlarge,1,phi-4,decode,4,,",  # 10 KV heads over 4 GPUs
        "us-east-2,g6.xlarge,1,phi-4,decode,1,,",  # 29 GB of weights on 24 GB
    )
    rates = fleet_rates(BuildSettings(loaded.path, Path()), loaded, rows)
    assert [rate.tok_per_s for rate in rates] == [0.0, 0.0]
    assert "10 KV heads" in rates[0].reason
    assert rates[1].reason == "the weights do not fit into memory"
    assert workload(loaded, "phi-4/decode").phase is Phase.DECODE


def test_a_network_too_slow_for_the_kv_is_told_apart_from_a_slow_gpu(loaded: LoadedScenario) -> None:
    """KV of 1,155 tokens of phi-4 takes 946 ms at 80 % of 2.5 Gbit/s (as in test_flows_plan_notes), of 1,200 in all."""
    item = next(i for i in resolve_inputs(BuildSettings(loaded.path, Path()), loaded).workloads
                if i.workload.alias == "phi-4/prefill")  # fmt: skip
    catalog = loaded.catalog
    node = catalog.node_configs["L40Sx1"]
    strict = replace(item.workload, slo_ms=1.0)

    def reason(workload: Workload, gbit: float | None) -> str:
        machine = replace(node, network_gbit_per_s=gbit)
        return layout_rate(
            workload, machine, catalog.gpus["L40S"], catalog.efficiencies["L40S"], Layout(1, 1, 1)
        ).reason

    assert reason(replace(item.workload, slo_ms=1200.0), 100.0) == ""
    assert reason(replace(item.workload, slo_ms=1200.0), 2.5).endswith(
        "too long for the SLO on its network (2.5 Gbit/s)"
    )
    assert reason(strict, 2.5) == reason(strict, 100.0) == "it cannot meet the SLO"


def test_what_serves_nothing_or_not_together_is_said(loaded: LoadedScenario, tmp_path: Path) -> None:
    rows = fleet(
        loaded,
        tmp_path,
        "us-east-2,g6e.12xlarge,1,phi-4,prefill,1,,4",
        "ap-northeast-2,g6e.12xlarge,1,phi-4,decode,2,,2",
    )
    assert _absent(loaded, rows, "fleet.csv") == ["no row of fleet.csv is for gpt-oss-20b/prefill, gpt-oss-20b/decode"]
    rates = fleet_rates(BuildSettings(loaded.path, Path()), loaded, rows)
    assert min(rate.tok_per_s for rate in rates) > 0
    (note,) = _apart(loaded, rows, rates, example_plan(workloads=[], instances=[]))
    assert note.startswith(
        "phi-4: its phases are in different regions, and KV does not cross them: together they serve 0 of "
    )
    near = tuple(replace(row, offer=rows[0].offer) for row in rows)
    assert _apart(loaded, near, rates, example_plan(workloads=[], instances=[])) == []
    idle = replace(loaded, model_demands=tuple(replace(d, planned_req_per_s=0.0) for d in loaded.model_demands))
    assert _absent(idle, rows, "fleet.csv") == _apart(idle, rows, rates, example_plan(workloads=[], instances=[])) == []
