"""A library that grows: a new GPU, model or SLO, a GPU taken out, a damaged file. Only what is new is solved."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from flows_cases import contents, write_scenario

from flows.backfill import backfill_library
from flows.build import build_library, registered_library
from flows.server import client_env, prefect_environment
from flows.settings import BuildResult, BuildSettings
from tasks.templates.schema import TEMPLATE_SCHEMA
from warehouse.connect import Lake
from warehouse.land import write_shard
from warehouse.read import current_library_id
from warehouse.sql import query

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def base(session_api_url: str, server_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BuildResult]:
    """(a folder with a scenario and its lake, what building it gave): gpt-oss-20b and phi-4 on L4, A10G and L40S."""
    folder = tmp_path_factory.mktemp("base")
    settings = BuildSettings(write_scenario(folder), folder / "lake", threads=2, sample_n=0)
    with prefect_environment(client_env(session_api_url, server_lake / "prefect" / "slot-0")):
        return folder, build_library(settings)


@pytest.fixture
def settings(base: tuple[Path, BuildResult], api_url: str, tmp_path: Path) -> BuildSettings:
    """A copy of the folder, for a test to change."""
    shutil.copytree(base[0], tmp_path / "copy")
    return BuildSettings(tmp_path / "copy/scenario.yaml", tmp_path / "copy/lake", threads=2, sample_n=0)


def rewrite(settings: BuildSettings, old: str, new: str) -> None:
    path = Path(settings.scenario)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def new_shards(settings: BuildSettings, run: Callable[[], BuildResult]) -> tuple[BuildResult, set[str]]:
    """What ``run`` gives, and the ids of the template files it adds; every file that was there must stay as it was."""
    before = contents(settings.lake_root)
    result = run()
    after = contents(settings.lake_root)
    assert before.items() <= after.items(), "files stay byte for byte"
    folder = settings.lake_root / "shards/solved_templates"
    return result, {path.name.rsplit("-", 1)[0] for path in folder.glob("*.parquet") if path.name not in before}


def templates_with(settings: BuildSettings, library_id: str, condition: str) -> set[str]:
    sql = f"SELECT DISTINCT shard_id FROM templates WHERE library_id = '{library_id}' AND {condition}"
    return set(query(settings.lake_root, sql)["shard_id"].to_pylist())


def test_a_backfill_solves_only_what_has_the_new_gpu(settings: BuildSettings, base: tuple[Path, BuildResult]) -> None:
    old, profiles = base[1], settings.lake_root / "shards/profile_rows"
    extra, known = replace(settings, library_key="with-a100"), len(list(profiles.iterdir()))
    assert known == 4 * 3, "four workloads on three GPU types"
    result, added = new_shards(settings, lambda: backfill_library(extra, ["A100-40GB-SXM"]))
    assert result.is_new
    assert len(list(profiles.iterdir())) == known + 4, "each workload is profiled on the new GPU alone"
    assert result.shards_skipped == old.shards
    assert result.shards - old.shards == len(added) > 0
    assert result.combinations_solved == result.combinations - old.combinations > 0
    assert templates_with(settings, result.library_id, "combination_id LIKE '%A100%'") <= added
    assert templates_with(settings, result.library_id, "combination_id NOT LIKE '%A100%'") & added == set()
    with Lake.open(settings.lake_root, read_only=True) as lake:
        assert current_library_id(lake, "small") == old.library_id, "the scenario's own library stays current"
        assert current_library_id(lake, "with-a100") == result.library_id
    count = f"SELECT count(*) AS n FROM templates WHERE library_id = '{old.library_id}'"
    assert query(settings.lake_root, count)["n"].to_pylist() == [old.templates], "the old library is readable"
    # The scenario with the GPU in its file finds the backfilled library as it is.
    rewrite(settings, "include_gpus: [L40S, L4, A10G]", "include_gpus: [L40S, L4, A10G, A100-40GB-SXM]")
    assert registered_library(settings) == result.library_id


def test_a_removed_gpu_solves_nothing(settings: BuildSettings) -> None:
    rewrite(settings, "include_gpus: [L40S, L4, A10G]", "include_gpus: [L40S, L4]")
    result, added = new_shards(settings, lambda: build_library(settings))
    assert result.is_new
    assert added == set()
    assert result.combinations_solved == 0
    assert templates_with(settings, result.library_id, "combination_id LIKE '%A10G%'") == set()


def test_a_changed_slo_solves_its_workload_only(settings: BuildSettings) -> None:
    rewrite(settings, "ttft_ms: 1200", "ttft_ms: 1500")
    result, added = new_shards(settings, lambda: build_library(settings))
    changed = next(counts for counts in result.workloads if counts.alias == "phi-4/prefill")
    assert result.combinations_solved == changed.combinations
    assert templates_with(settings, result.library_id, f"workload_id = '{changed.workload_id}'") == added


NEW_MODEL = """\
  - model: Qwen/Qwen3-32B
    weight_dtype: bf16
    kv_dtype: bf16
    serving: disaggregated
    demand_req_per_s: 2
    lengths: {input: 621, output: 126}
    slo: {ttft_ms: 1600, tpot_ms: 100, percentile: 99}
