"""Tables under several rules at once: against every set of instances there is, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import R1, problem, workload

from catalogs.types import Basis, Market, Phase
from tasks.allocation.checker import check_result
from tasks.allocation.columns import make_columns
from tasks.allocation.covers.pricing import model_blocks
from tasks.allocation.covers.ruled import Below, table_above, table_below
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.covers.tables import Block, NodePrices, Table
from tasks.allocation.types import AllocationProblem, Pool, SolveLimits

CONFIGS = ("L4x1", "A10Gx1")
STEPS = 512
ROUNDED = 16 / STEPS  # what sixteen instances lose or gain at most where each is rounded to a step


def on_two_markets(
    share: tuple[float, float], price: tuple[float, float, float, float], **rules: object
) -> AllocationProblem:
    """A model of 1 req/s; an instance of either configuration serves ``share`` of it, on demand or on spot."""
    one = problem(
        [workload("a", Phase.AGGREGATED, {c: ({c: 1}, s) for c, s in zip(CONFIGS, share, strict=True)}, CONFIGS)],
        {"a": 1.0},
        {},
        {},
        configs=CONFIGS,
    )
    pools = (Pool(R1), Pool(R1, Market.SPOT))
    return replace(
        one,
        pools=pools,
        price_usd_per_h=np.array(price).reshape(2, 2),
        capacity_nodes=np.full((2, 2), 20),
        capacity_basis={(pool.name, c): Basis.STATED for pool in pools for c in CONFIGS},
        demands=tuple(replace(d, **rules) for d in one.demands),  # type: ignore[arg-type]
    )


def tables(p: AllocationProblem, steps: int = STEPS) -> tuple[Block, Below, Table]:
    (block,) = model_blocks(p, make_columns(p), 1.0)[0].blocks[0]
    prices = NodePrices(p.price_usd_per_h, p.price_usd_per_h)
    return block, table_below(block, prices, steps), table_above(block, prices, steps)


def test_a_lost_spot_instance_beside_a_firm_half() -> None:
    """N+1 alone takes two on spot (2 USD), a firm half one on demand (10 USD); both one of each."""
    p = on_two_markets((1.0, 1.0), (10.0, 12.0, 1.0, 1.5), survives_loss=True, max_spot_share=0.5)
    block, below, above = tables(p)
    assert below.f[-1] == pytest.approx(11.0)
    assert above.f[-1] == pytest.approx(11.0)
    chosen = above.walk(STEPS)
    assert sorted(bool(block.firm[block.columns == column][0]) for column in chosen) == [False, True]


@pytest.mark.parametrize("seed", range(60))
def test_between_them_is_the_best_of_all_sets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    eighths = rng.choice([2, 3, 4, 6, 8], 2)
    least, spot = int(rng.integers(1, 5)), float(rng.choice([0.3, 0.6]))
    is_loss = bool(rng.random() < 0.75)
    price = tuple(float(x) for x in [*rng.integers(4, 20, 2), *rng.integers(1, 9, 2)])
    p = on_two_markets(tuple(eighths / 8), price, survives_loss=is_loss, max_spot_share=spot, min_replicas=least)
    counts = np.stack(np.meshgrid(*[np.arange(9)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    share = np.tile(eighths, 2) / 8
    total, firm = counts @ share, counts[:, :2] @ share[:2]
    lost = (np.where(counts > 0, share, 0.0)).max(axis=1) if is_loss else 0.0

    def cheapest(slack: float) -> float:
        serves = (total - lost >= 1 - slack) & (firm >= 1 - spot - slack) & (counts.sum(axis=1) >= least)
        return float((counts @ np.array(price))[serves].min())

    best = cheapest(0.0)
    block, below, above = tables(p)
    assert below.f[-1] <= best + 1e-9
    assert above.f[-1] >= best - 1e-9
    if least <= 1 + int(is_loss):  # else tables add instances one by one
        assert below.f[-1] >= cheapest(ROUNDED) - 1e-9
        assert above.f[-1] <= cheapest(-ROUNDED) + 1e-9
    chosen = above.walk(STEPS)
    by_place = {int(c): (bool(f), float(s)) for c, f, s in zip(block.columns, block.firm, block.share, strict=True)}
    each = [by_place[column] for column, many in chosen.items() for _ in range(many)]
    assert len(each) >= least
    assert sum(s for f, s in each if f) >= 1 - spot
    assert sum(s for _, s in each) - (max(s for _, s in each) if is_loss else 0) >= 1
    assert solve_covers(p, SolveLimits(gap=0.0)).objective_usd == pytest.approx(best)


def test_a_coarser_grid_of_both_holds_on_the_finer_one() -> None:
    """On 2,048 steps the table of both has half as many; shares are whole on neither. Five of 0.3 are best, two of them firm."""
    p = on_two_markets((0.3, 0.7), (4.0, 20.0, 1.0, 9.0), survives_loss=True, max_spot_share=0.5)
    _, below, above = tables(p, 2048)
    best = 2 * 4.0 + 3 * 1.0  # firm 0.6, five of 0.3 less one: 1.2
    assert below.f[-1] == pytest.approx(best)
    assert above.f[-1] == pytest.approx(best)
    assert (np.diff(below.f) >= 0).all()
    assert (below.f <= above.f + 1e-9).all()


def test_more_replicas_than_a_loss_needs() -> None:
    """One large instance and two small ones are three, but without the large one they serve a fifth; 11 small ones do."""
    p = problem(
        [workload("a", Phase.AGGREGATED, {"large": ({"L4x1": 1}, 1.0), "small": ({"A10Gx1": 1}, 0.1)}, CONFIGS)],
        {"a": 1.0},
        {(R1, "L4x1"): 5.0, (R1, "A10Gx1"): 0.6},
        {(R1, "L4x1"): 50, (R1, "A10Gx1"): 50},
        configs=CONFIGS,
    )
    p = replace(p, demands=tuple(replace(d, survives_loss=True, min_replicas=3) for d in p.demands))
    found = solve_covers(p, SolveLimits(gap=0.0))
    assert check_result(p, found) == []
    assert found.objective_usd == pytest.approx(6.6)
