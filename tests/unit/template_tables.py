"""Random rate curves and an independent brute force for the placement tests: no code of the solver is used here."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa

from tasks.profiling.schema import PROFILE_SCHEMA
from tasks.templates.types import RateCurves

ONLY, FIRST, MID, LAST = 0, 1, 2, 3


def random_curves(
    rng: np.random.Generator, *, configs: int, layers: int, stages: int, cycles: int, top: int = 60
) -> RateCurves:
    """Non-increasing integer curves with plateaus, zeros, unusable configurations and worse end positions."""
    rate = np.zeros((configs, stages, 4, cycles, layers + 1), np.int64)
    for k in range(configs):
        if rng.random() < 0.08:
            continue  # a configuration that never works
        for s in range(stages):
            for c in range(cycles):
                base = np.sort(rng.integers(1, top, layers))[::-1]
                if rng.random() < 0.5:
                    base = np.repeat(base[:: max(1, layers // 3)], max(1, layers // 3) + 1)[:layers]  # plateaus
                base = base.copy()
                base[int(rng.integers(0, layers + 1)) if rng.random() < 0.6 else layers :] = 0  # memory ends
                for place in (ONLY,) if s == 0 else (FIRST, MID, LAST):
                    lost = 0 if place == MID else int(rng.integers(0, 3))
                    worse = np.concatenate([base[lost:], np.zeros(layers, np.int64)])[:layers]
                    if rng.random() < 0.1:
                        worse = np.sort(rng.integers(0, top, layers))[::-1]  # an end better than the middle
                    rate[k, s, place, c, 1:] = worse
    cycle_ms = np.tile(10.0 * np.arange(1, cycles + 1), (stages, 1))
    if cycles > 1 and rng.random() < 0.3:
        cycle_ms[int(rng.integers(stages)), cycles - 1] = np.nan
        rate[:, np.isnan(cycle_ms)[:, cycles - 1], :, cycles - 1] = 0
    return RateCurves("random", layers, tuple(f"G{k}x1" for k in range(configs)), cycle_ms, rate)


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    """All ways to write ``total`` as an ordered sum of ``parts`` positive integers."""
    if parts == 1:
        return [(total,)] if total >= 1 else []
    return [(head, *rest) for head in range(1, total - parts + 2) for rest in compositions(total - head, parts - 1)]


def brute_force(curves: RateCurves, counts: tuple[int, ...]) -> int:
    """Best rate over all assignments of nodes to ordered stages, all layer splits and all cycles; 0 if nothing works."""
    nodes = [k for k, count in enumerate(counts) for _ in range(count)]
    best = 0
    for stages in range(1, min(len(nodes), curves.layers, curves.cycle_ms.shape[0]) + 1):
        splits = compositions(curves.layers, stages)
        assignments = [a for a in product(range(stages), repeat=len(nodes)) if len(set(a)) == stages]
        for c in range(curves.cycle_ms.shape[1]):
            if np.isnan(curves.cycle_ms[stages - 1, c]):
                continue
            for assignment, split in product(assignments, splits):
                best = max(best, _rate(curves, nodes, assignment, split, stages, c))
    return best


def _rate(
    curves: RateCurves, nodes: list[int], assignment: tuple[int, ...], split: tuple[int, ...], stages: int, cycle: int
) -> int:
    sums = [0] * stages
    for node, stage in zip(nodes, assignment, strict=True):
        place = ONLY if stages == 1 else FIRST if stage == 0 else LAST if stage == stages - 1 else MID
        rate = int(curves.rate_mtok_per_s[node, stages - 1, place, cycle, split[stage]])
        if rate == 0:
            return 0
        sums[stage] += rate
    return min(sums)


POSITION_NAMES = ("only", "first", "mid", "last")


def profile_table(curves: RateCurves, rng: np.random.Generator | None = None) -> pa.Table:
    """The curves as profile rows: feasible cells and, as the real tables have, the first infeasible one after them."""
    rng = rng or np.random.default_rng(0)
    columns: dict[str, list[object]] = {name: [] for name in PROFILE_SCHEMA.names}
    for k, s, place, c in np.ndindex(curves.rate_mtok_per_s.shape[:4]):
        if np.isnan(curves.cycle_ms[s, c]) or (place == ONLY) != (s == 0) or (place == MID and s == 1):
            continue
        rates = curves.rate_mtok_per_s[k, s, place, c, 1:].tolist()
        feasible = sum(rate > 0 for rate in rates)
        for j, rate in enumerate(rates[: feasible + 1], start=1):
            count = int(curves.node_configs[k].rsplit("x", 1)[1])
            tp = int(rng.choice([t for t in (1, 2, 4, 8) if count % t == 0]))
            row = {
                "node_config": curves.node_configs[k],
                "workload_id": curves.workload_id,
                "layers": j,
                "position": POSITION_NAMES[place],
                "stages": s + 1,
                "cycle_ms": float(curves.cycle_ms[s, c]),
                "throughput_tok_per_s": (rate + 0.25) / 1000 if rate else None,
                "reason": None if rate else "memory",
                "tp": tp if rate else None,
                "pp": 1 if rate else None,
                "replicas": count // tp if rate else None,
                "batch": 7 * j if rate else None,
                "memory_used_gib": 1.5 if rate else None,
                "provenance": "fitted" if k % 2 else "borrowed",
                "rel_error": 0.05 + 0.01 * k,
            }
            for name, value in row.items():
                columns[name].append(value)
    return pa.Table.from_pydict(columns, schema=PROFILE_SCHEMA)
