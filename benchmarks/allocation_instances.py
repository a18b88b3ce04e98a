"""Seeded online problems of the paper's shape: template rates by a simple law plus noise, supply by how tight it is.

Rates are not those of the profiles: throughput of a combination = the sum of its nodes' speeds x a loss for holding the
model in uneven parts x the memory left for KV, with a seeded spread. What matters to the allocator is kept: hundreds of
thousands of templates per workload, mixed ones often best, every configuration useful to someone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from catalogs.types import Basis, Phase
from tasks.allocation.types import AllocationProblem, ModelDemand, Shortage, WorkloadCandidates

# GPU: memory GiB, relative price per GPU hour, prefill speed, decode speed (per GPU, arbitrary units).
GPUS = {
    "L4": (24.0, 0.8, 1.0, 0.55),
    "A10G": (24.0, 1.0, 0.75, 0.95),
    "L40S": (48.0, 1.9, 3.1, 1.6),
    "A100-80GB-SXM": (80.0, 3.7, 3.3, 4.6),
    "H100-SXM": (80.0, 6.9, 9.0, 7.3),
}
# Model: weights GiB, prompt and output tokens, speed divisor.
MODELS = {
    "phi-4": (28.0, 1155.0, 211.0, 1.0),
    "gpt-oss-20b": (13.0, 2048.0, 28.0, 0.35),
    "qwen3-32b": (62.0, 621.0, 126.0, 2.2),
    "llama-3-70b": (132.0, 621.0, 126.0, 4.8),
    "gpt-oss-120b": (61.0, 1155.0, 211.0, 0.6),
    "qwen3-235b": (438.0, 2048.0, 28.0, 2.6),
}
CORE_MODELS = ("qwen3-32b", "gpt-oss-20b", "phi-4")
CORE_GPUS = ("L4", "A10G", "L40S")
REGION_PRICE = {"aws/us-east-2": 1.0, "aws/ap-northeast-2": 1.22, "gcp/us-central1": 0.94}


@dataclass(frozen=True)
class Shape:
    """Size of an instance: who is served with what, and the templates' node and memory limits."""

    models: Sequence[str]
    gpus: Sequence[str]
    regions: Sequence[str]
    req_per_s: float
    n_max: int = 6
    rho: float = 12.0
    copies: int = 1  # of every model, each with other rates


CORE = Shape(CORE_MODELS, CORE_GPUS, ("aws/us-east-2", "aws/ap-northeast-2"), 10.0)
EXTENDED = Shape(tuple(MODELS), tuple(GPUS), tuple(REGION_PRICE), 25.0)


def combinations(n_configs: int, n_max: int) -> NDArray[np.int16]:
    """All multisets of 1..n_max nodes, [n, n_configs]."""
    rows = [
        np.bincount(chosen, minlength=n_configs)
        for size in range(1, n_max + 1)
        for chosen in itertools.combinations_with_replacement(range(n_configs), size)
    ]
    return np.array(rows, dtype=np.int16)


