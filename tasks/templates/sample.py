"""Solved templates against the reference ILP, on a sample: what every build does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from catalogs.ids import combination_id, split_node_config
from tasks.allocation.types import SolveLimits
from tasks.templates.curves import launch_curves, workload_curves
from tasks.templates.ilp import IlpResult, IlpStatus, solve_ilp
from tasks.templates.launch_class import LAUNCHABLE
from tasks.templates.launchable import pipelines_of_equal_nodes
from tasks.templates.shards import ShardSpec, shard_counts
from tasks.templates.types import RateCurves

_LAUNCH_PART = 4  # one combination in so many is checked for its best launchable placement as well


@dataclass(frozen=True, slots=True)
class SampleCheck:
    """Outcome of :func:`sample_check`: ``n`` combinations compared, the largest relative difference, those of which the
    ILP hit its time limit (not compared), and the ids of combinations that differ."""

    n: int
    max_rel_diff: float
    n_time_limits: int
    differing: tuple[str, ...]


def sample_check(
    specs: Sequence[ShardSpec],
    templates: pa.Table,
    profiles: pa.Table,
    launch: pa.Table | None = None,
    *,
    size: int = 24,
    seed: int = 1,
    max_nodes: int = 3,
    limits: SolveLimits | None = None,
    time_s: float = float("inf"),
) -> SampleCheck:
    """Re-solve a seeded sample of one workload's combinations of at most ``max_nodes`` nodes by the ILP and compare.

    ``templates`` holds the solved rows of all ``specs`` (``combination_id``, ``throughput_mtok_per_s``, ``launch_class``);
    a combination without a row counts as rate 0, so wrongly missing ones are found too. With ``launch``, the best
    launchable placements of a quarter as many combinations (at least one) are compared on top. Differences are relative to
    the larger of the two rates. The smallest combinations come first; once ``time_s`` have passed no other one is begun.
    """
    if not specs:
        return SampleCheck(0, 0.0, 0, ())
    workload = workload_curves(profiles, specs[0].layers)
    degrees = {} if launch is None else {tp: own.curves for tp, own in launch_curves(workload, launch).items()}
    candidates = _small_combinations(specs, workload.curves.node_configs, max_nodes)
    rng = np.random.default_rng(seed)
    jobs = [(row, False) for row in rng.permutation(candidates)[:size].tolist()]
    if degrees:
        chains = candidates[pipelines_of_equal_nodes(candidates, workload.curves.node_configs)]
        jobs += [(row, True) for row in rng.permutation(chains)[: max(1, size // _LAUNCH_PART)].tolist()]
    any_rate, launch_rate = _stored_rates(templates)
    outcome, deadline = _Outcome(), time.monotonic() + time_s
    for row, launchable in sorted(jobs, key=lambda job: (sum(job[0]), job)):
        if outcome.n and time.monotonic() > deadline:
            break
        counts = tuple(row)
        text = combination_id(dict(zip(workload.curves.node_configs, counts, strict=True)))
        stored = (launch_rate if launchable else any_rate).get(text, 0)
        results = [
            # The stored rate only shortens the search: a wrong one is not reached, or is passed.
            solve_ilp(some, counts, limits, at_least=max(stored, 1), one_node_per_stage=launchable, least_layers=least)
            for some, least in (_launchable_at(degrees, counts) if launchable else [(workload.curves, 1)])
        ]
        outcome.compare(f"{text} (launchable)" if launchable else text, stored, results)
    return SampleCheck(outcome.n, outcome.worst, outcome.n_time_limits, tuple(outcome.differing))


class _Outcome:
    """What the comparisons so far have shown."""

    def __init__(self) -> None:
        self.n, self.worst, self.n_time_limits = 0, 0.0, 0
        self.differing: list[str] = []

    def compare(self, text: str, stored: int, results: Sequence[IlpResult]) -> None:
        """The best of the ILPs' rates against the stored one."""
        rate = max((result.placement.throughput_mtok_per_s for result in results), default=0)
        if any(result.status is IlpStatus.TIME_LIMIT for result in results) and rate <= stored:
            self.n_time_limits += 1
            return
        self.n += 1
        difference = abs(rate - stored) / max(rate, stored, 1)
        self.worst = max(self.worst, difference)
        if difference > 0:
            self.differing.append(text)


def _launchable_at(degrees: Mapping[int, RateCurves], counts: Sequence[int]) -> list[tuple[RateCurves, int]]:
    """The rates of each degree that divides the nodes' GPUs, and the fewest layers of a node there: its inner stages."""
    found = []
    for tp, curves in degrees.items():
        gpus = {split_node_config(name)[1] for name, n in zip(curves.node_configs, counts, strict=True) if n}
        found += [(curves, count // tp) for count in gpus if count % tp == 0]
    return found


def _small_combinations(specs: Sequence[ShardSpec], node_configs: tuple[str, ...], max_nodes: int) -> NDArray[np.int8]:
    """Node counts of the shards' combinations of at most ``max_nodes`` nodes, sorted."""
    index = {name: k for k, name in enumerate(node_configs)}
    parts = [np.zeros((0, len(node_configs)), np.int8)]
    for spec in specs:
        if len(spec.gpus) <= max_nodes:
            counts = shard_counts(spec)
            counts = counts[counts.sum(axis=1) <= max_nodes]
            wide = np.zeros((len(counts), len(node_configs)), np.int8)
            wide[:, [index[name] for name in spec.node_configs]] = counts
            parts.append(wide)
    return np.unique(np.concatenate(parts), axis=0)


def _stored_rates(templates: pa.Table) -> tuple[dict[str, int], dict[str, int]]:
    """The best rate per combination: of all its templates, and of its launchable ones."""
    best: dict[str, int] = {}
    launchable: dict[str, int] = {}
    columns = ("combination_id", "throughput_mtok_per_s", "launch_class")
    for text, rate, launch in zip(*(templates[name].to_pylist() for name in columns), strict=True):
        best[text] = max(best.get(text, 0), rate)
        if launch in LAUNCHABLE:
            launchable[text] = max(launchable.get(text, 0), rate)
    return best, launchable
