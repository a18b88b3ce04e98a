"""Instances as flat arrays for the kernels. An engine is one replica of a node; engines are numbered stage by stage."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from catalogs.types import Phase
from tasks.simulation.types import Floats, Ints, SimInstance, StepTable


class Engines(NamedTuple):
    """The engines of one instance. ``stage_offsets`` [S + 1] delimits stages; the other arrays are [E] unless noted.

    ``slots``: tokens of a prefill pass, or sequences of one micro-batch. ``split``: sub-batches an engine cuts a decode
    micro-batch into (its inner stages, when the instance's micro-batches are not fine enough). ``grid_*`` and ``time_s``
    [tables, ...] share their knots: ``table[e]`` names the row. Per micro-batch [M]: ``batch_engine``, the engine it stays
    on (-1 = it goes through all stages), and ``batch_weight``, its part of all sequences.
    """

    stage_offsets: Ints
    share: Floats
    slots: Ints
    kv_capacity: Floats
    inner: Ints
    split: Ints
    hop_latency_s: Floats
    hop_s_per_token: Floats
    table: Ints
    grid_tokens: Floats
    grid_context: Floats
    time_s: Floats
    batch_engine: Ints
    batch_weight: Floats


class PackedInstance(NamedTuple):
    """An instance's engines, and the node (stage, index in stage) of each."""

    engines: Engines
    node_of_engine: list[tuple[int, int]]


def interpolate(table: StepTable, tokens: Floats, context: Floats) -> Floats:
    """The table's times at every pair of knots given, [len(tokens), len(context)], by its own rule."""
    i, u = _cells(table.tokens, tokens, clamp_low=True)
    j, v = _cells(table.context, context, clamp_low=False)
    i1 = np.minimum(i + 1, len(table.tokens) - 1)
    j1 = np.minimum(j + 1, len(table.context) - 1)
    grid = table.time_s
    low = grid[i][:, j] * (1 - v) + grid[i][:, j1] * v
    high = grid[i1][:, j] * (1 - v) + grid[i1][:, j1] * v
    result: Floats = low * (1 - u)[:, None] + high * u[:, None]
    return result


def _cells(knots: Floats, at: Floats, *, clamp_low: bool) -> tuple[Ints, Floats]:
    if len(knots) == 1:
        return np.zeros(len(at), dtype=np.int64), np.zeros(len(at))
    index = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    fraction = (at - knots[index]) / (knots[index + 1] - knots[index])
    return index.astype(np.int64), np.maximum(fraction, 0.0) if clamp_low else fraction


def micro_batches(instance: SimInstance, share: Floats, inner: Ints) -> tuple[Ints, Floats, bool]:
    """(engine, weight) of each micro-batch in flight, and whether engines must cut micro-batches into sub-batches.

    One stage: every engine holds the whole model and has its own, one per inner stage; nothing makes engines wait for
    one another. More stages: M = S where no node has inner stages, M = S * q where all have q. Where nodes differ M = S
    and a node with inner stages cuts each micro-batch into as many sub-batches.
    """
    n_stages = len(instance.stages)
    if n_stages == 1:
        return np.repeat(np.arange(len(share)), inner), np.repeat(share / inner, inner), False
    alike = bool((inner == inner[0]).all())
    m = n_stages * int(inner[0]) if alike else n_stages
    return np.full(m, -1, dtype=np.int64), np.full(m, 1.0 / m), not alike


def pack(instance: SimInstance) -> PackedInstance:
    """Flattens an instance; equal step tables are stored once, on the union of all tables' knots."""
    rows: list[tuple[float, ...]] = []
    node_of_engine: list[tuple[int, int]] = []
    offsets = [0]
    tables: list[StepTable] = []
    for s, stage in enumerate(instance.stages):
        total = sum(node.share for node in stage.nodes)
        for k, node in enumerate(stage.nodes):
            if not any(node.step is table for table in tables):
                tables.append(node.step)
            row = next(i for i, table in enumerate(tables) if table is node.step)
            # The last stage hands on token ids only; replicas of a node share its network.
            is_last = s == len(instance.stages) - 1
            rate = 0.0 if is_last else instance.activation_bytes_per_token * node.replicas / node.network_bytes_per_s
            for _ in range(node.replicas):
                share = node.share / total / node.replicas
                rows.append(
                    (share, node.batch, node.kv_capacity_tokens, node.inner_stages, node.hop_latency_s, rate, row)
                )
                node_of_engine.append((s, k))
        offsets.append(len(rows))
    columns = np.array(rows, dtype=np.float64).T
    share, inner = columns[0].copy(), columns[3].astype(np.int64)
    batch_engine, batch_weight, is_cut = micro_batches(instance, share, inner)
    # A prefill pass is one sub-batch: passes follow one another through the inner stages by themselves.
    split = inner if is_cut and instance.phase is Phase.DECODE else np.ones_like(inner)
    tokens = np.unique(np.concatenate([table.tokens for table in tables]))
    context = np.unique(np.concatenate([table.context for table in tables]))
    engines = Engines(
        stage_offsets=np.array(offsets, dtype=np.int64),
        share=share,
        slots=columns[1].astype(np.int64) * split,
        kv_capacity=columns[2].copy(),
        inner=inner,
        split=split,
        hop_latency_s=columns[4].copy(),
        hop_s_per_token=columns[5].copy(),
        table=columns[6].astype(np.int64),
        grid_tokens=tokens,
        grid_context=context,
        time_s=np.ascontiguousarray(np.stack([interpolate(table, tokens, context) for table in tables])),
        batch_engine=batch_engine,
        batch_weight=batch_weight,
    )
    return PackedInstance(engines, node_of_engine)


def kv_tokens_per_context(instance: SimInstance) -> tuple[float, float]:
    """(slope, fixed): a sequence of c tokens takes slope * c + fixed tokens of ``kv_capacity_tokens``.

    The windows of the other layers count as full from the start, a few tokens too many for very short contexts.
    """
    share = instance.kv_full_share
    return share, (1.0 - share) * instance.kv_window if math.isfinite(share) else 0.0
