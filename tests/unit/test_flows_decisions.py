"""What a build decides before anything is started: names, what is known, what nothing can serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from flows_cases import write_scenario

from catalogs.errors import CoralError, LakeError, NothingFitsError
from catalogs.measured import Calibration, MeasuredRate
from catalogs.scenario import load_scenario
from flows import build
from flows.build_explain import nothing_fits
from flows.build_inputs import BuildInputs, library_key, resolve_inputs
from flows.build_sample import SampledWorkload, SampleResult, all_samples, sample_jobs
from flows.build_work import _best_template, chunks, node_counts
from flows.settings import BuildSettings
from tasks.templates.schema import NODE_TYPE
from tasks.templates.shards import ShardSpec
from warehouse.connect import Lake
from warehouse.keys import known_profile, remember_profile


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    return BuildSettings(write_scenario(tmp_path), tmp_path / "lake")


@pytest.fixture
def inputs(settings: BuildSettings) -> BuildInputs:
    return resolve_inputs(settings)


def test_each_workload_is_there_once_with_what_its_regions_sell(inputs: BuildInputs) -> None:
    aliases = ["gpt-oss-20b/decode", "gpt-oss-20b/prefill", "phi-4/decode", "phi-4/prefill"]
    assert sorted(item.workload.alias for item in inputs.workloads) == aliases
    sold = tuple(sorted(inputs.loaded.sold_sets["aws/us-east-2"]))
    assert {item.sold_sets for item in inputs.workloads} == {(sold,)}
    assert {config.node_config for config in inputs.node_configs} == set(sold)


def test_a_region_that_sells_less_than_another_changes_no_name(inputs: BuildInputs) -> None:
    loaded = inputs.loaded
    sold = loaded.sold_sets["aws/us-east-2"]
    demands = tuple(replace(d, regions=("aws/us-east-2", "aws/elsewhere")) for d in loaded.model_demands)
    less = replace(loaded, sold_sets={**loaded.sold_sets, "aws/elsewhere": sold[:2]}, model_demands=demands)
    more = replace(loaded, sold_sets={**loaded.sold_sets, "aws/elsewhere": ("H200x8",)}, model_demands=demands)
    settings = BuildSettings("small", Path("lake"))
    name = inputs.library_id("p", "exact-1")
    assert resolve_inputs(settings, less).library_id("p", "exact-1") == name
    assert resolve_inputs(settings, more).library_id("p", "exact-1") != name


def test_the_library_id_carries_all_that_decides_its_content(inputs: BuildInputs) -> None:
    names = {
        inputs.library_id("p", "exact-1"),
        inputs.library_id("q", "exact-1"),
        inputs.library_id("p", "ilp-1"),
        replace(inputs, n_max=4).library_id("p", "exact-1"),
        replace(inputs, rho=10.0).library_id("p", "exact-1"),
        replace(inputs, mode="paper").library_id("p", "exact-1"),
    }
    assert len(names) == 6
    assert inputs.library_id("p", "exact-1") in names


def keys(inputs: BuildInputs, number: int = 0) -> list[str]:
    """The keys of a workload's profile files, by GPU type."""
    return [part.key for part in inputs.profile_inputs(inputs.workloads[number])]


def test_a_profile_key_carries_all_that_decides_the_profile(inputs: BuildInputs) -> None:
    gpu = next(iter(inputs.gpus))
    smaller = {**inputs.gpus, gpu: replace(inputs.gpus[gpu], memory_gib=1.0)}
    factors = {**inputs.efficiencies, gpu: replace(inputs.efficiencies[gpu], mfu_gemm=0.1)}
    fewer = tuple(config for config in inputs.node_configs if config.gpu != gpu or config.gpu_count > 1)
    assert len(fewer) < len(inputs.node_configs)
    first = {
        keys(inputs)[0],
        keys(inputs, 1)[0],
        keys(replace(inputs, gpus=smaller))[0],
        keys(replace(inputs, efficiencies=factors))[0],
        keys(replace(inputs, node_configs=fewer))[0],
        keys(replace(inputs, mode="paper"))[0],
        keys(replace(inputs, n_max=2))[0],
    }
    assert len(first) == 7
    assert keys(replace(inputs, rho=3.0)) == keys(inputs), "rho does not change profiles"


