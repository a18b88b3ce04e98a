"""Which templates of a library a plan chooses from."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalogs.errors import NothingFitsError
from tasks.allocation.safety import MEASURED_GROUND, with_safe_rates
from tasks.templates.combinations import counts_of
from tasks.templates.launch_class import LAUNCHABLE
from tasks.templates.lossless import CandidateSet, candidate_set

if TYPE_CHECKING:
    from catalogs.scenario_schema import PolicySection
    from warehouse.connect import Lake

ALL_FILTER = "all"
MEASURED_FILTER = "measured"
LAUNCHABLE_FILTER = "launchable"
_SLIM = ["template_id", "combination_id", "throughput_mtok_per_s", "launch_class", "provenance", "rel_error"]
_NOTHING = {
    MEASURED_FILTER: (
        "rests on measured or fitted rates alone",
        "plan without --measured-only, or add measurements with `coral profiles add`",
    ),
    LAUNCHABLE_FILTER: (
        "can be launched by stock engines",
        "plan without --launchable-only, or offer larger nodes, or several kinds of nodes of one GPU count",
    ),
}


class Named(Protocol):
    """A workload as far as templates are looked up by it."""

    @property
    def workload_id(self) -> str:
        """Its id."""

    @property
    def alias(self) -> str:
        """Its name for people."""


def candidates(
    lake: Lake, library_id: str, workload: Named, running: Collection[str], policy: PolicySection
) -> pa.Table:
    """Templates of a workload that a plan under ``policy`` may choose from, with the rates it plans with: the frontier
    wherever that loses nothing (see :mod:`tasks.templates.lossless`), and those of ``running`` that are in the library.

    Columns template_id, combination_id, throughput_mtok_per_s, launch_class, provenance, rel_error. Raises
    NothingFitsError where the policy leaves nothing, LakeError where the library lacks a frontier.
    """
    from warehouse import read

    filters = filters_of(policy)
    needed = candidate_set(active_rules(policy)).candidates
    if needed is CandidateSet.FRONTIER and len(filters) < 2:
        stored = filters[0] if filters else ALL_FILTER
        found = read.frontier_templates(lake, library_id, workload.workload_id, stored).select(_SLIM)
        missing = set(running) - set(found["template_id"].to_pylist())
        if missing:
            rows = _allowed(read.library_templates(lake, library_id, workload.workload_id).select(_SLIM), filters)
            found = pa.concat_tables([found, rows.filter(_among(rows, missing))])
    else:
        found = library_candidates(lake, library_id, workload, policy)
        if needed is not CandidateSet.ALL and found.num_rows:
            found = found.filter(pc.or_(_frontier(found), _among(found, running)))
    if not found.num_rows and filters:
        what, remedy = _NOTHING[filters[-1]]
        raise NothingFitsError(f"{workload.alias}: no template {what}", remedy=remedy)
    return found


def library_candidates(lake: Lake, library_id: str, workload: Named, policy: PolicySection) -> pa.Table:
    """All templates of a workload that ``policy`` allows, with the rates it plans with; columns as :func:`candidates`."""
    from warehouse import read

    rows = read.library_templates(lake, library_id, workload.workload_id).select(_SLIM)
    return with_safe_rates(_allowed(rows, filters_of(policy)), policy.safety_percentile)


def filters_of(policy: PolicySection) -> list[str]:
    """The filters of a policy: each has a frontier in the lake."""
    asked = ((MEASURED_FILTER, policy.measured_only), (LAUNCHABLE_FILTER, policy.launchable_only))
    return [name for name, is_asked in asked if is_asked]


def active_rules(policy: PolicySection) -> list[str]:
    """The names of what a policy asks for."""
    return [name for name, value in policy.model_dump(mode="json").items() if value]


def _allowed(rows: pa.Table, filters: Collection[str]) -> pa.Table:
    """Rows that pass every filter."""
    for name, column, values in (
        (MEASURED_FILTER, "provenance", MEASURED_GROUND),
        (LAUNCHABLE_FILTER, "launch_class", LAUNCHABLE),
    ):
        if name in filters:
            rows = rows.filter(pc.is_in(rows[column], pa.array(sorted(values))))
    return rows


def _among(rows: pa.Table, ids: Collection[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["template_id"], pa.array(sorted(ids), pa.string()))


def _frontier(rows: pa.Table) -> pa.Array:
    """Which rows no packing of others replaces, by the rates in the table."""
    from tasks.templates.frontier import frontier_mask

    _, counts = counts_of(rows["combination_id"])
    rates = rows["throughput_mtok_per_s"].to_numpy().astype(np.int64)
    return pa.array(frontier_mask(counts, rates))
