"""Seeded problems far beyond the paper's: 46 models of two phases, 4,000 frontier templates each, 40 configurations, 10
regions; supply as a multiple of what the relaxation needs.

Rates follow the law of :mod:`allocation_instances` with ten GPUs and models of 8 to 480 GiB. A workload's templates are
taken from the frontier of all combinations of up to three nodes and a sample of those of four; nodes together are a
little faster than apart, as where they share what one must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from allocation_instances import combinations, frontier, least_scale
from numpy.typing import NDArray

from catalogs.types import Basis, Phase
from tasks.allocation.types import AllocationProblem, ModelDemand, WorkloadCandidates

# GPU: memory GiB, relative price per GPU hour, prefill and decode speed per GPU, what a doubling of the GPUs keeps.
GPUS = {
    "T4": (16.0, 0.5, 0.4, 0.35, 0.70),
    "L4": (24.0, 0.8, 1.0, 0.55, 0.72),
    "A10G": (24.0, 1.0, 0.75, 0.95, 0.72),
    "V100-32GB": (32.0, 1.6, 0.8, 1.4, 0.88),
    "A100-40GB-SXM": (40.0, 2.9, 3.2, 3.4, 0.93),
    "L40S": (48.0, 1.9, 3.1, 1.6, 0.70),
    "A100-80GB-SXM": (80.0, 3.7, 3.3, 4.6, 0.93),
    "H100-SXM": (80.0, 6.9, 9.0, 7.3, 0.94),
    "H200-SXM": (141.0, 8.4, 9.0, 10.5, 0.94),
    "B200": (180.0, 12.5, 20.0, 17.0, 0.95),
}
SIZES = (1, 2, 4, 8)
REGIONS = tuple(f"aws/region-{i}" for i in range(10))
_LEAST_SHARE, _MOST_SHARE = 1 / 120, 0.5
_TOGETHER = 0.03
_FOURS = 2_000


@dataclass(frozen=True)
class Fleet:
    """Size of an instance; ``demand``: how many times as many instances of the same templates the models want."""

    models: int = 46
    templates: int = 4000
    regions: int = 10
    demand: float = 1.0


def make_fleet(seed: int, fleet: Fleet, supplies: Sequence[float]) -> list[AllocationProblem]:
    """One problem per entry of ``supplies``: nodes to be had as a multiple of the least, in a random mix, with which the
    relaxation (over a sample of the templates) serves all. They differ in nothing else."""
    rng = np.random.default_rng(seed)
    sizes = [(gpu, n) for gpu in GPUS for n in SIZES]
    configs = tuple(f"{gpu}x{n}" for gpu, n in sizes)
    regions = REGIONS[: fleet.regions]
    level = rng.uniform(0.85, 1.25, len(regions))
    price = level[:, None] * np.array([GPUS[gpu][1] * n**1.04 for gpu, n in sizes])
    price *= rng.uniform(0.95, 1.1, price.shape)
    counts = _some_combinations(len(configs), _FOURS, rng)
    candidates, demands = [], []
    for number in range(fleet.models):
        name = f"model-{number:02d}"
        weights = float(np.exp(rng.uniform(np.log(8), np.log(480))))
        tokens = (float(rng.uniform(400, 3000)), float(rng.uniform(30, 500)))
        rate = float(rng.uniform(2, 40))
        ids = []
        for phase, per_request in zip((Phase.PREFILL, Phase.DECODE), tokens, strict=True):
            milli = _rates(counts, weights, phase, rng)
            rows = _frontier_rows(counts, milli, fleet.templates, rng)
            # Tok/s of the median template serve this share of the demand: from a few instances to a hundred.
            share = float(np.exp(rng.uniform(np.log(_LEAST_SHARE * 2), np.log(_MOST_SHARE / 2)))) / fleet.demand
            scaled = np.floor(milli[rows] * (rate * per_request * 1000 * share / np.median(milli[rows]))).astype(
                np.int64
            )
            workload_id = f"{name}-{phase.value}"
            ids.append(workload_id)
            candidates.append(
                WorkloadCandidates(
                    workload_id=workload_id,
                    alias=f"{name}/{phase.value}",
                    model=name,
                    phase=phase,
                    tokens_per_request=per_request,
                    headroom=0.8 if phase is Phase.PREFILL else 0.9,
                    template_ids=tuple(f"{workload_id}-{i:07d}" for i in rows),
                    counts=counts[rows],
                    throughput_mtok_per_s=scaled,
                )
            )
        demands.append(ModelDemand(name, rate, tuple(ids), regions))
    mix = rng.gamma(1.5, 1.0, (len(regions), len(configs))) / np.array([n**0.7 for _, n in sizes])
    need = mix * least_scale(candidates, demands, mix)
    whole = AllocationProblem(
        regions=regions,
        node_configs=configs,
        price_usd_per_h=price,
        capacity_nodes=np.ceil(need).astype(np.int64),
        capacity_basis={(r, c): Basis.ASSUMED for r in regions for c in configs},
        candidates=tuple(candidates),
        demands=tuple(demands),
        init_share=0.1,
    )
    return [replace(whole, capacity_nodes=np.ceil(need * supply).astype(np.int64)) for supply in supplies]


def _some_combinations(n_configs: int, fours: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """All multisets of up to three nodes, and of ``fours`` drawn of four the distinct ones."""
    drawn = np.sort(rng.integers(0, n_configs, (fours, 4)), axis=1)
    rows = np.zeros((fours, n_configs), dtype=np.int16)
    np.add.at(rows, (np.arange(fours)[:, None], drawn), 1)
    return np.concatenate([combinations(n_configs, 3), np.unique(rows, axis=0)])


def _rates(counts: NDArray[np.int16], weights_gib: float, phase: Phase, rng: np.random.Generator) -> NDArray[np.int64]:
    """Milli-tok/s up to a factor of each combination; 0 where it cannot hold the model or holds 60 of it and more."""
    at = 2 if phase is Phase.PREFILL else 3
    sizes = [(gpu, n) for gpu in GPUS for n in SIZES]
    held = counts @ np.array([GPUS[gpu][0] * n * 0.9 for gpu, n in sizes])
    # Each workload likes some GPUs better than others.
    taste = dict(zip(GPUS, rng.uniform(0.75, 1.25, len(GPUS)), strict=True))
    speed = counts @ np.array([taste[g] * GPUS[g][at] * n * GPUS[g][4] ** np.log2(n) for g, n in sizes])
    room = np.clip(1 - weights_gib / held, 0.0, 1.0) ** (0.25 if phase is Phase.PREFILL else 0.7)
    spread = 1.0 - 0.25 * rng.beta(1.2, 2.5, len(counts))
    together = 1.0 + _TOGETHER * (counts.sum(axis=1) - 1)
    rate = 1e6 * speed * room * spread * together
    rate[(held < 1.08 * weights_gib) | (held > 60 * max(weights_gib, 24.0))] = 0.0
    return np.asarray(np.floor(rate), dtype=np.int64)


def _frontier_rows(
    counts: NDArray[np.int16], milli: NDArray[np.int64], wanted: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """``wanted`` rows of the frontier (all where it has no more): first those of one and two nodes, others by chance."""
    rows = np.flatnonzero(frontier(counts, milli) & (milli > 0))
    few = counts[rows].sum(axis=1) <= 2
    rest = rng.permutation(rows[~few])[: max(wanted - int(few.sum()), 0)]
    return np.sort(np.concatenate([rows[few], rest]))