def test_what_concerns_one_gpu_changes_its_profile_alone(inputs: BuildInputs) -> None:
    assert len(inputs.gpus) == 3
    plain, gpu = keys(inputs), next(iter(inputs.gpus))
    smaller = {**inputs.gpus, gpu: replace(inputs.gpus[gpu], memory_gib=1.0)}
    rest = {name: facts for name, facts in inputs.gpus.items() if name != gpu}
    item = inputs.workloads[0]
    calibration = Calibration(gpu, item.workload.model.model, item.workload.phase, 0.5, 1)
    where = (f"{gpu}x1", item.workload.model.model, item.workload.phase, 4, "only", 1, None)
    measured = MeasuredRate(*where, 100.0, (1, 1, 1), None, None, 0.1, "rates.csv", 1)
    changed = {
        "facts": replace(inputs, gpus=smaller),
        "calibration": replace(inputs, loaded=replace(inputs.loaded, calibrations=(calibration,))),
        "measured": replace(inputs, loaded=replace(inputs.loaded, measured=(measured,))),
    }
    for what, now in changed.items():
        assert keys(now)[0] != plain[0], what
        assert keys(now)[1:] == plain[1:], what
    assert keys(replace(inputs, gpus=rest)) == plain[1:]


def test_another_mode_is_another_current_library(settings: BuildSettings) -> None:
    loaded = load_scenario(settings.scenario)
    assert library_key(loaded) == library_key(loaded, "cycle") == "small"
    assert library_key(loaded, "paper") == "small@paper"


def test_a_profile_is_known_once_it_was_remembered(tmp_path: Path) -> None:
    assert known_profile(tmp_path, "k") is None
    remember_profile(tmp_path, "k", "fe0154ce42a78d67")
    assert known_profile(tmp_path, "k") == "fe0154ce42a78d67"
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["k"]


def test_names_are_known_only_when_every_profile_is(settings: BuildSettings, inputs: BuildInputs) -> None:
    parts = [part for item in inputs.workloads for part in inputs.profile_inputs(item)]
    assert len(parts) == 3 * len(inputs.workloads)
    for number, part in enumerate(parts):
        assert build.library_names(settings.lake_root, inputs) is None
        remember_profile(settings.lake_root, part.key, f"{number:016x}")
    assert build.library_names(settings.lake_root, inputs) is not None


