"""The best launchable placement of a combination against brute force, in shards, and as checked."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from template_tables import FIRST, LAST, MID, compositions, profile_table, random_curves
from test_templates_exact import recomputed_rate
from test_templates_shards import CONFIGS, LAYERS, LIMITS, MEMORY, WEIGHT_BYTES, profiles, rates

from catalogs.ids import parse_combination_id, short_hash
from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.curves import launch_curves, workload_curves
from tasks.templates.exact import solve_many
from tasks.templates.ilp import solve_ilp
from tasks.templates.launchable import pipelines_of_equal_nodes
from tasks.templates.sample import sample_check
from tasks.templates.schema import TEMPLATE_SCHEMA
from tasks.templates.shards import plan_shards, solve_shards
from tasks.templates.types import RateCurves
from tasks.templates.verify import verify_templates


def best_pipeline(curves: RateCurves, counts: tuple[int, ...], least: int) -> int:
    """Best rate of one node per stage over all orders, splits into at least ``least`` layers, and cycles."""
    nodes = [k for k, count in enumerate(counts) for _ in range(count)]
    n, best = len(nodes), 0
    if n > curves.cycle_ms.shape[0]:
        return 0
    for c in np.flatnonzero(~np.isnan(curves.cycle_ms[n - 1])):
        for order in set(permutations(nodes)):
            for split in compositions(curves.layers, n):
                if min(split) < least:
                    continue
                places = [FIRST, *[MID] * (n - 2), LAST]
                cells = zip(order, places, split, strict=True)
                best = max(best, min(int(curves.rate_mtok_per_s[k, n - 1, p, c, j]) for k, p, j in cells))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_one_node_per_stage_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curves = random_curves(rng, configs=4, layers=int(rng.integers(4, 9)), stages=4, cycles=2, top=1000)
    counts = tuple(np.bincount(rng.integers(0, 4, int(rng.integers(2, 5))), minlength=4).tolist())
    least = int(rng.integers(1, 4))
    batch = solve_many(curves, np.array([counts]), one_node_per_stage=True, least_layers=least)
    placement, expected = batch.placement(0), best_pipeline(curves, counts, least)
    assert placement.throughput_mtok_per_s == expected
    if expected:
        assert recomputed_rate(curves, placement) == expected
        assert all(len(stage.nodes) == 1 for stage in placement.stages)
        assert min(stage.layer_end - stage.layer_start + 1 for stage in placement.stages) >= least
    if seed % 4 == 0:
        ilp = solve_ilp(curves, counts, one_node_per_stage=True, least_layers=least)
        assert ilp.placement.throughput_mtok_per_s == expected


def test_a_node_alone_is_a_pipeline_of_one() -> None:
    curves = random_curves(np.random.default_rng(3), configs=2, layers=5, stages=3, cycles=2)
    both = np.array([[1, 0], [0, 1]])
    alone = solve_many(curves, both, one_node_per_stage=True).throughput_mtok_per_s
    assert alone.tolist() == solve_many(curves, both).throughput_mtok_per_s.tolist()


def launch_table(best: pa.Table, seed: int = 9) -> pa.Table:
    """Rates of one-replica layouts below the best, where the best is another layout."""
    known = {
        (r["node_config"], r["stages"], r["position"], r["cycle_ms"], r["layers"]): r
        for r in best.to_pylist()
        if r["throughput_tok_per_s"]
    }
    rows: list[dict] = []
    grouped: dict[tuple, list[dict]] = {}
    for key, row in sorted(known.items()):
        if row["stages"] > 1:
            grouped.setdefault(key[:4], []).append(row)
    rng = np.random.default_rng(seed)
    for (config, *_), curve in grouped.items():
        gpus = int(config[-1])
        for tp in (t for t in (1, 2, 4) if gpus % t == 0):
            own = (tp, gpus // tp, 1)
            share = 1.0
            for row in curve:
                if row["layers"] < own[1]:
                    continue
                share *= rng.uniform(0.7, 1.0)
                if (row["tp"], row["pp"], row["replicas"]) == own:
                    share = 1.0  # the profile's own row; the next ones may be no faster
                    continue
                layout = {"tp": tp, "pp": own[1], "replicas": 1, "provenance": "borrowed", "rel_error": 0.5}
                rows.append(row | layout | {"throughput_tok_per_s": share * row["throughput_tok_per_s"]})
    return pa.Table.from_pylist(_closed(rows, known), schema=PROFILE_SCHEMA)


def _closed(rows: list[dict], known: dict) -> list[dict]:
    """A layout is at least as fast with fewer layers, the profile's own rows of it included."""
    curves: dict[tuple, dict[int, dict]] = {}
    for row in rows:
        curves.setdefault((row["node_config"], row["stages"], row["position"], row["cycle_ms"], row["tp"]), {})[
            row["layers"]
        ] = row
    for (config, stages, position, cycle, tp), own in curves.items():
        fastest = 0.0
        for j in range(LAYERS, 0, -1):
            best = known.get((config, stages, position, cycle, j))
            if j in own:
                fastest = own[j]["throughput_tok_per_s"] = max(fastest, own[j]["throughput_tok_per_s"])
            elif best and (best["tp"], best["replicas"]) == (tp, 1):
                fastest = best["throughput_tok_per_s"]
    return rows


