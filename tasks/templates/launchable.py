"""The best placement of a combination that stock engines can launch, where the best of all is none of theirs.

Between nodes an engine has pipeline stages only, one tensor-parallel degree for all of them, and as many GPUs on every
node (class B1). So the search is small: one node per stage, in any order, at each degree. A node alone (class A) is
launched as it is, whatever its layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from catalogs.ids import split_node_config
from tasks.templates.curves import WorkloadCurves
from tasks.templates.exact import PreparedCurves, SolvedBatch, empty_batch, prepare, solve_many
from tasks.templates.ilp import solve_ilps
from tasks.templates.launch_class import LAUNCHABLE
from tasks.templates.rows import select_rows, template_table

RESTRICTION = "launchable"
"""Part of the ids of these templates, and the filter of the frontier that holds nothing else."""


def pipelines_of_equal_nodes(counts: NDArray[np.integer], node_configs: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which combinations [N, K] have at least two nodes, all of one GPU count."""
    gpus = np.array([split_node_config(name)[1] for name in node_configs])
    held = counts > 0
    low = np.where(held, gpus, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max)
    high = np.where(held, gpus, 0).max(axis=1, initial=0)
    return np.asarray((counts.sum(axis=1, dtype=np.int64) > 1) & (low == high))


@dataclass(frozen=True)
class LaunchableSolver:
    """Solves for launchable placements. ``degrees``: rates of launchable layouts per tensor-parallel degree, on one list of
    configurations. Prepared curves are kept from shard to shard. ``by_ilp``: by the reference instead."""

    degrees: Mapping[int, WorkloadCurves]
    by_ilp: bool = False
    _prepared: dict[tuple[int, int], PreparedCurves] = field(default_factory=dict)

    def added_to(
        self, best: pa.Table, shard_id: str, counts: NDArray[np.int8], node_configs: tuple[str, ...]
    ) -> pa.Table:
        """``best`` (TEMPLATE_SCHEMA, one row per feasible combination of ``counts`` [N, K] over ``node_configs``) and the
        best launchable placement of those combinations whose best is not launchable. Ties go to the first degree."""
        counts = counts[pipelines_of_equal_nodes(counts, node_configs)]
        if not self.degrees or len(counts) == 0:
            return best
        names = next(iter(self.degrees.values())).curves.node_configs
        wide = np.zeros((len(counts), len(names)), np.int8)
        wide[:, [names.index(name) for name in node_configs]] = counts
        extra = self._templates(shard_id, wide)
        launched = best.filter(pc.is_in(best["launch_class"], pa.array(sorted(LAUNCHABLE))))["combination_id"]
        extra = extra.filter(pc.invert(pc.is_in(extra["combination_id"], launched.combine_chunks())))
        if extra.num_rows == 0:
            return best
        # C and B2 come after B1, so the best placement comes first.
        order = [("combination_id", "ascending"), ("launch_class", "descending")]
        return pa.concat_tables([best, extra]).sort_by(order).combine_chunks()

    def _templates(self, shard_id: str, counts: NDArray[np.int8]) -> pa.Table:
        """The best launchable placement of each combination, at its best degree."""
        rate, chosen = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
        batches = {tp: self._solve(tp, counts) for tp in self.degrees}
        for tp, batch in batches.items():
            better = batch.throughput_mtok_per_s > rate
            rate[better], chosen[better] = batch.throughput_mtok_per_s[better], tp
        return pa.concat_tables(
            template_table(shard_id, select_rows(batch, chosen == tp), self.degrees[tp], RESTRICTION)
            for tp, batch in batches.items()
        )

    def _solve(self, tp: int, counts: NDArray[np.int8]) -> SolvedBatch:
        """All combinations at one degree; nodes of other GPU counts have other numbers of inner stages."""
        curves, n_max = self.degrees[tp].curves, int(counts.sum(axis=1).max())
        gpus = np.array([split_node_config(name)[1] for name in curves.node_configs])
        of_row = np.where(counts > 0, gpus, 0).max(axis=1)
        out = empty_batch(counts, n_max)
        for count in np.unique(of_row[of_row % tp == 0]):
            rows = np.flatnonzero(of_row == count)
            least = int(count) // tp
            if self.by_ilp:
                batch = solve_ilps(curves, counts[rows], one_node_per_stage=True, least_layers=least)
            else:
                if (tp, n_max) not in self._prepared:
                    self._prepared[tp, n_max] = prepare(curves, n_max)
                ready = self._prepared[tp, n_max]
                batch = solve_many(ready, counts[rows], one_node_per_stage=True, least_layers=least)
            for name in ("throughput_mtok_per_s", "n_stages", "cycle_index"):
                getattr(out, name)[rows] = getattr(batch, name)
            width = batch.slot_stage.shape[1]
            out.slot_stage[rows, :width], out.stage_layers[rows, :width] = batch.slot_stage, batch.stage_layers
        return out