library:"""


def test_a_new_model_solves_its_workloads_only(settings: BuildSettings) -> None:
    rewrite(settings, "library:", NEW_MODEL)
    rewrite(settings, "n_max: 3, rho: 12", "n_max: 3, rho: 12.0")  # no change of inputs
    result, added = new_shards(settings, lambda: build_library(settings))
    fresh = [counts for counts in result.workloads if counts.alias.startswith("qwen3-32b/")]
    assert len(fresh) == 2
    assert result.combinations_solved == sum(counts.combinations for counts in fresh) > 0
    names = ", ".join(f"'{counts.workload_id}'" for counts in fresh)
    assert templates_with(settings, result.library_id, f"workload_id IN ({names})") <= added


def test_damaged_files_are_computed_anew(settings: BuildSettings, base: tuple[Path, BuildResult]) -> None:
    """One template file is cut short, one has a flipped byte, a profile and a frontier are gone: a build makes the same
    bytes again."""
    before = contents(settings.lake_root)
    cut, flipped = sorted((settings.lake_root / "shards/solved_templates").glob("*.parquet"))[:2]
    cut.write_bytes(cut.read_bytes()[:-40])
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    for folder in ("profile_rows", "frontier_rows"):
        next((settings.lake_root / "shards" / folder).glob("*.parquet")).unlink()
    result = build_library(settings)
    assert (result.library_id, result.library_hash) == (base[1].library_id, base[1].library_hash)
    assert result.shards - result.shards_skipped == 2
    damaged = settings.lake_root / "shards/solved_templates/damaged"
    assert len(list(damaged.iterdir())) == 2, "what was damaged is set aside"
    shutil.rmtree(damaged)
    assert contents(settings.lake_root) == before
    assert not build_library(settings).is_new


def test_a_library_that_the_ilp_disagrees_with_is_refused_and_recorded(settings: BuildSettings) -> None:
    """Every rate is raised by a token per second: whole files, but no solver would have written them."""
    folder = settings.lake_root / "shards/solved_templates"
    files = {path: pq.read_table(path, schema=TEMPLATE_SCHEMA) for path in sorted(folder.glob("*.parquet"))}
    for path, table in files.items():
        if not table.num_rows:
            continue
        at = table.schema.get_field_index("throughput_mtok_per_s")
        rates = pc.add(table["throughput_mtok_per_s"], 1000).cast(table.schema.field(at).type)
        path.unlink()
        write_shard(settings.lake_root, table.set_column(at, table.schema.field(at), rates), path.name.split("-")[0])
    with pytest.raises(RuntimeError, match="the reference ILP disagrees: "):
        build_library(replace(settings, sample_n=4))
    newest = "SELECT status, sample_n, sample_max_rel_diff FROM builds ORDER BY started_at DESC LIMIT 1"
    row = query(settings.lake_root, newest).to_pylist()[0]
    assert row["status"] == "failed"
    assert row["sample_n"] >= 4
    assert 0 < row["sample_max_rel_diff"] < 1