@pytest.fixture(scope="module")
def solved() -> tuple[tuple, pa.Table, pa.Table, pa.Table]:
    """(specs, templates, profiles, launch profiles) of a toy library."""
    best = profiles()
    launch = launch_table(best)
    specs = plan_shards(
        best, launch, layers=LAYERS, weight_bytes=WEIGHT_BYTES, memory_gib=MEMORY, sold_sets=[CONFIGS], limits=LIMITS
    )
    return specs, pa.concat_tables(solve_shards(specs, best, launch)), best, launch


def test_every_combination_has_its_best_launchable_placement(solved) -> None:
    _, templates, best, launch = solved
    degrees = launch_curves(workload_curves(best, LAYERS), launch)
    assert sorted(degrees) == [1, 2, 4]
    classes = templates["launch_class"].to_pylist()
    stored: dict[str, int] = {}
    for text, rate, launch_class in zip(
        templates["combination_id"].to_pylist(), templates["throughput_mtok_per_s"].to_pylist(), classes, strict=True
    ):
        if launch_class in ("A", "B1"):
            assert text not in stored
            stored[text] = rate
    checked = 0
    for text in {t for t in templates["combination_id"].to_pylist() if sum(parse_combination_id(t).values()) > 1}:
        nodes = parse_combination_id(text)
        gpus = {int(name[-1]) for name in nodes}
        counts = tuple(nodes.get(name, 0) for name in CONFIGS)
        expected = 0
        if len(gpus) == 1:
            count = gpus.pop()
            options = [(tp, curves) for tp, curves in degrees.items() if count % tp == 0]
            expected = max(best_pipeline(curves.curves, counts, count // tp) for tp, curves in options)
            checked += 1
        assert stored.get(text, 0) == expected
    assert checked > 10
    assert classes.count("B1") > 5


def test_a_second_template_is_checked_named_and_sorted(solved) -> None:
    _, templates, best, launch = solved
    assert templates.schema == TEMPLATE_SCHEMA
    assert verify_templates(templates, best, LAYERS, launch) == ()
    # Without the launchable layouts' rows some rates are not to be found.
    assert any("not that of its profile row" in fault for fault in verify_templates(templates, best, LAYERS))
    rows = templates.select(["shard_id", "template_id", "combination_id", "launch_class", "throughput_mtok_per_s"])
    seconds = 0
    by_combination: dict[str, list[dict]] = {}
    for row in rows.to_pylist():
        by_combination.setdefault(row["combination_id"], []).append(row)
    for text, found in by_combination.items():
        assert found[0]["template_id"] == short_hash([found[0]["shard_id"], text])
        for other in found[1:]:
            seconds += 1
            assert other["template_id"] == short_hash([other["shard_id"], text, "launchable"])
            assert (found[0]["launch_class"] in ("B2", "C"), other["launch_class"]) == (True, "B1")
            assert other["throughput_mtok_per_s"] <= found[0]["throughput_mtok_per_s"]
    assert seconds > 3


def test_the_best_placements_are_as_without_launchable_ones(solved) -> None:
    _, templates, best, _ = solved
    specs = plan_shards(
        best, layers=LAYERS, weight_bytes=WEIGHT_BYTES, memory_gib=MEMORY, sold_sets=[CONFIGS], limits=LIMITS
    )
    assert {spec.shard_id for spec in specs}.isdisjoint(set(templates["shard_id"].to_pylist()))
    plain = pa.concat_tables(solve_shards(specs, best))
    fastest: dict[str, int] = {}
    for row in templates.select(["combination_id", "throughput_mtok_per_s"]).to_pylist():
        text, rate = row["combination_id"], row["throughput_mtok_per_s"]
        fastest[text] = max(fastest.get(text, 0), rate)
    assert rates(plain) == fastest


def test_a_sample_compares_launchable_placements_too(solved) -> None:
    specs, templates, best, launch = solved
    outcome = sample_check(specs, templates, best, launch, size=12, seed=3)
    assert (outcome.n, outcome.max_rel_diff, outcome.differing) == (15, 0.0, ())
    without = templates.filter(pc.invert(pc.equal(templates["launch_class"], "B1")))
    found = sample_check(specs, without, best, launch, size=60, seed=3)
    assert any(text.endswith("(launchable)") for text in found.differing)


def test_a_slower_first_template_is_a_fault(solved) -> None:
    _, templates, best, launch = solved
    text = next(
        t for t in templates["combination_id"].to_pylist() if templates["combination_id"].to_pylist().count(t) > 1
    )
    rows = templates.to_pylist()
    pair = [row for row in rows if row["combination_id"] == text]
    pair[0]["launch_class"] = "B1"
    faulty = pa.Table.from_pylist(rows, schema=TEMPLATE_SCHEMA)
    assert any("second template" in fault for fault in verify_templates(faulty, best, LAYERS, launch))


def test_the_ilp_finds_the_same_launchable_placements() -> None:
    best = profiles(("L4x1", "L4x2"))
    launch = launch_table(best)
    args = {"layers": LAYERS, "weight_bytes": WEIGHT_BYTES, "memory_gib": MEMORY, "sold_sets": [["L4x1", "L4x2"]]}
    found = []
    for solver in ("exact", "ilp"):
        specs = plan_shards(best, launch, **args, limits=replace(LIMITS, n_max=2, solver=solver))
        table = pa.concat_tables(solve_shards(specs, best, launch))
        found.append(
            sorted(zip(*(table[n].to_pylist() for n in ("combination_id", "throughput_mtok_per_s")), strict=True))
        )
    assert found[0] == found[1]


def test_equal_nodes_are_told_by_their_gpus() -> None:
    names = ("A100x2", "H100x2", "L4x1", "L4x4")
    counts = np.array([[2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 3]], np.int8)
    assert pipelines_of_equal_nodes(counts, names).tolist() == [True, True, False, False, False, True]


def test_launch_rows_must_fit_the_profile() -> None:
    best = workload_curves(
        profile_table(random_curves(np.random.default_rng(2), configs=1, layers=4, stages=2, cycles=2)), 4
    )
    row = {
        "node_config": "G0x1", "workload_id": "random", "layers": 1, "position": "first", "stages": 2, "cycle_ms": 10.0,
        "throughput_tok_per_s": 1.0, "tp": 1, "pp": 1, "replicas": 1, "batch": 1, "provenance": "fitted", "rel_error": 0.1,
    }  # fmt: skip

    def curves(*rows: dict) -> None:
        launch_curves(best, pa.Table.from_pylist(list(rows), schema=PROFILE_SCHEMA))

    with pytest.raises(ValueError, match="is not in its profiles"):
        curves(row | {"node_config": "G7x1"})
    with pytest.raises(ValueError, match="a cycle that its profiles do not have"):
        curves(row | {"cycle_ms": 11.0})
    with pytest.raises(ValueError, match="a cycle that its profiles do not have"):
        curves(row | {"stages": 3})
    with pytest.raises(ValueError, match="two rates for one cell"):
        curves(row | {"layers": 4, "tp": 2}, row | {"layers": 4, "tp": 2})
