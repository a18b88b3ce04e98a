"""The cheapest nodes and the best templates that a lake keeps, against plain loops over what was registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from warehouse_cases import (
    QWEN,
    build_record,
    land_frontier,
    land_profile,
    library_record,
    new_lake,
    plan,
    run,
    template_id,
    templates,
)

from catalogs.ids import parse_combination_id
from catalogs.types import Market, Offer
from warehouse.connect import Lake
from warehouse.land import write_shard
from warehouse.plans import publish_plan
from warehouse.publish import make_current, register_library
from warehouse.records import ReferenceInputs

NODES = ("A10Gx1", "H100-SXMx1", "L40Sx4", "L4x4")
PLACES = (("aws/a", Market.ON_DEMAND), ("aws/a", Market.SPOT), ("gcp/b", Market.ON_DEMAND))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with new_lake(tmp_path) as opened:
        yield opened


def random_rates(rng: np.random.Generator, scale: float) -> dict[str, int]:
    """Rates of combinations of up to three nodes, some of them equal per node."""
    rates = {}
    for _ in range(25):
        counts = {node: int(n) for node, n in zip(NODES, rng.integers(0, 3, len(NODES)), strict=True) if n}
        if counts:
            text = "+".join(f"{node}*{n}" for node, n in counts.items())
            rates[text] = int(scale * sum(counts.values()) * rng.integers(1, 4)) * 1_000
    return rates


def random_offers(rng: np.random.Generator) -> list[Offer]:
    """One to two offers for three quarters of the nodes in each place."""
    day = date(2026, 7, 30)
    return [
        Offer(f"{region}/{market.value}/{node}/{n}", region.split("/")[0], region, node, "m", market,
              float(rng.integers(1, 6)), None, False, day, "list")
        for region, market in PLACES for node in NODES if rng.random() < 0.75 for n in range(int(rng.integers(1, 3)))
    ]  # fmt: skip


def add_library(lake: Lake, library_id: str, rates: Mapping[str, int], offers: list[Offer] | None, key: str) -> None:
    shard_id = f"s_{library_id}"
    shard = write_shard(lake.root, templates(shard_id, QWEN, rates), shard_id)
    frontier = land_frontier(lake.root, f"f_{library_id}", QWEN, [template_id(shard_id, text) for text in rates])
    files = [land_profile(lake.root, QWEN)]
    reference = None if offers is None else ReferenceInputs(offers=offers)
    record, build = library_record(library_id, files, key), build_record(library_id, library_id)
    register_library(lake, record, [shard], files, [frontier], build, reference)


def by_loops(rates: Mapping[str, int], offers: list[Offer]) -> dict[tuple[str, str], tuple[float, int]]:
    """Per place that sells a template whole: USD per 1000 tokens/s and hour of the best, and the fastest rate of those."""
    best: dict[tuple[str, str], tuple[float, int]] = {}
    for text, rate in rates.items():
        for region, market in PLACES:
            total = 0.0
            for node, count in parse_combination_id(text).items():
                sold = [
                    o.price_usd_per_h for o in offers if (o.region, o.market, o.node_config) == (region, market, node)
                ]
                total += count * min(sold, default=float("inf"))
            place = (region, market.value)
            if total < float("inf"):
                best[place] = min(best.get(place, (float("inf"), 0)), (total / rate, -rate))
    return {place: (usd, -rate) for place, (usd, rate) in best.items()}


def held(lake: Lake, scenario_id: str) -> dict[tuple[str, str], tuple[float, int]]:
    found = lake.connection.execute(
        "SELECT region, market, price_usd_per_h, throughput_tok_per_s, usd_per_million_tok, combination_id, template_id, "
        "library_id FROM best_templates WHERE scenario_id = ?",
        [scenario_id],
    ).fetchall()
    answer = {}
    for region, market, price, rate, per_million, combination, template, library in found:
        assert per_million == pytest.approx(price / (rate * 0.0036))
        assert template == template_id(f"s_{library}", combination)
        answer[region, market] = (pytest.approx(price / (rate * 1000)), round(rate * 1000))
    assert len(answer) == len(found)
    return answer


@pytest.mark.parametrize("seed", range(3))
def test_best_templates_follow_libraries_and_prices(lake: Lake, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second, other = (random_rates(rng, scale) for scale in (1, 2, 3))
    prices, new_prices, elsewhere = (random_offers(rng) for _ in range(3))
    add_library(lake, "lib1", first, prices, "core")
    add_library(lake, "lib9", other, elsewhere, "other")
    assert held(lake, "core") == by_loops(first, prices)
    add_library(lake, "lib2", second, None, "core")
    assert held(lake, "core") == by_loops(second, prices), "another library at the prices there were"
    publish_plan(lake, plan(), run("r1"), ReferenceInputs(offers=new_prices))
    assert held(lake, "core") == by_loops(second, new_prices), "a plan that read other prices"
    make_current(lake, "core", "lib1")
    assert held(lake, "core") == by_loops(first, new_prices), "back to the first library"
    assert held(lake, "other") == by_loops(other, elsewhere), "another scenario"
    priced = lake.connection.execute(
        "SELECT region, market, arg_min(template_id, (usd_per_million_tok, -throughput_tok_per_s, template_id)) "
        "FROM frontier_prices WHERE scenario_id = 'core' GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    kept = "SELECT region, market, template_id FROM best_templates WHERE scenario_id = 'core' ORDER BY ALL"
    assert lake.connection.execute(kept).fetchall() == priced


def test_the_same_prices_write_nothing(lake: Lake) -> None:
    offers = random_offers(np.random.default_rng(5))
    add_library(lake, "lib1", {"L40Sx4*1": 5_000, "L4x4*2": 6_000}, offers, "core")

    def files() -> list[tuple[object, ...]]:
        return lake.connection.execute(
            "SELECT rowid, region, market, node_config FROM region_prices ORDER BY ALL"
        ).fetchall()

    before = files()
    publish_plan(lake, plan(), run("r1"), ReferenceInputs(offers=[*reversed(offers)]))
    assert files() == before
    dearer = [replace(offer, price_usd_per_h=offer.price_usd_per_h + 1) for offer in offers]
    publish_plan(lake, plan(instances=3), run("r2"), ReferenceInputs(offers=dearer))
    assert files() != before
