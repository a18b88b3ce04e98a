"""Shards: what they hold, that their names and bytes depend on their inputs alone, and the checks of solved tables."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from template_tables import profile_table, random_curves

from catalogs.errors import NothingFitsError
from catalogs.ids import parse_combination_id, short_hash
from tasks.templates import shards
from tasks.templates.combinations import enumerate_combinations
from tasks.templates.curves import workload_curves
from tasks.templates.exact import solve_exact
from tasks.templates.launch_class import LAUNCH_CLASSES, launch_classes
from tasks.templates.sample import sample_check
from tasks.templates.schema import TEMPLATE_SCHEMA
from tasks.templates.shards import LibraryLimits, ShardSpec, estimate_library, plan_shards, solve_shard, solve_shards
from tasks.templates.verify import verify_templates

LAYERS = 9
CONFIGS = ("A100x1", "A100x2", "L4x1", "L4x2", "L4x4")
MEMORY = {"A100x1": 80.0, "A100x2": 160.0, "L4x1": 24.0, "L4x2": 48.0, "L4x4": 96.0, "H100x1": 80.0}
LIMITS = LibraryLimits(n_max=4, rho=6.0)
WEIGHT_BYTES = 40 * 2**30


def profiles(configs: tuple[str, ...] = CONFIGS, seed: int = 4) -> pa.Table:
    """Rows of each configuration depend on its name alone, as real ones do."""
    parts = []
    for name in configs:
        number = sorted(MEMORY).index(name)
        rng = np.random.default_rng(seed * 100 + number)
        curves = random_curves(rng, configs=1, layers=LAYERS, stages=4, cycles=2, top=10**6)
        grid = np.tile([10.0, 20.0], (4, 1))
        rate = curves.rate_mtok_per_s.copy()
        rate[0, 0, 0, 0, 1] = 10**6 + number  # never without any rate
        parts.append(profile_table(replace(curves, node_configs=(name,), cycle_ms=grid, rate_mtok_per_s=rate), rng))
    return pa.concat_tables(parts)


def plan(
    table: pa.Table | None = None, sold: list[list[str]] | None = None, limits: LibraryLimits = LIMITS
) -> tuple[ShardSpec, ...]:
    table = profiles() if table is None else table
    return plan_shards(
        table,
        layers=LAYERS,
        weight_bytes=WEIGHT_BYTES,
        memory_gib=MEMORY,
        sold_sets=[list(CONFIGS)] if sold is None else sold,
        limits=limits,
        what="toy/decode",
    )


def whole(specs: tuple[ShardSpec, ...], table: pa.Table) -> pa.Table:
    return pa.concat_tables(solve_shards(specs, table)).sort_by("combination_id")


def rates(table: pa.Table) -> dict[str, int]:
    return dict(zip(table["combination_id"].to_pylist(), table["throughput_mtok_per_s"].to_pylist(), strict=True))


def test_shards_hold_every_combination_once_with_its_exact_rate() -> None:
    table = profiles()
    specs, solved = plan(table), whole(plan(table), table)
    memory = [round(MEMORY[name] * 1024) for name in CONFIGS]
    counts = enumerate_combinations(memory, [range(5)], 4, 6 * 40 * 1024)
    assert sum(spec.n_combinations for spec in specs) == len(counts)
    assert [spec.gpus for spec in specs] == [("A100",), ("L4",), ("A100", "L4")]
    curves, got = workload_curves(table, LAYERS).curves, rates(solved)
    positive = 0
    for row in counts.tolist():
        text = "+".join(f"{name}*{count}" for name, count in zip(CONFIGS, row, strict=True) if count)
        expected = solve_exact(curves, tuple(row)).throughput_mtok_per_s
        assert got.get(text, 0) == expected
        positive += expected > 0
    assert solved.num_rows == positive
    assert 0 < positive < len(counts)


def test_tables_have_the_schema_and_pass_the_independent_check() -> None:
    table = profiles()
    solved = whole(plan(table), table)
    assert solved.schema == TEMPLATE_SCHEMA
    solved.validate(full=True)
    assert verify_templates(solved, table, LAYERS) == ()
    row = solved.slice(5, 1).to_pylist()[0]
    assert row["template_id"] == short_hash([row["shard_id"], row["combination_id"]])
    nodes = {item["node_config"]: item["nodes"] for item in row["nodes"]}
    assert nodes == parse_combination_id(row["combination_id"])
    assert row["n_nodes"] == sum(nodes.values())
    assert sum(member["share"] for member in row["stages"][0]["members"]) == pytest.approx(1.0, abs=1e-12)


def test_ground_of_a_template_is_that_of_its_weakest_node() -> None:
    table = profiles()
    solved = whole(plan(table), table)
    weak = set(table.filter(pc.equal(table["provenance"], "borrowed"))["node_config"].to_pylist())
    error = {row["node_config"]: row["rel_error"] for row in table.to_pylist()}
    for row in solved.select(["combination_id", "provenance", "rel_error"]).to_pylist():
        nodes = set(parse_combination_id(row["combination_id"]))
        assert row["provenance"] == ("borrowed" if nodes & weak else "fitted")
        assert row["rel_error"] == max(error[name] for name in nodes)


def test_slices_change_ids_but_not_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    table = profiles()
    before = whole(plan(table), table)
    monkeypatch.setattr(shards, "SLICE_WORK_S", plan(table)[-1].work_s / 3.5)
    specs = plan(table)
    assert [spec.slice_index for spec in specs if spec.gpus == ("A100", "L4")] == [0, 1, 2, 3]
    sizes = [spec.n_combinations for spec in specs if spec.gpus == ("A100", "L4")]
    assert max(sizes) - min(sizes) <= 1
    assert len({spec.shard_id for spec in specs}) == len(specs)
    after = whole(specs, table)
    kept = [name for name in TEMPLATE_SCHEMA.names if name not in ("shard_id", "template_id")]
    assert after.select(kept).equals(before.select(kept))


def test_same_inputs_give_the_same_ids_and_bytes() -> None:
    table = profiles()
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows)))
    assert plan(shuffled) == plan(table)
    assert plan(table, sold=[["L4x1"], list(reversed(CONFIGS))]) == plan(table)
    for spec in plan(table):
        assert solve_shard(spec, shuffled).equals(solve_shard(spec, table))


def test_a_new_gpu_type_only_adds_shards() -> None:
    table, larger = profiles(), profiles((*CONFIGS, "H100x1"))
    old, new = plan(table), plan(larger, sold=[[*CONFIGS, "H100x1"]])
    assert {spec.shard_id for spec in old} < {spec.shard_id for spec in new}
    assert all("H100" in spec.gpus for spec in new if spec.shard_id not in {item.shard_id for item in old})
    for spec in old:
        assert solve_shard(spec, larger).equals(solve_shard(spec, table))


def test_what_a_region_sells_elsewhere_does_not_touch_a_shard() -> None:
    apart = plan(sold=[["A100x1", "A100x2"], ["L4x1", "L4x2", "L4x4"]])
    assert [spec.gpus for spec in apart] == [("A100",), ("L4",)]
    assert {spec.shard_id for spec in apart} < {spec.shard_id for spec in plan()}


@pytest.mark.parametrize(
    "change", [{"n_max": 3}, {"rho": 5.0}, {"mode": "paper"}, {"solver": "ilp"}], ids=lambda change: next(iter(change))
)
def test_limits_are_part_of_the_id(change: dict[str, object]) -> None:
    other = plan(limits=replace(LIMITS, **change))
    assert other[-1].shard_id not in {spec.shard_id for spec in plan()}


def test_rho_beyond_what_nodes_can_reach_changes_nothing() -> None:
    # Four A100x2 have 640 GiB: above rho = 16 the limit binds nowhere.
    assert plan(limits=replace(LIMITS, rho=17.0)) == plan(limits=replace(LIMITS, rho=99.0))


def test_specs_survive_pickle_and_json() -> None:
    for spec in plan():
        assert pickle.loads(pickle.dumps(spec)) == spec
        again = json.loads(json.dumps(asdict(spec)))
        restored = {key: tuple(value) if isinstance(value, list) else value for key, value in again.items()}
        restored["sold_sets"] = tuple(tuple(some) for some in restored["sold_sets"])
        assert ShardSpec(**restored) == spec


def test_other_profiles_than_planned_are_refused() -> None:
    with pytest.raises(ValueError, match="planned with other profiles"):
        solve_shard(plan()[0], profiles(seed=5))


def test_the_ilp_solves_the_same_shards_to_the_same_rates() -> None:
    table = profiles(("L4x1", "L4x2"))
    limits = replace(LIMITS, n_max=2)
    exact = whole(plan(table, limits=limits), table)
    by_ilp = whole(plan(table, limits=replace(limits, solver="ilp")), table)
    assert rates(by_ilp) == rates(exact)
    assert verify_templates(by_ilp, table, LAYERS) == ()


def test_a_sample_agrees_with_the_ilp_and_a_wrong_rate_is_found() -> None:
    table = profiles()
    specs, solved = plan(table), whole(plan(table), table)
    outcome = sample_check(specs, solved, table, size=8, seed=3)
    assert (outcome.n, outcome.max_rel_diff, outcome.differing, outcome.n_time_limits) == (8, 0.0, (), 0)
    index = solved.schema.get_field_index("throughput_mtok_per_s")
    higher = solved.set_column(index, solved.schema.field(index), pc.add(solved["throughput_mtok_per_s"], 1))
    assert sample_check(specs, higher, table, size=4, seed=3, max_nodes=2).max_rel_diff > 0
    missing = sample_check(specs, solved.slice(0, 0), table, size=4, seed=3, max_nodes=2)
    assert missing.max_rel_diff == 1.0
    assert len(missing.differing) > 1


def _with(solved: pa.Table, change) -> pa.Table:
    rows = solved.to_pylist()
    change(rows)
    return pa.Table.from_pylist(rows, schema=TEMPLATE_SCHEMA)


def _several_stages(rows: list[dict]) -> dict:
    return next(row for row in rows if row["n_stages"] > 1)


def _shift(rows: list[dict]) -> None:
    _several_stages(rows)["stages"][0]["layer_end"] += 1


def _position(rows: list[dict]) -> None:
    _several_stages(rows)["stages"][0]["position"] = "mid"


def _drop(rows: list[dict]) -> None:
    next(row for row in rows if len(row["stages"][0]["members"]) > 1)["stages"][0]["members"].pop()


def _rate(rows: list[dict]) -> None:
    rows[0]["stages"][0]["members"][0]["throughput_mtok_per_s"] += 1


def _total(rows: list[dict]) -> None:
    rows[0]["throughput_mtok_per_s"] += 1


def _layout(rows: list[dict]) -> None:
    rows[0]["stages"][0]["members"][0]["batch"] += 1


def _share(rows: list[dict]) -> None:
    rows[0]["stages"][0]["members"][0]["share"] *= 0.999


def _identity(rows: list[dict]) -> None:
    rows[0]["combination_id"] = rows[1]["combination_id"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_shift, "covered exactly once"),
        (_position, "wrong position"),
        (_drop, "nodes do not match"),
        (_rate, "rate is not that of its profile row"),
        (_total, "least of the stages"),
        (_layout, "layout is not that"),
        (_share, "shares are not parts"),
        (_identity, "nodes do not match"),
    ],
)
def test_the_check_finds_each_fault(change, message: str) -> None:
    table = profiles()
    faults = verify_templates(_with(whole(plan(table), table), change), table, LAYERS)
    assert any(message in fault and "1 of" in fault for fault in faults)


def test_nothing_that_holds_a_layer_is_an_expected_outcome() -> None:
    table = profiles()
    none = table.set_column(
        table.schema.get_field_index("throughput_tok_per_s"),
        table.schema.field("throughput_tok_per_s"),
        pa.nulls(table.num_rows, pa.float64()),
    )
    reason = table.schema.get_field_index("reason")
    none = none.set_column(reason, table.schema.field(reason), pa.array(["slo"] * table.num_rows))
    with pytest.raises(NothingFitsError, match=f"toy/decode.*slo in {table.num_rows} cells"):
        plan(none)


def test_a_model_too_large_says_what_is_missing() -> None:
    with pytest.raises(NothingFitsError, match="GiB too few"):
        plan_shards(
            profiles(),
            layers=LAYERS,
            weight_bytes=900 * 2**30,
            memory_gib=MEMORY,
            sold_sets=[CONFIGS],
            limits=LIMITS,
        )


def test_an_unknown_solver_is_refused() -> None:
    with pytest.raises(ValueError, match="not exact or ilp"):
        plan(limits=replace(LIMITS, solver="magic"))


def test_a_library_is_estimated_without_enumerating() -> None:
    count, work_s = estimate_library(MEMORY, [CONFIGS], WEIGHT_BYTES, LIMITS)
    exact = sum(spec.n_combinations for spec in plan())
    assert count == pytest.approx(exact, rel=0.03)
    more, more_s = estimate_library(MEMORY, [CONFIGS], WEIGHT_BYTES, replace(LIMITS, n_max=6, rho=99.0))
    assert more == 461  # C(11, 6) - 1
    assert more_s > work_s > 0


def test_launch_classes_by_hand() -> None:
    cases = [
        # slot stages, GPUs, tp, replicas
        ([0, -1, -1], [4, 0, 0], [2, 0, 0], [2, 0, 0], "A"),  # one node, replicas or not
        ([0, 1, -1], [4, 4, 0], [4, 4, 0], [1, 1, 0], "B1"),
        ([1, 0, -1], [8, 4, 0], [4, 4, 0], [1, 1, 0], "B2"),
        ([0, 0, -1], [4, 4, 0], [4, 4, 0], [1, 1, 0], "C"),  # two nodes in a stage
        ([0, 1, -1], [4, 4, 0], [4, 2, 0], [1, 1, 0], "C"),  # different tp
        ([0, 1, -1], [4, 4, 0], [2, 2, 0], [2, 2, 0], "C"),  # replicas inside a node of a pipeline
        ([0, 1, 1], [4, 4, 4], [4, 4, 4], [1, 1, 1], "C"),
    ]
    stage, gpus, tp, replicas = (np.array([case[i] for case in cases]) for i in range(4))
    codes = launch_classes(stage, gpus, tp, replicas)
    assert [LAUNCH_CLASSES[code] for code in codes] == [case[4] for case in cases]