def test_a_library_that_is_not_registered_must_be_built(
    settings: BuildSettings, inputs: BuildInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(build, "_build", lambda *arguments: started.append(arguments[0]))
    build.build_library(settings)
    with pytest.raises(LakeError, match="there is no lake"):
        build.registered_library(settings)
    Lake.open(settings.lake_root).close()
    for item in inputs.workloads:
        for part in inputs.profile_inputs(item):
            remember_profile(settings.lake_root, part.key, "0" * 16)
    build.build_library(settings)
    assert started == [settings, settings]
    with pytest.raises(CoralError, match="is not built for its present inputs") as caught:
        build.registered_library(settings)
    assert "coral build --scenario" in caught.value.remedy


def test_every_workload_that_nothing_serves_is_explained(inputs: BuildInputs) -> None:
    items = [replace(item, workload=replace(item.workload, slo_ms=1.0)) for item in inputs.workloads]
    error = nothing_fits(inputs, items)
    texts = error.message.split("; ")
    assert len(texts) >= 4
    for item in items:
        assert item.workload.alias in error.message
    assert "tightest reachable" in error.message
    assert error.remedy == "relax the SLO to what is reachable, or offer faster node configurations"


def test_where_the_library_limits_are_the_reason_planning_has_the_word(inputs: BuildInputs) -> None:
    found = NothingFitsError("phi-4/decode: 3.0 GiB too few", remedy="raise rho")
    error = nothing_fits(inputs, inputs.workloads[:1], [found])
    assert str(error) == str(found)


def templates(rows: list[tuple[str, dict[str, int], int]]) -> pa.Table:
    nodes = [[{"node_config": name, "nodes": n} for name, n in counts.items()] for _, counts, _ in rows]
    return pa.table(
        {
            "combination_id": pa.array([name for name, _, _ in rows], pa.string()),
            "throughput_mtok_per_s": pa.array([rate for _, _, rate in rows], pa.int64()),
            "nodes": pa.array(nodes, pa.list_(NODE_TYPE)),
        }
    )


TABLE = templates([("B*2", {"B": 2}, 2_000_000), ("A*1+B*1", {"B": 1, "A": 1}, 1_500_000), ("A*3", {"A": 3}, 900_000)])


def test_node_counts_by_hand() -> None:
    configs, counts = node_counts(TABLE)
    assert configs == ("A", "B")
    assert counts.dtype == np.int8
    assert counts.tolist() == [[0, 2], [1, 1], [3, 0]]


def test_the_best_template_is_that_of_most_tokens_per_usd_where_it_is_sold_whole() -> None:
    configs, counts = node_counts(TABLE)
    # r1 sells only A: A*3 is 900 tok/s = 3.24 M tok/h for 3 USD/h: 0.926 USD/M. r2: B*2 is 7.2 M/h for 8 USD: 1.111;
    # A*1+B*1 is 5.4 M/h for 6 USD: 1.111; A*3 3.24 M/h for 6 USD: 1.852.
    prices = {"r1": {"A": 1.0}, "r2": {"A": 2.0, "B": 4.0}}
    assert _best_template(TABLE, configs, counts, prices) == "A*3 in r1: 0.926 USD per million tokens"
    assert _best_template(TABLE, configs, counts, {"r1": {"C": 1.0}}) == ""
    assert _best_template(TABLE, configs, counts, {"r3": {"B": 0.5}}) == "B*2 in r3: 0.139 USD per million tokens"


def spec(shard_id: str, workload_id: str, work_s: float) -> ShardSpec:
    return ShardSpec(shard_id, workload_id, 2, (), (), (), (), 3, 0, "cycle", "exact", (), 0, 1, 1, work_s)


def test_chunks_are_of_one_workload_and_of_limited_work() -> None:
    shards = [
        spec("a", "w1", 1.5),
        spec("b", "w2", 0.2),
        spec("c", "w1", 0.4),
        spec("d", "w1", 0.4),
        spec("e", "w2", 9.0),
    ]
    named = [(name, [shard.shard_id for shard in chunk]) for name, chunk in chunks(shards)]
    assert named == [("w1", ["a", "c"]), ("w1", ["d"]), ("w2", ["b"]), ("w2", ["e"])]


def test_a_sample_is_shared_out_over_jobs_and_told_as_one() -> None:
    some = [SampledWorkload(f"m{number}", (), (), (), n) for number, n in enumerate([3, 0, 2, 2])]
    jobs = sample_jobs(Path("lake"), "l", some, 2, 60.0)
    assert [[workload.alias for workload in job.workloads] for job in jobs] == [["m0", "m3"], ["m2"]]
    assert {job.time_s for job in jobs} == {60.0}
    assert sample_jobs(Path("lake"), "l", some[1:2], 2, 60.0) == []
    told = all_samples([SampleResult(5, 0.0, ()), SampleResult(2, 0.25, ("L4x1*2 of m2",))])
    assert told == SampleResult(7, 0.25, ("L4x1*2 of m2",))
    assert all_samples([]) == SampleResult(0, 0.0, ())