def workload_rates(
    counts: NDArray[np.int16], model: str, phase: Phase, shape: Shape, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Tok/s of every combination; 0 where it cannot hold the model or holds more memory than rho x the model."""
    weights, _, _, divisor = MODELS[model]
    sizes = [(gpu, n) for gpu in shape.gpus for n in (1, 2, 4, 8)]
    memory = np.array([GPUS[gpu][0] * n * 0.9 for gpu, n in sizes])
    column = 2 if phase is Phase.PREFILL else 3
    link_loss = {"L4": 0.72, "A10G": 0.72, "L40S": 0.70, "A100-80GB-SXM": 0.93, "H100-SXM": 0.94}
    speed = np.array([GPUS[gpu][column] * n * link_loss[gpu] ** np.log2(n) for gpu, n in sizes])
    held = counts @ memory
    kinds = (counts > 0).sum(axis=1)
    nodes = counts.sum(axis=1)
    spread = 1.0 - 0.28 * rng.beta(1.2, 2.5, len(counts)) * (1 - 1 / (1 + 0.5 * nodes + 0.5 * kinds))
    room = np.clip(1 - weights / held, 0.0, 1.0) ** (0.25 if phase is Phase.PREFILL else 0.7)
    unit = 2600.0 if phase is Phase.PREFILL else 420.0
    rate = unit / divisor * (counts @ speed) * room * spread
    rate[(held < 1.08 * weights) | (held > shape.rho * max(weights, 24.0))] = 0.0
    return rate


def frontier(counts: NDArray[np.int16], milli: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Templates that no sub-combination, and no two that split it, match in rate (exact on integers)."""
    # Random digits' weights instead of powers, which overflow beyond 30 configurations; sums wrap around alike.
    power = np.random.default_rng(0).integers(1, 2**62, counts.shape[1], dtype=np.int64)
    keys = counts.astype(np.int64) @ power
    if len(np.unique(keys)) < len(keys):
        raise ValueError("two combinations have the same key")
    order = np.argsort(keys)
    sorted_keys, best = keys[order], milli[order].copy()
    by_size = np.argsort(counts[order].sum(axis=1), kind="stable")
    keep = np.zeros(len(keys), dtype=np.bool_)
    kernel = _frontier_kernel()
    kernel(counts[order], power, sorted_keys, best, by_size, keep)
    out = np.zeros(len(keys), dtype=np.bool_)
    out[order] = keep
    return out


@functools.cache
def _frontier_kernel():  # type: ignore[no-untyped-def]
    import numba

    @numba.njit
    def kernel(counts, power, keys, best, by_size, keep):  # type: ignore[no-untyped-def]
        k = counts.shape[1]
        digit = np.zeros(k, dtype=np.int64)
        for row in by_size:
            own, total = counts[row], keys[row]
            top = np.int64(0)
            digit[:] = 0
            while True:  # every sub-multiset by odometer
                at = 0
                while at < k and digit[at] == own[at]:
                    digit[at] = 0
                    at += 1
                if at == k:
                    break
                digit[at] += 1
                sub = np.int64(0)
                for c in range(k):
                    sub += digit[c] * power[c]
                if sub == total:
                    continue
                a = best[np.searchsorted(keys, sub)] if sub else 0
                b = best[np.searchsorted(keys, total - sub)]
                top = max(top, a + b)
            keep[row] = best[row] > top
            best[row] = max(best[row], top)

    return kernel


def make_instance(
    shape: Shape, seed: int, supply: float, *, shortage: Shortage = Shortage.UNIFORM, init_share: float = 0.1
) -> tuple[AllocationProblem, int]:
    """A problem over the frontier, and how many columns (templates with a rate x regions) there were before it.

    ``supply``: nodes to be had, as a multiple of what the relaxation needs at least (random mix of configurations).
    """
    rng = np.random.default_rng(seed)
    sizes = [(gpu, n) for gpu in shape.gpus for n in (1, 2, 4, 8)]
    configs = tuple(f"{gpu}x{n}" for gpu, n in sizes)
    counts = combinations(len(configs), shape.n_max)
    price = np.array(
        [
            [GPUS[g][1] * n * REGION_PRICE.get(r, 1.0) * rng.uniform(0.95, 1.15) * n**0.04 for g, n in sizes]
            for r in shape.regions
        ]
    )
    candidates, demands, before = [], [], 0
    for model, copy in itertools.product(shape.models, range(shape.copies)):
        name = model if shape.copies == 1 else f"{model}-{copy}"
        ids = []
        for phase in (Phase.PREFILL, Phase.DECODE):
            milli = np.floor(workload_rates(counts, model, phase, shape, rng) * 1000).astype(np.int64)
            before += int((milli > 0).sum()) * len(shape.regions)
            rows = np.flatnonzero(frontier(counts, milli))
            workload_id = f"{name}-{phase.value}"
            ids.append(workload_id)
            candidates.append(
                WorkloadCandidates(
                    workload_id=workload_id,
                    alias=f"{name}/{phase.value}",
                    model=name,
                    phase=phase,
                    tokens_per_request=MODELS[model][1 if phase is Phase.PREFILL else 2],
                    headroom=0.8 if phase is Phase.PREFILL else 0.9,
                    template_ids=tuple(f"{workload_id}-{i:07d}" for i in rows),
                    counts=counts[rows],
                    throughput_mtok_per_s=milli[rows],
                )
            )
        demands.append(ModelDemand(name, shape.req_per_s * rng.uniform(0.8, 1.2), tuple(ids), tuple(shape.regions)))
    mix = rng.gamma(1.5, 1.0, (len(shape.regions), len(configs))) / np.array([n**0.7 for _, n in sizes])
    need = least_scale(candidates, demands, mix)
    problem = AllocationProblem(
        regions=tuple(shape.regions),
        node_configs=configs,
        price_usd_per_h=price,
        capacity_nodes=np.ceil(mix * need * supply).astype(np.int64),
        capacity_basis={(r, c): Basis.ASSUMED for r in shape.regions for c in configs},
        candidates=tuple(candidates),
        demands=tuple(demands),
        init_share=init_share,
        shortage=shortage,
    )
    return problem, before


def least_scale(
    candidates: Sequence[WorkloadCandidates], demands: Sequence[ModelDemand], mix: NDArray[np.float64]
) -> float:
    """Least multiple of ``mix`` (summed over regions) with which the relaxation serves all, over a sample of templates."""
    import pulp

    from tasks.allocation.highs import QuietHiGHS

    rate_of: Mapping[str, float] = {w: d.planned_req_per_s for d in demands for w in d.workload_ids}
    lp = pulp.LpProblem("need", pulp.LpMinimize)
    scale = pulp.LpVariable("scale", 0)
    used: list[list[tuple[pulp.LpVariable, float]]] = [[] for _ in range(mix.shape[1])]
    for w, c in enumerate(candidates):
        share = c.headroom * c.throughput_mtok_per_s / 1000 / c.tokens_per_request / rate_of[c.workload_id]
        each = share / c.counts.sum(axis=1)
        rows = np.unique(np.concatenate([np.argsort(-each)[:150], np.linspace(0, len(each) - 1, 250).astype(int)]))
        n = {i: pulp.LpVariable(f"n{w}_{i}", 0) for i in rows}
        lp += pulp.LpAffineExpression([(n[i], float(share[i])) for i in rows]) >= 1
        for k in range(mix.shape[1]):
            used[k] += [(n[i], float(c.counts[i, k])) for i in rows if c.counts[i, k]]
    for k, terms in enumerate(used):
        lp += pulp.LpAffineExpression(terms) - float(mix[:, k].sum()) * scale <= 0
    lp.setObjective(scale)
    lp.solve(QuietHiGHS(2, mip=False))
    return float(scale.varValue)
