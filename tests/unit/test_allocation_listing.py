"""Listing covers: against every multiset of a model's columns, and what it makes of the search."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from allocation_cases import random_problem

from tasks.allocation.column_kernels import smallest
from tasks.allocation.columns import Columns, make_columns
from tasks.allocation.covers import enumeration, listing
from tasks.allocation.covers.enumeration import TooManyError, can_list, list_covers, model_tables
from tasks.allocation.covers.enumeration_kernels import least_beside
from tasks.allocation.covers.pricing import (
    Cover,
    Grid,
    ModelBlocks,
    cover_cost,
    cover_use,
    dual_prices,
    lower_bound,
    model_blocks,
)
from tasks.allocation.covers.solver import solve_covers
from tasks.allocation.ilp import solve_ilp
from tasks.allocation.outcome import served_shares
from tasks.allocation.types import AllocationProblem, SolveLimits

SIZE = 256


def all_covers(p: AllocationProblem, columns: Columns, model: ModelBlocks, most: int = 20_000) -> list[Cover] | None:
    """Every multiset of the model's columns that serves it, nodes no more than there are; None if too many to try."""
    rows = np.sort(np.concatenate([block.columns for phases in model.blocks for block in phases]))
    many = columns.max_instances[rows] + 1
    if np.prod(many.astype(np.float64)) > most:
        return None
    found = []
    for counts in itertools.product(*(range(n) for n in many)):
        taken = np.array(counts, dtype=np.int64)
        cover = Cover(rows[taken > 0].astype(np.intp), taken[taken > 0])
        fits = bool((cover_use(columns, cover, p.capacity_nodes.shape) <= p.capacity_nodes).all())
        whole = np.zeros(len(columns), dtype=np.int64)
        whole[cover.columns] = cover.instances
        if fits and len(cover.columns) and served_shares(p, columns, whole)[model.demand.model] >= 1 - 1e-9:
            found.append(cover)
    return found


def test_a_list_holds_every_cover_within_its_limit_or_one_that_beats_it() -> None:
    rng, seen, spread = np.random.default_rng(0), 0, 0
    for seed in range(150):
        base = random_problem(seed)
        p = replace(base, capacity_nodes=2 * base.capacity_nodes, budget_usd_per_h=None, quotas=())
        columns = make_columns(p)
        duals = rng.uniform(0, 2, p.capacity_nodes.shape) * (rng.random(p.capacity_nodes.shape) < 0.5)
        none = np.zeros(len(p.quotas))
        prices, true = dual_prices(p, duals, 0.0, none), dual_prices(p, np.zeros_like(duals), 0.0, none)
        for model in model_blocks(p, columns, 1.0):
            truth = all_covers(p, columns, model) if model.blocks and can_list(model) else None
            if not truth:
                continue
            limit = lower_bound(model, prices, Grid(SIZE, 1)) * rng.uniform(1.0, 6.0)
            usable = np.ones(len(columns), dtype=np.bool_)
            tables, capacity = model_tables(model, prices, SIZE), p.capacity_nodes.ravel().astype(np.int64)
            sets = list_covers(model, tables, prices, true, capacity, usable, limit, 10_000)
            for i in range(len(sets)):
                assert sets.price[i] >= cover_cost(columns, sets.cover(i), p.init_share)[1] - 1e-9
                assert np.array_equal(cover_use(columns, sets.cover(i), duals.shape).ravel(), sets.use[i])
            for cover in truth:
                use, cost = cover_use(columns, cover, duals.shape).ravel(), cover_cost(columns, cover, p.init_share)[1]
                if cost + float(use @ duals.ravel()) > limit:
                    continue
                seen += 1
                spread += len(set(columns.region[cover.columns].tolist())) > 1
                assert ((sets.use <= use).all(axis=1) & (sets.price <= cost + 1e-9)).any(), (seed, model.demand.model)
    assert seen > 300
    assert spread > 10


def test_more_parts_than_asked_for_end_the_listing_not_the_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_PARTS", 1)
    for seed in range(30):
        p = random_problem(seed)
        exact = solve_ilp(p, SolveLimits(gap=0.0))
        assert solve_covers(p, SolveLimits(gap=0.0)).objective_usd == pytest.approx(exact.objective_usd, abs=1e-6)


def test_a_long_cover_is_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumeration, "_DEPTH", 1)
    longer = 0
    for seed in range(60):
        p = random_problem(seed)
        columns = make_columns(p)
        prices = dual_prices(p, np.zeros(p.capacity_nodes.shape), 0.0, np.zeros(len(p.quotas)))
        usable, capacity = np.ones(len(columns), dtype=np.bool_), p.capacity_nodes.ravel().astype(np.int64)
        for model in model_blocks(p, columns, 1.0):
            if model.blocks and can_list(model):
                try:
                    list_covers(model, model_tables(model, prices, SIZE), prices, prices, capacity, usable, 1e9, 10_000)
                except TooManyError:
                    longer += 1
    assert longer > 5


def test_the_smallest_templates_are_those_with_no_other_inside() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        counts = np.unique(rng.integers(0, 3, (40, 4)), axis=0).astype(np.int16)
        counts = counts[counts.sum(axis=1) > 2]
        order = np.argsort(counts.sum(axis=1), kind="stable")
        inside = [[i != j and bool((a <= b).all()) for j, a in enumerate(counts)] for i, b in enumerate(counts)]
        assert smallest(counts, order).tolist() == [not any(row) for row in inside]


def test_what_fits_beside_a_set() -> None:
    use, others = np.array([[1, 0], [0, 1], [0, 0]]), np.array([[1, 0], [1, 1]])
    beside = least_beside(use, np.zeros(3), others, np.array([0.5, 2.0]), np.array([1, 1]), 1.5)
    assert beside.tolist() == [1.5, 0.5, 0.5]
